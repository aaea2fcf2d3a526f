//! Model states of DeepSpeed's stages against ZeRO's table and DeepSpeed's own estimators.

use engine::memory::stage_parameters;
use engine::shard::{Casts, TorchModules};

use super::*;
use crate::layout::Layout;
use crate::optimizer::{OnHost, Optimizer};
use crate::problem::{Execution, GradientSync};
use crate::workload::Workload;

const N_RANKS: u32 = 8;

/// Parameters, gradients and states of a rank, in bytes for each parameter of the model.
fn per_parameter(zero: Zero, share_on_host: f64, change: impl Fn(&mut Execution)) -> [f64; 3] {
    let problem = problem("llama-3.1-8b", zero, share_on_host, change);
    let held = stages(&problem);
    let all = stage_parameters(&problem.shard(), &held[0]).0;
    let states = states(&problem, &held);
    assert_eq!((states.in_use, states.copies), (Bytes::ZERO, Bytes::ZERO));
    [states.parameters, states.gradients, states.optimizer].map(|bytes| bytes.as_f64() / all)
}

fn problem(model: &str, zero: Zero, share_on_host: f64, change: impl Fn(&mut Execution)) -> Problem {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let modules =
        TorchModules { compiled: false, fused_norms: true, casts: Casts::Off, in_pieces: false, repeats_keys: true };
    let on_host = (share_on_host > 0.0).then_some(OnHost { share: share_on_host, bytes_per_second: 50e9 });
    let mut execution = Execution {
        framework: Framework::DeepSpeed(modules),
        optimizer: Optimizer { on_host, ..Optimizer::ADAM },
        gradient_dtype: hw::Dtype::Bf16,
        ..Execution::default()
    };
    change(&mut execution);
    Problem {
        model: engine::model::embedded(model).expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 1, N_RANKS),
        layout: Layout::data_and_context(N_RANKS, 1, zero, ContextExchange::Ring),
        workload: Workload { batch_size: 8, lengths: vec![8192; 8], source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        bucket_tokens: 8192,
        execution,
        schedule: crate::schedule::named("1f1b").expect("listed"),
        reserved_memory: Bytes::ZERO,
        seed: 1,
    }
}

fn close(found: [f64; 3], expected: [f64; 3]) {
    for (found, expected) in found.into_iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
    }
}

#[test]
fn stages_take_what_the_table_of_zero_says() {
    // arXiv:1910.02054, figure 1 with K = 12: 16Ψ, 4Ψ + 12Ψ/N, 2Ψ + 14Ψ/N and 16Ψ/N.
    let n = f64::from(N_RANKS);
    for sync in [GradientSync::AtEnd, GradientSync::EachMicroBatch] {
        let of = |zero| per_parameter(zero, 0.0, |execution| execution.gradient_sync = sync);
        close(of(Zero::Off), [2.0, 2.0, 12.0]);
        close(of(Zero::OptimizerStates), [2.0, 2.0, 12.0 / n]);
        close(of(Zero::Gradients), [2.0, 2.0 / n, 12.0 / n]);
        close(of(Zero::Parameters), [2.0 / n, 2.0 / n, 12.0 / n]);
    }
}

#[test]
fn what_the_host_takes_leaves_the_device() {
    let n = f64::from(N_RANKS);
    // `estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs` with `cpu_offload`: 2Ψ, and 2Ψ/N beside the largest layer.
    close(per_parameter(Zero::Gradients, 1.0, |_| ()), [2.0, 0.0, 0.0]);
    close(per_parameter(Zero::Parameters, 1.0, |_| ()), [2.0 / n, 0.0, 0.0]);
    // Whole gradients of stage 1 wait on the device for the end of a step.
    close(per_parameter(Zero::OptimizerStates, 1.0, |_| ()), [2.0, 2.0, 0.0]);
    // With `cpu_offload_params` the largest layer alone is left: shares of two of 32 layers pass.
    let hosted = |execution: &mut Execution| execution.parameters_on_host = true;
    close(per_parameter(Zero::Parameters, 1.0, hosted), [2.0 / n * 2.0 / 32.0, 0.0, 0.0]);
    close(per_parameter(Zero::Gradients, 1.0, hosted), [2.0, 0.0, 0.0]);
    // ZeRO-Offload++ leaves a share.
    close(per_parameter(Zero::Parameters, 0.75, |_| ()), [2.0 / n, 0.5 / n, 3.0 / n]);
}

#[test]
fn formats_are_those_that_are_asked_for() {
    let n = f64::from(N_RANKS);
    let wide = |execution: &mut Execution| execution.gradient_dtype = hw::Dtype::Fp32;
    close(per_parameter(Zero::Parameters, 0.0, wide), [2.0 / n, 4.0 / n, 12.0 / n]);
    let narrow = |execution: &mut Execution| execution.optimizer.master = Some(hw::Dtype::Fp16);
    close(per_parameter(Zero::Parameters, 0.0, narrow), [2.0 / n, 2.0 / n, 10.0 / n]);
}

#[test]
fn seventy_billion_parameters_fit_eight_cards_with_the_optimizer_on_the_host() {
    let of = |share_on_host, hosted| {
        problem("llama-3-70b", Zero::Parameters, share_on_host, |execution| {
            execution.recompute = crate::problem::Recompute::Full;
            execution.parameters_on_host = hosted;
        })
    };
    assert!(fits(&of(0.0, false)).is_err(), "16 bytes of 70.6 billion are 141 GB for each of eight");
    for hosted in [false, true] {
        assert!(token_capacity(&of(1.0, hosted)) > 4096, "{hosted}");
    }
    // 16.4 GiB of two bytes for each parameter.
    let problem = of(1.0, false);
    let gib = states(&problem, &stages(&problem)).total().as_f64() / hw::GIB;
    assert!((gib - 70.55e9 * 2.0 / 8.0 / hw::GIB).abs() < 0.05, "{gib}");
}
