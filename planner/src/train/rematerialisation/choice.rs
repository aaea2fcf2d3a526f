//! What is evicted once sizes are known: least recompute below a limit.
//!
//! The manager of the paper plays the step at the limit. A lower limit may by chance cost less, and what costs less at a lower limit fits
//! a higher one too; so a searched choice plays the step at limits from the natural peak down to the largest working set, which do not
//! depend on the limit that is asked for, and takes the cheapest way that fits. Checks on the host cost time as well, and programs have more or fewer of them.
//! So a program that fits as it is does not hide another one with fewer checks. Invariant: more room never costs more time.

use train::tensor_graph::TensorGraph;
use train::tensor_graph::bound::of_working_sets;
use train::tensor_graph::play::{AtSizes, Eviction, Played, play};

use super::Compiled;
use crate::proof::{self, Aim, Decision};

/// Limits at which a searched choice plays, per program and rule.
const LIMITS: u64 = 32;

/// Who decides at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// The eviction manager at the limit itself.
    AtLimit(Eviction),
    /// The cheapest of many limits and these rules.
    Searched(&'static [Eviction]),
}

/// One way to run a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Position of the program among those that were compiled.
    pub program: usize,
    /// Limit at which it was played.
    pub limit: u64,
    /// Rule of its evictions.
    pub rule: Eviction,
    /// Time of what is computed again, nanoseconds.
    pub again_ns: u64,
    /// Time of the program's checks on the host, nanoseconds.
    pub checks_ns: u64,
    /// What happens.
    pub played: Played,
    /// Bytes by which its peak misses the limit that was asked for; 0 where it fits.
    pub residual_bytes: u64,
}

impl Way {
    /// What a step takes longer than each operation once, nanoseconds.
    const fn added_ns(&self) -> u64 {
        self.again_ns + self.checks_ns
    }
}

/// Chooses for these sizes: least recompute and checks, each of which takes so long, below the limit; and where nothing fits, the lowest peak. The runner-up is
/// the next best that fits.
///
/// # Panics
/// When nothing was compiled.
pub fn choose(
    graph: &TensorGraph,
    compiled: &Compiled,
    at: &AtSizes,
    (limit, check_ns): (u64, u64),
    manager: Manager,
) -> Decision<Way> {
    let rules = match manager {
        Manager::AtLimit(rule) => vec![rule],
        Manager::Searched(rules) => rules.to_vec(),
    };
    let asked = limit;
    let way = |program: usize, limit: u64, rule: Eviction| {
        let played = play(graph, &compiled.programs[program], at, limit, rule);
        let residual_bytes = played.peak_bytes.saturating_sub(asked);
        let checks_ns = compiled.programs[program].n_checks() as u64 * check_ns;
        Way { program, limit, rule, again_ns: played.again(&at.ns), checks_ns, played, residual_bytes }
    };
    let floor = of_working_sets(graph, &at.bytes).bytes;
    let mut ways: Vec<Way> = Vec::new();
    for program in 0..compiled.programs.len() {
        let natural = way(program, u64::MAX, rules[0]);
        let peak = natural.played.peak_bytes;
        let fits = natural.residual_bytes == 0;
        ways.push(natural);
        let limits: Vec<u64> = match manager {
            _ if fits => Vec::new(),
            Manager::AtLimit(_) => vec![limit],
            Manager::Searched(_) => {
                (1..=LIMITS).map(|part| peak - peak.saturating_sub(floor) / LIMITS * part).collect()
            }
        };
        for &rule in &rules {
            ways.extend(limits.iter().map(|limit| way(program, *limit, rule)));
        }
    }
    best(ways)
}

fn best(mut ways: Vec<Way>) -> Decision<Way> {
    let one = "a program was compiled";
    if ways.iter().all(|way| way.residual_bytes > 0) {
        let peaks = ways.into_iter().map(|way| (hw::real(way.played.peak_bytes), way)).collect();
        return proof::ranked(Aim::Bytes, peaks, Way::added_ns, |_, _| false).expect(one);
    }
    ways.retain(|way| way.residual_bytes == 0);
    let times = ways.into_iter().map(|way| (hw::Span::from_ns(way.added_ns()).to_seconds().get(), way)).collect();
    let is_other = |other: &Way, best: &Way| other.played.events != best.played.events;
    proof::ranked(Aim::Seconds, times, |way| (way.added_ns(), way.played.peak_bytes), is_other).expect(one)
}
