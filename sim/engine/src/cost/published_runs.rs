//! Costs of serving from published runs: an engine in steady state, in closed form. Mean time to first token (TTFT) and per output token
//! (TPOT) at a held number of requests in flight.
//!
//! An iteration is a sum of terms that a datasheet and an architecture give (weights and cache that are read, multiplications, bytes of
//! all-reduces, layers, sequences), each times a coefficient that is never negative. While a sequence writes its `output` tokens, the
//! `b - 1` others of its group start once each, so with `b` sequences
//! TPOT = step(b) + (b - 1) / output · stall(prompt), and
//! TTFT = fixed + layers + iterations · TPOT + (alone + b · queued)(prompt): a prompt waits behind those that came with it.
//! Coefficients are fitted to published runs, one set per framework and kind of model (`profiles/published/serving.toml`, fitted by
//! `calibrate/src/endpoints.rs`); they are no prediction from first principles, and the interval is what held-out settings showed.
//! Units: seconds, tokens; terms are per GPU.

use std::collections::BTreeMap;

use hw::{Dtype, Flops, Gpu, real};
use serde::{Deserialize, Serialize};

use crate::cost::residuals::Residuals;
use crate::cost::unusable::Unusable;
use crate::memory::kv_elements_per_layer;
use crate::model::Model;
use crate::verdict::Refused;

/// Schema of the file of coefficients.
pub const SCHEMA: &str = "skrull-sim/published-serving/1";
/// Bytes of a key, a value or an activation.
const WIDE: u64 = 2;
/// Bytes of a 4-bit weight with one 8-bit scale for 32 of them.
const FOUR_BITS: f64 = 0.531_25;
/// Share of a GPU's memory that engines take by default.
const MEMORY_USED: f64 = 0.9;
/// Memory beside weights and cache: graphs and activations; assumption.
const RESERVED_BYTES: f64 = 2e9;
/// Factor by which the interval widens on each side where a setting lies outside the fitted ones.
const OUTSIDE_WIDENING: f64 = 1.3;

/// Number format of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 16 bits everywhere.
    Bf16,
    /// 8-bit floats everywhere.
    Fp8,
    /// 4-bit experts, 16 bits elsewhere.
    FourBitExperts,
}

impl Format {
    /// Names in scenarios, in the order of `ALL`.
    pub const NAMES: [&str; 3] = ["bf16", "fp8", "4-bit-experts"];
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::Fp8, Self::FourBitExperts];

    /// Bytes of a weight outside and inside the experts.
    const fn bytes(self) -> [f64; 2] {
        match self {
            Self::Bf16 => [2.0, 2.0],
            Self::Fp8 => [1.0, 1.0],
            Self::FourBitExperts => [2.0, FOUR_BITS],
        }
    }

    /// Format in which products run.
    const fn dtype(self) -> Dtype {
        match self {
            Self::Fp8 => Dtype::Fp8,
            Self::Bf16 | Self::FourBitExperts => Dtype::Bf16,
        }
    }
}

/// What is served, where, and how much of it at once.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    /// Architecture.
    pub model: &'a Model,
    /// Device type.
    pub gpu: &'a Gpu,
    /// Number format of weights.
    pub format: Format,
    /// GPUs of the endpoint, all of one node; experts are cut over all of them.
    pub gpus: u32,
    /// Groups that each hold attention whole and their own sequences; 1 is plain tensor parallelism.
    pub attention_groups: u32,
    /// Tokens of a prompt.
    pub prompt: u64,
    /// Tokens of an answer.
    pub output: u64,
    /// Requests in flight, held.
    pub concurrency: u64,
}

/// Names of an iteration's coefficients, in the order of `Setting::step`.
pub const STEP: [&str; 9] =
    ["iteration_s", "layer_s", "expert_layer_s", "exchange_s", "weights", "cache", "wire", "sequence_s", "multiply"];
/// Names of a prompt's coefficients, in the order of `Setting::prompt_terms`.
pub const PROMPT: [&str; 4] = ["multiply", "attend", "wire", "token_s"];

