//! Adapters (LoRA, arXiv:2106.09685): which one each request asks for, and the room that an engine has for them.
//!
//! Popularity is a power law: adapter `i`, counted from 1, is asked for with a weight of `1 / i^skew`. Draws are the seed's, so every way of
//! serving sees the same ones. Keys and values under different adapters differ, so a prefix has an identity for each adapter that
//! it is read under (vLLM hashes the adapter into its blocks: `vllm/v1/core/kv_cache_utils.py`, `_gen_lora_extra_hash_keys`). Units: adapters, ranks.

use std::collections::BTreeMap;

use engine::{random, stop};
use hw::{BytesPerSecond, Tick};

use crate::request::{Request, Requests};
use crate::step_cost::ReplicaConfig;
use crate::step_cost::adapter_room::AdapterRoom;

/// Most adapters of a stream.
pub const ADAPTERS_MAX: u32 = 100_000;

/// Room of a replica for adapters, and how long one takes to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterLimits {
    /// Adapters on the device, and different ones in a batch.
    pub slots: u32,
    /// Adapters in host memory, those on the device included; at least `slots`.
    pub host_slots: u32,
    /// Ticks from the host to the device, per rank of the adapter.
    pub host_ticks: Tick,
    /// Ticks from disk to the host, per rank of the adapter.
    pub disk_ticks: Tick,
}

/// Where adapters come from that are not on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Supply {
    /// Adapters in host memory.
    pub host_slots: u32,
    /// What each GPU reads of the host, GB per second; `None` is the link of the GPU to its host.
    pub host_gb_per_s: Option<f64>,
    /// What the disks of a replica read together, GB per second; `None` where nothing ever comes from there.
    pub disk_gb_per_s: Option<f64>,
}

impl Supply {
    /// Limits of a replica with this room. Every GPU reads its own part over its own link, a disk is read for all of them.
    pub fn limits(&self, room: &AdapterRoom, config: &ReplicaConfig<'_>, link: BytesPerSecond) -> AdapterLimits {
        let rate = |gb_per_s: f64| BytesPerSecond::new(gb_per_s * 1e9);
        let bytes = |n_ranks: u32| room.bytes_per_rank(config.model, n_ranks, config.dtype);
        let of_gpu = bytes(config.tensor_degree) / self.host_gb_per_s.map_or(link, rate);
        let of_file = self.disk_gb_per_s.map(|disk| Tick::from_seconds(bytes(1) / rate(disk)));
        AdapterLimits {
            slots: room.slots,
            host_slots: self.host_slots,
            host_ticks: Tick::from_seconds(of_gpu),
            disk_ticks: of_file.unwrap_or_default(),
        }
    }
}

/// Which adapters the requests of a stream ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Popularity {
    /// Different adapters.
    pub count: u32,
    /// Rank of each.
    pub rank: u32,
    /// Exponent of the power law; 0 asks for all equally often.
    pub skew: f64,
    /// Share of the requests that ask for the model without an adapter.
    pub none_ratio: f64,
}

impl Popularity {
    /// Different adapters among no request, one, two and so on up to so many, on average: Σ 1 - (1 - p)^n over all of probability p.
    pub fn different(&self, requests_max: u32) -> Vec<f64> {
        let weights: Vec<f64> = (1..=self.count).map(|index| libm::pow(f64::from(index), -self.skew)).collect();
        let sum: f64 = weights.iter().sum();
        let others: Vec<f64> = weights.iter().map(|weight| 1.0 - (1.0 - self.none_ratio) * weight / sum).collect();
        let mut missed = vec![1.0; others.len()];
        let mut all = vec![0.0];
        for _ in 0..requests_max {
            missed.iter_mut().zip(&others).for_each(|(missed, other)| *missed *= other);
            all.push(missed.iter().map(|missed| 1.0 - missed).sum());
        }
        all
    }

    /// Draws an adapter for every request. Turns of a session ask for the session's.
    pub fn lay(&self, mut requests: Requests, seed: u64) -> Requests {
        let mut draws = random::stream(seed, "adapters of requests");
        let mut sums = Vec::with_capacity(self.count as usize);
        let mut sum = 0.0;
        for index in 1..=self.count {
            sum += libm::pow(f64::from(index), -self.skew);
            sums.push(sum);
        }
        let mut adapter = 0;
        for at in 0..requests.len() {
            stop::pause();
            let (is_none, place) = (draws.unit() < self.none_ratio, draws.unit() * sum);
            if !requests.is_turn(at) {
                let index = sums.partition_point(|until| *until <= place).min(sums.len() - 1);
                adapter = if is_none { 0 } else { u32::try_from(index).expect("few adapters") + 1 };
            }
            requests.adapters.push(adapter);
        }
        requests.ranks = vec![self.rank; self.count as usize];
        apart(requests)
    }
}

