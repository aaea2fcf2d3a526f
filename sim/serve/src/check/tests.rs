//! Deployments by hand: right ones pass, and every way to be wrong is named.

use hw::Bytes;

use super::*;
use crate::deployment::{EngineOptions, Link};
use crate::replica::PromptRank;

fn model() -> Model {
    engine::model::embedded("llama-30b").expect("embedded")
}

/// 4 GPUs of 48 GB and 4 of 24 GB.
fn machines() -> Vec<Machine> {
    let machine = |name: &str, gb: u64| Machine {
        name: name.to_owned(),
        gpu: name.to_owned(),
        n_gpus: 4,
        gpus_per_node: 4,
        memory: Some(Bytes(gb * 1_000_000_000)),
        ..Machine::default()
    };
    vec![machine("a40", 48), machine("3090ti", 24)]
}

fn options(kv_tokens: u64) -> EngineOptions {
    EngineOptions {
        batcher: "vllm-v0".to_owned(),
        sequences_max: 256,
        tokens_max: 4096,
        context_max: None,
        prompts_max: None,
        batch_context_max: None,
        block_tokens: 16,
        kv_tokens,
        watermark_blocks: 0,
        prefix_cache: false,
        recv_interval: std::num::NonZeroU32::MIN,
        batch_wait: None,
        capacity_policy: crate::replica::CapacityPolicy::MaxUtilization,
        prompt_rank: PromptRank::Even,
    }
}

fn stage(machine: u32, gpus: Range, tensor: u32, layers: Range) -> Stage {
    Stage { machine, gpus, tensor, ffn_gpus: 0, on_host: None, layers }
}

fn replica(name: &str, role: Role, stages: Vec<Stage>) -> Replica {
    Replica { name: name.to_owned(), copies: 1, role, stages, engine: options(2000) }
}

fn link(from: Option<u32>, to: Option<u32>) -> Link {
    Link { from, to, bytes_per_s: Some(5e9), latency_s: 1e-3, wire: None, wire_ratio: 1.0, pack_s_per_token: 0.0 }
}

/// Prompts on the four A40, tokens on the four 3090 Ti in two stages.
fn split() -> Deployment {
    let prefill = vec![stage(0, Range::new(0, 4), 4, Range::new(0, 60))];
    let decode =
        vec![stage(1, Range::new(0, 2), 2, Range::new(0, 30)), stage(1, Range::new(2, 2), 2, Range::new(30, 30))];
    Deployment {
        replicas: vec![replica("prompts", Role::Prefill, prefill), replica("tokens", Role::Decode, decode)],
        links: vec![Link { wire_ratio: 0.25, ..link(Some(0), Some(1)) }],
        routes: vec![Route { class: 0, replicas: vec![0, 1], share_ratio: 1.0 }],
        ..Deployment::new("llama-30b", 60, machines())
    }
}

/// Layers over three stations: 0..30 and 30..60, and 20..60, which is entered at layer 30.
fn stations() -> Deployment {
    let part = |machine, gpus, layers| {
        let whole = replica("part", Role::Both, vec![stage(machine, gpus, 2, layers)]);
        Replica { engine: EngineOptions { batcher: STATION_BATCHER.to_owned(), ..options(2000) }, ..whole }
    };
    Deployment {
        replicas: vec![
            part(1, Range::new(0, 2), Range::new(0, 30)),
            part(1, Range::new(2, 2), Range::new(30, 30)),
            part(0, Range::new(0, 2), Range::new(20, 40)),
        ],
        links: [(None, Some(0)), (Some(0), Some(1)), (Some(0), Some(2)), (Some(1), None), (Some(2), None)]
            .map(|(from, to)| link(from, to))
            .into(),
        routes: vec![
            Route { class: 0, replicas: vec![0, 1], share_ratio: 0.25 },
            Route { class: 0, replicas: vec![0, 2], share_ratio: 0.75 },
        ],
        ..Deployment::new("llama-30b", 60, machines())
    }
}

