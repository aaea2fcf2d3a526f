//! A training step on several GPUs of a node: kernels on the way of the first rank, in 32 bits, and what it exchanges.
//!
//! Sources: sitar-lab/NeuSight @ 6945927d9afc, `collect_label_distributed.py` and `run_label_distributed.py`: Accelerate 1.0.0 over Megatron-LM core
//! 0.5.0, one micro-batch, no mixed precision, no sequence parallelism. Its `model(**batch)` is Megatron-LM's `train_step`, so unlike the runs on one GPU
//! these contain the reduction of gradients and the update (`MegatronEngine.forward`). NVIDIA/Megatron-LM core_v0.5.0: `megatron/model/transformer.py`
//! (local modules, attention that is not fused), `core/fusions`, `core/tensor_parallel/{layers,cross_entropy}.py`, `core/distributed/grad_buffer.py`,
//! `megatron/arguments.py` for what is not set. Units: bytes.

use engine::task::Collective;

use crate::reason::Reason;

use super::kernel::{BINARY, DROPOUT, Kernel, NORM_BACKWARD, ONE_WAY, SOFTMAX_BACKWARD, Sizes, UNARY};

/// Bytes of a value.
const BYTES: f64 = 4.0;
/// Rows of the vocabulary are padded to multiples of this for every tensor rank (`make-vocab-size-divisible-by`).
const VOCAB_MULTIPLE: f64 = 128.0;
/// Tensors of a sum with residual and dropout in one kernel, over those of a sum: its mask has a byte per element.
const DROPPED_SUM: f64 = 13.0 / 12.0;
/// Bytes per logit of a loss over a part of the vocabulary over those of an operator with one input: largest value 4, difference 8, exponentials 8, their sum
/// 4, quotient 8; in backward a product 8. The casts of `engine::loss` do not run in 32 bits.
const LOSS: f64 = 40.0 / 8.0;
/// Bytes per parameter of a step over those of an operator with one input: gradients filled with zeros 4, divided by the replicas 8, their norm 4, and Adam's
/// update in one kernel 28. Gradients of a constant batch are not clipped.
const STEP: f64 = 44.0 / 8.0;

/// How a model is cut. One degree is above 1 in what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Degrees {
    pub(super) dp: u32,
    pub(super) tp: u32,
    pub(super) pp: u32,
}

/// Something that ranks exchange, so often; hidden as far as a product beside it runs as long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Exchange {
    pub(super) n: f64,
    pub(super) kind: Collective,
    pub(super) ranks: u32,
    pub(super) bytes: f64,
    pub(super) behind: Option<Kernel>,
}

/// A step of a GPT on the first rank: it waits for the passes of all stages, as there is one micro-batch.
pub(super) struct Step {
    whole: Sizes,
    degrees: Degrees,
    /// Tensor ranks.
    tp: f64,
    /// Rows of the vocabulary with padding.
    vocab: f64,
}

impl Step {
    /// A step, or what does not divide what.
    pub(super) fn new(sizes: Sizes, degrees: Degrees) -> Result<Self, Reason> {
        let [dp, tp, pp] = [degrees.dp, degrees.tp, degrees.pp].map(f64::from);
        for (what, all, by) in
            [("sequences", sizes.batch, dp), ("heads", sizes.heads, tp), ("layers", sizes.layers, pp)]
        {
            if all % by != 0.0 {
                return Err(Reason::Degrees { what: format!("{all} {what} over {by} ranks") });
            }
        }
        let multiple = VOCAB_MULTIPLE * tp;
        let vocab = libm::ceil(sizes.vocab / multiple) * multiple;
        Ok(Self { whole: Sizes { batch: sizes.batch / dp, ..sizes }, degrees, tp, vocab })
    }

