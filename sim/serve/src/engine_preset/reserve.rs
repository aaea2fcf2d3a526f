//! Memory that `SGLang` keeps beside weights, keys and values where nobody says its share.
//!
//! Source: `_handle_gpu_memory_settings` of sglang/srt/server_args.py, 0.5.6 to 0.5.18, and sglang/srt/arg_groups/memory_hook.py, 0.5.19 to 0.5.23. What models with
//! images take besides is left out.

use engine::Model;
use hw::Bytes;

use super::{EnginePreset, PromptGraphs, Sizes};
use crate::speculation::DraftKind;
use crate::step_cost::ReplicaConfig;

/// MiB of a graph of prompts of one size, and of all where attention is latent.
const MIB_OF_PROMPT_GRAPH: f64 = 8.0;
const MIB_OF_LATENT_PROMPT_GRAPHS: f64 = 1.5 * 1024.0;

/// Sizes of prompts that are captured: from a number on, up to another one, in steps (`_generate_piecewise_cuda_graph_tokens`, 0.5.10).
const PROMPT_SIZES: [[u32; 3]; 6] =
    [[4, 32, 4], [48, 256, 16], [288, 512, 32], [576, 1024, 64], [1280, 4096, 256], [4608, u32::MAX, 512]];

/// For which batches memory is kept where their graphs are turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnedOff {
    /// For those that would be captured.
    Kept,
    /// For none (`reserve_for_graph_mb`).
    Free,
}

/// What is kept for drafts, GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftReserve {
    /// Of a model of its own.
    pub model: u32,
    /// Of a head, or of the served model's own layer.
    pub layers: u32,
}

impl DraftReserve {
    /// Nothing: an engine without a reserve, or one that measures what drafts take.
    pub const NONE: Self = Self { model: 0, layers: 0 };

    /// GiB of what drafts; words of the text take none.
    const fn gib(self, drafts: Option<DraftKind>) -> u32 {
        match drafts {
            None => 0,
            Some(DraftKind::Model) => self.model,
            Some(DraftKind::Own | DraftKind::Head(_)) => self.layers,
        }
    }
}

impl EnginePreset {
    /// The reserve of a deployment whose ranks of attention share chunks of these sizes: 512 MiB, 1.5 MiB per token of a chunk, 2 MiB per sequence of the largest
    /// captured batch, 128 MiB per GPU, what ranks and graphs of prompts take, 10 GiB at least on devices above 60 GiB, and drafts above that. Graphs of prompts have
    /// at most so many tokens. Ranks take their part for batches that would be captured too.
    pub fn reserve(&self, sizes: &Sizes, deployment: &ReplicaConfig<'_>, prompt_graph_max: u32) -> Bytes {
        let (gpu, ranks) = (&deployment.cluster.gpu, deployment.lanes().ranks);
        let width = usize::from(deployment.tensor_degree >= 4);
        let captured = sizes.graph_max[width];
        let usual_max = if captured == 0 { self.sizes_on(gpu).graph_max[width] } else { captured };
        let graph_max = if self.turned_off == TurnedOff::Kept { usual_max } else { captured };
        let chunk = 1.5 * f64::from(sizes.tokens_max.max(2048));
        let usual = 512.0 + chunk + 2.0 * f64::from(graph_max) + 128.0 * f64::from(deployment.n_gpus());
        let of_prompts = self.of_prompt_graphs(sizes.tokens_max.min(prompt_graph_max), deployment.model);
        let mib = usual + of_ranks(usual_max.into(), ranks) + of_prompts;
        let least = if gpu.memory > Bytes::from_gib(60.0) { 10.0 } else { 0.0 };
        let drafts = self.with_drafts.reserve.gib(deployment.draft.map(|(_, kind)| kind));
        Bytes::from_gib(f64::max(mib / 1024.0, least) + f64::from(drafts))
    }

    /// MiB of the graphs of prompts of at most so many tokens, where they are captured.
    fn of_prompt_graphs(&self, tokens_max: u32, model: &Model) -> f64 {
        match (self.prompt_graphs, model.latent) {
            (PromptGraphs::Sglang, Some(_)) if tokens_max > 0 => MIB_OF_LATENT_PROMPT_GRAPHS,
            (PromptGraphs::Sglang, None) => MIB_OF_PROMPT_GRAPH * f64::from(prompt_sizes(tokens_max)),
            _ => 0.0,
        }
    }
}

/// MiB that ranks of data-parallel attention take besides: 3 for each sequence of a captured batch on each of them, and half as much again above 300 sequences.
fn of_ranks(graph_max: f64, ranks: u32) -> f64 {
    let each = if graph_max > 300.0 { 4.5 } else { 3.0 };
    if ranks > 1 { each * graph_max * f64::from(ranks) } else { 0.0 }
}

/// How many sizes of prompts of at most so many tokens are captured.
fn prompt_sizes(tokens_max: u32) -> u32 {
    let of_range = |[from, to, step]: [u32; 3]| {
        let last = to.min(tokens_max);
        if last < from { 0 } else { (last - from) / step + 1 }
    };
    PROMPT_SIZES.into_iter().map(of_range).sum()
}

#[cfg(test)]
mod tests {
    use engine::model::DraftHead;

    use super::super::{Version, named};
    use super::*;

