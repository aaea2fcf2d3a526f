//! Parts of an iteration where routed experts have GPUs of their own: what their GPUs compute, and both ways between the sides.
//!
//! What GPUs that attend compute is an iteration of a deployment without its routed experts (`Writer::layers`).

use engine::layer;
use engine::shard::ExpertLoad;
use engine::task::{Ops, PassKind};
use hw::Seconds;

use super::{Writer, routed};

impl Writer<'_> {
    /// Routed experts of all layers on the busiest of so many GPUs that hold nothing else, for so many tokens of all groups that attend.
    pub(in crate::step_cost) fn routed_experts(&self, tokens: u64) -> Seconds {
        let gpus = u64::from(self.deployment.expert_degree);
        let of_gpu = tokens.div_ceil(gpus);
        let permille = (1000 * tokens).div_ceil((of_gpu * gpus).max(1));
        let load = ExpertLoad { permille, ..ExpertLoad::EVEN };
        let (mut own, mut ops) = (Seconds::ZERO, Ops::new());
        for kind in self.kinds.iter().filter(|kind| kind.layer.has_experts()) {
            let mut after = layer::after_mixing(&self.shard, kind.layer, of_gpu, PassKind::Forward, Some(&load));
            self.visit(&mut after, tokens, kind.counted);
            own = own + self.fused(&mut after, tokens, kind.n);
            let mut left: Ops = routed(&after).map_or_else(Ops::new, |routed| after.drain(routed).collect());
            own = own + self.taken(&mut left, kind.n);
            ops.extend(layer::repeated(&left, kind.n));
        }
        let saved = self.saved(&ops, 0);
        (self.sum(ops) + own - saved).max(Seconds::ZERO)
    }

    /// Both ways of all layers with experts for so many tokens of every group that attends: there, and back.
    pub(in crate::step_cost) fn ways(&self, tokens: u64) -> [Seconds; 2] {
        let (Some(ffn), Some(experts)) = (self.deployment.ffn, self.shard.model.experts) else {
            return [Seconds::ZERO; 2];
        };
        let load = self.exchanged(tokens, ffn.attention_ranks, experts);
        let ways = self.deployment.ways(ffn, experts, tokens, load.permille);
        ways.map(|way| self.sum(vec![(way, self.n_with_experts())]))
    }
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;
    use engine::play::Case;
    use hw::Dtype;

    use super::*;
    use crate::step_cost::{FfnSide, ReplicaConfig};

    /// Without their ways, both sides compute what GPUs compute that do both.
    #[test]
    fn both_sides_together_are_a_layer() {
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 4, 8);
        let cost = Roofline::new(&cluster);
        for name in ["mixtral-8x22b", "deepseek-v3", "qwen3-235b-a22b"] {
            let model = engine::model::embedded(name).expect("embedded");
            let plain = ReplicaConfig::new(&model, &cluster, 1);
            let whole = ReplicaConfig { expert_degree: 8, ..plain.clone() };
            let ffn = FfnSide { gpus: 8, attention_ranks: 8, micro_batches: 1 };
            let apart = ReplicaConfig { expert_degree: 8, ffn: Some(ffn), ..plain };
            let experts = apart.of_experts().expect("they are apart");
            let writer = |config| Writer::new(config, &cost, Case::Expected);
            for tokens in [1, 16, 100, 1000] {
                let together = writer(&whole).one_batch(tokens, 8, Vec::new()).get();
                let [attends, routed] =
                    [writer(&apart).layers(tokens), writer(&experts).routed_experts(8 * tokens)].map(Seconds::get);
                assert!(
                    ((attends + routed) / together - 1.0).abs() < 1e-9,
                    "{name}: {attends} and {routed} of {together}"
                );
            }
        }
    }

    #[test]
    fn ways_carry_what_the_busiest_port_carries() {
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 4, 8);
        let cost = Roofline::new(&cluster);
        let mixtral = engine::model::embedded("mixtral-8x22b").expect("embedded");
        // Eight experts on eight GPUs: a token goes to two of them.
        let ways = |tensor_degree, attention_ranks, tokens| {
            let ffn = FfnSide { gpus: 8, attention_ranks, micro_batches: 1 };
            let config = ReplicaConfig {
                expert_degree: 8,
                ffn: Some(ffn),
                dtype: Dtype::Bf16,
                ..ReplicaConfig::new(&mixtral, &cluster, tensor_degree)
            };
            Writer::new(&config, &cost, Case::Expected).ways(tokens).map(Seconds::get)
        };
        let port = cluster.nic_bandwidth.get() * 0.75;
        let alpha = cluster.inter_node_latency.get();
        let layer = |bytes: f64| 56.0 * (alpha + bytes / port);
        // 4,096 tokens of 6,144 numbers: one GPU sends two copies of each; eight of them let each GPU with experts receive as much as each sends.
        let copies = 4096.0 * 2.0 * 6144.0 * 2.0;
        for [there, back] in [ways(1, 1, 4096), ways(1, 8, 4096)] {
            assert!((there / layer(copies) - 1.0).abs() < 1e-6 && (back - there).abs() < 1e-9, "{there}");
        }
        // Four GPUs of a group share what it sends, and sixteen groups load the experts' ports.
        assert!((ways(4, 1, 4096)[0] / layer(copies / 4.0) - 1.0).abs() < 1e-6);
        assert!((ways(1, 16, 4096)[0] / layer(copies * 2.0) - 1.0).abs() < 1e-6);
    }
}
