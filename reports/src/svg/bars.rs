//! Bars: how each rank spends the step, and the speed-up of each policy.
//!
//! Definitions as for the metrics: busy is compute time, exposed is time in which only the network is busy, and the
//! rest is idle (waiting for others). The three add up to the step.

use std::fmt::Write as _;

use engine::task::Stream;
use hw::Time;

use super::{BLUE, END, MIDDLE, ORANGE, VERMILION, WIDTH, legend, open, px, shown_ranks, text};
use crate::lanes::{self, Stands};
use crate::quantity::{float, float_of, percent, ratio, shortened};
use crate::{Picture, RunResult};

const RANKS_MAX: usize = 128;
const LEFT: f64 = 78.0;
const TOP: f64 = 34.0;
const PLOT_HEIGHT: f64 = 200.0;
/// Room that the figure beside a bar takes.
const FIGURE_WIDTH: f64 = 48.0;

/// How one rank spends the step, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Compute stream busy.
    pub busy_ns: u64,
    /// Network busy and compute not.
    pub exposed_ns: u64,
}

/// Spent time of every rank.
pub(crate) fn spent(picture: &Picture<'_>) -> Vec<Spent> {
    let n_ranks = picture.graph.lanes.len();
    let mut compute: Vec<Vec<(Time, Time)>> = vec![Vec::new(); n_ranks];
    let mut either = compute.clone();
    for (index, task) in picture.graph.tasks.iter().enumerate() {
        let interval = (picture.timeline.start[index], picture.timeline.end[index]);
        match task.stream {
            Stream::Compute => {
                compute[task.lane.index()].push(interval);
                either[task.lane.index()].push(interval);
            }
            Stream::IntraNode | Stream::InterNode | Stream::Gradients => either[task.lane.index()].push(interval),
            Stream::HostToDevice | Stream::DeviceToHost | Stream::PointToPoint | Stream::Back | Stream::OnTheWay => {}
        }
    }
    let of_rank = |(compute, either): (Vec<_>, Vec<_>)| {
        let busy_ns = covered_ns(compute);
        Spent { busy_ns, exposed_ns: covered_ns(either) - busy_ns }
    };
    compute.into_iter().zip(either).map(of_rank).collect()
}

/// Length of the union of intervals.
fn covered_ns(mut intervals: Vec<(Time, Time)>) -> u64 {
    intervals.sort_unstable();
    let mut covered = 0;
    let mut until = Time::ZERO;
    for (start, end) in intervals {
        let from = start.max(until);
        if end > from {
            covered += (end - from).as_ns();
            until = end;
        }
    }
    covered
}

/// Stacked bars per rank, by number: busy, exposed communication, idle; a line at the mean of busy over all ranks. Workers of the host
/// follow, and count in no mean.
pub fn rank_bars(picture: &Picture<'_>) -> String {
    let all = spent(picture);
    let span = float(picture.timeline.span().as_ns());
    if all.is_empty() || span == 0.0 {
        return String::new();
    }
    let busiest = (0..all.len()).max_by_key(|&rank| (all[rank].busy_ns, all.len() - rank));
    let idlest = (0..all.len()).min_by_key(|&rank| (all[rank].busy_ns, rank));
    let mut ranks = shown_ranks(all.len(), RANKS_MAX, &busiest.into_iter().chain(idlest).collect::<Vec<_>>());
    let (lanes, stands, names) = (&picture.graph.lanes, lanes::stands(picture.graph), lanes::names(picture.graph));
    ranks.sort_by_key(|&lane| (stands[lane] != Stands::Ranks, lanes[lane].rank.0, lane));
    let mut out = open(282, &format!("Busy, communicating and idle time of each rank under {}", picture.policy));
    let entries = [("computing", BLUE), ("exposed communication", ORANGE), ("idle", "none")];
    out.push_str(&legend(&entries, 78, 16));
    percent_axis(&mut out);
    let pitch = (f64::from(WIDTH) - LEFT - 12.0) / float_of(ranks.len());
    let width = (pitch * 0.8).min(60.0);
    let label_every = ranks.len().div_ceil(32);
    for (index, &rank) in ranks.iter().enumerate() {
        let x = LEFT + pitch * float_of(index) + (pitch - width) / 2.0;
        let busy = float(all[rank].busy_ns) / span;
        let exposed = float(all[rank].exposed_ns) / span;
        bar(&mut out, (x, width), (busy, exposed), &names[rank]);
        if index % label_every == 0 {
            let attributes = format!("{MIDDLE} font-size=\"12\"");
            let number = match stands[rank] {
                Stands::Ranks => lanes[rank].rank.0.to_string(),
                Stands::Worker(number) => format!("w{number}"),
            };
            let _ = writeln!(out, "{}", text((x + width / 2.0, 252.0), &attributes, &number));
        }
    }
    let mean = mean_busy(picture, &all, &stands) / span;
    let below = if stands.iter().all(|lane| *lane == Stands::Ranks) { "rank" } else { "rank; w: worker of the host" };
    let _ = writeln!(
        out,
        "<path d=\"M{LEFT} {}H{}\" stroke=\"{VERMILION}\" stroke-width=\"2\" stroke-dasharray=\"6 4\"/>\
         <text x=\"{}\" y=\"16\" text-anchor=\"end\">dashed: mean computing, {}</text>\
         <text x=\"{}\" y=\"274\" text-anchor=\"middle\">{below}</text>\n</svg>",
        px(TOP + PLOT_HEIGHT * (1.0 - mean)),
        WIDTH - 12,
        WIDTH - 12,
        percent(mean),
        WIDTH / 2
    );
    out
}

