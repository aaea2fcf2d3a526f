//! The 24-node cluster of the public artefact, small clusters against every placement, and flows against a linear program.

use good_lp::{Expression, ProblemVariables, Variable, constraint, variable};
use proptest::prelude::*;

use super::super::inventory::{Inventory, Link, Network, Offer};
use super::*;
use crate::milp;

/// Tokens per second by layers held of Llama-2-70B: rows of `artifact_evaluation/single_cluster/layout_llama70b/ilp/ilp_model.lp`
/// (github.com/xogusrns123/Helix-ASPLOS25, 6251c69, Apache 2.0), which the artefact derives from its measured tables.
const L4: [f64; 7] = [7557.863, 3625.715, 2171.878, 1476.085, 1017.573, 747.7854, 531.7026];
const T4: [f64; 4] = [5709.208, 2434.367, 1347.8665, 757.8532];
const A100: [f64; 12] = [
    23833.870, 11384.255, 7201.4124, 5264.6234, 4096.6545, 3124.1431, 2595.6793, 2045.6410, 1754.3819, 1392.6348,
    1212.1768, 952.1074,
];
/// Types in the order of `config/cluster24.ini`.
const TYPES: &str = "LTTLTLATTAALTTLTTALTTLTL";
/// First layer and number of layers of `layout_llama70b/ilp/ilp_sol.ini`, in that order.
const PUBLISHED: [(u32, u32); 24] = [
    (7, 4),
    (34, 4),
    (23, 2),
    (53, 7),
    (77, 3),
    (53, 7),
    (68, 9),
    (26, 4),
    (30, 4),
    (37, 12),
    (60, 8),
    (42, 7),
    (33, 4),
    (38, 4),
    (3, 4),
    (0, 3),
    (11, 3),
    (14, 9),
    (46, 7),
    (42, 4),
    (25, 1),
    (53, 7),
    (49, 4),
    (26, 7),
];
/// The same of `layout_llama70b/petals/petals_sol.ini`.
const PUBLISHED_PETALS: [(u32, u32); 24] = [
    (7, 7),
    (34, 4),
    (76, 4),
    (4, 7),
    (72, 4),
    (53, 7),
    (30, 12),
    (26, 4),
    (30, 4),
    (11, 12),
    (60, 12),
    (42, 7),
    (60, 4),
    (38, 4),
    (0, 7),
    (26, 4),
    (76, 4),
    (14, 12),
    (46, 7),
    (42, 4),
    (0, 4),
    (53, 7),
    (49, 4),
    (72, 7),
];

fn cluster24(hand_over: HandOver) -> FlowProblem {
    let node = |letter: char| match letter {
        'L' => Node { name: "L4".to_owned(), tokens_per_s: L4.to_vec() },
        'T' => Node { name: "T4".to_owned(), tokens_per_s: T4.to_vec() },
        _ => Node { name: "A100".to_owned(), tokens_per_s: A100.to_vec() },
    };
    // 1e9 B/s over 8,192 activations of 2 bytes; 2e9 B/s over 4 bytes of a token id.
    FlowProblem {
        n_layers: 80,
        nodes: TYPES.chars().map(node).collect(),
        links: vec![vec![61_035.156_25; 24]; 24],
        border: 5e8,
        hand_over,
    }
}

fn ranges(published: [(u32, u32); 24]) -> Vec<Range> {
    published.iter().map(|&(first, n)| Range { first, end: first + n }).collect()
}

#[test]
fn the_artefacts_placement_has_the_artefacts_flow() {
    // The artefact prints 1,289.56 tokens/s for its placement, 531.70 for the one that it starts from, and a compute bound of 2,803.86.
    let cluster = cluster24(HandOver::Strict);
    assert!((cluster.compute_bound() - 2803.86).abs() < 0.01, "{}", cluster.compute_bound());
    let flow = max_flow(&cluster, &ranges(PUBLISHED));
    assert!((flow.tokens_per_s - 1289.5558).abs() < 1e-3, "{}", flow.tokens_per_s);
    assert!((max_flow(&cluster, &ranges(PUBLISHED_PETALS)).tokens_per_s - 531.7026).abs() < 1e-3);
}

