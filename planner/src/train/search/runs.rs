//! What a framework runs of what a search may vary. Formulas of papers name no framework, so they have all of it.
//!
//! Sources: NVIDIA/Megatron-LM d98e8a64d, `pipeline_parallel/schedules.py` (1F1B and its interleaved form alone), `fine_grained_activation_offloading` of
//! `transformer_config.py`, and `docs/user-guide/features/megatron_fsdp.md` (shares of parameters beside tensor and expert groups). pytorch/torchtitan b5bcd76c6,
//! `config/configs.py` (`fsdp_reshard_after_forward`; `enable_cpu_offload` is of parameters) and pytorch/pytorch, `distributed/pipelining/schedules.py`.
//! deepspeedai/DeepSpeed edaa72212, `runtime/pipe/engine.py` ("ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"), `runtime/pipe/schedule.py`
//! and `cpu_checkpointing` of `activation_checkpointing/checkpointing.py`.

use train::layout::{Layout, Zero};
use train::problem::{Framework, Recompute};

/// Stages of ZeRO. FSDP2 frees gathered parameters behind a forward or keeps them, and shards gradients either way; without it there is DDP.
pub(super) fn zero(framework: Framework) -> Vec<Zero> {
    match framework {
        Framework::Formulas | Framework::MegatronCore => vec![Zero::Off, Zero::OptimizerStates, Zero::Parameters],
        Framework::Fsdp2(_) => vec![Zero::Off, Zero::Gradients, Zero::Parameters],
        Framework::DeepSpeed(_) => vec![Zero::Off, Zero::OptimizerStates, Zero::Gradients, Zero::Parameters],
    }
}

/// Shares of activations in host memory. Megatron-Core and DeepSpeed send single inputs to the host, of modules that are named or that the model's code
/// checkpoints. No flag or key sends all that a layer keeps, so such a layout is looked at where the scenario lists it.
pub(super) fn offload(framework: Framework) -> Vec<f64> {
    match framework {
        Framework::Formulas => vec![0.0, 1.0],
        Framework::MegatronCore | Framework::Fsdp2(_) | Framework::DeepSpeed(_) => vec![0.0],
    }
}

/// Schedules of a pipeline, by name.
pub(super) const fn schedules(framework: Framework) -> &'static [&'static str] {
    match framework {
        Framework::Formulas => &["1f1b", "interleaved", "zb-1p"],
        Framework::MegatronCore => &["1f1b", "interleaved"],
        Framework::Fsdp2(_) => &["1f1b", "interleaved", "zb-v"],
        Framework::DeepSpeed(_) => &["1f1b"],
    }
}

/// Whether the framework has such shards beside such a pipeline.
pub(super) fn shards(framework: Framework, layout: &Layout) -> bool {
    match framework {
        Framework::Formulas | Framework::Fsdp2(_) => true,
        Framework::MegatronCore | Framework::DeepSpeed(_) => layout.pp == 1 || layout.zero < Zero::Gradients,
    }
}

/// Whether the framework sends activations to the host beside such a recompute. Megatron-Core sends inputs of modules, which a layer that is computed again
/// does not keep; DeepSpeed sends what such a layer keeps, and nothing else.
pub(super) fn sends(framework: Framework, recompute: Recompute) -> bool {
    match framework {
        Framework::Formulas | Framework::Fsdp2(_) => true,
        Framework::MegatronCore => recompute != Recompute::Full,
        Framework::DeepSpeed(_) => recompute == Recompute::Full,
    }
}

#[cfg(test)]
mod tests {
    use train::problem::TorchModules;

    use super::*;
    use crate::train::search::space::{Candidate, Space};
    use crate::train::search::tests::problem;

    /// Every layout that a search looks at by itself under a framework, on 8 GPUs of two nodes.
    fn offered(framework: Framework) -> Vec<Candidate> {
        looked_at(framework, &|space| space)
    }

    /// The same with other lists.
    fn looked_at(framework: Framework, with: &dyn Fn(Space) -> Space) -> Vec<Candidate> {
        let mut problem = problem(vec![1024; 16], Default::default(), 60.0);
        problem.execution.framework = framework;
        with(Space::of(&problem)).candidates(&problem)
    }

    const TORCH: TorchModules = TorchModules {
        compiled: false,
        fused_norms: true,
        casts: train::problem::Casts::Off,
        in_pieces: false,
        repeats_keys: true,
    };

    #[test]
    fn a_search_offers_what_the_framework_runs() {
        let torch = offered(Framework::Fsdp2(TORCH));
        assert!(torch.iter().all(|of| of.layout.zero != Zero::OptimizerStates && of.offload == 0.0));
        let stages = |all: &[Candidate]| {
            let mut zero: Vec<Zero> = all.iter().map(|of| of.layout.zero).collect();
            zero.sort();
            zero.dedup();
            zero
        };
        assert_eq!(stages(&torch), [Zero::Off, Zero::Gradients, Zero::Parameters]);
        let megatron = offered(Framework::MegatronCore);
        assert!(megatron.iter().all(|of| of.layout.pp == 1 || of.layout.zero <= Zero::OptimizerStates));
        assert!(megatron.iter().all(|of| ["1f1b", "interleaved"].contains(&of.schedule.name)));
        assert!(megatron.iter().all(|of| of.offload == 0.0));
        assert!(megatron.iter().all(|of| of.recompute != Recompute::Selective), "Megatron-LM has modules in its place");
        assert_eq!(stages(&megatron), [Zero::Off, Zero::OptimizerStates, Zero::Parameters]);
        let deepspeed = offered(Framework::DeepSpeed(TORCH));
        assert!(deepspeed.iter().all(|of| of.layout.pp == 1 || of.layout.zero <= Zero::OptimizerStates));
        assert!(deepspeed.iter().all(|of| of.schedule.name == "1f1b"));
        assert!(deepspeed.iter().all(|of| of.offload == 0.0));
        let all = [Zero::Off, Zero::OptimizerStates, Zero::Gradients, Zero::Parameters];
        assert_eq!(stages(&deepspeed), all);
        // A share that is listed is looked at, where the framework has it beside the recompute.
        let shares: &dyn Fn(Space) -> Space = &|space| Space { offload: vec![0.0, 1.0], ..space };
        for (framework, is_beside) in [(Framework::MegatronCore, false), (Framework::DeepSpeed(TORCH), true)] {
            let listed = looked_at(framework, shares);
            let mut sent = listed.iter().filter(|of| of.offload > 0.0).peekable();
            assert!(sent.peek().is_some() && sent.all(|of| (of.recompute == Recompute::Full) == is_beside));
        }
        // Formulas name no framework, and have whatever a paper has.
        let papers = offered(Framework::Formulas);
        assert!(papers.iter().any(|of| of.layout.pp > 1 && of.layout.zero == Zero::Parameters && of.offload == 1.0));
    }
}
