//! Max-min fair shares of links among flows, by progressive filling.
//!
//! A flow has a cap (bytes per second on its busiest link) and a weight per link (bytes on that link per byte on the
//! busiest one, at most 1). All rates grow together; a flow stops at its cap or when one of its links is full.
//! The result is max-min fair: no rate can grow without lowering one that is not larger.

/// A flow over links that are numbered from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Highest rate, bytes per second.
    pub cap: f64,
    /// (link, weight), each link once.
    pub links: Vec<(usize, f64)>,
}

/// Relative distance below which a link counts as full; far above rounding and far below any real share.
const FULL: f64 = 1e-12;

/// Rate of each flow, bytes per second.
///
/// # Panics
/// When a flow names a link beyond `capacity`.
pub fn max_min(flows: &[Flow], capacity: &[f64]) -> Vec<f64> {
    let mut rate = vec![0.0; flows.len()];
    let mut growing: Vec<usize> = (0..flows.len()).collect();
    let mut left = capacity.to_vec();
    let mut weight = vec![0.0; capacity.len()];
    for &(link, share) in flows.iter().flat_map(|flow| &flow.links) {
        weight[link] += share;
    }
    let mut level = 0.0_f64;
    while !growing.is_empty() {
        let to_cap = growing.iter().map(|&index| flows[index].cap - level);
        let to_full =
            left.iter().zip(&weight).filter(|(_, weight)| **weight > FULL).map(|(left, weight)| left / weight);
        let step = to_cap.chain(to_full).fold(f64::INFINITY, f64::min).max(0.0);
        level += step;
        for (left, weight) in left.iter_mut().zip(&weight) {
            *left -= step * weight;
        }
        growing.retain(|&index| {
            let Flow { cap, links } = &flows[index];
            let is_full = |&(link, share): &(usize, f64)| share > 0.0 && left[link] <= capacity[link] * FULL;
            let goes_on = cap - level > cap * FULL && !links.iter().any(is_full);
            if !goes_on {
                rate[index] = level.min(*cap);
                links.iter().for_each(|&(link, share)| weight[link] -= share);
            }
            goes_on
        });
    }
    rate
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(flows: &[(f64, &[usize])], capacity: &[f64], expected: &[f64]) {
        let flows: Vec<Flow> = flows
            .iter()
            .map(|(cap, links)| Flow { cap: *cap, links: links.iter().map(|&link| (link, 1.0)).collect() })
            .collect();
        for (found, expected) in max_min(&flows, capacity).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "found {found}, expected {expected}");
        }
    }

    #[test]
    fn two_flows_halve_a_link() {
        // x1 + x2 <= 10, both uncapped: 5 each.
        check(&[(100.0, &[0]), (100.0, &[0])], &[10.0], &[5.0, 5.0]);
    }

    #[test]
    fn a_capped_flow_leaves_its_rest_to_the_other() {
        // x1 + x2 <= 10, x1 <= 2: x2 takes 8.
        check(&[(2.0, &[0]), (100.0, &[0])], &[10.0], &[2.0, 8.0]);
    }

    #[test]
    fn the_long_flow_of_a_line_gets_the_share_of_its_tightest_link() {
        // x1 + x2 <= 4 on link 0, x1 + x3 <= 10 on link 1: link 0 fills at 2, then x3 grows to 8.
        check(&[(100.0, &[0, 1]), (100.0, &[0]), (100.0, &[1])], &[4.0, 10.0], &[2.0, 2.0, 8.0]);
    }

    proptest! {
        #[test]
        fn every_flow_has_its_cap_or_a_full_link_where_none_is_faster(
            capacity in prop::collection::vec(1.0..100.0_f64, 4),
            raw in prop::collection::vec((0.5..50.0_f64, prop::collection::btree_set(0_usize..4, 1..4)), 1..8),
        ) {
            let flows: Vec<Flow> = raw
                .into_iter()
                .map(|(cap, links)| Flow { cap, links: links.into_iter().map(|link| (link, 1.0)).collect() })
                .collect();
            let rates = max_min(&flows, &capacity);
            let load = |link: usize| -> f64 {
                flows.iter().zip(&rates).filter(|(f, _)| f.links.iter().any(|l| l.0 == link)).map(|(_, r)| r).sum()
            };
            for (link, capacity) in capacity.iter().enumerate() {
                prop_assert!(load(link) <= capacity * (1.0 + 1e-9));
            }
            for (flow, &rate) in flows.iter().zip(&rates) {
                let at_cap = rate >= flow.cap * (1.0 - 1e-9);
                let blocked = flow.links.iter().any(|&(link, _)| {
                    load(link) >= capacity[link] * (1.0 - 1e-9)
                        && flows.iter().zip(&rates).all(|(f, &r)| {
                            !f.links.iter().any(|l| l.0 == link) || r <= rate * (1.0 + 1e-9)
                        })
                });
                prop_assert!(at_cap || blocked);
            }
        }
    }
}
