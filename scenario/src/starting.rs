//! A scenario to start from. Shipped scenarios of training are of papers and have the published formulas; a scenario of one's own has a framework, as
//! measured steps are predicted.

/// The line that names a framework.
const FRAMEWORK: &str = "framework = \"megatron-core\"      # whose kernels, casts and launches count; or pytorch (torchtitan), or formulas (of papers)";

/// A scenario of training with a framework where it names none. Figures of a paper in `[expect]` are of the formulas, so there the line is a remark. A
/// framework has launches of the card's host, which a fitted host time would stand for.
pub fn with_framework(text: &str) -> String {
    let has = |beginning: &str| text.lines().any(|line| line.starts_with(beginning));
    let is_training = has("kind = \"training\"") && has("[training]");
    if !is_training || ["framework", "units", "[[group]]"].into_iter().any(has) {
        return text.to_owned();
    }
    let of_paper = if has("\"metrics.") { "# " } else { "" };
    let mut out = String::new();
    for line in text.lines() {
        if of_paper.is_empty() && line.starts_with("host_overhead_per_layer_us") {
            out += "# ";
        }
        out += line;
        out += "\n";
        if line.starts_with("[training]") {
            out += &format!("{of_paper}{FRAMEWORK}\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EMBEDDED, shipped};

    #[test]
    fn scenarios_of_training_begin_with_a_framework() {
        let lines = |name: &str| with_framework(shipped(name).expect("shipped"));
        let quickstart = lines("quickstart");
        assert!(quickstart.contains("\n[training]\nframework = \"megatron-core\" "), "{quickstart}");
        assert!(quickstart.contains("\n# host_overhead_per_layer_us = 50.0\n"), "{quickstart}");
        // What a paper printed was met with its formulas.
        assert!(lines("megatron/gpt-175b-384").contains("\n# framework = \"megatron-core\" "));
        for (name, text) in EMBEDDED {
            let found = with_framework(text);
            assert!(found == *text || found.lines().count() == text.lines().count() + 1, "{name}");
        }
        assert_eq!(lines("serving/azure-conv"), shipped("serving/azure-conv").expect("shipped"));
    }
}
