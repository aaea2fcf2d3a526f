//! Layers that predict a further token each, as layers of a training step.

use std::collections::BTreeSet;

use super::{FeedForward, Layer, LinearRule, Mixer, Model, OutputGate, Pattern, Streams};

/// A layer of a hybrid that is attention alone, and one that is experts alone.
const OF_HYBRID: [Layer; 2] = [
    Layer { mixer: Mixer::Full, feed_forward: FeedForward::Off },
    Layer { mixer: Mixer::Off, feed_forward: FeedForward::Experts },
];

impl Model {
    /// Parameters with which the layers that predict further tokens begin and end: two norms and a product that joins the vector of the layer before with the
    /// embedding of the next token, and a norm; and once the embedding, where a stage has none (Megatron-Core `MultiTokenPredictionLayer`, `GPTModel`).
    pub const fn joining_parameters(&self, has_embedding: bool) -> u64 {
        if self.n_predicting == 0 {
            return 0;
        }
        let joins = self.n_predicting * (2 * self.hidden * self.hidden + 3 * self.hidden);
        joins + if has_embedding { 0 } else { self.vocab * self.hidden }
    }

    /// The model with so many layers that predict a further token each, behind its own: what its type says, a window alone beside compressed attention
    /// (DeepSeek-V4's `compress_ratios` end with its 0), attention and experts in a hybrid with state-space layers, else as its last layer
    /// (Megatron-Core, `get_gpt_mtp_block_spec`). They are counted among its layers, and each sends its output through the head (Megatron-Core,
    /// `MultiTokenPredictionBlock`).
    ///
    /// # Panics
    /// With layers that no memory holds.
    pub fn with_predicting(self, n: u64) -> Self {
        let windowed =
            self.window_beside_compressed().map(|tokens| Layer { mixer: Mixer::Window(tokens), ..Layer::EXPERTS });
        let last = self.layers.layer(self.n_layers.saturating_sub(1));
        let further: &[Layer] = match (&self.predicting_layer, &windowed, self.state_space) {
            (Some(layer), ..) | (None, Some(layer), _) => std::slice::from_ref(layer),
            (None, None, Some(_)) => &OF_HYBRID,
            (None, None, None) => std::slice::from_ref(&last),
        };
        if n == 0 {
            return Self { n_predicting: n, ..self };
        }
        let mut layers: Vec<Layer> = (0..self.n_layers).map(|index| self.layers.layer(index)).collect();
        (0..n).for_each(|_| layers.extend(further));
        Self { n_layers: layers.len() as u64, layers: Pattern::of_layers(&layers), n_predicting: n, ..self }
    }

    /// Tokens that layers of compressed attention keep by themselves.
    fn window_beside_compressed(&self) -> Option<u64> {
        self.layers.kinds().into_iter().find_map(|layer| match layer.mixer {
            Mixer::Compressed { window, .. } => Some(window),
            _ => None,
        })
    }

    /// What a training step has no time for, in words; empty where there is nothing. Steps of Megatron-Core and of PyTorch modules have
    /// windows, compressed and linear attention, and state spaces.
    pub fn not_trained(&self) -> String {
        let words = |layer: Layer| match layer.mixer {
            Mixer::Chunked(_) => Some("attention in chunks"),
            Mixer::Selected(_) | Mixer::Reselected(_) => Some("attention to selected tokens"),
            Mixer::Full | Mixer::Window(_) | Mixer::Compressed { .. } => None,
            Mixer::Linear | Mixer::StateSpace | Mixer::Off => None,
            Mixer::Reused(_) => Some("attention to another layer's keys"),
            Mixer::Joint => Some("attention beside a state space"),
            Mixer::Convolution => Some("convolutions as mixers"),
        };
        let mut found: BTreeSet<&str> = self.layers.kinds().into_iter().filter_map(words).collect();
        found.extend(self.unlike_any_trained());
        found.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Parts of layers that no step of training has a time for, however it is computed.
    pub(super) fn unlike_any_trained(&self) -> Vec<&'static str> {
        let is_lightning = self.linear.is_some_and(|linear| linear.rule == LinearRule::Lightning);
        let parts = [
            (self.heads_by_layer.is_some(), "heads that differ by layer or in keys and values"),
            (self.output_gate == OutputGate::Heads, "a gate of a number per head"),
            (self.query_rank.is_some(), "queries that are made from a common vector"),
            (self.streams.is_some_and(|streams| !matches!(streams, Streams::Mixed { .. })), "several residual streams"),
            (self.layer_inputs.is_some(), "inputs of every layer"),
            (self.experts.is_some_and(|experts| experts.normed), "experts with norms of their own"),
            (is_lightning, "lightning attention"),
            (self.state_space.is_some_and(|space| space.step_rank.is_some()), "Mamba-1"),
        ];
        parts.into_iter().filter(|(has, _)| *has).map(|(_, what)| what).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::model::embedded;

    #[test]
    fn each_layer_that_predicts_has_the_parameters_of_a_layer() {
        let own = embedded("deepseek-v3").expect("embedded");
        let (one, three) = (own.clone().with_predicting(1), own.clone().with_predicting(3));
        assert_eq!([one.n_layers, three.n_layers], [62, 64]);
        // arXiv:2412.19437, section 4.2: 671 B of the model and 14 B of the module that predicts, 2.3 B of which embedding and head share.
        let added = hw::real(one.n_parameters() - own.n_parameters());
        assert!((11.0e9..14.0e9).contains(&added), "{added}");
        assert_eq!(three.n_parameters() - own.n_parameters(), 3 * (one.n_parameters() - own.n_parameters()));
        let hybrid = embedded("nemotron-3-nano-30b-a3b").expect("embedded");
        assert_eq!(hybrid.clone().with_predicting(2).n_layers, hybrid.n_layers + 4);
        // Three linear layers to one that attends, and the one that predicts is as the last, which attends.
        let turns = embedded("qwen3-next-80b-a3b").expect("embedded").with_predicting(1);
        let attends = (46..49).map(|index| turns.layers.layer(index).mixer.attends()).collect::<Vec<_>>();
        assert_eq!(attends, [false, true, true]);
        // A window and a dense feed-forward behind 45 layers with experts.
        let step = embedded("step-3.5-flash").expect("embedded").with_predicting(3);
        assert_eq!((step.n_layers, step.layers.layer(47), step.n_expert_layers()), (48, step.layers.layer(1), 42));
    }

    #[test]
    fn layers_without_a_time_are_named() {
        for (name, expected) in [
            ("llama-3-8b", ""),
            ("gpt-oss-120b", ""),
            ("nemotron-3-nano-30b-a3b", ""),
            ("glm-5", "attention to selected tokens"),
            ("longcat-flash", ""),
            ("deepseek-v4-flash", ""),
            ("mimo-v2-flash", "heads that differ by layer or in keys and values"),
            ("jamba-v0.1", "Mamba-1"),
        ] {
            assert_eq!(embedded(name).expect(name).not_trained(), expected, "{name}");
        }
    }
}
