//! Operations and memory of an encoder of images on one GPU of a group that cuts its layers.
//!
//! Every layer computes all patches of a batch: a norm, one product for queries, keys and values, positions, attention, a product behind it, a
//! norm and a feed-forward. Attention has no causal mask. A profile has attention of prompts alone, so a document stands for an image with as many
//! keys per query. Weights and activations have 16 bits, whatever the model behind has. Units: patches, elements, bytes.

use hw::{Dtype, GroupShape};

use crate::model::{Tower, VisionEncoder};
use crate::task::{Collective, Document, Op, Ops, Pass};

hw::words! {
    /// What a tensor group shares of an encoder.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Split: word {
        /// Each GPU has a part of every layer.
        #[default]
        Weights = "weights",
        /// Each GPU has the whole encoder and encodes some of the images.
        Images = "data",
        /// No GPU has an encoder: the engine serves text alone.
        Nothing = "none",
    }
}

impl Split {
    /// GPUs that cut the layers of an encoder on a tensor group.
    pub const fn group(self, tensor: GroupShape) -> GroupShape {
        match self {
            Self::Weights | Self::Nothing => tensor,
            Self::Images => GroupShape::inside(1),
        }
    }
}

/// An encoder on a group of GPUs.
#[derive(Clone, Copy, Debug)]
pub struct Encoding<'a> {
    /// The encoder.
    pub encoder: &'a VisionEncoder,
    /// Format of weights and activations.
    pub dtype: Dtype,
    /// GPUs that cut its layers, and where they lie.
    pub group: GroupShape,
}

impl Encoding<'_> {
    fn cut(&self) -> u64 {
        u64::from(self.group.n_ranks.max(1))
    }

    fn gemm(&self, m: u64, n: u64, k: u64, times: u64) -> (Op, u32) {
        (Op::Gemm { m, n, k, format: self.dtype.into() }, count(times))
    }

    fn moved(&self, elements: u64, times: u64) -> (Op, u32) {
        (Op::Elementwise { bytes: elements * self.dtype.bytes() }, count(times))
    }

    /// Sums over the group, of so many elements.
    fn sums(&self, elements: u64, times: u64) -> Ops {
        let bytes = elements * self.dtype.bytes();
        let sum = Op::Collective { kind: Collective::AllReduce, bytes, shape: self.group };
        if self.group.n_ranks > 1 { vec![(sum, count(times))] } else { Vec::new() }
    }

    /// Everything but the attention of layers that see whole images: patches, layers, squares and projectors of so many patches, over all images.
    pub fn patches(&self, patches: u64) -> Ops {
        let encoder = self.encoder;
        let (hidden, layers, cut) = (encoder.hidden, encoder.n_layers, self.cut());
        let wide = encoder.intermediate.div_ceil(cut);
        let (n_in, n_moved) = if encoder.is_gated() { (2, 3) } else { (1, 2) };
        let mut ops = vec![
            self.gemm(patches, hidden, encoder.inputs(), 1),
            self.moved(2 * patches * hidden, layers),
            self.gemm(patches, (3 * hidden).div_ceil(cut), hidden, layers),
            self.gemm(patches, hidden, hidden.div_ceil(cut), layers),
            self.moved(4 * patches * hidden, layers),
            self.gemm(patches, n_in * wide, hidden, layers),
            self.moved(n_moved * patches * wide, layers),
            self.gemm(patches, hidden, wide, layers),
            self.moved(3 * patches * hidden, layers),
        ];
        if encoder.is_rotary() {
            ops.push(self.moved((4 * patches * hidden).div_ceil(cut), layers));
        }
        ops.extend(self.sums(patches * hidden, 2 * layers));
        ops.extend(self.squares(patches));
        ops.extend(self.projectors(patches));
        ops
    }

    /// Attention of the layers that see squares alone. Squares at the edges are taken for whole ones.
    fn squares(&self, patches: u64) -> Ops {
        let Some(squares) = self.encoder.squares else { return Vec::new() };
        let area = squares.side * squares.side;
        let (n, rest) = (patches / area, patches % area);
        let mut documents = vec![both_ways(area); usize::try_from(n).expect("few squares")];
        documents.extend((rest > 0).then(|| both_ways(rest)));
        vec![(self.attention(documents), count(self.encoder.n_square_layers()))]
    }

    /// Norm, products and activations that make tokens.
    fn projectors(&self, patches: u64) -> Ops {
        let (encoder, cut) = (self.encoder, self.cut());
        let times = encoder.n_projectors();
        let tokens = patches / encoder.patches_per_token();
        let mut ops = vec![self.moved(2 * patches * encoder.hidden, times)];
        for (index, [inner, outer]) in encoder.projector.iter().enumerate() {
            // The first of two is cut by columns and the second by rows; one that is left over is whole on every GPU.
            let is_paired = index / 2 * 2 + 1 < encoder.projector.len();
            let (columns, rows) = match (is_paired, index % 2) {
                (false, _) => (1, 1),
                (true, 0) => (cut, 1),
                (true, _) => (1, cut),
            };
            ops.push(self.gemm(tokens, outer.div_ceil(columns), inner.div_ceil(rows), times));
            if encoder.tower != Tower::SigLip {
                ops.push(self.moved(2 * tokens * outer.div_ceil(columns), times));
            }
            if is_paired && index % 2 == 1 {
                ops.extend(self.sums(tokens * outer, times));
            }
        }
        ops
    }

    /// Attention of one image or tile of so many patches, in all layers that see the whole of it.
    pub fn whole(&self, patches: u64) -> Ops {
        let n = self.encoder.n_layers - self.encoder.n_square_layers();
        vec![(self.attention(vec![both_ways(patches)]), count(n))]
    }

    fn attention(&self, documents: Vec<Document>) -> Op {
        let n_heads = self.encoder.n_heads.div_ceil(self.cut());
        let head_dim = self.encoder.hidden / self.encoder.n_heads;
        Op::Attention { documents, n_heads, n_kv_heads: n_heads, head_dim, kv: self.dtype, pass: Pass::Forward }
    }

    /// Bytes of weights on each GPU.
    pub fn weight_bytes(&self) -> u64 {
        self.encoder.parameters_of(self.cut()) * self.dtype.bytes()
    }

    /// Bytes of activations of a batch of so many patches on each GPU: the residual stream and its norm, and the largest of what a layer makes
    /// inside.
    pub fn activation_bytes(&self, patches: u64) -> u64 {
        let encoder = self.encoder;
        let n_in = if encoder.is_gated() { 2 } else { 1 };
        let inside = (3 * encoder.hidden).max(n_in * encoder.intermediate).div_ceil(self.cut());
        patches * (2 * encoder.hidden + inside) * self.dtype.bytes()
    }
}

