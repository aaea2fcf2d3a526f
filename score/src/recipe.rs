//! With which options engines were started for the runs: data, laid over the presets of the engines.
//!
//! Rows are asked from the top, and the first that fits a run holds. What a row leaves out, the preset says. Where options of a run
//! are not published, the row says so. Units: tokens, sequences, shares of memory.

use std::num::NonZeroU32;

use hw::{Dtype, Format};
use serve::engine_preset::{GraphRule, MemoryRule, Version};
use serve::step_cost::host::EngineLoop;

use crate::client::Client;
use crate::run::Run;

/// A number that follows the load: a fixed part, so many per request in flight and per prompt token, and at least so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    fixed: u32,
    per_request: u32,
    per_prompt_token: u32,
    at_least: u32,
}

/// Options that were given to an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    client: &'static str,
    /// Engine, part of the model's path, card, and format in a word; empty fits all.
    of: [&'static str; 4],
    /// First version of the engine that was started so.
    since: Version,
    /// Batching policy, where it is not the preset's.
    pub batcher: Option<&'static str>,
    /// Tokens of an iteration or of a chunk.
    pub tokens_max: Option<Amount>,
    /// Sequences at once.
    pub sequences_max: Option<Amount>,
    /// Captured batches, and the largest.
    pub graphs: Option<(GraphRule, Amount)>,
    /// Memory.
    pub memory: Option<MemoryRule>,
    /// Overlap of host and device.
    pub engine_loop: Option<EngineLoop>,
    /// Format of keys and values.
    pub kv: Option<Dtype>,
    /// Format of experts whose kernel computes them, where it is not that of the checkpoint's.
    pub experts: Option<Format>,
    /// Iterations between two looks for new requests, below 16 requests in flight and from there on.
    recv_interval: [u32; 2],
    /// Where this stands.
    pub source: &'static str,
}

const fn fixed(n: u32) -> Amount {
    Amount { fixed: n, per_request: 0, per_prompt_token: 0, at_least: 1 }
}

/// As many as requests in flight.
const IN_FLIGHT: Amount = Amount { fixed: 0, per_request: 1, per_prompt_token: 0, at_least: 1 };

const PLAIN: Recipe = Recipe {
    client: "",
    of: ["", "", "", ""],
    since: Version(0, 0, 0),
    batcher: None,
    tokens_max: None,
    sequences_max: None,
    graphs: None,
    memory: None,
    engine_loop: None,
    kv: None,
    experts: None,
    recv_interval: [1, 1],
    source: "nothing is published: the engine's defaults",
};

const INFERENCEX: Recipe = Recipe { client: "inferencex", ..PLAIN };
const GENERATED: Recipe = Recipe { client: "aiperf", ..PLAIN };

/// Source of the generated configurations.
const RULES: &str = "ai-dynamo/aiconfigurator @ bc171bc3f, src/aiconfigurator/generator/rule_plugin: captured batches 1 to the largest; that these \
                     runs were started so is assumed. Its max_num_tokens = batch + isl + 1500 would hold two prompts of 1024 tokens, and the runs say \
                     that one was computed at a time";

/// Tokens for the decoding sequences and one prompt of 1024 tokens or more.
const ONE_PROMPT: Amount = Amount { fixed: 512, per_request: 1, per_prompt_token: 1, at_least: 1 };

