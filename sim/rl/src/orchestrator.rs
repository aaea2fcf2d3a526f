//! What an orchestrator does for a step beside the work that the model asks for: rewards, losses sequence by sequence, states that go to the host and back,
//! tensors that are handed over one by one.
//!
//! NVIDIA's page on NeMo-RL v0.3 prints five steps on H100 part by part (NVIDIA-NeMo/RL discussion 1161, `nemo-rl-v0.3`). Three of them have dense models or lengths that
//! one mean describes: Llama 3.1 8B on 8 GPUs, Qwen3 32B and Qwen3 30B-A3B on 64. What is read off them is named below; the rest is published by
//! itself. No step of `rl_steps.csv` chose any of it (docs/accuracy-rl.md). Units: seconds, bytes per second.

use engine::Model;
use hw::{Bytes, Cluster};
use train::problem::Problem;

use crate::cycle::{Parts, Placement};
use crate::step::Rules;

hw::words! {
    /// Whose time between and beside the parts is counted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Orchestrator: word {
        /// NeMo-RL with Megatron-Core and vLLM.
        NemoRl = "nemo-rl",
        /// Nobody's: a step is its parts alone.
        None = "none",
    }
}

/// Verification of an answer and what follows a batch that is generated in one go, per answer. The parts "generation" of the three steps are 7.6, 10.9 and 7.7 s longer
/// than the engine is predicted to take, for 2,048 answers each. That timer holds the environment too (`run_multi_turn_rollout`).
const ANSWER_S: f64 = 0.0043;

/// Loss of a sequence by itself, with what it reads back from the device, in log probabilities and in an update (`SequencePackingLossWrapper`). Read off the three
/// steps of dense models, where forward and update besides take 1.25 times the prediction: their activation functions are not fused, and the recipe of v0.5 says
/// what that gains (`bias_activation_fusion`, grpo_math_1B.yaml).
const SEQUENCE_S: [f64; 2] = [0.0024, 0.0127];

/// States of an optimizer on their way to memory of the host that is neither pinned nor touched before, and back (`move_optimizer`). Out: 4.94 GB in 2.75 s on an
/// H100; in: 16.1 GB/s from memory that is not pinned (NVIDIA-NeMo/RL issue 3976).
const OUT_BYTES_PER_S: f64 = 1.8e9;
const IN_BYTES_PER_S: f64 = 16.1e9;

/// Handing over a tensor to an engine on the same GPUs. The 45 thousand of DeepSeek-V3 take 35 s (pull request 1267), of which 12.2 s put parameters together (NeMo-RL's
/// page on refit, Table 1): 0.5 ms. The 19 thousand of Qwen3 30B-A3B take 12 s, of which states of the optimizer are 3 s and links less than 1: 0.4 ms.
const TENSOR_S: f64 = 0.45e-3;
/// Tensors of a layer without its routed experts: four of attention, three of the feed-forward or of shared experts, two norms.
const LAYER_TENSORS: u64 = 9;

/// Share of the ports of a node that a broadcast of new weights fills. 470 GB of Qwen3 235B take 5.5 s and 1,342 GB of DeepSeek-V3 14 s from nodes of eight ports of
/// 50 GB/s (pull request 1379).
const BROADCAST_SHARE: f64 = 0.22;

/// All of these at the low end, as expected and at the high end. The same recipes on a second cluster had 1.6 and 1.9 times the time for new weights (issue 959).
const ENDS: [f64; 3] = [0.5, 1.0, 2.0];

/// What is counted, for who reads a result.
pub const SAID: &str = "time of NeMo-RL beside the parts: 4.3 ms an answer, 2.4 ms and 12.7 ms a sequence in log probabilities and updates, \
                        fitted on three steps of NeMo-RL v0.3 (`orchestrator = \"none\"` leaves it out)";

/// Tensors of a model as checkpoints of Hugging Face have them, about: each expert has three.
fn n_tensors(model: &Model) -> u64 {
    let of_experts = model.experts.map_or(0, |experts| 3 * experts.n_routed);
    model.n_layers * LAYER_TENSORS + model.n_expert_layers() * of_experts
}

impl Orchestrator {
    /// Adds to the parts of a step what the orchestrator does besides, at an end of the costs (position in [`crate::cycle::CASES`]).
    pub fn add_to(self, parts: &mut Parts, problem: &Problem, rules: &Rules, end: usize) {
        if self == Self::None {
            return;
        }
        let end = ENDS[end];
        let n_answers = hw::real(problem.workload.lengths.len() as u64);
        // Groups take equal parts of the sequences. A group's last stage has the loss, and the others wait for it.
        let of_group = n_answers / f64::from(problem.layout.dp);
        let [forward_s, update_s] = SEQUENCE_S.map(|seconds| seconds * of_group * end);
        parts.log_probabilities += f64::from(rules.n_forwards) * forward_s;
        parts.training += update_s;
        // Behind other batches an answer is verified while others are generated.
        if rules.rewards_s.is_none() && (rules.placement == Placement::Colocated || rules.off_policy == 0) {
            parts.rewards += ANSWER_S * n_answers * end;
        }
        if rules.placement == Placement::Colocated && rules.weights_gb_per_s.is_none() {
            parts.weights += TENSOR_S * hw::real(n_tensors(&problem.model)) * end;
        }
    }

