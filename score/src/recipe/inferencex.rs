//! Recipes of the runs of InferenceX: its scripts as they were on the day of a run. Units: tokens, sequences, shares of memory.
//!
//! Source: SemiAnalysisAI/InferenceX (Apache-2.0), `benchmarks/`; commits stand in the rows. Options that the simulator does not know (symmetric
//! memory, intervals of streaming) are left out.

use engine::cost::experts::Tactic;
use hw::{Dtype, Format};
use serve::engine_preset::{GraphRule, PromptGraphs, Version};
use serve::engine_reduces::Asked;
use serve::memory_rule::MemoryRule;
use serve::step_cost::host::EngineLoop;

use super::{ANY, Amount, IN_FLIGHT, Of, PLAIN, Recipe, fixed};

const VLLM: Of = Of { client: "inferencex", engine: "vllm", ..ANY };
const TRTLLM: Of = Of { client: "inferencex", engine: "trtllm", ..ANY };
const SGLANG: Of = Of { client: "inferencex", engine: "sglang", ..ANY };

/// One prompt and the decoding sequences: `conc + isl + 64`, rounded to 64.
const ONE_PROMPT: Amount = Amount { fixed: 64, per_request: 1, per_prompt_token: 1, at_least: 1 };
/// The same since evaluations were added (64af5a771, 2026-01-21).
const PROMPT_OR_MORE: Amount = Amount { at_least: 8192, ..ONE_PROMPT };
/// First day of the larger budget.
const EVALUATIONS: &str = "2026-01-21";
/// Lengths of chats.
const CHAT: Option<[u32; 2]> = Some([1024, 1024]);

const GPT_OSS: Recipe = Recipe {
    of: Of { model: "gpt-oss", ..VLLM },
    tokens_max: Some(fixed(8192)),
    sequences_max: Some(IN_FLIGHT),
    graphs: Some((GraphRule::Vllm, fixed(2048))),
    experts: Some(Format::Int4),
    source: "@ 843c6254f, single_node/fixed_seq_len/deprecated/gptoss_fp4_h100.sh and _h200.sh; VLLM_MXFP4_USE_MARLIN=1: the Marlin kernel, which \
             the tables have with int4 weights",
    ..PLAIN
};

const GPT_OSS_BLACKWELL: Recipe = Recipe {
    of: Of { card: "b", ..GPT_OSS.of },
    sequences_max: Some(fixed(512)),
    experts: None,
    source: "@ 12d601c4c, gptoss_fp4_b200_docker.sh",
    ..GPT_OSS
};

const MINIMAX: Of = Of { model: "MiniMax", ..VLLM };
/// First day of the script of fp4.
const MINIMAX_FP4: &str = "2026-04-08";
const LLAMA_VLLM: Recipe = Recipe {
    of: Of { model: "Llama-3.1-70B", ..VLLM },
    tokens_max: Some(fixed(8192)),
    sequences_max: Some(IN_FLIGHT),
    engine_loop: Some(EngineLoop::Asynchronous),
    kv: Some(Dtype::Fp8),
    source: "@ 2582bce40^, 70b_fp8_h100_slurm.sh and 70b_fp8_h200_slurm.sh",
    ..PLAIN
};

const KIMI_FP4: Recipe = Recipe {
    of: Of { model: "Kimi", format: "fp4", ..VLLM },
    sequences_max: Some(IN_FLIGHT),
    kv: Some(Dtype::Fp8),
    source: "@ 626932a11, single_node/kimik2.5_fp4_b200.sh; keys and values are those of the checkpoint, which ModelOpt wrote with 8 bits (vLLM \
             #30785)",
    ..PLAIN
};

const LLAMA_TRTLLM: Recipe = Recipe {
    of: Of { model: "Llama-3.1-70B", ..TRTLLM },
    tokens_max: Some(fixed(16_384)),
    graphs: Some((GraphRule::Trtllm, fixed(1024))),
    kv: Some(Dtype::Fp8),
    source: "@ 2582bce40^, 70b_fp8_h200_trt_slurm.sh, 70b_fp8_b200_trt_slurm.sh, 70b_fp4_b200_trt_slurm.sh",
    ..PLAIN
};

const GPT_OSS_TRTLLM: Recipe = Recipe {
    of: Of { model: "gpt-oss", card: "h200", ..TRTLLM },
    tokens_max: Some(fixed(20_000)),
    sequences_max: Some(IN_FLIGHT),
    graphs: Some((GraphRule::Trtllm, IN_FLIGHT)),
    memory: Some(MemoryRule::OfFree(0.85)),
    source: "@ 843c6254f, single_node/fixed_seq_len/deprecated/gptoss_fp4_h200_trt.sh: moe_config backend TRITON, which no other script asks for",
    ..PLAIN
};

