//! A whole step: what the engine of serving and the trainer take for its parts, at all ends of the costs, and the time between two updates.
//!
//! Units: seconds, tokens, GPUs. An interval has every cost of both, and what the orchestrator does besides, at its low or at its high end.

use std::collections::BTreeMap;

use engine::cost::CostModel;
use engine::play::Case;
use engine::verdict::Refused;
use hw::{Bytes, BytesPerSecond, Seconds};
use serve::fleet::Fleet;
use serve::metrics::unexplained;
use serve::router::RouterKind;
use train::plan::Plan;
use train::problem::Problem;

use crate::cycle::{Batches, CASES, Parts, Placement};
use crate::generation::{self, Generated, Shared};
use crate::orchestrator::{Orchestrator, Share};
use crate::reference::Reference;
use crate::rollouts::Rollouts;
use crate::weights;

/// Figures that are an amount over the time of a step.
const RATES: [&str; 3] = ["answers_per_s", "tokens_per_s", "tokens_per_s_per_gpu"];

/// How a step is made of its parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Which GPUs generate and which train.
    pub placement: Placement,
    /// Updates that the weights of a batch may be behind.
    pub off_policy: u32,
    /// When the engine takes a batch.
    pub batches: Batches,
    /// Forward passes over all answers: one for log probabilities, one more for those of a reference.
    pub n_forwards: u32,
    /// Time of rewards, seconds, where it is stated and is not the orchestrator's.
    pub rewards_s: Option<f64>,
    /// Whose time beside the parts is counted.
    pub orchestrator: Orchestrator,
    /// Whether a trainer that shares its GPUs sends its states to the host while the engine generates.
    pub sends_states: bool,
    /// Gigabytes of new weights per second, where they are stated and do not follow from links.
    pub weights_gb_per_s: Option<f64>,
    /// Where a reference lies.
    pub reference: Reference,
}

impl Rules {
    /// What is the orchestrator's. Behind other batches answers are verified while the engine goes on.
    pub fn share(&self) -> Share {
        let is_whole = self.placement == Placement::Colocated || self.off_policy == 0;
        Share {
            n_forwards: self.n_forwards,
            verifies: is_whole && self.rewards_s.is_none(),
            hands_over: self.placement == Placement::Colocated && self.weights_gb_per_s.is_none(),
        }
    }

    /// References with weights of their own: every forward but one is of a reference. Beside adapters the frozen weights are the reference, without the
    /// adapters (huggingface/trl, `null_ref_context`; verl, `ref_in_actor`).
    fn n_references(&self, problem: &Problem) -> u32 {
        if problem.execution.trains_weights() { self.n_forwards.saturating_sub(1) } else { 0 }
    }

    /// Bytes of references on the trainer's fullest GPU.
    pub fn references(&self, problem: &Problem) -> Bytes {
        self.reference.on_device(self.n_references(problem), problem)
    }
}

/// Who learns.
pub struct Trainer<'a> {
    /// What is trained, and on which GPUs.
    pub problem: &'a Problem,
    /// Where answers lie, over all updates of a step.
    pub plan: &'a Plan,
    /// Time of an update of the plan on average, at every end of the costs.
    pub update_s: [f64; 3],
    /// Time of a forward over all answers, at every end of the costs.
    pub forward_s: [f64; 3],
    /// Times of its operations.
    pub cost: &'a dyn CostModel,
}

/// Who generates.
pub struct Engines {
    /// Replicas, at every end of the costs.
    pub fleets: [Fleet; 3],
    /// Which replica takes an answer.
    pub router: &'static RouterKind,
    /// Seed of the router.
    pub seed: u64,
    /// Tokens of a block of keys and values.
    pub block_tokens: u32,
    /// Bytes that an engine takes of a GPU.
    pub bytes_per_gpu: Bytes,
    /// Bytes of its weights on a GPU.
    pub weights_per_gpu: Bytes,
    /// What the ports of its slowest node take in together.
    pub inward: BytesPerSecond,
}

