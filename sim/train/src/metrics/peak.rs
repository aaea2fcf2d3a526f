//! Memory peaks of played steps, and what was live at the highest one.

use super::Played;
use engine::task::{Moment, TaskGraph};
use engine::timeline::Timeline;

/// Peaks over all lanes and steps, bytes.
pub(super) struct Peaks {
    pub(super) highest: u64,
    pub(super) lowest: u64,
    /// Highest peak less what the lane holds for the whole step: activations, logits, temporary memory.
    pub(super) highest_above_resident: u64,
    /// What the fullest rank held at its peak, and how much of each label that a metric has.
    pub(super) words: String,
    pub(super) parts: Vec<(&'static str, u64)>,
}

/// Labels of what comes and goes that have a metric of their own.
const PARTS: [(&str, &str); 4] = [
    ("recomputed layer", "peak_recomputed_bytes"),
    ("logits", "peak_logits_bytes"),
    ("exchange buffers", "peak_exchange_buffer_bytes"),
    (crate::lower::training::RESERVED, "peak_allocator_free_bytes"),
];

pub(super) fn of_steps(steps: &[Played]) -> Peaks {
    let mut peaks =
        Peaks { highest: 0, lowest: u64::MAX, highest_above_resident: 0, words: String::new(), parts: Vec::new() };
    let mut fullest = None;
    for step in steps {
        for lane in 0..step.graph.lanes.len() {
            let peak = step.timeline.peak_memory_bytes(lane);
            let resident: u64 = step.graph.resident[lane].iter().map(|(_, bytes)| bytes).sum();
            if fullest.is_none() || peak > peaks.highest {
                fullest = Some((step, lane));
            }
            peaks.highest = peaks.highest.max(peak);
            peaks.lowest = peaks.lowest.min(peak);
            peaks.highest_above_resident = peaks.highest_above_resident.max(peak.saturating_sub(resident));
        }
    }
    if let Some((step, lane)) = fullest {
        let live = live(step, lane);
        peaks.parts = live.parts();
        peaks.words = words(step, lane, live);
    }
    peaks
}

/// What a lane holds at its peak.
struct Live {
    /// By label, largest first.
    labels: Vec<(String, u64)>,
    /// The most that its cache gives back in the step.
    given_back: u64,
}

impl Live {
    /// Bytes of the labels that have a metric, where there are any.
    fn parts(&self) -> Vec<(&'static str, u64)> {
        let held = |label: &str| self.labels.iter().filter(|(name, _)| name == label).map(|(_, bytes)| bytes).sum();
        PARTS.iter().map(|(label, key)| (*key, held(label))).filter(|(_, bytes)| *bytes > 0).collect()
    }
}

/// Live memory at a lane's peak.
fn live(step: &Played, lane: usize) -> Live {
    let graph = &step.graph;
    let peak = i64::try_from(step.timeline.peak_memory_bytes(lane)).unwrap_or(i64::MAX);
    let (mut best, mut given_back) = (vec![0; graph.labels.len()], 0);
    watch(graph, &step.timeline, lane, &mut |held| {
        let mut shown = held.to_vec();
        given_back = given_back.max(graph.give_back(&mut shown, peak));
        if total(&shown) > total(&best) {
            best = shown;
        }
    });
    let mut labels: Vec<(String, u64)> =
        graph.labels.iter().cloned().zip(best.iter().map(|bytes| bytes.unsigned_abs())).collect();
    labels.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    Live { labels, given_back: given_back.unsigned_abs() }
}

fn total(held: &[i64]) -> i64 {
    held.iter().sum()
}

/// The most that a lane holds of a device of so many bytes, of which its cache holds what the rest leaves; more than these where the rest does not fit.
pub(crate) fn most_held(graph: &TaskGraph, timeline: &Timeline, lane: usize, device_bytes: i64) -> i64 {
    let mut most = 0;
    watch(graph, timeline, lane, &mut |held| {
        let mut shown = held.to_vec();
        graph.give_back(&mut shown, device_bytes);
        most = most.max(total(&shown));
    });
    most
}

/// Shows what a lane holds by label, to begin with and behind every change, as the engine applied it: by time, ends before starts.
fn watch(graph: &TaskGraph, timeline: &Timeline, lane: usize, seen: &mut dyn FnMut(&[i64])) {
    let mut held = vec![0_i64; graph.labels.len()];
    for &(label, bytes) in &graph.resident[lane] {
        held[label.0 as usize] += i64::try_from(bytes).expect("memory stays below 2^63 bytes");
    }
    let mut effects: Vec<_> = graph
        .effects
        .iter()
        .filter(|effect| graph.tasks[effect.task.0 as usize].lane.index() == lane)
        .map(|effect| {
            let task = effect.task.0 as usize;
            match effect.moment {
                Moment::End => (timeline.end[task], 0, effect),
                Moment::Start => (timeline.start[task], 1, effect),
            }
        })
        .collect();
    effects.sort_by_key(|(at, moment, effect)| (*at, *moment, effect.task));
    seen(&held);
    for (_, _, effect) in effects {
        held[effect.label.0 as usize] += effect.delta_bytes;
        seen(&held);
    }
}

fn words(step: &Played, lane: usize, Live { labels: live, given_back }: Live) -> String {
    let total: u64 = live.iter().map(|(_, bytes)| bytes).sum();
    let (large, small): (Vec<_>, Vec<_>) = live.into_iter().partition(|(_, bytes)| *bytes * 20 >= total);
    let others = ("others".to_owned(), small.iter().map(|(_, bytes)| bytes).sum());
    let shown: Vec<String> = large
        .into_iter()
        .chain([others])
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(label, bytes)| format!("{label} {:.1}", hw::real(bytes) / hw::GIB))
        .collect();
    let peak = format!("memory peaks on rank {} with {} GiB", step.graph.lanes[lane].rank.0, shown.join(", "));
    if given_back == 0 {
        return peak;
    }
    // Giving back waits for the device (`cudaFree`), and what was given back is asked for again.
    let gib = hw::real(given_back) / hw::GIB;
    format!(
        "{peak}; the card is full: PyTorch's allocator gives up to {gib:.1} GiB back and tries again, which slows steps and is not counted"
    )
}