impl Setting<'_> {
    fn tensor_degree(&self) -> u32 {
        self.gpus / self.attention_groups
    }

    /// Sequences of an attention group.
    #[must_use]
    pub fn sequences(&self) -> f64 {
        real(self.concurrency) / f64::from(self.attention_groups)
    }

    fn layers(&self) -> [f64; 2] {
        let n_expert = self.model.n_expert_layers();
        [real(self.model.n_layers - n_expert), real(n_expert)]
    }

    /// Bytes of weights on a GPU of which an iteration touches `share` of the experts.
    fn weight_bytes(&self, share: f64) -> f64 {
        let (model, [outside, inside]) = (self.model, self.format.bytes());
        let routed = real(model.n_expert_layers());
        let shared = real(model.shared_parameters(0, model.n_layers));
        let experts = model.experts.map_or(0.0, |experts| real(experts.n_routed)) * share;
        let head = real(model.vocab * model.hidden * WIDE);
        (shared * outside + head) / f64::from(self.tensor_degree())
            + routed * experts * real(model.expert_parameters()) * inside / f64::from(self.gpus)
    }

    /// Share of the experts that a batch touches when every token picks its experts at random.
    fn touched(&self) -> f64 {
        self.model.experts.map_or(0.0, |experts| {
            let missed = 1.0 - real(experts.top_k) / real(experts.n_routed);
            1.0 - libm::pow(missed, real(self.concurrency))
        })
    }

    /// Seconds of multiplications by weights for a token of every group, at the datasheet peak.
    fn multiply_s(&self) -> f64 {
        let model = self.model;
        let routed = real(model.n_expert_layers());
        let shared = real(model.shared_parameters(0, model.n_layers));
        let picked =
            model.experts.map_or(0.0, |experts| real(experts.top_k)) * real(model.expert_parameters()) * routed;
        let share = f64::from(self.attention_groups) / f64::from(self.gpus);
        (Flops::new(2.0 * (shared / f64::from(self.tensor_degree()) + picked * share))
            / self.gpu.peak(self.format.dtype()))
        .get()
    }

    /// Seconds of attention for a query and a key at the 16-bit peak: over a whole prompt, and over compressed keys when decoding.
    fn pair_s(&self, decoding: bool) -> f64 {
        let width = match (self.model.latent, decoding) {
            (None, _) => 4 * self.model.head_dim,
            (Some(latent), false) => 2 * (latent.nope_dim + latent.rope_dim + latent.value_dim),
            (Some(latent), true) => 2 * (2 * latent.kv_rank + latent.rope_dim),
        };
        let flops = real(self.model.n_layers * self.model.n_heads * width) / f64::from(self.tensor_degree());
        (Flops::new(flops) / self.gpu.peak(Dtype::Bf16)).get()
    }

    /// Seconds of the all-reduces of a token at the links' datasheet bandwidth.
    fn wire_s(&self) -> f64 {
        let tp = f64::from(self.tensor_degree());
        let bytes = real(2 * self.model.n_layers * self.model.hidden * WIDE) * (tp - 1.0) / tp;
        let bandwidth = self.gpu.intra_node_bandwidth.get();
        // Groups send each token to its experts and back.
        let routed =
            if self.attention_groups > 1 { self.layers()[1] * real(2 * self.model.hidden * WIDE) } else { 0.0 };
        (bytes + routed) / bandwidth
    }

    /// Keys and values of all layers, with a window or not: what the laws were fitted with.
    fn kv_bytes_per_token(&self) -> f64 {
        real(self.model.n_layers * kv_elements_per_layer(self.model, self.tensor_degree()) * WIDE)
    }

    /// Terms of a decoding iteration, in the order of `STEP`.
    #[must_use]
    pub fn step(&self) -> [f64; 9] {
        let (b, bandwidth) = (self.sequences(), self.gpu.memory_bandwidth.get());
        let context = real(self.prompt) + real(self.output) / 2.0;
        let [dense, routed] = self.layers();
        [
            1.0,
            dense + routed,
            routed,
            2.0 * (dense + routed) * libm::log2(f64::from(self.gpus)),
            self.weight_bytes(self.touched()) / bandwidth,
            b * context * self.kv_bytes_per_token() / bandwidth,
            b * self.wire_s(),
            real(self.concurrency),
            b * (self.multiply_s() + context * self.pair_s(true)),
        ]
    }

    /// Terms of a prompt, in the order of `PROMPT`.
    #[must_use]
    pub fn prompt_terms(&self) -> [f64; 4] {
        let n = real(self.prompt);
        [n * self.multiply_s(), n * n / 2.0 * self.pair_s(false), n * self.wire_s(), n]
    }

    /// Share of a token's time for which the other sequences' prompts stall it, per second of a prompt.
    #[must_use]
    pub fn stalls(&self) -> f64 {
        (self.sequences() - 1.0).max(0.0) / real(self.output)
    }

    /// Sequences of full length that memory holds beside the weights.
    #[must_use]
    pub fn sequences_held(&self) -> f64 {
        let weights = self.weight_bytes(1.0)
            + real(self.model.vocab * self.model.hidden * WIDE) / f64::from(self.tensor_degree());
        let room = self.gpu.memory.as_f64() * MEMORY_USED - weights - RESERVED_BYTES;
        let per_sequence = real(self.prompt + self.output) * self.kv_bytes_per_token();
        (room / per_sequence).max(0.0) * f64::from(self.attention_groups)
    }

    /// Why no law can hold here, if that is so.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        let tp = u64::from(self.tensor_degree());
        if !self.gpus.is_multiple_of(self.attention_groups) || !self.model.n_heads.is_multiple_of(tp) {
            return Some(format!(
                "{} GPUs in {} attention groups do not divide the {} heads of `{}`",
                self.gpus, self.attention_groups, self.model.n_heads, self.model.name
            ));
        }
        let held = self.sequences_held();
        if held < real(self.concurrency) {
            let (n, prompt, output) = (self.concurrency, self.prompt, self.output);
            return Some(format!(
                "memory of {} `{}` holds {held:.0} sequences of {prompt} + {output} tokens, and {n} are in flight; more GPUs or fewer \
                 requests at once would do",
                self.gpus, self.gpu.name
            ));
        }
        None
    }
}

