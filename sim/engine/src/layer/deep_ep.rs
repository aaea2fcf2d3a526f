//! Tokens to experts and back by DeepEP between nodes, as serving engines call it.
//!
//! Source: deepseek-ai/DeepEP, README (2025-06), performance of both modes on H800 with ports of 400 Gbit/s; `csrc/kernels/internode.cu`, `internode_ll.cu`.

use hw::{Format, GroupShape};

use super::reached::reached;
use crate::dispatcher::DeepEpMode;
use crate::model::Experts;
use crate::shard::{ExpertLoad, Shard};
use crate::task::{Collective, Op};

/// Numbers of a token that share a scale of 32 bits where tokens are sent in 8 bits.
const SCALED: u64 = 128;

/// Bytes that count of those over a port: kernels that write over the port by themselves reach 0.9 of it, and NCCL's all-to-all is taken to reach 0.75
/// (`cost::collective::Network`). Of the twelve figures for 128 tokens a GPU, those of 16 and 256 GPUs were looked at.
const OVER_LIBRARY: f64 = 0.75 / 0.9;

/// One way of a layer's tokens: over the ports and inside of nodes at once, so that the slower of both counts.
#[derive(Clone, Debug, PartialEq)]
pub struct OneWay {
    /// Over the ports, as all-to-alls.
    pub across: Op,
    /// Inside of nodes; `None` where every copy goes over the ports' kernels.
    pub inside: Option<Op>,
}

/// Both ways of so many tokens of a rank with the experts of one layer: dispatch, in 8 bits where experts compute in 8 or fewer, and combine, in 16 bits.
///
/// For latency every copy of a token is a message of its own. Else a token goes to a node once, and there to a GPU once.
///
/// # Panics
/// Where the group lies on one node.
pub fn deep_ep(
    shard: &Shard<'_>,
    experts: Experts,
    tokens: u64,
    load: ExpertLoad,
    shape: GroupShape,
    mode: DeepEpMode,
) -> [OneWay; 2] {
    assert!(shape.n_nodes > 1, "{shape:?} has no ports between its GPUs");
    let wide = experts.latent.unwrap_or(shard.model.hidden);
    let rows = [dispatched_bytes(shard.formats.experts, wide), wide * shard.dtype.bytes()];
    let busiest = hw::real(tokens * load.permille) / 1000.0;
    rows.map(|row| {
        let bytes = |copies: f64| busiest * copies * hw::real(row);
        let all_to_all = |bytes, shape| Op::Collective { kind: Collective::AllToAll, bytes: hw::whole(bytes), shape };
        if mode.is_low_latency(tokens) {
            let copies = bytes(hw::real(experts.top_k) * OVER_LIBRARY);
            return OneWay { across: all_to_all(copies, shape), inside: None };
        }
        let (nodes, ranks) = (reached(experts, shape.n_nodes), reached(experts, shape.n_ranks));
        let of_node = GroupShape::inside(shape.n_ranks.div_ceil(shape.n_nodes));
        OneWay {
            across: all_to_all(bytes(nodes * OVER_LIBRARY), shape.one_of_each_node()),
            inside: Some(all_to_all(bytes(ranks), of_node)),
        }
    })
}

/// Bytes of a token of so many numbers on the way to experts that compute in such a format.
pub fn dispatched_bytes(format: Format, wide: u64) -> u64 {
    if format.activation_bits() <= 9.0 { wide + wide.div_ceil(SCALED) * 4 } else { 2 * wide }
}

#[cfg(test)]
mod tests {
    use hw::Dtype;

    use super::*;
    use crate::cost::CostModel;
    use crate::cost::roofline::Roofline;
    use crate::formats::Formats;

    /// Microseconds of both ways over so many nodes of eight H800, 128 or 4,096 tokens of DeepSeek-V3 a GPU, its experts in 8 bits.
    fn ways_us(n_nodes: u32, tokens: u64, experts: Experts, mode: DeepEpMode) -> [f64; 2] {
        let model = crate::model::embedded("deepseek-v3").expect("embedded");
        let gpu = hw::catalog::gpu("h800").expect("listed");
        let cluster = hw::catalog::cluster(&gpu, n_nodes, 8);
        let cost = Roofline::new(&cluster);
        let shard = Shard {
            formats: Formats::weights(Format::Fp8Block, Dtype::Bf16),
            ..Shard::forward(&model, Dtype::Bf16, 1)
        };
        let shape = cluster.group(8 * n_nodes, n_nodes);
        let us = |op: &Op| cost.estimate(op).time.get() * 1e6;
        deep_ep(&shard, experts, tokens, ExpertLoad::EVEN, shape, mode)
            .map(|way| us(&way.across).max(way.inside.as_ref().map_or(0.0, us)))
    }

    #[test]
    fn low_latency_kernels_take_what_deepep_prints() {
        let experts = crate::model::embedded("deepseek-v3").expect("embedded").experts.expect("experts");
        for (n_nodes, printed) in
            [(2, [118.0, 195.0]), (4, [155.0, 273.0]), (8, [173.0, 314.0]), (16, [192.0, 369.0]), (32, [194.0, 360.0])]
        {
            let found = ways_us(n_nodes, 128, experts, DeepEpMode::LowLatency);
            for (found, printed) in found.iter().zip(printed) {
                assert!((found / printed - 1.0).abs() < 0.12, "{n_nodes} nodes: {found} µs of {printed}");
            }
        }
    }

    #[test]
    fn throughput_kernels_take_what_deepep_prints() {
        // 4,096 tokens to at most four groups, a group being a node; GB/s are of all copies for nodes, its own among them.
        let v3 = crate::model::embedded("deepseek-v3").expect("embedded").experts.expect("experts");
        for (n_nodes, printed) in [(4, [58.0, 57.0]), (8, [51.0, 50.0])] {
            let experts = Experts { n_groups: n_nodes, groups_of_token: 4, ..v3 };
            let groups = u32::try_from(n_nodes).expect("small");
            let found = ways_us(groups, 4096, experts, DeepEpMode::Normal);
            let copies = 4096.0 * reached(experts, groups);
            for ((found, printed), row) in found.iter().zip(printed).zip([7168.0 + 224.0, 14336.0]) {
                let found = copies * row / found / 1e3;
                assert!((found / printed - 1.0).abs() < 0.12, "{n_nodes} nodes: {found} GB/s of {printed}");
            }
        }
    }

    #[test]
    fn wide_experts_are_sent_wide_tokens() {
        assert_eq!(dispatched_bytes(Format::Fp8Block, 7168), 7168 + 56 * 4);
        assert_eq!([Format::Bf16, Format::Int4, Format::Mxfp4].map(|format| dispatched_bytes(format, 2880)), [5760; 3]);
        assert_eq!(dispatched_bytes(Format::Nvfp4, 7168), 7168 + 56 * 4);
    }
}
