//! The presets themselves, by engine and version.

use hw::Format;

use super::drafting::WithDrafts;
use super::reserve::{DraftReserve, TurnedOff};
use super::split::{AT_ONCE, IN_TURN};
use super::{
    Count, Detokenizer, EnginePreset, GraphRule, KeptPrefixes, ListedExperts, PromptGraphs, Sizes, Version, WeightOnly,
};
use crate::api_server::ApiServer;
use crate::engine_reduces::Reduces;
use crate::layer_split::LayerSplit;
use crate::memory_rule::MemoryRule;
use crate::replica::{CapacityPolicy, PromptRank};
use crate::sampler::Sampler;
use crate::step_cost::census;
use crate::step_cost::fusion::Fusion;
use crate::step_cost::host::EngineLoop;
use crate::step_cost::prompt_exchange::PromptExchange;

const VLLM_SIZES: [Sizes; 2] = [
    Sizes { memory_gib_max: 69, tokens_max: 2048, sequences_max: 256, graph_max: [512, 512] },
    Sizes { memory_gib_max: u32::MAX, tokens_max: 8192, sequences_max: 1024, graph_max: [512, 512] },
];

const SGLANG_SIZES: [Sizes; 5] = [
    Sizes { memory_gib_max: 19, tokens_max: 2048, sequences_max: 4096, graph_max: [8, 8] },
    Sizes { memory_gib_max: 35, tokens_max: 2048, sequences_max: 4096, graph_max: [24, 80] },
    Sizes { memory_gib_max: 59, tokens_max: 4096, sequences_max: 4096, graph_max: [32, 160] },
    Sizes { memory_gib_max: 159, tokens_max: 8192, sequences_max: 4096, graph_max: [256, 512] },
    Sizes { memory_gib_max: u32::MAX, tokens_max: 16_384, sequences_max: 4096, graph_max: [512, 512] },
];

const SGLANG_LARGER_SIZES: [Sizes; 5] = {
    let mut sizes = SGLANG_SIZES;
    sizes[1] = Sizes { tokens_max: 4096, graph_max: [48, 160], ..SGLANG_SIZES[1] };
    sizes
};

const TRTLLM_SIZES: [Sizes; 1] =
    [Sizes { memory_gib_max: u32::MAX, tokens_max: 8192, sequences_max: 2048, graph_max: [128, 128] }];

const VLLM_API: ApiServer = ApiServer {
    us_per_request: 2000.0,
    us_per_token: [40.0, 60.0],
    gathers: true,
    source: "processor time of the API server of vLLM 0.19 on one core of an EPYC that is slower than hosts of GPUs: 1.6 ms a completion and 2.2 a chat without their \
             tokens, 88 us a streamed token, 2.2 us a token of a prompt; published runs stream 17,000 tokens a second through one (MiniMax-M2.5, B300, 512 in \
             flight), which is 59 us at most",
};

const SGLANG_API: ApiServer = ApiServer {
    us_per_token: [48.0, 58.0],
    gathers: false,
    source: "requests as vLLM's, an assumption: both are FastAPI; tokens by the fullest runs of Llama-3.1-8B on H200 (docs/accuracy-serving-causes.md); generate_request of \
             python/sglang/srt/managers/tokenizer_manager.py sends a request as soon as it is tokenized",
    ..VLLM_API
};

/// What NCCL takes of a GPU where it exchanges with others. Two H100 have 3.58 GiB outside of PyTorch's allocator, and one has 1.79 (youkaichao in
/// vllm-project/vllm#10511). Up to 0.11.0 vLLM takes it off: it looks at the free memory first, and starts NCCL then (`init_device` of
/// vllm/v1/worker/gpu_worker.py, 0.10.2 to 0.11.1).
const EXCHANGE_MIB: u64 = 1833;