/// Gives every prefix an identity for each adapter that it is read under. What is read without one keeps its own.
fn apart(mut requests: Requests) -> Requests {
    let mut known: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut ids = Vec::with_capacity(requests.prefix_ids.len());
    let mut list = Vec::with_capacity(requests.len());
    for (request, adapter) in requests.list.iter().zip(&requests.adapters) {
        let prefix_first = u32::try_from(ids.len()).expect("fewer than 2^32 identities");
        for id in requests.prefix(request) {
            let next = requests.n_prefix_ids + u32::try_from(known.len()).expect("fewer than 2^32 identities");
            ids.push(if *adapter == 0 { *id } else { *known.entry((*adapter, *id)).or_insert(next) });
        }
        list.push(Request { prefix_first, ..*request });
    }
    requests.n_prefix_ids += u32::try_from(known.len()).expect("fewer than 2^32 identities");
    Requests { list, prefix_ids: ids, ..requests }
}

#[cfg(test)]
mod tests {
    use hw::Time;

    use super::*;

    fn plain(n: usize) -> Requests {
        Requests::of(vec![Request::new(Time::ZERO, 64, 8); n])
    }

    #[test]
    fn popularity_is_the_power_law_and_the_seeds_alone() {
        let popularity = Popularity { count: 4, rank: 16, skew: 1.0, none_ratio: 0.2 };
        let laid = popularity.lay(plain(50_000), 3);
        let share =
            |adapter: u32| hw::real(laid.adapters.iter().filter(|asked| **asked == adapter).count() as u64) / 50_000.0;
        assert!((share(0) - 0.2).abs() < 0.01);
        // Weights of 1, 1/2, 1/3 and 1/4 are 25/12 together.
        for adapter in 1..=4 {
            let expected = 0.8 / f64::from(adapter) / (25.0 / 12.0);
            assert!((share(adapter) - expected).abs() < 0.01, "adapter {adapter}: {} of {expected}", share(adapter));
        }
        assert_eq!(laid, popularity.lay(plain(50_000), 3), "the same seed");
        assert_ne!(laid.adapters, popularity.lay(plain(50_000), 4).adapters, "another seed");
    }

    #[test]
    fn so_many_are_different_as_draws_find() {
        let popularity = Popularity { count: 30, rank: 16, skew: 1.0, none_ratio: 0.3 };
        let different = popularity.different(12);
        assert_eq!((different.len(), different[0]), (13, 0.0));
        assert!((different[1] - 0.7).abs() < 1e-12, "one request asks for one, or for none");
        let laid = popularity.lay(plain(12 * 20_000), 5);
        let n_of = |batch: &[u32]| {
            let mut asked: Vec<u32> = batch.iter().copied().filter(|adapter| *adapter > 0).collect();
            asked.sort_unstable();
            asked.dedup();
            asked.len() as u64
        };
        let mean = hw::real(laid.adapters.chunks(12).map(n_of).sum()) / 20_000.0;
        assert!((mean / different[12] - 1.0).abs() < 0.01, "{mean} for {}", different[12]);
    }

    #[test]
    fn a_prefix_is_another_one_under_another_adapter() {
        let mut requests = plain(4);
        (requests.prefix_ids, requests.n_prefix_ids, requests.prefix_tokens) = (vec![0, 1], 2, 16);
        for request in &mut requests.list {
            request.prefix_count = 2;
        }
        requests.adapters = vec![0, 1, 2, 1];
        let apart = apart(requests);
        let prefix = |at: usize| apart.prefix(&apart.list[at]);
        assert_eq!([prefix(0), prefix(1), prefix(2), prefix(3)], [&[0, 1], &[2, 3], &[4, 5], &[2, 3]]);
        assert_eq!(apart.n_prefix_ids, 6);
    }

    #[test]
    fn turns_of_a_session_ask_for_its_adapter() {
        let mut requests = plain(400);
        requests.follows = (0..400).map(|at| at % 4 != 0).collect();
        let laid = Popularity { count: 9, rank: 8, skew: 0.0, none_ratio: 0.0 }.lay(requests, 1);
        assert!(laid.adapters.chunks(4).all(|session| session.iter().all(|adapter| *adapter == session[0])));
    }
}
