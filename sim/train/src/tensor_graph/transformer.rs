//! One training step of a dense transformer as a graph over `batch` and `sequence`: forward, backward, an update per weight.
//!
//! Bytes: bf16 tensors, log-probabilities in 32 bits, weights with their 32-bit copy and two moments (Adam) as arguments. Frameworks run all
//! updates last, and that is the original order. Backward of a product is two products, of its input and of its weight; the traffic of
//! memory-bound kernels is what they read and write. Norm weights (a few KiB) and dropout are left out; logits exist in bf16 and in 32 bits,
//! as Hugging Face's Llama makes them. Flash attention is one kernel of a library with two results; unfused attention keeps its scores.

use super::symbolic::{Expression, Symbol, Symbols};
use super::{Kind, Operation, TensorGraph, TensorId, Work};
use crate::problem::AttentionKernel;
use engine::model::Model;
use engine::task::Pass;

/// Bytes of an element in the model's format, and of a 32-bit one.
const ELEMENT: i128 = 2;
const WIDE: i128 = 4;
/// Bytes of an index.
const INDEX: i128 = 8;
/// Bytes per parameter of the master copy and two moments.
const OPTIMIZER: i128 = 12;
/// Bytes that an update moves per parameter: gradient, weight, master copy and moments read and written.
const UPDATE_TRAFFIC: i128 = 28;

/// A weight with what it needs in backward.
#[derive(Clone, Copy)]
struct Weight {
    tensor: TensorId,
    /// Rows that it takes, columns that it gives.
    shape: [u64; 2],
}

/// Weights of a layer.
struct LayerWeights {
    qkv: Weight,
    output: Weight,
    up: Weight,
    down: Weight,
}

/// What a layer's forward leaves for its backward.
struct Kept {
    input: TensorId,
    normed: TensorId,
    rotated: TensorId,
    attention: Attention,
    residual: TensorId,
    normed_again: TensorId,
    wide: TensorId,
    activated: TensorId,
}

/// What attention leaves.
enum Attention {
    /// Result and log-sum-exp.
    Flash([TensorId; 2]),
    /// Result and probabilities.
    Unfused([TensorId; 2]),
}

impl Attention {
    const fn result(&self) -> TensorId {
        match self {
            Self::Flash([result, _]) | Self::Unfused([result, _]) => *result,
        }
    }
}

struct Builder<'a> {
    graph: TensorGraph,
    model: &'a Model,
    batch: Expression,
    sequence: Expression,
    /// `batch * sequence`.
    tokens: Expression,
    /// Weights with their gradients, updated at the end.
    gradients: Vec<(Weight, TensorId, String)>,
}

fn number(n: u64) -> Expression {
    Expression::constant(i128::from(n))
}

/// A model that this graph does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` has experts or latent attention; this graph is of dense transformers")]
pub struct NotDense(String);

/// The graph of a step, over symbols `batch` and `sequence`.
///
/// # Errors
/// When the model has what it does not know.
pub fn training_step(
    model: &Model,
    attention: AttentionKernel,
    batch: Symbol,
    sequence: Symbol,
) -> Result<TensorGraph, NotDense> {
    if model.experts.is_some() || model.latent.is_some() {
        return Err(NotDense(model.name.clone()));
    }
    let mut symbols = Symbols::default();
    let [batch, sequence] = [batch, sequence].map(|symbol| Expression::symbol(symbols.add(symbol)));
    let tokens = batch.product(&sequence);
    let graph = TensorGraph { symbols, ..TensorGraph::default() };
    let mut builder = Builder { graph, model, batch, sequence, tokens, gradients: Vec::new() };
    builder.step(attention);
    Ok(builder.graph)
}

