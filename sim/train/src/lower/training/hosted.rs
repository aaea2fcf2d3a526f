//! Shares of parameters that lie on the host: before a layer is gathered its share comes over the host link, and that of the next layers beside the pass.
//!
//! Sources: ZeRO-Infinity (arXiv:2104.07857, section 5), deepspeedai/DeepSpeed (`runtime/zero/partition_parameters.py`: a partition is copied to the device
//! in front of its all-gather). Unit: bytes.

use super::{Builder, Column, Frame};
use crate::problem::Problem;
use crate::schedule::PassKind;
use crate::stage::Stage;
use engine::task::CopyKind;

impl Builder<'_> {
    /// A pass waits for the share of its first layer, and goes no faster than the copies of the rest.
    pub(super) fn fetch(&mut self, frame: &Frame<'_>, column: &Column, kind: PassKind) {
        let problem = self.at(frame.pp);
        if !problem.hosts_parameters() || kind == PassKind::Weight {
            return;
        }
        let [first, rest] = shares(problem, &frame.stage, kind);
        for &lane in &column.lanes {
            let tail = self.tail(lane);
            let lead = self.copy(frame, lane, CopyKind::HostToDevice, first, &tail);
            let beside = self.copy(frame, lane, CopyKind::HostToDevice, rest, &[lead]);
            self.gate[lane.index()].push(lead);
            self.behind[lane.index()].push(beside);
        }
    }
}

/// Bytes of a rank's shares that a pass copies: of its first layer, with the embedding in forward or the head in backward, and of the other layers.
fn shares(problem: &Problem, stage: &Stage, kind: PassKind) -> [u64; 2] {
    let n_layers = f64::from(stage.n_layers().max(1));
    let layers = share(problem, &Stage { first: false, last: false, ..*stage });
    let is_forward = kind == PassKind::Forward;
    let end = Stage { first: stage.first && is_forward, last: stage.last && !is_forward, ..Stage::default() };
    [layers / n_layers + share(problem, &end), layers - layers / n_layers].map(hw::whole)
}

/// Bytes of a rank's shares of so many layers.
fn share(problem: &Problem, stage: &Stage) -> f64 {
    let (shared, experts) = engine::memory::stage_parameters(&problem.shard(), stage);
    let of_rank = shared / f64::from(problem.layout.n_shards()) + experts / f64::from(problem.layout.n_expert_shards());
    of_rank * problem.held_bytes()
}