/// Coefficients of one framework for one kind of model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Law {
    /// Engine, for example `vllm`.
    pub framework: String,
    /// Whether for mixtures of experts.
    pub experts: bool,
    /// Fitted models.
    pub models: Vec<String>,
    /// Fitted settings: least and most of GPUs, prompt, output and concurrency.
    pub hull: Hull,
    /// An iteration, in the order of `STEP`.
    pub step: [f64; 9],
    /// A prompt that stalls an iteration, in the order of `PROMPT`.
    pub stall: [f64; 4],
    /// First token: fixed seconds, seconds per layer, iterations that a prompt waits.
    pub first: [f64; 3],
    /// A prompt by itself, in the order of `PROMPT`.
    pub alone: [f64; 4],
    /// Each prompt that came with it.
    pub queued: [f64; 4],
    /// Error of TPOT on settings that the fit did not see.
    pub tpot: Residuals,
    /// Error of TTFT on them.
    pub ttft: Residuals,
    /// Errors of TTFT and TPOT on models that the fit did not see; `None` with one model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_models: Option<[Residuals; 2]>,
}

/// Least and most of what was fitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hull {
    /// GPUs.
    pub gpus: [u64; 2],
    /// Tokens of a prompt.
    pub prompt: [u64; 2],
    /// Tokens of an answer.
    pub output: [u64; 2],
    /// Requests in flight.
    pub concurrency: [u64; 2],
}

/// The file of coefficients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Laws {
    /// `SCHEMA`.
    pub schema: String,
    /// Where the runs come from.
    pub source: String,
    /// When it was fitted.
    pub date: String,
    /// GPUs of the catalogue that were fitted, together.
    pub gpus: Vec<String>,
    /// One per framework and kind of model.
    pub law: Vec<Law>,
}

/// Figures by key, and intervals by key.
pub type Figures = (BTreeMap<String, f64>, BTreeMap<String, [f64; 2]>);

/// A mean latency with its interval, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Expected.
    pub mean: f64,
    /// Low and high end of the 90 % interval of held-out settings.
    pub interval: [f64; 2],
}

/// What clients see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Mean time to first token.
    pub ttft: Latency,
    /// Mean time per output token.
    pub tpot: Latency,
    /// What lies outside the fitted settings, if anything.
    pub outside: Option<&'static str>,
}

