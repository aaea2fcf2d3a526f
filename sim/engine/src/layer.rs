//! Operations of one transformer layer, of the embedding and of the head, for a number of tokens on a rank.
//!
//! Backward of a GEMM is two GEMMs of the same size (data and weight gradient). Memory-bound kernels are counted by the
//! bytes that they read and write. With tokens 0 every list is empty.

use hw::{Capability, Format, Seconds};

mod adapters;
mod attending;
mod attention;
mod deep_ep;
mod experts;
mod gates;
mod gathered_heads;
mod positions;
mod predicting;
mod reached;
mod recomputed;
mod single;
mod streams;
mod strided;
mod tensor_group;
mod torch;

pub use attending::prompt_attention;
pub use attention::attention;
pub use deep_ep::{OneWay, deep_ep, dispatched_bytes};
pub use experts::{dispatched, expert_exchange, experts_alone};
pub use reached::reached;
pub use recomputed::recomputed_part;
pub use streams::outside;
pub use tensor_group::tensor_exchange;
pub use torch::{Accumulation, ShardedCopies, read_by_backward, sharded_copies};

use crate::model::{FeedForward, Layer, LinearRule, Mixer, Norms, Streams};
use crate::shard::{AdaptedProducts, ExpertLoad, Framework, Shard};
use crate::task::{Op, Ops, PassKind};
use crate::unfused::Fusion;

/// Bytes read and written per logit by the loss: model-format read, 32-bit write and read.
const LOSS_BYTES_PER_LOGIT: u64 = 10;
/// Bytes moved per parameter by an optimizer's step beside its states: gradient 2, parameter 2, and the 32-bit copy of the gradient for the norm 2.
const STEP_BYTES: f64 = 6.0;
/// Bytes of a parameter's states of Adam: a master copy and two moments in 32 bits.
pub const ADAM_STATES: f64 = 12.0;
/// Bytes moved per element that is cast with one scale per tensor: read for the largest value, read again, written in rows and in columns
/// (Transformer Engine, `Float8CurrentScaling`: an amax kernel, then `cast_transpose`).
const CAST_BYTES_PER_TENSOR: u64 = 6;
/// The same where products read one copy by rows and by columns (`nvte_is_non_tn_fp8_gemm_supported`: compute capability 10).
const CAST_BYTES_IN_ONE_COPY: u64 = 5;
/// The same with a scale per block, in halves of a byte: read once, written in rows and in columns, with scales (Transformer Engine, `MXFP8Quantizer`). On B200 it
/// takes 52.3 us for 8,192 by 8,192, and a plain kernel moves 4.5 bytes for each of them in that time (ROCm/TransformerEngine, pull request 598, its column of B200).
const CAST_HALVES_PER_BLOCK: u64 = 9;
/// The same in 4 bits: read for the largest values, and read again to write rows and rotated columns (Transformer Engine 2.14, `NVFP4Quantizer`
/// with random Hadamard transforms: `nvte_hadamard_transform_amax`, then `nvte_quantize_with_hadamard_transform`).
const CAST_BYTES_ROTATED: u64 = 5;
/// The same where rows and rotated columns have a kernel each (Transformer Engine 2.12, `nvte_hadamard_transform_cast_fusion_columnwise`).
const CAST_BYTES_ROTATED_APART: u64 = 7;
/// Halves of a byte that a copy by columns takes of those: written; in 4 bits, and there with a reading of its own where it has a kernel of its own. Gradients
/// of weights alone read that copy, so nobody makes it of what meets frozen weights (Transformer Engine, `module/linear.py`: `set_usage(columnwise=…)`).
const COLUMN_HALVES: u64 = 2;
const ROTATED_COLUMN_HALVES: u64 = 1;
const ROTATED_COLUMN_HALVES_APART: u64 = 5;
/// Bytes moved per parameter of a rank before an Adam step of Megatron-Core with 32-bit gradients: the buffer is zeroed 4 and scaled 8
/// (`DistributedDataParallel`, `gradient_scaling_factor`).
const MEGATRON_BUFFER_BYTES: f64 = 12.0;
/// The same per parameter that the rank's optimizer holds: norm 4, clipping 8, gradient 4, and the copy into the 16-bit parameter 6.
const MEGATRON_STEP_BYTES: f64 = 22.0;
/// Of sharded 32-bit parameters under PyTorch's fused AdamW: norm 4, clipping 8, gradient 4.
const FSDP_STEP_BYTES: f64 = 16.0;
/// Of shards under DeepSpeed (`stage3.py`, `step`): norm of 16-bit gradients 2, their 32-bit copy 6, its scaling 8, gradient 4, and the copy into the
/// 16-bit parameter 6.
const DEEPSPEED_STEP_BYTES: f64 = 26.0;
/// Repeats a list of operations `n` times.
pub fn repeated(ops: &Ops, n: u32) -> Ops {
    if n == 0 { Vec::new() } else { ops.iter().map(|(op, count)| (op.clone(), count * n)).collect() }
}

