//! What PyTorch's own modules compute and move besides, as torchtitan puts them together. Units: bytes, elements.
//!
//! Sources: pytorch/torchtitan (`models/llama`, `parallelisms`), pytorch/pytorch (`aten/src/ATen/native/layer_norm.cpp`, `SoftMax.cu`,
//! `torch/distributed/tensor/parallel/loss.py`, `torch/distributed/_functional_collectives.py`), pytorch/ao (`float8_linear.py`).
//!
//! - Query, key and value, gate and up-projection are products of their own, whose gradients add up in their common input.
//! - Keys and values may be copied for every query head before attention (`repeat_kv`).
//! - A narrow product reads its input for the largest value, reads it again and writes it by rows; what is read by columns is copied.
//! - Where the loss is not compiled, every step of it is a kernel over 32-bit logits.
//! - A gathered tensor comes in the order of ranks and is copied into that of tokens; what is reduced is copied before it is scattered.
//! - Without `torch.compile` norms, positions and activation functions are several kernels, most of them in 32 bits.

use hw::{Format, GroupShape};

use super::{Writer, after_attention};
use crate::frozen::Frozen;
use crate::loss::Loss;
use crate::shard::{AdaptedProducts, Adapters, Casts, Shard, TorchModules};
use crate::task::{Collective, Op, Ops, PassKind};

/// Bytes moved per element that is made narrow: read for the largest value, read again, written.
const CAST_BYTES: u64 = 5;
/// Bytes of a copy by columns of what is narrow already.
const TURNED_BYTES: u64 = 2;
/// Bytes per logit of the loss in forward and backward: a 32-bit copy 6, three readings and a writing 16; zeros 4, two readings, another one and a
/// writing 16, a 16-bit copy 6.
const LOSS_BYTES: [u64; 2] = [22, 26];
/// The same of a compiled loss: two readings; a reading and a writing.
const COMPILED_LOSS_BYTES: [u64; 2] = [4, 4];
/// The same of Liger's kernel behind the head's product: it reads logits twice and writes their gradient in their place, all in forward (linkedin/Liger-Kernel,
/// `liger_cross_entropy_kernel`).
const FUSED_LOSS_BYTES: [u64; 2] = [6, 0];
/// The same where the vocabulary is cut: copy 6, largest value 4, difference 8, exponentials 8, their sum 4, difference 8; zeros 4, exponentials 8,
/// sum 12, product 8, copy 6.
const CUT_LOSS_BYTES: [u64; 2] = [38, 38];
/// Bytes of a gradient in 16 bits, which is copied into a buffer before it is reduced.
const GRADIENT_BYTES: f64 = 2.0;
/// Bytes per parameter of a reduction over one rank, which copies 32 bits: on a stream of its own, but memory is shared.
const REDUCED_ALONE_BYTES: f64 = 8.0;
/// Elements of 16 bits per element of a norm that runs as single kernels, beyond the fused one's: copy to 32 bits 6, square 8, mean 4,
/// product 8, copy back 6, weight 4, less 4; in backward 72 bytes less 6.
const SINGLE_NORM: [u64; 2] = [16, 33];
/// The same where the norm is one kernel: its input's gradient 10, its weight's 4, less 6; and 6 for the sum with the residual's gradient.
const FUSED_NORM: [u64; 2] = [0, 7];
/// The same of rotary positions, whose complex product is not compiled either: copy to 32 bits 6, complex product 8, copy back 6, less 4.
const SINGLE_POSITIONS: [u64; 2] = [8, 7];
/// The same of a gate's function and its product: 10 bytes less 6, 18 less 9.
const SINGLE_GATE: [u64; 2] = [2, 4];

const fn of_pass(bytes: [u64; 2], kind: PassKind) -> u64 {
    match kind {
        PassKind::Forward => bytes[0],
        PassKind::Backward | PassKind::Input => bytes[1],
        PassKind::Weight => 0,
    }
}

