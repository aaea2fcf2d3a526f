//! The closed form against stations that are played one by one, and what another machine or another cut has to change.

use engine::cost::roofline::Roofline;
use hw::{Cluster, Seconds};
use proptest::prelude::*;

use super::*;
use crate::step_cost::adapters::AdapterLoad;
use crate::step_cost::lanes::Lanes;
use crate::step_cost::least::Prices;
use crate::step_cost::{Chunk, FfnSide, Placed};

fn stations([attention, there, experts, back]: [u64; 4], n_layers: u32) -> Stations {
    let [attention, there, experts, back] =
        [attention, there, experts, back].map(|ticks| Tick::new(ticks * u64::from(n_layers)));
    Stations { attention, there, experts, back }
}

/// No keys.
const NONE: (Tick, u64, u64) = (Tick::ZERO, 1, 1);

/// Every micro-batch at every station of every layer, one after another: a station takes them in order, and none is at the next layer before it is back.
fn played(times: [u64; 4], n_layers: u32, micro_batches: u32) -> u64 {
    let (mut free, mut left) = ([0; 4], vec![0; micro_batches as usize]);
    for _ in 0..n_layers {
        for left in &mut left {
            for (free, time) in free.iter_mut().zip(times) {
                *free = (*free).max(*left) + time;
                *left = *free;
            }
        }
    }
    left.into_iter().max().unwrap_or(0)
}

proptest! {
    #[test]
    fn the_closed_form_is_what_the_stations_take_one_by_one(
        times in prop::array::uniform4(0_u64..200), n_layers in 1_u32..9, micro_batches in 1_u32..9,
    ) {
        let found = stations(times, n_layers).lines(n_layers, micro_batches, NONE).at(0);
        prop_assert_eq!(found.get(), played(times, n_layers, micro_batches));
    }

    #[test]
    fn keys_lengthen_attention_alone(
        times in prop::array::uniform4(0_u64..200), n_layers in 1_u32..9, micro_batches in 1_u32..9, per_key in 0_u64..9, keys in 0_u64..100,
    ) {
        let [attention, there, experts, back] = times;
        let layers = u64::from(n_layers);
        let lines = stations(times, n_layers).lines(n_layers, micro_batches, (Tick::new(per_key * layers), 1, 1));
        let longer = [attention + per_key * keys, there, experts, back];
        prop_assert_eq!(lines.at(keys).get(), played(longer, n_layers, micro_batches));
    }

    #[test]
    fn a_line_is_the_longest_until_another_one_is(
        times in prop::array::uniform4(0_u64..200), n_layers in 1_u32..9, micro_batches in 1_u32..9, per_key in 0_u64..60, keys in 0_u64..300,
    ) {
        let lines = stations(times, n_layers).lines(n_layers, micro_batches, (Tick::new(per_key), 1, 1));
        let (line, until) = lines.longest(keys);
        prop_assert!(until >= keys);
        for at in keys..=until.min(keys + 2000) {
            prop_assert_eq!(line.at(at), lines.at(at));
        }
        if until < u64::MAX {
            prop_assert!(lines.at(until + 1) > line.at(until + 1));
        }
    }
}

#[test]
fn one_micro_batch_goes_from_side_to_side_and_many_wait_for_the_slower_one() {
    // Without a way between them, both sides of 30 layers.
    let time = |m: u32| stations([7, 0, 11, 0], 30).lines(30, m, NONE).at(0).get();
    assert_eq!(time(1), 30 * (7 + 11));
    assert_eq!(time(2), 30 * 2 * 11 + 7);
    let many = hw::real(time(1000)) / hw::real(30 * 1000 * 11);
    assert!((1.0..1.0001).contains(&many), "{many}");
    // A way that is longer than either side sets the pace.
    let slow = stations([7, 13, 11, 2], 30).lines(30, 100, NONE).at(0).get();
    assert_eq!(slow, 30 * 100 * 13 + 7 + 11 + 2);
}

/// Mixtral in 16 bits: groups of two GPUs that attend, and some that hold experts.
fn table(cluster: &Cluster, ffn: FfnSide) -> StepTable {
    let model = engine::model::embedded("mixtral-8x22b").expect("embedded");
    let config = ReplicaConfig { ffn: Some(ffn), expert_degree: ffn.gpus, ..ReplicaConfig::new(&model, cluster, 2) };
    StepTable::new(&config, (2048, 512), &Roofline::new(cluster), Case::Expected)
}

