//! Small pools against every deployment, the bound, re-planning, compression, and the pool of four A40 and four 3090 Ti.

mod beside;
mod every;

use hw::{Bytes, BytesPerSecond, FlopsPerSecond, Tokens};
use proptest::prelude::*;

use super::super::inventory::{Link, Network, Offer};
use super::played::{Groups, Played, Working};
use super::*;

fn gpu(name: &str, memory_gb: f64, gb_per_s: f64, tflops: f64) -> Gpu {
    Gpu {
        name: name.to_owned(),
        memory: Bytes::from_f64(memory_gb * 1e9),
        visible_memory: None,
        memory_bandwidth: BytesPerSecond::new(gb_per_s * 1e9),
        peak_bf16: FlopsPerSecond::new(tflops * 1e12),
        peak_fp32: None,
        peak_fp8: None,
        peak_int8: None,
        peak_fp4: None,
        power_watts: None,
        intra_node_bandwidth: BytesPerSecond::new(32e9),
        mesh_links: None,
        host_bandwidth: BytesPerSecond::new(32e9),
        peer_access: true,
        source: "design page, section 8, unverified".to_owned(),
        prices: Vec::new(),
    }
}

/// Machines with one link of so many bytes per second and so many seconds between any two.
fn linked(offers: Vec<Offer>, (bytes_per_s, latency_s): (f64, f64)) -> Inventory {
    Inventory { offers, network: Network::uniform(Link { bytes_per_s, latency_s }) }
}

/// Four A40 and four 3090 Ti with a link of so many Gb/s; LLaMA-30B.
fn four_and_four(gbit_per_s: f64, input: u64, output: u64, requests_per_s: f64) -> Task {
    let link = gbit_per_s * 1e9 / 8.0;
    let machine = |gpu: Gpu| Offer::machine(gpu, 4);
    Task {
        machines: linked(
            vec![machine(gpu("a40", 48.0, 696.0, 150.0)), machine(gpu("3090ti", 24.0, 1008.0, 80.0))],
            (link, 1e-3),
        ),
        model: engine::model::embedded("gpt-30b").expect("embedded"),
        classes: vec![(Lengths { input: Tokens(input), output: Tokens(output) }, 1.0)],
        requests_per_s,
        ttft_s: 2.0,
        tpot_s: 0.15,
        wire_bits: 4,
        beside: Beside::default(),
        kept_tokens: 0,
        mean_layer: MeanLayer::default(),
    }
}

fn placement(deployment: &Deployment) -> Vec<(Vec<u32>, Phase)> {
    let busy = deployment.groups.iter().filter(|group| !group.stages.is_empty());
    busy.map(|group| (group.n_gpus.clone(), group.phase)).collect()
}

/// What every deployment must hold, without the planner's code.
fn check(task: &Task, deployment: &Deployment) {
    for (m, machine) in task.machines.offers.iter().enumerate() {
        let taken: u32 = deployment.groups.iter().map(|group| group.n_gpus[m]).sum();
        assert!(taken <= machine.n_available, "{taken} of `{}`", machine.name);
    }
    for group in deployment.groups.iter().filter(|group| !group.stages.is_empty()) {
        assert_eq!(group.stages.iter().map(|stage| stage.layers).sum::<u64>(), task.model.n_layers);
        for m in 0..task.n_machines() {
            let used: u32 = group.stages.iter().filter(|s| s.machine == m).map(|s| s.tp).sum();
            assert!(used <= group.n_gpus[m]);
        }
    }
    let total: f64 = deployment.routes.iter().flatten().sum();
    assert!((0.0..=1.0 + 1e-9).contains(&total) && deployment.attainment <= total + 1e-9);
    for (i, row) in deployment.routes.iter().enumerate() {
        for (j, &share) in row.iter().enumerate().filter(|(_, share)| **share > 0.0) {
            let phases = (deployment.groups[i].phase, deployment.groups[j].phase);
            assert_eq!(phases, (Phase::Prefill, Phase::Decode), "{share}");
        }
    }
}

