//! What the layers of a model are, one after another: what mixes their tokens, and their feed-forward.
//!
//! Most models repeat a few layers from the first to the last; some begin with others (dense ones before those with experts). A `Pattern` is
//! that beginning and what repeats behind it, in the shortest form, so that two equal models have equal patterns.

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mixer {
    /// Attention to every token before.
    Full,
    /// Attention to the last so many tokens, a token's own among them (Gemma 3, gpt-oss).
    Window(u64),
    /// Attention to the tokens before in a token's own chunk of so many (Llama 4).
    Chunked(u64),
    /// Attention to so many tokens that an index picks among all before (DeepSeek-V3.2, arXiv:2512.02556).
    Selected(u64),
    /// The same with what the index of a layer before picked (GLM-5.2).
    Reselected(u64),
    /// Attention to the last `window` tokens and to vectors of `ratio` tokens each before them: to all, or to those that an index picks (DeepSeek-V4).
    Compressed {
        /// Tokens of a vector.
        ratio: u64,
        /// Tokens that are kept by themselves.
        window: u64,
        /// Vectors that an index picks; `None` where all are attended to.
        picked: Option<u64>,
    },
    /// Attention to the keys and values of a layer before, to all of them or to a window (Gemma 3n).
    Reused(Option<u64>),
    /// Attention to every token before and a state space side by side (Falcon-H1).
    Joint,
    /// A gated delta net (arXiv:2412.06464) or another kind of linear attention: a matrix of state per head instead of keys and values.
    Linear,
    /// Mamba-2 (arXiv:2405.21060): a matrix of state per head instead of keys and values.
    StateSpace,
    /// A gated convolution over the last few tokens (LFM2).
    Convolution,
    /// Nothing: the layer is a feed-forward alone (Nemotron-H).
    Off,
}

impl Mixer {
    /// Whether tokens attend to keys.
    pub const fn attends(self) -> bool {
        !matches!(self, Self::Linear | Self::StateSpace | Self::Convolution | Self::Off)
    }

    /// Whether an index picks what is attended to, here or in a layer before.
    pub const fn selects(self) -> bool {
        matches!(self, Self::Selected(_) | Self::Reselected(_) | Self::Compressed { picked: Some(_), .. })
    }

    /// Whether it has an index of its own.
    pub const fn has_index(self) -> bool {
        matches!(self, Self::Selected(_) | Self::Compressed { picked: Some(_), .. })
    }

    /// Whether a state of it is kept of a sequence.
    pub const fn has_state(self) -> bool {
        matches!(self, Self::Joint | Self::Linear | Self::StateSpace | Self::Convolution)
    }

    /// Tokens of a sequence whose keys and values a layer keeps at most; `None` for all, one by one or several together.
    ///
    /// A chunk is kept until the next one begins, so at most one chunk is there.
    pub const fn kept_tokens_max(self) -> Option<u64> {
        match self {
            Self::Full | Self::Selected(_) | Self::Reselected(_) | Self::Compressed { .. } | Self::Joint => None,
            Self::Window(tokens) | Self::Chunked(tokens) => Some(tokens),
            Self::Reused(_) | Self::Linear | Self::StateSpace | Self::Convolution | Self::Off => Some(0),
        }
    }

    /// Tokens that share what is kept of them.
    pub const fn kept_together(self) -> u64 {
        match self {
            Self::Compressed { ratio, .. } => ratio,
            _ => 1,
        }
    }

    /// Keys that a token attends to on average once the context is long; `None` for all of it, one by one or several together.
    ///
    /// A token lies anywhere in its chunk, so it sees half of it.
    pub const fn attended_max(self) -> Option<u64> {
        match self {
            Self::Full | Self::Joint | Self::Compressed { picked: None, .. } => None,
            Self::Reused(tokens) => tokens,
            Self::Window(tokens) | Self::Selected(tokens) | Self::Reselected(tokens) => Some(tokens),
            Self::Compressed { window, picked: Some(picked), .. } => Some(window + picked),
            Self::Chunked(tokens) => Some(tokens.div_ceil(2)),
            Self::Linear | Self::StateSpace | Self::Convolution | Self::Off => Some(0),
        }
    }
}

/// The feed-forward of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FeedForward {
    /// One for every token.
    Dense,
    /// Routed experts, and shared ones.
    Experts,
    /// None: the layer is a mixer alone (Nemotron-H).
    Off,
}

/// A layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Layer {
    /// What mixes its tokens.
    pub mixer: Mixer,
    /// Its feed-forward.
    pub feed_forward: FeedForward,
}

impl Layer {
    /// Full attention and a dense feed-forward.
    pub const DENSE: Self = Self { mixer: Mixer::Full, feed_forward: FeedForward::Dense };
    /// Full attention and experts.
    pub const EXPERTS: Self = Self { mixer: Mixer::Full, feed_forward: FeedForward::Experts };

    /// Whether it attends to all tokens before and has a feed-forward.
    pub fn is_whole(self) -> bool {
        self.mixer == Mixer::Full && self.feed_forward != FeedForward::Off
    }

    /// Whether it has experts.
    pub fn has_experts(self) -> bool {
        self.feed_forward == FeedForward::Experts
    }
}

/// Layers of a model from the first on, for any number of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The first ones.
    beginning: Vec<Layer>,
    /// What repeats behind them; never empty.
    repeated: Vec<Layer>,
}

impl Pattern {
    /// The same layer throughout.
    pub fn uniform(layer: Layer) -> Self {
        Self { beginning: Vec::new(), repeated: vec![layer] }
    }