/// Tokens of an iteration where nobody serves vLLM and a program calls it: on a card of so much memory that a server takes 2,048, and on a larger one
/// (`UsageContext.LLM_CLASS` in `get_batch_defaults`). Sequences are those of the server.
const VLLM_OFFLINE_TOKENS: [u32; 2] = [8192, 16_384];

const VLLM: EnginePreset = EnginePreset {
    name: "vllm",
    since: Version(0, 9, 0),
    batcher: "vllm-v1",
    block_tokens: 16,
    engine_loop: EngineLoop::Serial,
    with_drafts: WithDrafts::ALIKE,
    prefixes: KeptPrefixes::WithoutStates,
    sizes: &VLLM_SIZES,
    offline_tokens: Some(VLLM_OFFLINE_TOKENS),
    graphs: GraphRule::Vllm,
    prompt_graphs: PromptGraphs::Batches,
    expert_rows: None,
    tunes_experts: true,
    listed_experts: ListedExperts::All,
    cutlass_experts: None,
    default_tiles: true,
    triton_sinks: true,
    fusion: Fusion::Norms,
    census: census::VLLM,
    reduces: Reduces::OnRequest,
    shared_beside: 0,
    layer_split: LayerSplit::BeforeLast,
    memory: MemoryRule::OfDevice(0.9),
    graph_mib: 0,
    turned_off: TurnedOff::Kept,
    exchange_mib: EXCHANGE_MIB,
    sampler: Sampler::Rejecting,
    file_ends_answers: true,
    prompt_exchange: PromptExchange::Gathered,
    prompt_rank: PromptRank::Even,
    capacity_policy: CapacityPolicy::MaxUtilization,
    weight_only: WeightOnly::Everywhere,
    detokenizer: Detokenizer {
        process: "the API server",
        us_per_sequence: 0.0,
        count: Count::OfRank,
        source: "vllm-project/vllm, vllm/v1/engine/output_processor.py and detokenizer.py, run by AsyncLLM; EngineCore is a process of its own; \
                 vllm/entrypoints/cli/serve.py: as many API servers as --data-parallel-size says",
    },
    api_server: VLLM_API,
    split: IN_TURN,
    source: "vllm-project/vllm, vllm/engine/arg_utils.py get_batch_defaults (API server; A100 has the small sizes whatever its memory), \
             _set_default_chunked_prefill_and_prefix_caching_args (#23716: no prefixes of hybrid models); \
             vllm/config/vllm.py _set_cudagraph_sizes, gpu_memory_utilization; piecewise graphs hold mixed batches up to the largest size; \
             supports_sink of flash_attn.py (version 3, capability 9) and flashinfer.py (kernels of TensorRT-LLM, capability 10) in v1/attention/backends",
};

const SGLANG: EnginePreset = EnginePreset {
    name: "sglang",
    since: Version(0, 5, 0),
    batcher: "sglang",
    block_tokens: 1,
    engine_loop: EngineLoop::Asynchronous,
    with_drafts: WithDrafts::SGLANG,
    prefixes: KeptPrefixes::WithoutStates,
    sizes: &SGLANG_SIZES,
    offline_tokens: None,
    graphs: GraphRule::Sglang,
    prompt_graphs: PromptGraphs::None,
    expert_rows: None,
    tunes_experts: false,
    listed_experts: ListedExperts::Narrow,
    cutlass_experts: None,
    default_tiles: false,
    triton_sinks: false,
    fusion: Fusion::Norms,
    census: census::SGLANG,
    reduces: Reduces::Few,
    shared_beside: 0,
    layer_split: LayerSplit::AllOnLast,
    memory: MemoryRule::Reserve,
    graph_mib: 0,
    turned_off: TurnedOff::Kept,
    exchange_mib: 0,
    sampler: Sampler::Reserved { punishes_repetition: false },
    file_ends_answers: false,
    prompt_exchange: PromptExchange::Summed,
    prompt_rank: PromptRank::Drawn,
    capacity_policy: CapacityPolicy::MaxUtilization,
    weight_only: WeightOnly::Dense,
    detokenizer: Detokenizer {
        process: "the detokenizer",
        us_per_sequence: 0.0,
        count: Count::One,
        source: "sgl-project/sglang @ 000935bdda57, python/sglang/srt/managers/detokenizer_manager.py: a process that the scheduler sends tokens to",
    },
    api_server: SGLANG_API,
    split: AT_ONCE,
    source: "sgl-project/sglang, python/sglang/srt/server_args.py (_handle_gpu_memory_settings, _generate_cuda_graph_batch_sizes); \
             the overlap scheduler is on by default; FlashInfer does not find what it has tuned of trtllm_fp8_block_scale_moe \
             (flashinfer-ai/flashinfer #2640); models/deepseek_v2.py, determine_num_fused_shared_experts: without experts over GPUs, and \
             server_args.py: not with the experts of FlashInfer; custom_all_reduce_v2.py is asked for by an option up to v0.5.10",
};

