//! Names that the matrices of a layer have in public checkpoints, by the type of a model.
//!
//! `names.tsv` has a line for each: types (`*` for all that have no line of their own), what the matrix is, and its names within a layer. Several roles with one name
//! are one joined matrix, and `{}` stands for the number of an expert. A matrix has several names where releases of a type differ. Where a name has `<>`, checkpoints
//! number two layers as one, and it stands for which of them.
//! Source: huggingface/transformers, `modeling_<type>.py` and `conversion_mapping.py` (5.24); for types that it does not have, `load_weights` of
//! vllm-project/vllm (0.32), and the model code beside the checkpoint; vllm-project/llm-compressor, `modeling/`, which takes joined experts apart before it names
//! them.

/// Lines of types, roles and names.
const TABLE: &str = include_str!("names.tsv");

hw::words! {
    /// What a matrix of a layer is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Role: word {
        /// Where layers are, in the place of a matrix: what stands in front of their number.
        Layers = "layers",
        Query = "query",
        Key = "key",
        Value = "value",
        Output = "output",
        /// Factors of queries, and of keys and values, where these are made of shorter vectors.
        QueryDown = "query_down",
        QueryUp = "query_up",
        LatentDown = "latent_down",
        LatentUp = "latent_up",
        CompressedQueryDown = "compressed_query_down",
        CompressedQueryUp = "compressed_query_up",
        CompressedKv = "compressed_kv",
        CompressedOutputDown = "compressed_output_down",
        CompressedOutputUp = "compressed_output_up",
        /// Factors of gates and steps of delta attention by channel.
        DecayDown = "decay_down",
        DecayUp = "decay_up",
        GateDown = "gate_down",
        GateUp = "gate_up",
        Step = "step",
        /// Queries, keys and values of linear attention, its gate, its two numbers for each head, and the projection behind.
        Linear = "linear",
        LinearGate = "linear_gate",
        LinearSteps = "linear_steps",
        LinearOutput = "linear_output",
        States = "states",
        StatesOutput = "states_output",
        Convolution = "convolution",
        ConvolutionOutput = "convolution_output",
        Gate = "gate",
        Up = "up",
        Down = "down",
        SharedGate = "shared_gate",
        SharedUp = "shared_up",
        SharedDown = "shared_down",
        ExpertGate = "expert_gate",
        ExpertUp = "expert_up",
        ExpertDown = "expert_down",
        /// Around experts that see shorter vectors than the layers.
        Narrowing = "narrowing",
        Widening = "widening",
    }
}

/// Names of a type.
pub(super) struct Names {
    of_roles: Vec<(Role, Vec<&'static str>)>,
    /// Layers that have one number.
    n_together: u64,
}

/// Stands for which of the layers with one number it is.
const WHICH: &str = "<>";

impl Names {
    /// Names of a `model_type`.
    pub(super) fn of(kind: &str) -> Self {
        let of_roles: Vec<_> = Role::ALL.into_iter().map(|role| (role, names(kind, role))).collect();
        let has_two = of_roles.iter().flat_map(|(_, names)| names).any(|name| name.contains(WHICH));
        Self { of_roles, n_together: if has_two { 2 } else { 1 } }
    }

    /// Names of a matrix from the number of its layer on: that of so many in front, and of an expert.
    pub(super) fn numbered(&self, role: Role, index: u64, expert: u64) -> Vec<String> {
        let (number, which) = (index / self.n_together, index % self.n_together);
        let named = |name: &&str| {
            let within = name.replace("{}", &expert.to_string()).replace(WHICH, &which.to_string());
            format!("{number}.{within}")
        };
        self.within(role).iter().map(named).collect()
    }

    /// Names of a matrix within its layer.
    fn within(&self, role: Role) -> &[&'static str] {
        self.of_roles.iter().find(|(known, _)| *known == role).map_or(&[], |(_, names)| names)
    }

    /// What stands in front of a layer's number: as checkpoints have it, and last its last part alone (`layers`).
    pub(super) fn fronts(&self) -> Vec<&'static str> {
        let whole = self.within(Role::Layers);
        let short = whole.iter().map(|front| last(front)).next().unwrap_or("layers");
        whole.iter().copied().chain([short]).collect()
    }

    /// A listed name from the last part of what stands in front of its number on; as it is where something else stands there.
    pub(super) fn inside<'a>(&self, listed: &'a str) -> &'a str {
        let front = self.within(Role::Layers).iter().find(|front| begins(listed, front));
        front.map_or(listed, |front| &listed[front.len() - last(front).len()..])
    }
}

fn last(front: &str) -> &str {
    front.rsplit('.').next().unwrap_or(front)
}

/// Whether a name is a path or lies in it.
fn begins(name: &str, path: &str) -> bool {
    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Names of a role: those of the type, or those of all types.
fn names(kind: &str, role: Role) -> Vec<&'static str> {
    let of = |wanted: &str| {
        let line = TABLE.lines().find_map(|line| {
            let [types, roles, names] = columns(line);
            let is_it =
                types.split(' ').any(|known| known == wanted) && roles.split(' ').any(|known| known == role.word());
            is_it.then_some(names)
        })?;
        Some(line.split(' ').collect())
    };
    of(kind).or_else(|| of("*")).unwrap_or_default()
}

fn columns(line: &'static str) -> [&'static str; 3] {
    let mut columns = line.split('\t');
    std::array::from_fn(|_| columns.next().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::types::TYPES;

    #[test]
    fn lines_are_of_known_types_and_roles() {
        for line in TABLE.lines().skip(1) {
            let [types, roles, names] = columns(line);
            let is_known = |kind: &str| kind == "*" || TYPES.iter().any(|(known, _)| *known == kind);
            assert!(types.split(' ').all(is_known), "{line}");
            assert!(roles.split(' ').all(|role| Role::named(role).is_some()), "{line}");
            assert!(!names.is_empty() && !names.split(' ').any(str::is_empty), "{line}");
        }
    }

    #[test]
    fn names_in_front_of_layers_are_those_of_the_type() {
        let inside = |kind: &str, listed: &'static str| Names::of(kind).inside(listed);
        assert_eq!(inside("llama", "model.layers.3.mlp.down_proj"), "layers.3.mlp.down_proj");
        assert_eq!(inside("gpt2", "transformer.h.3.mlp.c_fc"), "h.3.mlp.c_fc");
        assert_eq!(inside("gemma3", "language_model.model.layers.3.self_attn"), "layers.3.self_attn");
        let tower = "vision_tower.vision_model.encoder.layers.3.self_attn.q_proj";
        assert_eq!(inside("gemma3", tower), tower);
    }
}