/// Writes the operations of `tokens` tokens on one rank of the tensor group.
struct Writer<'a> {
    shard: &'a Shard<'a>,
    ops: Ops,
    tokens: u64,
    kind: PassKind,
    /// Tensor degree.
    cut: u64,
    /// Format of the products that come next.
    format: Format,
}

impl<'a> Writer<'a> {
    fn new(shard: &'a Shard<'a>, tokens: u64, kind: PassKind) -> Self {
        Self { shard, ops: Vec::new(), tokens, kind, cut: u64::from(shard.tp), format: shard.dtype.into() }
    }

    /// Products of a part of the model from here on. Engines of serving fuse what makes activations narrow with the norm or the activation
    /// function in front, so it costs no pass of its own; frameworks of training cast (`cast`).
    const fn enter(&mut self, format: Format) {
        self.format = format;
    }

    fn push(&mut self, op: Op) {
        self.ops.push((op, 1));
    }

    /// Makes so many elements narrow, along rows for one product and along columns for its gradient.
    fn cast(&mut self, elements: u64) {
        if let Some(modules) = self.shard.framework.torch() {
            return torch::cast(self, modules, elements);
        }
        let is_narrow = hw::whole(self.format.weight_bytes(8.0)) < 8 * self.shard.dtype.bytes();
        if !is_narrow || self.shard.framework == Framework::Formulas {
            return;
        }
        let [both, columns] = self.cast_halves();
        let is_frozen = self.shard.adapters.is_some();
        let halves = if is_frozen { both - columns } else { both };
        self.push(Op::Elementwise { bytes: halves * elements / 2 });
    }

    /// Halves of a byte that a cast moves of an element, and those of its copy by columns.
    const fn cast_halves(&self) -> [u64; 2] {
        match self.format {
            Format::Fp8 if matches!(self.shard.capability, Capability::Ten) => [2 * CAST_BYTES_IN_ONE_COPY, 0],
            Format::Fp8 => [2 * CAST_BYTES_PER_TENSOR, COLUMN_HALVES],
            Format::Nvfp4 if self.shard.rotates_apart => [2 * CAST_BYTES_ROTATED_APART, ROTATED_COLUMN_HALVES_APART],
            Format::Nvfp4 => [2 * CAST_BYTES_ROTATED, ROTATED_COLUMN_HALVES],
            _ => [CAST_HALVES_PER_BLOCK, COLUMN_HALVES],
        }
    }

    /// A GEMM with these dimensions on this rank, and in backward its gradients.
    fn gemm(&mut self, n: u64, k: u64) {
        let (m, format) = (self.tokens, self.format);
        match self.kind {
            PassKind::Forward => self.cast(m * k),
            PassKind::Backward | PassKind::Input => self.cast(m * n),
            PassKind::Weight => {}
        }
        self.widen(n * k);
        if self.kind == PassKind::Forward {
            self.push(Op::Gemm { m, n, k, format });
        }
        if matches!(self.kind, PassKind::Backward | PassKind::Input) {
            self.push(Op::Gemm { m, n: k, k: n, format });
        }
        if matches!(self.kind, PassKind::Backward | PassKind::Weight) {
            self.push(Op::Gemm { m: n, n: k, k: m, format });
            self.accumulate(n * k);
        }
    }

