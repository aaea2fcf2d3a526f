//! Matrices of a model, each with the names that public checkpoints have for it.

use super::names::{Names, Role};
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
    pub(super) const ALL: [Self; 4] = [Self::Attention, Self::Output, Self::Dense, Self::Experts];

    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Attention => "weights in front of attention",
            Self::Output => "weights behind attention",
            Self::Dense => "weights of dense feed-forwards",
            Self::Experts => "weights of experts",
        }
    }

    /// The part of what a matrix is.
    const fn of(role: Role) -> Self {
        match role {
            Role::Output
            | Role::CompressedOutputDown
            | Role::CompressedOutputUp
            | Role::LinearOutput
            | Role::StatesOutput
            | Role::ConvolutionOutput => Self::Output,
            Role::Gate
            | Role::Up
            | Role::Down
            | Role::SharedGate
            | Role::SharedUp
            | Role::SharedDown
            | Role::Narrowing
            | Role::Widening => Self::Dense,
            Role::ExpertGate | Role::ExpertUp | Role::ExpertDown => Self::Experts,
            _ => Self::Attention,
        }
    }
}

/// A matrix, or those of one role of several experts of a layer.
pub(super) struct Module {
    pub(super) part: Part,
    pub(super) parameters: u64,
    /// Whole names, and behind them those that begin with the last part in front of the layer's number (`layers.3`).
    names: Vec<String>,
    n_whole: usize,
}

impl Module {
    /// Names of it, whole and short.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Names of it from `layers.` on.
    pub(super) fn short_names(&self) -> impl Iterator<Item = &str> {
        self.names[self.n_whole..].iter().map(String::as_str)
    }
}

/// What is asked about matrices.
pub(super) struct Asked<'a> {
    pub(super) names: &'a Names,
    /// Whether experts of a layer may differ, so that each is a matrix of its own.
    pub(super) each_expert: bool,
}

/// Matrices of all layers.
pub(super) fn of(model: &Model, asked: &Asked<'_>) -> Vec<Module> {
    (0..model.n_layers).flat_map(|index| of_layer(model, asked, index, model.layers.layer(index))).collect()
}

/// Matrices of the first layer that predicts a token further on, where public checkpoints number it behind the others.
pub(super) fn predicting(model: &Model, asked: &Asked<'_>) -> Vec<Module> {
    of_layer(model, asked, model.n_layers, model.layer_that_predicts())
}

fn of_layer(model: &Model, asked: &Asked<'_>, index: u64, layer: Layer) -> Vec<Module> {
    let mut found: Vec<(Role, u64)> = mixing(model, layer);
    found.extend(dense(model, layer));
    let mut modules: Vec<Module> =
        found.into_iter().filter(|(_, n)| *n > 0).map(|(role, n)| module(asked.names, (role, n), index, 0)).collect();
    let Some(experts) = model.experts.filter(|_| layer.has_experts()) else { return modules };
    let n_matrices = if asked.each_expert { experts.n_routed } else { 1 };
    for expert in 0..n_matrices {
        let of_each = feed_forward(model, EXPERT, experts.latent.unwrap_or(model.hidden) * experts.intermediate);
        let each = of_each.into_iter().map(|(role, n)| (role, n * experts.n_routed / n_matrices));
        modules.extend(each.map(|each| module(asked.names, each, index, expert)));
    }
    modules
}

/// A matrix of a layer.
pub(super) fn module(names: &Names, (role, parameters): (Role, u64), index: u64, expert: u64) -> Module {
    let (fronts, numbered) = (names.fronts(), names.numbered(role, index, expert));
    let of_front = |front: &&str| numbered.iter().map(|name| format!("{front}.{name}")).collect::<Vec<_>>();
    let n_whole = (fronts.len() - 1) * numbered.len();
    Module { part: Part::of(role), parameters, names: fronts.iter().flat_map(of_front).collect(), n_whole }
}

/// Names of layers that predict tokens further on, where checkpoints count them from 0 again.
const PREDICTING: [&str; 3] = ["mtp", "mtp.layers", "mtp.layers.0"];

/// Whether a name or an expression of one means such layers as a whole, and not a part of them.
pub(super) fn is_predicting(text: &str) -> bool {
    let name = text.trim_start_matches("re:").trim_matches(|letter| "^$.*\\".contains(letter));
    PREDICTING.into_iter().any(|whole| name == whole || name.ends_with(&format!(".{whole}")))
}

/// Projections around what mixes the tokens of a layer.
fn mixing(model: &Model, layer: Layer) -> Vec<(Role, u64)> {
    let hidden = model.hidden;
    let mut found = Vec::new();
    if layer.mixer.attends() {
        found.extend(attention(model, layer.mixer));
    }
    match (layer.mixer, model.linear, model.state_space) {
        (Mixer::Linear, Some(linear), _) => found.extend(linear_attention(hidden, linear)),
        (Mixer::StateSpace | Mixer::Joint, _, Some(space)) => {
            found.extend([(Role::States, hidden * space.projected()), (Role::StatesOutput, hidden * space.width())]);
        }
        (Mixer::Convolution, _, _) => {
            found.extend([(Role::Convolution, 3 * hidden * hidden), (Role::ConvolutionOutput, hidden * hidden)]);
        }
        _ => {}
    }
    found
}

