//! Keys of a machine that none of its replicas' exchanges heeds.

use std::collections::BTreeMap;

use super::Places;
use crate::network::{Exchanges, Exchanging, of_model};
use crate::serving::{Serving, ServingGroup};
use input::reader::Reader;

/// Warns of ways of collectives and of narrow links that no replica's exchange takes. Other fleets of `[capacity]` may have larger replicas.
pub fn check(reader: &mut Reader<'_>, serving: &Serving, places: &Places) {
    if places.is_side {
        return places.exchanges.warn_inside(reader, &serving.cluster, serving.profile.as_ref());
    }
    if serving.capacity.is_some() {
        return;
    }
    let machines: Vec<Exchanging<'_>> = largest(serving).into_values().map(|(group, n)| of_group(group, n)).collect();
    places.exchanges.warn(reader, &machines);
}

/// Groups that serve, with the GPUs of their largest replica.
fn largest(serving: &Serving) -> BTreeMap<&str, (&ServingGroup, u32)> {
    let mut found = BTreeMap::new();
    for choice in serving.choices.iter().filter(|choice| choice.refused.is_none()) {
        for group in serving.groups_of(choice) {
            let n_gpus = serving.deployment_of(choice, group).n_gpus();
            let largest = found.entry(group.name.as_str()).or_insert((group, n_gpus));
            largest.1 = largest.1.max(n_gpus);
        }
    }
    found
}

/// What replicas of so many GPUs exchange.
fn of_group(group: &ServingGroup, n_gpus: u32) -> Exchanging<'_> {
    let exchanges = Exchanges::among(&group.cluster, n_gpus, of_model(&group.model));
    (&group.cluster, group.profile.as_ref(), exchanges)
}