    /// Time in which so many bytes of an optimizer's states go to the host and come back, where the orchestrator's is known.
    pub fn out_and_back_s(self, states: Bytes, end: usize) -> Option<f64> {
        let seconds = states.as_f64() * (1.0 / OUT_BYTES_PER_S + 1.0 / IN_BYTES_PER_S);
        (self != Self::None).then_some(seconds * ENDS[end])
    }

    /// Bytes per second of new weights between two groups of GPUs, where the orchestrator's is known.
    pub fn broadcast(self, cluster: &Cluster) -> Option<f64> {
        let of_node = cluster.nic_bandwidth.get() * f64::from(cluster.gpus_per_node);
        (self != Self::None).then_some(BROADCAST_SHARE * of_node)
    }
}

#[cfg(test)]
mod tests {
    use train::memory;
    use train::stage::stages;

    use super::*;
    use crate::cycle::Batches;
    use crate::example;
    use crate::reference::Reference;

    const RULES: Rules = Rules {
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

    /// 1,024 sequences over eight groups of two stages.
    fn problem() -> Problem {
        let mut problem = example::trainer([1, 2, 8], 2);
        problem.workload.lengths = vec![1000; 1024];
        problem
    }

    fn added(problem: &Problem, rules: &Rules, end: usize) -> Parts {
        let mut parts = Parts::default();
        rules.orchestrator.add_to(&mut parts, problem, rules, end);
        parts
    }

    fn is(found: f64, by_hand: f64) {
        assert!((found - by_hand).abs() < 1e-9, "{found}, by hand {by_hand}");
    }

    #[test]
    fn a_group_has_the_loss_of_its_own_sequences_and_a_batch_all_answers() {
        let found = added(&problem(), &RULES, 1);
        // 128 sequences of a group: two log probabilities of 2.4 ms, and an update of 12.7 ms.
        is(found.log_probabilities, 2.0 * 128.0 * 0.0024);
        is(found.training, 128.0 * 0.0127);
        is(found.rewards, 1024.0 * 0.0043);
        // 28 layers of nine tensors.
        is(found.weights, 252.0 * 0.45e-3);
        assert_eq!(found.generation, 0.0);
        assert_eq!(added(&problem(), &Rules { orchestrator: Orchestrator::None, ..RULES }, 1), Parts::default());
    }

    #[test]
    fn low_ends_are_half_and_high_ends_twice() {
        let [low, expected, high] = [0, 1, 2].map(|end| added(&problem(), &RULES, end).in_turn());
        is(low, expected / 2.0);
        is(high, expected * 2.0);
    }

    #[test]
    fn what_is_stated_and_what_runs_beside_a_batch_is_not_added() {
        let rewards = |rules: &Rules| added(&problem(), rules, 1).rewards;
        assert_eq!(rewards(&Rules { rewards_s: Some(3.0), ..RULES }), 0.0);
        let split = Rules { placement: Placement::Split, ..RULES };
        assert!(rewards(&split) > 0.0, "generation waits for the update of its own batch");
        assert_eq!(rewards(&Rules { off_policy: 1, ..split }), 0.0);
        let weights = |rules: &Rules| added(&problem(), rules, 1).weights;
        assert_eq!(weights(&Rules { weights_gb_per_s: Some(10.0), ..RULES }), 0.0);
        assert_eq!(weights(&split), 0.0);
    }

    #[test]
    fn experts_have_three_tensors_each() {
        let n = |name: &str| n_tensors(&engine::model::embedded(name).expect("listed"));
        assert_eq!(n("qwen3-30b-a3b"), 48 * (9 + 3 * 128));
        // Three layers of 61 are dense.
        assert_eq!(n("deepseek-v3"), 61 * 9 + 58 * 3 * 256);
    }

    #[test]
    fn states_go_out_slowly_and_come_back_faster() {
        let problem = problem();
        let states = memory::states(&problem, &stages(&problem)[..1]).optimizer;
        let found = Orchestrator::NemoRl.out_and_back_s(states, 1).expect("known");
        is(found, states.as_f64() / 1.8e9 + states.as_f64() / 16.1e9);
        assert!(Orchestrator::None.out_and_back_s(states, 1).is_none());
        // A broadcast fills 0.22 of eight ports of 50 GB/s.
        is(Orchestrator::NemoRl.broadcast(&problem.cluster).expect("known"), 88e9);
    }
}
