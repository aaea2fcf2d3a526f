//! How long a placement's exchanges take by themselves: what placements of one plan are compared by.
//!
//! Per wave the device that sends or receives longest, forward and backward, then the device whose reductions of gradients take longest
//! one after another. What really overlaps or contends is for the engine to say.

use std::collections::BTreeMap;

use engine::cost::collective::{Network, time};
use engine::task::Collective;
use hw::Rank;
use train::multi_task::Work;
use train::multi_task::flow::{flows, messages};
use train::multi_task::lower::gradient_groups;
use train::multi_task::schedule::Schedule;

/// Seconds of messages and gradients.
pub fn seconds(work: &Work, schedule: &Schedule) -> f64 {
    messages_s(work, schedule) + gradients_s(work, schedule)
}

fn messages_s(work: &Work, schedule: &Schedule) -> f64 {
    let cluster = &work.training.cluster;
    // (wave, device, whether it receives) to seconds.
    let mut busy: BTreeMap<(u32, Rank, bool), f64> = BTreeMap::new();
    for flow in flows(work, schedule) {
        let (from, to) = (&schedule.pieces[flow.from].devices, &schedule.pieces[flow.to]);
        for part in messages(flow.bytes, from.len(), to.devices.len()) {
            let ends = [from[part.from], to.devices[part.to]];
            if ends[0] == ends[1] {
                continue;
            }
            let crosses = cluster.domain_of(ends[0]) != cluster.domain_of(ends[1]);
            let rate = if crosses { cluster.nic_bandwidth } else { cluster.gpu.bandwidth_to(1) };
            let seconds = (hw::Bytes(part.bytes) / rate).get();
            *busy.entry((to.wave, ends[0], false)).or_default() += seconds;
            *busy.entry((to.wave, ends[1], true)).or_default() += seconds;
        }
    }
    let mut waves: BTreeMap<u32, f64> = BTreeMap::new();
    for ((wave, ..), seconds) in busy {
        let longest = waves.entry(wave).or_default();
        *longest = longest.max(seconds);
    }
    2.0 * waves.values().sum::<f64>()
}

fn gradients_s(work: &Work, schedule: &Schedule) -> f64 {
    let cluster = &work.training.cluster;
    let network = Network::assumed(cluster);
    let mut busy = vec![0.0_f64; work.n_devices() as usize];
    for (members, bytes) in gradient_groups(work, schedule) {
        let (seconds, _) = time(cluster, &network, Collective::AllReduce, bytes, cluster.shape_of(&members));
        members.iter().for_each(|rank| busy[rank.index()] += seconds.get());
    }
    busy.into_iter().fold(0.0, f64::max)
}
