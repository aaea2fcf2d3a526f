//! What an orchestrator does for a step beside the work that the model asks for: rewards, losses sequence by sequence, states that go to the host and back,
//! tensors that are handed over one by one.
//!
//! NVIDIA's page on NeMo-RL v0.3 prints five steps on H100 part by part (NVIDIA-NeMo/RL discussion 1161, `nemo-rl-v0.3`). Three of them have dense models or lengths that
//! one mean describes: Llama 3.1 8B on 8 GPUs, Qwen3 32B and Qwen3 30B-A3B on 64. What is read off them is named below; the rest is published by
//! itself. No step of `rl_steps.csv` chose any of it (docs/accuracy-rl.md). Units: seconds, bytes per second.

use engine::Model;
use hw::{Bytes, Cluster};
use train::problem::Problem;

use crate::cycle::Parts;

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
const SAID: &str = "time of NeMo-RL beside the parts: 4.3 ms an answer, 2.4 ms and 12.7 ms a sequence in log probabilities and updates, \
                        fitted on three steps of NeMo-RL v0.3 (`orchestrator = \"none\"` leaves it out)";

/// What of a step is the orchestrator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Forward passes over all answers.
    pub n_forwards: u32,
    /// Whether answers are verified while nothing else runs, in a time that is not stated.
    pub verifies: bool,
    /// Whether tensors are handed to an engine on the same GPUs, at a speed that is not stated.
    pub hands_over: bool,
}

/// Tensors of a model as checkpoints of Hugging Face have them, about: each expert has three.
fn n_tensors(model: &Model) -> u64 {
    let of_experts = model.experts.map_or(0, |experts| 3 * experts.n_routed);
    model.n_layers * LAYER_TENSORS + model.n_expert_layers() * of_experts
}

impl Orchestrator {
    /// Adds to the parts of a step what the orchestrator does besides, at an end of the costs (position in [`crate::cycle::CASES`]).
    pub fn add_to(self, parts: &mut Parts, problem: &Problem, share: Share, end: usize) {
        if self == Self::None {
            return;
        }
        let end = ENDS[end];
        let n_answers = hw::real(problem.workload.lengths.len() as u64);
        // Groups take equal parts of the sequences. A group's last stage has the loss, and the others wait for it.
        let of_group = n_answers / f64::from(problem.layout.dp);
        let [forward_s, update_s] = SEQUENCE_S.map(|seconds| seconds * of_group * end);
        parts.log_probabilities += f64::from(share.n_forwards) * forward_s;
        parts.training += update_s;
        if share.verifies {
            parts.rewards += ANSWER_S * n_answers * end;
        }
        if share.hands_over {
            parts.weights += TENSOR_S * hw::real(n_tensors(&problem.model)) * end;
        }
    }

    /// What is counted, for who reads a result; nothing is nothing.
    pub fn said(self) -> Option<String> {
        (self != Self::None).then(|| SAID.to_owned())
    }

    /// Time in which so many bytes of an optimizer's states go to the host and come back, where the orchestrator's is known.
    pub fn out_and_back_s(self, states: Bytes, end: usize) -> Option<f64> {
        let seconds = states.as_f64() * (1.0 / OUT_BYTES_PER_S + 1.0 / IN_BYTES_PER_S);
        (self != Self::None).then_some(seconds * ENDS[end])
    }

    /// Bytes per second of new weights between two groups of GPUs, where the orchestrator's is known.
    pub fn broadcast(self, cluster: &Cluster) -> Option<f64> {
        let of_node = cluster.nic_bandwidth.get() * f64::from(cluster.domain());
        (self != Self::None).then_some(BROADCAST_SHARE * of_node)
    }
}

#[cfg(test)]
mod tests {
    use train::memory;
    use train::stage::stages;

    use super::*;
    use crate::example;

    const ALL: Share = Share { n_forwards: 2, verifies: true, hands_over: true };

    /// 1,024 sequences over eight groups of two stages.
    fn problem() -> Problem {
        let mut problem = example::trainer([1, 2, 8], 2);
        problem.workload.lengths = vec![1000; 1024];
        problem
    }

    fn added(share: Share, end: usize) -> Parts {
        let mut parts = Parts::default();
        Orchestrator::NemoRl.add_to(&mut parts, &problem(), share, end);
        parts
    }

    fn is(found: f64, by_hand: f64) {
        assert!((found - by_hand).abs() < 1e-9, "{found}, by hand {by_hand}");
    }

    #[test]
    fn a_group_has_the_loss_of_its_own_sequences_and_a_batch_all_answers() {
        let found = added(ALL, 1);
        // 128 sequences of a group: two log probabilities of 2.4 ms, and an update of 12.7 ms.
        is(found.log_probabilities, 2.0 * 128.0 * 0.0024);
        is(found.training, 128.0 * 0.0127);
        is(found.rewards, 1024.0 * 0.0043);
        // 28 layers of nine tensors.
        is(found.weights, 252.0 * 0.45e-3);
        assert_eq!(found.generation, 0.0);
        let mut nobody = Parts::default();
        Orchestrator::None.add_to(&mut nobody, &problem(), ALL, 1);
        assert_eq!((nobody, Orchestrator::None.said()), (Parts::default(), None));
    }

    #[test]
    fn low_ends_are_half_and_high_ends_twice() {
        let [low, expected, high] = [0, 1, 2].map(|end| added(ALL, end).in_turn());
        is(low, expected / 2.0);
        is(high, expected * 2.0);
    }

    #[test]
    fn what_is_not_the_orchestrators_is_not_added() {
        let found = added(Share { n_forwards: 0, verifies: false, hands_over: false }, 1);
        assert_eq!((found.rewards, found.log_probabilities, found.weights), (0.0, 0.0, 0.0));
        assert!(found.training > 0.0);
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
