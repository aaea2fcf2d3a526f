//! `graph_max`, `graph_sizes` and `graph_padding`: batches that an engine captures as CUDA graphs, in sequences. `prompt_graph_max`: the largest iteration with
//! prompts, in tokens.

use hw::Gpu;
use serve::engine_preset::{EnginePreset, GraphRule};

use input::diagnostic::Code;
use input::reader::{Section, counts};

/// Largest batch that can be captured.
const MOST: u32 = 65_536;

/// What is written of captured batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graphs {
    /// The largest; 0 captures none.
    most: Option<u32>,
    /// All of them.
    sizes: Vec<u32>,
    /// Whether a batch of another size is padded.
    padding: Option<bool>,
    /// Most tokens of an iteration with prompts; 0 captures none.
    pub(super) prompt: Option<u32>,
}

impl Graphs {
    /// The engine's rule, or vLLM's.
    pub fn rule(&self, preset: Option<&EnginePreset>) -> GraphRule {
        let rule = preset.map_or(GraphRule::Vllm, |preset| preset.graphs);
        self.padding.and_then(|pads| rule.padding(pads)).unwrap_or(rule)
    }

    /// Largest batch that a tensor group captures: what is written, or the preset's.
    pub fn most(&self, preset: Option<&EnginePreset>, (gpu, tensor_degree): (&Gpu, u32)) -> u32 {
        let of_preset = |preset: &EnginePreset| preset.sizes_on(gpu).graph_max[usize::from(tensor_degree >= 4)];
        let written = self.sizes.last().copied().or(self.most);
        written.or_else(|| preset.map(of_preset)).unwrap_or(0)
    }

    /// Batches that a tensor group has captured where an iteration has at most so many sequences and tokens, and the largest; every batch as it is where
    /// nobody says so.
    pub fn captured(&self, preset: Option<&EnginePreset>, group: (&Gpu, u32), largest: (u32, u32)) -> (Vec<u32>, u32) {
        let is_written = self.most.is_some() || !self.sizes.is_empty();
        if !is_written && preset.is_none() {
            return (Vec::new(), u32::MAX);
        }
        let rule = self.rule(preset);
        let runs = rule.most(largest, is_written);
        if self.sizes.is_empty() {
            return rule.captured(self.most(preset, group), runs);
        }
        rule.captured_of(&self.sizes, runs)
    }
}

/// Reads the keys.
pub fn graphs(section: &mut Section<'_>, preset: Option<&EnginePreset>) -> Graphs {
    let [sizes_at, padding_at] = ["graph_sizes", "graph_padding"].map(|key| section.place(key));
    if sizes_at.is_some() && section.has("graph_max") {
        section.wrong(Code::ExclusiveKeys, sizes_at.flatten(), "`graph_max` and `graph_sizes` exclude each other");
    }
    let most = section.some_count("graph_max", 0..=MOST.into());
    let sizes = counts(section, "graph_sizes", &[], MOST);
    let prompt = section.some_count("prompt_graph_max", 0..=1 << 20);
    let rule = preset.map_or(GraphRule::Vllm, |preset| preset.graphs);
    let pads = section.flag("graph_padding", rule.padding(true) == Some(rule));
    let Some(padding_at) = padding_at else { return Graphs { most, sizes, padding: None, prompt } };
    let captures = if preset.is_some() { most != Some(0) } else { most.unwrap_or(0) > 0 || !sizes.is_empty() };
    if rule.padding(pads).is_none() {
        let what = "`graph_padding = false` beside an engine that pads every batch to a captured size";
        section.refuse(
            Code::ExclusiveKeys,
            padding_at,
            what,
            "leave it out, or name in `graph_sizes` what is captured",
        );
    } else if !captures {
        let help = "it needs captured batches: `graph_sizes`, or `graph_max` above 0";
        section.warn(Code::NoEffect, padding_at, "`engine.graph_padding` changes nothing", help);
    }
    Graphs { most, sizes, padding: Some(pads), prompt }
}
