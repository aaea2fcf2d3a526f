//! What fully sharded modules of PyTorch keep in a pipeline beside activations and sharded states. Units: bytes.
//!
//! Sources: pytorch/pytorch v2.6.0 (`torch/distributed/pipelining/{stage,schedules}.py`, `torch/distributed/fsdp/_fully_shard`), pytorch/torchtitan @
//! 0186284b5 (`reshard_after_forward`). That code was run on small tensors, whose peak held these and no others:
//!
//! - whole parameters from the first micro-batch to the last, and gradients of 32 bits that add up;
//! - the last layer's gradients as they were reduced, from step to step: no backward of a pipeline counts as the last one (`reduce_scatter_state`);
//! - two gathers in flight on a stream of their own, whose memory no other stream takes, and a layer's gradients before they are added;
//! - a buffer for what every micro-batch receives, its input (`args_recv_info`) and the gradient of its output (`grad_recv_info`);
//! - every output and every input's gradient up to the end of the step (`output_chunks`, `.grad` of the buffers).

use engine::stage::Stage;

use crate::layout::Zero;
use crate::problem::Problem;

/// Bytes of a parameter of embedding or head that is whole: they are gathered in 16 bits.
const WHOLE: f64 = 2.0;
/// Bytes of a gradient that adds up, and of one that is reduced.
const ADDED: f64 = 4.0;
/// Bytes of a gradient before it is added.
const MADE: f64 = 2.0;
/// Gathers that are held at a time: of the layer that is copied, and of the next one.
const GATHERS: f64 = 2.0;

/// Micro-batches of a step as a stage sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// How many there are.
    pub n: u64,
    /// Tokens of the largest one.
    pub tokens: u64,
}

/// Whether a problem has such states.
fn has_them(problem: &Problem) -> bool {
    let layout = &problem.layout;
    problem.execution.framework.torch().is_some() && layout.pp > 1 && layout.zero >= Zero::Parameters
}

/// What a rank that holds these stages keeps for a whole step.
pub(crate) fn resident(problem: &Problem, pp: u32, held: &[Stage], batches: Batches) -> u64 {
    if !has_them(problem) {
        return 0;
    }
    let [layer, tables] = engine::memory::gathered_elements(&problem.shard(), held).map(hw::real);
    let n_layers = f64::from(held.iter().map(Stage::n_layers).sum::<u32>());
    let element = problem.gathered_bytes();
    // Weights beside adapters have no gradients.
    let [added, made] = if problem.execution.trains_weights() { [ADDED, MADE] } else { [0.0; 2] };
    // What waits for the end does so up to the next flush.
    let n = problem.flush_every().map_or(batches.n, |every| batches.n.min(every as u64));
    let kept = n_layers * layer * (element + added) + tables * (WHOLE + added);
    let in_passing = layer * (added + GATHERS * element + made);
    // Buffers of inputs are the activations of micro-batches in flight.
    let in_flight = u64::from(problem.layout.pp - pp).min(n);
    let inputs = |stage: &Stage| if stage.first { 0 } else { n - in_flight };
    let outputs = |stage: &Stage| if stage.last { 0 } else { 2 * n };
    let rows: u64 = held.iter().map(|stage| inputs(stage) + outputs(stage)).sum();
    hw::whole(kept + in_passing) + rows * batches.tokens * row(problem)
}

/// Bytes per token of what stages send each other, on one rank.
fn row(problem: &Problem) -> u64 {
    let cut = if problem.layout.sequence_parallel { u64::from(problem.layout.tp) } else { 1 };
    (problem.model.hidden * problem.dtype.bytes()).div_ceil(cut)
}