impl Writer<'_> {
    fn moved(&mut self, bytes: u64) {
        if bytes > 0 && self.kind != PassKind::Weight {
            self.push(Op::Elementwise { bytes });
        }
    }

    /// What single kernels move of `width` elements per token beyond a fused one.
    fn single(&mut self, elements: [u64; 2], tokens_times_width: u64) {
        if self.shard.framework.runs_single_kernels() {
            self.moved(of_pass(elements, self.kind) * tokens_times_width * self.shard.dtype.bytes());
        }
    }

    /// What every kernel moves of `width` elements per token beyond a fused one, compiled or not.
    fn always(&mut self, elements: [u64; 2], tokens_times_width: u64) {
        self.moved(of_pass(elements, self.kind) * tokens_times_width * self.shard.dtype.bytes());
    }

    /// Bytes per element of an operand by columns, for a gradient of weights in a format: copied, or made anew with scales of its own.
    fn by_columns(&self, format: Format) -> u64 {
        // Frozen weights have none.
        if self.shard.adapters.is_some() {
            return 0;
        }
        match self.shard.framework.torch().filter(|_| self.shard.casts_for(format)).map(|modules| modules.casts) {
            Some(Casts::Whole) => TURNED_BYTES,
            Some(Casts::Rows) => CAST_BYTES,
            Some(Casts::Off) | None => 0,
        }
    }
}

/// Makes so many elements narrow by rows; gradients by columns as well.
pub(super) fn cast(writer: &mut Writer<'_>, modules: TorchModules, elements: u64) {
    if modules.casts == Casts::Off || !writer.shard.casts_for(writer.format) {
        return;
    }
    let columns = if writer.kind == PassKind::Forward { 0 } else { writer.by_columns(writer.format) };
    writer.moved((CAST_BYTES + columns) * elements);
}

/// Products of one input by several matrices. The input is made narrow once; in backward each gradient but the first is read to be added.
pub(super) fn columns(writer: &mut Writer<'_>, widths: &[u64], k: u64) {
    for (index, &width) in widths.iter().enumerate() {
        let before = writer.ops.len();
        writer.column(width, k);
        let is_cast_again = index > 0 && writer.kind == PassKind::Forward && writer.by_columns(writer.format) > 0;
        if is_cast_again {
            writer.ops.remove(before);
        }
    }
    if matches!(writer.kind, PassKind::Backward | PassKind::Input) {
        let n_added = widths.len() as u64 - 1;
        writer.moved(n_added * writer.tokens * k * writer.shard.dtype.bytes());
        // The common input by columns, for the gradients of the weights.
        writer.moved(writer.by_columns(writer.format) * writer.tokens * k);
    }
}

/// Copies of keys and values for every query head where there are such, and what single kernels of norm and positions move besides.
pub(super) fn before_attention(writer: &mut Writer<'_>) {
    let Some(modules) = writer.shard.framework.torch() else { return };
    let model = writer.shard.model;
    let (heads, kv_heads) = (model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim);
    if modules.repeats_keys && heads > kv_heads {
        let copied = 2 * (heads + kv_heads);
        writer.moved((writer.tokens * copied).div_ceil(writer.cut) * writer.shard.dtype.bytes());
    }
    let rotated = (writer.tokens * (heads + kv_heads)).div_ceil(writer.cut);
    writer.always(SINGLE_POSITIONS, rotated);
    norms(writer, 1);
}

/// What single kernels of the second norm and the gate move besides, and the last product's input by columns.
pub(super) fn feed_forward(writer: &mut Writer<'_>, intermediate: u64) {
    if writer.shard.framework.torch().is_none() {
        return;
    }
    let wide = (writer.tokens * intermediate).div_ceil(writer.cut);
    if writer.shard.model.gated {
        writer.single(SINGLE_GATE, wide);
    }
    norms(writer, 1);
    let is_backward = matches!(writer.kind, PassKind::Backward | PassKind::Input);
    if is_backward {
        let attended = (writer.tokens * writer.shard.model.n_heads * writer.shard.model.head_dim).div_ceil(writer.cut);
        let formats = &writer.shard.formats;
        let (of_dense, of_attention) = (writer.by_columns(formats.dense), writer.by_columns(formats.behind()));
        writer.moved(of_dense * wide + of_attention * attended);
    }
}

