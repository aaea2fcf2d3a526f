//! Outlooks of fleets whose replicas have roles, and of users who are held, against fleets that are simulated.

use proptest::prelude::*;

use super::{better_than, requests};
use crate::batcher;
use crate::beginnings::Beginnings;
use crate::fleet::held::Users;
use crate::fleet::{Fleet, Group, Link, Rules};
use crate::metrics::{self, Slo};
use crate::outlook::{Counted, Load, Outlook, Replica};
use crate::replica::{Engine, Limits, Role, Spans};
use crate::request::Requests;
use crate::router;
use crate::step_cost::{ReplicaConfig, StepTable};
use engine::Model;
use engine::cost::roofline::Roofline;
use engine::play::Case;
use hw::{Cluster, Seconds};

/// One kind of replicas: what they do, their tensor degree, and how many there are.
#[derive(Clone, Copy, Debug)]
struct Kind {
    role: Role,
    tensor_degree: u32,
    n: u32,
}

/// Replicas that do both, or some that compute prompts for others.
fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let of = |role: Role| {
        (prop::sample::select(vec![1_u32, 2, 4]), 1_u32..4).prop_map(move |(tensor_degree, n)| Kind {
            role,
            tensor_degree,
            n,
        })
    };
    let split = (of(Role::Prefill), of(Role::Decode)).prop_map(|(prefill, decode)| vec![prefill, decode]);
    prop_oneof![of(Role::Both).prop_map(|both| vec![both]), split.clone(), split]
}

/// A node of H100 with the model that it serves.
struct Machine {
    model: Model,
    cluster: Cluster,
}

impl Machine {
    fn new() -> Self {
        let model = engine::model::embedded("llama-3-8b").expect("listed");
        Self { model, cluster: hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 2, 8) }
    }

    fn config(&self, kind: &Kind) -> ReplicaConfig<'_> {
        ReplicaConfig::new(&self.model, &self.cluster, kind.tensor_degree)
    }

    fn table(&self, kind: &Kind, sizes: (u32, u32)) -> StepTable {
        StepTable::new(&self.config(kind), sizes, &Roofline::new(&self.cluster), Case::Expected)
    }

    fn group(&self, kind: &Kind, limits: Limits, batcher: &str) -> Group {
        let table = self.table(kind, (limits.tokens_max, limits.sequences_max));
        let batcher = batcher::named(batcher).expect("listed");
        let engine = Engine { limits, table, batcher, spans: Spans::Closed };
        let (gpus_per_replica, usd_per_gpu_hour) = (kind.tensor_degree, Some(2.0));
        Group { gpus_per_replica, usd_per_gpu_hour, role: kind.role, ..Group::new(kind.role.word(), engine, kind.n) }
    }

    fn fleet(&self, kinds: &[Kind], limits: Limits, batcher: &str) -> Fleet {
        let groups: Vec<Group> = kinds.iter().map(|kind| self.group(kind, limits, batcher)).collect();
        let link = Link {
            from: 0,
            to: 1,
            bytes_per_s: Some(50e9),
            wire: None,
            latency_s: 0.0,
            wire_ratio: 1.0,
            pack_s_per_token: 0.0,
        };
        let links = if groups.len() > 1 { vec![link] } else { Vec::new() };
        Fleet { groups, links, ..Fleet::default() }.handing_on(131_072.0)
    }

    /// A replica of a kind, with prices of larger limits than it has.
    fn replica<'l>(&'l self, kind: &Kind, requests: &'l Requests, keeps_prefixes: bool, is_held: bool) -> Replica<'l> {
        let load = Load::of(requests, Counted { role: kind.role, keeps_prefixes, is_held }).expect("patient clients");
        Replica::new(&self.config(kind), &Roofline::new(&self.cluster), self.table(kind, (8192, 256)), load)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_fleet_of_roles_or_users_is_better_than_its_outlook(
        seed in 0_u64..1000,
        gap_ms in 0_u64..30,
        kinds in kinds(),
        users in prop::option::of(1_u32..40),
        sequences in prop::sample::select(vec![2_u32, 24, 200]),
        tokens in prop::sample::select(vec![512_u32, 4096]),
        batcher in prop::sample::select(vec!["vllm-v1", "sarathi"]),
        (beginnings, shares_prefixes) in (0_u32..4, any::<bool>()),
    ) {
        let machine = Machine::new();
        let mut requests = requests(80, gap_ms, seed);
        Beginnings { n: beginnings, tokens: 256 }.lay(&mut requests, seed);
        let limits = Limits { sequences_max: sequences, tokens_max: tokens, shares_prefixes, ..Limits::ROOMY };
        let fleet = machine.fleet(&kinds, limits, batcher);
        let mut router = (router::named("least-loaded").expect("listed").make)(seed);
        let (sent, served) = match users {
            Some(n) => fleet.serve_held(&requests, Rules::of(router.as_mut()), Users::in_flight(n)),
            None => (requests.clone(), fleet.serve(&requests, router.as_mut())),
        };
        let slo = Slo { ttft: Some(Seconds::new(0.05)), tpot: Some(Seconds::new(0.008)), e2e: None };
        let mut figures = metrics::of(&sent, &served, &slo, Seconds::ZERO);
        metrics::fleet::add(&mut figures, &fleet, &served);
        let configs: Vec<_> = kinds.iter().map(|kind| (machine.config(kind), limits)).collect();
        metrics::energy::add(&mut figures, &configs, &fleet, (&sent, &served));
        prop_assert!(figures.contains_key("energy_wh"), "the limit of the card is known");

        let replicas: Vec<Replica<'_>> =
            kinds.iter().map(|kind| machine.replica(kind, &requests, shares_prefixes, users.is_some())).collect();
        let held = Limits { sequences_max: sequences.min(users.unwrap_or(u32::MAX)), ..limits };
        let phases = kinds.iter().zip(&replicas);
        let phases = phases.map(|(kind, replica)| replica.outlook(kind.n, kind.tensor_degree, &held).expect("room for all"));
        let outlook = phases.reduce(Outlook::beside).expect("a kind");
        let outlook = match users {
            Some(n) => outlook.held(n),
            None => outlook,
        };
        if let Some(better) = better_than(&outlook, &figures) {
            prop_assert!(false, "{better}");
        }
        prop_assert!(figures["slo_attainment_ratio"] <= outlook.met_ratio(Seconds::new(0.05), slo.tpot));
        let first = Slo { tpot: None, ..slo };
        let of_first = metrics::of(&sent, &served, &first, Seconds::ZERO)["slo_attainment_ratio"];
        prop_assert!(of_first <= outlook.met_ratio(Seconds::new(0.05), None));
    }
}