/// Every recipe, special ones first.
pub static RECIPES: [Recipe; 18] = [
    Recipe {
        of: ["vllm", "", "", ""],
        tokens_max: Some(ONE_PROMPT),
        sequences_max: Some(IN_FLIGHT),
        graphs: Some((GraphRule::Each, IN_FLIGHT)),
        source: RULES,
        ..GENERATED
    },
    Recipe {
        of: ["sglang", "", "", ""],
        since: Version(0, 5, 6),
        batcher: Some("trtllm"),
        tokens_max: Some(Amount { fixed: 1500, per_request: 0, per_prompt_token: 1, at_least: 1 }),
        sequences_max: Some(IN_FLIGHT),
        graphs: Some((GraphRule::Each, IN_FLIGHT)),
        source: "ai-dynamo/aiconfigurator @ 07a377923, src/aiconfigurator/generator/rule_plugin/sglang.rule: enable_mixed_chunk, \
                 max_prefill_tokens = isl + 1500, so whole prompts join the decoding sequences; that newer runs were started so is assumed",
        ..GENERATED
    },
    Recipe {
        of: ["sglang", "", "", ""],
        tokens_max: Some(fixed(16_384)),
        sequences_max: Some(IN_FLIGHT),
        graphs: Some((GraphRule::Each, IN_FLIGHT)),
        source: "the default of --max-prefill-tokens; the generated rule (isl + 1500) would part the prompts of 16 requests in flight, and \
                 the 43 runs in 16 bit say that they are computed together",
        ..GENERATED
    },
    Recipe {
        of: ["trtllm", "", "", ""],
        tokens_max: Some(ONE_PROMPT),
        sequences_max: Some(IN_FLIGHT),
        graphs: Some((GraphRule::Each, IN_FLIGHT)),
        memory: Some(MemoryRule::OfFree(0.8)),
        source: RULES,
        ..GENERATED
    },
    Recipe {
        of: ["vllm", "gpt-oss", "", ""],
        tokens_max: Some(fixed(8192)),
        sequences_max: Some(IN_FLIGHT),
        graphs: Some((GraphRule::Vllm, fixed(2048))),
        experts: Some(Format::Int4),
        source: "SemiAnalysisAI/InferenceX @ 843c6254f, benchmarks/single_node/fixed_seq_len/deprecated/gptoss_fp4_h100.sh and _h200.sh; \
                 VLLM_MXFP4_USE_MARLIN=1: the Marlin kernel, which the tables have with int4 weights",
        ..INFERENCEX
    },
    Recipe {
        of: ["vllm", "MiniMax", "h200-sxm", ""],
        tokens_max: Some(fixed(32_768)),
        sequences_max: Some(fixed(512)),
        memory: Some(MemoryRule::OfDevice(0.95)),
        kv: Some(Dtype::Fp8),
        source: "SemiAnalysisAI/InferenceX @ 843c6254f, …/deprecated/minimaxm2.5_fp8_h200.sh",
        ..INFERENCEX
    },
    Recipe {
        of: ["vllm", "MiniMax", "", ""],
        source: "SemiAnalysisAI/InferenceX @ 843c6254f, …/deprecated/minimaxm2.5_fp8_h100.sh: the engine's defaults",
        ..INFERENCEX
    },
    Recipe {
        of: ["vllm", "Kimi", "", ""],
        sequences_max: Some(IN_FLIGHT),
        memory: Some(MemoryRule::OfDevice(0.95)),
        source: "SemiAnalysisAI/InferenceX @ 843c6254f, …/deprecated/kimik2.5_int4_h200.sh",
        ..INFERENCEX
    },
    Recipe {
        of: ["vllm", "Llama-3.1-70B", "", ""],
        tokens_max: Some(fixed(8192)),
        sequences_max: Some(IN_FLIGHT),
        engine_loop: Some(EngineLoop::Asynchronous),
        kv: Some(Dtype::Fp8),
        source: "SemiAnalysisAI/InferenceX @ 2582bce40^, benchmarks/70b_fp8_h100_slurm.sh",
        ..INFERENCEX
    },
    Recipe {
        of: ["trtllm", "Llama-3.1-70B", "", ""],
        tokens_max: Some(fixed(16_384)),
        graphs: Some((GraphRule::Trtllm, fixed(1024))),
        kv: Some(Dtype::Fp8),
        source: "SemiAnalysisAI/InferenceX @ 2582bce40^, benchmarks/70b_fp8_b200_trt_slurm.sh; that H200 was started so is assumed",
        ..INFERENCEX
    },
    Recipe {
        of: ["trtllm", "gpt-oss", "h200-sxm", ""],
        tokens_max: Some(fixed(20_000)),
        sequences_max: Some(IN_FLIGHT),
        graphs: Some((GraphRule::Trtllm, IN_FLIGHT)),
        memory: Some(MemoryRule::OfFree(0.85)),
        source: "SemiAnalysisAI/InferenceX @ 843c6254f, …/deprecated/gptoss_fp4_h200_trt.sh: moe_config backend TRITON, which no other script asks for",
        ..INFERENCEX
    },
    Recipe {
        of: ["trtllm", "gpt-oss", "", ""],
        tokens_max: Some(fixed(20_000)),
        sequences_max: Some(IN_FLIGHT),
        graphs: Some((GraphRule::Trtllm, IN_FLIGHT)),
        memory: Some(MemoryRule::OfFree(0.85)),
        source: "SemiAnalysisAI/InferenceX @ 843c6254f, …/deprecated/gptoss_fp4_h200_trt.sh",
        ..INFERENCEX
    },
    Recipe {
        of: ["trtllm", "", "", ""],
        tokens_max: Some(Amount { fixed: 128, per_request: 1, per_prompt_token: 1, at_least: 8192 }),
        graphs: Some((GraphRule::Trtllm, IN_FLIGHT)),
        kv: Some(Dtype::Fp8),
        source: "SemiAnalysisAI/InferenceX @ 843c6254f, …/dsr1_fp8_h200_trt.sh and dsr1_fp4_b200_trt.sh",
        ..INFERENCEX
    },
    Recipe {
        of: ["sglang", "DeepSeek", "b200", "fp4"],
        tokens_max: Some(fixed(16_384)),
        sequences_max: Some(fixed(256)),
        graphs: Some((GraphRule::Sglang, fixed(256))),
        memory: Some(MemoryRule::Static(0.85)),
        kv: Some(Dtype::Fp8),
        recv_interval: [10, 30],
        source: "SemiAnalysisAI/InferenceX @ 12ba0ae07, benchmarks/single_node/dsr1_fp4_b200.sh",
        ..INFERENCEX
    },
    Recipe {
        of: ["sglang", "DeepSeek", "b200", "fp8"],
        tokens_max: Some(fixed(32_768)),
        sequences_max: Some(fixed(128)),
        graphs: Some((GraphRule::Sglang, fixed(128))),
        memory: Some(MemoryRule::Static(0.82)),
        kv: Some(Dtype::Fp8),
        recv_interval: [10, 30],
        source: "SemiAnalysisAI/InferenceX @ 12ba0ae07, benchmarks/single_node/dsr1_fp8_b200.sh, with eight GPUs",
        ..INFERENCEX
    },
    Recipe {
        of: ["sglang", "Qwen3.5", "b200", ""],
        tokens_max: Some(fixed(32_768)),
        sequences_max: Some(fixed(128)),
        graphs: Some((GraphRule::Sglang, IN_FLIGHT)),
        memory: Some(MemoryRule::Static(0.82)),
        kv: Some(Dtype::Fp8),
        recv_interval: [10, 30],
        source: "SemiAnalysisAI/InferenceX @ 12ba0ae07, benchmarks/single_node/qwen3.5_fp8_b200.sh and qwen3.5_bf16_b200.sh",
        ..INFERENCEX
    },
    Recipe {
        of: ["sglang", "Qwen3.5", "", ""],
        tokens_max: Some(fixed(16_384)),
        sequences_max: Some(fixed(256)),
        graphs: Some((GraphRule::Sglang, IN_FLIGHT)),
        memory: Some(MemoryRule::Static(0.8)),
        kv: Some(Dtype::Fp8),
        source: "SemiAnalysisAI/InferenceX @ 843c6254f, …/qwen3.5_fp8_h100.sh and _h200.sh (128 at once there)",
        ..INFERENCEX
    },
    Recipe {
        of: ["sglang", "", "", ""],
        tokens_max: Some(fixed(32_768)),
        sequences_max: Some(fixed(512)),
        graphs: Some((GraphRule::Sglang, fixed(512))),
        memory: Some(MemoryRule::Static(0.82)),
        source: "SemiAnalysisAI/InferenceX @ 843c6254f, …/dsr1_fp8_h200.sh",
        ..INFERENCEX
    },
];

