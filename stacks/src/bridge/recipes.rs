//! What recipes of Megatron Bridge set by themselves, as overrides in front of those of the user.
//!
//! Recipes that are in the table have their own values. Of others those are taken that recipes for pretraining share: `_pretrain_common` of
//! `megatron/bridge/recipes/common.py`, and the loss of `models/gpt_provider.py`. Of 109 recipes for pretraining 105 shard the optimizer's states,
//! 75 reduce gradients and 71 gather parameters behind computation. Of 58 with tensor ranks 38 share sequences over them.

use std::sync::LazyLock;

use super::precision::KEY;
use crate::flags::rows;

/// Recipes by their names, with the checkpoint that has the model's shape, and overrides that say what they set.
static RECIPES: LazyLock<Vec<[&str; 3]>> = LazyLock::new(|| rows(include_str!("../../tables/bridge_recipes.tsv")));
/// Where the table is from.
const SOURCE: &str = "NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b";
/// What recipes for pretraining share. An export says it where a plan is otherwise.
pub(super) const SHARED: [&str; 5] = [
    "ddp.use_distributed_optimizer=true",
    "ddp.overlap_grad_reduce=true",
    "ddp.overlap_param_gather=true",
    "model.sequence_parallel=true",
    "model.cross_entropy_loss_fusion=true",
];
/// What every recipe sets its own way, with what is taken where it is not known.
const OWN: [(&str, &str); 6] = [
    ("model.tensor_model_parallel_size", "1"),
    ("model.pipeline_model_parallel_size", "1"),
    ("model.context_parallel_size", "1"),
    ("model.recompute_granularity", "none"),
    ("train.micro_batch_size", "1"),
    ("train.global_batch_size", "a micro-batch for each replica"),
];
/// Keys of other releases and other sections that say the same.
const ALIKE: [(&str, &str); 3] = [
    ("dataset.sequence_length", "dataset.seq_length"),
    ("model.seq_length", "dataset.seq_length"),
    ("model.cuda_graph_modules", "model.cuda_graph_scope"),
];
/// The layout of a recipe is built for its own pipeline (`sync_model_pipeline_layout` of `scripts/training/recipe_runner.py`).
const LAYOUT: &str = "model.pipeline_model_parallel_layout";
const PIPELINE: [&str; 2] = ["model.pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size"];
/// Override that turns a recipe's own overlap of communication off, where its value is null.
pub(super) const OVERLAP: &str = "comm_overlap";
/// What a recipe then still has, for its `ddp` says so too (`recipes/common.py`).
const BESIDE_OVERLAP: [(&str, &str); 2] = [
    ("comm_overlap.overlap_grad_reduce=true", "ddp.overlap_grad_reduce=true"),
    ("comm_overlap.overlap_param_gather=true", "ddp.overlap_param_gather=true"),
];
/// What stands behind the model in a recipe's name. Those that train on from a checkpoint share less.
const KINDS: [&str; 4] = ["_pretrain", "_sft", "_peft", "_finetune"];

/// The key of an override, by its usual name.
pub(super) fn key(word: &str) -> &str {
    let key = word.trim_start_matches('+').split('=').next().unwrap_or(word);
    ALIKE.iter().find(|(other, _)| *other == key).map_or(key, |(_, usual)| usual)
}