#[test]
fn the_search_is_within_two_percent_of_every_deployment() {
    for (gbit_per_s, input, output, ttft_s, tpot_s) in [
        (40.0, 1024, 128, 10.0, 1.0),
        (5.0, 1024, 128, 10.0, 1.0),
        (40.0, 512, 128, 2.0, 0.15),
        (5.0, 512, 128, 2.0, 0.15),
        (40.0, 2048, 28, 2.0, 0.1),
        (5.0, 1155, 211, 1.0, 0.08),
    ] {
        let task = Task { ttft_s, tpot_s, ..four_and_four(gbit_per_s, input, output, 20.0) };
        let found = plan(&task, Tabu::default()).expect("a deployment").plan;
        check(&task, &found);
        let best = search::exhaustive(&task);
        assert!(found.attainment >= 0.98 * best, "{} of {best}: {:?}", found.attainment, placement(&found));
        assert!(found.attainment <= best + 1e-9);
    }
}

#[test]
fn four_a40_and_four_3090ti_gain_from_the_split() {
    // Published: 2.04 times the colocated baseline at 40 Gb/s, 1.36 times at 5 Gb/s, accepted within 20 %. The lengths and targets behind it
    // are not public, and the ratio hangs on them: a token target near the decode step is what stops colocated replicas. 512 + 128 tokens
    // and 45 ms are a choice that fits; at 50 ms the ratios are 1.63 and 1.07, and with loose targets the split does not pay at all.
    let ratio = |gbit_per_s| {
        let task = Task { ttft_s: 1.0, tpot_s: 0.045, ..four_and_four(gbit_per_s, 512, 128, 20.0) };
        let found = plan(&task, Tabu::default()).expect("a deployment").plan;
        check(&task, &found);
        println!("{gbit_per_s} Gb/s: {:?}, {}", placement(&found), found.requests_per_s);
        let replicas = colocated::per_machine(&task).expect("meaning");
        found.requests_per_s / replicas.iter().map(|replica| replica.requests_per_s).sum::<f64>()
    };
    let (fast, slow) = (ratio(40.0), ratio(5.0));
    println!("split over colocated: {fast:.2} and {slow:.2}");
    assert!((fast / 2.04 - 1.0).abs() < 0.2, "{fast}");
    assert!((slow / 1.36 - 1.0).abs() < 0.2, "{slow}");
}

#[test]
fn a_slow_link_changes_the_placement() {
    let found = [40.0, 5.0].map(|gbit_per_s| {
        plan(&four_and_four(gbit_per_s, 1024, 128, 20.0), Tabu::default()).expect("a deployment").plan
    });
    assert_ne!(placement(&found[0]), placement(&found[1]));
    assert!(found[1].attainment <= found[0].attainment);
}

#[test]
fn compression_matters_as_the_link_gets_slower() {
    let attained = |gbit_per_s, wire_bits| {
        let task = Task { wire_bits, ..four_and_four(gbit_per_s, 1024, 128, 3.0) };
        plan(&task, Tabu::default()).expect("a deployment").plan.attainment
    };
    let mut last = [f64::INFINITY; 2];
    for gbit_per_s in [4000.0, 40.0, 10.0, 5.0, 1.0] {
        let now = [attained(gbit_per_s, 4), attained(gbit_per_s, 16)];
        assert!(now[0] >= now[1] - 1e-9, "{gbit_per_s} Gb/s: {now:?}");
        if gbit_per_s == 4000.0 {
            assert!((now[0] - now[1]).abs() < 1e-3, "{now:?}");
        }
        // The search is a heuristic, whence the slack.
        assert!(now[0] <= last[0] + 0.02 && now[1] <= last[1] + 0.02, "{gbit_per_s} Gb/s: {now:?} after {last:?}");
        last = now;
    }
}

