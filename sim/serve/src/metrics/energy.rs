//! What the GPUs of a fleet draw: watts by how busy their memory and their products are (`hw::power`), and what that makes of a token.
//!
//! Work is that of the average iteration of each group (`average.rs`), as often as it had iterations, over the time in which one was under way. The
//! rest of the time that a replica is paid, its GPUs hold the model and wait. Hosts, switches, losses and cooling are not in it.
//! Drafts are work of the model that makes them, and of the one that verifies them, accepted or not. Not known: cards without a limit in the catalogue.
//! Units: watts, watt-hours, joules, seconds.

use std::collections::BTreeMap;

use engine::cost::busy::Part;
use hw::power::{BORROWED, JOULES_PER_WH};
use hw::{Power, Seconds};

use super::average;
use crate::fleet::{Fleet, Served};
use crate::replica::Limits;
use crate::request::Requests;
use crate::step_cost::ReplicaConfig;
use crate::step_cost::average::Average;

/// What a GPU may draw at most, on average over all of them, watts.
pub const LIMIT: &str = "gpu_power_limit_w";

/// What the replicas of a group did.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    /// Their average iteration.
    average: Average,
    /// Iterations.
    n_steps: u64,
    /// Time with an iteration under way, of all replicas together.
    busy: Seconds,
    /// Time for which they are paid, together.
    paid: Seconds,
}

/// Of every group, with its position. A group without an iteration is paid all the same: its GPUs wait.
fn loads(requests: &Requests, fleet: &Fleet, served: &Served) -> Vec<(usize, Load)> {
    let mut n_steps = vec![0; fleet.groups.len()];
    for (counts, group) in served.counts.iter().zip(&served.group_of) {
        n_steps[*group as usize] += counts.n_steps - counts.n_beyond;
    }
    let times = super::fleet::times(fleet, served);
    let of_group = |(index, average): (usize, Option<Average>)| {
        let [paid, busy] = times[index].map(|ticks| Seconds::new(ticks.as_ns() * 1e-9));
        (index, Load { average: average.unwrap_or_default(), n_steps: n_steps[index], busy, paid })
    };
    average::of_groups(requests, fleet, served).into_iter().enumerate().map(of_group).collect()
}

impl Load {
    /// Joules of one GPU of every replica, together.
    fn joules(&self, deployment: &ReplicaConfig<'_>, power: &Power) -> f64 {
        let [memory, products] = [Part::Memory, Part::Products].map(|part| {
            let work = self.average.busy(deployment, part).get() * hw::real(self.n_steps);
            work / self.busy.get().max(f64::MIN_POSITIVE)
        });
        let waiting = (self.paid.get() - self.busy.get()).max(0.0);
        power.watts(memory, products) * self.busy.get() + power.idle_watts() * waiting
    }
}

/// Adds what the groups' GPUs draw to figures that hold `output_tokens_per_s`; nothing where that is not known of all of them.
pub fn add(
    into: &mut BTreeMap<String, f64>,
    groups: &[(ReplicaConfig<'_>, Limits)],
    fleet: &Fleet,
    (requests, served): (&Requests, &Served),
) {
    let (mut joules, mut borrowed_joules, mut limit_joules, mut gpu_s) = (0.0, 0.0, 0.0, 0.0);
    for (index, load) in loads(requests, fleet, served) {
        let (deployment, _) = &groups[index];
        let Some(power) = Power::of(&deployment.cluster.gpu) else { return };
        let n_gpus = f64::from(deployment.n_gpus());
        let of_group = n_gpus * load.joules(deployment, &power);
        joules += of_group;
        borrowed_joules += power.lender.map_or(0.0, |_| of_group);
        limit_joules += n_gpus * power.limit_watts * load.paid.get();
        gpu_s += n_gpus * load.paid.get();
    }
    let all = [
        ("energy_wh", joules / JOULES_PER_WH),
        ("gpu_power_w", joules / gpu_s),
        (LIMIT, limit_joules / gpu_s),
        // As dollars per token: tokens that clients have.
        ("energy_j_per_output_token", joules / hw::real(super::kept_tokens(requests, served))),
        (BORROWED, borrowed_joules / joules),
    ];
    for (key, value) in all.into_iter().filter(|(_, value)| value.is_finite() && *value > 0.0) {
        into.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_waits_draws_less_than_one_that_works_and_none_more_than_its_limit() {
        let model = engine::model::embedded("llama-3-8b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let config = ReplicaConfig::new(&model, &cluster, 1);
        let power = Power::of(&cluster.gpu).expect("its limit is known");
        let average = Average {
            decode: 16.0,
            keys: 1000.0,
            prompt: 0.0,
            prompt_whole: 1.0,
            adapted: 0.0,
            adapters: 0.0,
            speculation: None,
        };
        let watts = |n_steps: u64, busy: f64| {
            let load = Load { average, n_steps, busy: Seconds::new(busy), paid: Seconds::new(10.0) };
            load.joules(&config, &power) / 10.0
        };
        assert!((watts(0, 0.0) - power.idle_watts()).abs() < 1e-9);
        let nothing = Load { average: Average::default(), n_steps: 0, busy: Seconds::ZERO, paid: Seconds::new(10.0) };
        assert!((nothing.joules(&config, &power) / 10.0 - power.idle_watts()).abs() < 1e-9, "nobody came");
        // A thousand iterations in 8 s: memory is busy for 5.1 of them.
        let share = average.busy(&config, Part::Memory).get() * 1000.0 / 8.0;
        let products = average.busy(&config, Part::Products).get() * 1000.0 / 8.0;
        let wanted = 0.8 * power.watts(share, products) + 0.2 * power.idle_watts();
        assert!((0.6..0.7).contains(&share) && (watts(1000, 8.0) - wanted).abs() < 1e-9);
        assert!((watts(1_000_000, 10.0) - power.limit_watts).abs() < 1e-9, "more work than there is time for");
    }
}