/// The 24 nodes with the published times of a model.
fn machines24(table: usize) -> Machines {
    let link = Link { bytes_per_s: 1e9, latency_s: 1e-3 };
    let types = tables::published()[table].types.clone();
    let of = |letter: char| types["ALT".find(letter).expect("a type")].name.clone();
    let node = |letter| Offer::priced(of(letter), 0.0, 1);
    let network = Network { within: link, between: link, card_bytes_per_s: 1e10, coordinator: None };
    let inventory = Inventory { offers: TYPES.chars().map(node).collect(), network };
    Machines {
        n_layers: [80, 60][table],
        activation_bytes: [16_384.0, 13_312.0][table],
        inventory,
        tensor: 1,
        hosts: Vec::new(),
        types,
        typical: Typical { prompt: 750.0, output: 240.0, cache_ratio: 0.3 },
        hand_over: HandOver::Strict,
        copy_bytes_per_s: 1e9 / (1.0 / 4.0 + 1.0 / 5.0),
        prompt_tokens_max: 2048,
        context_per_decode: 1000,
    }
}

#[test]
fn one_node_that_holds_all_layers_is_played_or_given_though_its_cache_has_less_than_half() {
    // Qwen2.5-14B has 29.5 GB of weights and an L40S 48 GB: half of these hold fewer than the 48 layers.
    let model = engine::model::embedded("qwen2.5-14b").expect("listed");
    let gpu = hw::catalog::gpu("l40s").expect("listed");
    let node = tables::datasheet(&gpu, &model, 870.0).expect("a layer fits");
    assert!(node.layers_max < 48 && node.room(48).is_some(), "{node:?}");
    let mut machines = machines24(0);
    machines.inventory.offers = vec![Offer::priced(node.name.clone(), 0.0, 1)];
    (machines.n_layers, machines.types) = (48, vec![node]);
    let all = vec![Range { first: 0, end: 48 }];
    for placement in [Placement::Given(all.clone()), Placement::Separate] {
        assert_eq!(machines.place(&placement).expect("it fits").plan.ranges, all);
    }
    let candidates = machines.candidates().expect("it fits");
    assert!(candidates.iter().any(|placed| placed.plan.ranges == all), "{candidates:?}");
    // The paper's rule, and its reason.
    for placement in [Placement::Searched { solver_s: 0.0 }, Placement::Petals, Placement::Swarm] {
        let why = machines.place(&placement).expect_err("half of the memory").to_string();
        assert!(why.contains("caches keep the room that Helix plans"), "{why}");
    }
    machines.n_layers = 480;
    let why = machines.place(&Placement::Given(all)).expect_err("too many layers").to_string();
    assert!(why.contains("the model has 480"), "{why}");
}

#[test]
fn every_candidate_is_also_one_from_the_other_end_of_the_model() {
    let machines = machines24(1);
    let candidates = machines.candidates().expect("it fits");
    let all: Vec<&Vec<Range>> = candidates.iter().map(|placed| &placed.plan.ranges).collect();
    let mirror = |range: &Range| {
        if range.is_empty() { *range } else { Range { first: 60 - range.end, end: 60 - range.first } }
    };
    for ranges in &all {
        let mirrored: Vec<Range> = ranges.iter().map(mirror).collect();
        assert!(all.contains(&&mirrored), "{ranges:?}");
    }
}

#[test]
fn rates_from_the_published_times_are_the_artefacts() {
    let cluster = machines24(0).cluster(Fill::Planned);
    for (i, node) in cluster24(HandOver::Strict).nodes.iter().enumerate() {
        assert_eq!(node.tokens_per_s.len(), cluster.nodes[i].tokens_per_s.len());
        for (known, found) in node.tokens_per_s.iter().zip(&cluster.nodes[i].tokens_per_s) {
            assert!((found / known - 1.0).abs() < 1e-4, "{}: {found}, published {known}", node.name);
        }
    }
}

#[test]
fn a_placement_becomes_a_pool_with_the_flow_as_weights() {
    let machines = machines24(0);
    let placed = machines.place(&Placement::Given(ranges(PUBLISHED))).expect("a placement");
    let pool = machines.pool(&placed.plan.ranges, Some(&placed.plan.flow)).expect("a pool");
    let out: f64 = pool.hops.iter().filter(|hop| hop.from.is_none()).map(|hop| hop.weight).sum();
    // Weights are the shares of the requests that the plan sends each way.
    assert!((out - 1.0).abs() < 1e-9, "{out}");
    assert!(pool.nodes.len() <= 24 && pool.nodes.iter().all(|node| node.end <= 80));
    // The authors' separate pipelines: 20 layers on an A100, 10 on an L4, at most 7 on a T4.
    let separate = machines.place(&Placement::Separate).expect("a placement");
    let most = |name: &str| {
        let of = separate.plan.ranges.iter().zip(&machines.inventory.offers).filter(|(_, node)| node.name == name);
        of.map(|(range, _)| range.end - range.first).max().unwrap_or(0)
    };
    assert_eq!(["A100", "L4", "T4"].map(most), [20, 10, 7]);
}