impl Steady {
    /// Figures of so many replicas, each at this setting, and the intervals of those that have one, by their contract keys.
    #[must_use]
    pub fn figures(&self, setting: &Setting<'_>, n_replicas: u32) -> Figures {
        let (output, concurrency) = (real(setting.output), real(setting.concurrency));
        let e2e_s = self.ttft.mean + (output - 1.0) * self.tpot.mean;
        let requests_per_s = f64::from(n_replicas) * concurrency / e2e_s;
        let figures = [
            ("ttft_s.mean", self.ttft.mean),
            ("tpot_s.mean", self.tpot.mean),
            ("e2e_s.mean", e2e_s),
            ("requests_per_s", requests_per_s),
            ("output_tokens_per_s", requests_per_s * output),
            ("output_tokens_per_s_per_gpu", requests_per_s * output / f64::from(n_replicas * setting.gpus)),
            ("output_tokens_per_s_per_user", 1.0 / self.tpot.mean),
            ("sequences_held", setting.sequences_held().floor()),
        ];
        let intervals = [("ttft_s.mean", self.ttft.interval), ("tpot_s.mean", self.tpot.interval)];
        (
            figures.map(|(key, value)| (key.to_owned(), value)).into(),
            intervals.map(|(key, ends)| (key.to_owned(), ends)).into(),
        )
    }
}

fn dot(coefficients: &[f64], terms: &[f64]) -> f64 {
    coefficients.iter().zip(terms).map(|(c, x)| c * x).sum()
}

impl Hull {
    /// What of a setting lies outside.
    fn outside(&self, setting: &Setting<'_>) -> Option<&'static str> {
        let beyond = |[least, most]: [u64; 2], at: u64| at < least || at > most;
        [
            ("GPUs", beyond(self.gpus, setting.gpus.into())),
            ("prompt tokens", beyond(self.prompt, setting.prompt)),
            ("output tokens", beyond(self.output, setting.output)),
            ("concurrency", beyond(self.concurrency, setting.concurrency)),
        ]
        .into_iter()
        .find(|(_, is_outside)| *is_outside)
        .map(|(name, _)| name)
    }
}

impl Law {
    /// Mean seconds per output token.
    #[must_use]
    pub fn tpot_s(&self, setting: &Setting<'_>) -> f64 {
        dot(&self.step, &setting.step()) + setting.stalls() * dot(&self.stall, &setting.prompt_terms())
    }

    /// Terms of the first token, in the order of `first`, `alone` and `queued`.
    #[must_use]
    pub fn first_terms(setting: &Setting<'_>, tpot_s: f64) -> [f64; 11] {
        let (p, b) = (setting.prompt_terms(), setting.sequences());
        let [dense, routed] = setting.layers();
        [1.0, dense + routed, tpot_s, p[0], p[1], p[2], p[3], b * p[0], b * p[1], b * p[2], b * p[3]]
    }

    /// Mean seconds to the first token.
    #[must_use]
    pub fn ttft_s(&self, setting: &Setting<'_>) -> f64 {
        let coefficients = [self.first.as_slice(), &self.alone, &self.queued].concat();
        dot(&coefficients, &Self::first_terms(setting, self.tpot_s(setting)))
    }

    /// Both latencies with their intervals.
    #[must_use]
    pub fn steady(&self, setting: &Setting<'_>) -> Steady {
        let is_known = self.models.contains(&setting.model.name);
        let outside = if is_known { self.hull.outside(setting) } else { Some("model") };
        let [ttft, tpot] = match &self.other_models {
            Some([ttft, tpot]) if !is_known => [ttft, tpot],
            _ => [&self.ttft, &self.tpot],
        };
        let is_beyond = self.hull.outside(setting).is_some() || (!is_known && self.other_models.is_none());
        let widening = if is_beyond { OUTSIDE_WIDENING } else { 1.0 };
        let latency = |mean: f64, residuals: &Residuals| Latency {
            mean,
            interval: [mean * residuals.low / widening, mean * residuals.high * widening],
        };
        let (ttft, tpot) = (latency(self.ttft_s(setting), ttft), latency(self.tpot_s(setting), tpot));
        Steady { ttft, tpot, outside }
    }
}

impl Laws {
    /// Reads a file of coefficients.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Unusable> {
        let laws: Self =
            toml::from_str(text).map_err(|error| Unusable::Syntax { line: 1, message: error.to_string() })?;
        if laws.schema != SCHEMA {
            return Err(Unusable::Schema { found: laws.schema, expected: SCHEMA });
        }
        let all =
            laws.law.iter().flat_map(|law| [&law.step[..], &law.stall, &law.first, &law.alone, &law.queued].concat());
        if all.into_iter().any(|value| !value.is_finite() || value < 0.0) {
            return Err(Unusable::Coefficient);
        }
        Ok(laws)
    }