/// Four machines of two A40 and a small model, far below saturation for neither phase.
fn small(input: u64, output: u64, requests_per_s: f64) -> Task {
    let machine = |m: u32| Offer { name: format!("m{m}"), ..Offer::machine(gpu("a40", 48.0, 696.0, 150.0), 2) };
    Task {
        machines: linked((0..4).map(machine).collect(), (5e9, 1e-3)),
        model: engine::model::embedded("llama-3-8b").expect("embedded"),
        classes: vec![(Lengths { input: Tokens(input), output: Tokens(output) }, 1.0)],
        requests_per_s,
        ttft_s: 2.0,
        tpot_s: 0.1,
        wire_bits: 4,
        beside: Beside::default(),
        kept_tokens: 0,
        mean_layer: MeanLayer::default(),
    }
}

#[test]
fn a_loss_is_answered_by_flips_alone() {
    let before = small(1024, 256, 25.0);
    let found = plan(&before, Tabu::default()).expect("a deployment").plan;
    check(&before, &found);
    for lost in 0..4 {
        let mut after = before.clone();
        after.machines.offers[lost].n_available -= 1;
        let Ok(Decision { plan: flipped, .. }) = replan(&after, &found) else { continue };
        check(&after, &flipped);
        let n = flipped.groups.len();
        assert!(flipped.n_evaluated <= 2 * n * n + 1, "{} for {n} groups", flipped.n_evaluated);
        for group in &flipped.groups {
            let same = |g: &&Group| g.n_gpus == group.n_gpus && g.stages == group.stages;
            assert!(found.groups.iter().any(|g| same(&g)), "{group:?} is new");
        }
        let stale = stale(&after, &found).map_or(0.0, |deployment| deployment.plan.attainment);
        let full = plan(&after, Tabu::default()).expect("a deployment").plan.attainment;
        assert!(flipped.attainment >= stale - 1e-9);
        assert!(flipped.attainment <= full + 1e-9, "{} by flips, {full} by a full search", flipped.attainment);
    }
}

#[test]
fn losing_a_gpu_of_the_four_and_four_leaves_a_pair_of_phases() {
    // Decode on the 3090 Ti, one pair of A40 for each phase: without a 3090 Ti the A40 serve alone, without an A40 one pair goes.
    let before = four_and_four(5.0, 512, 128, 20.0);
    let found = plan(&before, Tabu::default()).expect("a deployment").plan;
    assert_eq!(placement(&found).len(), 3);
    for lost in 0..2 {
        let mut after = before.clone();
        after.machines.offers[lost].n_available -= 1;
        let flipped = replan(&after, &found).expect("a deployment").plan;
        check(&after, &flipped);
        assert_eq!(placement(&flipped).len(), 2);
        assert!(flipped.attainment > 0.0 && flipped.attainment < found.attainment);
        println!("{:?}: {:.3} of {:.3}", placement(&flipped), flipped.attainment, found.attainment);
    }
    // Of two whole machines nothing is left to flip, which is said.
    let tight = Task { ttft_s: 1.0, tpot_s: 0.045, ..four_and_four(40.0, 512, 128, 20.0) };
    let found = plan(&tight, Tabu::default()).expect("a deployment").plan;
    let mut after = tight.clone();
    after.machines.offers[0].n_available -= 1;
    assert!(matches!(replan(&after, &found), Err(RentalError::Infeasible(_))));
}

#[test]
fn a_shift_to_long_prompts_flips_groups_to_prefill() {
    // Lengths near the means of the Azure traces: coding has long prompts and short answers.
    let prefill = |deployment: &Deployment| -> u32 {
        let groups = deployment.groups.iter().filter(|g| g.phase == Phase::Prefill && !g.stages.is_empty());
        groups.flat_map(|g| g.n_gpus.iter()).sum()
    };
    let conversation = plan(&small(1155, 211, 60.0), Tabu::default()).expect("a deployment").plan;
    let coding = plan(&small(2048, 28, 60.0), Tabu::default()).expect("a deployment").plan;
    assert!(prefill(&coding) > prefill(&conversation), "{} and {}", prefill(&coding), prefill(&conversation));
    let flipped = replan(&small(2048, 28, 60.0), &conversation).expect("a deployment").plan;
    let stale = stale(&small(2048, 28, 60.0), &conversation).expect("a deployment").plan;
    assert!(flipped.attainment > stale.attainment, "{} after {}", flipped.attainment, stale.attainment);
}

