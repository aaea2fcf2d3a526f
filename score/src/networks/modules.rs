//! Kernels that the modules of three families run in 32 bits, one by one, and their backward.
//!
//! Sources: huggingface/transformers v4.35.2 (`models/{bert,gpt2,opt}`, `activations.py`), with attention that is not fused; pytorch/pytorch v2.1 (`matmul`
//! copies what it cannot view, `tools/autograd/derivatives.yaml`); sitar-lab/NeuSight @ 6945927d9afc, `neusight/Tracing/trace.py`: which class of a model
//! runs, and that gradients add up from step to step.

use super::kernel::{BINARY, DROPOUT, Kernel, NORM_BACKWARD, ONE_WAY, SOFTMAX_BACKWARD, Sizes, UNARY};

/// Tensors that the gradient of a maximum moves over those of an operator with one input: two comparisons, a half, a choice and a fill (`maximum` of
/// `derivatives.yaml`).
const MAXIMUM_BACKWARD: f64 = 40.0 / 8.0;

/// Whose modules a model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Bert,
    Gpt,
    Opt,
}

impl Family {
    /// By the name of a model; none where its operators are not known.
    pub(super) fn named(model: &str) -> Option<Self> {
        let is = |prefix: &&(&str, Self)| model.starts_with(prefix.0);
        [("bert", Self::Bert), ("gpt", Self::Gpt), ("opt", Self::Opt)].iter().find(is).map(|(_, family)| *family)
    }
}

/// A run's model and sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) family: Family,
    pub(super) is_trained: bool,
    /// Compiled: what is no product runs in the kernels beside it.
    pub(super) is_fused: bool,
    pub(super) sizes: Sizes,
}

/// Every kernel of a run: forward, and backward where it trains.
pub(super) fn kernels(run: &Run) -> Vec<Kernel> {
    let products = products(run);
    let mut all = products.clone();
    if run.is_fused {
        all.extend(fused(run));
        return all;
    }
    all.extend(forward(run));
    if run.is_trained {
        // Gradients of both factors of every product.
        all.extend(products.iter().map(|product| Kernel { n: 2.0 * product.n, ..*product }));
        let dropped = dropout(run);
        all.extend(dropped.iter().chain(&dropped));
        all.extend(backward(run));
    }
    all
}

impl Run {
    /// Heads that lie apart are copied for a batched product of several sequences. OPT does so for one as well (`_shape`).
    fn copies_heads(&self) -> bool {
        self.sizes.batch > 1.0 || self.family == Family::Opt
    }
}

fn products(run: &Run) -> Vec<Kernel> {
    let family = run.family;
    let Sizes { hidden, layers, tokens, batch, heads, vocab } = run.sizes;
    let linear = |n: f64, from: f64, to: f64| Kernel::linear(n, run.sizes.rows(), from, to);
    let groups = batch * heads;
    let batched = |n: f64, k: f64| Kernel { n: layers, op: "bmm", sizes: [groups, tokens, n, k] };
    let head_dim = hidden / heads;
    let projections = match family {
        Family::Gpt => vec![linear(layers, hidden, 3.0 * hidden), linear(layers, hidden, hidden)],
        Family::Bert | Family::Opt => vec![linear(4.0 * layers, hidden, hidden)],
    };
    let feed_forward = [linear(layers, hidden, 4.0 * hidden), linear(layers, 4.0 * hidden, hidden)];
    // BERT classifies a sequence by its first token unless it trains; then a layer more stands before the vocabulary.
    let head = match (family, run.is_trained) {
        (Family::Bert, false) => vec![],
        (Family::Bert, true) => vec![linear(1.0, hidden, hidden), linear(1.0, hidden, vocab)],
        _ => vec![linear(1.0, hidden, vocab)],
    };
    let attention = [batched(head_dim, tokens), batched(tokens, head_dim)];
    projections.into_iter().chain(feed_forward).chain(head).chain(attention).collect()
}

/// What is no product. Scores are scaled and masked, or masked and bounded from below (OPT, which scales its queries).
fn forward(run: &Run) -> Vec<Kernel> {
    let mut all = vec![
        run.sizes.scores(2.0, UNARY),
        run.sizes.scores(1.0, "softmax"),
        // Query, key and value by head, and the result by token.
        run.sizes.narrow(if run.copies_heads() { 4.0 } else { 1.0 }, UNARY),
        run.sizes.narrow(2.0, "add"),
        run.sizes.norms(),
    ];
    match run.family {
        Family::Bert => all.push(run.sizes.wide(1.0, "gelu")),
        // `0.5 x (1 + tanh(c (x + d x³)))`, operation by operation.
        Family::Gpt => {
            all.extend([run.sizes.wide(5.0, UNARY), run.sizes.wide(1.0, "tanh"), run.sizes.wide(2.0, BINARY)])
        }
        Family::Opt => all.extend([run.sizes.wide(1.0, "relu"), run.sizes.narrow(1.0, UNARY)]),
    }
    all
}

/// A compiler's kernels: scale, mask and softmax are one, norms add the residual. Operands of batched products are copied as before.
fn fused(run: &Run) -> Vec<Kernel> {
    vec![
        run.sizes.scores(1.0, "softmax"),
        run.sizes.wide(1.0, "gelu"),
        run.sizes.narrow(if run.copies_heads() { 4.0 } else { 1.0 }, UNARY),
        run.sizes.narrow(2.0, UNARY),
        run.sizes.norms(),
    ]
}

