//! What says nothing changes nothing: losses behind the end, stores without room, rules that bind nobody, other names for the same.

use hw::{Seconds, Span, Tick, Time};

use super::drawn::lay_images;
use super::{hold, is_dynamic, much_later, unchanged};
use crate::adapters::AdapterLimits;
use crate::fleet::Group;
use crate::fleet::dynamics::{Failures, Outage, Rule, Scaling};
use crate::kv::remote::Remote;
use crate::replica::batcher::Cut;
use crate::replica::{CapacityPolicy, Gather, Order, Role};
use crate::request::Patience;
use crate::speculation::Speculation;
use crate::step_cost::chunks::{Chunking, Sizes};
use engine::random;

#[test]
fn a_loss_behind_the_end_changes_nothing() {
    let outage = || Outage { group: 0, replica: 0, at: much_later(), notice: Seconds::ZERO, back_after: None };
    hold("an outage behind the end", |drawn| Some(unchanged(drawn, |other| other.fleet.outages.push(outage()))));
    hold("failures that never come", |drawn| {
        let never = Failures { mtbf: Seconds::new(1e9), mttr: Seconds::new(1.0), seed: 9 };
        Some(unchanged(drawn, |other| {
            other.fleet.groups.iter_mut().for_each(|group| group.failures = group.failures.or(Some(never)));
        }))
    });
}

#[test]
fn scaling_that_keeps_all_changes_nothing() {
    hold("scaling that keeps all", |drawn| {
        let keeps = |group: &Group| Scaling {
            replicas_min: group.n_replicas,
            replicas_first: group.n_replicas,
            start_up: Seconds::new(1.0),
            rule: Rule::Timetable(vec![(Time::ZERO, group.n_replicas), (much_later(), 1)]),
        };
        let is_known = is_dynamic(drawn);
        (!is_known).then(|| {
            unchanged(drawn, |other| {
                other.fleet.groups.iter_mut().for_each(|group| group.scaling = Some(keeps(group)));
            })
        })
    });
}

#[test]
fn what_nobody_asks_for_changes_nothing() {
    hold("adapters that nobody asks for", |drawn| {
        let has_room = drawn.fleet.groups[0].engine.limits.adapters.is_some();
        let room = AdapterLimits { slots: 1, host_slots: 1, host_ticks: Tick::new(9), disk_ticks: Tick::new(9) };
        (!has_room).then(|| {
            unchanged(drawn, |other| {
                (other.requests.adapters, other.requests.ranks) = (vec![0; other.requests.len()], vec![16]);
                other.fleet.groups.iter_mut().for_each(|group| group.engine.limits.adapters = Some(room));
            })
        })
    });
    hold("adapters that take no time", |drawn| {
        // Prefixes under different adapters are different.
        let has_more = ["prefixes", "adapters", "outputs alone", "stages", "ranks"].iter().any(|word| drawn.has(word));
        let room = AdapterLimits { slots: 3, host_slots: 3, host_ticks: Tick::ZERO, disk_ticks: Tick::ZERO };
        (!has_more).then(|| {
            unchanged(drawn, |other| {
                let n = u32::try_from(other.requests.len()).expect("small");
                (other.requests.adapters, other.requests.ranks) = ((0..n).map(|at| at % 4).collect(), vec![16; 3]);
                other.fleet.groups.iter_mut().for_each(|group| group.engine.limits.adapters = Some(room));
            })
        })
    });
    hold("images that take no time", |drawn| {
        let is_seen = drawn.has("images") || !drawn.requests.follows.is_empty();
        (!is_seen).then(|| {
            unchanged(drawn, |other| {
                lay_images(&mut other.requests, &mut random::stream(7, "images that take no time"));
                for group in &mut other.fleet.groups {
                    group.engine.limits.image_tokens_max = u32::MAX;
                    group.engine.table = group.engine.table.clone().encoding_at(Seconds::ZERO);
                }
            })
        })
    });
    hold("a model that nobody asks for", |drawn| {
        Some(unchanged(drawn, |other| {
            let n_streams = other.requests.streams.iter().max().map_or(1, |stream| *stream + 1);
            other.requests.models = vec![0; n_streams as usize];
            let another = Group { model: 1, role: Role::Both, ..other.fleet.groups[0].clone() };
            other.fleet.groups.push(Group { scaling: None, failures: None, ..another });
        }))
    });
    hold("a group without replicas", |drawn| {
        Some(unchanged(drawn, |other| {
            let none = Group { n_replicas: 0, scaling: None, failures: None, ..other.fleet.groups[0].clone() };
            other.fleet.groups.push(none);
        }))
    });
}

