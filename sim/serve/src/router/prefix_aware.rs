//! The longest cached prefix, unless that replica is far busier than the least loaded one.
//!
//! The rule of cache-aware routers such as SGLang's (sgl-project/sglang, `sgl-router`, Apache-2.0): balance wins when loads differ by more
//! than an absolute and a relative threshold, whose default values are taken over here.

use crate::router::{Router, View};

/// Requests that the busier replica may have more.
const LOAD_GAP: u32 = 32;
/// Times the load of the least loaded replica that it may have.
const LOAD_RATIO: f64 = 1.1;

/// The policy.
pub(super) struct PrefixAware;

impl Router for PrefixAware {
    fn choose(&mut self, request: u32, view: &View<'_, '_>) -> u32 {
        let least = least_filled(view);
        let cached_at = |replica: u32| view.replicas[replica as usize].cached_tokens(request);
        let mut best = (least, cached_at(least));
        for &replica in view.candidates {
            let cached = cached_at(replica);
            if cached > best.1 {
                best = (replica, cached);
            }
        }
        let (busy, idle) = (view.load(best.0), view.load(least));
        let is_far_busier = busy > idle + LOAD_GAP && f64::from(busy) > LOAD_RATIO * f64::from(idle);
        if is_far_busier { least } else { best.0 }
    }

    fn looks_into_caches(&self) -> bool {
        true
    }
}

/// The candidate with the fewest requests, and among those the one that has cached least.
fn least_filled(view: &View<'_, '_>) -> u32 {
    let filled = |replica: &u32| (view.load(*replica), view.replicas[*replica as usize].pool.n_cached());
    view.candidates.iter().copied().min_by_key(filled).expect("there is a candidate")
}
