//! Number formats of a model's parts: `weights = "fp8"`, or a table with one format for all and others for parts.

use engine::formats::{Apart, Formats};
use engine::model::{Model, narrow_checkpoint};
use hw::{Dtype, Format, Gpu};
use toml::Value;

use input::reader::Section;

/// Experts in four bits and sixteen elsewhere, as gpt-oss is published: a word for what most 4-bit checkpoints are.
pub const FOUR_BIT_EXPERTS: &str = "4-bit-experts";

/// Path of the published checkpoint of a model that is served in 16 bits and published in fewer.
pub fn narrower_checkpoint(model: &Model) -> Option<&'static str> {
    narrow_checkpoint(&model.name).filter(|_| model.formats == Formats::of(Dtype::Bf16))
}

/// Formats of parts that are named; the others stay what they are without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    attention: Option<Format>,
    dense: Option<Format>,
    experts: Option<Format>,
    head: Option<Format>,
    kv: Option<Dtype>,
    /// Whether experts are named by themselves, and not as layers like all others.
    pub has_experts: bool,
    /// The same of other feed-forwards.
    pub has_dense: bool,
}

impl Named {
    /// No part.
    pub const NONE: Self = Self {
        attention: None,
        dense: None,
        experts: None,
        head: None,
        kv: None,
        has_experts: false,
        has_dense: false,
    };

    /// What a word names: all layers. The head, keys and values are parts of their own.
    pub fn of_word(word: &str) -> Option<Self> {
        let Formats { attention, dense, experts, .. } = of_word(word)?;
        Some(Self {
            attention: Some(attention),
            dense: Some(dense),
            experts: Some(experts),
            has_experts: experts != dense,
            ..Self::NONE
        })
    }

    /// Reads the parts of a table beside those that it names by one word for all layers.
    pub fn with_parts(self, section: &mut Section<'_>) -> Self {
        let names = ["attention", "dense", "experts", "head", "kv"].map(|key| section.has(key));
        let found = parts(section, self.over(Formats::of(Dtype::Bf16)));
        let part = |n: usize, found: Format, named: Option<Format>| if names[n] { Some(found) } else { named };
        Self {
            attention: part(0, found.attention, self.attention),
            dense: part(1, found.dense, self.dense),
            experts: part(2, found.experts, self.experts),
            head: part(3, found.head, self.head),
            kv: if names[4] { Some(found.kv) } else { self.kv },
            has_experts: names[2] || self.has_experts,
            has_dense: names[1] || self.has_dense,
        }
    }

    /// These, and what others name besides.
    pub fn beside(self, other: Self) -> Self {
        Self {
            attention: self.attention.or(other.attention),
            dense: self.dense.or(other.dense),
            experts: self.experts.or(other.experts),
            head: self.head.or(other.head),
            kv: self.kv.or(other.kv),
            has_experts: if self.experts.is_some() { self.has_experts } else { other.has_experts },
            has_dense: if self.dense.is_some() { self.has_dense } else { other.has_dense },
        }
    }

    /// Without those of layers.
    pub fn outside_of_layers(self) -> Self {
        Self { head: self.head, kv: self.kv, ..Self::NONE }
    }

    /// Whether a part of the layers is named.
    pub fn has_layers(&self) -> bool {
        self.outside_of_layers() != *self
    }

    /// Formats of all parts, over what they are without it.
    pub fn over(self, base: Formats) -> Formats {
        // A word says nothing of the size of groups, which stays that of the checkpoint.
        let part = |named: Option<Format>, base: Format| named.filter(|of| of.word() != base.word()).unwrap_or(base);
        Formats {
            attention: part(self.attention, base.attention),
            // What lies behind attention has a format of its own as long as nobody says attention's.
            output: if self.attention.is_some() { None } else { base.output },
            dense: part(self.dense, base.dense),
            experts: part(self.experts, base.experts),
            head: part(self.head, base.head),
            kv: self.kv.unwrap_or(base.kv),
            apart: if self.has_layers() { Apart::default() } else { base.apart },
            group: base.group.filter(|_| !self.has_layers()),
        }
    }
}

/// Formats of a word.
pub fn of_word(word: &str) -> Option<Formats> {
    let whole = Formats::of(Dtype::Bf16);
    if word == FOUR_BIT_EXPERTS {
        return Some(Formats { experts: Format::Mxfp4, ..whole });
    }
    Format::of_word(word).map(|format| Formats::weights(format, Dtype::Bf16))
}

