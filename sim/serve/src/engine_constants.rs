//! What no table holds of a serving engine and is fitted: four numbers per engine, for all models, cards and loads alike.
//!
//! Each engine's numbers are fitted on the runs that stand beside them, and on no others; `score::leave_out` has the lattice. Those of vLLM's iteration were moved
//! by hand with the term of small kernels (docs/accuracy-serving-causes.md). `skrull-sim score` shows what they do to all runs (docs/accuracy-serving-causes.md). Source of the runs: ai-dynamo/aiconfigurator @ 095f58a51c4c, silicon_sample.csv, Apache-2.0. Units: seconds.

use hw::Seconds;

/// Time of a tokenizer for each token of a prompt, under every engine: text goes through the tokenizers of Hugging Face, on one thread. They encode
/// 2 MB of text a second there with the vocabulary of Llama 3.1, and a token has about four bytes. Nothing is fitted. Source: huggingface/tokenizers,
/// pull request 1582.
pub fn tokenize() -> Seconds {
    Seconds::new(2e-6)
}

/// Constants of an engine on its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineConstants {
    /// Engine, as presets name it.
    pub engine: &'static str,
    /// Host time of an iteration.
    pub host_per_step: Seconds,
    /// Host time of an iteration where the overlapped loop that the engine has by itself is turned off, so that nothing hides it. It is not fitted.
    pub serial_step: Seconds,
    /// Host time per sequence of an iteration.
    pub host_per_sequence: Seconds,
    /// Host time per layer of an iteration with chunks of prompts.
    pub host_per_layer: Seconds,
    /// The same of a layer with experts, which is launched in more kernels.
    pub host_per_expert_layer: Seconds,
    /// The same of such a layer on everybody else's hosts, which is what a scenario has.
    pub usual_expert_layer: Seconds,
    /// The least of a layer that is launched in more kernels still: latent attention, a scan through a state, experts through Triton.
    pub host_per_intricate_layer: Seconds,
    /// Mean time from the client's sending to the engine's queue in the runs that are scored, without the tokenizer.
    pub start: Seconds,
    /// The same of everybody else's clients, which is what a scenario has.
    pub usual_start: Seconds,
    /// Time of the tokenizer for each token of a prompt, which is not fitted.
    pub tokenize: Seconds,
    /// Runs that they were fitted on.
    pub fitted_on: &'static str,
}

/// No engine: no host time.
pub const NONE: EngineConstants = EngineConstants {
    engine: "",
    host_per_step: Seconds::ZERO,
    serial_step: Seconds::ZERO,
    host_per_sequence: Seconds::ZERO,
    host_per_layer: Seconds::ZERO,
    host_per_expert_layer: Seconds::ZERO,
    usual_expert_layer: Seconds::ZERO,
    host_per_intricate_layer: Seconds::ZERO,
    start: Seconds::ZERO,
    usual_start: Seconds::ZERO,
    tokenize: Seconds::ZERO,
    fitted_on: "",
};

/// Start of a request under SGLang. The runs that are scored have 85 ms more, and nobody knows why. Whole first tokens of single requests come sooner than
/// that elsewhere: after 32 to 92 ms, in the median of a run, with gpt-oss-120b on B200, MiniMax-M2.5 on H100, Step-3.5 on H200 and others. Source:
/// sgl-project/sgl-cookbook @ 7b5bd9c0, docs/autoregressive, outputs of `sglang.bench_serving`. Nothing is fitted: it is vLLM's.
const SGLANG_START_S: f64 = 15e-3;

/// Launches of a layer with experts under SGLang, whose prompts no graph holds. The runs that are scored have vLLM's 1200 us, as they have a longer start:
/// their hosts are slow. By others' first tokens it is half of that, which TensorRT-LLM has: 600 us meet gpt-oss-120b, 1200 us make Qwen3-235B on B200 43 % too
/// long and 600 us 18 % too short (sgl-project/sgl-cookbook @ 7b5bd9c0, docs/autoregressive).
const SGLANG_EXPERT_LAYER_S: f64 = 600e-6;

