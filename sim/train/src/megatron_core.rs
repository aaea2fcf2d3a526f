//! What options of Megatron-Core say of a step: shares of exchanges that run behind computation, and what CUDA graphs replay.
//!
//! Launch scripts (`stacks`) and tables of measured runs (`score`) read the same options, so what they mean stands here once. Shares are from 0 to 1.
//!
//! Source: NVIDIA/Megatron-LM @ d98e8a64ddf3, `megatron/core/transformer/transformer_config.py`, `megatron/core/models/common/model_chunk_schedule_plan.py`.

use engine::launch::Captured;

/// Share of tensor exchange that user buffers run behind products (`--tp-comm-overlap`): of a ring of chunks all but one.
pub const USER_BUFFERS: f64 = 0.75;
/// Share of the all-to-all that runs behind the neighbour micro-batch (`--overlap-moe-expert-parallel-comm`), in the steady state.
pub const EXPERT_OVERLAP: f64 = 1.0;

/// Launches of a host that interleaves a forward with a backward, over those of both one after the other: every module is a node with events of
/// its own. Fitted on rows 229 and 288 of Bridge's table; no description says how much it is.
pub const INTERLEAVED: f64 = 2.0;

/// Share of the passes of a rank that have a neighbour's to run beside: those of the steady state. The first forwards and the last backwards have
/// none (Megatron-Core, `combined_1f1b.py`). The warm-up is as many passes as there are stages in the mean over ranks, with one more for the overlap.
///
/// # Panics
/// Without a micro-batch.
pub fn steady_share(pp: u32, n_micro_batches: u32) -> f64 {
    assert!(n_micro_batches > 0, "a step has a micro-batch");
    1.0 - f64::from(pp.min(n_micro_batches)) / f64::from(n_micro_batches)
}

/// What CUDA graphs replay of a step, so that no host launches it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Graphs {
    /// Nothing.
    #[default]
    Off,
    /// Modules of every layer, which may be none with experts.
    Modules(Captured),
    /// The whole step.
    Step,
}

impl Graphs {
    /// Words of scenario files, with their meaning.
    pub const WORDS: [(&'static str, Self); 5] = [
        ("none", Self::Off),
        ("attention", Self::Modules(Captured { attention: true, router: false })),
        ("router", Self::Modules(Captured { attention: false, router: true })),
        ("attention+router", Self::Modules(Captured { attention: true, router: true })),
        ("step", Self::Step),
    ];

    /// What `--cuda-graph-impl` and `--cuda-graph-modules` (`--cuda-graph-scope` before) ask for.
    pub fn of_options(implementation: &str, modules: &[&str]) -> Self {
        let has = |module: &str| modules.contains(&module);
        let captured = Captured { attention: has("attn"), router: has("moe_router") };
        let has_modules = modules.iter().any(|module| !module.is_empty() && !module.starts_with("full"));
        match implementation {
            "" | "none" => Self::Off,
            "transformer_engine" => Self::Modules(captured),
            "local" if has_modules => Self::Modules(captured),
            _ => Self::Step,
        }
    }

    /// The word of a scenario file; `none` for graphs of other modules alone.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, graphs)| *graphs == self).map_or("none", |(word, _)| word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_forwards_and_last_backwards_hide_no_exchange() {
        // One rank with five micro-batches: four of the five forwards meet a backward.
        assert!((steady_share(1, 5) - 0.8).abs() < 1e-12);
        // Two ranks of two chunks, four micro-batches: 4 and 2 passes of warm-up, and one more, of eight.
        assert!((steady_share(2, 4) - 0.5).abs() < 1e-12);
        assert!(steady_share(8, 2).abs() < 1e-12);
    }

    #[test]
    fn graphs_are_of_modules_or_of_the_step() {
        let word = |implementation, modules: &[&str]| Graphs::of_options(implementation, modules).word();
        assert_eq!(word("none", &["attn"]), "none");
        assert_eq!(word("transformer_engine", &["attn", "mlp"]), "attention");
        assert_eq!(word("transformer_engine", &["attn", "moe_router", "moe_preprocess"]), "attention+router");
        assert_eq!(word("local", &["moe_router"]), "router");
        assert_eq!(word("local", &["full_iteration"]), "step");
        // A list that is there and empty is none.
        assert_eq!(word("local", &[""]), "step");
        assert_eq!(word("full_iteration", &[]), "step");
    }
}
