//! Asks a cost model for the parts of an iteration.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

mod apart;
mod from_host;
mod head;

use from_host::FromHost;
use hw::{Capability, GroupShape, Seconds, Tick};

use crate::speculation::DraftKind;
use crate::step_cost::prompt_exchange::{PromptExchange, sums};
use crate::step_cost::{Chunk, ReplicaConfig, filled};
use engine::cost::experts::counts::{self, BusiestRank};
use engine::cost::experts::{DRAWN_TOKENS, FusedExperts, Routing, Tactic};
use engine::cost::mixed::MixedChunk;
use engine::cost::provenance::{Provenance, what_of};
use engine::cost::roofline::datasheet;
use engine::cost::{CostModel, Estimate, Source};
use engine::dispatcher::Dispatcher;
use engine::layer::{self, OneWay};
use engine::mixing;
use engine::model::{DraftHead, Experts, FeedForward, Layer, LinearRule, Mixer, Model, QueryKeyNorm};
use engine::play::Case;
use engine::shard::{ExpertLoad, Shard};
use engine::stage::Stage;
use engine::task::{Collective, Op, Ops, PassKind};

/// A kernel that only moves activations.
const SMALL: Op = Op::Elementwise { bytes: 1 };

/// Layers that are alike.
struct Kind {
    layer: Layer,
    /// Position of the counts of their experts, where there are any.
    counted: Option<usize>,
    n: u32,
}

/// Kinds of a model's layers. Layers with experts take counts in turn: each its own where all were counted.
fn kinds(model: &Model, n_counted: usize) -> Vec<Kind> {
    let few = |(layer, n): (Layer, u64)| Kind { layer, counted: None, n: u32::try_from(n).expect("few layers") };
    let mut kinds: Vec<Kind> = model.kinds(0, model.n_layers).into_iter().map(few).collect();
    if n_counted == 0 {
        return kinds;
    }
    kinds.retain(|kind| !kind.layer.has_experts());
    let with_experts = (0..model.n_layers).map(|index| model.layers.layer(index)).filter(|layer| layer.has_experts());
    for (layer, counted) in with_experts.zip((0..n_counted).cycle()) {
        let counted = Some(counted);
        match kinds.iter_mut().find(|kind| kind.layer == layer && kind.counted == counted) {
            Some(kind) => kind.n += 1,
            None => kinds.push(Kind { layer, counted, n: 1 }),
        }
    }
    kinds
}

/// Sums over the tensor group behind a mixer: attention and a state space side by side have one each.
fn mixer_sums(mixer: Mixer) -> u32 {
    match mixer {
        Mixer::Off => 0,
        Mixer::Joint => 2,
        _ => 1,
    }
}

/// Where the routed experts of a layer stand among its operations: their products, the permutation before and the sum behind them.
fn routed(ops: &Ops) -> Option<RangeInclusive<usize>> {
    let is_product = |(op, _): &(Op, u32)| matches!(op, Op::GroupedGemm { .. });
    let (first, last) = ops.iter().position(is_product).zip(ops.iter().rposition(is_product))?;
    (first > 0 && last + 1 < ops.len()).then(|| first - 1..=last + 1)
}