#[test]
fn clients_alike_change_nothing() {
    hold("endless patience", |drawn| {
        let long = Span::from_seconds(Seconds::new(1e5));
        drawn.requests.patience.is_empty().then(|| {
            unchanged(drawn, |other| {
                let patience = Patience { first_token: Some(long), whole: Some(long) };
                other.requests.patience = vec![patience; 2];
            })
        })
    });
    hold("priorities alike", |drawn| {
        drawn.requests.priorities.is_empty().then(|| {
            unchanged(drawn, |other| {
                other.requests.priorities = vec![7; 2];
                other.fleet.groups.iter_mut().for_each(|group| group.engine.limits.order = Order::Priority);
            })
        })
    });
    hold("nobody who has enough", |drawn| {
        drawn.requests.asked.is_empty().then(|| unchanged(drawn, |other| other.requests.cancel(0.0, 1)))
    });
}

#[test]
fn empty_stores_change_nothing() {
    hold("a store without room", |drawn| {
        let limits = drawn.fleet.groups[0].engine.limits;
        let has_room = !limits.shares_prefixes || limits.remote.is_some();
        let tiny =
            Remote { room: hw::Bytes(1), block_bytes: 1000, given_ticks: Tick::new(1), taken_ticks: Tick::new(1) };
        (!has_room).then(|| {
            unchanged(drawn, |other| {
                other.fleet.groups.iter_mut().for_each(|group| group.engine.limits.remote = Some(tiny));
            })
        })
    });
    hold("tiers without room", |drawn| {
        let limits = drawn.fleet.groups[0].engine.limits;
        (limits.tiers == crate::kv::tiers::NO_TIERS).then(|| {
            unchanged(drawn, |other| {
                for group in &mut other.fleet.groups {
                    group.engine.limits.tiers.iter_mut().for_each(|tier| tier.ticks_per_block = Tick::new(1));
                }
            })
        })
    });
}

#[test]
fn rules_that_bind_nobody_change_nothing() {
    hold("no drafts", |drawn| {
        // An engine that is a step ahead takes a block for what one that has ended computes once more, and with drafts it does not.
        let is_tight = drawn.has("Asynchronous") && !drawn.words.iter().any(|word| word.ends_with("room for 100"));
        let is_drafted = is_tight || drawn.fleet.groups[0].engine.table.acceptance().is_some();
        let none = Speculation { n_drafts: 0, tree: None, acceptance: 0.0, per_draft: Seconds::ZERO, seed: 1 };
        (!is_drafted).then(|| {
            unchanged(drawn, |other| {
                for group in &mut other.fleet.groups {
                    group.engine.table = group.engine.table.clone().speculating(&none);
                }
            })
        })
    });
    hold("chunks as large as iterations", |drawn| {
        let engine = &drawn.fleet.groups[0].engine;
        let is_cut = engine.table.chunking().is_some() || engine.batcher.cut() == Cut::Never;
        let tokens_max = engine.limits.tokens_max;
        let whole = Chunking { tokens_max, sizes: Sizes::Equal, block: 1, tokens_min: 1 };
        (!is_cut).then(|| {
            unchanged(drawn, |other| {
                for group in &mut other.fleet.groups {
                    group.engine.table = group.engine.table.clone().chunked(whole);
                }
            })
        })
    });
    hold("a wait for nobody", |drawn| {
        let is_given = drawn.fleet.groups[0].engine.limits.gather.is_some();
        (!is_given).then(|| {
            unchanged(drawn, |other| {
                let none = Gather::Tokens { iterations: 0, tokens: 1000 };
                other.fleet.groups.iter_mut().for_each(|group| group.engine.limits.gather = Some(none));
            })
        })
    });
}

#[test]
fn equal_replicas_in_groups_of_their_own_are_one_group() {
    hold("groups of one", |drawn| {
        let is_one = drawn.fleet.groups.len() == 1 && drawn.fleet.groups[0].n_replicas > 1 && !is_dynamic(drawn);
        is_one.then(|| {
            unchanged(drawn, |other| {
                let n = other.fleet.groups[0].n_replicas;
                other.fleet.groups[0].n_replicas = 1;
                other.fleet.groups = vec![other.fleet.groups[0].clone(); n as usize];
            })
        })
    });
}

#[test]
fn prefixes_by_other_names_are_the_same() {
    hold("prefixes by other names", |drawn| {
        let has_prefixes = drawn.requests.n_prefix_ids > 0;
        has_prefixes.then(|| {
            unchanged(drawn, |other| {
                let last = other.requests.n_prefix_ids - 1;
                other.requests.prefix_ids.iter_mut().for_each(|id| *id = last - *id);
            })
        })
    });
}

#[test]
fn more_room_than_anybody_needs_changes_nothing() {
    hold("more room", |drawn| {
        let served = drawn.serve().1;
        // What is cached and held by nobody is no part of the peak.
        let is_roomy = served.blocks.iter().all(|(peak, total)| peak * 2 < *total) && !drawn.has("prefixes");
        let is_short = drawn
            .fleet
            .groups
            .iter()
            .any(|group| group.engine.limits.capacity_policy != CapacityPolicy::MaxUtilization);
        (is_roomy && !is_short).then(|| {
            unchanged(drawn, |other| {
                other.fleet.groups.iter_mut().for_each(|group| group.engine.limits.kv_blocks *= 10);
            })
        })
    });
}
