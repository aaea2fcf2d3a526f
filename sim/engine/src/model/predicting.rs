//! Layers that predict a further token each, as layers of a training step.

use std::collections::BTreeSet;

use super::{FeedForward, Layer, Mixer, Model, Pattern};

/// A layer of a hybrid that is attention alone, and one that is experts alone.
const OF_HYBRID: [Layer; 2] = [
    Layer { mixer: Mixer::Full, feed_forward: FeedForward::Off },
    Layer { mixer: Mixer::Off, feed_forward: FeedForward::Experts },
];

impl Model {
    /// The model with so many layers that predict a further token each, behind its own: as its others, or attention and experts in a hybrid
    /// with state-space layers. They are counted among its layers, and each sends its output through the head (Megatron-Core,
    /// `MultiTokenPredictionBlock`).
    ///
    /// # Panics
    /// With layers that no memory holds.
    pub fn with_predicting(self, n: u64) -> Self {
        if n == 0 || self.state_space.is_none() {
            return Self { n_layers: self.n_layers + n, n_predicting: n, ..self };
        }
        let mut layers: Vec<Layer> = (0..self.n_layers).map(|index| self.layers.layer(index)).collect();
        (0..n).for_each(|_| layers.extend(OF_HYBRID));
        Self { n_layers: layers.len() as u64, layers: Pattern::of_layers(&layers), n_predicting: n, ..self }
    }

    /// Layers that a training step has no time for, in words; empty where there are none. Steps of Megatron-Core and of PyTorch modules have
    /// windows, linear attention and state spaces.
    pub fn not_trained(&self) -> String {
        let words = |layer: Layer| match layer.mixer {
            Mixer::Chunked(_) => Some("attention in chunks"),
            Mixer::Selected(_) => Some("attention to selected tokens"),
            Mixer::Full | Mixer::Window(_) | Mixer::Linear | Mixer::StateSpace | Mixer::Off => None,
        };
        let found: BTreeSet<&str> = self.layers.kinds().into_iter().filter_map(words).collect();
        found.into_iter().collect::<Vec<_>>().join(", ")
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
    }

    #[test]
    fn layers_without_a_time_are_named() {
        for (name, expected) in [
            ("llama-3-8b", ""),
            ("gpt-oss-120b", ""),
            ("nemotron-3-nano-30b-a3b", ""),
            ("glm-5", "attention to selected tokens"),
        ] {
            assert_eq!(embedded(name).expect(name).not_trained(), expected, "{name}");
        }
    }
}