/// Asks the cost model for parts of an iteration.
pub(super) struct Writer<'a> {
    pub(super) deployment: &'a ReplicaConfig<'a>,
    pub(super) shard: Shard<'a>,
    shape: GroupShape,
    /// What mixes tokens, and in how many layers.
    mixers: Vec<(Mixer, u32)>,
    /// Kinds of layers, and how many there are of each.
    kinds: Vec<Kind>,
    /// What the busiest GPU has of the experts, by layer that was counted; empty where nobody counted and experts lie once.
    busiest: Vec<BusiestRank>,
    /// Rows that were drawn, by tokens: many batches are asked by the same draws.
    drawn: RefCell<BTreeMap<u64, Vec<u64>>>,
    /// What weights in host memory cost every batch alike, once it was asked.
    from_host: OnceCell<FromHost>,
    pub(super) cost: &'a dyn CostModel,
    case: Case,
    /// Weakest source so far.
    pub(super) source: Cell<Source>,
    /// Where the time comes from, where that is asked: an operation at a time takes longer.
    parts: Option<RefCell<Provenance>>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(deployment: &'a ReplicaConfig<'a>, cost: &'a dyn CostModel, case: Case) -> Self {
        let model = deployment.model;
        let busiest = deployment.busiest_ranks();
        let kinds = kinds(model, busiest.len());
        let mut mixers: Vec<(Mixer, u32)> = Vec::new();
        for kind in &kinds {
            match mixers.iter_mut().find(|(mixer, _)| *mixer == kind.layer.mixer) {
                Some((_, all)) => *all += kind.n,
                None => mixers.push((kind.layer.mixer, kind.n)),
            }
        }
        let (shard, shape) = (deployment.shard(), deployment.tensor_shape());
        let source = Cell::new(Source::Measured);
        let (drawn, from_host) = Default::default();
        Self { deployment, shard, shape, mixers, kinds, busiest, drawn, from_host, cost, case, source, parts: None }
    }

    /// The same that keeps where the time comes from.
    pub(super) fn itemised(self) -> Self {
        Self { parts: Some(RefCell::default()), ..self }
    }

    /// Where the time that was asked so far comes from.
    pub(super) fn provenance(self) -> Provenance {
        self.parts.map(RefCell::into_inner).unwrap_or_default()
    }

    fn sum(&self, ops: Ops) -> Seconds {
        self.sum_by(self.cost, ops)
    }

    fn sum_by(&self, cost: &dyn CostModel, ops: Ops) -> Seconds {
        if let Some(parts) = &self.parts {
            for (op, n) in &ops {
                parts.borrow_mut().add_op(op, f64::from(*n), cost);
            }
        }
        self.end(&cost.estimate(&Op::Sequence(ops)))
    }

    /// The end of an estimate's interval that is tabulated.
    fn end(&self, estimate: &Estimate) -> Seconds {
        self.source.set(self.source.get().max(estimate.source));
        self.case.of(estimate)
    }

    /// An estimate, so many times.
    pub(super) fn own(&self, what: &'static str, found: &Estimate, times: u32) -> Seconds {
        let found = found.times(times);
        if let Some(parts) = &self.parts {
            parts.borrow_mut().add_estimate(what, &found, 1.0);
        }
        self.end(&found)
    }

    /// Takes off what an engine's fused kernels save of what datasheets say.
    pub(super) fn take(&self, what: &'static str, saved: Seconds) {
        if let Some(parts) = &self.parts {
            parts.borrow_mut().take(what, Source::Datasheet, saved.get());
        }
    }

    /// Takes out what the engine has kernels of its own for; their time in so many layers.
    fn taken(&self, ops: &mut Ops, n_layers: u32) -> Seconds {
        let mut own = Seconds::ZERO;
        ops.retain(|(op, n)| {
            let found = match op {
                Op::Collective { kind: Collective::AllReduce, .. } => self.cost.reduce(self.deployment.all_reduce, op),
                _ => self.cost.engine(op),
            };
            own = own + found.map_or(Seconds::ZERO, |found| self.own(what_of(op), &found, *n * n_layers));
            found.is_none()
        });
        own
    }

    /// Takes out the routed experts that an engine runs as one layer, with the permutation before and the sum behind them; their time in so many
    /// layers.
    fn fused(&self, ops: &mut Ops, tokens: u64, n_layers: u32) -> Seconds {
        let Some(routed) = routed(ops) else { return Seconds::ZERO };
        let Some(layer) = self.fused_layer(&ops[routed.start() + 1].0, tokens) else { return Seconds::ZERO };
        let Some(found) = self.cost.experts(&layer) else { return Seconds::ZERO };
        ops.drain(routed);
        if self.is_shared_among_routed() {
            self.leave_out_shared(ops);
        }
        self.own("experts", &self.filled_up(&layer, found), n_layers)
    }

    /// A layer whose kernel fills every expert up to whole blocks of rows, visited or not: at least the products of so many rows, and the traffic of the
    /// activation between them. Every expert's matrix is read once, for its own rows. So they are dense products of the same library with the whole
    /// blocks of one expert as rows, and the columns of all of them beside each other. Some experts have a block more than others.
    fn filled_up(&self, layer: &FusedExperts, found: Estimate) -> Estimate {
        let (Some(block), Some(experts)) = (self.deployment.expert_rows, self.shard.model.experts) else {
            return found;
        };
        let n_experts = self.deployment.replicas_of(experts) / u64::from(self.shard.ep);
        let n_blocks = (layer.tokens * layer.top_k + n_experts * (block - 1)).div_ceil(block);
        let fewer = (n_blocks / n_experts).max(1);
        let share_of_more = hw::real(n_blocks.saturating_sub(fewer * n_experts)) / hw::real(n_experts);
        let of_blocks = |each: u64| self.of_rows(layer, block * each, n_experts);
        let filled = of_blocks(fewer).scaled(1.0 - share_of_more).then(of_blocks(fewer + 1).scaled(share_of_more));
        if filled.time > found.time { filled } else { found }
    }

    /// Products and activation of so many experts with so many rows each.
    fn of_rows(&self, layer: &FusedExperts, rows: u64, n_experts: u64) -> Estimate {
        let (wide, format) = (layer.width * (layer.n_matrices() - 1), layer.format);
        let ops = vec![
            (Op::Gemm { m: rows, n: wide * n_experts, k: layer.hidden, format }, 1),
            (Op::Elementwise { bytes: rows * n_experts * (wide * self.shard.dtype.bytes() + layer.width) }, 1),
            (Op::Gemm { m: rows, n: layer.hidden * n_experts, k: layer.width, format }, 1),
        ];
        self.cost.estimate(&Op::Sequence(ops))
    }

    /// The routed experts of a layer as this GPU's kernel is given them, with the rows of a grouped product.
    pub(super) fn fused_layer(&self, product: &Op, tokens: u64) -> Option<FusedExperts> {
        let (Op::GroupedGemm { rows, .. }, Some(experts)) = (product, self.shard.model.experts) else { return None };
        let is_sent = self.deployment.sends_to_experts(experts);
        let here = rows.iter().sum::<u64>().div_ceil(experts.top_k).max(1);
        let shared = self.is_shared_among_routed();
        Some(FusedExperts {
            rows: rows.iter().copied().chain(shared.then_some(tokens)).collect(),
            tokens: if is_sent { here } else { tokens },
            top_k: experts.top_k + u64::from(shared),
            // Experts behind a narrower projection have matrices of its width.
            hidden: experts.latent.unwrap_or(self.shard.model.hidden),
            width: experts.intermediate.div_ceil(u64::from(self.shard.expert_tp)),
            gated: self.shard.model.gated,
            format: self.shard.formats.experts,
            tactic: self.deployment.expert_tactic,
        })
    }

    /// Embedding, GEMMs, norms and exchanges of all layers, with as many tokens on every rank of attention.
    pub(super) fn layers(&self, m: u64) -> Seconds {
        self.layers_beside(m, self.deployment.lanes().ranks)
    }

    /// The same where so many ranks of data-parallel attention have these tokens and the others none: fewer tokens come to the experts. Who has
    /// tokens sends as many as ever.
    pub(super) fn layers_beside(&self, m: u64, n_busy: u32) -> Seconds {
        self.on_device(m, n_busy) + self.of_host_weights(m, n_busy)
    }

    /// The same with all weights on the device.
    fn on_device(&self, m: u64, n_busy: u32) -> Seconds {
        let mut sent = self.expert_exchange(m, n_busy);
        // Without a way to experts there is nothing to hide, and engines refuse the option.
        if self.deployment.overlaps_batches && m > 1 && !sent.is_empty() {
            return self.overlapped(m, n_busy);
        }
        sent.extend(self.hand_offs(m));
        self.one_batch(m, n_busy, sent)
    }

    /// Two halves of the tokens in turn: while one computes a layer, tokens of the other travel. What is longer of both counts, and the last half's way of one
    /// layer. DeepEP's kernels for throughput take multiprocessors from computation (SGLang `--enable-two-batch-overlap`, vLLM `--enable-dbo`).
    fn overlapped(&self, m: u64, n_busy: u32) -> Seconds {
        let half = m.div_ceil(2);
        let computed = [half, m - half].map(|tokens| self.one_batch(tokens, n_busy, self.hand_offs(tokens)));
        let computed = computed[0] + computed[1];
        let way = self.expert_exchange(half, n_busy);
        let n_layers = f64::from(self.n_with_experts().max(1));
        let sent = self.sum(way.into_iter().map(|(op, n)| (op, 2 * n)).collect());
        let hidden = if sent < computed { sent } else { computed };
        let last = sent * (0.5 / n_layers);
        let hidden = if last < hidden { hidden - last } else { Seconds::ZERO };
        self.take("all-to-all", hidden);
        let is_low_latency = self.deployment.deep_ep.is_some_and(|mode| mode.is_low_latency(half));
        let taken = if is_low_latency {
            0.0
        } else {
            Dispatcher::DeepEp.sending_share(self.deployment.cluster.gpu.capability())
        };
        computed + sent - hidden + hidden * (taken / (1.0 - taken))
    }

    /// All tokens of a rank as one batch, with what they send.
    fn one_batch(&self, m: u64, n_busy: u32, sent: Ops) -> Seconds {
        let forward = PassKind::Forward;
        let (mut own, mut n_reduces) = (Seconds::ZERO, 1);
        let permille = (1000 * u64::from(n_busy)).div_ceil(u64::from(self.deployment.lanes().ranks));
        let load = ExpertLoad { permille, ..ExpertLoad::EVEN };
        let mut ops = layer::embedding(&self.shard, m);
        ops.extend(layer::outside(&self.shard, m));
        for &(mixer, n) in &self.mixers {
            ops.extend(layer::repeated(&layer::before_mixing(&self.shard, mixer, m, forward), n));
            if mixer == Mixer::Linear {
                ops.extend(layer::repeated(&self.gates(m), n));
            }
        }
        for &Kind { layer: kind, counted, n } in &self.kinds {
            let load = kind.has_experts().then_some(&load);
            let mut after = layer::after_mixing(&self.shard, kind, m, forward, load);
            if kind.has_experts() && self.deployment.ffn.is_some() {
                if let Some(elsewhere) = routed(&after) {
                    after.drain(elsewhere);
                }
                own = own + self.taken(&mut after, n);
            } else if kind.has_experts() {
                let tokens = m * u64::from(n_busy);
                self.visit(&mut after, tokens, counted);
                own = own + self.fused(&mut after, tokens, n) + self.taken(&mut after, n);
                if self.is_shared_beside(m) {
                    self.leave_out_shared(&mut after);
                    own = own + self.own("shared experts", &datasheet(self.shared_weights()), n);
                }
            }
            ops.extend(layer::repeated(&after, n));
            n_reduces += n * (mixer_sums(kind.mixer) + u32::from(kind.feed_forward != FeedForward::Off));
        }
        if self.shape.n_ranks > 1 {
            let bytes = m * self.shard.model.hidden * self.shard.dtype.bytes();
            // One behind each mixer and each feed-forward, and one behind the embedding, which is cut over the vocabulary.
            let reduce = Op::Collective { kind: Collective::AllReduce, bytes, shape: self.shape };
            let mut reduces = vec![(reduce, n_reduces)];
            reduces.extend(self.joint_norms(m));
            reduces.extend(self.step_sums(m));
            own = own + self.taken(&mut reduces, 1);
            ops.extend(reduces);
        }
        ops.extend(sent);
        ops.extend(self.joining(m));
        let saved = self.saved(&ops, n_reduces - 1) - self.beside(m);
        let whole = self.sum(ops) + own - saved;
        self.take(what_of(&SMALL), saved);
        whole.max(Seconds::ZERO)
    }

    /// What a draft joins its token's embedding and the state in front of it with. Products to the width of states are whole on every GPU. EAGLE-3 has both beside
    /// each other in front of its queries, keys and values, whose products are twice as deep (vLLM and SGLang, `llama_eagle3.py`).
    fn joining(&self, m: u64) -> Ops {
        let (model, dtype) = (self.shard.model, self.shard.dtype);
        let norms = (Op::Elementwise { bytes: 4 * m * model.hidden * dtype.bytes() }, 1);
        let product = |n, k| (Op::Gemm { m, n, k, format: dtype.into() }, 1);
        match self.deployment.drafts_as {
            None | Some(DraftKind::Model) => Vec::new(),
            Some(DraftKind::Own) => vec![norms, product(model.hidden, 2 * model.hidden)],
            Some(DraftKind::Head(DraftHead::Eagle)) => vec![product(model.hidden, 2 * model.hidden)],
            Some(DraftKind::Head(DraftHead::Eagle3)) => {
                let columns = model.joined_query_width().div_ceil(u64::from(self.shard.tp));
                vec![norms, product(columns, model.hidden)]
            }
        }
    }

    /// The product that makes one state of those of three layers, once for every verified token (EAGLE-3, arXiv:2503.01840, section 3.1).
    pub(super) fn fused_states(&self, m: u64) -> Seconds {
        let (hidden, format) = (self.shard.model.hidden, self.shard.dtype.into());
        match self.deployment.drafts_as {
            Some(DraftKind::Head(DraftHead::Eagle3)) => {
                self.sum(vec![(Op::Gemm { m, n: hidden, k: 3 * hidden, format }, 1)])
            }
            _ => Seconds::ZERO,
        }
    }

    /// What engines launch of a gated delta net besides its projections, its convolution and its scan: a product for the gates, a kernel that makes
    /// gates of it, and the gated norm behind the scan (vLLM and SGLang `qwen3_next.py`: `in_proj_ba`, `fused_gdn_gating`, `RMSNormGated`).
    fn gates(&self, m: u64) -> Ops {
        let (Some(linear), bytes) = (self.shard.model.linear, self.shard.dtype.bytes()) else { return Vec::new() };
        let on_gpu = |width: u64| width.div_ceil(u64::from(self.shard.tp));
        let (gates, values) = (on_gpu(2 * linear.n_value_heads), on_gpu(linear.value_width()));
        if linear.rule == LinearRule::Lightning {
            return vec![(Op::Elementwise { bytes: 3 * m * values * bytes }, 1)];
        }
        vec![
            (Op::Gemm { m, n: gates, k: self.shard.model.hidden, format: self.shard.formats.attention }, 1),
            (Op::Elementwise { bytes: 2 * m * gates * bytes }, 1),
            (Op::Elementwise { bytes: 3 * m * values * bytes }, 1),
        ]
    }

    /// The second projection of Mamba-1 is cut by rows, so what it gives is summed in every layer (vLLM `MambaMixer.x_proj`).
    fn step_sums(&self, m: u64) -> Ops {
        let Some((space, rank)) = self.shard.model.state_space.and_then(|space| Some((space, space.step_rank?))) else {
            return Vec::new();
        };
        let n = self.mixers.iter().filter(|(mixer, _)| *mixer == Mixer::StateSpace).map(|(_, n)| n).sum();
        let bytes = m * space.stepped(rank) * self.shard.dtype.bytes();
        vec![(Op::Collective { kind: Collective::AllReduce, bytes, shape: self.shape }, n)]
    }

    /// A norm over all heads of queries and of keys needs the variances of the whole group: an all-reduce of two numbers of 32 bits per token, which cuts the
    /// kernel around it in two (vLLM `MiniMaxText01RMSNormTP.forward_qk`).
    fn joint_norms(&self, m: u64) -> Ops {
        let model = self.shard.model;
        if model.qk_norm != QueryKeyNorm::Whole {
            return Vec::new();
        }
        let n = self.mixers.iter().filter(|(mixer, _)| mixer.attends()).map(|(_, n)| n).sum();
        let keys = model.n_kv_heads * self.shard.copies(model.heads(Mixer::Full));
        let width = ((model.n_heads + keys) * model.head_dim).div_ceil(u64::from(self.shape.n_ranks));
        let variances = Op::Collective { kind: Collective::AllReduce, bytes: 8 * m, shape: self.shape };
        vec![(variances, n), (Op::Elementwise { bytes: m * width * self.shard.dtype.bytes() }, n)]
    }

    /// What kernels take that a layer has beside those that are written, where nobody measured small kernels one by one.
    fn beside(&self, m: u64) -> Seconds {
        if self.cost.estimate(&SMALL).source != Source::Datasheet {
            return Seconds::ZERO;
        }
        let layers = self.kinds.iter().map(|kind| (kind.layer, kind.n));
        // FlashInfer's kernel of Blackwell chooses the experts that it computes.
        let chooses = self.deployment.cluster.gpu.capability() == Capability::Ten
            && !matches!(self.deployment.expert_tactic, Tactic::Triton | Tactic::DefaultTiles);
        self.deployment.census.added(&self.shard, layers, [self.is_shared_beside(m), chooses])
    }

    /// What the engine's fused kernels take less, where nobody measured the small kernels one by one.
    pub(super) fn saved(&self, ops: &Ops, n_norms: u32) -> Seconds {
        if self.cost.estimate(&SMALL).source != Source::Datasheet {
            return Seconds::ZERO;
        }
        self.deployment.fusion.saved(ops, n_norms, self.shape.n_ranks)
    }

    /// Activations of so many tokens from stage to stage.
    fn hand_offs(&self, m: u64) -> Ops {
        let bytes = m * self.shard.model.hidden * self.shard.dtype.bytes();
        let message = |shape| (Op::Collective { kind: Collective::SendRecv, bytes, shape }, 1);
        self.deployment.hand_offs().map(message).collect()
    }

    /// Layers with experts.
    pub(super) fn n_with_experts(&self) -> u32 {
        self.kinds.iter().filter(|kind| kind.layer.has_experts()).map(|kind| kind.n).sum()
    }

    /// Tokens to experts and back. Both ways of a layer are one entry, or one each.
    pub(super) fn expert_exchange(&self, m: u64, n_busy: u32) -> Ops {
        let ranks = self.deployment.lanes().ranks;
        // Between two sides tokens go by ways of their own.
        let are_exchanged = ranks > 1 && self.deployment.ffn.is_none();
        let Some(experts) = self.shard.model.experts.filter(|_| are_exchanged) else { return Vec::new() };
        let n_expert = self.n_with_experts();
        let n_dense = self.kinds.iter().map(|kind| kind.n).sum::<u32>() - n_expert;
        if self.deployment.sends_to_experts(experts) {
            let stage = Stage { n_dense, n_expert, first: true, last: true, ..Stage::default() };
            let (load, shape) = (self.exchanged(m, n_busy, experts), self.deployment.expert_shape());
            if let Some(mode) = self.deployment.deep_ep.filter(|_| shape.n_nodes > 1) {
                let ways = layer::deep_ep(&self.shard, experts, m, load, shape, mode);
                return ways.map(|way| (self.slower(way), n_expert)).to_vec();
            }
            return layer::expert_exchange(&self.shard, &stage, m, PassKind::Forward, load, shape);
        }
        // Of what is gathered a rank receives all but its own part. One without tokens receives those of all others.
        let received = m * u64::from(n_busy.min(ranks - 1));
        let gathered = received * u64::from(ranks) / u64::from(ranks - 1);
        let wide = experts.latent.unwrap_or(self.shard.model.hidden);
        let (bytes, shape) = (gathered * wide * self.shard.dtype.bytes(), self.deployment.attention_shape());
        let of = |kind| (Op::Collective { kind, bytes, shape }, n_expert);
        vec![of(Collective::AllGather), of(Collective::ReduceScatter)]
    }

    /// What takes longer of a way of tokens, over ports or inside of nodes.
    fn slower(&self, way: OneWay) -> Op {
        let OneWay { across, inside } = way;
        let is_longer = |inside: &Op| self.cost.estimate(inside).time > self.cost.estimate(&across).time;
        inside.filter(is_longer).unwrap_or(across)
    }

    /// Both ways of exchanging so many tokens of prompts of all ranks: by sums, and by a gather and a scatter. None where nothing is summed.
    fn prompt_exchange(&self, total: u64) -> Option<[Ops; 2]> {
        let (ranks, experts) = (self.deployment.lanes().ranks, self.shard.model.experts?);
        let is_summed = self.deployment.prompt_exchange == PromptExchange::Summed;
        if !is_summed || ranks < 2 || self.deployment.sends_to_experts(experts) {
            return None;
        }
        let n_expert = self.n_with_experts();
        let wide = experts.latent.unwrap_or(self.shard.model.hidden);
        let summed = sums(total * wide * self.shard.dtype.bytes(), n_expert, self.deployment.expert_shape());
        Some([summed, self.expert_exchange(total.div_ceil(ranks.into()), ranks)])
    }

    /// What sums take longer than a gather and a scatter, by tokens of all ranks, at most so many; empty where nothing is summed.
    pub(super) fn sums_added(&self, tokens_max: usize) -> Vec<Tick> {
        let longer = |total: u64| {
            let [summed, gathered] = self.prompt_exchange(total).unwrap_or_default().map(|ops| self.lasting(ops));
            (summed - gathered).max(Seconds::ZERO)
        };
        if self.prompt_exchange(1).is_some() { filled(tokens_max, longer) } else { Vec::new() }
    }

    /// How long operations last, without a note of where the time comes from.
    fn lasting(&self, ops: Ops) -> Seconds {
        self.end(&self.cost.estimate(&Op::Sequence(ops)))
    }

    /// What the exchange of the busiest GPU carries over what a rank with `m` tokens sends, where so many ranks have tokens. Its experts are sent
    /// more than their even share, and less where ranks are idle; nobody sends less than its own tokens.
    fn exchanged(&self, m: u64, n_busy: u32, experts: Experts) -> ExpertLoad {
        let over_even = if self.busiest.is_empty() {
            let drawn = (m * u64::from(n_busy)).clamp(1, DRAWN_TOKENS);
            self.deployment.routing.over_even(drawn, experts.top_k, experts.n_routed, u64::from(self.shard.ep))
        } else {
            counts::over_even(&self.busiest)
        };
        let busy = f64::from(n_busy) / f64::from(self.deployment.lanes().ranks);
        ExpertLoad { permille: hw::whole(1000.0 * (over_even * busy).max(1.0)), ..ExpertLoad::EVEN }
    }

    /// Leaves out experts that no token visits: with few tokens their weights are not read. Both products of a layer have the same rows.
    fn visit(&self, ops: &mut Ops, tokens: u64, counted: Option<usize>) {
        let mut visited: Option<Vec<u64>> = None;
        for (op, _) in ops {
            if let Op::GroupedGemm { rows, .. } = op {
                rows.clone_from(visited.get_or_insert_with(|| self.visited(rows, tokens, counted)));
            }
        }
    }

    /// Rows of the experts that tokens visit, of rows that are even. A token's experts are taken as drawn evenly, so that an expert is left alone
    /// with probability `(1 − top_k / n_routed)^tokens`, or from a skewed distribution, or by the counts of their layer.
    fn visited(&self, even: &[u64], tokens: u64, counted: Option<usize>) -> Vec<u64> {
        let Some(experts) = self.shard.model.experts else { return even.to_vec() };
        if let Some(index) = counted {
            return self.busiest[index].rows(tokens.max(1), experts.top_k, even.iter().sum());
        }
        if self.deployment.routing != Routing::Even {
            let drawn = tokens.clamp(1, DRAWN_TOKENS);
            let groups = u64::from(self.shard.ep);
            let draw = || self.deployment.routing.rows(drawn, experts.top_k, experts.n_routed, groups);
            return self
                .drawn
                .borrow_mut()
                .entry(drawn)
                .or_insert_with(draw)
                .iter()
                .map(|rows| rows * tokens / drawn)
                .collect();
        }
        let alone = libm::pow(1.0 - hw::real(experts.top_k) / hw::real(experts.n_routed), hw::real(tokens));
        let (total, n) = (even.iter().sum::<u64>(), even.len() as u64);
        let n_visited = hw::whole((1.0 - alone) * hw::real(n)).clamp(1, n.min(total.max(1)));
        (0..n_visited).map(|index| total / n_visited + u64::from(index < total % n_visited)).collect()
    }

    /// Mixing of one chunk in all layers.
    pub(super) fn prefill(&self, chunk: Chunk) -> Seconds {
        let (past, new) = (u64::from(chunk.past), u64::from(chunk.new));
        let (mut own, mut rest) = (Seconds::ZERO, Vec::new());
        for &(mixer, n) in &self.mixers {
            let measured = MixedChunk::of(&self.shard, mixer, past, new).and_then(|chunk| self.cost.mixed(&chunk));
            match measured {
                Some(found) => own = own + self.own("attention", &found, n),
                None => rest.extend(layer::repeated(&mixing::chunk(&self.shard, mixer, past, new), n)),
            }
        }
        own + self.sum(rest)
    }
}
