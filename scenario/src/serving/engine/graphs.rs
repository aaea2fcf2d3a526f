//! Graphs that an engine captures: what a section says of them, over the engine's own. Units: sequences of a batch that only decodes, tokens of an iteration with
//! prompts.

use hw::Gpu;
use input::reader::Section;
use serve::engine_preset::{EnginePreset, GraphRule};

use super::EngineSection;

/// Largest graphs, where they are not the engine's own; 0 captures none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskedGraphs {
    /// Of batches that only decode.
    batch: Option<u32>,
    /// Of iterations with prompts.
    prompt: Option<u32>,
}

/// `graph_max` and `prompt_graph_max`.
pub(super) fn graphs(section: &mut Section<'_>) -> AskedGraphs {
    AskedGraphs {
        batch: section.some_count("graph_max", 0..=65_536),
        prompt: section.some_count("prompt_graph_max", 0..=1 << 20),
    }
}

impl EngineSection {
    /// Largest batch that a tensor group captures: what is written, or the preset's.
    pub(super) fn graph_max(&self, gpu: &Gpu, tensor_degree: u32) -> u32 {
        let of_preset = |preset: &EnginePreset| preset.sizes_on(gpu).graph_max[usize::from(tensor_degree >= 4)];
        self.graphs.batch.or_else(|| self.preset.map(of_preset)).unwrap_or(0)
    }

    /// Batches that a tensor group has captured where an iteration has at most so many sequences and tokens, and the largest; every batch as it is where
    /// nobody says so.
    pub fn captured(&self, gpu: &Gpu, tensor_degree: u32, largest: (u32, u32)) -> (Vec<u32>, u32) {
        if self.graphs.batch.is_none() && self.preset.is_none() {
            return (Vec::new(), u32::MAX);
        }
        let rule = self.preset.map_or(GraphRule::Vllm, |preset| preset.graphs);
        let most = self.graph_max(gpu, tensor_degree).min(rule.most(largest, self.graphs.batch.is_some()));
        rule.captured(most)
    }

    /// Most tokens of a captured iteration with prompts: what is written, or those of the engine.
    pub(in crate::serving) fn prompt_graph_tokens(&self, of_engine: u32) -> u32 {
        self.graphs.prompt.unwrap_or(of_engine)
    }
}