    /// GiB of what a version keeps of a card for a model on eight GPUs.
    fn gib(version: &str, card: &str, name: &str, change: fn(&mut ReplicaConfig<'_>)) -> f64 {
        captured(version, (card, name), change, |sizes| (sizes, u32::MAX))
    }

    /// The same where other graphs are captured.
    fn captured(
        version: &str,
        (card, name): (&str, &str),
        change: fn(&mut ReplicaConfig<'_>),
        graphs: fn(Sizes) -> (Sizes, u32),
    ) -> f64 {
        let gpu = hw::catalog::gpu(card).expect("listed");
        let (model, cluster) = (engine::model::embedded(name).expect("listed"), hw::catalog::cluster(&gpu, 1, 8));
        let preset = named("sglang", Version::parse(version)).expect("listed");
        let mut config = ReplicaConfig::new(&model, &cluster, 8);
        change(&mut config);
        let (sizes, prompt_graph_max) = graphs(preset.sizes_on(&gpu));
        preset.reserve(&sizes, &config, prompt_graph_max).as_f64() / hw::GIB
    }

    #[test]
    fn it_is_what_the_arguments_of_the_server_say() {
        // H100, chunk of 8192, graphs up to 512: 512 + 12288 + 1024 + 1024 MiB.
        assert_eq!(gib("0.5.9", "h100-sxm", "llama-3-8b", |_| ()), 14.5);
        // From 0.5.10 on 58 graphs of prompts: 8 + 14 + 8 + 8 + 12 + 8 sizes up to 8192.
        assert_eq!(gib("0.5.10", "h100-sxm", "llama-3-8b", |_| ()), 14.5 + 58.0 * 8.0 / 1024.0);
        assert_eq!(gib("0.5.10", "h100-sxm", "deepseek-v3", |_| ()), 16.0);
        // A card below 60 GiB has no least: 512 + 3072 + 160 + 1024 MiB.
        assert_eq!(gib("0.5.9", "rtx-4090", "llama-3-8b", |_| ()), 4768.0 / 1024.0);
        // Eight ranks of attention with graphs up to 256 sequences: 512 + 12288 + 512 + 1024 + 8 · 3 · 256 MiB.
        let ranks = |config: &mut ReplicaConfig<'_>| (config.tensor_degree, config.expert_degree) = (1, 8);
        assert_eq!(gib("0.5.9", "h100-sxm", "deepseek-v3", ranks), 14.0 + 6.0);
    }

    /// `reserve_for_graph_mb` of 0.5.15 and later: graphs that are turned off take nothing, but for what ranks of attention keep.
    #[test]
    fn graphs_that_are_turned_off_take_nothing_from_0_5_15_on() {
        let none = |sizes: Sizes| (sizes.asked(sizes.tokens_max, 0), 0);
        let of = |version, card| captured(version, (card, "llama-3-8b"), |_| (), none) * 1024.0;
        // H100: 512 + 12288 + 1024 MiB, and 2 · 512 of batches up to 0.5.14, which are counted all the same.
        assert_eq!([of("0.5.10", "h100-sxm"), of("0.5.14", "h100-sxm")], [14_848.0; 2]);
        assert_eq!([of("0.5.15", "h100-sxm"), of("0.5.23", "h100-sxm")], [13_824.0; 2]);
        // Prompts alone: 38 sizes up to 1024.
        let prompts = |sizes: Sizes| (sizes.asked(sizes.tokens_max, 0), 1024);
        let of_prompts = captured("0.5.23", ("h100-sxm", "llama-3-8b"), |_| (), prompts) * 1024.0;
        assert_eq!(of_prompts, 13_824.0 + 8.0 * 38.0);
        let ranks = |config: &mut ReplicaConfig<'_>| (config.tensor_degree, config.expert_degree) = (1, 8);
        let of_ranks = captured("0.5.23", ("h100-sxm", "deepseek-v3"), ranks, none) * 1024.0;
        assert_eq!(of_ranks, 13_824.0 + 8.0 * 3.0 * 256.0);
    }

    /// Cards of 24 to 32 GiB have chunks of 4096 tokens and batches up to 160 on eight GPUs from 0.5.20 on: 512 + 6144 + 320 + 1024 MiB, and 50 sizes of prompts.
    #[test]
    fn small_cards_capture_more_from_0_5_20_on() {
        let of = |version| gib(version, "rtx-4090", "llama-3-8b", |_| ()) * 1024.0;
        assert_eq!([of("0.5.19"), of("0.5.20")], [4768.0 + 8.0 * 42.0, 8000.0 + 8.0 * 50.0]);
    }

    #[test]
    fn drafts_have_room_of_their_own_by_version() {
        let model = |config: &mut ReplicaConfig<'_>| config.draft = Some((config.model, DraftKind::Model));
        let head =
            |config: &mut ReplicaConfig<'_>| config.draft = Some((config.model, DraftKind::Head(DraftHead::Eagle3)));
        let of = |version: &str| {
            [model, head].map(|change| {
                gib(version, "h100-sxm", "llama-3-8b", change) - gib(version, "h100-sxm", "llama-3-8b", |_| ())
            })
        };
        assert_eq!(of("0.5.6"), [6.0, 2.0]);
        assert_eq!(of("0.5.10"), [6.0, 4.0]);
        assert_eq!(of("0.5.13"), [6.0, 4.0]);
        assert_eq!(of("0.5.14"), [0.0, 0.0]);
    }
}