fn norms(writer: &mut Writer<'_>, n: u64) {
    let cut = if writer.shard.sequence_parallel { writer.cut } else { 1 };
    let is_fused = writer.shard.framework.torch().is_some_and(|modules| modules.fused_norms);
    let elements = if is_fused { FUSED_NORM } else { SINGLE_NORM };
    writer.single(elements, (n * writer.tokens * writer.shard.model.hidden).div_ceil(cut));
}

/// Selective checkpointing by operation computes every second product of a layer again: of query, key, value, output, gate, up and down the
/// key's, the output's and the up-projection's (torchtitan, `_get_custom_policy`). What a tensor group has reduced is kept, so the output's is
/// not needed again there. Inputs are made narrow again.
pub(super) fn every_second_product(writer: &mut Writer<'_>, wide: u64) {
    let model = writer.shard.model;
    writer.enter(writer.shard.formats.attention);
    writer.column(model.n_kv_heads * model.head_dim, model.hidden);
    let heads = model.n_heads * model.head_dim;
    if writer.cut == 1 {
        writer.row(model.hidden, heads);
    } else {
        writer.cast((writer.tokens * heads).div_ceil(writer.cut));
    }
    writer.enter(writer.shard.formats.dense);
    writer.column(wide, model.hidden);
    writer.cast((writer.tokens * wide).div_ceil(writer.cut));
    writer.elementwise(2 * (heads + model.n_kv_heads * model.head_dim));
    before_attention(writer);
    feed_forward(writer, wide);
}

/// The same shard as its output head runs, whose products stay wide (torchao, `filter_fqns`), and whose weights do (bitsandbytes leaves `lm_head` out).
pub(super) fn at_head<'a>(shard: &Shard<'a>) -> Shard<'a> {
    if shard.framework.torch().is_none() {
        return *shard;
    }
    let framework = shard.framework.with_modules(|modules| TorchModules { casts: Casts::Off, ..modules });
    let adapters = shard.adapters.map(|adapters| Adapters { frozen: Frozen::Same, ..adapters });
    Shard { framework, adapters, ..*shard }
}

/// What sharded modules do with the gradients of a backward. Gradients that wait for the last micro-batch are added up whole in the format in which they are
/// reduced (pytorch/pytorch, `FSDPParam.to_accumulated_grad_if_needed`, `accumulate_unsharded_grad_if_needed`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Accumulation {
    /// Reduced at once.
    #[default]
    Reduced,
    /// The first that wait: a copy in the wider format, or as they are.
    Kept,
    /// Added to those that wait.
    Added,
    /// Added to those that wait, which are then reduced.
    AddedAndReduced,
}

impl Accumulation {
    /// Whether gradients wait behind this backward.
    pub const fn waits(self) -> bool {
        matches!(self, Self::Kept | Self::Added)
    }

    /// Bytes that the copies and the additions of a gradient move, which is reduced in so many bytes.
    fn bytes_moved(self, reduced: f64) -> f64 {
        let copied = if reduced > GRADIENT_BYTES { GRADIENT_BYTES + reduced } else { 0.0 };
        // A gradient and the sum are read, the sum is written.
        let added = GRADIENT_BYTES + 2.0 * reduced;
        match self {
            Self::Reduced => GRADIENT_BYTES + reduced,
            Self::Kept => copied,
            Self::Added => added,
            Self::AddedAndReduced => added + 2.0 * reduced,
        }
    }
}

/// What sharded modules exchange in a pass.
#[derive(Clone, Copy, Debug)]
pub struct ShardedCopies {
    /// Parameters that are gathered.
    pub gathered: f64,
    /// Bytes of a parameter as a rank holds it, and as it is gathered.
    pub parameter_bytes: [f64; 2],
    /// Gradients that are made.
    pub made: f64,
    /// Bytes of a gradient as it is reduced.
    pub reduced_bytes: f64,
    /// What becomes of them.
    pub accumulation: Accumulation,
    /// Ranks of the exchange.
    pub n_ranks: u32,
}

