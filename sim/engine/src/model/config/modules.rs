//! Modules of a checkpoint by name, as lists of what is quantised name them.
//!
//! Names are those of the public checkpoints from `layers.` on, since what is in front differs between text models and models of text and
//! images (`model.`, `model.language_model.`, `backbone.`).

use regex_lite::Regex;
use serde_json::{Map, Value};

use super::no_format::NoFormat;
use crate::model::{FeedForward, Layer, LinearAttention, LinearRule, Mixer, Model, OutputGate};

/// A part of a model that has a format of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Attention,
    Output,
    Dense,
    Experts,
}

impl Part {
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Attention => "weights in front of attention",
            Self::Output => "weights behind attention",
            Self::Dense => "weights of dense feed-forwards",
            Self::Experts => "weights of experts",
        }
    }
}

/// A matrix, or several of one name.
pub(super) struct Module {
    pub(super) part: Part,
    /// From `layers.` on.
    pub(super) name: String,
    pub(super) parameters: u64,
}

/// Matrices of all layers.
pub(super) fn of(model: &Model) -> Vec<Module> {
    (0..model.n_layers).flat_map(|index| of_layer(model, index, model.layers.layer(index))).collect()
}

/// Matrices of the first layer that predicts a token further on, where public checkpoints number it behind the others.
pub(super) fn predicting(model: &Model) -> Vec<Module> {
    of_layer(model, model.n_layers, model.layer_that_predicts())
}

fn of_layer(model: &Model, index: u64, layer: Layer) -> Vec<Module> {
    let mut modules = Vec::new();
    let mut push = |part, (name, parameters): (&str, u64)| {
        modules.push(Module { part, name: format!("layers.{index}.{name}"), parameters });
    };
    mixing(model, layer).into_iter().for_each(|module| push(around(module.0), module));
    dense(model, layer).into_iter().for_each(|module| push(Part::Dense, module));
    let experts = model.experts.filter(|_| layer.has_experts());
    let parameters = experts.map_or(0, |experts| experts.n_routed * model.expert_parameters());
    if parameters > 0 {
        let name = match (model.state_space, model.compressed) {
            (Some(_), _) => "mixer.experts.0",
            (None, Some(_)) => "ffn.experts.0",
            (None, None) => "mlp.experts.0",
        };
        push(Part::Experts, (name, parameters));
    }
    modules
}

/// Names of layers that predict tokens further on, where checkpoints count them from 0 again.
const PREDICTING: [&str; 3] = ["mtp", "mtp.layers", "mtp.layers.0"];

/// Whether a name or an expression of one means such layers as a whole, and not a part of them.
pub(super) fn is_predicting(text: &str) -> bool {
    let name = text.trim_start_matches("re:").trim_matches(|letter| "^$.*\\".contains(letter));
    PREDICTING.into_iter().any(|whole| name == whole || name.ends_with(&format!(".{whole}")))
}

/// The part of a projection around what mixes tokens: names of those behind it begin with an `o`.
fn around(name: &str) -> Part {
    let last = name.rsplit('.').next().unwrap_or(name);
    if last.starts_with('o') || last.starts_with("wo") { Part::Output } else { Part::Attention }
}

/// Projections around what mixes the tokens of a layer.
fn mixing(model: &Model, layer: Layer) -> Vec<(&'static str, u64)> {
    let hidden = model.hidden;
    let mut found = Vec::new();
    if layer.mixer.attends() {
        found.extend(attention(model, layer.mixer));
    }
    match (layer.mixer, model.linear, model.state_space) {
        (Mixer::Linear, Some(linear), _) => found.extend(linear_attention(hidden, linear)),
        (Mixer::StateSpace | Mixer::Joint, _, Some(space)) => {
            found.extend([("mixer.in_proj", hidden * space.projected()), ("mixer.out_proj", hidden * space.width())]);
        }
        (Mixer::Convolution, _, _) => {
            found.extend([("conv.in_proj", 3 * hidden * hidden), ("conv.out_proj", hidden * hidden)]);
        }
        _ => {}
    }
    found
}

/// Projections around linear attention. Delta attention with gates of a rank has each by itself, under the name of attention
/// (`KimiDeltaAttention` of moonshotai/Kimi-Linear-48B-A3B-Instruct).
fn linear_attention(hidden: u64, linear: LinearAttention) -> Vec<(&'static str, u64)> {
    let (keys, values) = (linear.key_width(), linear.value_width());
    match linear.rule {
        LinearRule::Channels { rank } => vec![
            ("self_attn.q_proj", hidden * keys),
            ("self_attn.k_proj", hidden * keys),
            ("self_attn.v_proj", hidden * values),
            ("self_attn.f_a_proj", hidden * rank),
            ("self_attn.f_b_proj", rank * keys),
            ("self_attn.g_a_proj", hidden * rank),
            ("self_attn.g_b_proj", rank * values),
            ("self_attn.b_proj", hidden * linear.n_value_heads),
            ("self_attn.o_proj", hidden * values),
        ],
        LinearRule::Delta | LinearRule::Lightning => vec![
            ("linear_attn.in_proj_qkv", hidden * linear.channels()),
            ("linear_attn.in_proj_z", hidden * values),
            ("linear_attn.out_proj", hidden * values),
        ],
    }
}

