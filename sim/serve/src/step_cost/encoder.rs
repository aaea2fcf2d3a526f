//! Time of an encoder of images in an iteration, tabulated from a cost model.
//!
//! Everything but attention to whole images follows the patches of all images together. Images, and tiles of one, attend to themselves, so those times
//! add up as if run one after another. Kernels are launched one by one: no graph has the sizes of images, so the encoder takes at least a layer's launches
//! for each of its layers. A tensor group cuts the layers, or each of its GPUs encodes whole images and all gather the tokens (vLLM
//! `--mm-encoder-tp-mode`). A rank of data-parallel attention is such a group, and encodes the images of its own prompts beside the others. Units: ticks; patches, tokens.
//!
//! Approximations: sizes between the knots of a table are interpolated linearly; where images are spread over GPUs, the busiest has its even share or
//! the largest image.

use std::cell::Cell;

use hw::{Seconds, Tick};

use super::ReplicaConfig;
use super::prefill::{knot, position};
use engine::cost::{CostModel, Source};
use engine::encoder::Split;
use engine::model::Image;
use engine::play::Case;
use engine::task::{Collective, Op, Ops};

/// Most patches of the tables; beyond them the last rates hold.
const PATCHES_MAX: u64 = 1 << 18;

/// Ticks of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Encoder {
    /// By patches of all images.
    patches: Curve,
    /// Attention of one image or tile by its patches, but for its start.
    whole: Curve,
    /// Start of attention.
    start: f64,
    /// Tokens that every GPU gathers from the others, where images are spread.
    gather: Option<Curve>,
    /// Launches of all layers.
    launches: f64,
    /// GPUs of a tensor group that encode images of their own.
    n_shares: u64,
    /// Weakest source of what was asked.
    pub(super) source: Source,
}

/// Ticks at knots.
#[derive(Clone, Debug, PartialEq)]
struct Curve(Vec<f64>);

impl Curve {
    /// Knots up to at least so many.
    fn new(most: u64, at: impl Fn(u64) -> Seconds) -> Self {
        let n = position(most).0 + 2;
        Self((0..n).map(|index| Tick::unrounded(at(knot(index)))).collect())
    }

    /// Ticks of `n`, which may lie beyond the last knot.
    fn at(&self, n: u64) -> f64 {
        let index = position(n).0.min(self.0.len() - 2);
        let (low, high) = (hw::real(knot(index)), hw::real(knot(index + 1)));
        let share = (hw::real(n) - low) / (high - low);
        (self.0[index] + (self.0[index + 1] - self.0[index]) * share).max(0.0)
    }
}

impl Encoder {
    /// Tabulates the encoder of a deployment's model, where it has one.
    pub(super) fn new(deployment: &ReplicaConfig<'_>, cost: &dyn CostModel, case: Case) -> Option<Self> {
        let encoding = deployment.encoding()?;
        let (encoder, dtype, tensor) = (encoding.encoder, encoding.dtype, deployment.tensor_shape());
        let source = Cell::new(Source::Measured);
        let seconds = |ops: Ops| {
            let found = cost.estimate(&Op::Sequence(ops));
            source.set(source.get().max(found.source));
            case.of(&found)
        };
        let per_token = encoder.patches_per_token();
        // A knot below a token still has one.
        let patches = Curve::new(PATCHES_MAX, |n| seconds(encoding.patches(n.max(per_token))));
        let start = Tick::unrounded(seconds(encoding.whole(1)));
        let whole = Curve::new(PATCHES_MAX, |n| seconds(encoding.whole(n)));
        let whole = Curve(whole.0.into_iter().map(|ticks| (ticks - start).max(0.0)).collect());
        let is_spread = deployment.encoder_split == Split::Images && tensor.n_ranks > 1;
        let gathered = |tokens: u64| {
            let bytes = tokens * encoder.given_per_token() * dtype.bytes();
            case.of(&cost.estimate(&Op::Collective { kind: Collective::AllGather, bytes, shape: tensor }))
        };
        let gather = is_spread.then(|| Curve::new(PATCHES_MAX / per_token, gathered));
        let launches = Tick::unrounded(deployment.host_per_layer * hw::real(encoder.n_layers));
        let n_shares = if is_spread { u64::from(tensor.n_ranks) } else { 1 };
        Some(Self { patches, whole, start, gather, launches, n_shares, source: source.get() })
    }

    /// So much for every patch.
    #[cfg(test)]
    pub(super) fn linear(per_patch: Seconds) -> Self {
        let none = || Curve::new(1, |_| Seconds::ZERO);
        let patches = Curve::new(1, |n| per_patch * hw::real(n));
        let (start, gather, launches, n_shares) = (0.0, None, 0.0, 1);
        Self { patches, whole: none(), start, gather, launches, n_shares, source: Source::Measured }
    }

    /// Ticks of the images of one rank of data-parallel attention.
    pub(super) fn ticks(&self, images: impl Iterator<Item = Image>) -> Tick {
        let (mut patches, mut largest, mut tokens) = (0, 0, 0);
        let (mut attention, mut longest) = (0.0, 0.0_f64);
        for image in images {
            let n_tiles = f64::from(image.tiles);
            let own = n_tiles * self.tile(u64::from(image.patches / image.tiles.max(1)));
            patches += u64::from(image.patches);
            largest = largest.max(u64::from(image.patches));
            tokens += u64::from(image.tokens);
            attention += own;
            longest = longest.max(own);
        }
        if patches == 0 {
            return Tick::ZERO;
        }
        let busiest = largest.max(patches.div_ceil(self.n_shares));
        let attention = longest.max(attention / hw::real(self.n_shares));
        let device = self.patches.at(busiest) + self.start + attention;
        let gather = self.gather.as_ref().map_or(0.0, |gather| gather.at(tokens));
        Tick::from_f64(device.max(self.launches) + gather)
    }