/// Models whose recipes have other names than their checkpoints (`recipes/nemotronh`).
const STEMS: [(&str, &str); 3] = [
    ("nemotron_3_nano", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    ("nemotron_3_super", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"),
    ("nemotron_3_ultra", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"),
];

/// The checkpoint of a model that recipes call so.
fn checkpoint(stem: String) -> String {
    let known = STEMS.iter().find(|(name, _)| *name == stem);
    known.map_or(stem, |(_, path)| (*path).to_owned())
}

/// What is taken of a recipe, and what is said of it.
pub(super) struct Taken {
    /// Its model.
    pub(super) model: Option<String>,
    pub(super) words: Vec<&'static str>,
    /// Nothing, where the user states all of it.
    pub(super) warning: Option<(String, String)>,
}

/// Whether an override turns a recipe's own overlap of communication off.
pub(super) fn is_without_overlap(text: &str) -> bool {
    let value = text.trim_start_matches('+').strip_prefix(OVERLAP).and_then(|rest| rest.strip_prefix('='));
    value.is_some_and(|value| matches!(value.to_lowercase().as_str(), "null" | "none"))
}

/// A word of a recipe, where its own overlap is off: nothing, or what `ddp` says.
fn without_overlap(word: &'static str) -> Option<&'static str> {
    match BESIDE_OVERLAP.iter().find(|(known, _)| *known == word) {
        Some((_, beside)) => Some(beside),
        None => (!word.starts_with("comm_overlap.")).then_some(word),
    }
}

/// What a recipe sets that the overrides of a user, known by their keys, do not. `is_off` where its own overlap of communication is off.
pub(super) fn taken(recipe: Option<&str>, stated: &[&str], is_off: bool) -> Taken {
    let known = RECIPES.iter().find(|[names, ..]| names.split(' ').any(|name| Some(name) == recipe));
    let is_other = recipe.is_some_and(|name| KINDS[1..].iter().any(|kind| name.contains(kind)));
    let is_layout_stale = PIPELINE.iter().any(|key| stated.contains(key));
    let all: Vec<&'static str> = match known {
        Some([.., words]) => words.split(' ').filter(|word| key(word) != LAYOUT || !is_layout_stale).collect(),
        None if is_other => Vec::new(),
        None => SHARED.to_vec(),
    };
    // Other names begin with that of their model.
    let first =
        |name: &str| KINDS.iter().find_map(|kind| name.split_once(kind)).map_or(name, |(first, _)| first).to_owned();
    let model = known.map(|[_, path, _]| (*path).to_owned()).or_else(|| recipe.map(first).map(checkpoint));
    let all = all.into_iter().filter_map(|word| if is_off { without_overlap(word) } else { Some(word) });
    // Another mixed precision has fields of its own.
    let is_replaced =
        |word: &str| stated.contains(&KEY) && word.strip_prefix(KEY).is_some_and(|own| own.starts_with('.'));
    let words: Vec<&str> = all.filter(|word| !stated.contains(&key(word)) && !is_replaced(word)).collect();
    let mut list: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let warning = if let Some(name) = recipe.filter(|_| known.is_some()) {
        let help = format!("they are those of {SOURCE}: write what your release has otherwise behind the recipe");
        (format!("the recipe `{name}` gives {}", list.join(", ")), help)
    } else {
        let open = |key: &str| !stated.contains(&key);
        if is_other {
            list.extend(SHARED.iter().map(|word| key(word)).filter(|key| open(key)).map(|key| format!("{key}=false")));
        }
        let own = OWN.iter().filter(|(key, _)| recipe.is_some() && open(key));
        list.extend(own.map(|(key, value)| format!("{key}={value}")));
        let whose =
            recipe.map_or_else(|| "no recipe is named".to_owned(), |name| format!("the recipe `{name}` is not known"));
        let help = "write behind the recipe what it has otherwise: switches, degrees, batch, recompute";
        (format!("{whose}: taken are {}", list.join(", ")), help.to_owned())
    };
    Taken { model, words, warning: (!list.is_empty()).then_some(warning) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::of_checkpoint;

    #[test]
    fn recipes_of_the_table_name_models_of_the_catalogue_and_set_each_key_once() {
        assert!(
            include_str!("../../tables/bridge_recipes.tsv")
                .contains(&format!("@ {}", SOURCE.split(" @ ").last().unwrap()))
        );
        assert!(STEMS.iter().all(|(_, path)| of_checkpoint(path).is_some()));
        assert!(RECIPES.len() > 20, "{} recipes", RECIPES.len());
        for [names, path, words] in RECIPES.iter() {
            assert!(of_checkpoint(path).is_some(), "{names}: {path}");
            let mut keys: Vec<&str> = words.split(' ').map(key).collect();
            let n = keys.len();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), n, "{names}");
        }
    }
}
