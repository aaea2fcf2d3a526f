//! Model states by how they are shared.

use engine::memory::stage_parameters;

use super::*;
use crate::layout::Layout;
use crate::problem::Execution;
use crate::workload::Workload;

fn problem(zero: Zero, dp: u32) -> Problem {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    Problem {
        model: engine::model::embedded("llama-3.1-8b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 1, 8),
        layout: Layout::data_and_context(dp, 1, zero, ContextExchange::Ring),
        workload: Workload { batch_size: 8, lengths: vec![8192; 8], source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        bucket_tokens: 8192,
        execution: Execution::default(),
        schedule: crate::schedule::named("1f1b").expect("listed"),
        reserved_memory: Bytes::ZERO,
        seed: 1,
    }
}

#[test]
fn two_layers_and_the_tables_are_whole() {
    let of = |zero, dp| {
        let problem = problem(zero, dp);
        let held = stages(&problem);
        let layer = stage_parameters(&problem.shard(), &Stage { n_dense: 1, ..Stage::default() }).0;
        let tables = outside_layers(&problem, &held[0]);
        [states(&problem, &held).in_use.as_f64(), 2.0 * layer, tables]
    };
    // Sixteen bits for a parameter and for a gradient. Embedding and head are as large.
    let [in_use, layers, tables] = of(Zero::Parameters, 8);
    assert!((in_use - 4.0 * layers - 3.0 * tables).abs() < 1e-4 * in_use);
    let [in_use, layers, tables] = of(Zero::Gradients, 8);
    assert!((in_use - 2.0 * layers - tables).abs() < 1e-4 * in_use);
    assert_eq!(of(Zero::OptimizerStates, 8)[0], 0.0);
    assert_eq!(of(Zero::Parameters, 1)[0], 0.0, "nothing is cut");
}

#[test]
fn pytorch_keeps_gathered_parameters_in_sixteen_bits_beside_its_shares() {
    let modules = engine::shard::TorchModules {
        compiled: false,
        fused_norms: true,
        casts: engine::shard::Casts::Off,
        in_pieces: false,
    };
    let of = |zero| {
        let mut problem = problem(zero, 8);
        problem.execution.framework = engine::shard::Framework::Fsdp2(modules);
        let held = stages(&problem);
        let states = states(&problem, &held);
        assert_eq!(states.in_use, Bytes::ZERO);
        states.parameters.as_f64() / stage_parameters(&problem.shard(), &held[0]).0
    };
    let [all, kept, shared] = [Zero::Off, Zero::Gradients, Zero::Parameters].map(of);
    assert!((all - 4.0).abs() < 1e-6);
    assert!((kept - 2.0 - 4.0 / 8.0).abs() < 1e-6);
    assert!((shared - 4.0 / 8.0).abs() < 1e-6);
}