impl Engines {
    /// As expected, where batches of such answers share them.
    const fn shared<'a>(&'a self, rollouts: &'a Rollouts, answers: &'a [u32]) -> Shared<'a> {
        let [_, fleet, _] = &self.fleets;
        Shared { rollouts, answers, fleet, router: self.router, seed: self.seed, block_tokens: self.block_tokens }
    }
}

/// A step that was played.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Parts, at every end of the costs.
    pub parts: [Parts; 3],
    /// Time between two updates, at every end.
    pub step_s: [f64; 3],
    /// How a batch alone is generated, as expected.
    pub generated: Generated,
    /// GPUs that train and that generate; the same ones where they are colocated.
    n_gpus: [u32; 2],
    placement: Placement,
}

/// The engines with a batch alone, at every end of the costs.
pub fn alone(rollouts: &Rollouts, answers: &[u32], engines: &Engines) -> [Generated; 3] {
    let requests = generation::requests(rollouts, answers, 1, Seconds::ZERO, engines.block_tokens);
    engines.fleets.each_ref().map(|fleet| generation::alone(fleet, &requests, engines.router, engines.seed))
}

/// Plays a step whose answers have these lengths, with engines that generate a batch `alone`.
///
/// # Errors
/// When no replica could hold an answer, or both sides do not fit the GPUs that they share.
pub fn step(
    rollouts: &Rollouts,
    answers: &[u32],
    rules: &Rules,
    trainer: &Trainer<'_>,
    (engines, alone): (&Engines, &[Generated; 3]),
) -> Result<Step, Refused> {
    shared_memory(rules, trainer.problem, engines.bytes_per_gpu)?;
    let (mut parts, mut step_s, slowness) =
        ([Parts::default(); 3], [0.0; 3], unexplained::slowness(alone.each_ref().map(|of| of.seconds)));
    for (index, case) in CASES.into_iter().enumerate() {
        let of = &alone[index];
        if of.n_refused > 0 {
            let why = format!("{} of {} answers are longer than a replica can hold", of.n_refused, answers.len());
            return Err(Refused::out_of_memory(why));
        }
        let mut found = of_trainer(rules, trainer, engines.weights_per_gpu, (index, case));
        if rules.placement == Placement::Split && rules.weights_gb_per_s.is_none() {
            // New weights have to come into every node that generates, however fast the trainer sends them.
            let moved = weights::moved(trainer.problem).as_f64();
            found.weights = found.weights.max(moved / engines.inward.get());
        }
        found.log_probabilities += trainer.forward_s[index] * f64::from(rules.n_forwards);
        found.generation = alone[1].seconds * slowness[index];
        step_s[index] = found.step(rules.placement, rules.off_policy);
        if rules.placement == Placement::Split && rules.off_policy > 0 && rules.batches == Batches::Streamed {
            let shared = engines.shared(rollouts, answers);
            (step_s[index], found.generation) = shared.step(&found, rules.off_policy, slowness[index]);
        }
        parts[index] = found;
    }
    let of_engines = engines.fleets[1].groups.iter().map(|group| group.n_replicas * group.gpus_per_replica).sum();
    let n_gpus = [trainer.problem.layout.n_ranks(), of_engines];
    Ok(Step { parts, step_s, generated: alone[1], n_gpus, placement: rules.placement })
}

/// What a trainer keeps beside an engine on the same GPUs, its states or a reference, has room.
fn shared_memory(rules: &Rules, problem: &Problem, engine: Bytes) -> Result<(), Refused> {
    if rules.placement == Placement::Split {
        return Ok(());
    }
    let states = if rules.sends_states { Bytes::ZERO } else { weights::states(problem) };
    let (kept, there) = (states.0 + rules.references(problem).0, problem.cluster.gpu.memory);
    if kept == 0 || kept + engine.0 <= there.0 {
        return Ok(());
    }
    let gib = |bytes: Bytes| bytes.as_f64() / hw::GIB;
    Err(Refused::out_of_memory(format!(
        "the trainer keeps {:.1} GiB of states and references and the engine takes {:.1} GiB of the {:.1} GiB of `{}`: send them to the host, or lower the engine's share",
        gib(Bytes(kept)),
        gib(engine),
        gib(there),
        problem.cluster.gpu.name
    )))
}

