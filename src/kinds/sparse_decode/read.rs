//! Scenarios of `kind = "sparse-decode"`: sequences that decode together with dense or sparse weights, on some of a node's GPUs.

use std::path::Path;

use engine::Model;
use engine::cost::profile::Profile;
use hw::{Bytes, Cluster};
use toml_span::value::ValueInner;

use crate::diagnostic::{Code, Finding, Source};
use crate::scenario::reader::{Reader, Section, place_of};
use crate::scenario::run_list::{RunList, run_list};
use crate::scenario::{Head, Overrides, cluster, cost, expect, model};

const SECTIONS: [&str; 7] = ["model", "cluster", "decode", "engine", "policies", "cost", "expect"];

/// Which weights are sparse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// None.
    Dense,
    /// All products of the layers.
    Sparse,
    /// Each product as is best.
    FlashLlm,
}

/// Policies with what they do.
pub const POLICIES: [(&str, Policy, &str); 3] = [
    (
        "dense",
        Policy::Dense,
        "decode with dense weights, on the number of GPUs and with the batch that give most tokens per GPU",
    ),
    ("sparse", Policy::Sparse, "decode with sparse weights in all layers, GPUs and batch as is best"),
    ("flash-llm", Policy::FlashLlm, "decode with each product dense or sparse, GPUs and batch as is best"),
];

/// One way of decoding that a scenario compares.
#[derive(Clone, Debug)]
pub struct DecodeChoice {
    /// Which weights are sparse.
    pub policy: Policy,
    /// GPUs that may share the model.
    pub degrees: Vec<u32>,
    /// Sequences that may decode together.
    pub batches: Vec<u32>,
    /// Share of weights that are zero.
    pub sparsity: f64,
}

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct SparseDecode {
    /// Whose it is.
    pub head: Head,
    /// Architecture.
    pub model: Model,
    /// Machine.
    pub cluster: Cluster,
    /// Memory of a GPU that the engine may use.
    pub room: Bytes,
    /// Tokens of a prompt.
    pub prompt_tokens: u64,
    /// Tokens that each sequence generates.
    pub output_tokens: u64,
    /// Seconds per layer, and per layer and sequence, beside the modelled operations.
    pub other_s: [f64; 2],
    /// Ways, in order.
    pub choices: Vec<(String, DecodeChoice)>,
    /// Measured profile; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Share of the peak that matrix products hold under sustained load.
    pub sustained_flops_ratio: f64,
    /// Parameters that were fitted and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<SparseDecode> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
    let model = model::model(reader.section("model"), folder);
    let cluster = cluster::cluster(reader.section("cluster"));
    let (base, prompt_tokens, output_tokens) = decode(reader.section("decode"));
    let (memory_ratio, other_us) = engine(reader.section("engine"));
    let run = policies(reader.section("policies"), &base);
    let gpu = cluster.as_ref().map(|(cluster, _)| cluster.gpu.name.as_str());
    let cost = cost::of_engine(reader.section("cost"), folder, gpu);
    let expectations = expect::read(reader.section("expect"));
    let (model, (cluster, reserved)) = model.zip(cluster)?;
    cross_checks(reader, &model, &cluster, &run);
    let room = Bytes::from_f64(cluster.gpu.memory.as_f64() * memory_ratio).0.saturating_sub(reserved.0);
    let given = [("engine.other_us_per_layer", other_us[0]), ("engine.other_us_per_layer_and_sequence", other_us[1])];
    let words = |(key, value): (&str, f64)| format!("`{key}` = {value}: fitted or assumed, not measured");
    let fitted = "sparse products: four constants fitted to bars read off a figure for one A100 (Flash-LLM)".to_owned();
    let free = given.into_iter().filter(|(_, value)| *value > 0.0).map(words);
    Some(SparseDecode {
        head: Head { baseline: run.baseline, expectations, ..head },
        model,
        cluster,
        room: Bytes(room),
        prompt_tokens,
        output_tokens,
        other_s: other_us.map(|us| us / 1e6),
        choices: run.choices,
        profile: cost.profile,
        sustained_flops_ratio: cost.sustained_flops_ratio,
        free_parameters: free.chain([fitted]).collect(),
    })
}