type Spoil = fn(&mut Task);

#[test]
fn bad_tasks_have_a_named_reason() {
    let cases: [(&str, Spoil); 10] = [
        ("model `gpt-30b` has no layers or no keys and values", |t| t.model.n_layers = 0),
        ("GPU of `a40` needs a peak and bandwidths above 0", |t| {
            t.machines.offers[0].gpu.as_mut().expect("given").memory_bandwidth = BytesPerSecond::ZERO;
        }),
        ("the inventory has no GPU", |t| t.machines.offers.iter_mut().for_each(|m| m.n_available = 0)),
        ("a link must be above 0 bytes/s, found 0", |t| t.machines.network.within.bytes_per_s = 0.0),
        ("shares of request types must sum to 1, found 0.5", |t| t.classes[0].1 = 0.5),
        ("there is no request type", |t| t.classes.clear()),
        ("`arrivals` must be above 0, found 0", |t| t.requests_per_s = 0.0),
        ("`tpot_s` must be above 0, found NaN", |t| t.tpot_s = f64::NAN),
        ("bits on the wire are 1 to 16, found 0", |t| t.wire_bits = 0),
        ("no groups of these GPUs hold the model in both phases within the targets", |t| t.ttft_s = 1e-6),
    ];
    for (message, spoil) in cases {
        let mut task = four_and_four(40.0, 512, 128, 1.0);
        spoil(&mut task);
        assert_eq!(plan(&task, Tabu::default()).expect_err(message).to_string(), message);
    }
}

/// Requests of one shape, one per second on average.
fn arrivals(n: usize, input: u32, output: u32) -> Vec<serve::request::Request> {
    use serve::arrivals::{Arrivals, lay};
    use serve::request::{Request, Requests};
    let mut requests = Requests::of(vec![Request::new(hw::Time::ZERO, input, output); n]);
    lay(&mut requests, Arrivals::Poisson { per_s: 1.0 }, 3);
    requests.list
}

/// What clients see of these groups.
fn play(task: &Task, groups: &Groups, list: Vec<serve::request::Request>) -> Played {
    let requests = serve::request::Requests::of(list);
    let playable = played::playable(task, groups, Working::default(), &requests.list).expect("a right deployment");
    played::play(task, &playable, &requests)
}

fn stage(machine: usize, tp: u32, layers: u64) -> Stage {
    Stage { machine, tp, layers }
}

/// Prompts on two GPUs, tokens on two others.
fn pair(task: &Task) -> Groups {
    let layers = task.model.n_layers;
    Groups { groups: vec![vec![stage(0, 2, layers)], vec![stage(1, 2, layers)]], pairs: vec![(0, 1, 1.0)] }
}

#[test]
fn a_request_alone_takes_the_planned_times() {
    let task = small(1024, 64, 1.0);
    let groups = pair(&task);
    let played = play(&task, &groups, arrivals(1, 1024, 64));
    // The plan counts s·s/2 pairs of a query and a key in a prompt of s tokens, a causal mask leaves s·(s + 1)/2.
    let read = group::prefill_s(&task, &groups.groups[0], Tokens(1024));
    assert!((played.ttft_s / read - 1.0).abs() < 1e-4, "{} for {read}", played.ttft_s);
    // 63 steps over 1,025 to 1,087 keys, 1,056 on average, and the wire before them.
    let step = group::token_s(&task, &groups.groups[1], 1.0, 1056.0);
    let wire =
        task.machines.network.within.latency_s + task.wire_bytes(1024.0) / task.machines.network.within.bytes_per_s;
    assert!((played.tpot_s - step - wire / 63.0).abs() < 1e-7, "{} for {step} and {wire}", played.tpot_s);
}

