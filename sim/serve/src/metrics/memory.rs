//! Memory of a GPU at the fullest moment of a run: weights, keys and values, activations of the largest iteration; and its weights alone.
//!
//! Units: bytes. Of several groups and replicas the fullest counts.

use std::collections::BTreeMap;

use crate::capacity;
use crate::fleet::Served;
use crate::replica::Limits;
use crate::step_cost::ReplicaConfig;

/// Adds `peak_memory_bytes` and `weight_bytes`, from what the replicas of every group run.
pub fn add(into: &mut BTreeMap<String, f64>, groups: &[(ReplicaConfig<'_>, Limits)], served: &Served) {
    let mut blocks = vec![0; groups.len()];
    for (group, (peak, _)) in served.group_of.iter().zip(&served.blocks) {
        let most = &mut blocks[*group as usize];
        *most = (*peak).max(*most);
    }
    let of_group = |((config, limits), blocks): (&(ReplicaConfig<'_>, Limits), u32)| {
        capacity::peak(config, limits, blocks).as_f64()
    };
    let peak = groups.iter().zip(blocks).map(of_group).fold(0.0, f64::max);
    into.insert("peak_memory_bytes".to_owned(), peak);
    let weights = groups.iter().map(|(config, _)| capacity::weights(config).as_f64()).fold(0.0, f64::max);
    into.insert("weight_bytes".to_owned(), weights);
}
