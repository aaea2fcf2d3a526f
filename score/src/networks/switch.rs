//! Kernels of Switch Transformers in 32 bits: encoder, decoder and experts one after another, and their backward.
//!
//! Sources: huggingface/transformers v4.38.1, `models/switch_transformers/modeling_switch_transformers.py`; sitar-lab/NeuSight @ 6945927d9afc,
//! `DLmodel_configs/switchxl4.json` and `trace.py`: every token of a run is the same.

use super::kernel::{DROPOUT, Kernel, ONE_WAY, SOFTMAX_BACKWARD, Sizes, UNARY};

/// `d_kv` and `d_ff` of the configuration.
const HEAD_DIM: f64 = 128.0;
const FEED_FORWARD: f64 = 16384.0;
/// `num_experts`, and `expert_capacity`: tokens of a sequence that an expert takes.
const EXPERTS: f64 = 4.0;
const CAPACITY: f64 = 64.0;
/// Share of layers with experts (`encoder_sparse_step`, `decoder_sparse_step`).
const SPARSE: f64 = 0.5;
/// Attentions of a layer of the encoder and one of the decoder.
const ATTENTIONS: f64 = 3.0;
/// Values that are fetched for each value of the positions' bias, which has heads innermost (`compute_bias` permutes a view, and its sum with the mask keeps
/// that order) and is read with tokens innermost: memory gives two sectors of 32 bytes.
const FETCHED: f64 = 64.0 / 4.0;
/// Tensors of a norm over those of an operator with one input: square, mean, product with the root, product with the weights. In backward the gradients of
/// each, two of them sums over rows, and three sums of gradients of the input.
const NORM: f64 = 3.0 + ONE_WAY;
const NORM_BACKWARD: f64 = 12.5;

/// Every kernel of a run: forward, and backward where it trains.
pub(super) fn kernels(run: &Sizes, is_trained: bool) -> Vec<Kernel> {
    let products = products(run);
    let mut all = forward(run);
    if is_trained {
        all.extend(products.iter().map(|product| product.times(2.0)));
        all.extend(backward(run));
    }
    all.extend(products);
    all
}

/// Products of encoder and decoder. Tokens that are all the same choose the same expert, which takes as many of a sequence as it may.
fn products(run: &Sizes) -> Vec<Kernel> {
    let Sizes { layers, hidden, tokens, batch, heads, vocab } = *run;
    let rows = run.rows();
    let inner = heads * HEAD_DIM;
    let linear = |n: f64, rows: f64, from: f64, to: f64| Kernel::linear(n * layers, rows, from, to);
    let batched = |n: f64, k: f64| Kernel { n: ATTENTIONS * layers, op: "bmm", sizes: [batch * heads, tokens, n, k] };
    let feed_forward = |share: f64, rows: f64| {
        [linear(2.0 * share, rows, hidden, FEED_FORWARD), linear(2.0 * share, rows, FEED_FORWARD, hidden)]
    };
    let attention = [
        linear(3.0 * ATTENTIONS, rows, hidden, inner),
        linear(ATTENTIONS, rows, inner, hidden),
        batched(HEAD_DIM, tokens),
        batched(tokens, HEAD_DIM),
    ];
    let router = linear(2.0 * SPARSE, rows, hidden, EXPERTS);
    let experts = feed_forward(SPARSE, batch * tokens.min(CAPACITY));
    let dense = feed_forward(1.0 - SPARSE, rows);
    let head = Kernel::linear(1.0, rows, hidden, vocab);
    attention.into_iter().chain(experts).chain(dense).chain([router, head]).collect()
}

/// Over a tensor of queries, keys or values in all attentions.
fn projected(run: &Sizes, n: f64) -> Kernel {
    Kernel::flat(n * ATTENTIONS * run.layers, UNARY, run.rows(), run.heads * HEAD_DIM)
}

/// Over what the first product of the dense layers writes.
fn wide(run: &Sizes, n: f64, op: &'static str) -> Kernel {
    Kernel::flat(n * 2.0 * (1.0 - SPARSE) * run.layers, op, run.rows(), FEED_FORWARD)
}