#[test]
fn prompts_of_one_length_wait_as_in_m_d_1() {
    // One stage, so that the slowest stage is all of them: wait ρ·s / (2·(1 - ρ)).
    let task = small(1024, 1, 1.0);
    let groups = pair(&task);
    let (service, _) = group::read_s(&task, &groups.groups[0], 1024.0);
    let load = 0.6;
    let requests = played::faster(&serve::request::Requests::of(arrivals(40_000, 1024, 1)), load / service);
    let played = play(&task, &groups, requests.list);
    let theory = service + load * service / (2.0 * (1.0 - load));
    assert!((played.ttft_s / theory - 1.0).abs() < 0.03, "{} for {theory}", played.ttft_s);
}

#[test]
fn the_partition_over_machines_is_no_worse_than_machines_alone() {
    for task in [four_and_four(40.0, 512, 128, 20.0), four_and_four(5.0, 1024, 64, 20.0), small(512, 128, 10.0)] {
        let sum = |replicas: Vec<Replica>| replicas.iter().map(|replica| replica.requests_per_s).sum::<f64>();
        let (alone, mixed) =
            (colocated::per_machine(&task).expect("meaning"), colocated::mixed(&task).expect("meaning"));
        for (m, machine) in task.machines.offers.iter().enumerate() {
            let used: u32 = mixed.iter().flat_map(|r| &r.stages).filter(|s| s.machine == m).map(|s| s.tp).sum();
            assert!(used <= machine.n_available);
        }
        let (alone, mixed) = (sum(alone), sum(mixed));
        assert!(mixed >= alone - 1e-9, "{mixed} below {alone}");
    }
}

#[test]
fn a_slower_rate_meets_more_targets() {
    let task = four_and_four(40.0, 512, 128, 20.0);
    let found = plan(&task, Tabu::default()).expect("a deployment").plan;
    let requests = serve::request::Requests::of(arrivals(400, 512, 128));
    let playable = played::playable(&task, &Groups::of(&found), Working::default(), &requests.list).expect("checked");
    let (rate, played) = played::goodput(&task, &playable, &requests, 0.9);
    assert!(rate > 0.0 && played.attainment >= 0.9, "{rate}: {played:?}");
    let (strict, _) = played::goodput(&task, &playable, &requests, 0.99);
    assert!(strict <= rate);
}

#[test]
fn renting_on_machines_is_between_equal_replicas_and_any_replicas() {
    // Mélange has one replica per machine type and quarters of the requests, the program any replicas of one machine, `mixed` any at all.
    for (input, output) in [(1024, 128), (512, 128)] {
        let mut task = four_and_four(40.0, input, output, 20.0);
        task.machines.offers.iter_mut().zip([0.55, 0.4]).for_each(|(offer, usd)| offer.usd_per_hour = usd);
        let rate = |replicas: Vec<Replica>| replicas.iter().map(|replica| replica.requests_per_s).sum::<f64>();
        let program = rate(cost_efficiency(&task).expect("a plan"));
        let alike = rate(colocated::per_machine(&task).expect("meaning"));
        let any = rate(colocated::mixed(&task).expect("meaning"));
        assert!(alike <= program * (1.0 + 1e-6) && program <= any * (1.0 + 1e-6), "{alike}, {program}, {any}");
        let quarters = rate(melange(&task).expect("a plan"));
        assert!(quarters <= program * (1.0 + 1e-6), "{quarters}, {program}");
        assert!(program <= bound::colocated(&task) * (1.0 + 1e-9));
    }
    let why = cost_efficiency(&four_and_four(40.0, 512, 128, 20.0)).expect_err("nothing has a price");
    assert_eq!(why.to_string(), "price of `a40` must be above 0 $/h, found 0");
}

