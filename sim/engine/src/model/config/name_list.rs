//! Lists of modules as a `quantization_config` names them.
//!
//! A name without a star means every matrix whose path has its parts in a row: the matrix itself, what it lies in, or its end. That is what
//! huggingface/transformers (`should_convert_module` in `quantizers/quantizers_utils.py`) and vllm-project/vllm (`is_layer_skipped` in
//! `model_executor/layers/quantization/utils/quant_utils.py`) ask of names that checkpoints have.

use std::cell::Cell;
use std::collections::BTreeMap;

use regex_lite::Regex;

use super::modules::Module;
use super::names::Names;
use super::no_format::NoFormat;

/// Parts of names whose modules engines keep whole in any case, or that have no matrix of a layer: tables, heads, norms, routers, gates of shared experts,
/// convolutions, states, an index, encoders, what speaks, and layers that predict.
const OUTSIDE: [&str; 34] = [
    "lm_head",
    "embed",
    "wte",
    "wpe",
    "norm",
    "ln_",
    "router",
    "bias",
    "vision",
    "visual",
    "image",
    "audio",
    "sound",
    "tower",
    "projector",
    "merger",
    "aligner",
    "connector",
    "patch",
    "mtp",
    "eh_proj",
    "conv1d",
    "A_log",
    "x_proj",
    "dt_proj",
    "indexer",
    "rotary",
    "talker",
    "code2wav",
    "token2wav",
    "score",
    "hc_",
    "compressor",
    "per_layer",
];
/// The same as a whole part of a name.
const OUTSIDE_WHOLE: [&str; 5] = ["gate", "shared_expert_gate", "wg", "head", "classifier"];

/// A pattern of module names.
#[derive(Clone, Debug)]
enum Pattern {
    /// Pieces of a name with anything between them.
    Pieces(Vec<String>),
    /// A regular expression from the start of the whole name on (`re.match` of Python, as vllm-project/compressed-tensors asks).
    Expression(Regex),
}

impl Pattern {
    /// Whether it is a whole name, or that of something that it lies in.
    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Pieces(pieces) => {
                let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
                let (first, rest) = pieces.split_first().expect("a split text has a piece");
                let Some(behind) = name.strip_prefix(first.as_str()) else { return false };
                let from = name.len() - behind.len();
                ends.filter(|end| *end >= from).any(|end| follows(&name[from..end], rest))
            }
            Self::Expression(expression) => expression.is_match(name),
        }
    }
}

/// Whether pieces follow each other in a text up to its end, with anything between them.
fn follows(text: &str, pieces: &[String]) -> bool {
    let Some((last, between)) = pieces.split_last() else { return text.is_empty() };
    let mut rest = text;
    for piece in between {
        let Some(at) = rest.find(piece.as_str()) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last.as_str())
}

/// A list of names and patterns, and of each whether a matrix was found.
#[derive(Debug, Default)]
pub(super) struct NameList {
    /// By what `Names::inside` gives, with what is written.
    names: BTreeMap<String, (String, Cell<bool>)>,
    patterns: Vec<(String, Pattern, Cell<bool>)>,
}

impl NameList {
    /// Takes a name, one with `*`, or a regular expression behind `re:`. Those of layers that predict tokens further on are counted from 0 again, and stay out.
    ///
    /// # Errors
    /// Where an expression cannot be read.
    pub(super) fn add(&mut self, names: &Names, key: &str, text: &str) -> Result<(), NoFormat> {
        match text.strip_prefix("re:") {
            _ if text.contains("mtp") => {}
            Some(expression) => self.add_expression(key, expression)?,
            None if text.contains('*') => {
                let pieces = text.split('*').map(str::to_owned).collect();
                self.patterns.push((text.to_owned(), Pattern::Pieces(pieces), Cell::new(false)));
            }
            None => {
                self.names.insert(names.inside(text).to_owned(), (text.to_owned(), Cell::new(false)));
            }
        }
        Ok(())
    }

