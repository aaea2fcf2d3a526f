//! How routers of Dynamo take a request through replicas that compute prompts and replicas that decode: data, with sources.

use crate::replica::FirstToken;

/// How a request goes through replicas that compute prompts and replicas that decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitServing {
    /// Who gives its first token.
    pub first_token: FirstToken,
    /// Engines whose starts it waits for, one after another. That the second start takes as long as the first is an assumption.
    pub n_starts: u32,
    /// Where this stands.
    pub source: &'static str,
}

/// Dynamo's router asks one engine after the other, and streams all tokens from the one that decodes.
pub(super) const IN_TURN: SplitServing = SplitServing {
    first_token: FirstToken::Decode,
    n_starts: 2,
    source: "ai-dynamo/dynamo @ 007ddea7b6f7, PrefillRouter::generate in lib/llm/src/kv_router/prefill_router.rs: it waits for the answer of the engine \
             that computes the prompt, and only then asks the one that decodes, whose tokens the client gets",
};

/// The router asks both at once, because the first has announced where it hands over.
pub(super) const AT_ONCE: SplitServing = SplitServing {
    n_starts: 1,
    source: "ai-dynamo/dynamo @ 007ddea7b6f7, PrefillRouter::generate in lib/llm/src/kv_router/prefill_router.rs: with the bootstrap information of SGLang \
             it asks both engines at once; the client gets the tokens of the one that decodes",
    ..IN_TURN
};