/// Projections around linear attention. Delta attention with gates of a rank has each by itself, under the name of attention
/// (`KimiDeltaAttention` of moonshotai/Kimi-Linear-48B-A3B-Instruct).
fn linear_attention(hidden: u64, linear: LinearAttention) -> Vec<(Role, u64)> {
    let (keys, values) = (linear.key_width(), linear.value_width());
    let steps = 2 * hidden * linear.n_value_heads;
    match linear.rule {
        LinearRule::Channels { rank } => vec![
            (Role::Query, hidden * keys),
            (Role::Key, hidden * keys),
            (Role::Value, hidden * values),
            (Role::DecayDown, hidden * rank),
            (Role::DecayUp, rank * keys),
            (Role::GateDown, hidden * rank),
            (Role::GateUp, rank * values),
            (Role::Step, hidden * linear.n_value_heads),
            (Role::Output, hidden * values),
        ],
        LinearRule::Delta | LinearRule::Lightning => vec![
            (Role::Linear, hidden * linear.channels()),
            (Role::LinearGate, hidden * values),
            (Role::LinearSteps, if linear.rule == LinearRule::Delta { steps } else { 0 }),
            (Role::LinearOutput, hidden * values),
        ],
    }
}

/// Projections around attention.
fn attention(model: &Model, mixer: Mixer) -> Vec<(Role, u64)> {
    let hidden = model.hidden;
    match (model.latent, model.compressed) {
        (Some(latent), _) => {
            let query = model.n_heads * (latent.nope_dim + latent.rope_dim);
            let rank = latent.q_rank.unwrap_or(hidden);
            vec![
                (Role::QueryDown, latent.q_rank.map_or(0, |rank| hidden * rank)),
                (Role::QueryUp, rank * query),
                (Role::LatentDown, hidden * (latent.kv_rank + latent.rope_dim)),
                (Role::LatentUp, latent.kv_rank * model.n_heads * (latent.nope_dim + latent.value_dim)),
                (Role::Output, hidden * model.n_heads * latent.value_dim),
            ]
        }
        (None, Some(compressed)) => {
            let query = model.n_heads * model.head_dim;
            let joined = compressed.n_groups * compressed.group_rank;
            vec![
                (Role::CompressedQueryDown, hidden * compressed.q_rank),
                (Role::CompressedQueryUp, compressed.q_rank * query),
                (Role::CompressedKv, hidden * model.head_dim),
                (Role::CompressedOutputDown, query * compressed.group_rank),
                (Role::CompressedOutputUp, joined * hidden),
            ]
        }
        (None, None) => {
            let heads = model.heads(mixer);
            let query = hidden * heads.query_width();
            let queries = if model.output_gate == OutputGate::Whole { 2 * query } else { query };
            // Those of Step-3 are made of a common vector by `wq`.
            let of_rank = model.query_rank.map(|rank| [hidden * rank, rank * heads.query_width()]);
            let [narrow, wide] = of_rank.unwrap_or_default();
            let reuses = matches!(mixer, Mixer::Reused(_));
            let kept = |width: u64| if reuses { 0 } else { hidden * heads.n_kv * width };
            let values = if heads.projects_values { kept(heads.value_dim) } else { 0 };
            let output = hidden * heads.mixed_width();
            vec![
                (Role::Query, if of_rank.is_some() { 0 } else { queries }),
                (Role::QueryDown, narrow),
                (Role::QueryUp, wide),
                (Role::Key, kept(heads.key_dim)),
                (Role::Value, values),
                (Role::Output, output),
            ]
        }
    }
}

/// Roles of a feed-forward: factors, and what is behind them.
const DENSE: [Role; 3] = [Role::Gate, Role::Up, Role::Down];
const SHARED: [Role; 3] = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
const EXPERT: [Role; 3] = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];

/// Matrices of a feed-forward, each of so many parameters.
fn feed_forward(model: &Model, [gate, up, down]: [Role; 3], each: u64) -> Vec<(Role, u64)> {
    let plain = vec![(up, each), (down, each)];
    if model.gated { [vec![(gate, each)], plain].concat() } else { plain }
}

/// The dense feed-forward of a layer, or its shared experts and what is around those that see shorter vectors.
fn dense(model: &Model, layer: Layer) -> Vec<(Role, u64)> {
    match (layer.feed_forward, model.experts) {
        (FeedForward::Off, _) => Vec::new(),
        (FeedForward::Experts, Some(experts)) => {
            let around = experts.latent.map_or(0, |latent| model.hidden * latent);
            let mut found = feed_forward(model, SHARED, model.hidden * experts.shared_intermediate);
            found.extend([(Role::Narrowing, around), (Role::Widening, around)]);
            found
        }
        _ => feed_forward(model, DENSE, model.hidden * model.dense_intermediate(layer.mixer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_nearly_all_of_a_model() {
        for name in crate::model::embedded_names() {
            let model = crate::model::embedded(name).expect("listed");
            let names = Names::of("llama");
            let asked = Asked { names: &names, each_expert: false };
            let found: u64 = of(&model, &asked).iter().map(|module| module.parameters).sum();
            let expected = model.n_parameters() - model.embedding_parameters();
            let share = hw::real(found) / hw::real(expected);
            assert!((0.985..=1.0).contains(&share), "{name}: {share}");
        }
    }
}