impl Amount {
    /// The number under a load.
    #[must_use]
    pub fn under(&self, in_flight: u32, prompt: u32) -> u32 {
        (self.fixed + self.per_request * in_flight + self.per_prompt_token * prompt).max(self.at_least)
    }
}

impl Recipe {
    /// Iterations between two looks for new requests with so many in flight.
    #[must_use]
    pub fn recv_interval(&self, in_flight: u32) -> NonZeroU32 {
        NonZeroU32::new(self.recv_interval[usize::from(in_flight >= 16)]).unwrap_or(NonZeroU32::MIN)
    }

    fn fits(&self, run: &Run, client: &Client) -> bool {
        let [engine, model, card, format] = self.of;
        self.client == client.name
            && (engine.is_empty() || engine == run.engine)
            && run.model.contains(model)
            && (card.is_empty() || card == run.card)
            && (format.is_empty() || format == run.precision)
            && self.since <= Version::parse(&run.version)
    }
}

/// Options of a run.
#[must_use]
pub fn of(run: &Run, client: &Client) -> &'static Recipe {
    const DEFAULTS: &Recipe = &PLAIN;
    RECIPES.iter().find(|recipe| recipe.fits(run, client)).unwrap_or(DEFAULTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_version(version: &str) -> &'static Recipe {
        let text = format!(
            "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,moe_quant_mode,batch_size,\
             tp_size,silicon_ttft_ms,silicon_tpot_ms\n\
             a,/data/aic-auto-gap-analysis/x.csv,sglang,{version},org/M,h200_sxm,fp8,agg,1000,100,fp8,fp8,8,1,500,20\n"
        );
        let run = crate::run::read(&text).expect("a table").remove(0);
        of(&run, crate::client::of(&run.source))
    }

    #[test]
    fn newer_versions_of_an_engine_may_be_started_otherwise() {
        assert_eq!(of_version("0.5.1.post1").batcher, None);
        assert_eq!(of_version("0.5.6.post2").batcher, Some("trtllm"));
    }

    #[test]
    fn recipes_name_batching_policies_that_are_there() {
        for batcher in RECIPES.iter().filter_map(|recipe| recipe.batcher) {
            assert!(serve::batcher::named(batcher).is_some(), "{batcher}");
        }
    }
}
