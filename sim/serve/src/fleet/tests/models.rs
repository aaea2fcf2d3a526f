//! Several models in one fleet.

use super::*;
use crate::replica::Role;

#[test]
fn requests_go_to_groups_of_their_model_whatever_the_router_says() {
    let stream = |prompt: u32| {
        let list = (0..60).map(|index| Request::new(Time::from_ns(index * 5_000_000), prompt, 3)).collect();
        Requests::of(list)
    };
    let mut requests = Requests::merged(vec![stream(10), stream(20), stream(30)]);
    requests.models = vec![0, 1, 0];
    let of = |name: &str, model, n_replicas| Group { model, ..group(name, n_replicas, 1000, 1.0) };
    for kind in &router::ROUTERS {
        let fleet = Fleet { groups: vec![of("small", 0, 2), of("large", 1, 1)], ..Fleet::default() };
        let served = fleet.serve(&requests, (kind.make)(3).as_mut());
        for (index, record) in served.records.list.iter().enumerate() {
            let group = served.group_of[record.replica as usize];
            assert_eq!(group, requests.model_of(index), "{}: a prompt of {}", kind.name, requests.list[index].prompt);
        }
        assert_eq!(served.n_refused, 0);
    }
}

#[test]
fn a_request_for_a_model_that_nobody_serves_is_refused() {
    let mut requests = Requests::merged(vec![requests(5, &[2], 10.0, 1), requests(7, &[2], 10.0, 2)]);
    requests.models = vec![0, 1];
    let served = Fleet::of(group("small", 2, 1000, 1.0)).serve(&requests, named("least-loaded").as_mut());
    assert_eq!(served.n_refused, 7);
}

/// Requests of two models alternate, and each model has two replicas. Every replica of a model has half of its requests, with one stage and with two.
#[test]
fn replicas_of_every_model_take_turns_of_their_own() {
    let list: Vec<Request> = (0..80).map(|index| Request::new(Time::from_ns(index * 500_000_000), 10, 3)).collect();
    let mut requests = Requests::of(list);
    (requests.streams, requests.models) = ((0..80).map(|index| index % 2).collect(), vec![0, 1]);
    let of = |name: &str, model, role| Group { model, role, ..group(name, 2, 1000, 1.0) };
    let [both, prefill, decode] = [Role::Both, Role::Prefill, Role::Decode];
    for roles in [vec![both], vec![prefill, decode]] {
        let groups = roles.iter().flat_map(|role| [of("small", 0, *role), of("large", 1, *role)]).collect();
        let fleet = Fleet { groups, ..Fleet::default() };
        for name in ["round-robin", "interleaved-round-robin"] {
            let served = fleet.serve(&requests, named(name).as_mut());
            let mut taken = vec![0_u32; served.group_of.len()];
            served.records.list.iter().for_each(|record| taken[record.replica as usize] += 1);
            let last = &taken[taken.len() - 4..];
            assert_eq!(last, [20; 4], "{name}, {roles:?}");
            let prompts: Vec<u64> = served.counts[..4].iter().map(|counts| counts.prefill_tokens).collect();
            assert_eq!(prompts, [200; 4], "{name}, {roles:?}");
        }
    }
}