/// Mean time in which a rank computes, nanoseconds: a lane counts as often as it has ranks.
fn mean_busy(picture: &Picture<'_>, all: &[Spent], stands: &[Stands]) -> f64 {
    let (mut busy, mut n_ranks) = (0.0, 0.0);
    for ((lane, spent), _) in
        picture.graph.lanes.iter().zip(all).zip(stands).filter(|(_, stands)| **stands == Stands::Ranks)
    {
        busy += f64::from(lane.multiplicity) * float(spent.busy_ns);
        n_ranks += f64::from(lane.multiplicity);
    }
    busy / f64::max(n_ranks, 1.0)
}

fn percent_axis(out: &mut String) {
    for quarter in 0..=4_u32 {
        let y = TOP + PLOT_HEIGHT * (1.0 - f64::from(quarter) / 4.0);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {}H{}\" stroke=\"currentColor\" stroke-opacity=\".2\"/>\
             <text x=\"70\" y=\"{}\" text-anchor=\"end\">{} %</text>",
            px(y),
            WIDTH - 12,
            px(y + 4.0),
            quarter * 25
        );
    }
}

fn bar(out: &mut String, (x, width): (f64, f64), (busy, exposed): (f64, f64), name: &str) {
    let idle = (1.0 - busy - exposed).max(0.0);
    let title = format!(
        "{name}: computing {}, exposed communication {}, idle {}",
        percent(busy),
        percent(exposed),
        percent(idle)
    );
    let (left, wide) = (px(x), px(width));
    let part = |top: f64, share: f64| (px(TOP + PLOT_HEIGHT * top), px(PLOT_HEIGHT * share));
    let (busy_top, busy_height) = part(1.0 - busy, busy);
    let (exposed_top, exposed_height) = part(idle, exposed);
    let (frame_top, frame_height) = part(0.0, 1.0);
    let _ = writeln!(
        out,
        "<g><title>{title}</title>\
         <rect x=\"{left}\" y=\"{frame_top}\" width=\"{wide}\" height=\"{frame_height}\" fill-opacity=\".07\"/>\
         <rect x=\"{left}\" y=\"{busy_top}\" width=\"{wide}\" height=\"{busy_height}\" fill=\"{BLUE}\"/>\
         <rect x=\"{left}\" y=\"{exposed_top}\" width=\"{wide}\" height=\"{exposed_height}\" fill=\"{ORANGE}\"/></g>"
    );
}

/// A bar per policy that has a speed-up, the baseline's length marked; empty where there is none, and where one policy stands alone.
pub fn speedup_bars(run: &RunResult) -> String {
    if run.is_of_one() {
        return String::new();
    }
    let bars: Vec<(&str, f64)> = run
        .results
        .iter()
        .filter_map(|result| Some((result.policy.as_str(), *run.speedup_ratio.get(&result.policy)?)))
        .filter(|(_, value)| value.is_finite() && *value >= 0.0)
        .collect();
    let largest = bars.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    if bars.is_empty() {
        return String::new();
    }
    let n_bars = u32::try_from(bars.len()).expect("fewer than 2^32 policies");
    let mut out = open(n_bars * 28 + 36, &format!("Speed-up of each policy relative to {}", run.against()));
    let (left, room) = (220.0, f64::from(WIDTH) - 220.0 - 90.0);
    let line = left + room / largest;
    for (index, (name, value)) in bars.iter().enumerate() {
        let top = 8.0 + 28.0 * float_of(index);
        let width = room * value / largest;
        out.push_str(&text((left - 8.0, top + 15.0), END, &shortened(name, 28)));
        out.push_str(&super::bar([left, top, width, 20.0], BLUE, ""));
        // A figure that would lie on the dashed line stands behind it.
        let beside = left + width + 8.0;
        let is_struck = (beside - 2.0..beside + FIGURE_WIDTH).contains(&line);
        let beside = if is_struck { line + 8.0 } else { beside };
        let _ = writeln!(out, "{}", text((beside, top + 15.0), "", &format!("{}×", ratio(*value))));
    }
    let bottom = 8 + 28 * n_bars;
    let words = format!("1× = {}", shortened(run.against(), 48));
    // In the middle below its line, but not beyond the picture.
    let half = 3.8 * float_of(words.chars().count());
    let middle = line.min(f64::from(WIDTH) - 8.0 - half);
    let _ = writeln!(
        out,
        "<path d=\"M{} 2V{bottom}\" stroke=\"{VERMILION}\" stroke-width=\"2\" stroke-dasharray=\"6 4\"/>{}\n</svg>",
        px(line),
        text((middle, f64::from(bottom) + 18.0), MIDDLE, &words)
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_intervals_are_covered_once() {
        let at = Time::from_ns;
        // [0, 4) and [2, 6) cover 6, [8, 9) covers 1.
        assert_eq!(covered_ns(vec![(at(8), at(9)), (at(2), at(6)), (at(0), at(4))]), 7);
        assert_eq!(covered_ns(Vec::new()), 0);
    }
}