    /// Adds gradients of so many weights to those of earlier micro-batches, where their products do not. Each is read as the product wrote it, and the sum
    /// is read and written (Megatron-Core, hooks of `DistributedDataParallel`: `param.main_grad.add_(param.grad.data)`).
    fn accumulate(&mut self, weights: u64) {
        if self.shard.is_unfused(Fusion::GradientAccumulation) {
            let bytes = self.shard.dtype.bytes() + 2 * self.shard.gradient_dtype.bytes();
            self.push(Op::Elementwise { bytes: weights * bytes });
        }
    }

    /// Makes a packed matrix of so many weights wide for the product behind: it is read with its scales, and written as the product reads it.
    fn widen(&mut self, weights: u64) {
        let frozen = self.shard.frozen();
        if frozen.is_packed() && self.kind != PassKind::Weight {
            self.push(Op::Elementwise { bytes: frozen.widened_bytes(weights, self.shard.dtype.bytes()) });
        }
    }

    /// A GEMM that every rank of the tensor group runs with the whole matrix, on its own tokens where the sequence is cut
    /// (`TELinear(parallel_mode="duplicated")` of Megatron-Core).
    fn duplicated(&mut self, n: u64, k: u64) {
        let all = self.tokens;
        self.tokens = self.own_tokens();
        self.gemm(n, k);
        self.tokens = all;
    }

    /// Tokens of this rank between its cut products.
    const fn own_tokens(&self) -> u64 {
        if self.shard.sequence_parallel { self.tokens.div_ceil(self.cut) } else { self.tokens }
    }

    /// A GEMM whose columns are cut over the tensor group.
    fn column(&mut self, n: u64, k: u64) {
        self.gemm(n.div_ceil(self.cut), k);
    }

    /// A GEMM whose inner dimension is cut over the tensor group.
    fn row(&mut self, n: u64, k: u64) {
        self.gemm(n, k.div_ceil(self.cut));
    }

    /// A kernel that moves `elements` elements in forward and half as many again in backward.
    fn traffic(&mut self, elements: u64) {
        let forward = elements * self.shard.dtype.bytes();
        match self.kind {
            PassKind::Forward => self.push(Op::Elementwise { bytes: forward }),
            PassKind::Backward | PassKind::Input => self.push(Op::Elementwise { bytes: forward + forward / 2 }),
            PassKind::Weight => {}
        }
    }

    /// A kernel that moves so many bytes for each of so many elements, forward and backward.
    fn moves(&mut self, elements: u64, [forward, backward]: [u64; 2]) {
        match self.kind {
            PassKind::Forward => self.push(Op::Elementwise { bytes: elements * forward }),
            PassKind::Backward | PassKind::Input => self.push(Op::Elementwise { bytes: elements * backward }),
            PassKind::Weight => {}
        }
    }

    /// A kernel over `width` elements per token that the tensor group cuts.
    fn elementwise(&mut self, width: u64) {
        self.traffic((self.tokens * width).div_ceil(self.cut));
    }

    /// A kernel over norms or residuals, which only sequence parallelism cuts.
    fn residual(&mut self, width: u64) {
        self.traffic(self.residual_elements(width));
    }

    /// A kernel of backward that moves so many elements of norms or residuals.
    fn backward_residual(&mut self, width: u64) {
        if self.kind != PassKind::Weight {
            self.push(Op::Elementwise { bytes: self.residual_elements(width) * self.shard.dtype.bytes() });
        }
    }