fn refusals(deployment: &Deployment) -> Vec<String> {
    let (model, machines) = (model(), machines());
    let site = Site { model: &model, machines: &machines, parameter_bytes: 2.0, kv_bytes: 2.0 };
    check(deployment, &site).map_or_else(|found| found.iter().map(ToString::to_string).collect(), |()| Vec::new())
}

#[test]
fn a_right_deployment_passes() {
    let none: [String; 0] = [];
    assert_eq!(refusals(&split()), none);
    assert_eq!(refusals(&stations()), none);
    // A station may hold all layers by itself.
    let mut alone = stations();
    alone.replicas[0].stages = vec![stage(0, Range::new(0, 4), 4, Range::new(0, 60))];
    alone.replicas.truncate(1);
    alone.links = vec![link(None, Some(0)), link(Some(0), None)];
    alone.routes = vec![Route { class: 0, replicas: vec![0], share_ratio: 1.0 }];
    assert_eq!(refusals(&alone), none);
    // Without routes the router decides; every replica is of use all the same.
    let free = |deployment: Deployment| Deployment { routes: Vec::new(), ..deployment };
    assert_eq!(refusals(&free(split())), none);
    assert_eq!(refusals(&free(stations())), none);
}

/// Copies lie end to end: in nodes of six, the second copy of four GPUs would lie in two of them.
#[test]
fn tensor_groups_of_every_copy_lie_in_a_node() {
    let machine = |gpus_per_node| Machine { n_gpus: 12, gpus_per_node, ..machines()[0].clone() };
    let of = |gpus_per_node, n_gpus: u32, tensor, copies| {
        let (model, machines) = (model(), vec![machine(gpus_per_node)]);
        let stages = vec![stage(0, Range::new(0, n_gpus), tensor, Range::new(0, 60))];
        let replicas = vec![Replica { copies, ..replica("all", Role::Both, stages) }];
        let deployment = Deployment { replicas, ..Deployment::new("llama-30b", 60, machines.clone()) };
        let site = Site { model: &model, machines: &machines, parameter_bytes: 2.0, kv_bytes: 2.0 };
        check(&deployment, &site).map_or_else(|found| found.iter().map(ToString::to_string).collect(), |()| Vec::new())
    };
    let none: [String; 0] = [];
    assert_eq!(of(6, 4, 4, 1), none);
    assert_eq!(of(4, 4, 4, 3), none);
    assert_eq!(of(8, 4, 4, 3), none);
    assert_eq!(of(2, 4, 4, 3), none);
    for copies in [2, 3] {
        let found = of(6, 4, 4, copies);
        assert!(found.len() == 1 && found[0].contains("a group must lie in one node"), "{copies}: {found:?}");
    }
}

#[test]
fn a_budget_of_prompts_needs_no_room_for_sequences_that_decode() {
    // 4096 sequences beside chunks of 2048 tokens: what SGLang runs on cards below 35 GiB when nothing is said.
    let of = |batcher: &str| {
        let mut deployment = split();
        let engine = &mut deployment.replicas[1].engine;
        (engine.batcher, engine.sequences_max, engine.tokens_max) = (batcher.to_owned(), 4096, 2048);
        refusals(&deployment)
    };
    assert!(of("sglang").is_empty(), "{:?}", of("sglang"));
    for batcher in ["vllm-v1", "sarathi", "trtllm", "vllm-v0"] {
        assert_eq!(of(batcher), ["replica 1: 4096 sequences have a token each in batches of 2048"], "{batcher}");
    }
}

