//! Replicas that run both phases: what the split is compared with.
//!
//! Of one machine (vLLM): as many equal replicas as it holds. Over machines (HexGen, arXiv:2311.11514): any groups of GPUs with stages of
//! their own degree; the best partition by dynamic programming over the GPUs that are left, where HexGen searches by mutation. Rates
//! are closed forms of means. Of equal replicas the few of every machine that serve most by them are played, because means hide tails. Units: requests per
//! second within the targets.

use std::collections::BTreeMap;

use super::group::{self, Replica};
use super::played::{self, Groups, Trial};
use super::{RentalError, Task};
use crate::proof::{self, Aim, Decision};

/// Vectors of GPUs left that the partition looks at, at most.
const LEFT_MAX: usize = 20_000;
/// Equal replicas of a machine that are played, at most.
const PLAYED_MAX: usize = 3;
/// A target that limits nothing, seconds.
const LIFTED_S: f64 = 1e9;

/// The fastest replica on these GPUs; `None` where none meets the targets.
pub(super) fn best(task: &Task, n_gpus: &[u32]) -> Option<Replica> {
    let all = group::layouts(task, n_gpus).into_iter();
    let rated = all.map(|stages| Replica { requests_per_s: group::colocated_rate(task, &stages), stages });
    let best = rated.reduce(|a, b| if b.requests_per_s > a.requests_per_s { b } else { a });
    best.filter(|replica| replica.requests_per_s > 0.0)
}

/// Equal replicas on every machine by itself.
///
/// # Errors
/// On figures without meaning.
pub fn per_machine(task: &Task) -> Result<Vec<Replica>, RentalError> {
    task.check()?;
    Ok((0..task.n_machines()).filter_map(|machine| equal(task, machine).into_iter().next()).flatten().collect())
}

/// Equal replicas of every size and layout on a machine that meet the targets, those first that serve most.
fn equal(task: &Task, machine: usize) -> Vec<Vec<Replica>> {
    let n = task.machines.offers[machine].n_available;
    let mut all = Vec::new();
    for size in 1..=n {
        let mut n_gpus = vec![0; task.n_machines()];
        n_gpus[machine] = size;
        for stages in group::layouts(task, &n_gpus) {
            let replica = Replica { requests_per_s: group::colocated_rate(task, &stages), stages };
            if replica.requests_per_s > 0.0 {
                all.push(vec![replica; (n / size) as usize]);
            }
        }
    }
    // A stable sort: of equals the smallest replicas stay first.
    all.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    all
}

/// Equal replicas on every machine by itself: those that serve most when they are played, of the few of each machine that serve most by the means. Each of
/// these is played on all machines that are alike, beside the best that was found for the others. The objective is the rate when played.
///
/// # Errors
/// On figures without meaning, and when the checker refuses a deployment.
pub fn per_machine_played(task: &Task, trial: &Trial<'_>) -> Result<Decision<Vec<Replica>>, RentalError> {
    task.check()?;
    let machines = 0..task.n_machines();
    let mut looked_at: Vec<Vec<Vec<Replica>>> = machines.map(|machine| equal(task, machine)).collect();
    looked_at.retain(|of_machine| !of_machine.is_empty());
    looked_at.iter_mut().for_each(|of_machine| of_machine.truncate(PLAYED_MAX));
    let mut best = vec![0; looked_at.len()];
    let by_means = chosen(&looked_at, &best);
    if by_means.is_empty() {
        return Ok(Decision::plain(by_means));
    }
    let mut most = played::rate(task, &Groups::colocated(&by_means), trial)?;
    let mut found = vec![(most, by_means)];
    for (machine, of_machine) in looked_at.iter().enumerate() {
        let is_alike =
            |other: &Vec<Vec<Replica>>| other.iter().map(|of| rate(of)).eq(of_machine.iter().map(|of| rate(of)));
        if looked_at[..machine].iter().any(is_alike) {
            continue;
        }
        for at in 1..of_machine.len() {
            let alike = looked_at.iter().zip(&best);
            let other: Vec<usize> = alike.map(|(of, best)| if is_alike(of) { at } else { *best }).collect();
            let replicas = chosen(&looked_at, &other);
            let rate = played::rate(task, &Groups::colocated(&replicas), trial)?;
            found.push((rate, replicas));
            if rate > most {
                (most, best) = (rate, other);
            }
        }
    }
    let ranked = proof::ranked(Aim::RequestsPerS, found, |_| (), |_, _| true);
    Ok(ranked.expect("one was played at least"))
}

