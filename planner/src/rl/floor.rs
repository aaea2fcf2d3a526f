//! What no step of reinforcement learning is shorter than, known before anything is planned or played. Units: seconds.
//!
//! The trainer: the certified bound of its updates (`train::bound`). Work of all updates adds up, whichever answers share one, and each has an optimizer of its
//! own. Forwards, weights, the reference and what an orchestrator does besides count as nothing. The engines: the outlook of serving (`serve::outlook`) without prompts, which may be shared. Every
//! answer has a first token, and the others attend to those before them.

use engine::CostModel;
use hw::Time;
use rl::cycle::{Batches, Parts};
use rl::step::Rules;
use serve::fleet::Group;
use serve::outlook::{Counted, Load, Replica};
use serve::request::{Request, Requests};
use serve::step_cost::ReplicaConfig;
use train::bound::{Bound, Floors};
use train::problem::Problem;

/// What the updates of a step take at least, with the degrees of the problem; 0 without log probabilities, where a plan may have pipelines of several shapes.
pub fn training_s(rules: &Rules, problem: &Problem, cost: &dyn CostModel) -> f64 {
    if rules.n_forwards == 0 {
        return 0.0;
    }
    let (lengths, n_updates) = (&problem.workload.lengths, problem.workload.n_steps());
    // No micro-batch has more tokens than all sequences.
    let mut floors = Floors::new(problem, lengths.iter().sum::<u64>().max(1), cost);
    let of_updates: Vec<Bound> = (0..n_updates).map(|index| floors.of_step(index, lengths)).collect();
    let least = |part: fn(&Bound) -> f64| of_updates.iter().map(part).fold(f64::INFINITY, f64::min);
    least(|bound| bound.work_s) + hw::real(n_updates as u64) * least(|bound| bound.optimizer_s + bound.gather_s)
}

/// Requests of answers without their prompts.
fn bare(answers: &[u32]) -> Requests {
    let request = |output: &u32| Request::new(Time::ZERO, 1, *output);
    Requests { list: answers.iter().map(request).collect(), ..Requests::default() }
}

/// What a group of replicas takes at least for answers without their prompts; 0 where no price is known. Drafts are accepted by the positions of requests, and
/// answers have others here, so it holds without drafts alone.
pub fn generation_s(config: &ReplicaConfig<'_>, cost: &dyn CostModel, group: &Group, answers: &[u32]) -> f64 {
    let answers = bare(answers);
    let Some(load) = Load::of(&answers, Counted::default()) else { return 0.0 };
    let replica = Replica::new(config, cost, group.engine.table.clone(), load);
    let Some(outlook) = replica.outlook(group.n_replicas, config.n_gpus(), &group.engine.limits) else { return 0.0 };
    // All work is done, and the tokens of the longest answer pass one after another.
    let figure = |metric: &str| outlook.figure(metric, None).unwrap_or(0.0);
    let longest = answers.list.iter().map(|answer| answer.output).max().unwrap_or(0);
    figure("makespan_s").max(figure("tpot_s.mean") * f64::from(longest))
}

/// What a step on two groups of GPUs takes at least when its parts take at least so long. A batch beside others in the engine takes no less than alone, and it,
/// its rewards and its trainer are to fit the steps that its weights may be behind.
pub fn step_s(rules: &Rules, generation: f64, training: f64) -> f64 {
    let parts = Parts { generation, training, rewards: rules.rewards_s.unwrap_or(0.0), ..Parts::default() };
    match rules.batches {
        Batches::Streamed if rules.off_policy > 0 => {
            parts.trainer().max((generation + parts.after_generation()) / f64::from(rules.off_policy + 1))
        }
        _ => parts.least_apart(rules.off_policy),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rl::cycle::{self, Placement};
    use rl::orchestrator::Orchestrator;
    use rl::reference::Reference;

    use super::*;

    proptest! {
        #[test]
        fn no_step_is_shorter_than_the_floor_of_its_parts(
            [generation, training, weights] in [1.0..100.0_f64, 1.0..100.0, 0.0..5.0],
            [rewards_s, crowd] in [0.0..200.0_f64, 0.0..3.0],
            off_policy in 0_u32..5,
        ) {
            let rules = |batches| Rules {
                placement: Placement::Split,
                off_policy,
                batches,
                n_forwards: 2,
                rewards_s: Some(rewards_s),
                orchestrator: Orchestrator::NemoRl,
                sends_states: true,
                weights_gb_per_s: None,
                reference: Reference::Host,
            };
            let parts = Parts { generation, training, weights, rewards: rewards_s, ..Parts::default() };
            let in_turn = parts.step(Placement::Split, off_policy);
            prop_assert!(step_s(&rules(Batches::InTurn), generation, training) <= in_turn);
            // A batch beside others takes longer, the sooner the next one comes.
            let beside = |_: u32, every: f64| generation * (1.0 + crowd * generation / every);
            let shared = cycle::Crowd { generation: &beside, further: &|_| generation * crowd / 4.0 };
            let (streamed, _) = cycle::streamed(&parts, off_policy, shared);
            let streamed = if off_policy > 0 { streamed } else { in_turn };
            prop_assert!(step_s(&rules(Batches::Streamed), generation, training) <= streamed * (1.0 + 1e-9));
        }
    }
}
