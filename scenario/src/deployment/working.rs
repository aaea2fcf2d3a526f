//! `[engine]` of `goodput`, and the same keys of a variant: how replicas work, who drafts tokens, adapters, and memory below the GPUs.

use engine::Model;
use planner::deploy::thunderserve::{Beside, Working};
use serve::adapters::Popularity;
use serve::batcher;
use serve::drafter::{Drafts, OwnDrafters};
use serve::replica::batcher::Cut;
use serve::speculation::Speculation;

use crate::serving::AdapterChoice;
use crate::serving::adapters;
use crate::serving::drafts::speculation;
use crate::serving::operation::own_tiers;
use input::diagnostic::Code;
use input::reader::{Place, Reader, Section};

/// Requests that ask for no adapter.
const NOBODY: Popularity = Popularity { count: 0, rank: 0, skew: 0.0, none_ratio: 1.0 };

/// What replicas do, as it was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Engine {
    /// Batches, prefixes and tiers.
    pub working: Working,
    /// Who drafts, and how much is accepted.
    pub drafts: Option<Drafts>,
    /// Room for adapters.
    pub adapters: AdapterChoice,
    /// Where tiers are written, for findings.
    pub tiers_at: Place,
}

/// What requests ask of engines beside tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asks {
    /// Adapters.
    pub adapters: Option<Popularity>,
    /// Whether they share beginnings.
    pub shares: bool,
}

/// Refuses experts on GPUs of their own, with the reason.
pub fn no_ffn(section: &mut Section<'_>) {
    let what = "plans of this kind put all parts of a layer on the same GPUs";
    section.elsewhere("ffn", what, "`kind = \"serving\"` has experts on GPUs of their own, and `tune` varies them");
}

/// What replicas do, where it is said and not as before.
pub fn engine(section: &mut Section<'_>, before: &Engine, seed: u64) -> Engine {
    no_ffn(section);
    let drafts = speculation(section, before.drafts.as_ref());
    let drafts =
        drafts.map(|Drafts { speculation, by }| Drafts { speculation: Speculation { seed, ..speculation }, by });
    let adapters = section.table("adapters").map_or(before.adapters, adapters::adapters);
    let tiers_at = section.place("tiers").flatten();
    let what = "no link of the inventory leads to a store that replicas share";
    let help = "`host_gib` and `disk_gib` are each replica's own; `kind = \"serving\"` has a shared store";
    let tiers = section.table("tiers").map_or(before.working.tiers, |section| own_tiers(section, what, help));
    let working = Working { tiers, ..working(section, before.working) };
    Engine { working, drafts, adapters, tiers_at: tiers_at.or_else(|| before.tiers_at.clone()) }
}

fn working(section: &mut Section<'_>, before: Working) -> Working {
    let names: Vec<&'static str> = batcher::BATCHERS.iter().map(|batcher| batcher.name()).collect();
    let usual = names.iter().position(|name| *name == before.batcher).unwrap_or(0);
    let at = section.word("batcher", usual, &names);
    let is_whole = batcher::BATCHERS[at].cut() == Cut::Never;
    let (tokens_max, place) = section.count("max_tokens", Some(0), 1..=1 << 20);
    if is_whole && tokens_max > 0 {
        let what = format!("`max_tokens` says how prompts are cut, and `{}` reads whole ones", names[at]);
        section.refuse(Code::NoEffect, place, what, "name a batching policy that cuts prompts, for example `vllm-v1`");
    }
    let given = u32::try_from(tokens_max).ok().filter(|tokens| *tokens > 0);
    let tokens_max = if is_whole { None } else { given.or(before.tokens_max) };
    Working {
        batcher: names[at],
        tokens_max,
        prefix_cache: section.flag("prefix_cache", before.prefix_cache),
        ..before
    }
}

impl Engine {
    /// What runs beside a model.
    pub fn beside(&self, model: &Model, asks: Asks) -> Beside {
        let adapters = match self.adapters {
            AdapterChoice::Apart(options) => Some((options.room, options.supply, asks.adapters.unwrap_or(NOBODY))),
            AdapterChoice::Unknown | AdapterChoice::Merged => None,
        };
        Beside::new(model, self.drafts.as_ref(), adapters)
    }

    /// What was assumed and not measured, as sentences.
    pub fn free_parameters(&self) -> Vec<String> {
        self.drafts.as_ref().map_or_else(Vec::new, |drafts| drafts.free_parameters("engine"))
    }

    fn has_tiers(&self) -> bool {
        self.working.tiers.iter().any(|store| store.room.0 > 0)
    }

    /// Finds what does not go together, and what changes nothing.
    pub fn check(&self, reader: &mut Reader<'_>, model: &Model, asks: Asks) {
        let misfits = |drafts: &Drafts| drafts.misfits(model, &OwnDrafters::of(model), 1);
        for (what, help) in self.drafts.as_ref().map_or_else(Vec::new, misfits) {
            reader.refuse(Code::WrongOperation, None, what, help);
        }
        if let Some((what, help)) = self.adapters_misfit(model, asks) {
            reader.refuse(Code::WrongAdapters, None, what, help);
        }
        if self.adapters != AdapterChoice::Unknown && asks.adapters.is_none() {
            let what = "no request asks for an adapter; slots take memory alone";
            reader.warn(Code::NoEffect, None, what, "`adapters = { count = 40, rank = 16 }` in `[requests]`");
        }
        if self.has_tiers() && !self.working.prefix_cache {
            let what = "`tiers` keep prefixes, and `prefix_cache` is off";
            let help = "`prefix_cache = true`, or no `tiers`";
            reader.refuse(Code::WrongOperation, self.tiers_at.clone(), what, help);
        }
        if self.has_tiers() && !asks.shares {
            let what = "`tiers` keep prefixes, and requests share none";
            let help = "`shared_prefixes` and `shared_prefix_tokens` in `[requests]`";
            reader.warn(Code::NoEffect, self.tiers_at.clone(), what, help);
        }
    }

    fn adapters_misfit(&self, model: &Model, asks: Asks) -> Option<(String, &'static str)> {
        match (self.adapters, asks.adapters) {
            (AdapterChoice::Unknown, Some(_)) => Some((adapters::NO_ROOM.0.to_owned(), adapters::NO_ROOM.1)),
            (AdapterChoice::Apart(_), _) if self.working.batcher == "trtllm" => {
                let what = "adapters by the rules of TensorRT-LLM".to_owned();
                Some((what, "TensorRT-LLM has a cache of adapters of its own: `batcher = \"vllm-v1\"` or another"))
            }
            (AdapterChoice::Apart(options), asked) => {
                let of_load = asked.and_then(|asked| adapters::load_misfit(&options, &[asked]));
                let of_model = || adapters::model_misfit(model, options.room.modules);
                of_load.or_else(|| of_model().map(|(what, help)| (format!("adapters {what}"), help)))
            }
            _ => None,
        }
    }
}