#[test]
fn a_file_is_read_as_it_was_written() {
    for deployment in [split(), stations()] {
        let text = serde_json::to_string(&deployment).expect("plain data");
        assert_eq!(serde_json::from_str::<Deployment>(&text).expect("as written"), deployment);
    }
    let wrong = r#"{"schema": "skrull-sim/deployment/1", "model": "m", "n_layers": 1, "machines": [], "replica": []}"#;
    assert!(serde_json::from_str::<Deployment>(wrong).is_err(), "an unknown key is not ignored");
}

type Spoil = fn(&mut Deployment);

fn each_is_named(base: fn() -> Deployment, cases: &[(&str, Spoil)]) {
    for (message, spoil) in cases {
        let mut deployment = base();
        spoil(&mut deployment);
        let found = refusals(&deployment);
        assert!(found.iter().any(|refusal| refusal == message), "`{message}` is not among {found:#?}");
    }
}

#[test]
fn every_way_to_be_wrong_is_named() {
    each_is_named(
        split,
        &[
            ("schema is `x`, expected `skrull-sim/deployment/1`", |d| d.schema = "x".to_owned()),
            ("it is for `gpt-2` of 60 layers, the model is `llama-30b` of 60", |d| d.model = "gpt-2".to_owned()),
            ("machine 0 is not the one that is there", |d| d.machines[0].n_gpus = 8),
            ("it has no replica", |d| d.replicas.clear()),
            ("replica 1 has no copy or no stage", |d| d.replicas[1].copies = 0),
            ("replica 0, stage 0 is on machine 7, there are 2", |d| d.replicas[0].stages[0].machine = 7),
            ("replica 0, stage 0 takes GPUs up to 8 of `a40`, which has 4", |d| d.replicas[0].copies = 2),
            ("GPU 1 of `3090ti` is used by replica 1, stage 0 and by replica 1, stage 1", |d| {
                d.replicas[1].stages[1].gpus = Range::new(1, 2);
            }),
            ("replica 1, stage 1 holds layers 31 to 60, expected some from 30 on, up to 60", |d| {
                d.replicas[1].stages[1].layers.first = 31;
            }),
            ("replica 0 caches 15 tokens, less than a block of 16", |d| d.replicas[0].engine.kv_tokens = 15),
            ("replica 1: no batching policy is called `none`", |d| d.replicas[1].engine.batcher = "none".to_owned()),
            ("replica 1: 5000 sequences have a token each in batches of 4096", |d| {
                d.replicas[1].engine.sequences_max = 5000
            }),
            ("link 0: it must lie between replicas that exist", |d| d.links[0].to = Some(2)),
            ("link 0: bytes per second and what is sent of a byte must be above 0", |d| {
                d.links[0].bytes_per_s = Some(0.0)
            }),
            ("route 0 goes over replica 2, which does not exist", |d| d.routes[0].replicas[1] = 2),
            ("route 0 needs a link from replica 0 to replica 1", |d| d.links.clear()),
            ("route 0 must go over replicas that do both, or over prefill and then decode replicas", |d| {
                d.routes[0].replicas.reverse();
            }),
            ("shares of requests of type 0 sum to 0.9, expected 1", |d| d.routes[0].share_ratio = 0.9),
            ("route 0 has a share of -1", |d| d.routes[0].share_ratio = -1.0),
            (
                "no route leads through replica 0: no replica hands a request on to it, or none takes its last layer further",
                |d| {
                    *d = Deployment {
                        replicas: d.replicas[..1].to_vec(),
                        links: Vec::new(),
                        routes: Vec::new(),
                        ..d.clone()
                    };
                },
            ),
        ],
    );
}