    fn residual_elements(&self, width: u64) -> u64 {
        let cut = if self.shard.sequence_parallel { self.cut } else { 1 };
        (self.tokens * width).div_ceil(cut)
    }

    /// Products of one input by several matrices, cut by columns: one product where the framework joins the matrices.
    fn columns(&mut self, widths: &[u64], k: u64) {
        let parts = if widths.len() > 2 { AdaptedProducts::QUERY_KEY_VALUE } else { AdaptedProducts::FACTORS };
        if self.shard.framework.torch().is_none() {
            return self.column(widths.iter().sum(), k);
        }
        if widths.len() > 1 && self.shard.joins(parts) {
            return torch::columns(self, &[widths.iter().sum()], k);
        }
        torch::columns(self, widths, k);
    }

    fn done(self) -> Ops {
        if self.tokens == 0 { Vec::new() } else { self.ops }
    }
}

/// What comes before the tokens of a layer are mixed: a norm, and projections with rotary positions or a short convolution.
pub fn before_mixing(shard: &Shard<'_>, mixer: Mixer, tokens: u64, kind: PassKind) -> Ops {
    let mut writer = Writer::new(shard, tokens, kind);
    if mixer == Mixer::Off {
        return Vec::new();
    }
    streams::around(&mut writer, true);
    if !shard.model.streams.is_some_and(Streams::replaces_norms) {
        writer.residual(2 * shard.model.hidden);
    }
    writer.enter(shard.formats.attention);
    if mixer.attends() {
        attending::before(&mut writer, mixer);
    }
    if mixer.has_state() {
        before_state(&mut writer, mixer);
    }
    writer.done()
}

/// Projections in front of a state, and the convolution that reads and writes its channels.
fn before_state(writer: &mut Writer<'_>, mixer: Mixer) {
    let model = writer.shard.model;
    match (mixer, model.linear, model.state_space) {
        (Mixer::Linear, Some(linear), _) => {
            writer.column(linear.projected(), model.hidden);
            if linear.rule != LinearRule::Lightning {
                writer.elementwise(2 * linear.channels());
            }
            gates::of_rank(writer, linear);
        }
        (Mixer::StateSpace | Mixer::Joint, _, Some(space)) => {
            writer.column(space.projected(), model.hidden);
            writer.elementwise(2 * space.channels());
            if let Some(rank) = space.step_rank {
                writer.row(space.stepped(rank), space.width());
                writer.column(space.width(), rank);
            }
        }
        (Mixer::Convolution, _, _) => {
            writer.column(3 * model.hidden, model.hidden);
            // Two of the three parts are multiplied, the convolution reads and writes, and the third part gates.
            writer.elementwise((3 + 2 + 3) * model.hidden);
        }
        _ => {}
    }
}

/// Norm, query-key-value projections and rotary position.
pub fn before_attention(shard: &Shard<'_>, tokens: u64, kind: PassKind) -> Ops {
    before_mixing(shard, Mixer::Full, tokens, kind)
}

/// Output projection, residual, norm and feed-forward, dense or of experts, behind attention.
pub fn after_attention(shard: &Shard<'_>, tokens: u64, kind: PassKind, load: Option<&ExpertLoad>) -> Ops {
    let feed_forward = if load.is_some() { FeedForward::Experts } else { FeedForward::Dense };
    after_mixing(shard, Layer { mixer: Mixer::Full, feed_forward }, tokens, kind, load)
}