/// Replicas of all machines, of each those at a position.
fn chosen(looked_at: &[Vec<Vec<Replica>>], at: &[usize]) -> Vec<Replica> {
    looked_at.iter().zip(at).flat_map(|(of_machine, at)| of_machine[*at].clone()).collect()
}

/// How the requests per second of a task are found; `per_machine` or `mixed`.
pub type Way = fn(&Task) -> Result<Vec<Replica>, RentalError>;

fn rate(replicas: &[Replica]) -> f64 {
    replicas.iter().map(|replica| replica.requests_per_s).sum()
}

/// The limit whose lifting would help most, in words.
///
/// # Errors
/// On figures without meaning.
pub fn binding(task: &Task, of: Way) -> Result<String, RentalError> {
    let now = rate(&of(task)?);
    let mut roomy = task.clone();
    roomy.machines.offers.iter_mut().filter_map(|machine| machine.gpu.as_mut()).for_each(|gpu| gpu.memory.0 *= 2);
    let lifted = [
        ("the target per token: without it", Task { tpot_s: LIFTED_S, ..task.clone() }),
        ("the target to the first token: without it", Task { ttft_s: LIFTED_S, ..task.clone() }),
        ("memory: with twice as much", roomy),
    ];
    let mut most = (now * (1.0 + 1e-6), "no single limit: targets or memory alone would not help".to_owned());
    for (words, task) in lifted {
        let with = rate(&of(&task)?);
        if with > most.0 {
            most = (with, format!("{words} {with:.2} requests/s and not {now:.2}"));
        }
    }
    Ok(most.1)
}

/// Replicas over any GPUs; those of single machines where the pool is too large to look at every partition.
///
/// # Errors
/// On figures without meaning.
pub fn mixed(task: &Task) -> Result<Vec<Replica>, RentalError> {
    task.check()?;
    let all: Vec<u32> = task.machines.offers.iter().map(|machine| machine.n_available).collect();
    let n_left: usize = all.iter().map(|&n| n as usize + 1).fold(1, usize::saturating_mul);
    if n_left > LEFT_MAX {
        return per_machine(task);
    }
    // Vectors of GPUs by their code; the code of a part is below that of the whole.
    let vector = |mut code: usize| -> Vec<u32> {
        let digit = |&n: &u32| {
            let digit = code % (n as usize + 1);
            code /= n as usize + 1;
            u32::try_from(digit).expect("at most the GPUs")
        };
        all.iter().map(digit).collect()
    };
    let rated: BTreeMap<usize, Replica> =
        (1..n_left).filter_map(|code| best(task, &vector(code)).map(|replica| (code, replica))).collect();
    let mut value = vec![(0.0_f64, 0_usize); n_left];
    for code in 1..n_left {
        let left = vector(code);
        for (&part, replica) in rated.range(..=code) {
            if vector(part).iter().zip(&left).all(|(part, left)| part <= left) {
                let with = value[code - part].0 + replica.requests_per_s;
                if with > value[code].0 {
                    value[code] = (with, part);
                }
            }
        }
    }
    let (mut code, mut found) = (n_left - 1, Vec::new());
    while value[code].1 > 0 {
        found.push(rated[&value[code].1].clone());
        code -= value[code].1;
    }
    Ok(found)
}