/// A pool of up to three machines with small GPUs, 2 to 5 in all, and links from slow to fast; Llama-3-8B takes 16 GB.
fn any_pool() -> impl Strategy<Value = Task> {
    let kinds = [gpu("a", 24.0, 1008.0, 80.0), gpu("b", 48.0, 696.0, 150.0), gpu("c", 20.0, 600.0, 60.0)];
    let counts = prop::collection::vec((0..3_usize, 1..=3_u32), 1..=3)
        .prop_filter("2 to 5 GPUs", |all| (2..=5).contains(&all.iter().map(|(_, n)| n).sum::<u32>()));
    let lengths = (prop::sample::select(vec![64_u64, 512, 2048]), prop::sample::select(vec![8_u64, 64, 512]));
    let targets = (0.05..4.0_f64, 0.015..0.2_f64);
    (counts, lengths.clone(), lengths, targets, 0.02..20.0_f64, prop::sample::select(vec![1.0, 8.0, 100.0])).prop_map(
        move |(counts, a, b, (ttft_s, tpot_s), link_gb_per_s, requests_per_s)| {
            let machine = |(m, (kind, n_gpus)): (usize, &(usize, u32))| Offer {
                name: format!("m{m}"),
                ..Offer::machine(kinds[*kind].clone(), *n_gpus)
            };
            let class = |(input, output)| (Lengths { input: Tokens(input), output: Tokens(output) }, 0.5);
            Task {
                machines: linked(counts.iter().enumerate().map(machine).collect(), (link_gb_per_s * 1e9, 1e-3)),
                classes: vec![class(a), class(b)],
                requests_per_s,
                ttft_s,
                tpot_s,
                ..small(1, 1, 1.0)
            }
        },
    )
}

fn per_s(replicas: &[Replica]) -> f64 {
    replicas.iter().map(|replica| replica.requests_per_s).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_deployment_exceeds_the_bound_and_gpus_never_lower_it(task in beside::any_task()) {
        let bound = bound::split(&task);
        let best = search::exhaustive_stages(&task) * task.requests_per_s;
        prop_assert!(best <= bound * (1.0 + 1e-9) + 1e-9, "{best} above {bound}");
        if let Ok(found) = plan(&task, Tabu::default()) {
            prop_assert!(found.plan.attainment * task.requests_per_s <= best * (1.0 + 1e-9) + 1e-9);
            prop_assert!(found.bound().is_some_and(|bound| bound >= found.plan.attainment) && found.gap().is_some());
        }
        let (mixed, both) = (per_s(&colocated::mixed(&task).expect("meaning")), bound::colocated(&task));
        prop_assert!(mixed <= both * (1.0 + 1e-9), "{mixed} above {both}");
        let alone = per_s(&colocated::per_machine(&task).expect("meaning"));
        prop_assert!(alone <= bound::by_machine(&task, bound::colocated) * (1.0 + 1e-9));
        // GPUs that are shared out in fractions give more away.
        prop_assert!(bound::split_within(&task, 1) >= bound * (1.0 - 1e-5), "{} below {bound}", bound::split_within(&task, 1));
        for m in 0..task.n_machines() {
            let mut more = task.clone();
            more.machines.offers[m].n_available += 1;
            prop_assert!(bound::split(&more) >= bound * (1.0 - 1e-5), "{bound} before one more on machine {m}");
            prop_assert!(bound::colocated(&more) >= both * (1.0 - 1e-5));
        }
    }
}