/// A list of whole numbers from 1 to `most`, or the default.
pub fn counts(section: &mut Section<'_>, key: &'static str, default: &[u32], most: u32) -> Vec<u32> {
    let Some((value, at)) = section.take(key) else { return default.to_vec() };
    let allowed = format!("allowed is a list of whole numbers from 1 to {most}");
    let ValueInner::Array(items) = value else {
        section.find(Finding::error(Code::WrongType, at, format!("`{key}` is not a list")).help(allowed));
        return default.to_vec();
    };
    let mut found = Vec::with_capacity(items.len());
    for item in &items {
        let number = item.as_integer().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=most).contains(n));
        match number {
            Some(number) => found.push(number),
            None => {
                let what = format!("`{key}` holds something out of range");
                section.find(Finding::error(Code::OutOfRange, place_of(item), what).help(allowed.clone()));
            }
        }
    }
    if items.is_empty() {
        section.find(Finding::error(Code::OutOfRange, at, format!("`{key}` is empty")).help(allowed));
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn decode(mut section: Section<'_>) -> (DecodeChoice, u64, u64) {
    let prompt_tokens = section.count("prompt_tokens", None, 1..=1_000_000).0;
    let output_tokens = section.count("output_tokens", None, 1..=1_000_000).0;
    let choice = DecodeChoice {
        policy: Policy::Dense,
        degrees: counts(&mut section, "gpus", &[1, 2, 4, 8], 64),
        batches: counts(&mut section, "batches", &[8, 16, 32, 64], 4096),
        sparsity: section.number("sparsity", 0.8, 0.0..=1.0),
    };
    section.finish();
    (choice, prompt_tokens, output_tokens)
}

/// Share of memory that may be used, and microseconds per layer and per layer and sequence.
fn engine(mut section: Section<'_>) -> (f64, [f64; 2]) {
    let memory_ratio = section.number("memory_ratio", 1.0, 0.01..=1.0);
    let per_layer = section.number("other_us_per_layer", 0.0, 0.0..=1e6);
    let per_sequence = section.number("other_us_per_layer_and_sequence", 0.0, 0.0..=1e6);
    section.finish();
    (memory_ratio, [per_layer, per_sequence])
}

fn policies(mut section: Section<'_>, base: &DecodeChoice) -> RunList<DecodeChoice> {
    let mut variants = Vec::new();
    section.each_table("variant", &mut |table| variants.extend(variant(table, base)));
    let plain = POLICIES.iter().map(|(name, policy, _)| (*name, DecodeChoice { policy: *policy, ..base.clone() }));
    let run = run_list(&mut section, plain.collect(), variants);
    section.finish();
    run
}

/// `[[policies.variant]]`: a policy under a name of its own, on GPUs and with batches of its own.
fn variant(mut section: Section<'_>, base: &DecodeChoice) -> Option<(String, DecodeChoice)> {
    let name = section.name();
    let policy = POLICIES[section.word("policy", 0, &POLICIES.map(|(name, ..)| name))].1;
    let choice = DecodeChoice {
        policy,
        degrees: counts(&mut section, "gpus", &base.degrees, 64),
        batches: counts(&mut section, "batches", &base.batches, 4096),
        sparsity: section.number("sparsity", base.sparsity, 0.0..=1.0),
    };
    section.finish();
    name.map(|name| (name, choice))
}

/// GPUs of a node, whole heads, no experts.
fn cross_checks(reader: &mut Reader<'_>, model: &Model, cluster: &Cluster, run: &RunList<DecodeChoice>) {
    if model.experts.is_some() || model.latent.is_some() {
        let what = format!("`{}` has experts or latent attention", model.name);
        reader.find(
            Finding::error(Code::UnsupportedModel, None, what).help("sparse decoding knows dense transformers only"),
        );
    }
    for (name, choice) in &run.choices {
        for &degree in &choice.degrees {
            if degree > cluster.n_gpus() {
                let what = format!("`{name}` may take {degree} GPUs, the cluster has {}", cluster.n_gpus());
                reader.find(Finding::error(Code::WrongGpuCount, None, what).help("lower `decode.gpus`"));
            } else if !model.n_heads.is_multiple_of(u64::from(degree)) {
                let (heads, model) = (model.n_heads, &model.name);
                let what = format!("`{name}`: {degree} GPUs do not divide the {heads} heads of `{model}`");
                reader.find(Finding::error(Code::UnevenDegree, None, what));
            }
        }
    }
}