/// Words that `of_word` knows.
pub fn words() -> Vec<&'static str> {
    Format::ALL.into_iter().map(Format::word).chain([FOUR_BIT_EXPERTS]).collect()
}

/// One format for all layers under a key; `base` where the key is not there.
pub fn all(section: &mut Section<'_>, key: &'static str, base: Formats) -> Formats {
    let (is_there, words) = (section.has(key), words());
    let word = words[section.word(key, 0, &words)];
    of_word(word).filter(|_| is_there).unwrap_or(base)
}

/// Formats as a value of `weights`, as far as its keys tell them: that of the projection behind attention is no key.
pub fn written(formats: &Formats) -> Value {
    let Formats { attention, dense, experts, head, kv, .. } = *formats;
    let parts = [("attention", attention), ("dense", dense), ("experts", experts), ("head", head), ("kv", kv.into())];
    match parts.map(|(_, format)| format) {
        [all, dense, experts, Format::Bf16, Format::Bf16] if [dense, experts] == [all; 2] => all.word().into(),
        _ => Value::Table(parts.map(|(part, format)| (part.to_owned(), format.word().into())).into_iter().collect()),
    }
}

/// What to do about a format that a card does not multiply.
pub const NARROW_WEIGHTS: &str = "`int8-weights`, `int4` and `mxfp4` keep weights narrow and multiply in 16 bits";

/// A format that a card does not multiply, in words; nothing where it multiplies all.
pub fn misfit(formats: &Formats, gpu: &Gpu) -> Option<String> {
    let format = formats.products().into_iter().chain(formats.output).find(|format| !gpu.multiplies(*format))?;
    Some(format!("`{}` multiplies no {}", gpu.name, format.word()))
}

/// Formats that a card multiplies with operands of that width, as words.
pub fn multiplied(gpu: &Gpu) -> String {
    let words: Vec<&str> = Format::ALL.into_iter().filter(|format| gpu.multiplies(*format)).map(Format::word).collect();
    words.join(", ")
}

/// `products` of training as a word or a table by part, attention's own products among them.
pub fn products(section: &mut Section<'_>, base: Formats) -> Formats {
    if !section.has("products") || section.is_text("products") {
        return all(section, "products", base);
    }
    let Some(mut table) = section.table("products") else { return base };
    let all = all(&mut table, "format", base);
    let found = of_layers(&mut table, all);
    let kv = table.one_of("dot_product_attention", base.kv, &[("bf16", Dtype::Bf16), ("fp8", Dtype::Fp8)]);
    table.finish();
    Formats { kv, ..found }
}

/// `weights` as a word or a table, over what holds for all.
pub fn weights(section: &mut Section<'_>, base: Formats) -> Formats {
    if section.is_text("weights") {
        return all(section, "weights", base);
    }
    let Some(mut table) = section.table("weights") else { return base };
    let all = all(&mut table, "format", base);
    let found = parts(&mut table, all);
    table.finish();
    found
}

/// Reads `attention`, `dense`, `experts`, `head` and `kv` of a table over what holds for all.
pub fn parts(section: &mut Section<'_>, all: Formats) -> Formats {
    let found = of_layers(section, all);
    let kept = [("bf16", Dtype::Bf16), ("fp8", Dtype::Fp8), ("int8", Dtype::Int8)];
    Formats { kv: section.one_of("kv", all.kv, &kept), ..found }
}

/// The same without what is kept of keys and values.
fn of_layers(section: &mut Section<'_>, all: Formats) -> Formats {
    let words: Vec<&str> = Format::ALL.into_iter().map(Format::word).collect();
    // What lies behind attention has a format of its own as long as nobody says attention's.
    let output = all.output.filter(|_| !section.has("attention"));
    let is_of_layers = ["attention", "dense", "experts"].into_iter().any(|key| section.has(key));
    let (apart, group) = if is_of_layers { (Apart::default(), None) } else { (all.apart, all.group) };
    let mut part = |key: &'static str, base: Format| {
        let default = words.iter().position(|word| *word == base.word()).unwrap_or(0);
        let found = Format::ALL[section.word(key, default, &words)];
        if found.word() == base.word() { base } else { found }
    };
    let (attention, dense) = (part("attention", all.attention), part("dense", all.dense));
    let (experts, head) = (part("experts", all.experts), part("head", all.head));
    Formats { attention, output, dense, experts, head, kv: all.kv, apart, group }
}