#[test]
fn the_bound_is_the_plan_where_nothing_is_relaxed() {
    // Two GPUs of different machines, one for each phase: no stages to balance, no messages between GPUs, one group each. The token target is loose, so that
    // memory limits the batch, and the better phase of either is taken by both.
    let machine = |name: &str, gpu| Offer { name: name.to_owned(), ..Offer::machine(gpu, 1) };
    let machines = vec![machine("a", gpu("a", 24.0, 1008.0, 80.0)), machine("b", gpu("b", 48.0, 696.0, 150.0))];
    for (input, output) in [(512, 64), (2048, 16), (64, 512)] {
        let mut task = small(input, output, 1e4);
        task.machines = linked(machines.clone(), (1e12, 1e-6));
        task.tpot_s = 10.0;
        let found = plan(&task, Tabu::default()).expect("a deployment");
        assert!(found.gap().is_some_and(|gap| gap < 1e-6), "{} of {:?}", found.plan.attainment, found.bound());
        // By hand: the larger of the two assignments, each the smaller of its phases.
        let stages = |machine| vec![Stage { machine, tp: 1, layers: task.model.n_layers }];
        let rate = |machine, phase| group::speed(&task, &stages(machine), phase).rate;
        let of = |a, b| rate(a, Phase::Prefill).min(rate(b, Phase::Decode));
        let by_hand = of(0, 1).max(of(1, 0));
        assert!((bound::split(&task) / by_hand - 1.0).abs() < 1e-9, "{} for {by_hand}", bound::split(&task));
    }
    // One GPU for both phases.
    let mut task = small(512, 64, 1e4);
    task.machines = linked(machines[..1].to_vec(), (1.0, 0.0));
    task.tpot_s = 10.0;
    let alone = per_s(&colocated::per_machine(&task).expect("meaning"));
    assert!((bound::colocated(&task) / alone - 1.0).abs() < 1e-9);
}

#[test]
fn a_light_load_is_proved_to_be_served_at_best() {
    let found = plan(&small(512, 128, 0.5), Tabu::default()).expect("a deployment");
    assert_eq!((found.plan.attainment, found.status), (1.0, crate::proof::Status::Optimal));
    assert_eq!((found.bound(), found.gap()), (Some(1.0), Some(0.0)));
}

#[test]
fn the_bound_is_near_the_best_of_four_and_four() {
    for (gbit_per_s, input, output, ttft_s, tpot_s) in [
        (40.0, 1024, 128, 10.0, 1.0),
        (40.0, 512, 128, 2.0, 0.15),
        (40.0, 512, 128, 1.0, 0.045),
        (5.0, 890, 28, 1.17, 0.083),
    ] {
        let task = Task { ttft_s, tpot_s, ..four_and_four(gbit_per_s, input, output, 20.0) };
        let best = search::exhaustive(&task) * task.requests_per_s;
        let bound = bound::split(&task);
        let both = (per_s(&colocated::mixed(&task).expect("meaning")), bound::colocated(&task));
        println!(
            "{gbit_per_s} Gb/s {input}+{output}: {best:.3} of {bound:.3}, both phases {:.3} of {:.3}",
            both.0, both.1
        );
        assert!(best <= bound && bound < 1.5 * best, "{best} of {bound}");
    }
}

#[test]
fn a_pool_of_any_size_has_a_bound() {
    // 32 GPUs of four types on eight machines, then 256 of six types: too many splits, so GPUs are shared out.
    let types = [("a40", 48.0, 696.0, 150.0), ("3090ti", 24.0, 1008.0, 80.0), ("a6000", 48.0, 768.0, 155.0)];
    let more = [("a5000", 24.0, 768.0, 111.0), ("l4", 24.0, 300.0, 121.0), ("a100", 80.0, 2039.0, 312.0)];
    for (n_types, n_machines, n_gpus) in [(4, 8, 4), (6, 64, 4)] {
        let machine = |m: usize| {
            let (name, memory, bandwidth, peak) = types.iter().chain(&more).copied().nth(m % n_types).expect("six");
            Offer::machine(gpu(name, memory, bandwidth, peak), n_gpus)
        };
        let mut task = four_and_four(40.0, 512, 128, 1e6);
        task.machines = linked((0..n_machines).map(machine).collect(), (5e9, 1e-3));
        let bound = bound::split(&task);
        assert!(bound.is_finite() && bound > 10.0, "{bound}");
        if n_machines == 8 {
            let tabu = Tabu { steps: 4, neighbours: 10, restarts: 0, ..Tabu::default() };
            let found = plan(&task, tabu).expect("a deployment").plan;
            println!("{:.2} of {bound:.2}", found.requests_per_s);
            assert!(found.attainment * task.requests_per_s <= bound);
        }
    }
}
