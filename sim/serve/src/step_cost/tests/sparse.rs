//! Prompts whose attention is sparse above a number of keys: dense up to it to the tick, and the cost model's own time beyond it.

use super::*;
use engine::Model;
use engine::cost::sparse_attention::{Budget, KERNELS, SparseAttention};
use engine::cost::sparse_weights::SparseLayers;

const THRESHOLD: u32 = 32_768;

fn table(sparse: Option<SparseAttention>, check: &dyn Fn(&StepTable, &Writer<'_>)) {
    let (model, cluster) = (engine::model::embedded("llama-3-8b").expect("listed"), a100());
    let cost = Roofline::new(&cluster);
    let prompt_attention = PromptKernel { sparse, ..PromptKernel::PLAIN };
    let deployment = ReplicaConfig { prompt_attention, ..ReplicaConfig::new(&model, &cluster, 1) };
    let kernels = deployment.kernels(&cost);
    check(
        &StepTable::new(&deployment, (4096, 64), &cost, Case::Expected),
        &Writer::new(&deployment, kernels.as_ref(), Case::Expected),
    );
}

#[test]
fn attention_is_dense_up_to_the_threshold_and_sparse_from_the_next_key_on() {
    let positions = Budget::even(1000.0, 6096.0).positions(1);
    for kernel in &KERNELS {
        let sparse = SparseAttention { kernel, positions, threshold: THRESHOLD.into() };
        table(None, &|whole, _| {
            table(Some(sparse), &|sides, writer| {
                for new in [1, 100, 1000, 1024, 4096] {
                    let ends = |keys: u32| Chunk { past: keys - new, new };
                    // The knots of one table lie at 24,576 and 32,768 keys: whatever is between them is as dense as they are.
                    for keys in [4096, 20_000, 25_000, 31_000, 32_767, THRESHOLD] {
                        let chunk = ends(keys);
                        assert_eq!(sides.prefill.ticks(chunk), whole.prefill.ticks(chunk), "{chunk:?}");
                    }
                    for keys in [THRESHOLD + 1, 33_000, 40_000, 100_000, 1_000_000] {
                        let chunk = ends(keys);
                        let (found, direct) = (sides.prefill.ticks(chunk), Tick::from_seconds(writer.prefill(chunk)));
                        assert!(found.abs_diff(direct) * 25 <= direct, "{chunk:?}: {found:?} of {direct:?}");
                    }
                }
            });
        });
    }
}

/// Flash-LLM keeps the weights of layers sparse. A head, and a draft model, have dense ones, also where their products have the shape of a layer's.
#[test]
fn a_head_and_a_draft_model_of_the_shape_of_a_layer_are_dense() {
    let cluster = a100();
    let plain = engine::model::embedded("llama-3-8b").expect("listed");
    let like = Model { vocab: 2 * plain.intermediate, ..plain.clone() };
    let layers = SparseLayers { sparsity: 0.8, is_sparse: [true; 4] };
    let cost = Roofline::new(&cluster);
    let table = |model: &Model, draft, sparse_weights| {
        let draft = if draft { Some((model, DraftKind::Model)) } else { None };
        let deployment = ReplicaConfig { draft, sparse_weights, ..ReplicaConfig::new(model, &cluster, 1) };
        let speculation = Speculation { n_drafts: 3, tree: None, acceptance: 0.5, per_draft: Seconds::ZERO, seed: 1 };
        let table = StepTable::new(&deployment, (64, 16), &cost, Case::Expected);
        if draft.is_some() { table.speculating(&speculation) } else { table }
    };
    let [dense, sparse] = [None, Some(layers)].map(|weights| table(&like, false, weights));
    assert_ne!(sparse.tokens_at(8), dense.tokens_at(8));
    assert_eq!(sparse.head_at(8), dense.head_at(8));
    // Drafting adds as much beside sparse layers as beside dense ones.
    let drafted = [None, Some(layers)].map(|weights| table(&like, true, weights));
    let load = StepLoad { n_decode: 4, n_sampled: 4, ..StepLoad::default() };
    let [of_dense, of_sparse] = drafted.each_ref().map(|table| table.drafts_of(&load, &[]));
    assert!(of_dense > Tick::ZERO);
    assert_eq!(of_sparse, of_dense);
}
