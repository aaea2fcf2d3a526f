//! Sums in place of gathers and scatters, by the operations that they are.

use engine::cost::CostModel;
use engine::cost::roofline::Roofline;
use engine::play::Case;
use engine::task::{Collective, Op};
use hw::GroupShape;

use crate::step_cost::prompt_exchange::PromptExchange;
use crate::step_cost::{Chunk, ReplicaConfig, StepLoad, StepTable};

const RANKS: u32 = 8;
const SHAPE: GroupShape = GroupShape::inside(RANKS);

/// Seconds of an iteration with so many tokens of a prompt on every rank, or of one that decodes on every rank.
fn steps(prompt_exchange: PromptExchange, tokens: u32) -> [f64; 2] {
    let model = engine::model::embedded("deepseek-v3").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("b200").expect("listed"), 1, RANKS);
    let base = ReplicaConfig::new(&model, &cluster, 1);
    let config = ReplicaConfig { expert_degree: RANKS, prompt_exchange, ..base };
    let table = StepTable::new(&config, (tokens, 1), &Roofline::new(&cluster), Case::Expected);
    let prompts = StepLoad { n_chunk_tokens: RANKS * tokens, n_chunks: RANKS, n_sampled: RANKS, ..StepLoad::default() };
    let decoding = StepLoad { n_decode: RANKS, n_sampled: RANKS, context: 800, ..StepLoad::default() };
    let chunks = (0..RANKS).map(|_| Chunk { past: 0, new: tokens });
    [table.step(&prompts, chunks), table.step(&decoding, std::iter::empty())].map(|ticks| ticks.to_seconds())
}

#[test]
fn prompts_of_all_ranks_are_added_up_twice_in_every_layer_with_experts() {
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("b200").expect("listed"), 1, RANKS);
    let cost = Roofline::new(&cluster);
    let time = |op: &Op| cost.estimate(op).time.get();
    for tokens in [512, 8192] {
        let bytes = u64::from(RANKS * tokens) * 7168 * 2;
        let of = |kind| time(&Op::Collective { kind, bytes, shape: SHAPE });
        let summed = 2.0 * of(Collective::AllReduce) + time(&Op::Elementwise { bytes });
        // 58 of 61 layers have experts.
        let longer = 58.0 * (summed - of(Collective::AllGather) - of(Collective::ReduceScatter));
        let [gathered, added] = [PromptExchange::Gathered, PromptExchange::Summed].map(|way| steps(way, tokens));
        let found = added[0] - gathered[0];
        assert!(longer > 0.0 && (found / longer - 1.0).abs() < 1e-3, "{tokens} tokens: {found} s, expected {longer} s");
        assert!((added[1] - gathered[1]).abs() < 1e-12, "who decodes gathers as ever");
    }
}
