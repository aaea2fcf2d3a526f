//! What an engine does otherwise where it drafts tokens.

use super::reserve::DraftReserve;
use super::{EnginePreset, Sizes};
use crate::step_cost::host::{EngineLoop, RoundLaunches};

/// What an engine does otherwise where it drafts tokens, and nobody says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithDrafts {
    /// Sequences that run at once on all ranks of data-parallel attention together; as without drafts where there is no number.
    pub sequences_max: Option<u32>,
    /// Its loop beside drafts one behind the other, and beside a tree or words of the text; as without drafts where there is none.
    pub loops: Option<[EngineLoop; 2]>,
    /// Memory that is kept for them, where the share of memory is a reserve.
    pub reserve: DraftReserve,
    /// Kernels of a round outside of graphs, where its host does not work ahead.
    pub launches: RoundLaunches,
}

impl WithDrafts {
    /// As without.
    pub const ALIKE: Self =
        Self { sequences_max: None, loops: None, reserve: DraftReserve::NONE, launches: RoundLaunches::NONE };

    /// SGLang: "Max running requests is reset to 48 for speculative decoding", and no overlap with the host before v0.5.11 (`speculative_algorithm` in
    /// server_args.py of 0.4.6 to 0.5.12). `SGLANG_ENABLE_SPEC_V2` switches the overlap on, and is the default from 0.5.11 on; trees and n-grams have none.
    ///
    /// Kernels are counted in v0.5.6 for a chain, the most likely token and blocks of one token (`EAGLEWorker` in eagle_worker.py; `verify`,
    /// `prepare_extend_after_decode` and `prepare_for_verify` in eagle_info.py; `replay` of the graphs' runners; `init_forward_metadata_replay_cuda_graph` in
    /// flashattention_backend.py). The host waits twice in a round: for accepted tokens (`accept_index.tolist()`), and for lengths behind the first pass
    /// (`torch.sum(batch.seq_lens).item()`). A tree has more kernels, which are not counted.
    pub const SGLANG: Self = Self {
        sequences_max: Some(48),
        loops: Some([EngineLoop::Serial; 2]),
        reserve: DraftReserve { model: 6, layers: 2 },
        launches: RoundLaunches { accepted: 47, drafts: 9, later_draft: 7, verification: 20 },
    };
}

impl EnginePreset {
    /// Sequences of an iteration on each rank of data-parallel attention, of those that the engine takes by itself.
    pub fn sequences_of_rank(&self, sizes: &Sizes, n_ranks: u32, drafts: bool) -> u32 {
        match self.with_drafts.sequences_max.filter(|_| drafts) {
            // `max_running_requests // dp_size` in managers/tp_worker.py and model_runner.py.
            Some(all) => (all / n_ranks.max(1)).max(1),
            None => sizes.sequences_max,
        }
    }

    /// Its loop: without drafts, beside a chain of them, or beside others.
    pub fn loop_beside(&self, is_chain: Option<bool>) -> EngineLoop {
        let of_drafts = is_chain.zip(self.with_drafts.loops);
        of_drafts.map_or(self.engine_loop, |(is_chain, [chain, other])| if is_chain { chain } else { other })
    }
}