/// Projections around attention.
fn attention(model: &Model, mixer: Mixer) -> Vec<(&'static str, u64)> {
    let hidden = model.hidden;
    match (model.latent, model.compressed) {
        (Some(latent), _) => {
            let query = model.n_heads * (latent.nope_dim + latent.rope_dim);
            let rank = latent.q_rank.unwrap_or(hidden);
            vec![
                ("self_attn.q_a_proj", latent.q_rank.map_or(0, |rank| hidden * rank)),
                ("self_attn.q_b_proj", rank * query),
                ("self_attn.kv_a_proj_with_mqa", hidden * (latent.kv_rank + latent.rope_dim)),
                ("self_attn.kv_b_proj", latent.kv_rank * model.n_heads * (latent.nope_dim + latent.value_dim)),
                ("self_attn.o_proj", hidden * model.n_heads * latent.value_dim),
            ]
        }
        (None, Some(compressed)) => {
            let query = model.n_heads * model.head_dim;
            let joined = compressed.n_groups * compressed.group_rank;
            vec![
                ("attn.wq_a", hidden * compressed.q_rank),
                ("attn.wq_b", compressed.q_rank * query),
                ("attn.wkv", hidden * model.head_dim),
                ("attn.wo_a", query * compressed.group_rank),
                ("attn.wo_b", joined * hidden),
            ]
        }
        (None, None) => {
            let heads = model.heads(mixer);
            let query = hidden * heads.query_width();
            // Those of Step-3 are joined with keys and values, and made of their common vector by `wq`.
            let queries = match (model.query_rank, model.output_gate) {
                (Some(rank), _) => rank * (hidden + heads.query_width()),
                (None, OutputGate::Whole) => 2 * query,
                (None, _) => query,
            };
            let reuses = matches!(mixer, Mixer::Reused(_));
            let kept = |width: u64| if reuses { 0 } else { hidden * heads.n_kv * width };
            let values = if heads.projects_values { kept(heads.value_dim) } else { 0 };
            let names = match model.state_space {
                Some(_) if mixer == Mixer::Full => ["mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj"],
                _ => ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"],
            };
            names.into_iter().zip([queries, kept(heads.key_dim), values, hidden * heads.mixed_width()]).collect()
        }
    }
}

/// The dense feed-forward of a layer, or its shared experts.
fn dense(model: &Model, layer: Layer) -> Vec<(&'static str, u64)> {
    let parameters = model.dense_parameters(layer);
    let name = match (
        layer.feed_forward,
        model.state_space.is_some(),
        model.experts.is_some_and(|experts| experts.shared_gate),
    ) {
        (FeedForward::Off, _, _) => return Vec::new(),
        (FeedForward::Dense, false, _) => "mlp.down_proj",
        (FeedForward::Dense, true, _) => "mixer.down_proj",
        (FeedForward::Experts, true, _) => "mixer.shared_experts.down_proj",
        (FeedForward::Experts, false, _) if model.compressed.is_some() => "ffn.shared_experts.w2",
        (FeedForward::Experts, false, true) => "mlp.shared_expert.down_proj",
        (FeedForward::Experts, false, false) => "mlp.shared_experts.down_proj",
    };
    if parameters == 0 { Vec::new() } else { vec![(name, parameters)] }
}

/// A name from `layers.` on.
pub(super) fn inside(name: &str) -> &str {
    name.find("layers.").map_or(name, |at| &name[at..])
}

/// A list of names.
///
/// # Errors
/// Where it is something else.
pub(super) fn names<'a>(keys: &'a Map<String, Value>, key: &str) -> Result<Vec<&'a str>, NoFormat> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => {
            let list = value.as_array().map(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
            list.flatten().ok_or_else(|| NoFormat::NoList { key: key.to_owned(), found: value.to_string() })
        }
    }
}

/// A pattern of module names.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// One word, which stands for a part of a path.
    Word(String),
    /// Pieces of text from `layers.` on, with anything between them.
    Pieces(Vec<String>),
    /// A regular expression from the start of the whole name on (`re.match` of Python, as vllm-project/compressed-tensors asks).
    Expression(Regex),
}

/// What stands in front of `layers.` in public checkpoints.
const FRONTS: [&str; 6] =
    ["", "model.", "model.language_model.", "language_model.model.", "backbone.", "language_model.backbone."];