const TRTLLM: EnginePreset = EnginePreset {
    name: "trtllm",
    since: Version(0, 0, 0),
    batcher: "trtllm",
    block_tokens: 32,
    engine_loop: EngineLoop::Asynchronous,
    with_drafts: WithDrafts::ALIKE,
    prefixes: KeptPrefixes::WithoutStates,
    sizes: &TRTLLM_SIZES,
    offline_tokens: None,
    graphs: GraphRule::TrtllmExact,
    prompt_graphs: PromptGraphs::None,
    expert_rows: None,
    tunes_experts: true,
    listed_experts: ListedExperts::All,
    cutlass_experts: Some(Format::Nvfp4),
    default_tiles: false,
    triton_sinks: false,
    fusion: Fusion::Nothing,
    census: census::TRTLLM,
    reduces: Reduces::Own,
    shared_beside: u32::MAX,
    layer_split: LayerSplit::FirstOnes,
    memory: MemoryRule::OfFree(0.9),
    graph_mib: 0,
    turned_off: TurnedOff::Kept,
    exchange_mib: 0,
    sampler: Sampler::Uncounted,
    file_ends_answers: false,
    prompt_exchange: PromptExchange::Gathered,
    prompt_rank: PromptRank::Even,
    capacity_policy: CapacityPolicy::GuaranteedNoEvict,
    weight_only: WeightOnly::Nowhere,
    detokenizer: Detokenizer {
        process: "the proxy",
        us_per_sequence: 0.0,
        count: Count::One,
        source: "NVIDIA/TensorRT-LLM, tensorrt_llm/executor/result.py in the process of GenerationExecutorProxy, or postproc_worker.py beside it",
    },
    api_server: ApiServer::NONE,
    split: IN_TURN,
    source: "NVIDIA/TensorRT-LLM, tensorrt_llm/llmapi/llm_args.py (CudaGraphConfig, KvCacheConfig, BuildConfig; PyTorch backend); the \
             overlap scheduler is on by default, chunked context is not; get_model_defaults in modeling_qwen3_next.py and modeling_nemotron_h.py: \
             no block reuse; modeling_deepseekv3.py: maybe_execute_in_parallel in captured graphs; \
             tensorrt_llm/_torch/model_config.py, resolve_moe_backend: CUTLASS where no option says otherwise",
};

const VLLM_ASYNC: EnginePreset = EnginePreset {
    since: Version(0, 14, 0),
    engine_loop: EngineLoop::Asynchronous,
    shared_beside: 256,
    sampler: Sampler::Sorting,
    exchange_mib: 0,
    source: "as 0.9, and the release notes of v0.14.0: asynchronous scheduling by default; shared experts and sampler as in 0.11.1",
    ..VLLM
};

const VLLM_WHOLE: EnginePreset = EnginePreset {
    since: Version(0, 19, 0),
    reduces: Reduces::Dense,
    sampler: Sampler::Masking,
    file_ends_answers: false,
    capacity_policy: CapacityPolicy::WholePrompt,
    default_tiles: false,
    source: "as 0.17, all-reduces with norms on B300 too (#37755, #37756), and scheduler_reserve_full_isl in vllm/config/scheduler.py, which 0.18.1 lacks",
    ..VLLM_ASYNC
};