/// Every patch sees every other.
const fn both_ways(patches: u64) -> Document {
    Document { queries: patches, keys: patches, pairs: patches * patches }
}

fn count(n: u64) -> u32 {
    u32::try_from(n).expect("layers are bounded")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::embedded;

    fn flops(ops: &Ops) -> f64 {
        ops.iter().map(|(op, n)| op.flops() * f64::from(*n)).sum()
    }

    fn whole(encoder: &VisionEncoder, n_ranks: u32) -> Encoding<'_> {
        Encoding { encoder, dtype: Dtype::Bf16, group: GroupShape::inside(n_ranks) }
    }

    #[test]
    fn a_patch_is_multiplied_by_every_matrix_once() {
        for name in ["qwen2.5-vl-7b", "qwen3-vl-8b", "gemma-3-27b", "llama-4-maverick"] {
            let encoder = embedded(name).expect(name).vision.expect(name);
            let patches = encoder.patches_per_token() * 64;
            let biases =
                encoder.n_layers * (5 * encoder.hidden + encoder.intermediate * if encoder.is_gated() { 2 } else { 1 });
            let matrices = encoder.n_layers * encoder.layer_parameters() - biases;
            let products: u64 = encoder.projector.iter().map(|[inner, outer]| inner * outer).sum();
            let expected = 2.0 * hw::real(patches * (matrices + encoder.inputs() * encoder.hidden))
                + 2.0 * hw::real(64 * encoder.n_projectors() * products);
            let area = encoder.squares.map_or(0, |squares| squares.side * squares.side);
            // Whole squares: each patch sees those of its square.
            let seen = 4.0 * hw::real(encoder.n_square_layers() * patches * area * encoder.hidden);
            let found = flops(&whole(&encoder, 1).patches(patches));
            assert!((found / (expected + seen) - 1.0).abs() < 1e-12, "{name}: {found} of {expected} + {seen}");
            let attended =
                4.0 * hw::real((encoder.n_layers - encoder.n_square_layers()) * patches * patches * encoder.hidden);
            assert!((flops(&whole(&encoder, 1).whole(patches)) / attended - 1.0).abs() < 1e-12, "{name}");
        }
    }

    #[test]
    fn a_group_shares_the_work_and_sums_twice_a_layer() {
        let encoder = embedded("qwen3-vl-8b").expect("embedded").vision.expect("an encoder");
        let (one, four) = (whole(&encoder, 1), whole(&encoder, 4));
        let patch = 2.0 * hw::real(1024 * encoder.inputs() * encoder.hidden);
        let shared = (flops(&one.patches(1024)) - patch) / (flops(&four.patches(1024)) - patch);
        assert!((shared - 4.0).abs() < 1e-9, "{shared}");
        let sums = |encoding: &Encoding<'_>| -> u32 {
            let is_sum = |(op, _): &&(Op, u32)| matches!(op, Op::Collective { .. });
            encoding.patches(1024).iter().filter(is_sum).map(|(_, n)| n).sum()
        };
        assert_eq!((sums(&one), sums(&four)), (0, 2 * 27 + 4));
        assert!(
            four.activation_bytes(1024) < one.activation_bytes(1024) && four.weight_bytes() < one.weight_bytes() / 3
        );
    }
}