/// What comes after the tokens of a layer are mixed: output projection, residual, norm and feed-forward, as far as the layer has them.
pub fn after_mixing(shard: &Shard<'_>, layer: Layer, tokens: u64, kind: PassKind, load: Option<&ExpertLoad>) -> Ops {
    let model = shard.model;
    let mut writer = Writer::new(shard, tokens, kind);
    if layer.mixer != Mixer::Off {
        attending::behind(&mut writer, layer.mixer, shard.model.mixed_width(layer.mixer));
        if let (Mixer::Joint, Some(space)) = (layer.mixer, model.state_space) {
            writer.row(model.hidden, space.width());
        }
    }
    if layer.feed_forward != FeedForward::Off {
        streams::around(&mut writer, false);
    }
    writer.residual(match (layer.mixer, layer.feed_forward) {
        // Streams were written already, so a norm is left.
        _ if model.streams.is_some() => 2 * model.hidden,
        (Mixer::Off, _) => 2 * model.hidden,
        (_, FeedForward::Off) => 3 * model.hidden,
        // A feed-forward beside the mixer has the mixer's norm: both results are added to the residual at once, below.
        _ if model.norms == Norms::Shared => model.hidden,
        // Residual add and norm: read two, write two.
        _ => 4 * model.hidden,
    });
    match (layer.feed_forward, model.experts, load) {
        (FeedForward::Off, _, _) => return writer.done(),
        (FeedForward::Experts, Some(experts), Some(load)) => experts::feed_forward(&mut writer, experts, *load),
        _ => feed_forward(&mut writer, model.dense_intermediate(layer.mixer)),
    }
    streams::inputs(&mut writer);
    if model.streams.is_none() {
        writer.residual(3 * model.hidden);
    }
    if model.norms == Norms::Around {
        writer.residual(4 * model.hidden);
    }
    writer.done()
}

/// Bytes that a cast with a scale per block moves.
const fn cast_per_block(elements: u64) -> u64 {
    CAST_HALVES_PER_BLOCK * elements / 2
}

fn feed_forward(writer: &mut Writer<'_>, intermediate: u64) {
    let hidden = writer.shard.model.hidden;
    let n_projections = if writer.shard.model.gated { 2 } else { 1 };
    writer.enter(writer.shard.formats.dense);
    writer.columns(&[intermediate; 2][..n_projections], hidden);
    adapters::wide(writer, intermediate);
    single::dense_activation(writer, intermediate);
    torch::feed_forward(writer, intermediate);
    writer.row(hidden, intermediate);
    adapters::narrow(writer, intermediate);
}

/// Embedding look-up, or its gradient.
pub fn embedding(shard: &Shard<'_>, tokens: u64) -> Ops {
    if tokens == 0 {
        return Vec::new();
    }
    vec![(Op::Embedding { tokens, row_bytes: shard.model.hidden * shard.dtype.bytes() }, 1)]
}

/// Final norm, output head and loss.
pub fn head(shard: &Shard<'_>, tokens: u64, kind: PassKind) -> Ops {
    let shard = &torch::at_head(shard);
    let mut writer = Writer::new(shard, tokens, kind);
    let vocab = shard.model.vocab.div_ceil(writer.cut);
    writer.residual(2 * shard.model.hidden);
    writer.enter(shard.formats.head);
    writer.gemm(vocab, shard.model.hidden);
    let mut ops = writer.done();
    if tokens > 0 && kind != PassKind::Weight {
        let of_loss = if shard.gathers_logits { shard.model.vocab } else { vocab };
        ops.extend(loss(shard, tokens * of_loss, kind));
    }
    if shard.makes_logits_again() && matches!(kind, PassKind::Backward | PassKind::Input) {
        let mut again = Writer::new(shard, tokens, PassKind::Forward);
        again.enter(shard.formats.head);
        again.gemm(vocab, shard.model.hidden);
        ops.extend(again.done());
        if shard.loss == crate::loss::Loss::ChunkedNll && tokens > 0 {
            ops.extend(loss(shard, tokens * vocab, PassKind::Forward));
        }
    }
    predicting::with_heads(shard, tokens, kind, ops)
}

/// Kernels of the loss over so many logits.
fn loss(shard: &Shard<'_>, logits: u64, kind: PassKind) -> Option<(Op, u32)> {
    let bytes = match shard.framework {
        Framework::Formulas => LOSS_BYTES_PER_LOGIT,
        Framework::MegatronCore => shard.loss.moved_per_logit(kind),
        Framework::Fsdp2(_) | Framework::DeepSpeed(_) => torch::loss_bytes_per_logit(shard, kind),
    };
    (bytes > 0).then_some((Op::Elementwise { bytes: logits * bytes }, 1))
}