    /// Takes a regular expression.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub(super) fn add_expression(&mut self, key: &str, text: &str) -> Result<(), NoFormat> {
        let wrong = |_| NoFormat::NoExpression { key: key.to_owned(), found: text.to_owned() };
        let expression = Regex::new(&format!("^(?:{text})")).map_err(wrong)?;
        self.patterns.push((text.to_owned(), Pattern::Expression(expression), Cell::new(false)));
        Ok(())
    }

    /// Whether it names a matrix, or something that the matrix lies in.
    pub(super) fn holds(&self, module: &Module) -> bool {
        let mut is_held = false;
        for name in module.short_names().filter(|_| !self.names.is_empty()) {
            for run in runs(name) {
                if let Some((_, found)) = self.names.get(run) {
                    found.set(true);
                    is_held = true;
                }
            }
        }
        for (_, pattern, found) in &self.patterns {
            // What has found one need not be asked once more.
            if !(is_held && found.get()) && module.names().any(|name| pattern.matches(name)) {
                found.set(true);
                is_held = true;
            }
        }
        is_held
    }

    /// Whether it may name some experts of a layer and not others.
    pub(super) fn tells_experts_apart(&self) -> bool {
        self.texts().any(|(text, _)| tells_experts_apart(text))
    }

    /// What named no matrix so far, though nothing outside of layers has such a name.
    pub(super) fn idle(&self) -> Vec<&str> {
        self.texts().filter(|(text, found)| !found && !is_outside(text)).map(|(text, _)| text).collect()
    }

    fn texts(&self) -> impl Iterator<Item = (&str, bool)> {
        let names = self.names.values().map(|(text, found)| (text.as_str(), found.get()));
        names.chain(self.patterns.iter().map(|(text, _, found)| (text.as_str(), found.get())))
    }
}