/// What a micro-batch leaves behind its backward to the end of the step, bytes per token: the gradient of its input, and logits on the last stage.
pub(crate) fn left_behind(problem: &Problem, stage: &Stage) -> u64 {
    if !has_them(problem) {
        return 0;
    }
    let gradient = if stage.first { 0 } else { row(problem) };
    let cut = if problem.execution.gathers_logits { 1 } else { u64::from(problem.layout.tp) };
    let logits = problem.model.vocab.div_ceil(cut) * problem.dtype.bytes();
    gradient + if stage.last { logits } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Axis, ContextExchange, Layout};
    use crate::problem::{Casts, Execution, Framework, TorchModules};
    use crate::stage::stages;
    use crate::workload::Workload;
    use engine::formats::Formats;

    const BATCHES: Batches = Batches { n: 8, tokens: 32_768 };
    /// Weights of a layer of Llama 3.1 405B on one of eight ranks.
    const LAYER: u64 = (2 * 16_384 * 16_384 + 2 * 16_384 * 1024 + 3 * 16_384 * 53_248) / 8;
    /// Bytes of what a stage sends of a micro-batch.
    const ROWS: u64 = 32_768 * 16_384 * 2 / 8;

    fn problem(gathers_narrow: bool) -> Problem {
        let modules = TorchModules {
            compiled: true,
            fused_norms: true,
            casts: Casts::Whole,
            in_pieces: true,
            repeats_keys: true,
        };
        let gpu = hw::catalog::gpu("h100-sxm-96g").expect("listed");
        Problem {
            model: engine::model::embedded("llama-3.1-405b").expect("embedded"),
            cluster: hw::catalog::cluster(&gpu, 64, 8),
            layout: Layout {
                tp: 8,
                pp: 8,
                sequence_parallel: true,
                order: [Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline],
                ..Layout::data_and_context(8, 1, Zero::Parameters, ContextExchange::Ring)
            },
            workload: Workload { batch_size: 64, lengths: vec![32_768; 64], source: "test".to_owned() },
            dtype: hw::Dtype::Bf16,
            bucket_tokens: u64::MAX,
            execution: Execution {
                framework: Framework::Fsdp2(modules),
                formats: Some(Formats::weights(hw::Format::Fp8, hw::Dtype::Bf16)),
                gathers_narrow,
                ..Execution::default()
            },
            schedule: crate::schedule::named("1f1b").expect("listed"),
            reserved_memory: hw::Bytes::ZERO,
            seed: 1,
        }
    }

    fn held(problem: &Problem, pp: u32) -> u64 {
        resident(problem, pp, &stages(problem)[pp as usize..=pp as usize], BATCHES)
    }

    #[test]
    fn a_stage_keeps_what_pytorch_held_on_small_tensors() {
        let problem = problem(true);
        // 16 layers in 8 bits with gradients in 32; of a layer 32-bit gradients as they were reduced, two gathers and 16-bit gradients.
        let states = 16 * LAYER * (1 + 4) + LAYER * (4 + 2 + 2);
        // Seven of eight inputs are activations; outputs and their gradients have buffers.
        assert_eq!(held(&problem, 1), states + (1 + 16) * ROWS);
        // The last stage has 15 layers and the head, and receives eight inputs for one in flight.
        let head = 128_256 * 16_384 / 8;
        let last = 15 * LAYER * (1 + 4) + LAYER * (4 + 2 + 2) + head * (2 + 4);
        assert_eq!(held(&problem, 7), last + 7 * ROWS);
    }

    #[test]
    fn ranks_that_gather_16_bits_keep_a_byte_more_of_every_parameter() {
        assert_eq!(held(&problem(false), 1) - held(&problem(true), 1), (16 + 2) * LAYER);
    }

    #[test]
    fn gradients_of_inputs_and_logits_stay_to_the_end_of_the_step() {
        let problem = problem(true);
        let of = |stage: usize| left_behind(&problem, &stages(&problem)[stage]);
        assert_eq!([of(0), of(1), of(7)], [0, 4096, 4096 + 2 * 16_032]);
        let mut whole = problem.clone();
        whole.layout.pp = 1;
        assert_eq!(resident(&whole, 0, &stages(&whole), BATCHES), 0);
    }
}