impl Builder<'_> {
    fn step(&mut self, attention: AttentionKernel) {
        let (hidden, vocab) = (self.model.hidden, self.model.vocab);
        let ids = self.graph.argument("token ids", &self.tokens.times(INDEX));
        let optimizer = i128::from(self.model.n_parameters()) * OPTIMIZER;
        self.graph.argument("optimizer states", &Expression::constant(optimizer));
        let embedding = self.weight("embedding", [vocab, hidden]);
        let layers: Vec<LayerWeights> = (0..self.model.n_layers).map(|layer| self.layer_weights(layer)).collect();
        let head = self.weight("head", [hidden, vocab]);
        let mut x = self.kernel("embed", Kind::Compute, &[ids, embedding.tensor], hidden);
        let mut kept = Vec::with_capacity(layers.len());
        for (layer, weights) in layers.iter().enumerate() {
            let (next, left) = self.forward(layer, weights, x, attention);
            (x, _) = (next, kept.push(left));
        }
        let mut dx = self.head(head, x, ids);
        for (layer, (weights, left)) in layers.iter().zip(kept).enumerate().rev() {
            dx = self.backward(layer, weights, &left, dx);
        }
        let size = number(vocab * hidden).times(ELEMENT);
        let name = "gradient of embedding";
        let traffic = self.wide(hidden, ELEMENT).plus(&size);
        let gradient = self.add(name, Kind::Compute, &[dx, ids], &[(name, &size)], Work::Traffic(traffic))[0];
        self.gradients.push((embedding, gradient, "embedding".to_owned()));
        self.updates();
    }

    /// Bytes of so many elements per token.
    fn wide(&self, width: u64, element: i128) -> Expression {
        self.tokens.product(&number(width)).times(element)
    }

    fn weight(&mut self, name: &str, shape: [u64; 2]) -> Weight {
        let bytes = number(shape[0] * shape[1]).times(ELEMENT);
        Weight { tensor: self.graph.argument(name, &bytes), shape }
    }

    fn layer_weights(&mut self, layer: u64) -> LayerWeights {
        let model = self.model;
        let (query, projections) = (model.n_heads * model.head_dim, if model.gated { 2 } else { 1 });
        let mut named = |name: &str, shape| self.weight(&format!("layer {layer} {name}"), shape);
        LayerWeights {
            qkv: named("qkv", [model.hidden, query + 2 * model.kv_width()]),
            output: named("output", [query, model.hidden]),
            up: named("up", [model.hidden, projections * model.intermediate]),
            down: named("down", [model.intermediate, model.hidden]),
        }
    }

    fn add(
        &mut self,
        name: &str,
        kind: Kind,
        inputs: &[TensorId],
        outputs: &[(&str, &Expression)],
        work: Work,
    ) -> Vec<TensorId> {
        let (name, inputs) = (name.into(), inputs.into());
        self.graph.operation(Operation { name, kind, inputs, outputs: vec![], updates: None, work }, outputs)
    }

    /// A memory-bound kernel with one result of so many elements per token.
    fn kernel(&mut self, name: &str, kind: Kind, inputs: &[TensorId], width: u64) -> TensorId {
        let bytes = self.wide(width, ELEMENT);
        self.kernel_of(name, kind, inputs, &bytes)
    }

    fn kernel_of(&mut self, name: &str, kind: Kind, inputs: &[TensorId], bytes: &Expression) -> TensorId {
        let is_weight = |tensor: &&TensorId| self.graph.is_argument(**tensor);
        let read = inputs.iter().filter(|tensor| !is_weight(tensor));
        let traffic = read.fold(bytes.clone(), |sum, tensor| sum.plus(&self.graph.tensors[tensor.index()].bytes));
        self.add(name, kind, inputs, &[(name, bytes)], Work::Traffic(traffic))[0]
    }

    /// A product of activations with a weight.
    fn linear(&mut self, name: &str, x: TensorId, weight: Weight) -> TensorId {
        let [k, n] = weight.shape;
        let work = Work::Gemm { m: self.tokens.clone(), n: number(n), k: number(k) };
        let bytes = self.wide(n, ELEMENT);
        self.add(name, Kind::Compute, &[x, weight.tensor], &[(name, &bytes)], work)[0]
    }

    /// Gradients of a product: of its weight first, as frameworks do, then of its input.
    fn linear_backward(&mut self, name: &str, x: TensorId, weight: Weight, dy: TensorId) -> TensorId {
        let [k, n] = weight.shape;
        let of_weight = format!("gradient of {name}");
        let work = Work::Gemm { m: number(k), n: number(n), k: self.tokens.clone() };
        let size = number(k * n).times(ELEMENT);
        let gradient = self.add(&of_weight, Kind::Compute, &[x, dy], &[(&of_weight, &size)], work)[0];
        self.gradients.push((weight, gradient, name.to_owned()));
        let of_input = format!("gradient into {name}");
        let work = Work::Gemm { m: self.tokens.clone(), n: number(k), k: number(n) };
        let bytes = self.wide(k, ELEMENT);
        self.add(&of_input, Kind::Compute, &[dy, weight.tensor], &[(&of_input, &bytes)], work)[0]
    }

    fn forward(&mut self, layer: usize, w: &LayerWeights, x: TensorId, kernel: AttentionKernel) -> (TensorId, Kept) {
        let name = |what: &str| format!("layer {layer} {what}");
        let model = self.model;
        let (hidden, qkv_width) = (model.hidden, w.qkv.shape[1]);
        let normed = self.kernel(&name("norm"), Kind::Compute, &[x], hidden);
        let qkv = self.linear(&name("qkv"), normed, w.qkv);
        let rotated = self.kernel(&name("rotary"), Kind::Compute, &[qkv], qkv_width);
        let attention = self.attention(layer, rotated, kernel);
        let projected = self.linear(&name("output"), attention.result(), w.output);
        let residual = self.kernel(&name("residual"), Kind::Compute, &[x, projected], hidden);
        let normed_again = self.kernel(&name("second norm"), Kind::Compute, &[residual], hidden);
        let wide = self.linear(&name("up"), normed_again, w.up);
        let activated = self.kernel(&name("activation"), Kind::Compute, &[wide], model.intermediate);
        let down = self.linear(&name("down"), activated, w.down);
        let next = self.kernel(&name("second residual"), Kind::Compute, &[residual, down], hidden);
        (next, Kept { input: x, normed, rotated, attention, residual, normed_again, wide, activated })
    }

    /// Scores of every head: `batch * heads * sequence * sequence` elements.
    fn scores(&self) -> Expression {
        self.tokens.product(&self.sequence).product(&number(self.model.n_heads))
    }

    fn attention(&mut self, layer: usize, qkv: TensorId, kernel: AttentionKernel) -> Attention {
        let name = |what: &str| format!("layer {layer} {what}");
        let model = self.model;
        let query = model.n_heads * model.head_dim;
        let result = self.wide(query, ELEMENT);
        if kernel.is_fused() {
            let sums = self.tokens.product(&number(model.n_heads)).times(WIDE);
            let (one, two) = (name("attention"), name("log-sum-exp"));
            let work = self.flash(Pass::Forward);
            let both = self.add(&one, Kind::Custom, &[qkv], &[(&one, &result), (&two, &sums)], work);
            return Attention::Flash([both[0], both[1]]);
        }
        let squares = self.scores().times(ELEMENT);
        let rows = self.tokens.product(&number(model.n_heads));
        let product = |n: Expression, k: Expression| Work::Gemm { m: rows.clone(), n, k };
        let (length, width) = (self.sequence.clone(), number(model.head_dim));
        let work = product(length.clone(), width.clone());
        let scores = self.add(&name("scores"), Kind::Compute, &[qkv], &[(&name("scores"), &squares)], work)[0];
        let probabilities = self.kernel_of(&name("softmax"), Kind::Compute, &[scores], &squares);
        let work = product(width, length);
        let inputs = [probabilities, qkv];
        let result = self.add(&name("attention"), Kind::Compute, &inputs, &[(&name("attention"), &result)], work)[0];
        Attention::Unfused([result, probabilities])
    }

    fn flash(&self, pass: Pass) -> Work {
        let model = self.model;
        let heads = [model.n_heads, model.n_kv_heads, model.head_dim];
        Work::Attention { sequences: self.batch.clone(), tokens: self.sequence.clone(), heads, pass }
    }

    fn attention_backward(&mut self, layer: usize, kept: &Kept, dy: TensorId, width: u64) -> TensorId {
        let name = |what: &str| format!("layer {layer} {what}");
        let bytes = self.wide(width, ELEMENT);
        let (result, probabilities) = match kept.attention {
            Attention::Flash([result, sums]) => {
                let name = name("gradient of attention");
                let work = self.flash(Pass::Backward);
                return self.add(&name, Kind::Custom, &[dy, kept.rotated, result, sums], &[(&name, &bytes)], work)[0];
            }
            Attention::Unfused([result, probabilities]) => (result, probabilities),
        };
        let model = self.model;
        let squares = self.scores().times(ELEMENT);
        let rows = self.tokens.product(&number(model.n_heads));
        let (length, head_dim) = (self.sequence.clone(), number(model.head_dim));
        let work = Work::Gemm { m: rows.clone(), n: length.clone(), k: head_dim.clone() };
        let of = name("gradient of probabilities");
        let dp = self.add(&of, Kind::Compute, &[dy, kept.rotated], &[(&of, &squares)], work)[0];
        let ds =
            self.kernel_of(&name("gradient of softmax"), Kind::Compute, &[dp, probabilities, dy, result], &squares);
        // Gradients of queries, keys and values, three products over the square.
        let work = Work::Gemm { m: rows.times(3), n: head_dim, k: length };
        let of = name("gradient of attention");
        self.add(&of, Kind::Compute, &[ds, probabilities, dy, kept.rotated], &[(&of, &bytes)], work)[0]
    }

    /// Final norm, logits, loss, and the gradient that enters the last layer.
    fn head(&mut self, head: Weight, x: TensorId, ids: TensorId) -> TensorId {
        let (hidden, vocab) = (self.model.hidden, self.model.vocab);
        let normed = self.kernel("final norm", Kind::Compute, &[x], hidden);
        let logits = self.linear("head", normed, head);
        let wide = self.wide(vocab, WIDE);
        let wide_logits = self.kernel_of("logits in 32 bits", Kind::Expanding, &[logits], &wide);
        let log = self.kernel_of("log-probabilities", Kind::Compute, &[wide_logits], &wide);
        let dlogits = self.kernel("gradient of logits", Kind::Compute, &[log, ids], vocab);
        let dnormed = self.linear_backward("head", normed, head, dlogits);
        self.kernel("gradient of final norm", Kind::Compute, &[dnormed, x], hidden)
    }

    fn backward(&mut self, layer: usize, w: &LayerWeights, kept: &Kept, dy: TensorId) -> TensorId {
        let name = |what: &str| format!("layer {layer} {what}");
        let hidden = self.model.hidden;
        let dactivated = self.linear_backward(&name("down"), kept.activated, w.down, dy);
        let of_wide = name("gradient of activation");
        let dwide = self.kernel(&of_wide, Kind::Compute, &[dactivated, kept.wide], w.up.shape[1]);
        let dnormed = self.linear_backward(&name("up"), kept.normed_again, w.up, dwide);
        let of_norm = name("gradient of second norm");
        let dresidual = self.kernel(&of_norm, Kind::Compute, &[dnormed, kept.residual, dy], hidden);
        let dattention = self.linear_backward(&name("output"), kept.attention.result(), w.output, dresidual);
        let width = w.qkv.shape[1];
        let drotated = self.attention_backward(layer, kept, dattention, width);
        let dqkv = self.kernel(&name("gradient of rotary"), Kind::Compute, &[drotated], width);
        let dnormed = self.linear_backward(&name("qkv"), kept.normed, w.qkv, dqkv);
        self.kernel(&name("gradient of norm"), Kind::Compute, &[dnormed, kept.input, dresidual], hidden)
    }

    fn updates(&mut self) {
        for (weight, gradient, name) in std::mem::take(&mut self.gradients) {
            let [rows, columns] = weight.shape;
            let operation = Operation {
                name: format!("update of {name}"),
                kind: Kind::Custom,
                inputs: vec![gradient],
                outputs: Vec::new(),
                updates: Some(weight.tensor),
                work: Work::Traffic(number(rows * columns).times(UPDATE_TRAFFIC)),
            };
            self.graph.operation(operation, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::program::live_bytes;
    use super::*;

    fn llama(kernel: AttentionKernel) -> TensorGraph {
        let model = engine::model::embedded("llama-2-7b").expect("embedded");
        let [batch, sequence] = ["batch", "sequence"].map(Symbol::unbounded);
        training_step(&model, kernel, batch, sequence).expect("dense")
    }

    #[test]
    fn a_step_does_six_operations_per_parameter_and_token() {
        // Products of weights: 2 forward and 4 backward per parameter and token, without the embedding table, which is looked up.
        let graph = llama(AttentionKernel::Flash);
        let of = |id: super::super::symbolic::SymbolId| [3, 512][id.0 as usize];
        let products = graph.ops(&of).into_iter().filter(|op| op.class() == "gemm").map(|op| op.flops()).sum::<f64>();
        let model = engine::model::embedded("llama-2-7b").expect("embedded");
        let norms = (2 * model.n_layers + 1) * model.hidden;
        let parameters = hw::real(model.n_parameters() - model.vocab * model.hidden - norms);
        let expected = 6.0 * parameters * 3.0 * 512.0;
        assert!((products / expected - 1.0).abs() < 1e-12, "{products} of {expected}");
    }

    #[test]
    fn forward_leaves_what_the_published_formula_says() {
        // Per token and layer without dropout: two residuals, two norms, queries, keys, values and the attention's result of 4096 each, two
        // projections and their product of 11008 each, in two bytes, and 32 log-sum-exps in four; the weights stay.
        let graph = llama(AttentionKernel::Flash);
        let live = live_bytes(&graph, &graph.original_order());
        let at = graph.operations.iter().position(|op| op.name == "final norm").expect("there");
        let of = |id: super::super::symbolic::SymbolId| [1, 1000][id.0 as usize];
        let layer = 2 * (8 * 4096 + 3 * 11_008) + 4 * 32;
        let token = 32 * layer + 2 * 2 * 4096 + 8;
        let norms: u64 = 65 * 4096;
        let parameters = engine::model::embedded("llama-2-7b").expect("embedded").n_parameters();
        let expected = 1000 * token + 12 * parameters + 2 * (parameters - norms);
        assert_eq!(live[at].value(&of), i128::from(expected));
    }

    #[test]
    fn unfused_attention_keeps_the_square() {
        let graph = llama(AttentionKernel::Unfused);
        let scores = graph.tensors.iter().find(|tensor| tensor.name == "layer 0 softmax").expect("there");
        assert_eq!(graph.symbols.words(&scores.bytes), "64*batch*sequence*sequence");
    }
}