/// Matrices of an expert, or of a feed-forward that stands for several, whose names an expression may end with.
const OF_EXPERT: [&str; 4] = ["", ".gate_proj", ".up_proj", ".down_proj"];

impl Pattern {
    /// The pattern of a name with `*`, or of a regular expression behind `re:`; `None` for layers that predict tokens further on, which are counted
    /// from 0 again.
    ///
    /// # Errors
    /// Where an expression cannot be read.
    pub(super) fn of(key: &str, text: &str) -> Result<Option<Self>, NoFormat> {
        if text.contains("mtp") {
            return Ok(None);
        }
        match text.strip_prefix("re:") {
            Some(expression) => Self::expression(key, expression).map(Some),
            None => Ok(Some(Self::plain(text))),
        }
    }

    /// The pattern of a regular expression.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub(super) fn expression(key: &str, text: &str) -> Result<Self, NoFormat> {
        let wrong = |_| NoFormat::NoExpression { key: key.to_owned(), found: text.to_owned() };
        Regex::new(&format!("^(?:{text})")).map(Self::Expression).map_err(wrong)
    }

    fn plain(text: &str) -> Self {
        let text = inside(text);
        if text.contains(['.', '*']) {
            return Self::Pieces(text.split('*').map(str::to_owned).collect());
        }
        Self::Word(text.to_owned())
    }

    /// Whether it names a module or something that the module lies in.
    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Word(word) => name.split('.').any(|part| part == word),
            Self::Pieces(pieces) => {
                let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
                let (first, rest) = pieces.split_first().expect("a split text has a piece");
                // What stands in front of a layer differs, so a pattern with a star there begins anywhere.
                let Some(behind) = name.strip_prefix(first.as_str()) else { return false };
                let from = name.len() - behind.len();
                ends.filter(|end| *end >= from).any(|end| follows(&name[from..end], rest))
            }
            Self::Expression(expression) => FRONTS
                .iter()
                .any(|front| OF_EXPERT.iter().any(|end| expression.is_match(&format!("{front}{name}{end}")))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_public_checkpoints_name_what_they_mean() {
        // Lists of openai/gpt-oss-120b, moonshotai/Kimi-K2.5, nvidia/GLM-5.1-NVFP4, nvidia/Qwen3.5-397B-A17B-NVFP4, MiniMaxAI/MiniMax-M2.5.
        for (pattern, name, expected) in [
            ("model.layers.*.self_attn", "layers.7.self_attn.q_proj", true),
            ("model.layers.*.self_attn", "layers.7.mlp.experts.0", false),
            ("re:.*self_attn.*", "layers.7.self_attn.q_proj", true),
            ("re:.*shared_experts.*", "layers.7.mlp.shared_experts.down_proj", true),
            ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "layers.7.mlp.down_proj", true),
            ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "layers.7.mlp.experts.0", false),
            ("model.layers.1.*", "layers.1.mlp.experts.0", true),
            ("model.layers.1.*", "layers.10.mlp.experts.0", false),
            ("model.layers.10.self_attn*", "layers.10.self_attn.o_proj", true),
            ("model.language_model.layers.0.linear_attn*", "layers.0.linear_attn.out_proj", true),
            ("*.mlp.shared_expert.*", "layers.3.mlp.shared_expert.down_proj", true),
            ("gate", "layers.3.mlp.experts.0", false),
            ("self_attn", "layers.3.self_attn.q_proj", true),
            ("model.layers.0.self_attn.q_a_proj", "layers.0.self_attn.q_b_proj", false),
            ("model.layers.0*", "layers.0.mlp.down_proj", true),
            (r"re:.*layers\.\d+\.self_attn.*", "layers.17.self_attn.o_proj", true),
            ("re:model.layers.[0-9]+.mlp.experts", "layers.3.mlp.experts.0", true),
            ("re:model.layers.[0-9]+.mlp.experts", "layers.3.mlp.shared_experts.down_proj", false),
            (r"re:model\.layers\.(0|1)\..+", "layers.10.mlp.down_proj", false),
            (r"re:.*\.experts\.\d+\.(gate|up)_proj$", "layers.3.mlp.experts.0", true),
            ("re:layers.*", "layers.3.mlp.down_proj", true),
            ("re:self_attn.*", "layers.3.self_attn.q_proj", false),
        ] {
            let found = Pattern::of("ignore", pattern).expect(pattern).is_some_and(|pattern| pattern.matches(name));
            assert_eq!(found, expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn matrices_are_nearly_all_of_a_model() {
        for name in crate::model::embedded_names() {
            let model = crate::model::embedded(name).expect("listed");
            let found: u64 = of(&model).iter().map(|module| module.parameters).sum();
            let expected = model.n_parameters() - model.embedding_parameters();
            let share = hw::real(found) / hw::real(expected);
            assert!((0.985..=1.0).contains(&share), "{name}: {share}");
        }
    }
}
