//! What an engine computes with and how it cuts prompts: `weights`, `prefill_attention`, `chunk_tokens`, `chunk_sizes`. `[engine]` says it for
//! all, a variant for itself.

use engine::Model;
use engine::cost::sparse_attention::{self, Budget, KERNELS, Kernel, SparseAttention};
use engine::cost::sparse_weights::{PRODUCTS, SparseLayers};
use engine::formats::Formats;
use serve::replica::Limits;
use serve::step_cost::chunks::{Chunking, Sizes};
use toml_span::value::ValueInner;

use crate::formats::{self, Named};
use input::diagnostic::Code;
use input::reader::Section;

/// Word of `weights.format` for sparse weights, behind those of formats.
const TILED_CSL: &str = "tiled-csl";

/// What an engine computes with.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernels {
    /// Format of the weights.
    pub weights: Weights,
    /// Sparse attention of prompts; `None` attends to all keys.
    pub attention: Option<Attention>,
    /// Tokens of a prompt in a micro-batch at most, where it is not all that there is room for.
    pub chunk_tokens: Option<u32>,
    /// Sizes of the chunks after the first.
    pub chunk_sizes: Sizes,
    /// Smallest chunk of equal time; a block where it is not said.
    pub chunk_tokens_min: Option<u32>,
}

/// What a way of serving says of weights, keys and values. The rest is as the model's checkpoint says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Formats by part.
    pub named: Named,
    /// Layers whose zeros are left out.
    pub sparse: Option<SparseLayers>,
}

impl Weights {
    /// As the model's checkpoint says.
    pub fn is_of_model(&self) -> bool {
        self.sparse.is_none() && self.named == Named::NONE
    }
}

/// `prefill_attention` with a sparse kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    kernel: &'static Kernel,
    threshold: u64,
    /// Positions per head, where they are not those that are shipped with the model.
    budget: Option<Budget>,
}

impl Kernels {
    /// 16 bits, all keys, as much of a prompt as there is room for.
    pub const PLAIN: Self = Self {
        weights: Weights { named: Named::NONE, sparse: None },
        attention: None,
        chunk_tokens: None,
        chunk_sizes: Sizes::Equal,
        chunk_tokens_min: None,
    };

    /// Products that are kept sparse.
    pub const fn sparse_weights(&self) -> Option<SparseLayers> {
        self.weights.sparse
    }

    /// Formats of a replica whose model has those of `checkpoint`.
    pub fn formats(&self, checkpoint: Formats) -> Formats {
        self.weights.named.over(checkpoint)
    }

    /// Sparse attention of a model on a tensor group; `None` where all keys are read, or where nobody said how many positions are kept.
    pub fn sparse_attention(&self, model: &Model, tensor_degree: u32) -> Option<SparseAttention> {
        let asked = self.attention.as_ref()?;
        let budget = asked.budget.as_ref().or_else(|| sparse_attention::budget(&model.name))?;
        let positions = budget.positions(tensor_degree);
        Some(SparseAttention { kernel: asked.kernel, positions, threshold: asked.threshold })
    }

    /// How prompts are cut within the limits of an engine.
    pub fn chunking(&self, limits: &Limits) -> Option<Chunking> {
        if self.chunk_tokens.is_none() && self.chunk_sizes == Sizes::Equal {
            return None;
        }
        Some(Chunking {
            tokens_max: self.chunk_tokens.unwrap_or(limits.tokens_max).min(limits.tokens_max),
            sizes: self.chunk_sizes,
            block: limits.block_tokens,
            tokens_min: self.chunk_tokens_min.unwrap_or(limits.block_tokens),
        })
    }

    /// What was fitted elsewhere or is assumed, as sentences.
    pub fn free_parameters(&self) -> Vec<String> {
        let weights = self.sparse_weights().map(|_| {
            "sparse products: four constants fitted to bars read off a figure for one A100 (Flash-LLM)".to_owned()
        });
        let attention = self.attention.as_ref().map(|asked| {
            let name = asked.kernel.name;
            format!(
                "sparse kernel `{name}`: three constants fitted to prefill times of Llama-3-8B on one A100 (MInference)"
            )
        });
        weights.into_iter().chain(attention).collect()
    }

    /// What a model cannot have of it, and what to do.
    pub fn misfit(&self, model: &Model) -> Option<(Code, String, String)> {
        if let Some(why) = self.sparse_weights().and_then(|layers| layers.refused(model)) {
            let code = if model.experts.is_some() || model.latent.is_some() {
                Code::UnsupportedModel
            } else {
                Code::WrongOperation
            };
            return Some((code, why, "`weights = { format = \"bf16\" }`".to_owned()));
        }
        let asked = self.attention.as_ref()?;
        if model.latent.is_some() {
            let what = format!("no sparse kernel is known for the latent attention of `{}`", model.name);
            return Some((Code::WrongOperation, what, "`prefill_attention = { kernel = \"dense\" }`".to_owned()));
        }
        let is_known = asked.budget.is_some() || sparse_attention::budget(&model.name).is_some();
        (!is_known).then(|| {
            let known: Vec<&str> = sparse_attention::budgets().collect();
            let help = format!("write `vertical` and `slash` in `prefill_attention`; shipped are {}", known.join(", "));
            (Code::NoSparseBudget, format!("no sparse budget is shipped for `{}`", model.name), help)
        })
    }
}

