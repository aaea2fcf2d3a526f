//! Lanes as people name them: by their first rank, or as a worker of the host that prepares batches.

use engine::task::{Op, Role};
use engine::{TaskGraph, task::Lane};

/// What a lane stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    /// Ranks that act alike.
    Ranks,
    /// A worker of the host with its number.
    Worker(usize),
}

/// What each lane stands for. A worker does nothing but prepare batches on the host; its rank is that of its GPU.
pub(crate) fn stands(graph: &TaskGraph) -> Vec<Stands> {
    let mut is_worker: Vec<Option<bool>> = vec![None; graph.lanes.len()];
    for task in &graph.tasks {
        let prepares = task.role == Role::Sampling && matches!(graph.ops[task.op.0 as usize], Op::Host { .. });
        let so_far = &mut is_worker[task.lane.index()];
        *so_far = Some(so_far.unwrap_or(true) && prepares);
    }
    let mut n_workers = 0;
    let mut numbered = |is_worker: Option<bool>| {
        if is_worker != Some(true) {
            return Stands::Ranks;
        }
        n_workers += 1;
        Stands::Worker(n_workers - 1)
    };
    is_worker.into_iter().map(&mut numbered).collect()
}

/// Names of all lanes: `rank 8`, `rank 8 ×4` for four that act alike, `worker 3`.
pub(crate) fn names(graph: &TaskGraph) -> Vec<String> {
    graph.lanes.iter().zip(stands(graph)).map(|(lane, stands)| name(lane, stands)).collect()
}

fn name(lane: &Lane, stands: Stands) -> String {
    match (stands, lane.multiplicity) {
        (Stands::Worker(number), _) => format!("worker {number}"),
        (Stands::Ranks, 1) => format!("rank {}", lane.rank.0),
        (Stands::Ranks, n) => format!("rank {} ×{n}", lane.rank.0),
    }
}

#[cfg(test)]
mod tests {
    use engine::task::{LaneId, Stream, Task};

    use super::*;

    #[test]
    fn a_lane_that_only_prepares_batches_is_a_worker() {
        let mut graph = TaskGraph::new(4);
        graph.lanes[1].multiplicity = 8;
        // Both workers stand beside the first GPU.
        (graph.lanes[2].rank, graph.lanes[3].rank) = (graph.lanes[0].rank, graph.lanes[0].rank);
        let (host, kernel) = (graph.add_op(Op::Host { ns: 1 }), graph.add_op(Op::Elementwise { bytes: 1 }));
        for (lane, op, role) in [
            (0, kernel, Role::Forward),
            (1, kernel, Role::Sampling),
            (2, host, Role::Sampling),
            (3, host, Role::Sampling),
        ] {
            let (lane, stream) = (LaneId(lane), Stream::Compute);
            graph.add_task(Task { op, lane, stream, role, micro_batch: 0, meeting: None }, &[]);
        }
        // A GPU that samples is a rank.
        assert_eq!(names(&graph), ["rank 0", "rank 1 ×8", "worker 0", "worker 1"]);
    }
}
