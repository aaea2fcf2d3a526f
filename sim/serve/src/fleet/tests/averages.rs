//! What an iteration of each group holds on average, counted again request by request.

use super::*;
use crate::fleet::{Fleet, Group};
use crate::metrics::average;
use crate::replica::Role;

/// Prompts of 16 tokens and outputs of 1 to 40, one of them larger than any replica.
fn mixed() -> Requests {
    let mut requests = requests(300, &[1, 7, 40], 60.0, 3);
    requests.list.iter_mut().for_each(|request| request.prompt = 16);
    requests.list[17].prompt = 1_000_000;
    requests
}

#[test]
fn averages_of_groups_are_those_of_the_requests_that_ended_there() {
    let requests = mixed();
    let mut small = engine(4);
    small.limits.kv_blocks = 100;
    let groups = vec![Group::new("two", small.clone(), 2), Group::new("one", small, 1)];
    let fleet = Fleet { groups, ..Fleet::default() };
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    assert_eq!(served.n_refused, 1);
    let found = average::of_groups(&requests, &fleet, &served);
    let mut all_decoded = 0.0;
    for (group, found) in found.iter().enumerate() {
        let is_here = |replica: u32| served.group_of.get(replica as usize).is_some_and(|of| *of as usize == group);
        let both = requests.list.iter().zip(&served.records.list);
        let own: Vec<&Request> = both.filter(|(_, record)| is_here(record.replica)).map(|(own, _)| own).collect();
        let replicas = (0..3_u32).filter(|replica| is_here(*replica));
        let steps = hw::real(replicas.map(|replica| served.counts[replica as usize].n_steps).sum());
        let decoded = own.iter().map(|own| f64::from(own.output - 1)).sum::<f64>();
        // The i-th token that is decoded attends to the prompt and i before it, half of all on average.
        let keys = own.iter().map(|own| (16.0 + f64::from(own.output - 1) / 2.0) * f64::from(own.output - 1));
        let found = found.expect("it had iterations");
        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-12, "{found} of {wanted}");
        near(found.decode, decoded / steps);
        near(found.keys, keys.sum::<f64>() / decoded);
        near(found.prompt_whole, 16.0);
        all_decoded += decoded;
    }
    let steps = hw::real(served.counts.iter().map(|counts| counts.n_steps).sum());
    let whole = average::of(&requests, &fleet, &served).expect("played");
    assert!((whole.decode - all_decoded / steps).abs() < 1e-12, "a refused request decodes nothing");
}

#[test]
fn a_group_that_ends_no_request_has_prompts_of_the_usual_length() {
    let mut requests = requests(100, &[7, 40], 60.0, 3);
    requests.list.iter_mut().for_each(|request| request.prompt = 16);
    let of = |name: &str, role| Group { role, ..Group::new(name, engine(8), 1) };
    let groups = vec![of("prefill", Role::Prefill), of("decode", Role::Decode)];
    let fleet = Fleet { groups, links: vec![slow_link()], ..Fleet::default() }.handing_on(1e6);
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    let found = average::of_groups(&requests, &fleet, &served);
    let [prefill, decode] = [found[0], found[1]].map(|found| found.expect("it had iterations"));
    assert_eq!((prefill.prompt_whole, decode.prompt_whole), (16.0, 16.0));
    assert!(prefill.prompt > 0.0 && prefill.decode == 0.0 && decode.decode > 0.0);
}
