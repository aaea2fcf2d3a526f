//! Recipes of the runs that AIPerf loaded: what the generator of their configurations writes. Units: tokens, sequences.

use serve::engine_preset::{GraphRule, Version};
use serve::memory_rule::MemoryRule;

use super::{ANY, Amount, IN_FLIGHT, Of, PLAIN, Recipe, fixed};

const GENERATED: Of = Of { client: "aiperf", ..ANY };

/// Source of the generated configurations.
const RULES: &str = "ai-dynamo/aiconfigurator @ bc171bc3f, src/aiconfigurator/generator/rule_plugin: captured batches 1 to the largest; that these \
                     runs were started so is assumed. Its max_num_tokens = batch + isl + 1500 would hold two prompts of 1024 tokens, and the runs say \
                     that one was computed at a time";

/// Tokens for the decoding sequences and one prompt of 1024 tokens or more.
const ONE_PROMPT: Amount = Amount { fixed: 512, per_request: 1, per_prompt_token: 1, at_least: 1 };

const EACH_CAPTURED: Recipe =
    Recipe { sequences_max: Some(IN_FLIGHT), graphs: Some((GraphRule::Each, IN_FLIGHT)), ..PLAIN };

pub(super) static RECIPES: [Recipe; 4] = [
    Recipe { of: Of { engine: "vllm", ..GENERATED }, tokens_max: Some(ONE_PROMPT), source: RULES, ..EACH_CAPTURED },
    Recipe {
        of: Of { engine: "sglang", since: Version(0, 5, 6), ..GENERATED },
        batcher: Some("trtllm"),
        tokens_max: Some(Amount { fixed: 1500, per_request: 0, per_prompt_token: 1, at_least: 1 }),
        source: "ai-dynamo/aiconfigurator @ 07a377923, src/aiconfigurator/generator/rule_plugin/sglang.rule: enable_mixed_chunk, \
                 max_prefill_tokens = isl + 1500, so whole prompts join the decoding sequences; that newer runs were started so is assumed",
        ..EACH_CAPTURED
    },
    Recipe {
        of: Of { engine: "sglang", ..GENERATED },
        tokens_max: Some(fixed(16_384)),
        source: "the default of --max-prefill-tokens; the generated rule (isl + 1500) would part the prompts of 16 requests in flight, and \
                 the 43 runs in 16 bit say that they are computed together",
        ..EACH_CAPTURED
    },
    Recipe {
        of: Of { engine: "trtllm", ..GENERATED },
        tokens_max: Some(ONE_PROMPT),
        memory: Some(MemoryRule::OfFree(0.8)),
        // `enable_block_reuse` is false in the templates unless somebody asks for a prefix.
        prefix_cache: Some(false),
        source: RULES,
        ..EACH_CAPTURED
    },
];