const DEEPSEEK_TRTLLM: Recipe = Recipe {
    of: TRTLLM,
    tokens_max: Some(PROMPT_OR_MORE),
    graphs: Some((GraphRule::Trtllm, IN_FLIGHT)),
    kv: Some(Dtype::Fp8),
    rank_wait: Some([60, 0]),
    expert_tactic: Some([Tactic::Tuned; 2]),
    source: "@ 843c6254f, dsr1_fp8_h200_trt.sh and dsr1_fp4_b200_trt.sh; recipes of split runs ask for faster kernels than CUTLASS or are not known",
    ..PLAIN
};
const DEEPSEEK_H200: Recipe = Recipe {
    of: Of { model: "DeepSeek", card: "h200", whole: true, ..TRTLLM },
    graphs: Some((GraphRule::Trtllm, fixed(128))),
    memory: Some(MemoryRule::OfFree(0.75)),
    source: "@ 64af5a771, dsr1_fp8_h200_trt_slurm.sh",
    ..DEEPSEEK_TRTLLM
};
const DEEPSEEK_B200: Recipe = Recipe {
    of: Of { model: "DeepSeek", card: "b200", whole: true, ..TRTLLM },
    memory: Some(MemoryRule::OfFree(0.8)),
    expert_tactic: Some([Tactic::Tuned, Tactic::Cutlass]),
    source: "@ 6eecc0e66, dsr1_fp4_b200_trt.sh (MOE_BACKEND: TRTLLM, and CUTLASS with DP_ATTENTION, as since ec90f3fe7); @ ec7bafaae, \
             dsr1_fp8_b200_trt.sh",
    ..DEEPSEEK_TRTLLM
};

const DEEPSEEK_SGLANG: Recipe = Recipe {
    of: Of { model: "DeepSeek", card: "b", format: "fp8", ..SGLANG },
    tokens_max: Some(fixed(32_768)),
    sequences_max: Some(fixed(128)),
    graphs: Some((GraphRule::Sglang, fixed(128))),
    memory: Some(MemoryRule::Static(0.82)),
    kv: Some(Dtype::Fp8),
    recv_interval: [10, 30],
    source: "@ 12ba0ae07, single_node/dsr1_fp8_b200.sh; dsr1_fp8_b300.sh @ f34a83b25",
    ..PLAIN
};

const QWEN_SGLANG: Recipe = Recipe {
    of: Of { model: "Qwen3.5", card: "b", ..SGLANG },
    graphs: Some((GraphRule::Sglang, IN_FLIGHT)),
    source: "@ 12ba0ae07, single_node/qwen3.5_fp8_b200.sh and qwen3.5_bf16_b200.sh; qwen3.5_fp4_b200.sh @ 68bf34d2c",
    ..DEEPSEEK_SGLANG
};

/// Images of B200 are 0.5.9 and nightly ones before 0.5.10, which captures prompts.
const QWEN_B200: Recipe =
    Recipe { of: Of { card: "b200", ..QWEN_SGLANG.of }, prompt_graphs: Some(PromptGraphs::None), ..QWEN_SGLANG };

const GLM_SGLANG: Recipe = Recipe {
    of: Of { model: "GLM-5", card: "b", ..SGLANG },
    tokens_max: Some(fixed(32_768)),
    sequences_max: Some(IN_FLIGHT),
    graphs: Some((GraphRule::Sglang, IN_FLIGHT)),
    memory: Some(MemoryRule::Static(0.85)),
    kv: Some(Dtype::Fp8),
    all_reduce: Asked::Fused,
    source: "@ 626932a11, single_node/glm5_fp8_b200.sh; glm5_fp8_b300.sh @ f34a83b25",
    ..PLAIN
};