/// What the trainer does in a step, without its forwards.
fn of_trainer(rules: &Rules, trainer: &Trainer<'_>, engine: Bytes, (index, case): (usize, Case)) -> Parts {
    let Trainer { problem, plan, cost, update_s, .. } = trainer;
    let reference_s = match rules.reference {
        Reference::Host => f64::from(rules.n_references(problem)) * weights::reference_s(problem, *cost, case),
        Reference::Device => 0.0,
    };
    let weights = match rules.weights_gb_per_s {
        Some(rate) => weights::moved(problem).as_f64() / (rate * 1e9),
        None => transfer_s(problem, (rules.placement, rules.orchestrator), *cost, case),
    };
    let shares_gpus = rules.placement == Placement::Colocated && rules.sends_states;
    let mut parts = Parts {
        generation: 0.0,
        rewards: rules.rewards_s.unwrap_or(0.0),
        log_probabilities: reference_s,
        training: update_s[index] * hw::real(plan.steps.len() as u64),
        weights,
        switch: if shares_gpus { switch_s(trainer, rules.orchestrator, engine, index) } else { 0.0 },
    };
    rules.orchestrator.add_to(&mut parts, problem, rules.share(), index);
    parts
}

/// Time of new weights. Sides with GPUs of their own lie on nodes of their own, which NVLink does not join.
fn transfer_s(problem: &Problem, by: (Placement, Orchestrator), cost: &dyn CostModel, case: Case) -> f64 {
    let mut both = problem.clone();
    if by.0 == Placement::Split {
        let own = both.cluster.domain() / both.cluster.gpus_per_node;
        both.cluster.n_nodes = both.cluster.n_nodes.max(own + 1);
    }
    weights::transfer_s(&both, weights::moved(problem), by, cost, case)
}

/// What trainer and engine send to the host and take back, one after the other.
fn switch_s(trainer: &Trainer<'_>, orchestrator: Orchestrator, engine: Bytes, end: usize) -> f64 {
    weights::switch_s(trainer.problem, orchestrator, trainer.cost, end)
        + weights::out_and_back_s(engine, trainer.cost, CASES[end])
}

impl Step {
    /// Time between two updates, as expected.
    pub const fn expected_s(&self) -> f64 {
        self.step_s[1]
    }

    /// All GPUs.
    pub fn n_gpus(&self) -> u32 {
        match self.placement {
            Placement::Colocated => self.n_gpus[0],
            Placement::Split => self.n_gpus.iter().sum(),
        }
    }

    /// Share of the time of all GPUs in which they have nothing to do: replicas that wait for the last answers, one side that waits for the other, and all
    /// that wait for rewards, which no GPU here makes.
    pub fn idle_ratio(&self) -> f64 {
        let (step_s, parts) = (self.expected_s(), &self.parts[1]);
        let generates = (self.generated.seconds * (1.0 - self.generated.idle_ratio)).min(step_s);
        let trains = parts.trainer().min(step_s);
        match self.placement {
            Placement::Colocated => (self.generated.seconds * self.generated.idle_ratio + parts.rewards) / step_s,
            Placement::Split => {
                let [train, generate] = self.n_gpus.map(f64::from);
                1.0 - (train * trains + generate * generates) / ((train + generate) * step_s)
            }
        }
    }

    /// Figures by their keys, for a step of these answers.
    pub fn figures(&self, rollouts: &Rollouts, answers: &[u32]) -> BTreeMap<String, f64> {
        let (step_s, parts, tokens) = (self.expected_s(), &self.parts[1], rollouts.tokens(answers));
        let n_gpus = f64::from(self.n_gpus());
        let rows = [
            ("step_s", step_s),
            ("generation_s", parts.generation),
            ("half_generated_s", self.generated.half_s),
            ("rewards_s", parts.rewards),
            ("log_probability_s", parts.log_probabilities),
            ("training_s", parts.training),
            ("weights_s", parts.weights),
            ("switch_s", parts.switch),
            ("answers_per_s", hw::real(answers.len() as u64) / step_s),
            ("tokens_per_s", tokens / step_s),
            ("tokens_per_s_per_gpu", tokens / step_s / n_gpus),
            ("idle_ratio", self.idle_ratio()),
            ("n_gpus", n_gpus),
        ];
        rows.map(|(key, value)| (key.to_owned(), value)).into()
    }