#[test]
fn tensor_groups_divide_heads_and_lie_in_nodes() {
    let refused = |spoil: Spoil| {
        let mut deployment = split();
        spoil(&mut deployment);
        refusals(&deployment).iter().find_map(|text| text.rsplit(": ").next().map(str::to_owned))
    };
    // 52 heads.
    assert_eq!(
        refused(|d| d.replicas[0].stages[0].tensor = 3).as_deref(),
        Some("it must divide the GPUs of the stage")
    );
    let sixth = |d: &mut Deployment| {
        d.replicas[0].stages[0].gpus = Range::new(0, 3);
        d.replicas[0].stages[0].tensor = 3;
    };
    assert_eq!(refused(sixth).as_deref(), Some("it must divide the heads"));
    let side = |d: &mut Deployment| d.replicas[0].stages[0].tensor = 2;
    assert_eq!(refused(side).as_deref(), Some("tensor groups side by side share experts, and the model has none"));
    // GPUs 1 and 2 are in two nodes of two.
    let mut machines = machines();
    machines[1].gpus_per_node = 2;
    let mut deployment = Deployment { machines: machines.clone(), ..split() };
    deployment.replicas[1].stages[0].gpus = Range::new(1, 2);
    deployment.replicas[1].stages.truncate(1);
    let model = model();
    let site = Site { model: &model, machines: &machines, parameter_bytes: 2.0, kv_bytes: 2.0 };
    let found = check(&deployment, &site).expect_err("two nodes");
    assert!(found.iter().any(|refusal| matches!(refusal, Refusal::Tensor { why: "a group must lie in one node", .. })));
}

#[test]
fn weights_and_cache_must_fit() {
    // 32.5e9 parameters are 65.1 GB; a token's keys and values are 2 x 6,656 x 60 x 2 bytes, 1.597 MB. Half of the layers on two GPUs of
    // 24 GB leave 15.5 GB, and 0.799 MB a token: 19,300 tokens fit and 19,600 do not.
    let with = |kv_tokens: u64| {
        let mut deployment = split();
        deployment.replicas[1].engine.kv_tokens = kv_tokens;
        refusals(&deployment)
    };
    assert!(with(19_300).is_empty(), "{:?}", with(19_300));
    let found = with(19_600);
    assert!(found.iter().all(|text| text.contains("GB of weights")) && !found.is_empty(), "{found:?}");
    // Where memory is not known, what fits was measured.
    let mut machines = machines();
    machines[1].memory = None;
    let mut deployment = Deployment { machines: machines.clone(), ..split() };
    deployment.replicas[1].engine.kv_tokens = 1_000_000;
    let model = model();
    let site = Site { model: &model, machines: &machines, parameter_bytes: 2.0, kv_bytes: 2.0 };
    assert_eq!(check(&deployment, &site), Ok(()));
}

/// Two copies of a whole model on a GPU each: 65.1 GB of weights and 3.2 GB of keys and values, and a GPU has 48 GB.
#[test]
fn weights_on_hosts_are_counted_there_and_not_on_devices() {
    let found = |on_host: Option<OnHost>, host_gb: Option<u64>, gpus_per_node: u32| {
        let mut machines = machines();
        machines[0].host_memory = host_gb.map(|gb| Bytes(gb * 1_000_000_000));
        machines[0].gpus_per_node = gpus_per_node;
        let whole = Stage { on_host, ..stage(0, Range::new(0, 1), 1, Range::new(0, 60)) };
        let alone = Replica { copies: 2, ..replica("alone", Role::Both, vec![whole]) };
        let deployment = Deployment { replicas: vec![alone], ..Deployment::new("llama-30b", 60, machines.clone()) };
        let model = model();
        let site = Site { model: &model, machines: &machines, parameter_bytes: 2.0, kv_bytes: 2.0 };
        check(&deployment, &site).map_or_else(|found| found.iter().map(ToString::to_string).collect(), |()| Vec::new())
    };
    let away = |weights: u64, buffers: u64| {
        let [weights, buffers] = [weights, buffers].map(|gb| Bytes(gb * 1_000_000_000));
        Some(OnHost { weights, buffers })
    };
    let none: [String; 0] = [];
    // 65.1 + 3.2 - 48 = 20.3 GB have to lie elsewhere.
    assert_eq!(found(away(21, 0), None, 4), none);
    for (on_host, held) in [(None, "65.0"), (away(20, 0), "45.0"), (away(21, 1), "45.0"), (away(30, 10), "45.0")] {
        let refused = found(on_host, None, 4);
        assert!(refused.len() == 1 && refused[0].contains(&format!("stage 0 holds {held}")), "{refused:?}");
    }
    // More than there is leaves nothing but the buffers.
    assert_eq!(found(away(99, 44), None, 4), none);
    assert_eq!(found(away(99, 45), None, 4).len(), 1);
    // Both copies lie in one node, or each in its own.
    assert_eq!(found(away(21, 0), Some(42), 4), none);
    let full = "node 0 of `a40` keeps 42.00 GB of weights in the memory of its host, which has 41.00 GB";
    assert_eq!(found(away(21, 0), Some(41), 4), [full]);
    assert_eq!(found(away(21, 0), Some(41), 1), none);
}