/// Bytes that copies around the exchanges of sharded parameters move. A rank casts its share of what is gathered, or copies it, and copies all of it out
/// of the buffer. Gradients are copied into a buffer of their own (`foreach_all_gather_copy_out`, `foreach_reduce_scatter_copy_in`).
pub fn sharded_copies(shard: &Shard<'_>, copied: ShardedCopies) -> Ops {
    if shard.framework.torch().is_none() {
        return Vec::new();
    }
    let [held, whole] = copied.parameter_bytes;
    let cast = (held + whole) / f64::from(copied.n_ranks);
    let alone = if copied.n_ranks == 1 { REDUCED_ALONE_BYTES } else { 0.0 };
    let made = copied.made * (copied.accumulation.bytes_moved(copied.reduced_bytes) + alone);
    let bytes = copied.gathered * (cast + 2.0 * whole) + made;
    vec![(Op::Elementwise { bytes: hw::whole(bytes) }, 1)]
}

/// What follows attention in a dense layer that runs again for its backward alone under PyTorch's checkpoints: nobody reads the last
/// product's result, so the product is left out (`checkpoint` stops early, `torch.compile` drops it). An adapter beside it keeps what it makes behind that
/// product, so single kernels run up to there (huggingface/peft, `Linear.forward`: the base layer comes first).
pub fn read_by_backward(shard: &Shard<'_>, tokens: u64) -> Ops {
    let mut ops = after_attention(shard, tokens, PassKind::Forward, None);
    if reads_last_product(shard) {
        return ops;
    }
    if let Some(at) = ops.iter().rposition(|(op, _)| matches!(op, Op::Gemm { .. })) {
        // A kernel that widens its matrix goes with it.
        let first = at - usize::from(shard.frozen().is_packed());
        ops.drain(first..=at);
    }
    ops
}

/// Whether single kernels compute the last product of a layer again, for the adapter beside it.
fn reads_last_product(shard: &Shard<'_>) -> bool {
    let is_single = shard.framework.runs_single_kernels();
    is_single && shard.adapters.is_some_and(|adapters| adapters.beside.has(AdaptedProducts::DOWN))
}

/// Bytes per logit that the kernels of the loss move. A loss over chunks runs the same kernels on fewer tokens at a time, compiled with its modules.
pub(super) fn loss_bytes_per_logit(shard: &Shard<'_>, kind: PassKind) -> u64 {
    let bytes = match (shard.cuts_loss(), shard.loss) {
        (true, _) => CUT_LOSS_BYTES,
        (false, Loss::WithHead) => FUSED_LOSS_BYTES,
        (false, Loss::Compiled) => COMPILED_LOSS_BYTES,
        (false, Loss::Chunked) if shard.framework.is_compiled() => COMPILED_LOSS_BYTES,
        (false, _) => LOSS_BYTES,
    };
    of_pass(bytes, kind)
}

/// Logits of 16 bits that every rank of a tensor group gathers before its loss (`output_layouts=Replicate()` of the head). They are copied into the order of
/// the vocabulary (`all_gather_tensor` concatenates what it has of every rank).
pub(super) fn gathered_logits(shard: &Shard<'_>, tokens: u64, shape: GroupShape) -> Ops {
    let bytes = tokens * shard.model.vocab * shard.dtype.bytes();
    vec![(Op::Collective { kind: Collective::AllGather, bytes, shape }, 1), (Op::Elementwise { bytes: 2 * bytes }, 1)]
}

