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

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 61 layers on two stages the first has 31, three of them without experts. So the last one has more weights and keeps less of a token: which has the least
    /// room hangs on the memory of the card, and weights do not.
    #[test]
    fn weights_are_those_of_the_stage_that_has_most_of_them_on_any_card() {
        let model = engine::model::embedded("deepseek-v3").expect("listed");
        let gpu = hw::catalog::gpu("h200-sxm").expect("listed");
        let of = |memory_gb: f64| {
            let gpu = hw::Gpu { memory: hw::Bytes::from_f64(memory_gb * 1e9), ..gpu.clone() };
            let cluster = hw::catalog::cluster(&gpu, 2, 8);
            let config = ReplicaConfig { pipeline_degree: 2, ..ReplicaConfig::new(&model, &cluster, 8) };
            let stages =
                config.stages().into_iter().map(|stage| engine::memory::stage_weight_bytes(&config.shard(), &stage));
            (capacity::weights(&config), stages.collect::<Vec<f64>>())
        };
        let (weights, stages) = of(100.0);
        assert!(stages[1] > stages[0], "{stages:?}");
        assert!((weights.as_f64() / stages[1] - 1.0).abs() < 1e-6, "{weights:?} {stages:?}");
        assert_eq!(of(10_000.0).0, weights);
    }
}
