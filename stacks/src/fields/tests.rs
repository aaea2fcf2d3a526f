//! Every field of a plan has a row, and some of them what they say.

use train::problem::{Execution, ExpertTraffic, Launches, Module, Overlap};

use super::*;

/// Names of all fields of a type; one that is left out does not compile.
macro_rules! fields {
    ($before:literal, $type:ident { $($field:ident),* $(,)? }) => {{
        const _: fn($type) = |$type { $($field: _),* }| {};
        [$(concat!($before, ".", stringify!($field))),*]
    }};
}

#[test]
fn every_field_of_a_plan_has_a_row_and_every_row_a_field() {
    let execution = fields!(
        "execution",
        Execution {
            recompute,
            recompute_layers,
            gradient_sync,
            gradient_dtype,
            attention,
            framework,
            unfused,
            loss,
            dropout,
            gathers_logits,
            formats,
            casts,
            wide_layers,
            rotates_apart,
            gathers_narrow,
            overlap,
            experts,
            offload,
            parameters_on_host,
            fragmentation,
            host_overhead_per_layer,
            launches,
            context_in_blocks,
            optimizer,
            adapters,
            unit_times,
            layers,
            micro_batch_group,
            flush_every,
            places,
            stragglers,
        }
    );
    let layout = fields!(
        "layout",
        Layout { dp, cp, tp, pp, chunks, ep, expert_tp, sequence_parallel, zero, replicate, exchange, order }
    );
    let overlap = fields!(
        "overlap",
        Overlap {
            tensor,
            expert,
            delayed_weights,
            slowdown,
            stage,
            parameter_gather,
            forward_prefetch,
            backward_prefetch,
        }
    );
    let experts = fields!("experts", ExpertTraffic { imbalance, capacity, compression, dispatcher, fused });
    let launches = fields!("launches", Launches { each, captured });
    let mut known: Vec<&str> = ["problem.dtype", "problem.schedule"].to_vec();
    for fields in [&execution[..], &layout, &overlap, &experts, &launches] {
        known.extend(fields);
    }
    let mut rows = ROWS.map(|(name, _)| name).to_vec();
    known.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, known);
}

/// Layers of a stage that are computed again are counted for whole layers by Megatron-LM alone, and what all layers do needs no count.
#[test]
fn modules_of_some_layers_are_refused_by_every_target() {
    let mut problem = crate::schedule::tests::problem();
    let n_layers = u32::try_from(problem.model.n_layers).expect("few layers");
    let mut is_unsaid = |recompute, layers, stack| {
        (problem.execution.recompute, problem.execution.recompute_layers) = (recompute, layers);
        let rest = rest(&Asked { problem: &problem, n_micro_batches: 1 }, stack);
        rest.unsaid.iter().any(|words| words.starts_with("recompute of "))
    };
    let modules = Recompute::Modules(Modules::NONE.with(Module::FeedForward));
    for stack in [Stack::Megatron, Stack::Torchtitan, Stack::Deepspeed] {
        for recompute in [modules, Recompute::Selective] {
            assert!(is_unsaid(recompute, 1, stack), "{recompute:?} {stack:?}");
        }
        assert_eq!(is_unsaid(Recompute::Full, 1, stack), stack != Stack::Megatron);
        for recompute in [Recompute::Off, Recompute::Full] {
            assert!(!is_unsaid(recompute, n_layers, stack), "{recompute:?} {stack:?}");
        }
        assert!(!is_unsaid(Recompute::Off, 1, stack));
    }
}

#[test]
fn an_axis_of_one_rank_may_stand_anywhere() {
    let base = Layout::data_and_context(4, 1, Zero::Off, ContextExchange::Ring);
    let other = Layout { order: [Axis::Pipeline, Axis::Data, Axis::Context, Axis::Tensor], ..base };
    assert!(is_usual_order(&base) && is_usual_order(&other));
    assert!(!is_usual_order(&Layout { tp: 2, ..other }));
}