fn h100() -> Cluster {
    hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 4, 8)
}

/// Times of stations that nothing orders, asked at a few sizes.
fn hostile(micro_batches: u32, ranks: u32, n_layers: u32, (seed, tokens_max): (u64, u32)) -> StepTable {
    let drawn = |of: u64| move |m: u64| Seconds::new(1e-9 * hw::real((seed + of) * (m + 7) * 7919 % 4001 + 17 * m));
    let tokens = tokens_max.div_ceil(micro_batches) as usize;
    let apart = PingPong {
        n_layers,
        micro_batches,
        ranks,
        attention: filled(tokens, drawn(1)),
        experts: filled(tokens * ranks as usize, drawn(2)),
        there: filled(tokens, drawn(3)),
        back: filled(tokens, drawn(4)),
        source: Source::Measured,
    };
    let [even, lone] = apart.by_tokens(tokens_max);
    StepTable {
        tokens: even,
        alone: lone,
        lanes: Lanes { stages: 1, ranks },
        tokens_max,
        apart: Some(Box::new(apart)),
        ..StepTable::linear(Seconds::ZERO, Seconds::ZERO, Seconds::new(1e-8))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_batch_of_two_sides_is_cheaper_than_its_tokens(
        (micro_batches, ranks, n_layers) in (1_u32..6, 1_u32..5, 1_u32..5), seed in 0_u64..10_000, tokens_max in 6_u32..200, sequences in 1_u32..60,
        of_groups in prop::collection::vec((0_u32..200, 0_u32..200), 4), keys in 0_u64..10_000,
    ) {
        let table = hostile(micro_batches, ranks, n_layers, (seed, tokens_max));
        let found = table.least(sequences.min(tokens_max) * ranks, tokens_max).expect("prices");
        // Sequences of a group decode beside chunks of its prompts, within both limits.
        let of_groups = of_groups.into_iter().take(ranks as usize);
        let cut = |(decode, chunk): (u32, u32)| {
            let decode = decode.min(sequences).min(tokens_max);
            (decode, chunk.min(tokens_max - decode))
        };
        let of_groups: Vec<(u32, u32)> = of_groups.map(cut).collect();
        let n_decode = of_groups.iter().map(|(decode, _)| decode).sum::<u32>();
        let largest = n_decode.div_ceil(ranks);
        let chunks: Vec<Placed> = (0..).zip(&of_groups).filter(|(_, (_, chunk))| *chunk > 0).map(|(rank, (_, chunk))| {
            Placed { chunk: Chunk { past: 0, new: (*chunk).min(tokens_max - largest).max(1) }, rank: Some(rank) }
        }).collect();
        prop_assume!(n_decode > 0 || !chunks.is_empty());
        prop_assume!(largest < tokens_max || chunks.is_empty());
        let n_chunk_tokens: u32 = chunks.iter().map(|placed| placed.chunk.new).sum();
        let (n_chunks, context) = (u32::try_from(chunks.len()).expect("few"), if n_decode > 0 { keys } else { 0 });
        let load = StepLoad { n_decode, context, n_chunk_tokens, n_chunks, ..StepLoad::default() };
        let ticks = table.round(&load, chunks.into_iter()).ticks.as_f64();
        for Prices { prompt, decoded, key } in &found.prices {
            let least = prompt * f64::from(n_chunk_tokens) + decoded * f64::from(n_decode) + key * hw::real(context);
            // Whole ticks on the one side, of every station and of each key.
            prop_assert!(least <= ticks + 16.0 + hw::real(context), "{least} above {ticks}");
        }
    }
}

#[test]
fn prices_of_two_sides_are_reached_by_a_full_batch() {
    // Attention takes 1 us a token and a layer, experts 3 us for the same tokens, and ways nothing: with many micro-batches experts are never idle.
    let linear = |us: f64| move |m: u64| Seconds::new(us * 1e-6 * hw::real(m));
    let (n_layers, ranks) = (30, 4);
    for (micro_batches, us) in [(1, 4.0), (4, 3.0 + 1.0 / 120.0)] {
        let sides = |us: f64, n: usize| filled(n, linear(us * f64::from(n_layers)));
        let apart = PingPong {
            n_layers,
            micro_batches,
            ranks,
            attention: sides(1.0, 1024),
            experts: sides(0.75, 4096),
            there: sides(0.0, 1024),
            back: sides(0.0, 1024),
            source: Source::Measured,
        };
        let [even, lone] = apart.by_tokens(1024);
        let lanes = Lanes { stages: 1, ranks };
        let plain = StepTable::constant(Seconds::ZERO);
        let table = StepTable { tokens: even, alone: lone, lanes, apart: Some(Box::new(apart)), ..plain };
        let found = table.least(512 * ranks, 1024).expect("prices");
        let best = found.prices.iter().map(|prices| prices.decoded).fold(0.0, f64::max) * Tick::SECONDS * 1e6;
        // A layer's time of a group's token, of which each of four groups has one.
        let wanted = us * f64::from(n_layers) / f64::from(ranks);
        assert!((best / wanted - 1.0).abs() < 1e-3, "{micro_batches}: {best} of {wanted}");
        let played = ticks(&table, &decoding(512 * ranks, 0)).as_f64() * Tick::SECONDS * 1e6;
        assert!((played / (best * 2048.0) - 1.0).abs() < 1e-2, "{micro_batches}: {played}");
    }
}

const SIDES: FfnSide = FfnSide { gpus: 8, attention_ranks: 4, micro_batches: 3 };

fn decoding(n_decode: u32, context: u64) -> StepLoad {
    StepLoad { n_decode, context, n_sampled: n_decode, ..StepLoad::default() }
}

fn ticks(table: &StepTable, load: &StepLoad) -> Tick {
    table.step(load, std::iter::empty())
}

#[test]
fn a_law_holds_for_as_many_keys_as_it_says() {
    let table = table(&h100(), SIDES);
    for n_decode in [1, 5, 64, 1000] {
        let (mut context, mut n_lines) = (0, 0);
        while context < 100_000_000 {
            let law = table.law_of(n_decode, AdapterLoad::default(), context);
            let last = law.until.min(100_000_000);
            for keys in [context, context.midpoint(last), last] {
                assert_eq!(ticks(&table, &decoding(n_decode, keys)), (law.fixed + law.rate * keys).max(law.least));
            }
            assert!(ticks(&table, &decoding(n_decode, last + 1)) >= law.fixed + law.rate * (last + 1));
            (context, n_lines) = (last + 1, n_lines + 1);
        }
        // With keys enough attention is the slower side.
        assert!((1..=4).contains(&n_lines) && (n_decode < 64 || n_lines > 1), "{n_decode}: {n_lines}");
    }
}

#[test]
fn a_faster_way_is_never_slower_and_neither_side_has_less_time_than_its_work() {
    let with = |gbit: f64| {
        let mut cluster = h100();
        cluster.nic_bandwidth = hw::BytesPerSecond::new(gbit / 8.0 * 1e9);
        cluster
    };
    for micro_batches in [1, 2, 3, 4] {
        for load in [decoding(64, 64_000), decoding(800, 3_000_000)] {
            let sides = FfnSide { micro_batches, ..SIDES };
            let times = [50.0, 200.0, 400.0, 3200.0].map(|gbit| ticks(&table(&with(gbit), sides), &load));
            assert!(times.is_sorted_by(|slow, fast| slow >= fast), "{times:?}");
            let table = table(&with(400.0), sides);
            let apart = table.apart.as_ref().expect("two sides");
            let m = u64::from(apart.parts(u64::from(load.n_decode.div_ceil(4))));
            let tokens = u64::from(load.n_decode.div_ceil(4));
            let found = apart.stations([tokens, 4 * tokens]);
            let attends = found.attention * m + table.rate(load.n_decode) * load.context;
            let slack = times[2] / 1000;
            assert!(times[2] + slack >= attends && times[2] >= found.experts * m, "{micro_batches}");
        }
    }
}

#[test]
fn prompts_are_cut_in_micro_batches_as_well() {
    let table = table(&h100(), SIDES);
    let chunk = |new: u32| {
        let load = StepLoad { n_chunk_tokens: 4 * new, n_chunks: 4, n_sampled: 4, ..StepLoad::default() };
        table.step(&load, (0..4).map(|_| Chunk { past: 0, new }))
    };
    assert!(chunk(512) < chunk(1024) && chunk(1024) < chunk(2048));
    // Without attention it is no shorter than the tokens alone are, which bounds of prompts rest on.
    assert!(chunk(2048) >= table.least_tokens(2048));
    // One group with tokens sends fewer to the experts.
    let load = StepLoad { n_chunk_tokens: 2048, n_chunks: 1, n_sampled: 1, ..StepLoad::default() };
    assert!(table.step(&load, std::iter::once(Chunk { past: 0, new: 2048 })) <= chunk(2048));
}