/// Norms of all layers, two in the encoder and three in the decoder, and the last ones.
fn norms(run: &Sizes, n: f64) -> Kernel {
    Kernel { n: n * (5.0 * run.layers + 2.0), ..run.narrow(1.0, UNARY) }
}

/// What is no product. Positions are added to scores in place, and across to the encoder there are none but zeros; experts copy all tokens, weigh them, and pick theirs and put them back.
fn forward(run: &Sizes) -> Vec<Kernel> {
    let copied = if run.batch > 1.0 { 4.0 } else { 1.0 };
    vec![
        run.scores((ATTENTIONS - 1.0) * (2.0 + FETCHED) / 2.0, UNARY),
        run.scores(1.0, "add"),
        run.scores(ATTENTIONS, "softmax"),
        projected(run, copied),
        norms(run, NORM),
        wide(run, 1.0, "relu"),
        run.narrow(2.0 * SPARSE * 2.0, UNARY),
        run.narrow(ATTENTIONS + 2.0, "add"),
    ]
}

/// Dropout of scores, of the middle of the feed-forward and of what is added to the residual, in both passes; gradients of positions add up over layers, and those
/// of weights over steps. Experts without a token have gradients of zeros.
fn backward(run: &Sizes) -> Vec<Kernel> {
    let Sizes { layers, hidden, vocab, heads, batch, .. } = *run;
    let logits = |n: f64, op: &'static str| Kernel::flat(n, op, run.rows(), vocab);
    let weights = |n: f64, op: &'static str, values: f64| Kernel::flat(n, op, values / hidden, hidden);
    let feed_forward = 2.0 * hidden * FEED_FORWARD;
    let experts = 2.0 * SPARSE * layers * EXPERTS * feed_forward;
    let dense = 2.0 * (1.0 - SPARSE) * layers * feed_forward;
    let attention = ATTENTIONS * layers * 4.0 * hidden * heads * HEAD_DIM;
    let idle = experts * (EXPERTS - 1.0) / EXPERTS;
    let table = vocab * hidden;
    vec![
        run.scores(2.0 * ATTENTIONS * DROPOUT, UNARY),
        run.scores(ATTENTIONS * SOFTMAX_BACKWARD, "softmax"),
        run.scores(ATTENTIONS, "add"),
        projected(run, if batch > 1.0 { 4.0 } else { 3.0 }),
        norms(run, NORM_BACKWARD),
        wide(run, 2.0 * DROPOUT, UNARY),
        wide(run, 1.0, "mul"),
        run.narrow(2.0 * DROPOUT * (ATTENTIONS + 2.0), UNARY),
        run.narrow(2.0 * SPARSE * 2.0, UNARY),
        // Gradients of three projections' inputs, and those around residuals.
        run.narrow(2.0 * ATTENTIONS + ATTENTIONS + 2.0, "add"),
        logits(SOFTMAX_BACKWARD, "softmax"),
        logits(ONE_WAY, UNARY),
        weights(1.0, "add", experts + dense + attention + 2.0 * table),
        weights(ONE_WAY, UNARY, idle + table),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::kernel::operations;
    use super::*;

    const RUN: Sizes = Sizes { tokens: 512.0, batch: 2.0, layers: 24.0, hidden: 1024.0, heads: 32.0, vocab: 32128.0 };

    #[test]
    fn products_do_the_operations_of_an_encoder_and_a_decoder() {
        // Per token: 24 layers with three attentions of four projections and of scores; 24 dense feed-forwards of 48; the head.
        let attention = 24.0 * 3.0 * (8.0 * 1024.0 * 4096.0 + 4.0 * 512.0 * 4096.0);
        let dense = 24.0 * 4.0 * 1024.0 * 16384.0;
        let router = 24.0 * 2.0 * 1024.0 * 4.0;
        let token = attention + dense + router + 2.0 * 1024.0 * 32128.0;
        // Of each sequence an expert takes 64 tokens.
        let experts = 24.0 * 2.0 * 64.0 * 4.0 * 1024.0 * 16384.0;
        let wanted = 1024.0 * token + experts;
        let found = operations(&kernels(&RUN, false));
        assert!((found / wanted - 1.0).abs() < 1e-12, "{found} {wanted}");
        assert!((operations(&kernels(&RUN, true)) / wanted - 3.0).abs() < 1e-12);
    }
}