/// Host time of `n` layers in one pass.
pub fn host(per_layer: Seconds, n: u32) -> Ops {
    let ns = hw::Span::from_seconds(per_layer).as_ns();
    if ns == 0 || n == 0 { Vec::new() } else { vec![(Op::Host { ns }, n)] }
}

/// Adam over `parameters` parameters of a rank.
pub fn optimizer(parameters: f64) -> Ops {
    optimizer_step(Framework::Formulas, parameters, parameters, ADAM_STATES)
}

/// An optimizer's step over `stepped` parameters of a rank that holds `held` gradients. It reads and writes so many bytes of states for each.
pub fn optimizer_step(framework: Framework, held: f64, stepped: f64, states: f64) -> Ops {
    let states = 2.0 * states;
    let bytes = match framework {
        Framework::Formulas => stepped * (STEP_BYTES + states),
        Framework::MegatronCore => held * MEGATRON_BUFFER_BYTES + stepped * (MEGATRON_STEP_BYTES + states),
        Framework::Fsdp2(_) => stepped * (FSDP_STEP_BYTES + states),
        Framework::DeepSpeed(_) => stepped * (DEEPSPEED_STEP_BYTES + states),
    };
    vec![(Op::Elementwise { bytes: hw::whole(bytes) }, 1)]
}