#[test]
fn no_baseline_of_the_24_nodes_beats_the_search_nor_the_search_the_bound() {
    for hand_over in [HandOver::Strict, HandOver::Partial] {
        let cluster = cluster24(hand_over);
        let placed = heuristic(&cluster).expect("a placement");
        for baseline in [petals(&cluster), swarm(&cluster), separate(&cluster), ranges(PUBLISHED)] {
            let flow = max_flow(&cluster, &baseline).tokens_per_s;
            println!("{hand_over:?}: {flow:.2} of {:.2}", placed.plan.flow.tokens_per_s);
            assert!(flow <= placed.plan.flow.tokens_per_s);
        }
        // One pipeline of all nodes with 8 layers on an A100, 3 on an L4 and 2 on a T4 holds 4 x 8 + 8 x 3 + 12 x 2 = 80 layers, and an
        // A100 with 8 layers takes 2,045.64 tokens/s, the least of the three.
        assert!(placed.plan.flow.tokens_per_s >= 2045.64, "{}", placed.plan.flow.tokens_per_s);
        assert!(
            placed.plan.flow.tokens_per_s <= placed.bound().expect("bounded")
                && placed.bound().expect("bounded") < 2803.87
        );
        println!("{}, gap {:.3}", placed.limit, placed.gap().expect("bounded"));
    }
}

type Spoil = fn(&mut FlowProblem);

#[test]
fn bad_clusters_have_a_named_reason() {
    let cases: [(&str, Spoil); 5] = [
        ("0 layers on 24 nodes: neither may be 0", |c| c.n_layers = 0),
        ("links must be a table of 24 by 24 nodes", |c| c.links.truncate(3)),
        ("a link must not be below 0 tokens/s, found -1", |c| c.links[0][1] = -1.0),
        ("a rate of `T4` must not be below 0 tokens/s, found NaN", |c| c.nodes[1].tokens_per_s[0] = f64::NAN),
        ("all nodes together hold 24 layers, the model has 80", |c| {
            c.nodes.iter_mut().for_each(|node| node.tokens_per_s.truncate(1));
        }),
    ];
    for (message, spoil) in cases {
        let mut cluster = cluster24(HandOver::Strict);
        spoil(&mut cluster);
        assert_eq!(plan(&cluster, Budget::default()).expect_err(message).to_string(), message);
    }
}

/// An edge between nodes, or from the source or to the sink, with its flow.
type Edge = (Option<usize>, Option<usize>, Variable);

fn linear_flow(cluster: &FlowProblem, ranges: &[Range]) -> f64 {
    let mut variables = ProblemVariables::new();
    let mut edges: Vec<Edge> = Vec::new();
    for (i, &Range { first, end }) in ranges.iter().enumerate() {
        if end > first && first == 0 {
            edges.push((None, Some(i), variables.add(variable().min(0.0).max(cluster.border))));
        }
        if end > first && end == cluster.n_layers {
            edges.push((Some(i), None, variables.add(variable().min(0.0).max(cluster.border))));
        }
        for j in (0..ranges.len()).filter(|&j| j != i && ranges[j].end > ranges[j].first && end > first) {
            let follows = match cluster.hand_over {
                HandOver::Strict => end == ranges[j].first,
                HandOver::Partial => ranges[j].first <= end && end < ranges[j].end,
            };
            if follows {
                edges.push((Some(i), Some(j), variables.add(variable().min(0.0).max(cluster.links[i][j]))));
            }
        }
    }
    let sum = |of: &dyn Fn(&Edge) -> bool| -> Expression {
        edges.iter().filter(|edge| of(edge)).map(|edge| Expression::from(edge.2)).sum()
    };
    let mut constraints = Vec::new();
    for (i, range) in ranges.iter().enumerate() {
        let k = (range.end - range.first) as usize;
        let rate = if k == 0 { 0.0 } else { cluster.nodes[i].tokens_per_s.get(k - 1).copied().unwrap_or(0.0) };
        constraints.push(constraint!(sum(&|edge| edge.1 == Some(i)) <= rate));
        constraints.push(constraint!(sum(&|edge| edge.1 == Some(i)) == sum(&|edge| edge.0 == Some(i))));
    }
    if edges.is_empty() {
        return 0.0;
    }
    let program =
        milp::Program { objective: -1.0 * sum(&|edge| edge.0.is_none()), variables, constraints, start: Vec::new() };
    -milp::minimise(program, &[], Budget::default()).expect("bounded").objective
}