/// Played over least, of requests per second and of energy, for users who are held on these replicas.
fn over(kinds: &[Kind], users: u32) -> f64 {
    let machine = Machine::new();
    let requests = requests(400, 0, 1);
    let limits = Limits { sequences_max: 256, tokens_max: 8192, ..Limits::ROOMY };
    let fleet = machine.fleet(kinds, limits, "vllm-v1");
    let mut router = (router::named("least-loaded").expect("listed").make)(0);
    let (sent, served) = fleet.serve_held(&requests, Rules::of(router.as_mut()), Users::in_flight(users));
    let played = metrics::of(&sent, &served, &Slo::default(), Seconds::ZERO)["makespan_s"];
    let replicas: Vec<Replica<'_>> = kinds.iter().map(|kind| machine.replica(kind, &requests, false, true)).collect();
    let held = Limits { sequences_max: users, ..limits };
    let phases = kinds.iter().zip(&replicas);
    let phases = phases.map(|(kind, replica)| replica.outlook(kind.n, kind.tensor_degree, &held).expect("room"));
    let outlook = phases.reduce(Outlook::beside).expect("a kind").held(users);
    played / outlook.figure("makespan_s", None).expect("known")
}

#[test]
fn the_outlook_of_few_users_is_close_to_what_they_get() {
    // One user is alone: every token is an iteration of its own, and keys are nearly nothing.
    let both = Kind { role: Role::Both, tensor_degree: 1, n: 1 };
    let split = [Kind { role: Role::Prefill, ..both }, Kind { role: Role::Decode, ..both }];
    for (kinds, users, most) in [(&[both][..], 1, 1.15), (&split, 1, 1.15), (&[both], 64, 1.35), (&split, 64, 1.6)] {
        let over = over(kinds, users);
        assert!((1.0..most).contains(&over), "{users} users: {over}");
    }
}