/// Exchanges of a tensor group over the tokens' dimension, with the copies before and behind. Inputs that were gathered are kept, so backward
/// gathers gradients alone.
pub(super) fn tensor_exchange(
    shard: &Shard<'_>,
    modules: TorchModules,
    bytes: u64,
    counts: [u32; 2],
    shape: GroupShape,
) -> Ops {
    // Sixteen bits or eight.
    let is_narrow = [shard.formats.attention, shard.formats.dense].iter().all(|format| shard.casts_for(*format));
    let gathered = if is_narrow && modules.casts == Casts::Whole { bytes / 2 } else { bytes };
    let [n_gathers, n_reductions] = counts;
    vec![
        (Op::Collective { kind: Collective::AllGather, bytes: gathered, shape }, n_gathers),
        (Op::Elementwise { bytes: 2 * gathered }, n_gathers),
        (Op::Elementwise { bytes: 2 * bytes }, n_reductions),
        (Op::Collective { kind: Collective::ReduceScatter, bytes, shape }, n_reductions),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Formats;
    use crate::shard::Framework;
    use crate::stage::Stage;
    use hw::Dtype;

    #[test]
    fn keys_and_values_that_are_not_copied_are_moved_and_kept_once() {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let stage = Stage { n_dense: 1, ..Stage::NONE };
        let of = |repeats_keys| {
            let shard = shard(&model, TorchModules { repeats_keys, ..COMPILED }, 1);
            let bytes =
                |(op, n): &(Op, u32)| if let Op::Elementwise { bytes } = op { bytes * u64::from(*n) } else { 0 };
            let moved = crate::layer::before_attention(&shard, 100, PassKind::Forward).iter().map(bytes).sum::<u64>();
            [moved, crate::memory::activation_bytes_per_token(&shard, &stage)]
        };
        let [more_moved, kept] = std::array::from_fn(|index| of(true)[index] - of(false)[index]);
        // Heads of 128 numbers: eight are read and 32 written of each kind; 24 of each kind more are kept.
        assert_eq!((more_moved, kept), (100 * 2 * 2 * (8 + 32) * 128, 2 * 2 * 24 * 128));
    }

    const COMPILED: TorchModules =
        TorchModules { compiled: true, fused_norms: true, casts: Casts::Off, in_pieces: false, repeats_keys: true };

    fn shard(model: &crate::Model, modules: TorchModules, tp: u32) -> Shard<'_> {
        let framework = Framework::Fsdp2(modules);
        Shard { framework, sequence_parallel: tp > 1, ..Shard::forward(model, Dtype::Bf16, tp) }
    }

    fn products(ops: &Ops) -> Vec<[u64; 3]> {
        let of = |(op, _): &(Op, u32)| if let Op::Gemm { m, n, k, .. } = op { Some([*m, *n, *k]) } else { None };
        ops.iter().filter_map(of).collect()
    }

    fn bytes(ops: &Ops) -> u64 {
        let of = |(op, n): &(Op, u32)| if let Op::Elementwise { bytes } = op { bytes * u64::from(*n) } else { 0 };
        ops.iter().map(of).sum()
    }

    #[test]
    fn query_key_and_value_gate_and_up_are_products_of_their_own() {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let shard = shard(&model, COMPILED, 8);
        // 32 query heads and 8 of keys, of 128, over eight GPUs.
        let before = super::super::before_attention(&shard, 10, PassKind::Forward);
        assert_eq!(products(&before), [[10, 512, 4096], [10, 128, 4096], [10, 128, 4096]]);
        let after = after_attention(&shard, 10, PassKind::Forward, None);
        assert_eq!(products(&after), [[10, 4096, 512], [10, 1792, 4096], [10, 1792, 4096], [10, 4096, 1792]]);
        // A layer that runs again for its backward leaves the last one out.
        assert_eq!(products(&read_by_backward(&shard, 10)), products(&after)[..3]);
    }

    #[test]
    fn a_common_input_is_cast_once_and_gradients_by_rows_and_columns() {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let of = |casts, kind| {
            let formats = Formats::weights(Format::Fp8, Dtype::Bf16);
            let shard = Shard { formats, ..shard(&model, TorchModules { casts, ..COMPILED }, 1) };
            bytes(&after_attention(&shard, 10, kind, None))
        };
        let added = |casts, kind| of(casts, kind) - of(Casts::Off, kind);
        // Inputs of the output projection, of gate and up together, and of the last product.
        let inputs = 10 * (4096 + 4096 + 14_336);
        assert_eq!(added(Casts::Whole, PassKind::Forward), 5 * inputs);
        // Their results' gradients, and the inputs by columns.
        let gradients = 10 * (4096 + 2 * 14_336 + 4096);
        assert_eq!(added(Casts::Whole, PassKind::Backward), 7 * gradients + 2 * inputs);
        assert_eq!(added(Casts::Rows, PassKind::Backward), 10 * gradients + 5 * inputs);
    }

    #[test]
    fn single_kernels_of_a_norm_move_nine_times_what_a_fused_one_does() {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let of = |compiled| {
            let shard = shard(&model, TorchModules { compiled, fused_norms: false, ..COMPILED }, 1);
            bytes(&super::super::before_attention(&shard, 10, PassKind::Forward))
        };
        // A norm: 36 bytes per element in place of 4.
        assert_eq!(of(false) - of(true), 10 * 32 * 4096);
    }

    #[test]
    fn backward_gathers_gradients_alone_and_narrow_ones_take_half() {
        let model = crate::model::embedded("llama-3-70b").expect("embedded");
        let shape = GroupShape::inside(8);
        let stage = Stage { n_dense: 1, ..Stage::default() };
        let gathered = |shard: &Shard<'_>, stage: &Stage, kind| {
            let ops = super::super::tensor_exchange(shard, stage, 100, kind, shape);
            let of = |(op, n): &(Op, u32), wanted| match op {
                Op::Collective { kind, bytes, .. } if *kind == wanted => bytes * u64::from(*n),
                _ => 0,
            };
            [Collective::AllGather, Collective::ReduceScatter]
                .map(|kind| ops.iter().map(|op| of(op, kind)).sum::<u64>())
        };
        let whole = 2 * 100 * 8192 * 2;
        let full = Shard { recompute: crate::recompute::Recompute::Full, ..shard(&model, COMPILED, 8) };
        assert_eq!(gathered(&full, &stage, PassKind::Backward), [whole, whole]);
        let repeated = Stage { is_repeated: true, ..stage };
        assert_eq!(gathered(&full, &repeated, PassKind::Forward), [whole, whole / 2]);
        let narrow = shard(&model, TorchModules { casts: Casts::Whole, ..COMPILED }, 8);
        let narrow = Shard { formats: Formats::weights(Format::Fp8, Dtype::Bf16), ..narrow };
        assert_eq!(gathered(&narrow, &stage, PassKind::Forward), [whole / 2, whole]);
        // A part in 8 bits that no layer of the model multiplies makes nothing narrow.
        let experts = Shard { formats: Formats { experts: Format::Fp8, ..Formats::of(Dtype::Bf16) }, ..narrow };
        assert_eq!(gathered(&experts, &stage, PassKind::Forward), [whole, whole]);
        let moved = |shard: &Shard<'_>| bytes(&after_attention(shard, 100, PassKind::Backward, None));
        assert_eq!(moved(&experts), moved(&Shard { framework: Framework::Fsdp2(COMPILED), ..experts }));
        assert!(moved(&narrow) > moved(&experts));
    }

    #[test]
    fn logits_that_are_gathered_come_once_and_give_every_rank_the_whole_loss() {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let cut = shard(&model, COMPILED, 2);
        let gathered = Shard { gathers_logits: true, loss: Loss::Compiled, ..cut };
        let (tokens, vocab) = (10, 128_256);
        let stage = Stage { n_dense: 1, last: true, ..Stage::NONE };
        let shape = GroupShape::inside(2);
        let of = |shard: &Shard<'_>, kind| super::super::tensor_exchange(shard, &stage, tokens, kind, shape);
        let ops = of(&gathered, PassKind::Forward);
        let logits = Op::Collective { kind: Collective::AllGather, bytes: tokens * vocab * 2, shape };
        assert!(ops.contains(&(logits, 1)), "{ops:?}");
        assert_eq!(of(&gathered, PassKind::Backward), of(&cut, PassKind::Backward), "gradients are cut in place");
        let loss = |shard: &Shard<'_>| bytes(&super::super::head(shard, tokens, PassKind::Forward));
        let compiled = COMPILED_LOSS_BYTES[0] * vocab;
        assert_eq!(loss(&gathered) + tokens * CUT_LOSS_BYTES[0] * vocab / 2, loss(&cut) + tokens * compiled);
        assert_eq!(products(&super::super::head(&gathered, tokens, PassKind::Forward)), [[tokens, vocab / 2, 4096]]);
    }
}
