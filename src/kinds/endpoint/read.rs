//! Scenarios of `kind = "endpoint"`: settings of serving endpoints whose mean latencies are asked in closed form.

use std::path::Path;

use engine::Model;
use hw::Gpu;
use serve::endpoint::{Format, Laws, Setting};

use crate::diagnostic::{Code, Finding, Source};
use crate::scenario::reader::{Reader, Section, unknown};
use crate::scenario::{Head, Overrides, expect};

const SECTIONS: [&str; 2] = ["endpoints", "expect"];

/// One endpoint that a scenario asks about.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Name in results.
    pub name: String,
    /// Engine.
    pub framework: String,
    model: Model,
    gpu: Gpu,
    format: Format,
    gpus: u32,
    attention_groups: u32,
    /// Tokens of prompt and answer, and requests in flight.
    sizes: [u64; 3],
}

impl Endpoint {
    /// What is asked.
    #[must_use]
    pub fn setting(&self) -> Setting<'_> {
        let [prompt, output, concurrency] = self.sizes;
        let (format, gpus, attention_groups) = (self.format, self.gpus, self.attention_groups);
        Setting { model: &self.model, gpu: &self.gpu, format, gpus, attention_groups, prompt, output, concurrency }
    }
}

/// A checked scenario of endpoints.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Whose it is.
    pub head: Head,
    /// Coefficients.
    pub laws: Laws,
    /// Endpoints, in order.
    pub list: Vec<Endpoint>,
}

/// Reads every section.
pub fn read(reader: &mut Reader<'_>, source: &Source, _folder: &Path, overrides: &Overrides) -> Option<Endpoints> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
    let laws = Laws::parse(calibrate::profiles::serving()).expect("the shipped coefficients are held by a test");
    let mut section = reader.section("endpoints");
    let (mut list, mut n_settings) = (Vec::new(), 0);
    section.each_table("setting", &mut |table| {
        n_settings += 1;
        list.extend(endpoint(table, &laws));
    });
    if n_settings == 0 {
        section.missing(
            "setting",
            "one `[[endpoints.setting]]` for each endpoint; `skrull-sim show serving/silicon` has examples",
        );
    }
    let baseline = section.text("baseline");
    section.finish();
    let first = list.first().map_or_else(String::new, |endpoint| endpoint.name.clone());
    let baseline = baseline.map_or(first, |(name, at)| {
        let is_known = list.iter().any(|endpoint| endpoint.name == name);
        if !is_known && list.len() == n_settings {
            let names: Vec<&str> = list.iter().map(|endpoint| endpoint.name.as_str()).collect();
            reader.find(unknown(Code::UnknownBaseline, format!("baseline `{name}` is no setting"), &name, names, at));
        }
        name
    });
    let expectations = expect::read(reader.section("expect"));
    Some(Endpoints { head: Head { baseline, expectations, ..head }, laws, list })
}

fn endpoint(mut section: Section<'_>, laws: &Laws) -> Option<Endpoint> {
    let small = |n: u64| u32::try_from(n).expect("ranges keep counts below 2^32");
    let mut named = |key: &'static str, help: &str| {
        let found = section.text(key);
        if found.is_none() {
            section.missing(key, help);
        }
        found
    };
    let name = named("name", "the name that results show");
    let model_name = named("model", "a shipped model (`skrull-sim list models`)");
    let gpu_name = named("gpu", "a GPU of the catalogue (`skrull-sim list gpus`)");
    let framework = named("framework", "the engine, for example `vllm`");
    let model = model_name.and_then(|(name, at)| {
        let model = engine::model::embedded(&name);
        if model.is_none() {
            section.find(unknown(
                Code::UnknownModel,
                format!("unknown model `{name}`"),
                &name,
                engine::model::embedded_names(),
                at,
            ));
        }
        model
    });
    let gpu = gpu_name.and_then(|(name, at)| {
        let gpu = hw::catalog::gpu(&name);
        if gpu.is_none() {
            section.find(unknown(
                Code::UnknownGpu,
                format!("unknown GPU `{name}`"),
                &name,
                hw::catalog::gpu_names(),
                at,
            ));
        }
        gpu
    });
    let framework = framework.and_then(|(name, at)| {
        if laws.frameworks().contains(&name.as_str()) {
            return Some(name);
        }
        section.find(unknown(Code::UnknownWord, format!("unknown framework `{name}`"), &name, laws.frameworks(), at));
        None
    });
    let format = Format::ALL[section.word("format", 0, &Format::NAMES)];
    let gpus = small(section.count("gpus", Some(1), 1..=8).0);
    let (groups, groups_at) = section.count("attention_groups", Some(1), 1..=8);
    let attention_groups = small(groups);
    if !gpus.is_multiple_of(attention_groups) {
        let what = format!("`attention_groups` = {attention_groups} does not divide `gpus` = {gpus}");
        section.find(Finding::error(Code::OutOfRange, groups_at, what).help("write a power of two up to `gpus`"));
    }
    let mut count = |key: &'static str| section.count(key, None, 1..=10_000_000).0;
    let sizes = ["prompt_tokens", "output_tokens", "concurrency"].map(&mut count);
    section.finish();
    let name = name?.0;
    Some(Endpoint { name, framework: framework?, model: model?, gpu: gpu?, format, gpus, attention_groups, sizes })
}
