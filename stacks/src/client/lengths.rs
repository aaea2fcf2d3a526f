//! Lengths of prompts and answers: how clients draw them around what is asked for, and data sets that give them.

use input::diagnostic::Code;

use super::reader::Reader;

/// Most tokens of a prompt or an answer.
pub(super) const TOKENS_MAX: u64 = 10_000_000;
/// Tokens of an answer where the model ends it and nobody says how many: what vLLM's client asks of prompts without answers (`--custom-output-len`).
const ANSWER: u64 = 256;

/// Between which ends lengths are drawn, by what a client calls the range ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// From `n·(1 − r)` rounded down to `n·(1 + r)` rounded up (vLLM 0.32 `vllm/benchmarks/datasets/utils.py`).
    Around,
    /// The same with both rounded down (NVIDIA/TensorRT-LLM `serve/scripts/benchmark_dataset.py` @ 0bf6dbc8ff9e).
    AroundDown,
    /// From `n·r` to `n` (SemiAnalysisAI/InferenceX `utils/bench_serving/benchmark_serving.py` @ 843c6254ff69; SGLang 0.5.23
    /// `sglang/benchmark/datasets/common.py`).
    UpTo,
}

impl Rule {
    /// The ends around a number.
    pub(super) fn ends(self, n: u64, ratio: f64) -> [u64; 2] {
        let real = hw::real(n);
        let ends = match self {
            Self::Around => [(real * (1.0 - ratio)).floor(), (real * (1.0 + ratio)).ceil()],
            Self::AroundDown => [(real * (1.0 - ratio)).floor(), (real * (1.0 + ratio)).floor()],
            Self::UpTo => [(real * ratio).floor(), real],
        };
        // A length of nothing is no request.
        ends.map(|end| hw::whole(end.clamp(1.0, hw::real(2 * TOKENS_MAX))))
    }

    /// Whether a client takes such a ratio.
    pub(super) fn takes(self, ratio: f64) -> bool {
        match self {
            Self::Around | Self::AroundDown => (0.0..1.0).contains(&ratio),
            Self::UpTo => (0.0..=1.0).contains(&ratio),
        }
    }
}

/// Ends as a key has them.
pub(super) fn text([from, to]: [u64; 2]) -> String {
    if from == to { from.to_string() } else { format!("[{from}, {to}]") }
}

/// Lengths that are drawn from a bell: even ones with the same mean and the same deviation, which a warning says.
pub(super) fn deviating(read: &mut Reader<'_>, mean: u64, name: &str, deviation: f64) -> [u64; 2] {
    if deviation <= 0.0 {
        return [mean, mean];
    }
    let half = 3.0_f64.sqrt() * deviation;
    let ends = [hw::real(mean) - half, hw::real(mean) + half];
    let ends = ends.map(|end| hw::whole(end.clamp(1.0, hw::real(2 * TOKENS_MAX))));
    let what = format!("`{}`: lengths are drawn evenly, with that mean and deviation", read.flags.shown(name));
    let help = format!("the client draws them from a bell; {} is taken", text(ends));
    read.warn(name, what, help);
    ends
}

/// Answers whose length only the model knows.
pub(super) fn open_answers(read: &mut Reader<'_>, option: &str) {
    if !read.wants_tokens("output_tokens") {
        return;
    }
    let what = format!("`{}` does not say how long answers are: {ANSWER} tokens are taken", read.name);
    let help = format!("give `{option}`, or `--set trace.output_tokens=…`");
    read.flags.warn(Code::MissingFlag, None, what, help);
    read.set("output_tokens", ANSWER, "stands for answers that the model ends");
}

/// Keys that say lengths, each of which excludes a table.
const TOKENS: [&str; 2] = ["prompt_tokens", "output_tokens"];

/// Whether the command line leaves all lengths to the client.
pub(super) fn are_open(read: &Reader<'_>) -> bool {
    read.wants("lengths") && TOKENS.iter().all(|key| read.wants(key))
}

/// Lengths of the shipped table of conversations, whose choice is another than the client's.
pub(super) fn conversations(read: &mut Reader<'_>, option: &str) {
    if !are_open(read) {
        return;
    }
    let what = "the shipped `sharegpt` has conversations with at least 512 tokens of answer";
    let help = "clients take shorter ones too, up to 1,024 tokens of prompt and 2,048 in all: `--set trace.lengths=…` names a list of your own";
    read.warn(option, what, help);
    read.set("lengths", "\"sharegpt\"", format!("--{option}"));
}

/// Lengths that stand for those of a data set that is not read.
pub(super) fn fallback(read: &mut Reader<'_>, option: &str, set: &str) {
    if !are_open(read) {
        return;
    }
    let what = format!("the data set `{set}` of `{}` is not read: lengths of `azure-conv` are taken", read.name);
    let help =
        "give `--set trace.prompt_tokens=…` with `trace.output_tokens`, `--set trace.lengths=…` or a trace of your own";
    read.warn(option, what, help);
    read.set("lengths", "\"azure-conv\"", format!("stands for the data set `{set}`"));
}

/// A beginning that all prompts share, of so many tokens.
pub(super) fn shared_beginning(read: &mut Reader<'_>, tokens: u64, remark: String) {
    if tokens > 0 && read.wants("sessions") {
        read.set("sessions", format!("{{ turns = 1, system_tokens = {tokens} }}"), remark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_those_of_the_sources() {
        for (rule, n, ratio, expected) in [
            (Rule::Around, 1024, 0.0, [1024, 1024]),
            (Rule::Around, 1024, 0.8, [204, 1844]),
            (Rule::AroundDown, 1024, 0.8, [204, 1843]),
            (Rule::UpTo, 1024, 1.0, [1024, 1024]),
            (Rule::UpTo, 1024, 0.8, [819, 1024]),
            (Rule::UpTo, 1024, 0.0, [1, 1024]),
            (Rule::Around, 1, 0.9, [1, 2]),
        ] {
            assert_eq!(rule.ends(n, ratio), expected, "{rule:?} {n} {ratio}");
        }
        assert_eq!(text([1, 1024]), "[1, 1024]");
    }
}
