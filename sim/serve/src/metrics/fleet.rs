//! What a fleet costs, and what each of its groups did.
//!
//! A replica is paid while it exists; cost per hour is the mean over the run. A run lasts from time zero until the last request ends or is refused, as
//! in `metrics.rs`. Keys of groups are `group_<figure>.<group>`. Units: dollars,
//! hours, replicas.

use std::collections::BTreeMap;

use hw::{Tick, TickSum};

use crate::fleet::{Fleet, Group, Served};

/// Nanoseconds of an hour.
const NS_PER_HOUR: f64 = 3600.0 * 1e9;

/// What one group did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupFigures {
    /// Nanoseconds for which its replicas are paid, together.
    pub paid_ns: f64,
    /// Replicas that are paid on average, until the last request ends or is refused.
    pub paid_mean: f64,
    /// Nanoseconds with an iteration under way.
    pub busy_ns: f64,
    /// Requests that ended here.
    pub n_ended: u64,
    /// Most blocks in use over all blocks, of its fullest replica.
    pub kv_peak_ratio: f64,
}

/// Ticks for which the replicas of every group are paid, together, and those with an iteration under way.
pub fn times(fleet: &Fleet, served: &Served) -> Vec<[TickSum; 2]> {
    let mut times = vec![[TickSum::default(); 2]; fleet.groups.len()];
    for (replica, group) in served.group_of.iter().enumerate() {
        let [paid, busy] = &mut times[*group as usize];
        *paid += served.paid_ticks[replica].of_each(1);
        *busy += served.counts[replica].busy_ticks.min(served.paid_ticks[replica]).of_each(1);
    }
    times
}

/// Figures of every group.
fn groups(fleet: &Fleet, served: &Served) -> Vec<GroupFigures> {
    let mut figures = vec![GroupFigures::default(); fleet.groups.len()];
    for (replica, group) in served.group_of.iter().enumerate() {
        let (figures, (peak, total)) = (&mut figures[*group as usize], served.blocks[replica]);
        figures.kv_peak_ratio = figures.kv_peak_ratio.max(f64::from(peak) / f64::from(total));
    }
    for record in served.records.list.iter().filter(|record| record.finished().is_some()) {
        figures[served.group_of[record.replica as usize] as usize].n_ended += 1;
    }
    for (group, [paid, busy]) in figures.iter_mut().zip(times(fleet, served)) {
        (group.paid_ns, group.busy_ns) = (paid.as_ns(), busy.as_ns());
        group.paid_mean = paid.mean_over(served.records.end_ticks());
    }
    figures
}

/// Tokens whose keys and values a replica of a group has room for; vLLM prints them as "GPU KV cache size".
pub(super) fn kv_tokens(group: &Group) -> f64 {
    let limits = &group.engine.limits;
    f64::from(limits.kv_blocks) * f64::from(limits.block_tokens)
}

/// Requests of the longest context that a replica has room for at once; vLLM prints them as "Maximum concurrency".
fn requests_max(group: &Group) -> f64 {
    let limits = &group.engine.limits;
    let of_request = limits.context_max.div_ceil(limits.block_tokens.max(1)).saturating_add(limits.blocks_per_sequence);
    f64::from(limits.kv_blocks) / f64::from(of_request.max(1))
}

/// Adds costs and figures of groups to those of the requests, which hold `output_tokens_per_s`.
pub fn add(into: &mut BTreeMap<String, f64>, fleet: &Fleet, served: &Served) {
    let figures = groups(fleet, served);
    let end_ns = hw::real(served.records.end_ticks().as_ns());
    let n_ended: u64 = figures.iter().map(|group| group.n_ended).sum();
    // Replicas that come and go count for as long as they are paid.
    let paid_gpus = |(group, figures): (&Group, &GroupFigures)| f64::from(group.gpus_per_replica) * figures.paid_mean;
    let n_gpus: f64 = fleet.groups.iter().zip(&figures).map(paid_gpus).sum();
    let rate = into.get("output_tokens_per_s").copied();
    let mut insert = |key: String, value: f64| {
        if value.is_finite() {
            into.insert(key, value);
        }
    };
    insert("output_tokens_per_s_per_gpu".to_owned(), rate.unwrap_or(f64::NAN) / n_gpus);
    insert("replica_hours".to_owned(), figures.iter().map(|group| group.paid_ns).sum::<f64>() / NS_PER_HOUR);
    if fleet.groups.len() > 1 {
        for (group, figures) in fleet.groups.iter().zip(&figures) {
            let mut of_group = |figure: &str, value: f64| insert(format!("group_{figure}.{}", group.name), value);
            of_group("busy_ratio", figures.busy_ns / figures.paid_ns);
            of_group("share_ratio", hw::real(figures.n_ended) / hw::real(n_ended));
            of_group("kv_peak_ratio", figures.kv_peak_ratio);
            of_group("kv_tokens", kv_tokens(group));
            of_group("replica_hours", figures.paid_ns / NS_PER_HOUR);
        }
    }
    insert("kv_tokens".to_owned(), fleet.groups.iter().map(kv_tokens).fold(f64::INFINITY, f64::min));
    insert("kv_requests_max".to_owned(), fleet.groups.iter().map(requests_max).fold(f64::INFINITY, f64::min));
    if fleet.groups.iter().any(|group| group.engine.table.chunking().is_some()) {
        insert("n_chunks".to_owned(), hw::real(served.counts.iter().map(|counts| counts.n_chunks).sum()));
    }
    if fleet.is_split() {
        let moved = &served.moved;
        let mean = |ticks: Tick| hw::real(ticks.as_ns()) / 1e9 / hw::real(moved.n);
        insert("transfer_s".to_owned(), mean(moved.ticks));
        insert("transfer_wait_s".to_owned(), mean(moved.waiting_ticks));
        insert("link_busy_ratio".to_owned(), served.link_busy());
    }
    if fleet.is_dynamic() {
        let changes = &served.changes;
        insert("n_retried".to_owned(), hw::real(changes.n_retried));
        insert("n_outages".to_owned(), hw::real(changes.n_outages));
        if changes.n_given_up > 0 {
            insert("n_given_up".to_owned(), hw::real(changes.n_given_up));
        }
        insert("n_started".to_owned(), hw::real(changes.n_started));
        insert("n_stopped".to_owned(), hw::real(changes.n_stopped));
    }
    let usd_per_hour = |(group, figures): (&Group, &GroupFigures)| {
        let usd = group.usd_per_gpu_hour?;
        Some(figures.paid_mean * f64::from(group.gpus_per_replica) * usd)
    };
    let per_hour: Option<f64> = fleet.groups.iter().zip(&figures).map(usd_per_hour).sum();
    let Some(per_hour) = per_hour.filter(|per_hour| per_hour.is_finite()) else { return };
    into.insert("cost_usd_per_hour".to_owned(), per_hour);
    into.insert("cost_usd".to_owned(), per_hour * end_ns / NS_PER_HOUR);
    if let Some(rate) = into.get("output_tokens_per_s").copied().filter(|rate| *rate > 0.0) {
        into.insert("cost_usd_per_mtok".to_owned(), per_hour / (rate * 3600.0) * 1e6);
    }
}