    /// Attention of one tile, as its pairs have it between knots.
    fn tile(&self, patches: u64) -> f64 {
        let index = position(patches).0.min(self.whole.0.len() - 2);
        let pairs = |n: u64| hw::real(n) * hw::real(n);
        let rate = |index: usize| self.whole.0[index] / pairs(knot(index));
        let (low, high) = (hw::real(knot(index)), hw::real(knot(index + 1)));
        let share = ((hw::real(patches) - low) / (high - low)).min(1.0);
        (rate(index) + (rate(index + 1) - rate(index)) * share) * pairs(patches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_cost::StepTable;
    use engine::cost::roofline::Roofline;
    use engine::encoder::Encoding;
    use engine::model::{Model, embedded};
    use hw::Cluster;

    fn machine() -> Cluster {
        hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8)
    }

    fn table(deployment: &ReplicaConfig<'_>) -> StepTable {
        StepTable::new(deployment, (2048, 8), &Roofline::new(deployment.cluster), Case::Expected)
    }

    fn image(model: &Model, side: u32) -> Image {
        model.vision.as_deref().expect("an encoder").image(side, side).expect("an image")
    }

    fn ms(ticks: Tick) -> f64 {
        ticks.to_seconds() * 1e3
    }

    #[test]
    fn an_image_takes_what_its_operations_take() {
        let cluster = machine();
        for (name, side) in
            [("qwen2.5-vl-7b", 512), ("qwen2.5-vl-7b", 1536), ("gemma-3-27b", 512), ("qwen3-vl-8b", 1024)]
        {
            let model = embedded(name).expect(name);
            let encoder = model.vision.as_deref().expect("an encoder");
            let deployment = ReplicaConfig::new(&model, &cluster, 1);
            let image = image(&model, side);
            let encoding = Encoding { encoder, dtype: deployment.dtype, group: deployment.tensor_shape() };
            let mut ops = encoding.patches(image.patches.into());
            ops.extend(encoding.whole(image.patches.into()));
            let roofline = Roofline::new(&cluster);
            let expected = roofline.estimate(&Op::Sequence(ops)).time.get() * 1e3;
            let found = ms(table(&deployment).encoding([image].into_iter()));
            assert!((found / expected - 1.0).abs() < 0.02, "{name}: {found} ms of {expected} ms");
        }
    }

    #[test]
    fn products_of_a_large_batch_run_at_the_roofline() {
        // 16 images of Gemma 3: 65,536 patches, 2 operations per matrix element, and every patch sees the 4096 of its image, at the assumed share of peak.
        let (cluster, model) = (machine(), embedded("gemma-3-27b").expect("embedded"));
        let deployment = ReplicaConfig::new(&model, &cluster, 1);
        let images = [image(&model, 896); 16];
        let found = ms(table(&deployment).encoding(images.into_iter()));
        let patches = 16.0 * 4096.0;
        let matrices = 27.0 * (4.0 * 1152.0 * 1152.0 + 2.0 * 1152.0 * 4304.0) + 588.0 * 1152.0;
        let flops =
            2.0 * patches * matrices + 4.0 * 27.0 * patches * 4096.0 * 1152.0 + 2.0 * 16.0 * 256.0 * 1152.0 * 5376.0;
        let products = flops / (cluster.gpu.peak(hw::Format::Bf16).get() * 0.75) * 1e3;
        // Norms, sums and activations move memory besides.
        let moved = (27.0 * (9.0 * 1152.0 + 2.0 * 4304.0) + 2.0 * 1152.0) * patches * 2.0;
        let moving = moved / (cluster.gpu.memory_bandwidth.get() * 0.75) * 1e3;
        assert!((found / (products + moving) - 1.0).abs() < 0.01, "{found} ms of {products} + {moving} ms");
    }

    #[test]
    fn the_host_launches_every_layer() {
        let (cluster, model) = (machine(), embedded("qwen2.5-vl-7b").expect("embedded"));
        let host_per_layer = Seconds::new(1e-3);
        let deployment = ReplicaConfig { host_per_layer, ..ReplicaConfig::new(&model, &cluster, 1) };
        let found = ms(table(&deployment).encoding([image(&model, 28)].into_iter()));
        assert!((found - 32.0).abs() < 1e-6, "{found} ms");
    }

    #[test]
    fn gpus_that_take_images_of_their_own_need_no_sums() {
        let (cluster, model) = (machine(), embedded("qwen2.5-vl-7b").expect("embedded"));
        let of = |split, tensor, n: usize| {
            let deployment = ReplicaConfig { encoder_split: split, ..ReplicaConfig::new(&model, &cluster, tensor) };
            ms(table(&deployment).encoding(std::iter::repeat_n(image(&model, 1024), n)))
        };
        let (alone, four) = (of(Split::Weights, 1, 1), of(Split::Images, 4, 4));
        // Each of four GPUs has an image; the tokens are gathered.
        assert!(four > alone && four < 1.1 * alone, "{four} ms and {alone} ms");
        assert!(four < of(Split::Weights, 4, 4));
        // One image is encoded by one of them.
        assert!(of(Split::Images, 4, 1) >= alone && of(Split::Weights, 4, 1) < alone);
    }

    #[test]
    fn a_model_without_an_encoder_takes_no_time() {
        let (cluster, model) = (machine(), embedded("qwen2.5-7b").expect("embedded"));
        let image = Image { tokens: 100, marks: 2, patches: 400, tiles: 1 };
        let table = table(&ReplicaConfig::new(&model, &cluster, 1));
        assert_eq!(table.encoding([image].into_iter()), Tick::ZERO);
    }
}