/// Reads the keys of a section, over what holds without them.
pub fn kernels(section: &mut Section<'_>, base: &Kernels) -> Kernels {
    let mut count = |key, least, found: Option<u32>| {
        let n = section.count(key, Some(0), least..=1 << 20).0;
        if n > 0 { Some(u32::try_from(n).expect("at most 2^20")) } else { found }
    };
    let chunk_tokens = count("chunk_tokens", 1, base.chunk_tokens);
    let chunk_tokens_min = count("chunk_tokens_min", 1, base.chunk_tokens_min);
    let all = [Sizes::Equal, Sizes::EqualTime];
    let default = usize::from(base.chunk_sizes == Sizes::EqualTime);
    let chunk_sizes = all[section.word("chunk_sizes", default, &["equal", "equal-time"])];
    if chunk_sizes == Sizes::Equal && chunk_tokens_min.is_some() {
        let what = "`chunk_tokens_min` without `chunk_sizes = \"equal-time\"`";
        let at = section.at();
        section.refuse(Code::ExclusiveKeys, at, what, "equal chunks have one size, `chunk_tokens`");
    }
    let weights = weights(section, base.weights);
    let attention = section.table("prefill_attention").map_or_else(|| base.attention.clone(), attention);
    Kernels { weights, attention, chunk_tokens, chunk_sizes, chunk_tokens_min }
}

/// `weights = "fp8"`, `weights = { format = "fp8", experts = "mxfp4", kv = "fp8" }`, or
/// `weights = { format = "tiled-csl", sparsity = 0.8, products = ["output"] }`. A format is that of all layers; parts that are not named stay what they
/// are in `base`.
fn weights(section: &mut Section<'_>, base: Weights) -> Weights {
    let of_word =
        |word: &str| Named::of_word(word).map(|named| Weights { named: named.beside(base.named), sparse: None });
    if section.is_text("weights") {
        let words = formats::words();
        return of_word(words[section.word("weights", 0, &words)]).unwrap_or(base);
    }
    let words: Vec<&str> = formats::words().into_iter().chain([TILED_CSL]).collect();
    let Some(mut section) = section.table("weights") else { return base };
    let has_format = section.has("format");
    let word = words[section.word("format", 0, &words)];
    let found = match Named::of_word(word) {
        Some(all) => {
            let named = if has_format { all } else { Named::NONE }.with_parts(&mut section);
            let sparse = if has_format { None } else { base.sparse };
            if sparse.is_some() && named.has_layers() {
                let help = "write `format`, which names all layers";
                section.refuse(
                    Code::ExclusiveKeys,
                    section.at(),
                    "parts of layers whose weights are kept sparse",
                    help,
                );
            }
            Weights { named: named.beside(base.named), sparse }
        }
        None => {
            let sparsity = section.number("sparsity", -1.0, 0.0..=1.0);
            if sparsity < 0.0 {
                section.missing("sparsity", "the share of the layers' weights that are zero, 0 to 1");
            }
            let sparse = Some(SparseLayers { sparsity, is_sparse: products(&mut section) });
            Weights { named: base.named.outside_of_layers(), sparse }
        }
    };
    section.finish();
    found
}

/// `products`: some of a layer's four, or all.
fn products(section: &mut Section<'_>) -> [bool; 4] {
    let Some((value, at)) = section.take("products") else { return [true; 4] };
    let mut is_sparse = [false; 4];
    let items = match &value {
        ValueInner::Array(items) => items.as_slice(),
        _ => &[],
    };
    let known = |item: &toml_span::Value<'_>| PRODUCTS.iter().position(|product| item.as_str() == Some(product));
    let found: Option<Vec<usize>> = items.iter().map(known).collect();
    for index in found.iter().flatten() {
        is_sparse[*index] = true;
    }
    if found.is_none_or(|found| found.is_empty()) {
        let what = "`weights.products` is no list of products";
        section.refuse(Code::UnknownWord, at, what, format!("some of {}", PRODUCTS.join(", ")));
    }
    is_sparse
}

/// `prefill_attention = { kernel = "minference", above_tokens = 32768 }`; with `kernel = "dense"` all keys are read.
fn attention(mut section: Section<'_>) -> Option<Attention> {
    let names: Vec<&str> = ["dense"].into_iter().chain(KERNELS.iter().map(|kernel| kernel.name)).collect();
    if !section.has("kernel") {
        section.missing("kernel", &format!("one of {}", names.join(", ")));
    }
    let kernel = section.word("kernel", 0, &names).checked_sub(1).map(|index| &KERNELS[index]);
    let found = kernel.map(|kernel| {
        let threshold = section.count("above_tokens", Some(32_768), 0..=16_000_000).0;
        let (vertical, slash) = (section.number("vertical", 0.0, 0.0..=1e7), section.number("slash", 0.0, 0.0..=1e7));
        let budget = (vertical + slash > 0.0).then(|| Budget::even(vertical, slash));
        Attention { kernel, threshold, budget }
    });
    section.finish();
    found
}
