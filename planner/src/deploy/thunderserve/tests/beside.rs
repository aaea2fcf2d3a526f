//! Drafts and adapters: what is planned against what is played, and random tasks that have them.

use engine::model::DraftHead;
use hw::{Seconds, Tokens};
use proptest::prelude::*;
use serve::adapters::{Popularity, Supply};
use serve::drafter::{Drafter, Drafts};
use serve::speculation::Speculation;
use serve::step_cost::adapter_room::{AdapterRoom, Modules};

use super::*;

/// A quarter of the tasks each with drafts by look-up or a head, with adapters, and with kept beginnings; some have several.
pub(super) fn any_task() -> impl Strategy<Value = Task> {
    let drafting = prop::option::of((1_u32..=5, 0.0..=1.0_f64, any::<bool>()));
    let adapting = prop::option::of((1_u32..=8, 0.0..=1.0_f64));
    (any_pool(), drafting, adapting, prop::sample::select(vec![0_u32, 256])).prop_map(
        |(task, drafting, adapting, kept_tokens)| {
            let drafts = drafting.map(|(n_drafts, acceptance, has_head)| drafts(n_drafts, acceptance, has_head));
            let adapters = adapting.map(|(slots, none_ratio)| adapters(slots, none_ratio));
            Task { beside: Beside::new(&task.model, drafts.as_ref(), adapters), kept_tokens, ..task }
        },
    )
}

/// Drafts of a head or of the text, each accepted with a probability.
pub(super) fn drafts(n_drafts: u32, acceptance: f64, has_head: bool) -> Drafts {
    let speculation = Speculation { n_drafts, tree: None, acceptance, per_draft: Seconds::new(1e-4), seed: 0 };
    let by = if has_head { Drafter::Head(DraftHead::Eagle3) } else { Drafter::LookUp };
    Drafts { speculation, by }
}

/// Forty adapters of rank 16 on all matrices, asked for by all but a share of the requests.
fn adapters(slots: u32, none_ratio: f64) -> (AdapterRoom, Supply, Popularity) {
    let room = AdapterRoom { slots, rank_max: 16, modules: Modules { attention: true, feed_forward: true } };
    let supply = Supply { host_slots: 40, host_gb_per_s: None, disk_gb_per_s: None };
    (room, supply, Popularity { count: 40, rank: 16, skew: 1.0, none_ratio })
}

#[test]
fn a_request_alone_takes_the_planned_times_with_drafts_that_are_always_right() {
    for has_head in [false, true] {
        let plain = small(1024, 64, 1.0);
        let beside = Beside::new(&plain.model, Some(&drafts(2, 1.0, has_head)), None);
        let task = Task { beside, ..plain.clone() };
        let groups = pair(&task);
        let played = play(&task, &groups, arrivals(1, 1024, 64));
        let read = group::prefill_s(&task, &groups.groups[0], Tokens(1024));
        assert!((played.ttft_s / read - 1.0).abs() < 1e-4, "{} for {read}", played.ttft_s);
        // 21 steps give three tokens each, over 1,025, 1,028, ... 1,085 keys, 1,055 on average.
        let token = group::token_s(&task, &groups.groups[1], 1.0, 1055.0);
        let bytes_per_s = task.machines.network.within.bytes_per_s;
        let wire = task.machines.network.within.latency_s + task.wire_bytes(1024.0) / bytes_per_s;
        assert!((played.tpot_s - token - wire / 63.0).abs() < 1e-6, "{} for {token} and {wire}", played.tpot_s);
        assert!(token < group::token_s(&plain, &groups.groups[1], 1.0, 1055.0) / 2.0, "memory is read once for three");
        assert_eq!(task.wire_bytes(1.0) > plain.wire_bytes(1.0), has_head, "keys and values of the head move as well");
    }
}

#[test]
fn a_request_alone_takes_the_planned_times_with_an_adapter() {
    let plain = small(1024, 64, 1.0);
    let task = Task { beside: Beside::new(&plain.model, None, Some(adapters(4, 0.0))), ..plain.clone() };
    let groups = pair(&task);
    let mut requests = serve::request::Requests::of(arrivals(1, 1024, 64));
    requests = adapters(4, 0.0).2.lay(requests, 3);
    let playable = played::playable(&task, &groups, Working::default(), &requests.list).expect("a right deployment");
    let played = played::play(&task, &playable, &requests);
    let wire =
        task.machines.network.within.latency_s + task.wire_bytes(1024.0) / task.machines.network.within.bytes_per_s;
    let (read, token) = (
        group::prefill_s(&task, &groups.groups[0], Tokens(1024)),
        group::token_s(&task, &groups.groups[1], 1.0, 1056.0),
    );
    // It may have to come to the device first, over 24 GB/s: some 40 MB.
    let late = played.ttft_s - read;
    assert!((-1e-6..5e-3).contains(&late), "{} for {read}", played.ttft_s);
    assert!(played.tpot_s - token - wire / 63.0 < 1e-4 && played.tpot_s >= token, "{} for {token}", played.tpot_s);
    assert!(read > group::prefill_s(&plain, &groups.groups[0], Tokens(1024)));
    // Slots take memory from the caches.
    let tokens = |task: &Task| group::cache_tokens(task, &groups.groups[1]);
    assert!(tokens(&task) < tokens(&plain));
}
