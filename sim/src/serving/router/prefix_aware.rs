//! The longest cached prefix, unless that replica is far busier than the least loaded one.
//!
//! The rule of cache-aware routers such as SGLang's (sgl-project/sglang, `sgl-router`, Apache-2.0): balance wins when loads differ by more
//! than an absolute and a relative threshold, whose default values are taken over here.

use crate::serving::replica::Replica;
use crate::serving::router::Router;

/// Requests that the busier replica may have more.
const LOAD_GAP: u32 = 32;
/// Times the load of the least loaded replica that it may have.
const LOAD_RATIO: f64 = 1.1;

/// The policy.
pub(super) struct PrefixAware;

impl Router for PrefixAware {
    fn choose(&mut self, request: u32, replicas: &[Replica<'_>]) -> u32 {
        let least = least_filled(replicas);
        let mut best = (least, replicas[least as usize].cached_tokens(request));
        for (index, replica) in replicas.iter().enumerate() {
            let cached = replica.cached_tokens(request);
            if cached > best.1 {
                best = (u32::try_from(index).expect("fewer than 2^32 replicas"), cached);
            }
        }
        let (busy, idle) = (replicas[best.0 as usize].outstanding(), replicas[least as usize].outstanding());
        let is_far_busier = busy > idle + LOAD_GAP && f64::from(busy) > LOAD_RATIO * f64::from(idle);
        if is_far_busier { least } else { best.0 }
    }
}

/// The replica with the fewest requests, and among those the one that has cached least.
fn least_filled(replicas: &[Replica<'_>]) -> u32 {
    let filled = |index: &usize| (replicas[*index].outstanding(), replicas[*index].pool.n_cached());
    let least = (0..replicas.len()).min_by_key(filled).expect("a fleet has a replica");
    u32::try_from(least).expect("fewer than 2^32 replicas")
}