/// Most flow over every placement.
fn brute_force(cluster: &FlowProblem) -> f64 {
    let choices: Vec<Vec<Range>> = cluster
        .nodes
        .iter()
        .map(|node| {
            let held = (1..=u32::try_from(node.tokens_per_s.len()).expect("few")).collect::<Vec<_>>();
            let ranges =
                held.iter().flat_map(|&k| (0..=cluster.n_layers.saturating_sub(k)).map(move |first| (first, k)));
            let ranges = ranges.map(|(first, k)| Range { first, end: first + k });
            ranges.filter(|range| range.end <= cluster.n_layers).collect()
        })
        .collect();
    let n: usize = choices.iter().map(Vec::len).product();
    let mut best = 0.0_f64;
    for mut code in 0..n {
        let mut ranges = Vec::new();
        for of in &choices {
            ranges.push(of[code % of.len()]);
            code /= of.len();
        }
        best = best.max(max_flow(cluster, &ranges).tokens_per_s);
    }
    best
}

fn small() -> impl Strategy<Value = FlowProblem> {
    let node = prop::collection::vec(1_u32..=20, 1..=3).prop_map(|mut rates| {
        rates.sort_unstable_by(|a, b| b.cmp(a));
        Node { name: "n".to_owned(), tokens_per_s: rates.into_iter().map(f64::from).collect() }
    });
    let links = prop::collection::vec(prop::collection::vec(0_u32..=15, 4), 4);
    (prop::collection::vec(node, 4), links, any::<bool>()).prop_map(|(nodes, links, is_strict)| FlowProblem {
        n_layers: 4,
        nodes,
        links: links.into_iter().map(|row| row.into_iter().map(f64::from).collect()).collect(),
        border: 100.0,
        hand_over: if is_strict { HandOver::Strict } else { HandOver::Partial },
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(25))]

    #[test]
    fn the_program_equals_every_placement(cluster in small()) {
        let best = brute_force(&cluster);
        match plan(&cluster, Budget::default()) {
            Ok(placed) => {
                prop_assert!((placed.plan.flow.tokens_per_s - best).abs() < 1e-6 * best.max(1.0), "{placed:?}, best {best}");
                prop_assert!(placed.bound().expect("bounded") >= best * (1.0 - 1e-6));
                prop_assert!(cluster.compute_bound() >= best * (1.0 - 1e-9));
            }
            Err(why) => prop_assert!(best == 0.0, "{why}, but {best} tokens/s"),
        }
    }

    #[test]
    fn the_flow_equals_a_linear_program(cluster in small(), seed in any::<u64>()) {
        let mut random = engine::random::stream(seed, "ranges");
        let mut draw = |n: usize| u32::try_from(random.below(n as u64)).expect("few");
        let ranges: Vec<Range> = cluster.nodes.iter().map(|node| {
            let k = 1 + draw(node.tokens_per_s.len());
            let first = draw((cluster.n_layers - k + 1) as usize);
            Range { first, end: first + k }
        }).collect();
        let flow = max_flow(&cluster, &ranges);
        prop_assert!((flow.tokens_per_s - linear_flow(&cluster, &ranges)).abs() < 1e-6, "{flow:?}");
        let out: f64 = flow.edges.iter().filter(|edge| edge.0.is_none()).map(|edge| edge.2).sum();
        prop_assert!((out - flow.tokens_per_s).abs() < 1e-9);
    }
}

#[test]
fn the_coordinator_may_have_a_link_of_its_own() {
    let mut machines = machines24(0);
    let far = Link { bytes_per_s: 1e6, latency_s: 0.05 };
    machines.inventory.network.coordinator = Some(far);
    let placed = machines.deployment("llama-30b", &ranges(PUBLISHED), None).expect("a way over all layers");
    let (of_coordinator, between): (Vec<_>, Vec<_>) =
        placed.links.iter().partition(|link| link.from.is_none() || link.to.is_none());
    assert!(!of_coordinator.is_empty() && of_coordinator.iter().all(|link| link.latency_s == 0.05));
    assert!(!between.is_empty() && between.iter().all(|link| link.latency_s == 1e-3));
    // A narrow link to the coordinator limits what the pool gives: two bytes a token.
    let narrow = machines.cluster(Fill::Planned);
    assert!((narrow.border - 5e5).abs() < 1e-6, "{}", narrow.border);
}
