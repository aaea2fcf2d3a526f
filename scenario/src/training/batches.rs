//! Batches that frameworks do not start with.
//!
//! Sources: NVIDIA/Megatron-LM d98e8a64d, `megatron/core/num_microbatches_calculator.py`: "global batch size is not divisible by micro batch size times
//! data parallel size". pytorch/torchtune, `recipes/full_finetune_single_device.py`: "Gradient accumulation is not supported with optimizer in bwd".

use planner::train::policy::Reads;
use train::Problem;
use train::batches::{around, together};
use train::problem::{Execution, Framework};

use super::PolicyChoice;
use input::diagnostic::Code;
use input::reader::{Place, Reader};

/// Refuses a batch that Megatron-LM does not start with. Sequences of many lengths are packed, and their number is no number of micro-batches. The place is that
/// of `training.batch_size`.
pub fn whole(reader: &mut Reader<'_>, problem: &Problem, at: Place) {
    let execution = &problem.execution;
    if execution.framework != Framework::MegatronCore || execution.unit_times.is_some() {
        return;
    }
    let batch = problem.workload.batch_size as u64;
    let Some(together) = together(problem).filter(|together| !batch.is_multiple_of(*together)) else { return };
    let dp = u64::from(problem.layout.dp);
    let what = format!(
        "`batch_size = {batch}` is not a multiple of {together}, the sequences of a micro-batch on {dp} replicas"
    );
    let near: Vec<String> = around(batch, together).iter().map(u64::to_string).collect();
    let help = format!(
        "Megatron-LM asserts it: allowed are multiples of {together}, nearest {}; `training.bucket_tokens` says how many tokens a micro-batch holds",
        near.join(" and ")
    );
    reader.refuse(Code::UnevenBatch, at, what, help);
}

/// Refuses a step that one micro-batch of each replica does not hold where each backward updates. Policies that cut sequences or make groups of their own are asked
/// for their plans. The place is that of `optimizer.kernels`.
pub fn updated_once(reader: &mut Reader<'_>, problem: &Problem, policies: &[PolicyChoice], at: Place) {
    let execution = &problem.execution;
    if !execution.updates_in_backward() {
        return;
    }
    let (dp, of_replica, at_once) = (problem.layout.dp, problem.replica_tokens(), problem.tokens_at_once());
    let tokens = |step| problem.workload.step(step).map(|(_, tokens)| tokens).sum::<u64>();
    let most = (0..problem.workload.n_steps()).map(tokens).max().unwrap_or(0);
    if at_once == 0 || most <= at_once || !policies.iter().any(packs) {
        return;
    }
    let what = format!(
        "`optimizer.kernels = \"in-backward\"` updates in each backward, and {most} tokens of a step are several micro-batches of {of_replica} on {dp} replicas"
    );
    let fits = match problem.sequences_at_once() {
        0 => String::new(),
        n => format!("`training.batch_size = {n}` is one micro-batch, or "),
    };
    adds_up(reader, at, (what, fits));
}

/// The same where micro-batches are counted and not packed: the replica with most of them has so many.
pub fn counted_once(reader: &mut Reader<'_>, execution: &Execution, n_most: u32, at: Place) {
    if execution.updates_in_backward() && n_most > 1 {
        let what = format!(
            "`optimizer.kernels = \"in-backward\"` updates in each backward, and a replica has {n_most} micro-batches"
        );
        adds_up(reader, at, (what, "one micro-batch for each replica, or ".to_owned()));
    }
}

fn adds_up(reader: &mut Reader<'_>, at: Place, (what, fits): (String, String)) {
    let help = format!("torchtune refuses gradients that add up beside it: {fits}`kernels = \"fused\"`");
    reader.refuse(Code::WrongOperation, at, what, help);
}

/// Whether a policy packs sequences into the room that ranks have, on the scenario's context ranks.
fn packs(choice: &PolicyChoice) -> bool {
    let policy = planner::train::policies::named(&choice.policy);
    choice.cp.is_none() && policy.is_some_and(|of| of.reads() == Reads::Room)
}
