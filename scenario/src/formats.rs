//! Number formats of a model's parts: `weights = "fp8"`, or a table with one format for all and others for parts.

use engine::formats::Formats;
use hw::{Dtype, Format};

use input::reader::Section;

/// Experts in four bits and sixteen elsewhere, as gpt-oss is published: a word for what most 4-bit checkpoints are.
pub const FOUR_BIT_EXPERTS: &str = "4-bit-experts";

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
    let words: Vec<&str> = Format::ALL.into_iter().map(Format::word).collect();
    let mut part = |key: &'static str, base: Format| {
        let default = Format::ALL.iter().position(|format| *format == base).unwrap_or(0);
        Format::ALL[section.word(key, default, &words)]
    };
    let (attention, dense) = (part("attention", all.attention), part("dense", all.dense));
    let (experts, head) = (part("experts", all.experts), part("head", all.head));
    let kept = [("bf16", Dtype::Bf16), ("fp8", Dtype::Fp8), ("int8", Dtype::Int8)];
    let kv = section.one_of("kv", all.kv, &kept);
    Formats { attention, dense, experts, head, kv }
}