pub(super) static RECIPES: [Recipe; 42] = [
    Recipe { of: Of { days: ["", "2025-12-05"], ..GPT_OSS_BLACKWELL.of }, ..GPT_OSS_BLACKWELL },
    Recipe {
        kv: Some(Dtype::Fp8),
        source: "@ 25506e87c, gptoss_fp4_b200_docker.sh; @ 626932a11, single_node/gptoss_fp4_b200.sh",
        ..GPT_OSS_BLACKWELL
    },
    GPT_OSS,
    Recipe {
        of: Of { card: "h200", days: ["2026-05-26", "~"], ..MINIMAX },
        tokens_max: Some(fixed(32_768)),
        sequences_max: Some(fixed(512)),
        memory: Some(MemoryRule::OfDevice(0.95)),
        kv: Some(Dtype::Fp8),
        source: "@ 8014ee637, minimaxm2.5_fp8_h200.sh",
        ..PLAIN
    },
    Recipe {
        of: Of { card: "h200", ..MINIMAX },
        memory: Some(MemoryRule::OfDevice(0.95)),
        source: "@ cad1169b9, single_node/minimaxm2.5_fp8_h200.sh: the engine's defaults but for memory",
        ..PLAIN
    },
    Recipe {
        of: Of { card: "b", format: "fp4", days: ["", MINIMAX_FP4], ..MINIMAX },
        kv: Some(Dtype::Fp8),
        source: "no script of that day is published; TTFT is that of prompts in no graph, which are the engine's defaults",
        ..PLAIN
    },
    Recipe {
        of: Of { card: "b", since: Version(0, 19, 0), ..MINIMAX },
        tokens_max: Some(Amount { fixed: 0, per_request: 0, per_prompt_token: 2, at_least: 1 }),
        graphs: Some((GraphRule::Vllm, fixed(2048))),
        kv: Some(Dtype::Fp8),
        source: "@ 68bf34d2c, single_node/minimaxm2.5_fp8_b200.sh and _fp4_b200.sh; _b300.sh @ f34a83b25",
        ..PLAIN
    },
    Recipe {
        of: Of { card: "b", ..MINIMAX },
        memory: Some(MemoryRule::OfDevice(0.95)),
        source: "@ 626932a11, single_node/minimaxm2.5_fp8_b200.sh",
        ..PLAIN
    },
    Recipe {
        of: MINIMAX,
        sequences_max: Some(fixed(256)),
        source: "@ cad1169b9, single_node/minimaxm2.5_fp8_h100.sh",
        ..PLAIN
    },
    Recipe {
        of: Of { model: "Kimi", format: "fp4", card: "b200", days: ["2026-04-20", "~"], ..VLLM },
        tokens_max: Some(Amount { fixed: 0, per_request: 0, per_prompt_token: 2, at_least: 1 }),
        sequences_max: Some(IN_FLIGHT),
        graphs: Some((GraphRule::Vllm, fixed(2048))),
        kv: Some(Dtype::Fp8),
        source: "@ 6c3acebfa, single_node/kimik2.5_fp4_b200.sh",
        ..PLAIN
    },
    KIMI_FP4,
    Recipe {
        of: Of { model: "Kimi", ..VLLM },
        sequences_max: Some(IN_FLIGHT),
        memory: Some(MemoryRule::OfDevice(0.95)),
        source: "@ 843c6254f, kimik2.5_int4_h200.sh",
        ..PLAIN
    },
    Recipe {
        of: Of { card: "b", ..LLAMA_VLLM.of },
        sequences_max: Some(fixed(512)),
        prompt_graphs: Some(PromptGraphs::None),
        all_reduce: Asked::Fused,
        source: "@ 2582bce40^, 70b_fp8_b200_docker.sh and 70b_fp4_b200_docker.sh: FULL_DECODE_ONLY, enable_fi_allreduce_fusion",
        ..LLAMA_VLLM
    },
    LLAMA_VLLM,
    Recipe { of: Of { lengths: CHAT, tensor: [1, 7], ..LLAMA_TRTLLM.of }, wait: Some((20, 0.9)), ..LLAMA_TRTLLM },
    LLAMA_TRTLLM,
    GPT_OSS_TRTLLM,
    Recipe {
        of: Of { card: "", ..GPT_OSS_TRTLLM.of },
        sequences_max: Some(fixed(512)),
        kv: Some(Dtype::Fp8),
        rank_wait: Some([50, 10]),
        source: "@ 12d601c4c, gptoss_fp4_b200_trt_slurm.sh; gptoss_fp4_b200_trt.sh @ 1825e7f06: `enable_balance` with the engine's own 50 and 10 iterations \
                 (`AttentionDpConfig` in tensorrt_llm/llmapi/llm_args.py)",
        ..GPT_OSS_TRTLLM
    },
    Recipe { of: Of { days: ["", EVALUATIONS], ..DEEPSEEK_H200.of }, tokens_max: Some(ONE_PROMPT), ..DEEPSEEK_H200 },
    DEEPSEEK_H200,
    Recipe {
        of: Of { format: "fp4", days: ["", EVALUATIONS], ..DEEPSEEK_B200.of },
        tokens_max: Some(ONE_PROMPT),
        graphs: Some((GraphRule::Trtllm, fixed(512))),
        source: "@ 12d601c4c, dsr1_fp4_b200_trt_slurm.sh",
        ..DEEPSEEK_B200
    },
    Recipe {
        of: Of { format: "fp4", days: ["", "2026-02-03"], ..DEEPSEEK_B200.of },
        graphs: Some((GraphRule::Trtllm, fixed(512))),
        source: "@ 38546bb90, dsr1_fp4_b200_trt.sh",
        ..DEEPSEEK_B200
    },
    Recipe {
        of: Of { format: "fp4", lengths: CHAT, tensor: [8, 8], spreads_experts: true, ..DEEPSEEK_B200.of },
        prompt_graphs: Some(PromptGraphs::All),
        ..DEEPSEEK_B200
    },
    Recipe {
        of: Of { format: "fp8", days: ["", EVALUATIONS], ..DEEPSEEK_B200.of },
        tokens_max: Some(ONE_PROMPT),
        graphs: Some((GraphRule::Trtllm, fixed(256))),
        source: "@ 12d601c4c, dsr1_fp8_b200_trt_slurm.sh",
        ..DEEPSEEK_B200
    },
    Recipe {
        of: Of { format: "fp8", days: ["", "2026-01-29"], ..DEEPSEEK_B200.of },
        graphs: Some((GraphRule::Trtllm, fixed(256))),
        source: "@ 38546bb90, dsr1_fp8_b200_trt.sh",
        ..DEEPSEEK_B200
    },
    Recipe {
        of: Of { format: "fp8", lengths: CHAT, in_flight: 64, ..DEEPSEEK_B200.of },
        prompt_graphs: Some(PromptGraphs::All),
        wait: Some((40, 0.8)),
        ..DEEPSEEK_B200
    },
    Recipe {
        of: Of { format: "fp8", lengths: Some([8192, 1024]), in_flight: 64, ..DEEPSEEK_B200.of },
        prompt_graphs: Some(PromptGraphs::All),
        ..DEEPSEEK_B200
    },
    DEEPSEEK_B200,
    DEEPSEEK_TRTLLM,
    Recipe {
        of: Of { format: "fp4", ..DEEPSEEK_SGLANG.of },
        tokens_max: Some(fixed(16_384)),
        sequences_max: Some(fixed(256)),
        graphs: Some((GraphRule::Sglang, fixed(256))),
        memory: Some(MemoryRule::Static(0.85)),
        source: "@ 12ba0ae07, single_node/dsr1_fp4_b200.sh; dsr1_fp4_b300.sh @ f34a83b25",
        ..DEEPSEEK_SGLANG
    },
    Recipe {
        of: Of { tensor: [1, 7], whole: true, ..DEEPSEEK_SGLANG.of },
        tokens_max: Some(fixed(8192)),
        sequences_max: Some(fixed(32)),
        graphs: Some((GraphRule::Sglang, fixed(32))),
        memory: Some(MemoryRule::Static(0.95)),
        recv_interval: [10, 10],
        ..DEEPSEEK_SGLANG
    },
    DEEPSEEK_SGLANG,
    Recipe { of: Of { format: "bf16", ..QWEN_B200.of }, kv: None, ..QWEN_B200 },
    QWEN_B200,
    Recipe { of: Of { format: "bf16", ..QWEN_SGLANG.of }, kv: None, ..QWEN_SGLANG },
    Recipe {
        of: Of { card: "b300", format: "fp8", ..QWEN_SGLANG.of },
        tokens_max: Some(fixed(16_384)),
        sequences_max: Some(IN_FLIGHT),
        memory: Some(MemoryRule::Static(0.8)),
        recv_interval: [10, 10],
        source: "@ f34a83b25, single_node/qwen3.5_fp8_b300.sh",
        ..QWEN_SGLANG
    },
    QWEN_SGLANG,
    Recipe {
        of: Of { card: "", ..QWEN_SGLANG.of },
        tokens_max: Some(fixed(16_384)),
        memory: Some(MemoryRule::Static(0.8)),
        recv_interval: [1, 1],
        source: "@ cad1169b9, single_node/qwen3.5_fp8_h200.sh; qwen3.5_fp8_h100.sh @ 843c6254f",
        ..QWEN_SGLANG
    },
    Recipe {
        of: Of { format: "fp4", ..GLM_SGLANG.of },
        sequences_max: None,
        graphs: Some((GraphRule::Sglang, fixed(256))),
        memory: Some(MemoryRule::Static(0.9)),
        recv_interval: [10, 10],
        source: "@ 68bf34d2c, single_node/glm5_fp4_b200.sh",
        ..GLM_SGLANG
    },
    GLM_SGLANG,
    Recipe {
        of: Of { card: "", ..GLM_SGLANG.of },
        memory: Some(MemoryRule::Static(0.85)),
        source: "@ ebb48d4bc, glm5_fp8_h200.sh: the engine's defaults but for memory",
        ..PLAIN
    },
    Recipe {
        of: SGLANG,
        tokens_max: Some(fixed(32_768)),
        sequences_max: Some(fixed(512)),
        graphs: Some((GraphRule::Sglang, fixed(512))),
        memory: Some(MemoryRule::Static(0.82)),
        source: "@ 843c6254f, dsr1_fp8_h200.sh",
        ..PLAIN
    },
];
