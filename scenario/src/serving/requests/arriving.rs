//! When requests come, as `[trace]` says it: by a rate, as recorded, all at once, or so many held in flight.

use serve::arrivals::{self, Schedule};

use super::super::schedule;
use input::reader::Section;

/// Words of `arrivals`.
const ARRIVALS: [&str; 5] = ["poisson", "gamma", "replay", "together", "held"];
/// Positions of `poisson` and `gamma`, which have a rate.
pub(super) const POISSON: usize = 0;
pub(super) const GAMMA: usize = 1;
/// Position of `replay`.
pub(super) const REPLAY: usize = 2;
/// Position of `together`.
pub(super) const TOGETHER: usize = 3;
/// Position of `held`.
pub(super) const HELD: usize = 4;

/// What the section asks of arrivals.
pub(super) struct AskedArrivals {
    /// Position in `ARRIVALS`.
    pub(super) kind: usize,
    /// When those arrive that arrive together.
    pub(super) at_s: f64,
    /// Requests in flight.
    pub(super) concurrency: u64,
    pub(super) per_s: f64,
    pub(super) cv: f64,
    pub(super) speed: f64,
    pub(super) from_s: f64,
    pub(super) to_s: f64,
    /// The same requests so many times as fast, after the window is cut.
    pub(super) load: f64,
    pub(super) schedule: Option<Schedule>,
}

impl AskedArrivals {
    /// Nothing of a rate, and no window.
    const ANYHOW: Self = Self {
        kind: POISSON,
        at_s: 0.0,
        concurrency: 1,
        per_s: 0.0,
        cv: 1.0,
        speed: 1.0,
        from_s: 0.0,
        to_s: WINDOW_S_MAX,
        load: 1.0,
        schedule: None,
    };
}

/// Latest second of a window.
pub(super) const WINDOW_S_MAX: f64 = arrivals::ARRIVAL_S_MAX;

pub(super) fn asked(section: &mut Section<'_>, has_arrivals: bool) -> AskedArrivals {
    let usual = match (section.has("concurrency"), has_arrivals) {
        (true, _) => HELD,
        (false, true) => REPLAY,
        (false, false) => POISSON,
    };
    let kind = section.word("arrivals", usual, &ARRIVALS);
    match kind {
        POISSON => section.idle(&["cv", "speed"], "`arrivals` that are gamma, or as recorded"),
        GAMMA => section.idle(&["speed"], "`arrivals` as recorded"),
        REPLAY => section.idle(&["rate_per_s", "cv", "schedule"], "`arrivals` that are poisson or gamma"),
        _ => {
            let rated = ["rate_per_s", "cv", "schedule", "speed", "from_s", "to_s", "load"];
            section.idle(&rated, "`arrivals` by a rate, or as recorded");
        }
    }
    if kind != HELD {
        section.idle(&["concurrency"], "`arrivals = \"held\"`");
    }
    if kind != TOGETHER {
        section.idle(&["at_s"], "`arrivals = \"together\"`");
    }
    // What the kind leaves without effect is read all the same, so that it is no unknown key.
    let at_s = section.number("at_s", 0.0, 0.0..=WINDOW_S_MAX);
    let is_held = kind == HELD || section.has("concurrency");
    let concurrency = if is_held { section.count("concurrency", None, 1..=10_000_000).0 } else { 1 };
    let rated = by_rate(section);
    if kind == HELD || kind == TOGETHER {
        return AskedArrivals {
            kind,
            at_s: if kind == TOGETHER { at_s } else { 0.0 },
            concurrency,
            ..AskedArrivals::ANYHOW
        };
    }
    AskedArrivals { kind, concurrency, ..rated }
}

/// What says when requests come by a rate, or as recorded.
fn by_rate(section: &mut Section<'_>) -> AskedArrivals {
    AskedArrivals {
        schedule: schedule::schedule(section),
        per_s: section.number("rate_per_s", 0.0, 1e-6..=1e9),
        cv: section.number("cv", 1.0, 0.01..=100.0),
        speed: section.number("speed", 1.0, 1e-6..=1e6),
        from_s: section.number("from_s", 0.0, 0.0..=WINDOW_S_MAX),
        to_s: section.number("to_s", WINDOW_S_MAX, 1e-3..=WINDOW_S_MAX),
        load: section.number("load", 1.0, 1e-3..=1e3),
        ..AskedArrivals::ANYHOW
    }
}
