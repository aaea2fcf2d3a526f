//! Splits against the toy of the design page, brute force, and what must hold of any graph.

use proptest::prelude::*;

use super::*;
use crate::cache::Item;

fn ranked(hotness: &[f64], saved: &[f64], bytes: &[f64]) -> Ranked {
    let rows = hotness.iter().zip(saved).zip(bytes);
    let items: Vec<Item> =
        rows.map(|((&hotness, &saved), &bytes)| Item { hotness, saved, bytes, count: 1.0 }).collect();
    Ranked::new(&items)
}

/// Degrees (10, 4, 2, 1) take 48, 24, 16 and 12 bytes, features of 16 numbers 64. Rows are 200 transactions over hotness (50, 30, 15, 5), features
/// 100 over (40, 30, 20, 10). In 128 bytes all rows (100 bytes) save 200 and no features fit beside them: 100 are left.
#[test]
fn the_toy_caches_all_rows() {
    let rows = ranked(&[50.0, 30.0, 15.0, 5.0], &[100.0, 60.0, 30.0, 10.0], &[48.0, 24.0, 16.0, 12.0]);
    let features = ranked(&[40.0, 30.0, 20.0, 10.0], &[40.0, 30.0, 20.0, 10.0], &[64.0; 4]);
    let demand = Demand { rows, features };
    let points = sweep(&demand, 128.0);
    let found = &points[best(&points)];
    assert_eq!((found.sum(), found.rows.n_items, found.features.n_items), (100.0, 4, 0));
    // α = 0 caches two features of 64 bytes: 300 − 70.
    assert_eq!(points[0].sum(), 230.0);
    assert!(bound(&demand, 128.0) <= 100.0);
    // The bound by hand: rows by transactions per byte 100/48, 60/24, 30/16, 10/12 all before features 40/64; 28 bytes of the hottest feature.
    assert!((bound(&demand, 128.0) - (100.0 - 40.0 * 28.0 / 64.0)).abs() < 1e-9);
}

fn demand_of(raw: &[(u32, u32, u32)], width: u32) -> Demand {
    let hot = |at: fn(&(u32, u32, u32)) -> u32| raw.iter().map(|row| f64::from(at(row))).collect::<Vec<f64>>();
    let (rows, features) = (hot(|row| row.0), hot(|row| row.1));
    let bytes: Vec<f64> = raw.iter().map(|row| f64::from(8 + 4 * row.2)).collect();
    let saved: Vec<f64> = rows.iter().map(|hot| 3.0 * hot).collect();
    Demand {
        rows: ranked(&rows, &saved, &bytes),
        features: ranked(&features, &features, &vec![f64::from(4 * width); raw.len()]),
    }
}

/// The same by walking over the vertices anew for every α.
fn brute_force(raw: &[(u32, u32, u32)], width: u32, budget: f64) -> f64 {
    let walk = |mut items: Vec<(u32, usize, f64, f64)>, budget: f64| -> f64 {
        items.sort_by_key(|item| (u32::MAX - item.0, item.1));
        let (mut used, mut left, mut is_open) = (0.0, 0.0, true);
        for (_, _, bytes, worth) in items {
            is_open = is_open && used + bytes <= budget;
            if is_open { used += bytes } else { left += worth }
        }
        left
    };
    let rows = || {
        raw.iter().enumerate().map(|(at, row)| (row.0, at, f64::from(8 + 4 * row.2), 3.0 * f64::from(row.0))).collect()
    };
    let features =
        || raw.iter().enumerate().map(|(at, row)| (row.1, at, f64::from(4 * width), f64::from(row.1))).collect();
    let at = |step: u32| {
        walk(rows(), f64::from(step) / 100.0 * budget) + walk(features(), (1.0 - f64::from(step) / 100.0) * budget)
    };
    (0..=100).map(at).fold(f64::INFINITY, f64::min)
}

proptest! {
    #[test]
    fn the_best_split_is_that_of_brute_force(
        raw in prop::collection::vec((0_u32..60, 0_u32..60, 0_u32..40), 1..30), width in 1_u32..40, budget in 0_u32..3000,
    ) {
        let demand = demand_of(&raw, width);
        let points = sweep(&demand, f64::from(budget));
        let found = points[best(&points)].sum();
        prop_assert!((found - brute_force(&raw, width, f64::from(budget))).abs() < 1e-9);
        prop_assert!(found <= points[0].sum() && found <= points[100].sum());
        prop_assert!(bound(&demand, f64::from(budget)) <= found + 1e-9);
    }

    #[test]
    fn more_memory_never_leaves_more(
        raw in prop::collection::vec((0_u32..60, 0_u32..60, 0_u32..40), 1..30), width in 1_u32..40, budget in 0_u32..2000, more in 0_u32..2000,
    ) {
        let demand = demand_of(&raw, width);
        let left = |bytes: u32| {
            let points = sweep(&demand, f64::from(bytes));
            points[best(&points)].sum()
        };
        // With the same share both parts grow, so the best of them is no worse. A larger clique is more memory for the same vertices.
        prop_assert!(left(budget + more) <= left(budget));
    }

    #[test]
    fn a_shared_cache_beats_the_same_bytes_replicated(
        raw in prop::collection::vec((0_u32..60, 0_u32..60, 0_u32..40), 1..30), width in 1_u32..40, budget in 0_u32..1500, gpus in 1_u32..5,
    ) {
        // Each of K GPUs has b bytes. Replicated, the clique's reads are served by b; shared, by K b.
        let demand = demand_of(&raw, width);
        let left = |bytes: f64| {
            let points = sweep(&demand, bytes);
            points[best(&points)].sum()
        };
        let (shared, replicated) = (left(f64::from(gpus * budget)), left(f64::from(budget)));
        prop_assert!(shared <= replicated);
        if gpus == 1 {
            prop_assert_eq!(shared, replicated);
        }
    }

    #[test]
    fn every_vertex_has_one_place_where_it_fits(
        sizes in prop::collection::vec(1_u64..50, 1..40), room in 50_u32..300, gpus in 1_usize..4, seed in 0_u64..100,
    ) {
        let vertices: Vec<u32> = (0..u32::try_from(sizes.len()).expect("few")).collect();
        let mut stream = engine::random::stream(seed, "test");
        let own: Vec<Vec<u32>> = (0..gpus).map(|_| vertices.iter().map(|_| u32::try_from(stream.below(9)).expect("small")).collect()).collect();
        let own: Vec<&[u32]> = own.iter().map(Vec::as_slice).collect();
        let placed = place(&vertices, &|vertex| sizes[vertex as usize], &own, f64::from(room));
        let mut bytes = vec![0.0; gpus];
        for (vertex, owner) in vertices.iter().zip(&placed.owners) {
            if let Some(gpu) = owner {
                bytes[*gpu as usize] += hw::real(sizes[*vertex as usize]);
            }
        }
        prop_assert_eq!(&bytes, &placed.bytes);
        prop_assert!(bytes.iter().all(|bytes| *bytes <= f64::from(room)));
        // Who is left out fits nowhere, so every GPU is nearly full.
        if placed.owners.contains(&None) {
            prop_assert!(bytes.iter().all(|bytes| *bytes > f64::from(room) - 50.0));
        }
    }
}