const VLLM_LARGER: EnginePreset = EnginePreset {
    since: Version(0, 20, 0),
    memory: MemoryRule::OfDevice(0.92),
    graph_mib: 8,
    source: "as 0.19, and vllm/config/cache.py gpu_memory_utilization, vllm/envs.py VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS of 0.20.0 and 0.20.2",
    ..VLLM_WHOLE
};

const VLLM_DRAWING: EnginePreset = EnginePreset {
    since: Version(0, 21, 0),
    sampler: Sampler::Rejecting,
    source: "as 0.20, and vllm/envs.py VLLM_USE_FLASHINFER_SAMPLER of 0.21.0: on by default (#40376)",
    ..VLLM_LARGER
};

const SGLANG_SPREAD: EnginePreset = EnginePreset {
    since: Version(0, 5, 6),
    layer_split: LayerSplit::LastOnes,
    source: "as 0.5, and get_pp_indices of python/sglang/srt/distributed/utils.py (#13977)",
    ..SGLANG
};

const SGLANG_JOINED: EnginePreset = EnginePreset {
    since: Version(0, 5, 10),
    prefixes: KeptPrefixes::All,
    prompt_graphs: PromptGraphs::Sglang,
    sampler: Sampler::Reserved { punishes_repetition: true },
    census: census::SGLANG_JOINED,
    reduces: Reduces::AllExperts,
    tunes_experts: true,
    listed_experts: ListedExperts::Wide,
    with_drafts: WithDrafts { reserve: DraftReserve { model: 6, layers: 4 }, ..WithDrafts::SGLANG },
    source: "as 0.5, and the release notes of v0.5.10: piecewise graphs of prompts by default (#16331), FlashInfer 0.6.7; server_args.py: \
             Qwen3.5 among the models with fused all-reduces; 4 GiB for heads that draft; sampling/penaltylib/repetition_penalty.py, which 0.5.9 \
             lacks",
    ..SGLANG_SPREAD
};

const SGLANG_OVERLAPPED: EnginePreset = EnginePreset {
    since: Version(0, 5, 11),
    with_drafts: WithDrafts {
        loops: Some([EngineLoop::Asynchronous, EngineLoop::Serial]),
        ..SGLANG_JOINED.with_drafts
    },
    source: "as 0.5.10, and environ.py of 0.5.11: SGLANG_ENABLE_SPEC_V2 is on by default, which overlaps chains of drafts with the host",
    ..SGLANG_JOINED
};

const SGLANG_UNRESERVED: EnginePreset = EnginePreset {
    since: Version(0, 5, 14),
    with_drafts: WithDrafts { reserve: DraftReserve::NONE, ..SGLANG_OVERLAPPED.with_drafts },
    source: "as 0.5.11, and server_args.py of 0.5.14, which keeps nothing for drafts",
    ..SGLANG_OVERLAPPED
};

const SGLANG_FREEING: EnginePreset = EnginePreset {
    since: Version(0, 5, 15),
    turned_off: TurnedOff::Free,
    source: "as 0.5.14, and reserve_for_graph_mb in server_args.py of 0.5.15.post1: nothing for graphs that are turned off",
    ..SGLANG_UNRESERVED
};