    /// Kernels on the way of the first rank.
    pub(super) fn kernels(&self) -> Vec<Kernel> {
        let products = self.products();
        let gradients = products.iter().map(|product| product.times(2.0));
        let mut all: Vec<Kernel> = gradients.chain(products.iter().copied()).collect();
        all.extend(self.forward());
        all.extend(self.backward());
        all.push(self.over_weights(STEP, UNARY, self.parameters()));
        all
    }

    /// What the first rank exchanges. Reductions of gradients of inputs run beside the product that makes those of weights
    /// (`LinearWithGradAccumulationAndAsyncCommunication`), other ones by themselves.
    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        let Degrees { dp, tp, pp } = self.degrees;
        let Sizes { layers, hidden, .. } = self.whole;
        let rows = self.whole.rows();
        let stream = BYTES * rows * hidden;
        let reduced =
            |n: f64, ranks: u32, bytes: f64| Exchange { n, kind: Collective::AllReduce, ranks, bytes, behind: None };
        let behind = |n: f64, to: f64| Exchange {
            behind: Some(Kernel::linear(1.0, rows, hidden, to / self.tp)),
            ..reduced(n, tp, stream)
        };
        let mut all = Vec::new();
        if tp > 1 {
            all.extend([
                reduced(2.0 * layers + 1.0, tp, stream),
                behind(layers, 3.0 * hidden),
                behind(layers, 4.0 * hidden),
                behind(1.0, self.vocab),
            ]);
        }
        if dp > 1 {
            all.push(reduced(1.0, dp, BYTES * self.parameters()));
        }
        if pp > 1 {
            let sent = Exchange { kind: Collective::SendRecv, ..reduced(2.0 * f64::from(pp - 1), 2, stream) };
            // First and last stage share the table of words (`_allreduce_word_embedding_grads`).
            all.extend([sent, reduced(1.0, 2, BYTES * self.table())]);
        }
        all
    }

    /// Values of the table of words on a rank.
    fn table(&self) -> f64 {
        self.vocab * self.whole.hidden / self.tp
    }

    /// Parameters of the first rank: weights of its layers, with biases and norms, and the table of words.
    fn parameters(&self) -> f64 {
        let Sizes { layers, hidden, tokens, .. } = self.whole;
        let (tp, pp) = (self.tp, f64::from(self.degrees.pp));
        let layer = 12.0 * hidden * hidden / tp + (7.0 / tp + 6.0) * hidden;
        layers / pp * layer + self.table() + tokens * hidden
    }

    fn over_weights(&self, n: f64, op: &'static str, values: f64) -> Kernel {
        Kernel::flat(n, op, values / self.whole.hidden, self.whole.hidden)
    }

    fn products(&self) -> Vec<Kernel> {
        let Sizes { layers, hidden, tokens, batch, heads, .. } = self.whole;
        let tp = self.tp;
        let linear = |from: f64, to: f64| Kernel::linear(layers, self.whole.rows(), from, to);
        let batched = |n: f64, k: f64| Kernel { n: layers, op: "bmm", sizes: [batch * heads / tp, tokens, n, k] };
        vec![
            linear(hidden, 3.0 * hidden / tp),
            linear(hidden / tp, hidden),
            linear(hidden, 4.0 * hidden / tp),
            linear(4.0 * hidden / tp, hidden),
            batched(hidden / heads, tokens),
            batched(tokens, hidden / heads),
            Kernel { n: 1.0, ..linear(hidden, self.vocab / tp) },
        ]
    }

    /// What is no product. Scores are masked in place, as the fused kernel is for 16 bits; heads lie as products need them.
    fn forward(&self) -> Vec<Kernel> {
        let (run, part) = (&self.whole, 1.0 / self.tp);
        let embedded = |n: f64, op: &'static str| Kernel::flat(n, op, run.rows(), run.hidden);
        vec![
            run.scores(part * (1.0 + DROPOUT), UNARY),
            run.scores(part, "softmax"),
            // The result by token; biases, dropout and residual are one kernel, and so are bias and activation.
            run.narrow(part, UNARY),
            run.narrow(2.0 * DROPPED_SUM, "add"),
            run.wide(part, UNARY),
            run.norms(),
            embedded(1.0 + DROPOUT, UNARY),
            embedded(1.0, "add"),
        ]
    }

    /// Gradients of weights are added by their own products (`gradient_accumulation_fusion`); that of the table as embedding is added by itself.
    fn backward(&self) -> Vec<Kernel> {
        let (run, part) = (&self.whole, 1.0 / self.tp);
        vec![
            run.scores(part * (1.0 + DROPOUT), UNARY),
            run.scores(part * SOFTMAX_BACKWARD, "softmax"),
            // Dropout, queries with keys and values laid together, sums for biases; both residuals' gradients.
            run.narrow(2.0 * DROPOUT + 3.0 * part + ONE_WAY * (2.0 + 3.0 * part), UNARY),
            run.narrow(2.0, "add"),
            run.wide(part, BINARY),
            run.wide(part * ONE_WAY, UNARY),
            run.norms().times(NORM_BACKWARD),
            Kernel::flat(LOSS, UNARY, run.rows(), self.vocab * part),
            self.over_weights(ONE_WAY, UNARY, self.table()),
            self.over_weights(1.0, "add", self.table()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::operations;
    use super::*;

    const ONE: Degrees = Degrees { dp: 1, tp: 1, pp: 1 };
    const SIZES: Sizes = Sizes { tokens: 8.0, batch: 4.0, layers: 4.0, hidden: 16.0, heads: 4.0, vocab: 1024.0 };

    fn step(degrees: Degrees) -> Step {
        Step::new(SIZES, degrees).expect("divides")
    }

    #[test]
    fn replicas_and_tensor_ranks_share_the_operations_and_one_micro_batch_passes_all_stages() {
        // 24 h² of a layer's weights and 4 s h of its attention per token, 2 h v of the head; three times in all.
        let whole = 3.0 * 32.0 * (4.0 * (24.0 * 256.0 + 4.0 * 8.0 * 16.0) + 2.0 * 16.0 * 1024.0);
        for (degrees, share) in [
            (ONE, 1.0),
            (Degrees { dp: 4, ..ONE }, 0.25),
            (Degrees { tp: 4, ..ONE }, 0.25),
            (Degrees { pp: 4, ..ONE }, 1.0),
        ] {
            let found = operations(&step(degrees).kernels());
            assert!((found - share * whole).abs() < 1e-6, "{degrees:?} {found}");
        }
    }

    #[test]
    fn every_degree_has_its_exchanges() {
        let of = |degrees| step(degrees).exchanges();
        assert!(of(ONE).is_empty());
        // All parameters once; 12 h² + 13 h of a layer, the table, and positions.
        let parameters = 4.0 * (12.0 * 256.0 + 13.0 * 16.0) + 1024.0 * 16.0 + 8.0 * 16.0;
        let [reduced] = of(Degrees { dp: 2, ..ONE })[..] else { panic!("one exchange") };
        assert_eq!((reduced.bytes, reduced.ranks, reduced.behind), (4.0 * parameters, 2, None));
        // Two per layer and the embedding's in forward; as many and the head's in backward, beside products.
        let tensor = of(Degrees { tp: 2, ..ONE });
        let number = |hidden: bool| -> f64 {
            tensor.iter().filter(|exchange| exchange.behind.is_some() == hidden).map(|exchange| exchange.n).sum()
        };
        assert_eq!([number(false), number(true)], [9.0, 9.0]);
        // One message to the next stage and one back, and the table.
        let messages = of(Degrees { pp: 2, ..ONE });
        assert_eq!(messages.iter().map(|exchange| exchange.bytes).collect::<Vec<_>>(), [2048.0, 65536.0]);
    }

    #[test]
    fn what_does_not_divide_is_named() {
        let found = Step::new(SIZES, Degrees { pp: 3, ..ONE }).err();
        assert_eq!(found.map(|reason| reason.detail()).as_deref(), Some("4 layers over 3 ranks"));
    }
}
