//! The name that was perhaps meant, where one that nobody knows is written.
//!
//! Figures tell one product from another, so those of `h800` are no slip. Parts between dashes may stand in another order, be cut short or be left out.

use std::cmp::Reverse;

/// Fewest letters with which a name that begins so is meant, and with which parts are alike.
const BEGINNING: usize = 3;

/// What was perhaps meant, behind a message; empty where no name is near.
pub fn meant<'a>(found: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(found, names).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// The nearest of `names`, when it is near enough to be meant. One that begins so comes first, as `h100-sxm` does with `h100`, and one with a single slip.
/// Then comes one with all parts of what was found, or with no others; then the one with the fewest letters to change; then the one with most parts in common.
pub fn nearest<'a>(found: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let names: Vec<&str> = names.into_iter().collect();
    // Data sheets write cards in capitals.
    let lower = found.to_lowercase();
    let found = if names.iter().any(|name| name.chars().any(char::is_uppercase)) { found } else { &lower };
    begins_so(found, &names)
        .or_else(|| with_few_letters_changed(found, &names, |_| 1))
        .or_else(|| with_all_parts(found, &names))
        .or_else(|| with_few_letters_changed(found, &names, |n_letters| n_letters.div_ceil(3)))
        .or_else(|| with_the_same_parts(found, &names))
}

const fn is_joint(c: char) -> bool {
    matches!(c, '-' | '_' | '.' | ' ')
}

/// What stands in a name behind a beginning, dashes left aside; nothing where it begins otherwise.
fn behind<'a>(name: &'a str, beginning: &str) -> Option<&'a str> {
    let mut rest = name;
    for letter in beginning.chars().filter(|c| !is_joint(*c)) {
        rest = rest.trim_start_matches(is_joint).strip_prefix(letter)?;
    }
    Some(rest)
}

/// The name that begins so: whole parts before cut ones, and the shortest. Of cards the SXM board, which most servers have.
fn begins_so<'a>(found: &str, names: &[&'a str]) -> Option<&'a str> {
    let begun =
        names.iter().filter(|_| found.len() >= BEGINNING).filter_map(|name| Some((behind(name, found)?, *name)));
    let key = |(rest, name): &(&str, &str)| {
        let is_cut = !rest.is_empty() && !rest.starts_with(is_joint);
        (is_cut, name.len(), !rest.ends_with("sxm"))
    };
    begun.min_by_key(key).map(|(_, name)| name)
}

/// Parts of a name. Units of memory are written with and without their `b`.
fn parts(name: &str) -> Vec<String> {
    name.to_lowercase().split(['-', '_']).map(|part| part.trim_end_matches('b').to_owned()).collect()
}

/// Whether one part is the other one cut short: `seqs` for `sequences`.
fn is_alike(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let mut letters = long.chars();
    let begins = short.len() >= BEGINNING && short.chars().zip(long.chars()).take(BEGINNING).all(|(a, b)| a == b);
    begins && short.chars().all(|letter| letters.any(|of| of == letter))
}

/// How many parts of one name the other has, as they are and cut short.
fn common(asked: &[String], has: &[String]) -> [usize; 2] {
    let same = asked.iter().filter(|part| has.contains(part)).count();
    let alike = asked.iter().filter(|part| !has.contains(part) && has.iter().any(|of| is_alike(part, of))).count();
    [same, alike]
}

/// The name that has all parts of what was found, as `num-attention-heads` has those of `num-heads`, or that has no others, as `b200` of `b200-sxm`.
/// One part alone says enough where it is that of a product.
fn with_all_parts<'a>(found: &str, names: &[&'a str]) -> Option<&'a str> {
    let asked = parts(found);
    let says_enough = |of: &[String]| of.len() > 1 || of.iter().any(|part| product(part).is_some());
    let score = |name: &str| {
        let has = parts(name);
        let ([same, alike], [within, _]) = (common(&asked, &has), common(&has, &asked));
        let has_all = same > 0 && same + alike == asked.len() && says_enough(&asked);
        let has_no_others = within == has.len() && says_enough(&has);
        let begins = has[0] == asked[0];
        (has_all || has_no_others).then_some((has_all, same, begins, Reverse(has.len())))
    };
    let scored = names.iter().filter_map(|name| Some((score(name)?, *name)));
    // The first of those that are as good.
    scored.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, name)| name)
}

/// The product that a name begins with: a few letters and then figures, as `h800`, `a10` and `fp8`.
fn product(name: &str) -> Option<&str> {
    let letters = name.bytes().take_while(u8::is_ascii_alphabetic).count();
    let figures = name.bytes().skip(letters).take_while(u8::is_ascii_digit).count();
    ((1..=3).contains(&letters) && figures > 0).then(|| &name[..letters + figures])
}

