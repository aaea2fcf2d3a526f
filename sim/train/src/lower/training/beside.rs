//! What runs beside a pass on a rank and makes it longer: the host that launches its kernels, exchanges that take a part of the device, and gathers
//! of the parameters of its next layers.

use super::Builder;
use crate::problem::{Module, Problem};
use crate::schedule::PassKind;
use crate::stage::Stage;
use engine::task::{LaneId, Op, Ops, TaskId};

impl Builder<'_> {
    /// Layers compute while the next ones are gathered, so that a pass goes no faster than its gathers: what follows on the lane waits for them.
    pub(super) fn hold(&mut self, lane: LaneId, gathered: Option<&[TaskId; 2]>) {
        let mut behind = std::mem::take(&mut self.behind[lane.index()]);
        behind.extend(gathered.map(|pair| pair[1]));
        if !behind.is_empty() {
            let last = self.last[lane.index()];
            self.gate[lane.index()].extend(last.into_iter().chain(behind));
        }
    }

    /// Computation beside an overlapped exchange takes longer.
    pub(super) fn slowed(&self, problem: &Problem, ops: Ops, n_overlapped: usize) -> Ops {
        let permille = hw::whole(problem.execution.overlap.slowdown * 1000.0);
        if n_overlapped == 0 || permille <= 1000 || ops.is_empty() {
            return ops;
        }
        let permille = u32::try_from(permille).expect("a slowdown is small");
        vec![(Op::Slowed { parts: ops, permille }, 1)]
    }
}

/// Operations of the layers of a stage whose kernels the host launches meanwhile.
pub(super) fn launched(problem: &Problem, ops: Ops, stage: &Stage, kind: PassKind) -> Ops {
    let captured = problem.execution.launches.captured;
    let of = |n: u32, with_experts: bool| n * engine::launch::of_layer(&problem.shard(), captured, with_experts, kind);
    // Layers without a feed-forward are in the graphs of their mixers.
    let n_dense = if problem.model.is_hybrid() { 0 } else { stage.n_dense };
    let sharded = super::torch::sharded_launches(problem, stage, kind);
    let n_counted = if kind == PassKind::Forward { stage.n_expert } else { 0 };
    launched_as(problem, ops, of(n_dense, false) + of(stage.n_expert, true) + sharded, n_counted)
}

/// The same of the modules of a stage's layers that backward computes again by themselves.
pub(super) fn launched_again(problem: &Problem, ops: Ops, stage: &Stage) -> Ops {
    let captured = problem.execution.launches.captured;
    let of = |n: u32, with_experts: bool| n * engine::launch::of_recomputed(&problem.shard(), captured, with_experts);
    let counts_again = problem.execution.recompute.modules().has(Module::Experts);
    let n_counted = if counts_again { stage.again_expert } else { 0 };
    launched_as(problem, ops, of(stage.again_dense, false) + of(stage.again_expert, true), n_counted)
}

/// Operations beside so many launches. In so many layers the host waits for counts of tokens, and the device then for the launches behind them.
fn launched_as(problem: &Problem, mut ops: Ops, n_launches: u32, n_counted: u32) -> Ops {
    let each = problem.execution.launches.each * engine::launch::share(&problem.shard());
    if each == hw::Seconds::ZERO || n_launches == 0 || ops.is_empty() {
        return ops;
    }
    let waited = engine::launch::single::waited(&problem.shard());
    ops.extend(engine::layer::host(each * f64::from(waited), n_counted));
    let ns = hw::Span::from_seconds(each * f64::from(n_launches)).as_ns();
    vec![(Op::Launched { parts: ops, ns }, 1)]
}