    /// Low and high ends of the step, of its larger parts, and of the rates among its figures.
    pub fn interval(&self, figures: &BTreeMap<String, f64>) -> BTreeMap<String, [f64; 2]> {
        let ([low, _, high], [low_s, step_s, high_s]) = (&self.parts, self.step_s);
        let rates = RATES.iter().filter_map(|key| {
            let amount = figures.get(*key)? * step_s;
            Some(((*key).to_owned(), [amount / high_s, amount / low_s]))
        });
        let times = [
            ("step_s".to_owned(), [low_s, high_s]),
            ("generation_s".to_owned(), [low.generation, high.generation]),
            ("log_probability_s".to_owned(), [low.log_probabilities, high.log_probabilities]),
            ("training_s".to_owned(), [low.training, high.training]),
        ];
        times.into_iter().chain(rates).collect()
    }

    /// Where the time goes, in words.
    pub fn why(&self) -> String {
        let (step_s, parts) = (self.expected_s(), &self.parts[1]);
        let share = |seconds: f64| format!("{:.0} %", seconds / step_s * 100.0);
        let half = self.generated.half_s / self.generated.seconds * 100.0;
        let tail = format!("half of the answers are there after {half:.0} % of the time for all");
        match self.placement {
            Placement::Colocated => {
                let named = [
                    ("rewards", parts.rewards),
                    ("log probabilities", parts.log_probabilities),
                    ("training", parts.training),
                    ("weights and the switch", parts.weights + parts.switch),
                ];
                let others: String = named
                    .iter()
                    .filter(|(_, seconds)| *seconds > 0.0)
                    .map(|(part, seconds)| format!(", {part} {}", share(*seconds)))
                    .collect();
                format!("generation takes {} of {step_s:.1} s{others}; {tail}", share(parts.generation))
            }
            Placement::Split => {
                let rewards =
                    if parts.rewards > 0.0 { format!(", rewards {:.1} s", parts.rewards) } else { String::new() };
                format!(
                    "generation takes {:.1} s{rewards} and the trainer {:.1} s of a step of {step_s:.1} s; {tail}",
                    parts.generation,
                    parts.trainer()
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::shard::{AdaptedProducts, Adapters};

    use super::*;

    #[test]
    fn what_is_stated_and_what_runs_beside_a_batch_is_not_the_orchestrators_and_adapters_have_no_reference_of_their_own()
     {
        let rules = Rules {
            placement: Placement::Colocated,
            off_policy: 0,
            batches: Batches::InTurn,
            n_forwards: 2,
            rewards_s: None,
            orchestrator: Orchestrator::NemoRl,
            sends_states: true,
            weights_gb_per_s: None,
            reference: Reference::Host,
        };
        let share = |rules: Rules| (rules.share().verifies, rules.share().hands_over);
        assert_eq!(share(rules), (true, true));
        assert_eq!(share(Rules { rewards_s: Some(3.0), ..rules }), (false, true));
        assert_eq!(share(Rules { weights_gb_per_s: Some(10.0), ..rules }), (true, false));
        let mut trainer = crate::example::trainer([1, 1, 8], 1);
        assert_eq!(rules.n_references(&trainer), 1);
        trainer.execution.adapters = Some(Adapters::new(16, AdaptedProducts::ALL));
        let on_device = Rules { reference: Reference::Device, ..rules };
        assert_eq!((rules.n_references(&trainer), on_device.references(&trainer)), (0, Bytes::ZERO));
        // On policy the update waits for the whole batch; else answers are verified while others are generated.
        let split = Rules { placement: Placement::Split, ..rules };
        assert_eq!(share(split), (true, false));
        assert_eq!(share(Rules { off_policy: 1, ..split }), (false, false));
    }
}