/// The name with the fewest letters to change. So many of the shorter one's letters may be wrong, and of three letters the first may be left out and not be another.
fn with_few_letters_changed<'a>(found: &str, names: &[&'a str], most: fn(usize) -> usize) -> Option<&'a str> {
    let is_slip = |name: &&str| product(found).is_none_or(|asked| product(name) == Some(asked));
    let is_short = |name: &str| name.len().min(found.len()) <= BEGINNING;
    let is_cut = |name: &str| name.ends_with(found) || found.ends_with(name);
    let is_other = |name: &str| is_short(name) && !is_cut(name) && name.chars().next() != found.chars().next();
    let scored = names.iter().copied().filter(is_slip).map(|name| (strsim::damerau_levenshtein(found, name), name));
    scored
        .filter(|(distance, name)| *distance <= most(name.len().min(found.len())) && !is_other(name))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The name whose parts are most alike, where the first part is the same and more than that.
fn with_the_same_parts<'a>(found: &str, names: &[&'a str]) -> Option<&'a str> {
    let asked = parts(found);
    let score = |name: &str| {
        let has = parts(name);
        let [same, alike] = common(&asked, &has);
        (has[0] == asked[0] && same + alike > 1).then_some((same + alike, same, Reverse(has.len())))
    };
    let alike = names.iter().filter_map(|name| Some((score(name)?, *name)));
    alike.max_by_key(|(score, _)| *score).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARDS: [&str; 12] = [
        "a10g",
        "a100-sxm-40g",
        "a100-sxm-80g",
        "a100-pcie-80g",
        "a6000",
        "b200",
        "h20",
        "h100-nvl",
        "h100-sxm",
        "h200-sxm",
        "rtx-3090",
        "rtx-4090",
    ];

    #[test]
    fn another_product_is_no_slip_and_parts_may_stand_in_another_order() {
        let near = |found| nearest(found, CARDS);
        assert_eq!(near("h100"), Some("h100-sxm"));
        assert_eq!(near("H100"), Some("h100-sxm"));
        assert_eq!(near("h100sxm"), Some("h100-sxm"));
        assert_eq!(near("b200-sxm"), Some("b200"));
        assert_eq!(near("rtx-a6000"), Some("a6000"));
        assert_eq!(near("a100-80gb-sxm"), Some("a100-sxm-80g"));
        assert_eq!(near("a100-80g-pcie"), Some("a100-pcie-80g"));
        assert_eq!(near("rtx4090"), Some("rtx-4090"));
        // Other families, and generations that nobody has listed.
        assert_eq!((near("h800"), near("a800"), near("b100"), near("x900")), (None, None, None, None));
        assert_eq!(nearest("tpu", ["cpu"]), None);
        assert_eq!(nearest("est", ["west", "one"]), Some("west"));
        assert_eq!(nearest("fp8", ["bf16", "fp16", "fp32"]), None);
        // Words are slips as ever.
        assert_eq!(nearest("max_tokns", ["max_tokens", "max_context"]), Some("max_tokens"));
        assert_eq!(nearest("llama-3.1-80b", ["llama-3.1-8b", "llama-3.1-405b"]), Some("llama-3.1-8b"));
    }

    #[test]
    fn a_model_that_is_named_in_part_is_no_toy() {
        let models = ["llama-3m", "llama-3-70b", "llama-3-8b", "llama-3.1-8b"];
        assert_eq!(nearest("llama3", models), Some("llama-3-8b"));
        assert_eq!(nearest("llama-8b", models), Some("llama-3-8b"));
    }

    #[test]
    fn parts_may_be_left_out_or_cut_short() {
        let flags = [
            "num-layers",
            "num-attention-heads",
            "context-parallel-size",
            "model-parallel-size",
            "tensor-model-parallel-size",
            "pipeline-model-parallel-size",
            "expert-tensor-parallel-size",
            "max-num-queued-reqs",
            "max-num-seqs",
        ];
        let near = |found| nearest(found, flags);
        assert_eq!(near("num-heads"), Some("num-attention-heads"));
        assert_eq!(near("tensor-parallel-size"), Some("tensor-model-parallel-size"));
        assert_eq!(near("pipeline-parallel-size"), Some("pipeline-model-parallel-size"));
        assert_eq!(near("max-num-sequences"), Some("max-num-seqs"));
        // A slip in a part is that, though a shorter name has all other parts.
        let formats = ["bf16_mixed", "bf16_with_mxfp8_mixed"];
        assert_eq!(nearest("bf16_with_mxpf8_mixed", formats), Some("bf16_with_mxfp8_mixed"));
        assert_eq!(nearest("max_seqs", ["max_tokens", "max_sequences"]), Some("max_sequences"));
    }
}
