//! Heads that were trained to draft for a model: one layer over the states that the model computes anyhow.
//!
//! EAGLE (arXiv:2401.15077) joins the next token's embedding with the last state by one product. It shares embedding and head with the model. EAGLE-3
//! (arXiv:2503.01840) fuses the states of three layers by one product, and its queries, keys and values are made of embedding and state beside each
//! other. It has a head of its own for the most frequent tokens alone.

use super::Model;

/// Which kind of head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftHead {
    /// EAGLE and EAGLE-2, which differ in their trees alone.
    Eagle,
    /// EAGLE-3.
    Eagle3,
}

impl DraftHead {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Eagle, Self::Eagle3];

    /// Name in scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eagle => "eagle",
            Self::Eagle3 => "eagle3",
        }
    }

    /// Parameters of the products in front of the layer of a model so wide, which every GPU of a tensor group has whole.
    pub const fn joining_parameters(self, hidden: u64) -> u64 {
        match self {
            Self::Eagle => 2 * hidden * hidden,
            Self::Eagle3 => 3 * hidden * hidden,
        }
    }

    /// Parameters of a head of this kind, as `Model::draft_head` has it, that no GPU has already: its layer, the products in front of it, and EAGLE-3's own
    /// head over tokens.
    pub fn parameters(self, drafts: &Model) -> u64 {
        let (layer, hidden) = (drafts.layers.layer(0), drafts.hidden);
        let own = if self == Self::Eagle3 { (drafts.joined_query_width() + drafts.vocab) * hidden } else { 0 };
        drafts.shared_layer_parameters(layer) + self.joining_parameters(hidden) + own
    }
}

/// Rows of EAGLE-3's own head.
const DRAFT_VOCAB: u64 = 32_000;

/// Attention and feed-forward of heads whose models have no such layer themselves: query heads, key-value heads, width of a head and of the feed-forward.
///
/// Source: `configs/*-eagle3.json` of sgl-project/SpecForge @ a6b6b023.
static SHAPES: [(&str, [u64; 4]); 8] = [
    ("gpt-oss-", [64, 8, 64, 17_280]),
    ("deepseek-v3", [56, 8, 128, 40_960]),
    ("deepseek-r1", [56, 8, 128, 40_960]),
    ("qwen3-235b-a22b", [64, 4, 128, 24_576]),
    ("qwen3-30b-a3b", [32, 4, 128, 12_288]),
    ("qwen3-coder-480b-a35b", [96, 8, 128, 16_384]),
    ("qwen3-next-80b-a3b", [16, 2, 256, 16_384]),
    ("llama-4-scout", [40, 8, 128, 32_768]),
];

impl Model {
    /// A head that drafts for the model, as a model of one layer in 16 bits. Its attention is the model's and its feed-forward is dense. Where the model's
    /// layers have experts, the published head of that model counts. Else the feed-forward is twice as wide as all that a token visits: published ones
    /// have 0.8 to 2.9 times that.
    pub fn draft_head(&self, head: DraftHead) -> Self {
        let own = [self.n_heads, self.n_kv_heads, self.head_dim, self.intermediate];
        let visited = self.experts.map(|experts| experts.top_k * experts.intermediate + experts.shared_intermediate);
        let usual = [own[0], own[1], own[2], visited.map_or(own[3], |width| 2 * width)];
        let published = SHAPES.iter().find(|(name, _)| self.name.starts_with(name)).map(|(_, shape)| *shape);
        let [n_heads, n_kv_heads, head_dim, intermediate] = published.unwrap_or(usual);
        let vocab = if head == DraftHead::Eagle3 { self.vocab.min(DRAFT_VOCAB) } else { self.vocab };
        let (name, tied) = (format!("{} head of {}", head.name(), self.name), self.tied);
        let (max_positions, scaled_positions) = (self.max_positions, self.scaled_positions);
        let plain = Self::dense(name, 1, self.hidden, [n_heads, n_kv_heads, head_dim], intermediate);
        Self { vocab, tied, max_positions, scaled_positions, ..plain }
    }

    /// Columns of queries, keys and values together.
    pub const fn joined_query_width(&self) -> u64 {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::embedded;

    #[test]
    fn heads_are_as_large_as_those_that_are_handed_out() {
        // lmsys on the hub: SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge 0.4B, SGLang-EAGLE3-Llama-3.3-70B-Instruct-SpecForge 1B,
        // SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex 0.2B, SGLang-EAGLE3-Llama-4-Scout-17B-16E-Instruct-SpecForge 0.8B; as printed, one digit.
        for (name, digits, published) in
            [("llama-3.1-8b", 1, 0.4), ("llama-3.1-70b", 0, 1.0), ("qwen3-30b-a3b", 1, 0.2), ("llama-4-scout", 1, 0.8)]
        {
            let n = hw::real(DraftHead::Eagle3.parameters(&embedded(name).expect(name).draft_head(DraftHead::Eagle3)))
                / 1e9;
            let half = 0.5 * f64::powi(10.0, -digits);
            assert!((n - published).abs() <= 1.1 * half, "{name}: {n} B, {published} B are printed");
        }
    }

    #[test]
    fn a_head_is_one_dense_layer_with_few_tokens() {
        let model = embedded("gpt-oss-120b").expect("embedded");
        let head = model.draft_head(DraftHead::Eagle3);
        assert_eq!((head.n_layers, head.vocab, head.intermediate), (1, 32_000, 17_280));
        assert!(head.experts.is_none() && !head.sinks);
        assert_eq!(model.draft_head(DraftHead::Eagle).vocab, model.vocab);
        // A model that nobody published a head for: all that a token visits, twice.
        let other = embedded("minimax-m2").expect("embedded");
        let experts = other.experts.expect("experts");
        assert_eq!(other.draft_head(DraftHead::Eagle3).intermediate, 2 * experts.top_k * experts.intermediate);
    }
}