    /// The same few layers again and again.
    ///
    /// # Panics
    /// Without a layer.
    #[cfg(test)]
    pub fn repeating(layers: &[Layer]) -> Self {
        assert!(!layers.is_empty(), "a layer to repeat");
        // Three turns tell a short beginning from what repeats.
        Self::of_layers(&layers.repeat(3))
    }

    /// Dense layers first, then experts in the last of every so many.
    ///
    /// # Panics
    /// With `every` of 0.
    pub fn of_experts(n_dense: u64, every: u64) -> Self {
        assert!(every > 0, "experts in every 0th layer");
        let layer = |index: u64| if index + 1 == every { Layer::EXPERTS } else { Layer::DENSE };
        Self { beginning: (0..n_dense).map(|_| Layer::DENSE).collect(), repeated: (0..every).map(layer).collect() }
    }

    /// The shortest pattern that gives these layers; a dense one without any.
    pub fn of_layers(layers: &[Layer]) -> Self {
        let n = layers.len();
        let mut best = (n, n.max(1));
        for period in 1..n {
            if period >= best.0 + best.1 {
                break;
            }
            let alike = (0..n - period).rev().take_while(|&at| layers[at] == layers[at + period]).count();
            let beginning = n - period - alike;
            if beginning + period < best.0 + best.1 || best.0 == n {
                best = (beginning, period);
            }
        }
        match best {
            _ if n == 0 => Self::uniform(Layer::DENSE),
            (beginning, _) if beginning == n => Self { beginning: Vec::new(), repeated: layers.to_vec() },
            (beginning, period) => Self {
                beginning: layers[..beginning].to_vec(),
                repeated: layers[beginning..beginning + period].to_vec(),
            },
        }
    }

    /// A layer.
    pub fn layer(&self, index: u64) -> Layer {
        let n_first = self.beginning.len() as u64;
        let (from, at) = if index < n_first {
            (&self.beginning, index)
        } else {
            (&self.repeated, (index - n_first) % self.repeated.len() as u64)
        };
        from[usize::try_from(at).expect("an index into a list in memory")]
    }

    /// Layers among the first `n` that are so.
    pub fn count(&self, n: u64, is: impl Fn(Layer) -> bool) -> u64 {
        let matching = |layers: &[Layer], n: u64| {
            let n = usize::try_from(n).map_or(layers.len(), |n| n.min(layers.len()));
            layers[..n].iter().filter(|layer| is(**layer)).count() as u64
        };
        let period = self.repeated.len() as u64;
        let behind = n.saturating_sub(self.beginning.len() as u64);
        matching(&self.beginning, n)
            + behind / period * matching(&self.repeated, period)
            + matching(&self.repeated, behind % period)
    }

    /// Kinds of layers in the order in which they first come.
    pub fn kinds(&self) -> Vec<Layer> {
        let mut kinds = Vec::new();
        for layer in self.beginning.iter().chain(&self.repeated) {
            if !kinds.contains(layer) {
                kinds.push(*layer);
            }
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Layer = Layer { mixer: Mixer::Window(128), feed_forward: FeedForward::Experts };

    #[test]
    fn the_shortest_pattern_gives_the_listed_layers_back() {
        let dense_first = [[Layer::DENSE; 3].as_slice(), &[Layer::EXPERTS; 58]].concat();
        let turns = [WINDOW, Layer::EXPERTS].repeat(18);
        let odd = [[WINDOW, Layer::EXPERTS].repeat(4).as_slice(), &[WINDOW]].concat();
        let irregular = vec![Layer::DENSE, WINDOW, WINDOW, Layer::DENSE, Layer::EXPERTS];
        for (layers, n_first, n_repeated) in [(dense_first, 3, 1), (turns, 0, 2), (odd, 0, 2), (irregular, 4, 1)] {
            let pattern = Pattern::of_layers(&layers);
            assert_eq!((pattern.beginning.len(), pattern.repeated.len()), (n_first, n_repeated), "{layers:?}");
            let given: Vec<Layer> = (0..layers.len() as u64).map(|index| pattern.layer(index)).collect();
            assert_eq!(given, layers);
        }
    }

    #[test]
    fn what_repeats_stays_as_it_is() {
        let turn = [WINDOW, WINDOW, Layer::EXPERTS];
        let pattern = Pattern::repeating(&turn);
        assert!((0..30).all(|index| pattern.layer(index) == turn[index as usize % 3]));
        assert_eq!(pattern, Pattern::of_layers(&turn.repeat(10)));
    }

    #[test]
    fn counts_are_those_of_the_layers_one_by_one() {
        let pattern = Pattern {
            beginning: vec![Layer::DENSE, WINDOW, Layer::DENSE],
            repeated: vec![WINDOW, WINDOW, Layer::EXPERTS],
        };
        for n in 0..20 {
            for kind in pattern.kinds() {
                let one_by_one = (0..n).filter(|&index| pattern.layer(index) == kind).count() as u64;
                assert_eq!(pattern.count(n, |layer| layer == kind), one_by_one, "{n} {kind:?}");
            }
        }
    }

    #[test]
    fn experts_in_every_so_many_layers_are_in_the_last_of_each() {
        let pattern = Pattern::of_experts(1, 2);
        let found: Vec<bool> = (0..6).map(|index| pattern.layer(index).has_experts()).collect();
        assert_eq!(found, [false, false, true, false, true, false]);
        assert_eq!(Pattern::of_experts(3, 1).count(61, Layer::has_experts), 58);
    }
}
