//! The tabulated iteration against the cost model itself, and against weights over bandwidth.

use super::*;
use crate::cost::roofline::{KERNEL_START_S, Roofline};

fn a100() -> Cluster {
    hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8)
}

fn with_table(tensor_degree: u32, check: impl Fn(&StepTable, &Writer<'_>)) {
    let (model, cluster) = (crate::model::embedded("llama-3-8b").expect("listed"), a100());
    let cost = Roofline::new(&cluster);
    let deployment = Deployment {
        model: &model,
        cluster: &cluster,
        tensor_degree,
        dtype: Dtype::Bf16,
        host_per_step: Seconds::ZERO,
        host_per_sequence: Seconds::ZERO,
    };
    check(
        &StepTable::new(&deployment, (2048, 256), &cost, Case::Expected),
        &Writer::new(&deployment, &cost, Case::Expected),
    );
}

#[test]
fn knots_and_positions_are_each_others_inverse() {
    for index in 0..40 {
        assert_eq!(position(knot(index)), (index, 0.0));
    }
    assert_eq!((position(5).0, position(5).1), (3, 0.5));
    assert_eq!((past_position(0), past_position(32), past_position(64)), ((0, 0.0), (0, 0.5), (1, 0.0)));
}

#[test]
fn a_decode_step_reads_all_weights_and_all_cached_tokens_once() {
    with_table(1, |table, _| {
        // 8.03e9 parameters, embedding of 0.53e9 left out, two bytes each at 0.75 · 2039e9 B/s: 9.81 ms; starts of
        // kernels add at most 12 per layer.
        let step_s = |ticks: u64| span_of(ticks).to_seconds().get();
        let floor = (8.03e9 - 0.53e9) * 2.0 / (0.75 * 2039e9);
        let found = step_s(table.decode_only(1));
        assert!(found > floor, "{found} of {floor}");
        assert!(found < floor + 32.0 * (12.0 * KERNEL_START_S + 18e-6), "{found} of {floor}");
        // A cached token is 131,072 bytes at the 0.83 of the bandwidth that is assumed where nothing was fitted: 77.4 ns.
        assert!((step_s(table.per_cached_token() * 1_000_000) / 1e6 - 77.45e-9).abs() < 0.1e-9);
    });
}

#[test]
fn the_table_says_what_the_cost_model_says() {
    with_table(2, |table, writer| {
        for m in [1, 7, 64, 65, 100, 511, 513, 1000, 2048] {
            let (found, direct) = (table.tokens_at(m), ticks_of(writer.layers(m)));
            assert!(found.abs_diff(direct) * 100 <= direct, "{m} tokens: {found} of {direct}");
        }
        for (past, new) in [(0, 1), (0, 333), (10, 512), (777, 512), (3000, 100), (100_000, 512), (5000, 2000)] {
            let chunk = Chunk { past, new };
            let (found, direct) = (table.prefill.ticks(chunk), ticks_of(writer.prefill(chunk)));
            assert!(found.abs_diff(direct) * 25 <= direct, "{chunk:?}: {found} of {direct}");
        }
    });
}

#[test]
fn an_iteration_is_the_sum_of_its_parts() {
    with_table(1, |table, writer| {
        let chunk = Chunk { past: 512, new: 512 };
        let load = StepLoad { n_decode: 8, context: 10_000, n_chunk_tokens: 512, n_chunks: 1, n_sampled: 9 };
        let parts = ticks_of(writer.layers(520)) + ticks_of(writer.head(9)) + ticks_of(writer.prefill(chunk));
        let [start, per_sequence, per_key] = table.decode.alone;
        let attention = start + 8 * per_sequence + 10_000 * per_key;
        let found = table.step(&load, std::iter::once(chunk));
        assert!(found.abs_diff(parts + attention) * 200 <= found, "{found} of {}", parts + attention);
    });
}

#[test]
fn more_gpus_are_faster_but_not_by_more_than_their_number() {
    let at = std::cell::RefCell::new(Vec::new());
    for tp in [1, 2, 4, 8] {
        with_table(tp, |table, _| at.borrow_mut().push(table.decode_only(64)));
    }
    let at = at.into_inner();
    assert!(at.windows(2).all(|pair| pair[1] < pair[0] && pair[1] * 2 > pair[0]), "{at:?}");
}