/// Dropout of scores and of what is added to the residual; as many bytes in backward. OPT drops no scores.
fn dropout(run: &Run) -> Vec<Kernel> {
    let residual = run.sizes.narrow(2.0 * DROPOUT, UNARY);
    match run.family {
        Family::Opt => vec![residual],
        Family::Bert | Family::Gpt => vec![residual, run.sizes.scores(DROPOUT, UNARY)],
    }
}

/// Backward of what is no product, the loss's over the logits, and what adds gradients of weights to those of the step before.
fn backward(run: &Run) -> Vec<Kernel> {
    let Sizes { layers, hidden, vocab, batch, .. } = run.sizes;
    let logits = |n: f64, op: &'static str| Kernel::flat(n, op, run.sizes.rows(), vocab);
    // The table of words has a gradient as embedding and one as head, which is filled first.
    let table = vocab * hidden;
    let weights = |n: f64, op: &'static str, elements: f64| Kernel::flat(n, op, elements / hidden, hidden);
    let norms = run.sizes.norms();
    let mut all = vec![
        run.sizes.scores(SOFTMAX_BACKWARD, "softmax"),
        run.sizes.narrow(if batch > 1.0 { 4.0 } else { 3.0 }, UNARY),
        Kernel { n: NORM_BACKWARD * norms.n, ..norms },
        // Gradients of biases: nine widths of them in a layer.
        run.sizes.narrow(9.0 * ONE_WAY, UNARY),
        logits(SOFTMAX_BACKWARD, "softmax"),
        logits(ONE_WAY, UNARY),
        weights(1.0, "add", 12.0 * layers * hidden * hidden + 2.0 * table),
        weights(ONE_WAY, UNARY, table),
    ];
    match run.family {
        // Query, key and value are products of their own: their gradients are added, as those around both residuals are.
        Family::Bert => {
            all.extend([run.sizes.scores(1.0, UNARY), run.sizes.wide(1.0, BINARY), run.sizes.narrow(4.0, "add")])
        }
        Family::Gpt => all.extend([
            run.sizes.scores(2.0, UNARY),
            run.sizes.wide(4.0, BINARY),
            run.sizes.wide(5.0, UNARY),
            run.sizes.wide(2.0, "add"),
            run.sizes.narrow(2.0, "add"),
        ]),
        Family::Opt => all.extend([
            run.sizes.scores(MAXIMUM_BACKWARD, UNARY),
            run.sizes.wide(1.0, BINARY),
            run.sizes.narrow(4.0, "add"),
            run.sizes.narrow(1.0, UNARY),
        ]),
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::kernel::operations;
    use super::*;

    fn run(family: Family, is_trained: bool) -> Run {
        let sizes = Sizes { tokens: 8.0, batch: 2.0, layers: 3.0, hidden: 16.0, heads: 4.0, vocab: 32.0 };
        Run { family, is_trained, is_fused: false, sizes }
    }

    #[test]
    fn products_do_the_operations_of_a_transformer_and_training_three_times_as_many() {
        // 24 h² of a layer's weights and 4 s h of its attention per token, and 2 h v of the head.
        let layers = 16.0 * 3.0 * (24.0 * 256.0 + 4.0 * 8.0 * 16.0);
        let head = 16.0 * 2.0 * 16.0 * 32.0;
        for family in [Family::Gpt, Family::Opt] {
            let found = operations(&kernels(&run(family, false)));
            assert!((found - layers - head).abs() < 1e-6, "{family:?} {found}");
            assert!((operations(&kernels(&run(family, true))) - 3.0 * found).abs() < 1e-6);
        }
        // BERT has no head over its vocabulary before it trains, and then a product more.
        let bert = run(Family::Bert, false);
        assert!((operations(&kernels(&bert)) - layers).abs() < 1e-6);
        let more = 16.0 * 2.0 * 256.0;
        assert!((operations(&kernels(&run(Family::Bert, true))) - 3.0 * (layers + head + more)).abs() < 1e-6);
    }

    #[test]
    fn eight_kernels_make_the_activation_of_gpt() {
        let wide = |family| {
            let all = kernels(&run(family, false));
            let of = |kernel: &&Kernel| kernel.op != "linear" && kernel.sizes[1] == 64.0;
            all.iter().filter(of).map(|kernel| kernel.n).sum::<f64>() / 3.0
        };
        assert_eq!([Family::Bert, Family::Gpt, Family::Opt].map(wide), [1.0, 8.0, 1.0]);
    }

    #[test]
    fn heads_of_one_sequence_are_not_copied() {
        let copies = |family| {
            let narrow = |batch| {
                let all = kernels(&Run { sizes: Sizes { batch, ..run(family, false).sizes }, ..run(family, false) });
                let of = |kernel: &&Kernel| kernel.op == UNARY && kernel.sizes[1] == 16.0;
                all.iter().filter(of).map(|kernel| kernel.n).sum::<f64>()
            };
            (narrow(2.0) - narrow(1.0)) / 3.0
        };
        assert_eq!([Family::Bert, Family::Gpt, Family::Opt].map(copies), [3.0, 3.0, 0.0]);
    }
}
