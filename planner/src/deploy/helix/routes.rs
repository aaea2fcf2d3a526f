//! A flow as routes: paths from the coordinator over all layers and back, with the share of the tokens that each carries.
//!
//! Layers only rise along a path, so a flow has no cycles and comes apart into at most as many paths as it has edges: the widest way is
//! taken as far as it carries, and again until nothing is left. Units: tokens per second, shares.

use super::Flow;

/// Part of the flow below which what is left is rounding.
const ROUNDING: f64 = 1e-9;

/// Paths over nodes with their shares, which sum to 1.
pub(super) fn routes(flow: &Flow) -> Vec<(Vec<usize>, f64)> {
    let mut left = flow.edges.clone();
    let mut found = Vec::new();
    while let Some((path, rate)) = widest(&left, ROUNDING * flow.tokens_per_s) {
        let nodes = path.iter().filter_map(|&edge| left[edge].1).collect();
        path.iter().for_each(|&edge| left[edge].2 -= rate);
        found.push((nodes, rate));
    }
    let total: f64 = found.iter().map(|(_, rate)| rate).sum();
    found.iter_mut().for_each(|(_, rate)| *rate /= total);
    found
}

/// Edges of a path that takes the widest edge at every node, and what it carries.
fn widest(left: &[(Option<usize>, Option<usize>, f64)], least: f64) -> Option<(Vec<usize>, f64)> {
    let (mut at, mut path, mut rate) = (None, Vec::new(), f64::INFINITY);
    loop {
        let out = (0..left.len()).filter(|&edge| left[edge].0 == at && left[edge].2 > least);
        let edge = out.max_by(|&a, &b| left[a].2.total_cmp(&left[b].2).then(b.cmp(&a)))?;
        rate = rate.min(left[edge].2);
        path.push(edge);
        at = left[edge].1;
        if at.is_none() {
            return Some((path, rate));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_carry_what_the_edges_carry() {
        // 0 and 1 share what comes 3 to 1; 0 sends half of its part on to 2 and half to 3, 1 sends all to 3.
        let edges = vec![
            (None, Some(0), 3.0),
            (None, Some(1), 1.0),
            (Some(0), Some(2), 1.5),
            (Some(0), Some(3), 1.5),
            (Some(1), Some(3), 1.0),
            (Some(2), None, 1.5),
            (Some(3), None, 2.5),
        ];
        let flow = Flow { tokens_per_s: 4.0, edges: edges.clone(), cut: Vec::new() };
        let found = routes(&flow);
        assert_eq!(found, [(vec![0, 2], 0.375), (vec![0, 3], 0.375), (vec![1, 3], 0.25)]);
        for (from, to, rate) in edges {
            let over = |nodes: &[usize]| {
                let ends: Vec<Option<usize>> =
                    [None].into_iter().chain(nodes.iter().copied().map(Some)).chain([None]).collect();
                ends.windows(2).any(|pair| (pair[0], pair[1]) == (from, to))
            };
            let sum: f64 = found.iter().filter(|(nodes, _)| over(nodes)).map(|(_, share)| 4.0 * share).sum();
            assert!((sum - rate).abs() < 1e-12, "{from:?} to {to:?}: {sum}");
        }
    }
}
