//! An outlook against fleets that are simulated, and deadlines against every subset.

mod roles;

use std::collections::BTreeMap;

use hw::{Span, Time};
use proptest::prelude::*;

use super::load::computed;
use super::*;
use crate::batcher;
use crate::beginnings::Beginnings;
use crate::fleet::{Fleet, Group};
use crate::metrics::{self, Slo};
use crate::replica::{Engine, Limits, Role, Spans};
use crate::request::Requests;
use crate::router;
use crate::speculation::{DraftKind, Speculation};
use crate::step_cost::FfnSide;
use engine::cost::roofline::Roofline;
use engine::play::Case;

/// The most jobs on time, by trying every subset.
fn by_subsets(jobs: &[Job]) -> usize {
    let mut sorted = jobs.to_vec();
    sorted.sort_by(|a, b| a.due_s.total_cmp(&b.due_s));
    let fits = |subset: u32| {
        let mut busy_s = 0.0;
        sorted.iter().enumerate().filter(|(index, _)| subset >> index & 1 == 1).all(|(_, job)| {
            busy_s += job.work_s;
            busy_s <= job.due_s
        })
    };
    (0_u32..1 << jobs.len())
        .filter(|subset| fits(*subset))
        .map(|subset| subset.count_ones() as usize)
        .max()
        .unwrap_or(0)
}

/// Requests at a steady pace with lengths that vary.
fn requests(n: u64, gap_ms: u64, seed: u64) -> Requests {
    let of = |index: u64| {
        let drawn = (index * 2_654_435_761 + seed * 40_503) % 997;
        let [prompt, output] = [64 + drawn * 3, 1 + drawn % 200].map(|n| u32::try_from(n).expect("small"));
        Request::new(Time::ZERO + Span::from_ns(index * gap_ms * 1_000_000), prompt, output)
    };
    Requests::of((0..n).map(of).collect())
}

/// The first figure that is better than an outlook at 2 dollars per GPU and hour says is possible.
fn better_than(outlook: &Outlook<'_>, figures: &BTreeMap<String, f64>) -> Option<String> {
    figures.iter().find_map(|(metric, &value)| {
        let best = outlook.figure(metric, Some(2.0))?;
        let is_better = if metric.contains("per_s") { value > best } else { value < best * (1.0 - 1e-9) };
        is_better.then(|| format!("{metric}: {value}, at best {best}"))
    })
}

/// Seconds of a replica that requests take together at least, by the best pair of prices.
fn least_work_s(table: &StepTable, limits: &Limits, requests: &Requests) -> f64 {
    let pairs = work::work(table, limits, Role::Both, requests).expect("plain stages");
    pairs.iter().map(|seconds| seconds.iter().sum()).fold(0.0, f64::max)
}

#[test]
fn the_least_work_of_a_full_batch_is_its_iteration() {
    // Ten prompts of 100 tokens in one iteration of 4 ms and 10 us a token: 14 ms, of which each has a tenth.
    let table = StepTable::linear(Seconds::new(4e-3), Seconds::new(1e-5), Seconds::new(1e-8));
    let requests = Requests::of(vec![Request::new(Time::ZERO, 100, 1); 10]);
    let limits = Limits { sequences_max: 10, tokens_max: 1000, ..Limits::ROOMY };
    let found = least_work_s(&table, &limits, &requests) * (1.0 + SLACK);
    assert!((found / 0.014 - 1.0).abs() < 1e-6, "{found}");
    let prefill = work::work(&table, &limits, Role::Prefill, &requests).expect("plain");
    assert!((prefill.last().expect("pairs")[0] * (1.0 + SLACK) / 0.0014 - 1.0).abs() < 1e-6);
    // Eleven tokens each from ten at once: ten iterations of 4.1 ms, and 100 to 109 keys each time.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 100, 11); 10]);
    let decode = work::work(&table, &limits, Role::Decode, &requests).expect("plain");
    let [first, keys_s] = [decode[0][0] * (1.0 + SLACK), 1045.0 * 1e-8];
    assert!((first / (0.0041 + keys_s) - 1.0).abs() < 1e-6, "{first}");
}

