//! Least recently used: vLLM's free queue (`v1/core/kv_cache_utils.py`), SGLang's and TensorRT-LLM's default.

use super::{Eviction, Usage};

/// The rule.
pub(super) const LRU: Eviction = Eviction {
    name: "lru",
    about: "the prefix that was let go longest ago (vLLM, TensorRT-LLM, SGLang's default)",
    rank: |usage: &Usage| (0, usage.released),
};