/// Every preset, newest version of an engine first.
pub static PRESETS: [EnginePreset; 19] = [
    EnginePreset {
        since: Version(0, 28, 0),
        prefixes: KeptPrefixes::All,
        source: "as 0.21, and prefixes of hybrid models by default (#50991)",
        ..VLLM_DRAWING
    },
    VLLM_DRAWING,
    VLLM_LARGER,
    VLLM_WHOLE,
    EnginePreset {
        since: Version(0, 17, 0),
        reduces: Reduces::FirstOfBlackwell,
        sampler: Sampler::Masking,
        file_ends_answers: false,
        default_tiles: false,
        source: "as 0.14, norms inside of all-reduces of dense models by default (#34299), a kernel for top-k and top-p (#33538), other tiles of \
                 experts whose shape nobody tuned (#34846), and tokens that a request asks for before those of a model's own file (#34063)",
        ..VLLM_ASYNC
    },
    VLLM_ASYNC,
    EnginePreset {
        since: Version(0, 11, 1),
        expert_rows: Some((128, 8)),
        shared_beside: 256,
        sampler: Sampler::Sorting,
        exchange_mib: 0,
        source: "as 0.9, and #26197 (DeepGEMM with scales of powers of two on Hopper too, so at every batch), #29346 (not on eight GPUs); \
                 deep_gemm_moe.py: room for top_k rows of every token and 127 of every expert. From 0.14 on other kernels come first (#34260). \
                 Shared experts on a stream of their own up to 256 tokens (#26440, #28406). FlashInfer samples only where it is asked to",
        ..VLLM
    },
    VLLM,
    EnginePreset {
        since: Version(0, 5, 20),
        sizes: &SGLANG_LARGER_SIZES,
        source: "as 0.5.15, and arg_groups/memory_hook.py of 0.5.20: chunks and captured batches of cards below 35 GiB",
        ..SGLANG_FREEING
    },
    SGLANG_FREEING,
    SGLANG_UNRESERVED,
    SGLANG_OVERLAPPED,
    SGLANG_JOINED,
    EnginePreset {
        since: Version(0, 5, 8),
        prefixes: KeptPrefixes::All,
        reduces: Reduces::Experts,
        listed_experts: ListedExperts::Wide,
        source: "as 0.5.7, and server_args.py of v0.5.8: FlashInfer's experts for Qwen3 and Qwen3-Next without quantization too",
        ..SGLANG_SPREAD
    },
    EnginePreset {
        since: Version(0, 5, 7),
        prefixes: KeptPrefixes::All,
        reduces: Reduces::Experts,
        source: "as 0.5, and server_args.py of v0.5.7 to v0.5.9 (enable_flashinfer_allreduce_fusion by architecture); layernorm.py: GemmaRMSNorm has \
                 no forward_with_allreduce_fusion before v0.5.10; _handle_mamba_radix_cache, after #11214 and #13584",
        ..SGLANG_SPREAD
    },
    SGLANG_SPREAD,
    SGLANG,
    EnginePreset {
        since: Version(1, 1, 0),
        fusion: Fusion::Exchanges,
        source: "as before, and norms inside of all-reduces (AllReduceFusionOp in tensorrt_llm/_torch/models of 1.1)",
        ..TRTLLM
    },
    TRTLLM,
];

/// Oldest and newest version of every engine of which runs or defaults were looked at.
pub(super) const KNOWN: [(&str, [Version; 2]); 3] = [
    ("vllm", [Version(0, 9, 0), Version(0, 28, 0)]),
    ("sglang", [Version(0, 5, 0), Version(0, 5, 23)]),
    ("trtllm", [Version(1, 0, 0), Version(1, 3, 0)]),
];

/// First days of releases from which on a preset differs, with the release before. Source: release notes of sgl-project/sglang, v0.5.10; the first published run of
/// vLLM 0.17 (SemiAnalysisAI/InferenceX @ a58dedd5a); the package of vLLM 0.20.0; the first image with vLLM 0.28.0 (coreweave/ml-containers#218).
pub(super) const RELEASES: [(&str, &str, Version); 4] = [
    ("sglang", "2026-04-06", Version(0, 5, 9)),
    ("vllm", "2026-03-11", Version(0, 16, 0)),
    ("vllm", "2026-04-27", Version(0, 19, 0)),
    ("vllm", "2026-08-26", Version(0, 27, 1)),
];