    /// Frameworks that were fitted, in the file's order.
    #[must_use]
    pub fn frameworks(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.law.iter().map(|law| law.framework.as_str()).collect();
        names.dedup();
        names
    }

    /// Latencies of a setting.
    ///
    /// # Errors
    /// Why there is no answer: another GPU, a framework that was not measured with such a model, too little memory.
    pub fn steady(&self, framework: &str, setting: &Setting<'_>) -> Result<Steady, Refused> {
        if !self.gpus.contains(&setting.gpu.name) {
            let fitted = self.gpus.join(" and ");
            return Err(Refused::infeasible(format!("no runs on `{}`; fitted are {fitted}", setting.gpu.name)));
        }
        let experts = setting.model.experts.is_some();
        let law = self.law.iter().find(|law| law.framework == framework && law.experts == experts);
        let kind = if experts { "mixtures of experts" } else { "dense models" };
        let law = law.ok_or_else(|| Refused::infeasible(format!("no runs of `{framework}` with {kind}")))?;
        setting.refused().map_or_else(|| Ok(law.steady(setting)), |why| Err(Refused::out_of_memory(why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting<'a>(model: &'a Model, gpu: &'a Gpu) -> Setting<'a> {
        Setting {
            model,
            gpu,
            format: Format::Fp8,
            gpus: 2,
            attention_groups: 1,
            prompt: 1000,
            output: 100,
            concurrency: 9,
        }
    }

    #[test]
    fn terms_are_those_of_a_hand_calculation() {
        let model = crate::model::embedded("llama-3-70b").expect("listed");
        let gpu = hw::catalog::gpu("h200-sxm").expect("listed");
        let [_, layers, experts, exchanges, weights, cache, wire, sequences, _] = setting(&model, &gpu).step();
        assert_eq!((layers, experts, exchanges, sequences), (80.0, 0.0, 160.0, 9.0));
        // 80 layers of (8192 · (8192 + 2 · 1024) + 8192² + 3 · 8192 · 28672 + 2 · 8192) bytes and a 16-bit head, over two GPUs.
        let layer = 8192.0 * 10_240.0 + 8192.0 * 8192.0 + 3.0 * 8192.0 * 28_672.0 + 2.0 * 8192.0;
        let bytes = (80.0 * layer + 2.0 * 8192.0 * 128_256.0) / 2.0;
        assert!((weights - bytes / 4.8e12).abs() < 1e-9, "{weights}");
        // Nine sequences of 1050 tokens, four of eight heads of 128, keys and values of two bytes.
        assert!((cache - 9.0 * 1050.0 * 80.0 * 2.0 * 4.0 * 128.0 * 2.0 / 4.8e12).abs() < 1e-9, "{cache}");
        // A ring of two moves half of twice 80 times 8192 times two bytes.
        assert!((wire - 9.0 * 80.0 * 8192.0 * 2.0 / 450e9).abs() < 1e-9, "{wire}");
    }

    #[test]
    fn a_batch_touches_few_experts_when_small_and_all_when_large() {
        let model = crate::model::embedded("deepseek-v3").expect("listed");
        let gpu = hw::catalog::gpu("h200-sxm").expect("listed");
        let touched = |concurrency| Setting { concurrency, ..setting(&model, &gpu) }.touched();
        assert!((touched(1) - 8.0 / 256.0).abs() < 1e-12);
        assert!(touched(1000) > 0.999_999);
    }

    #[test]
    fn what_memory_cannot_hold_is_refused_with_figures() {
        let model = crate::model::embedded("llama-3-70b").expect("listed");
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let one = Setting { gpus: 1, concurrency: 512, ..setting(&model, &gpu) };
        let why = one.refused().expect("70 GB of weights on 80 GiB");
        assert!(why.contains("512 are in flight"), "{why}");
        assert_eq!(Setting { gpus: 8, concurrency: 4, ..one }.refused(), None);
    }
}
