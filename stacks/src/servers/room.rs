//! What a replica has room for, as a server is told of it, and what no server does with keys and values.
//!
//! vLLM refuses to start where one request of the longest allowed length has no room (`check_enough_kv_cache_memory` in `vllm/v1/core/kv_cache_utils.py`).
//! Units: tokens.

use serve::deployment::{Deployment, EngineOptions};

/// The longest request that a server may take: the plan's own limit, as far as there is room for it. `None` where the plan has no limit.
pub(super) fn length(engine: &EngineOptions) -> Option<u64> {
    let block = u64::from(engine.block_tokens.max(1));
    let room = (engine.kv_tokens / block).max(1) * block;
    engine.context_max.map(|most| room.min(most.into()))
}

/// A remark where a server takes shorter requests than the plan allows.
pub(crate) fn other_length(engine: &EngineOptions) -> Option<String> {
    let (planned, tokens) = (engine.context_max?, length(engine)?);
    (tokens < planned.into()).then(|| {
        format!(
            "# Requests of up to {planned} tokens are planned, and there is room for keys and values of {tokens}: the server is told of these.\n\
             # It would not start with more.\n"
        )
    })
}

/// Keys and values that a plan packs for the wire, which no server does.
pub(crate) fn packed(deployments: &[Deployment]) -> Option<String> {
    let ratios = deployments.iter().flat_map(|deployment| &deployment.links).map(|link| link.wire_ratio);
    let ratio = ratios.reduce(f64::min).filter(|ratio| *ratio < 1.0)?;
    Some(format!("keys and values that are packed for the wire (`wire_ratio` {ratio})"))
}