/// Whether a name or a pattern has the number of an expert, or the beginning of one.
pub(super) fn tells_experts_apart(text: &str) -> bool {
    let mut behind = text
        .match_indices("experts")
        .map(|(at, word)| text[at + word.len()..].trim_start_matches(['\\', '.', '(', '[', '?', ':']));
    behind.any(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
}

/// Whether a text names what is no matrix of a layer.
fn is_outside(text: &str) -> bool {
    // Classes of modules, which targets name.
    let is_class = text.starts_with(|letter: char| letter.is_ascii_uppercase());
    let mut parts = text.split(['.', '*', '\\', '$', '^', '/']);
    is_class || parts.any(|part| OUTSIDE_WHOLE.contains(&part) || OUTSIDE.iter().any(|outside| part.contains(outside)))
}

/// Parts of a path in a row.
fn runs(name: &str) -> impl Iterator<Item = &str> {
    let starts = [0].into_iter().chain(name.match_indices('.').map(|(at, _)| at + 1));
    starts.flat_map(move |start| {
        let ends = name[start..].match_indices('.').map(move |(at, _)| start + at).chain([name.len()]);
        ends.map(move |end| &name[start..end])
    })
}

/// The longest beginning of a path that a table has.
pub(super) fn longest<T: Copy>(table: &BTreeMap<String, T>, module: &Module) -> Option<T> {
    let of_name = |name: &str| {
        let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
        ends.filter_map(|end| table.get(&name[..end])).next_back().copied()
    };
    module.short_names().find_map(of_name)
}

#[cfg(test)]
mod tests {
    use super::super::modules;
    use super::super::names::Role::{self, *};
    use super::*;

    fn list(names: &Names, pattern: &str) -> NameList {
        let mut list = NameList::default();
        list.add(names, "ignore", pattern).expect(pattern);
        list
    }

    fn holds(kind: &str, pattern: &str, (index, role): (u64, Role)) -> bool {
        let names = Names::of(kind);
        list(&names, pattern).holds(&modules::module(&names, (role, 1), index, 0))
    }

    #[test]
    fn patterns_of_public_checkpoints_name_what_they_mean() {
        // Lists of openai/gpt-oss-120b, moonshotai/Kimi-K2.5, nvidia/GLM-5.1-NVFP4, nvidia/Qwen3.5-397B-A17B-NVFP4, MiniMaxAI/MiniMax-M2.5.
        for (kind, pattern, of, expected) in [
            ("gpt_oss", "model.layers.*.self_attn", (7, Query), true),
            ("gpt_oss", "model.layers.*.self_attn", (7, ExpertUp), false),
            ("kimi_k2", "re:.*self_attn.*", (7, QueryDown), true),
            ("kimi_k2", "re:.*shared_experts.*", (7, SharedDown), true),
            ("kimi_k2", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", (7, Down), true),
            ("kimi_k2", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", (7, ExpertDown), false),
            ("glm_moe_dsa", "model.layers.1.*", (1, ExpertUp), true),
            ("glm_moe_dsa", "model.layers.1.*", (10, ExpertUp), false),
            ("glm_moe_dsa", "model.layers.10.self_attn*", (10, Output), true),
            ("qwen3_5_moe", "model.language_model.layers.0.linear_attn*", (0, LinearOutput), true),
            ("qwen3_5_moe", "*.mlp.shared_expert.*", (3, SharedDown), true),
            ("minimax_m2", "gate", (3, ExpertGate), false),
            ("minimax_m2", "self_attn", (3, Query), true),
            ("deepseek_v3", "model.layers.0.self_attn.q_a_proj", (0, QueryUp), false),
            ("deepseek_v3", "model.layers.0*", (0, Down), true),
            ("llama", r"re:.*layers\.\d+\.self_attn.*", (17, Output), true),
            ("qwen3_moe", "re:model.layers.[0-9]+.mlp.experts", (3, ExpertUp), true),
            ("deepseek_v3", "re:model.layers.[0-9]+.mlp.experts", (3, SharedUp), false),
            ("llama", r"re:model\.layers\.(0|1)\..+", (10, Down), false),
            ("qwen3_moe", r"re:.*\.experts\.\d+\.(gate|up)_proj$", (3, ExpertGate), true),
            ("qwen3_moe", r"re:.*\.experts\.\d+\.(gate|up)_proj$", (3, ExpertDown), false),
            ("llama", "re:layers.*", (3, Down), true),
            ("llama", "re:self_attn.*", (3, Query), false),
            ("llama", "mlp.down_proj", (3, Down), true),
            ("llama", "down_proj", (3, Up), false),
            // Names of other architectures.
            ("mixtral", "re:.*block_sparse_moe.experts.*", (3, ExpertUp), true),
            ("mixtral", "model.layers.3.block_sparse_moe.experts.0.w2", (3, ExpertDown), true),
            ("granitemoehybrid", "re:.*shared_mlp.*", (3, SharedUp), true),
            ("granitemoehybrid", "model.layers.3.mamba", (3, States), true),
            ("jamba", "re:.*mamba.*", (3, StatesOutput), true),
            ("lfm2", "model.layers.3.feed_forward.w1", (3, Gate), true),
            ("llama4", "re:.*feed_forward.experts.*", (3, ExpertUp), true),
            ("hunyuan_v1_moe", "re:.*shared_mlp.*", (3, SharedDown), true),
            ("opt", "model.decoder.layers.3.fc1", (3, Up), true),
            ("gpt_neox", "gpt_neox.layers.3.attention", (3, Output), true),
            ("falcon", "re:.*self_attention.*", (3, Value), true),
            ("bloom", "transformer.h.3.self_attention", (3, Query), true),
            ("mpt", "transformer.blocks.3.attn.Wqkv", (3, Key), true),
            ("mpt", "re:.*ffn.*", (3, Down), true),
            ("glm", "model.layers.3.mlp.gate_up_proj", (3, Up), true),
            ("gpt2", "transformer.h.3.mlp.c_proj", (3, Down), true),
            ("gpt2", "transformer.h.3.mlp.c_proj", (3, Output), false),
            ("starcoder2", "model.layers.3.mlp.c_fc", (3, Up), true),
            ("qwen3_next", "model.layers.3.linear_attn.in_proj_qkvz", (3, Linear), true),
            ("qwen3_next", "model.layers.3.linear_attn.in_proj_ba", (3, LinearSteps), true),
            // Layers of an encoder are no layers of the model of text.
            ("gemma3", "vision_tower.vision_model.encoder.layers.3.self_attn.q_proj", (3, Query), false),
            ("llama4", "vision_model.model.layers.3.self_attn.q_proj", (3, Query), false),
        ] {
            assert_eq!(holds(kind, pattern, of), expected, "{pattern} of {kind} on {of:?}");
        }
    }

    #[test]
    fn names_that_are_of_no_matrix_are_told() {
        let names = Names::of("llama");
        let idle = |pattern: &str| {
            let list = list(&names, pattern);
            list.holds(&modules::module(&names, (Down, 1), 3, 0));
            !list.idle().is_empty()
        };
        for pattern in ["model.layers.3.mlp.down_prj", "re:.*dwn_proj", "mlp.*", "model.layers.4.mlp.down_proj"] {
            assert!(idle(pattern), "{pattern}");
        }
        for pattern in ["lm_head", "re:.*lm_head", "model.embed_tokens", "re:vision_tower.*", "mtp*", "re:.*mlp.gate$"]
        {
            assert!(!idle(pattern), "{pattern}");
        }
        assert!(!idle("re:.*down_proj") && !idle("model.layers.3.mlp"));
    }

    #[test]
    fn numbers_of_experts_are_seen() {
        for text in ["model.layers.0.mlp.experts.7.up_proj", r"re:.*experts\.(0|1)\..*", "*.experts.12*"] {
            assert!(tells_experts_apart(text), "{text}");
        }
        for text in ["re:.*experts.*", r"re:.*experts\.\d+\.up_proj", "model.layers.0.mlp.shared_experts.up_proj"] {
            assert!(!tells_experts_apart(text), "{text}");
        }
    }
}