proptest! {
    #[test]
    fn as_many_jobs_are_on_time_as_in_the_best_subset(of in prop::collection::vec((1_u32..20, 1_u32..10), 0..9)) {
        let jobs: Vec<Job> =
            of.iter().map(|(due, work)| Job { due_s: f64::from(*due), work_s: f64::from(*work) }).collect();
        prop_assert_eq!(on_time(&mut jobs.clone()), by_subsets(&jobs));
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_fleet_is_better_than_its_outlook(
        seed in 0_u64..1000,
        gap_ms in 1_u64..40,
        replicas in 1_u32..4,
        sequences in prop::sample::select(vec![4_u32, 32, 200]),
        tokens in prop::sample::select(vec![256_u32, 1000, 4096]),
        degrees in prop::sample::select(vec![(1_u32, 1_u32), (2, 1), (1, 2)]),
        batcher in prop::sample::select(vec!["vllm-v1", "sarathi", "vllm-v0"]),
        (n_drafts, drafts, acceptance) in (0_u32..6, 0_usize..3, 0.0..=1.0_f64),
        (beginnings, shares_prefixes) in (0_u32..4, any::<bool>()),
    ) {
        let model = engine::model::embedded("llama-3-8b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8);
        let cost = Roofline::new(&cluster);
        let small = engine::model::embedded("llama-3.2-1b").expect("listed");
        // Look-up, a model of its own, a head that reads the model's states.
        let kinds = [None, Some(DraftKind::Model), Some(DraftKind::Head(engine::model::DraftHead::Eagle))];
        let draft = kinds[drafts].filter(|_| n_drafts > 0).map(|kind| (&small, kind));
        let config = ReplicaConfig { pipeline_degree: degrees.1, draft, ..ReplicaConfig::new(&model, &cluster, degrees.0) };
        let tokens = if batcher == "vllm-v0" { 4096 } else { tokens };
        let sequences = sequences.min(tokens / (1 + n_drafts));
        let per_draft = Seconds::new(if drafts == 0 { 1e-4 } else { 0.0 });
        let speculation = Speculation { n_drafts, tree: None, acceptance, per_draft, seed };
        let speculating = |table: StepTable| if n_drafts > 0 { table.speculating(&speculation) } else { table };
        let table = StepTable::new(&config, (tokens, sequences * (1 + n_drafts)), &cost, Case::Expected);
        let table = speculating(table);
        // Bounds of all limits come from one table.
        let largest = speculating(StepTable::new(&config, (8192, 256 * (1 + n_drafts)), &cost, Case::Expected));
        let mut requests = requests(60, gap_ms, seed);
        Beginnings { n: beginnings, tokens: 256 }.lay(&mut requests, seed);
        let limits = Limits { sequences_max: sequences, tokens_max: tokens, shares_prefixes, ..Limits::ROOMY };
        let batcher = batcher::named(batcher).expect("listed");
        let work_s = least_work_s(&table, &limits, &requests);
        let engine = Engine { limits, table, batcher, spans: Spans::Closed };
        let gpus_per_replica = degrees.0 * degrees.1;
        let group =
            Group { gpus_per_replica, usd_per_gpu_hour: Some(2.0), ..Group::new("all", engine, replicas) };
        let fleet = Fleet { groups: vec![group], ..Fleet::default() };
        let mut router = (router::named("least-loaded").expect("listed").make)(seed);
        let served = fleet.serve(&requests, router.as_mut());
        let slo = Slo { ttft: Some(Seconds::new(0.2)), tpot: Some(Seconds::new(0.02)), e2e: None };
        let mut figures = metrics::of(&requests, &served, &slo, Seconds::ZERO);
        metrics::fleet::add(&mut figures, &fleet, &served);
        metrics::energy::add(&mut figures, &[(config.clone(), limits)], &fleet, (&requests, &served));
        if !shares_prefixes {
            let there_s = figures["makespan_s"] * f64::from(replicas);
            prop_assert!(work_s <= there_s, "{work_s} s of work in {there_s} s");
        }
        prop_assert!(figures.contains_key("energy_wh"), "the limit of the card is known");
        let load = Load::of(&requests, Counted { keeps_prefixes: shares_prefixes, ..Counted::default() }).expect("patient clients");
        let replica = Replica::new(&config, &cost, largest, load);
        let outlook = replica.outlook(replicas, gpus_per_replica, &limits).expect("room for all");
        if let Some(better) = better_than(&outlook, &figures) {
            prop_assert!(false, "{better}");
        }
        let first = Slo { tpot: None, ..slo };
        let of_first = metrics::of(&requests, &served, &first, Seconds::ZERO)["slo_attainment_ratio"];
        prop_assert!(of_first <= outlook.met_ratio(Seconds::new(0.2), None));
        prop_assert!(figures["slo_attainment_ratio"] <= outlook.met_ratio(Seconds::new(0.2), slo.tpot));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_fleet_with_experts_is_better_than_its_outlook(
        seed in 0_u64..1000,
        gap_ms in 1_u64..60,
        replicas in 1_u32..3,
        sequences in prop::sample::select(vec![2_u32, 16, 128]),
        tokens in prop::sample::select(vec![256_u32, 2048, 30_000]),
        (tensor_degree, pipeline_degree, expert_degree) in
            prop::sample::select(vec![(2_u32, 1_u32, 1_u32), (2, 1, 4), (1, 1, 8), (2, 2, 1), (1, 2, 8)]),
        (n_drafts, times_longer) in (0_u32..3, prop::sample::select(vec![1_u32, 10])),
    ) {
        let model = engine::model::embedded("mixtral-8x7b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 2, 8);
        let cost = Roofline::new(&cluster);
        let of_degrees = ReplicaConfig::new(&model, &cluster, tensor_degree);
        let config = ReplicaConfig { pipeline_degree, expert_degree, ..of_degrees };
        let per_draft = Seconds::new(1e-4);
        let speculation = Speculation { n_drafts, tree: None, acceptance: 0.6, per_draft, seed };
        let speculating = |table: StepTable| if n_drafts > 0 { table.speculating(&speculation) } else { table };
        let table = |tokens: u32, sequences: u32| {
            let most = sequences * (1 + n_drafts);
            speculating(StepTable::new(&config, (tokens, most), &cost, Case::Expected))
        };
        let mut requests = requests(50, gap_ms, seed);
        // Attention of prompts of 30,000 tokens takes as long as their products.
        requests.list.iter_mut().for_each(|request| request.prompt *= times_longer);
        let sequences = sequences.min(tokens / (1 + n_drafts));
        let limits = Limits { sequences_max: sequences, tokens_max: tokens, ..Limits::ROOMY };
        let batcher = batcher::named("vllm-v1").expect("listed");
        let engine = Engine { limits, table: table(tokens, sequences), batcher, spans: Spans::Closed };
        let work_s = least_work_s(&engine.table, &limits, &requests);
        let gpus_per_replica = config.n_gpus();
        let fleet = Fleet::of(Group { gpus_per_replica, ..Group::new("all", engine, replicas) });
        let mut router = (router::named("least-loaded").expect("listed").make)(seed);
        let served = fleet.serve(&requests, router.as_mut());
        let slo = Slo { ttft: Some(Seconds::new(1.0)), tpot: Some(Seconds::new(0.05)), e2e: None };
        let mut figures = metrics::of(&requests, &served, &slo, Seconds::ZERO);
        metrics::energy::add(&mut figures, &[(config.clone(), limits)], &fleet, (&requests, &served));
        let there_s = figures["makespan_s"] * f64::from(replicas);
        prop_assert!(work_s <= there_s, "{work_s} s of work in {there_s} s");
        let load = Load::of(&requests, Counted::default()).expect("patient clients");
        let replica = Replica::new(&config, &cost, table(32_768, 256), load);
        let outlook = replica.outlook(replicas, gpus_per_replica, &limits).expect("room for all");
        prop_assert!(figures.contains_key("energy_wh"), "the limit of the card is known");
        if let Some(better) = better_than(&outlook, &figures) {
            prop_assert!(false, "{better}");
        }
        prop_assert!(figures["slo_attainment_ratio"] <= outlook.met_ratio(Seconds::new(1.0), slo.tpot));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_fleet_whose_experts_have_gpus_of_their_own_is_better_than_its_outlook(
        seed in 0_u64..1000,
        gap_ms in prop::sample::select(vec![0_u64, 1, 20]),
        replicas in 1_u32..3,
        role in prop::sample::select(vec![Role::Both, Role::Outputs]),
        sequences in prop::sample::select(vec![1_u32, 5, 64]),
        tokens in prop::sample::select(vec![256_u32, 2048]),
        (tensor_degree, gpus) in prop::sample::select(vec![(1_u32, 1_u32), (1, 8), (2, 4)]),
        attention_ranks in 1_u32..5,
        micro_batches in 1_u32..5,
    ) {
        let model = engine::model::embedded("mixtral-8x7b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 4, 8);
        let cost = Roofline::new(&cluster);
        let ffn = Some(FfnSide { gpus, attention_ranks, micro_batches });
        let config = ReplicaConfig { ffn, expert_degree: gpus, ..ReplicaConfig::new(&model, &cluster, tensor_degree) };
        let table = |tokens: u32, sequences: u32| StepTable::new(&config, (tokens, sequences), &cost, Case::Expected);
        let requests = requests(80, gap_ms, seed);
        let limits = Limits { sequences_max: sequences, tokens_max: tokens, ..Limits::ROOMY };
        let batcher = batcher::named("vllm-v1").expect("listed");
        let engine = Engine { limits, table: table(tokens, sequences), batcher, spans: Spans::Closed };
        let gpus_per_replica = config.n_gpus();
        let group = Group { gpus_per_replica, usd_per_gpu_hour: Some(2.0), role, ..Group::new("all", engine, replicas) };
        let fleet = Fleet::of(group);
        let mut router = (router::named("least-loaded").expect("listed").make)(seed);
        let served = fleet.serve(&requests, router.as_mut());
        let slo = Slo { ttft: Some(Seconds::new(0.5)), tpot: Some(Seconds::new(0.03)), e2e: None };
        let mut figures = metrics::of(&requests, &served, &slo, Seconds::ZERO);
        metrics::fleet::add(&mut figures, &fleet, &served);
        metrics::energy::add(&mut figures, &[(config.clone(), limits)], &fleet, (&requests, &served));
        let load = Load::of(&requests, Counted { role, ..Counted::default() }).expect("patient clients");
        let replica = Replica::new(&config, &cost, table(4096, 128), load);
        let outlook = replica.outlook(replicas, gpus_per_replica, &limits).expect("prices of both sides");
        prop_assert!(figures.contains_key("energy_wh"), "the limit of the card is known");
        if let Some(better) = better_than(&outlook, &figures) {
            prop_assert!(false, "{better}");
        }
        prop_assert!(figures["slo_attainment_ratio"] <= outlook.met_ratio(Seconds::new(0.5), slo.tpot));
        let work = work::work(&fleet.groups[0].engine.table, &limits, role, &requests).expect("prices");
        let work_s = work.iter().map(|seconds| seconds.iter().sum()).fold(0.0, f64::max);
        prop_assert!(work_s <= figures["makespan_s"] * f64::from(replicas));
    }
}

#[test]
fn a_full_fleet_of_two_sides_is_close_to_its_outlook() {
    let model = engine::model::embedded("mixtral-8x22b").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 4, 8);
    let cost = Roofline::new(&cluster);
    let requests = Requests::of(vec![Request::new(Time::ZERO, 500, 400); 2048]);
    let load = Load::of(&requests, Counted { role: Role::Outputs, ..Counted::default() }).expect("requests");
    let limits = Limits { sequences_max: 512, tokens_max: 2048, ..Limits::ROOMY };
    for micro_batches in [1, 2, 4] {
        let ffn = Some(FfnSide { gpus: 8, attention_ranks: 4, micro_batches });
        let config = ReplicaConfig { ffn, expert_degree: 8, ..ReplicaConfig::new(&model, &cluster, 1) };
        let table = || StepTable::new(&config, (2048, 512), &cost, Case::Expected);
        let batcher = batcher::named("vllm-v1").expect("listed");
        let engine = Engine { limits, table: table(), batcher, spans: Spans::Closed };
        let fleet = Fleet::of(Group { role: Role::Outputs, ..Group::new("all", engine, 1) });
        let served = fleet.serve(&requests, (router::ROUTERS[0].make)(0).as_mut());
        let played_s = metrics::of(&requests, &served, &Slo::default(), Seconds::ZERO)["makespan_s"];
        let replica = Replica::new(&config, &cost, table(), load.clone());
        let least_s = replica.outlook(1, config.n_gpus(), &limits).and_then(|best| best.figure("makespan_s", None));
        let over = played_s / least_s.expect("known");
        // What attention takes for a sequence beside its keys is not priced.
        assert!((1.0..1.35).contains(&over), "{micro_batches}: {over}");
    }
}

/// Joules of a replica of one H100 over those that its outlook knows, and over those of a card that waits, with so many sequences at once at most.
fn energy_over(sequences: u32) -> [f64; 2] {
    let model = engine::model::embedded("llama-3-8b").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
    let (cost, config) = (Roofline::new(&cluster), ReplicaConfig::new(&model, &cluster, 1));
    let table = || StepTable::new(&config, (2048, 256), &cost, Case::Expected);
    let requests = Requests::of(vec![Request::new(Time::ZERO, 200, 500); 512]);
    let limits = Limits { sequences_max: sequences, tokens_max: 2048, ..Limits::ROOMY };
    let batcher = batcher::named("vllm-v1").expect("listed");
    let engine = Engine { limits, table: table(), batcher, spans: Spans::Closed };
    let fleet = Fleet::of(Group::new("all", engine, 1));
    let served = fleet.serve(&requests, (router::ROUTERS[0].make)(0).as_mut());
    let mut figures = metrics::of(&requests, &served, &Slo::default(), Seconds::ZERO);
    metrics::energy::add(&mut figures, &[(config.clone(), limits)], &fleet, (&requests, &served));
    let load = Load::of(&requests, Counted::default()).expect("patient clients");
    let replica = Replica::new(&config, &cost, table(), load);
    let outlook = replica.outlook(1, 1, &limits).expect("plain");
    let waiting = Power::of(&cluster.gpu).expect("known").idle_watts() * figures["makespan_s"] / JOULES_PER_WH;
    [figures["energy_wh"] / outlook.figure("energy_wh", None).expect("known"), figures["energy_wh"] / waiting]
}

#[test]
fn the_least_energy_knows_the_work_of_a_batch_that_is_never_larger() {
    // With few sequences weights are read for each few tokens: that is most of what a card draws beyond waiting, and the outlook knows it.
    for sequences in [4, 16, 64] {
        let [over_least, over_waiting] = energy_over(sequences);
        assert!((1.0..1.15).contains(&over_least) && over_waiting > 1.5, "{sequences}: {over_least}, {over_waiting}");
    }
}

#[test]
fn a_fleet_that_is_far_too_small_is_known_to_be_late() {
    let model = engine::model::embedded("llama-3-8b").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8);
    let (cost, config) = (Roofline::new(&cluster), ReplicaConfig::new(&model, &cluster, 1));
    let table = StepTable::new(&config, (4096, 256), &cost, Case::Expected);
    // 1,500 tokens every 5 ms are 300,000 a second; 312 TFLOP/s over 16 GFLOP a token are 19,500.
    let requests = requests(600, 5, 1);
    let load = Load::of(&requests, Counted { keeps_prefixes: true, ..Counted::default() }).expect("requests");
    let replica = Replica::new(&config, &cost, table, load);
    let met = replica.outlook(1, 1, &Limits::ROOMY).expect("plain").met_ratio(Seconds::new(0.2), None);
    // The shortest prompts may still be served in time.
    assert!(met < 0.25, "{met}");
}

/// A replica that computes nothing but fixed iterations of a millisecond, with drafts.
fn drafting(acceptance: f64, load: &Load<'_>) -> Option<f64> {
    let model = engine::model::embedded("llama-3-8b").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8);
    let (cost, config) = (Roofline::new(&cluster), ReplicaConfig::new(&model, &cluster, 1));
    let speculation = Speculation { n_drafts: 3, tree: None, acceptance, per_draft: Seconds::new(1e-3), seed: 0 };
    let table = StepTable::constant(Seconds::new(1e-3)).speculating(&speculation);
    let replica = Replica::new(&config, &cost, table, load.clone());
    // Blocks of 16 tokens: a sequence of 141 takes nine.
    let limits = Limits { sequences_max: 2, kv_blocks: 18, ..Limits::ROOMY };
    let tight = Limits { kv_blocks: 17, ..limits };
    assert!(replica.outlook(1, 1, &tight).is_none(), "somebody may have to be computed again");
    replica.outlook(1, 1, &limits)?.figure("tpot_s.mean", None)
}

#[test]
fn drafts_that_are_all_accepted_or_none_take_the_iterations_that_they_take() {
    let requests = Requests::of((0..3).map(|_| Request::new(Time::ZERO, 100, 41)).collect());
    let load = Load::of(&requests, Counted::default()).expect("requests");
    // A verification of 1 ms behind three drafts of 1 ms each gives four tokens, or one.
    for (acceptance, wanted) in [(1.0, 1e-3), (0.0, 4e-3)] {
        let found = drafting(acceptance, &load).expect("room for two");
        assert!((found * (1.0 + SLACK) / wanted - 1.0).abs() < 1e-6, "{found} of {wanted}");
    }
}

#[test]
fn of_a_prompt_only_what_no_other_has_too_is_computed_for_sure() {
    let request = |first: u32, count: u32| Request {
        prefix_first: first,
        prefix_count: count,
        ..Request::new(Time::ZERO, 100, 1)
    };
    // Two begin with the same 32 tokens; the third one's 96 are its own, and so are the second one's further ones.
    let list = vec![request(0, 1), request(1, 3), request(4, 3)];
    let prefix_ids = vec![0, 0, 1, 2, 3, 4, 5];
    let requests = Requests { list, prefix_ids, n_prefix_ids: 6, prefix_tokens: 32, ..Requests::default() };
    assert_eq!(computed(&requests), [68, 68, 100]);
    assert_eq!(Load::of(&requests, Counted::default()).expect("requests").computed, [100; 3]);
}

/// A replica of 4 ms an iteration, 10 us a token and 10 ns a key: its outlook for 200 requests of 100 and 101 tokens, with room for so many keys.
fn most_of(keys_max: u32, requests: &Requests) -> f64 {
    let model = engine::model::embedded("llama-3.2-1b").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8);
    // Attention of prompts costs nothing here.
    let cost = engine::cost::roofline::Roofline::new(&cluster);
    let table = StepTable::linear(Seconds::new(4e-3), Seconds::new(1e-5), Seconds::new(1e-8));
    let load = Load::of(requests, Counted::default()).expect("requests");
    let replica = Replica::new(&ReplicaConfig::new(&model, &cluster, 1), &cost, table, load);
    let limits = Limits { sequences_max: 1000, tokens_max: 4096, kv_blocks: keys_max / 16, ..Limits::ROOMY };
    replica.outlook(2, 1, &limits).expect("plain").requests_per_s_most()
}

#[test]
fn no_more_requests_are_served_than_full_batches_of_memory_serve() {
    // A sequence attends to 149.5 keys on average, so 14,960 keys hold 100 of them: an iteration of 4 ms + 1 ms + 149.6 us gives 100 tokens, and a request
    // takes 100 of these tokens and a prompt of 1 ms. Two replicas serve twice as many.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 100, 101); 200]);
    let each_s = 0.01 * (4e-3 + 1e-3 + 14_960.0 * 1e-8) * 100.0 + 100.0 * 1e-5;
    let found = most_of(14_960, &requests);
    // It is a bound, in which prompts ride along for nothing: never fewer requests, and no more than their 1 ms of 6.1 gives.
    assert!((0.99..1.25).contains(&(found * each_s / 2.0)), "{found} and {}", 2.0 / each_s);
    // With more room batches are larger: never fewer requests, and at most those of 1,000 sequences.
    let rates = [14_960, 29_920, 59_840, 160_000].map(|keys| most_of(keys, &requests));
    assert!(rates.windows(2).all(|two| two[0] < two[1]), "{rates:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_fleet_serves_more_than_full_batches_of_its_memory(
        seed in 0_u64..1000, gap_ms in 0_u64..30, replicas in 1_u32..4, kv_blocks in 210_u32..2000,
        shares_prefixes in any::<bool>(), beginnings in 0_u32..4,
    ) {
        let model = engine::model::embedded("llama-3-8b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8);
        let (cost, config) = (Roofline::new(&cluster), ReplicaConfig::new(&model, &cluster, 1));
        let table = || StepTable::new(&config, (2048, 128), &cost, Case::Expected);
        let mut requests = requests(80, gap_ms, seed);
        Beginnings { n: beginnings, tokens: 256 }.lay(&mut requests, seed);
        let limits = Limits { sequences_max: 128, tokens_max: 2048, kv_blocks, shares_prefixes, ..Limits::ROOMY };
        let engine = Engine { limits, table: table(), batcher: batcher::named("vllm-v1").expect("listed"), spans: Spans::Closed };
        let served = Fleet::of(Group::new("all", engine, replicas)).serve(&requests, (router::ROUTERS[0].make)(0).as_mut());
        let figures = metrics::of(&requests, &served, &Slo::default(), Seconds::ZERO);
        let load = Load::of(&requests, Counted { keeps_prefixes: shares_prefixes, ..Counted::default() }).expect("requests");
        let replica = Replica::new(&config, &cost, table(), load);
        let most = replica.outlook(replicas, 1, &limits).expect("plain").requests_per_s_most();
        prop_assert!(figures["requests_per_s"] <= most, "{} above {most}", figures["requests_per_s"]);
    }
}
