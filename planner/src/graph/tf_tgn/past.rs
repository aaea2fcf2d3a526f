//! What queries find before them: from events that are there, or from degrees alone.

use engine::random;
use graph::distribution::{Degrees, drawn};
use graph::host::log2;
use graph::tcsr::{Event, EventError, Reverse, TCsr, Take};

use super::{Past, SEQUENCES_PER_EVENT};

/// Queries that are looked at.
const N_QUERIES: usize = 2000;

/// The past of events, by converting and sampling them.
///
/// # Errors
/// When events are no temporal graph.
pub fn of_events(
    n_vertices: u32,
    events: &[Event],
    reverse: Reverse,
    (neighbours, batches): (&[u32], &[u32]),
    take: Take,
) -> Result<Past, EventError> {
    let graph = TCsr::convert(n_vertices, events, reverse)?;
    let rows = graph.row_lengths();
    let step = events.len().div_ceil(N_QUERIES).max(1);
    let (mut before, mut log2_length, mut n) = (0.0, 0.0, 0.0);
    for event in events.iter().step_by(step) {
        for vertex in [event.source, event.target] {
            before += hw::real(graph.before(vertex, event.time).len() as u64);
            log2_length += log2(hw::real(graph.degree(vertex)));
            n += 1.0;
        }
    }
    let found = neighbours
        .iter()
        .map(|&k| (found(&graph, events, k, step), distinct(&graph, events, k, batches, take)))
        .collect();
    let words = format!("{} events of {n_vertices} vertices, converted and sampled", events.len());
    let roots = batches.iter().map(|batch| roots(n_vertices, middle(events, *batch))).collect();
    Ok(Past { rows, before: before / n, log2_length: log2_length / n, found, roots, words })
}

/// A batch in the middle of the events.
fn middle(events: &[Event], batch: u32) -> &[Event] {
    let middle = events.len() / 2;
    &events[middle..(middle + batch as usize).min(events.len())]
}

/// Share of the queried nodes of a batch that are distinct; the third of an event is drawn from all vertices.
fn roots(n_vertices: u32, batch: &[Event]) -> f64 {
    let n = hw::real(batch.len() as u64);
    let mut ends: Vec<u32> = batch.iter().flat_map(|event| [event.source, event.target]).collect();
    ends.sort_unstable();
    ends.dedup();
    (hw::real(ends.len() as u64) + drawn(n, f64::from(n_vertices))) / (hw::real(SEQUENCES_PER_EVENT) * n)
}

/// Mean neighbours that queries find.
fn found(graph: &TCsr, events: &[Event], k: u32, step: usize) -> f64 {
    let (mut sum, mut n) = (0, 0);
    for event in events.iter().step_by(step) {
        for vertex in [event.source, event.target] {
            sum += (graph.before(vertex, event.time).len() as u64).min(u64::from(k));
            n += 1;
        }
    }
    hw::real(sum) / hw::real(n)
}

/// Share of the neighbours of a batch in the middle of the events that are distinct, for every batch.
fn distinct(graph: &TCsr, events: &[Event], k: u32, batches: &[u32], take: Take) -> Vec<f64> {
    let mut shares = Vec::with_capacity(batches.len());
    for &batch in batches {
        let batch = middle(events, batch);
        let queries: Vec<(u32, u64)> =
            batch.iter().flat_map(|event| [(event.source, event.time), (event.target, event.time)]).collect();
        let sampled = graph.sample_all(&queries, k as usize, take, &random::stream(0, "past"));
        let mut all: Vec<u32> = sampled.iter().flatten().map(|past| past.neighbour).collect();
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        shares.push(if n == 0 { 1.0 } else { hw::real(all.len() as u64) / hw::real(n as u64) });
    }
    shares
}

/// The past of a graph of which only degrees are known: queries and neighbours meet a vertex by its slots, half of which lie before.
pub fn of_degrees(degrees: &Degrees, neighbours: &[u32], batches: &[u32]) -> Past {
    let n_slots = degrees.n_slots();
    let by_slots = |value: &dyn Fn(f64) -> f64| -> f64 {
        degrees.classes.iter().map(|class| class.count * class.degree / n_slots * value(class.degree)).sum()
    };
    let mut found = Vec::with_capacity(neighbours.len());
    for &k in neighbours {
        let mean = by_slots(&|degree| (degree / 2.0).min(f64::from(k)));
        let share = |&batch: &u32| {
            let n = mean * f64::from(batch) * hw::real(SEQUENCES_PER_EVENT);
            degrees.met(n) / n
        };
        found.push((mean, batches.iter().map(share).collect()));
    }
    let share = |&batch: &u32| {
        let n = f64::from(batch);
        (degrees.met(2.0 * n) + drawn(n, degrees.n_vertices())) / (hw::real(SEQUENCES_PER_EVENT) * n)
    };
    Past {
        roots: batches.iter().map(share).collect(),
        rows: degrees.classes.iter().map(|class| (class.degree, class.count)).collect(),
        before: by_slots(&|degree| degree / 2.0),
        log2_length: by_slots(&log2),
        found,
        words: format!("{:.3e} slots of {:.3e} vertices by their degrees", n_slots, degrees.n_vertices()),
    }
}