/// The same of sharded PyTorch modules, whose gradients take so much of 32 bits.
pub fn sharded_step(stepped: f64, narrow: f64, states: f64) -> Ops {
    vec![(Op::Elementwise { bytes: hw::whole(stepped * (FSDP_STEP_BYTES * narrow + 2.0 * states)) }, 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Formats;
    use crate::recompute::{Module, Recompute};
    use crate::stage::Stage;
    use hw::{Dtype, GroupShape};

    #[test]
    fn experts_that_are_computed_again_exchange_again() {
        let model = crate::model::embedded("deepseek-v3").expect("embedded");
        let n = |recompute, kind| -> u32 {
            let shard = Shard { recompute, ep: 8, ..Shard::forward(&model, Dtype::Bf16, 1) };
            let stage = Stage { n_expert: 5, ..Stage::default() }.recomputing(recompute, 3);
            let shape = GroupShape::inside(8);
            expert_exchange(&shard, &stage, 100, kind, ExpertLoad::EVEN, shape).iter().map(|(_, n)| n).sum()
        };
        let experts = Recompute::Modules(crate::recompute::Modules::NONE.with(Module::Experts));
        // Out and back in five layers, and once more in three of them.
        assert_eq!([n(Recompute::Off, PassKind::Backward), n(experts, PassKind::Backward)], [10, 16]);
        assert_eq!(n(experts, PassKind::Forward), 10);
    }

    #[test]
    fn engines_of_serving_compress_queries_and_keys_in_one_product() {
        let model = crate::model::embedded("deepseek-v3").expect("embedded");
        let widths = |framework: Framework| {
            let shard = Shard { framework, ..Shard::forward(&model, Dtype::Bf16, 8) };
            let ops = before_attention(&shard, 10, PassKind::Forward);
            let wide = |(op, _): &(Op, u32)| match op {
                Op::Gemm { n, k: 7168, .. } => Some(*n),
                _ => None,
            };
            ops.iter().filter_map(wide).collect::<Vec<u64>>()
        };
        assert_eq!(widths(Framework::Formulas), [1536 + 512 + 64]);
        assert_eq!(widths(Framework::MegatronCore), [1536, 512 + 64]);
    }

    /// Bytes of memory-bound kernels and number of products of a feed-forward in 8 bits.
    fn counted(framework: Framework, format: Format) -> (u64, usize) {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let formats = Formats::weights(format, Dtype::Bf16);
        let shard = Shard { framework, formats, ..Shard::forward(&model, Dtype::Bf16, 1) };
        let ops = after_attention(&shard, 10, PassKind::Forward, None);
        let bytes = |(op, n): &(Op, u32)| if let Op::Elementwise { bytes } = op { bytes * u64::from(*n) } else { 0 };
        let products = ops.iter().filter(|(op, _)| matches!(op, Op::Gemm { .. })).count();
        (ops.iter().map(bytes).sum(), products)
    }

    #[test]
    fn frameworks_cast_the_inputs_of_narrow_products() {
        let (plain, n_plain) = counted(Framework::Formulas, Format::Fp8);
        let (cast, n_cast) = counted(Framework::MegatronCore, Format::Fp8);
        let (blocks, _) = counted(Framework::MegatronCore, Format::Mxfp8);
        let (rotated, _) = counted(Framework::MegatronCore, Format::Nvfp4);
        // Ten tokens: the output projection reads 4096 numbers, the feed-forward 4096 and 14336; six bytes each, four and a half or five.
        assert_eq!(cast - plain, 6 * 10 * (4096 + 4096 + 14_336));
        assert_eq!(blocks - plain, 45 * (4096 + 4096 + 14_336));
        assert_eq!(rotated - plain, 5 * 10 * (4096 + 4096 + 14_336));
        assert_eq!(n_cast, n_plain);
        assert_eq!(counted(Framework::MegatronCore, Format::Bf16), counted(Framework::Formulas, Format::Bf16));
    }

    #[test]
    fn what_meets_frozen_weights_is_cast_by_rows_alone() {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let cast = |adapters, format, kind| {
            let bytes = |formats| {
                let framework = Framework::MegatronCore;
                let shard = Shard { framework, formats, adapters, ..Shard::forward(&model, Dtype::Bf16, 1) };
                let ops = after_attention(&shard, 10, kind, None);
                let of =
                    |(op, n): &(Op, u32)| if let Op::Elementwise { bytes } = op { bytes * u64::from(*n) } else { 0 };
                ops.iter().map(of).sum::<u64>()
            };
            bytes(Formats::weights(format, Dtype::Bf16)) - bytes(Formats::of(Dtype::Bf16))
        };
        // Adapters that stand beside queries alone have no kernels here.
        let frozen = Some(crate::shard::Adapters::new(8, crate::shard::AdaptedProducts::QUERY_KEY_VALUE));
        // Ten tokens: inputs are those of the output projection, of gate and up together, and of the last product; gradients are of their results.
        let (inputs, gradients) = (10 * (4096 + 4096 + 14_336), 10 * (4096 + 2 * 14_336 + 4096));
        for (format, both, rows) in [(Format::Fp8, 12, 10), (Format::Mxfp8, 9, 7), (Format::Nvfp4, 10, 9)] {
            assert_eq!(cast(None, format, PassKind::Forward), both * inputs / 2, "{format:?}");
            assert_eq!(cast(frozen, format, PassKind::Forward), rows * inputs / 2, "{format:?}");
            assert_eq!(cast(frozen, format, PassKind::Input), rows * gradients / 2, "{format:?}");
        }
    }

    #[test]
    fn an_optimizer_of_a_framework_touches_held_and_stepped_parameters() {
        let bytes = |framework| match optimizer_step(framework, 1000.0, 100.0, ADAM_STATES)[0].0 {
            Op::Elementwise { bytes } => bytes,
            _ => 0,
        };
        assert_eq!(bytes(Framework::Formulas), 3000);
        assert_eq!(bytes(Framework::MegatronCore), 12_000 + 4600);
        let modules = crate::shard::TorchModules {
            compiled: true,
            fused_norms: true,
            casts: crate::shard::Casts::Off,
            in_pieces: false,
            repeats_keys: true,
        };
        assert_eq!(bytes(Framework::Fsdp2(modules)), 4000);
    }
}