/// What one iteration of a single sequence takes longer under SGLang without its overlapped loop: LFM2 gives 364.3 tokens a second on an RTX 5090 without it and 498.5
/// with it (sgl-project/sglang, pull request 38131). The fits of SGLang and TensorRT-LLM give no host time, because their loops hide it. That it does not grow with
/// the batch, that it is the same on other hosts, and that TensorRT-LLM's is as long, are assumptions: a floor.
const SERIAL_STEP_S: f64 = 1.0 / 364.3 - 1.0 / 498.5;

/// Every engine that was fitted.
pub fn fitted() -> [EngineConstants; 3] {
    let any = EngineConstants { tokenize: tokenize(), ..NONE };
    [
        EngineConstants {
            engine: "vllm",
            host_per_step: Seconds::new(1.2e-3),
            host_per_sequence: Seconds::new(45e-6),
            host_per_expert_layer: Seconds::new(1.2e-3),
            usual_expert_layer: Seconds::new(1.2e-3),
            start: Seconds::new(15e-3),
            usual_start: Seconds::new(15e-3),
            fitted_on: "44 runs of Qwen3-32B in 16 bit on H100, layers with experts on 36 of MiniMax-M2.5 on H200",
            ..any
        },
        EngineConstants {
            engine: "sglang",
            serial_step: Seconds::new(SERIAL_STEP_S),
            host_per_expert_layer: Seconds::new(1.2e-3),
            usual_expert_layer: Seconds::new(SGLANG_EXPERT_LAYER_S),
            host_per_intricate_layer: Seconds::new(2.0e-3),
            start: Seconds::new(100e-3),
            usual_start: Seconds::new(SGLANG_START_S),
            fitted_on: "13 runs of DeepSeek-R1 and -V3 on H200; layers with experts as of vLLM",
            ..any
        },
        EngineConstants {
            engine: "trtllm",
            serial_step: Seconds::new(SERIAL_STEP_S),
            host_per_layer: Seconds::new(0.6e-3),
            host_per_expert_layer: Seconds::new(0.6e-3),
            usual_expert_layer: Seconds::new(0.6e-3),
            host_per_intricate_layer: Seconds::new(2.0e-3),
            start: Seconds::new(20e-3),
            usual_start: Seconds::new(20e-3),
            fitted_on: "84 runs of Qwen3-32B in fp8 on H100, layers with latent attention on 11 of DeepSeek in fp4 on B200 (1.2.0rc6, tensor groups of 4 and 8)",
            ..any
        },
    ]
}

impl EngineConstants {
    /// All that are fitted: an iteration, a sequence, a layer of prompts, one with experts, an intricate one, the start of a request.
    pub const fn times(&self) -> [Seconds; 6] {
        let layers = [self.host_per_layer, self.host_per_expert_layer, self.host_per_intricate_layer];
        [self.host_per_step, self.host_per_sequence, layers[0], layers[1], layers[2], self.start]
    }

    /// Constants of an engine; none where it was not fitted.
    pub fn of(engine: &str) -> Self {
        fitted().into_iter().find(|constants| constants.engine == engine).unwrap_or(NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_has_four_constants_at_most_and_says_on_what_they_were_fitted() {
        for constants in fitted() {
            let EngineConstants { engine, fitted_on, .. } = constants;
            assert!(!fitted_on.is_empty(), "{engine}");
            let times = constants.times();
            assert!(times.iter().filter(|time| **time > Seconds::ZERO).count() <= 4, "{engine}");
            for time in times {
                assert!((Seconds::ZERO..Seconds::new(1.0)).contains(&time), "{engine}: {time:?}");
            }
        }
    }

    #[test]
    fn every_preset_has_constants_and_an_unknown_engine_has_none() {
        for engine in crate::engine_preset::names() {
            assert_ne!(EngineConstants::of(engine), NONE, "{engine}");
        }
        assert_eq!(EngineConstants::of("other"), NONE);
    }
}
