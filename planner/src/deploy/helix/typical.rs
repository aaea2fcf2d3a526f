//! Tokens per second of a node at its typical batch: the planner's coefficients, as in Helix's public artefact (`model_manager`).
//!
//! A node with k layers whose cache holds C tokens of each is planned to keep a share θ of it busy, so θ·C / (s + o) requests, for mean
//! prompts s and outputs o. Of these a part r = k·t / T is at the node at a time, where t is its time of a layer and T that of all layers, with
//! the other nodes at their typical layers. So b = r·θ·C / (s + o) requests decode together, b/o prompts come meanwhile, and
//!
//! thr(k) = (s·b/o + b) / (k·(b/o·t_prompt(s) + t_decode(b)))
//!
//! t follows from thr itself, so it is iterated. From one prompt per batch on, prompts and decodes are weighed 1 to o. Batches are whole, so
//! the iteration ends in a cycle of two that are a few percent apart; the start below ends in that of the artefact. Units: seconds, tokens.

use serve::pool::NodeType;

/// What a typical batch is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Typical {
    /// Mean prompt tokens.
    pub prompt: f64,
    /// Mean output tokens.
    pub output: f64,
    /// Share of a cache that is planned to be in use.
    pub cache_ratio: f64,
}

/// Rounds until the times of layers have settled.
const ROUNDS: usize = 20;

/// Tokens per second by layers held, `[type][k - 1]`, as long as a type can hold layers; `n_nodes` counts the nodes of every type.
pub fn rates(types: &[NodeType], n_nodes: &[u32], n_layers: u32, typical: Typical) -> Vec<Vec<f64>> {
    // Layers per second, relative to each other.
    let mut speed: Vec<f64> = types.iter().map(|node| 1.0 / node.prompt.at(typical.prompt)).collect();
    for _ in 0..ROUNDS {
        let next = types.iter().enumerate().map(|(of, node)| {
            let k = node.layers_typical;
            f64::from(k) * rate(types, n_nodes, n_layers, typical, &speed, of, k)
        });
        speed = next.collect();
    }
    let held = |node: &NodeType| node.rooms.last().map_or(0, |room| room.layers).min(n_layers);
    let of_type = |of: usize| {
        let k = 1..=held(&types[of]);
        k.map(|k| rate(types, n_nodes, n_layers, typical, &speed, of, k)).collect()
    };
    (0..types.len()).map(of_type).collect()
}

/// Tokens per second of a node of type `of` with k layers.
fn rate(types: &[NodeType], n_nodes: &[u32], n_layers: u32, typical: Typical, speed: &[f64], of: usize, k: u32) -> f64 {
    let Some(room) = types[of].room(k).filter(|_| k > 0) else { return 0.0 };
    let (mut seconds, mut layers) = (0.0, 0.0);
    for ((node, &n), &speed) in types.iter().zip(n_nodes).zip(speed) {
        let held = f64::from(n) * f64::from(node.layers_typical);
        (seconds, layers) = (seconds + held / speed, layers + held);
    }
    let own_s = f64::from(k) / speed[of];
    let around_s = f64::from(n_layers.saturating_sub(k)) * seconds / layers + own_s;
    let Typical { prompt, output, cache_ratio } = typical;
    let requests = (cache_ratio * hw::real(room.kv_tokens)).floor() / (prompt + output) * own_s / around_s;
    let prompts = requests / output;
    let (prompt_s, decode_s) = (|tokens| types[of].prompt.at(tokens), |n| types[of].decode.at(n));
    let k = f64::from(k);
    if prompts > 1.0 {
        return (prompt + output) / (k * (prompt_s(prompt) + decode_s(output)));
    }
    // Whole tokens, as the artefact rounds.
    let (prompt_tokens, decodes) = ((prompts * prompt).round(), requests.round());
    if decodes < 1.0 {
        // Less than one request at a time: it is alone.
        return (prompt + output) / (k * (prompt_s(prompt) + output * decode_s(1.0)));
    }
    (prompt_tokens + decodes)
        / prompts
        / (k * (prompt_s((prompt_tokens / prompts).floor()) + decode_s(decodes) / prompts))
}