#[test]
fn each_side_of_a_replica_holds_its_own_part() {
    // Mixtral in 16 bits: 270.6 GB of experts, and 10.7 GB of all else on every group of four GPUs that attend. A token's keys and values are 229,376 bytes.
    let model = engine::model::embedded("mixtral-8x22b").expect("embedded");
    let machine = Machine { n_gpus: 8, gpus_per_node: 8, memory: Some(Bytes(80_000_000_000)), ..Machine::default() };
    let found = |ffn_gpus: u32, kv_tokens: u64| {
        let stages = vec![Stage { ffn_gpus, ..stage(0, Range::new(0, 8), 4, Range::new(0, 56)) }];
        let mut deployment = Deployment::new("mixtral-8x22b", 56, vec![machine.clone()]);
        deployment.replicas = vec![Replica { engine: options(kv_tokens), ..replica("both", Role::Both, stages) }];
        let site = Site { model: &model, machines: &deployment.machines, parameter_bytes: 2.0, kv_bytes: 2.0 };
        let refused = check(&deployment, &site).err().unwrap_or_default();
        refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    // 320 GB less 10.7 GB are 1,348,000 tokens.
    assert_eq!(found(4, 1_340_000), "");
    assert!(found(4, 1_360_000).contains("10.7"), "{}", found(4, 1_360_000));
    // Where all GPUs do both, keys have what experts leave.
    assert_eq!(found(0, 1_360_000), "");
    let narrow = Machine { memory: Some(Bytes(60_000_000_000)), ..machine.clone() };
    let mut deployment = Deployment::new("mixtral-8x22b", 56, vec![narrow]);
    let stages = vec![Stage { ffn_gpus: 4, ..stage(0, Range::new(0, 8), 4, Range::new(0, 56)) }];
    deployment.replicas = vec![replica("both", Role::Both, stages)];
    let site = Site { model: &model, machines: &deployment.machines, parameter_bytes: 2.0, kv_bytes: 2.0 };
    let refused = check(&deployment, &site).expect_err("experts have 240 GB").remove(0).to_string();
    assert!(refused.contains("270.58") && refused.contains("240.00"), "{refused}");
}

#[test]
fn every_layer_is_done_in_order() {
    each_is_named(
        stations,
        &[
            ("route 1 ends with 30 of 60 layers done", |d| d.routes[1].replicas = vec![0]),
            ("route 1 comes to replica 1 with 0 layers done, which holds 30 to 60", |d| d.routes[1].replicas = vec![1]),
            ("route 1 comes to replica 2 with 60 layers done, which holds 20 to 60", |d| {
                d.routes[1].replicas = vec![0, 1, 2]
            }),
            ("route 0 needs a link from the coordinator to replica 0", |d| {
                d.links.remove(0);
            }),
            (
                "no route leads through replica 2: no replica hands a request on to it, or none takes its last layer further",
                |d| {
                    d.links.remove(2);
                    d.routes.clear();
                },
            ),
        ],
    );
}
