//! What becomes of a deployment in the loop, and what the loop would not heed.

use hw::Seconds;

use super::*;
use crate::deployment::{Machine, Range, Route, Stage};
use crate::replica::PromptRank;

fn options() -> EngineOptions {
    EngineOptions {
        batcher: "one-prompt".to_owned(),
        sequences_max: 4,
        tokens_max: 4096,
        context_max: None,
        prompts_max: None,
        batch_context_max: None,
        block_tokens: 16,
        kv_tokens: 1000,
        watermark_blocks: 0,
        prefix_cache: false,
        recv_interval: std::num::NonZeroU32::MIN,
        batch_wait: None,
        capacity_policy: crate::replica::CapacityPolicy::MaxUtilization,
        prompt_rank: PromptRank::Even,
    }
}

/// Two prefill replicas and two that decode, on GPUs of 2 and of 3 dollars.
fn split() -> Deployment {
    let machine = |name: &str, usd: f64| Machine {
        name: name.to_owned(),
        gpu: name.to_owned(),
        n_gpus: 4,
        gpus_per_node: 4,
        usd_per_gpu_hour: Some(usd),
        ..Machine::default()
    };
    let stage = |machine, gpu, layers| Stage {
        machine,
        gpus: Range::new(gpu, 1),
        tensor: 1,
        ffn_gpus: 0,
        on_host: None,
        layers,
    };
    let (all, first, last) = (Range::new(0, 4), Range::new(0, 2), Range::new(2, 2));
    let replica = |role, stages| Replica { name: "r".to_owned(), copies: 1, role, stages, engine: options() };
    let link = |from, to| Link {
        from: Some(from),
        to: Some(to),
        bytes_per_s: Some(1e9),
        latency_s: 0.0,
        wire: Some(0),
        wire_ratio: 1.0,
        pack_s_per_token: 0.0,
    };
    let route = |from, to, share_ratio| Route { class: 0, replicas: vec![from, to], share_ratio };
    Deployment {
        replicas: vec![
            replica(Role::Prefill, vec![stage(0, 0, first), stage(1, 0, last)]),
            replica(Role::Prefill, vec![stage(0, 1, all)]),
            replica(Role::Decode, vec![stage(0, 2, all)]),
            replica(Role::Decode, vec![stage(1, 1, all)]),
        ],
        links: vec![link(0, 2), link(0, 3), link(1, 3)],
        routes: vec![route(0, 2, 0.5), route(0, 3, 0.25), route(1, 3, 0.25)],
        ..Deployment::new("m", 4, vec![machine("a", 2.0), machine("b", 3.0)])
    }
}

fn lowered(deployment: &Deployment) -> Result<Fleet, Unplayable> {
    let tables = vec![StepTable::constant(Seconds::new(1e-3)); deployment.replicas.len()];
    fleet(deployment, tables, 1e6)
}

#[test]
fn routes_become_shares_of_both_phases() {
    let fleet = lowered(&split()).expect("plain replicas");
    assert_eq!(fleet.assignment.shares, [[0.75, 0.25, 0.0, 0.0]]);
    assert_eq!(fleet.assignment.onward[..2], [[0.0, 0.0, 0.5, 0.25], [0.0, 0.0, 0.0, 0.25]]);
    // 1,000 tokens are 62 whole blocks of 16; a replica of a GPU for 2 and one for 3 dollars pays 2.50 for each.
    let first = &fleet.groups[0];
    assert_eq!((first.engine.limits.kv_blocks, first.gpus_per_replica, first.usd_per_gpu_hour), (62, 2, Some(2.5)));
}

type Spoil = fn(&mut Deployment);

#[test]
fn what_the_loop_would_not_heed_is_refused() {
    let cases: [(Unplayable, Spoil); 5] = [
        (Unplayable::Station(1), |d| d.replicas[1].stages[0].layers.end = 3),
        (Unplayable::Coordinator(0), |d| d.links[0].from = None),
        (Unplayable::OfStations(2), |d| d.replicas[2].engine.prompts_max = Some(1)),
        (Unplayable::Batcher("none".to_owned()), |d| d.replicas[0].engine.batcher = "none".to_owned()),
        (Unplayable::OnwardByType, |d| d.routes[2].class = 1),
    ];
    for (why, spoil) in cases {
        let mut deployment = split();
        spoil(&mut deployment);
        assert_eq!(lowered(&deployment).expect_err("not heeded"), why);
    }
}
