//! Graphs that SGLang captures, by the phase of an iteration: those of batches that only decode, and those of iterations with prompts.
//!
//! Source: sgl-project/sglang `srt/arg_groups/cuda_graph_hook.py` of 0.5.23 (`parse_cuda_graph_config`): JSON counts before the options of a phase, these before the
//! switches of a phase, and these before the switch of both. A list of sizes counts before the largest. Before 0.5.14 the switch of both is of decoding alone.

use serde_json::{Map, Value};
use serve::engine_preset::Version;

use crate::flags::{Flag, Flags, last, words};
use crate::serving::Server;

/// The option with all of it as JSON.
const JSON: &str = "cuda-graph-config";
/// The switch of both phases.
const OFF: &str = "disable-cuda-graph";
/// Most tokens of an iteration with prompts.
const TOKENS_MAX: u64 = 1 << 20;
/// The switch of padding, of batches that only decode.
const UNPADDED: &str = "disable-cuda-graph-padding";

/// A phase, the key of its largest graph, options of its sizes and of its largest, by their older names too, and its switches.
struct Phase {
    backend: &'static str,
    key: &'static str,
    sizes: [&'static str; 2],
    largest: [&'static str; 2],
    off: [&'static str; 2],
}

const DECODE: Phase = Phase {
    backend: "cuda-graph-backend-decode",
    key: "graph_max",
    sizes: ["cuda-graph-bs-decode", "cuda-graph-bs"],
    largest: ["cuda-graph-max-bs-decode", "cuda-graph-max-bs"],
    off: ["disable-decode-cuda-graph", OFF],
};
const PREFILL: Phase = Phase {
    backend: "cuda-graph-backend-prefill",
    key: "prompt_graph_max",
    sizes: ["cuda-graph-bs-prefill", "piecewise-cuda-graph-tokens"],
    largest: ["cuda-graph-max-bs-prefill", "piecewise-cuda-graph-max-tokens"],
    off: ["disable-prefill-cuda-graph", "disable-piecewise-cuda-graph"],
};

/// Keys of a phase in that JSON which are options of it too; any other leaves a warning.
const KEYS: [&str; 4] = ["backend", "max_bs", "bs", "max_seq_len"];

/// Options behind which stand those of the JSON, which counts before them.
pub(super) fn with_json(mut flags: Vec<Flag>) -> Vec<Flag> {
    let Some(whole) = last(&flags, JSON).cloned() else { return flags };
    let Ok(mut config) = serde_json::from_str::<Map<String, Value>>(&whole.value()) else { return flags };
    for (phase, keys) in &mut config {
        let Some(keys) = keys.as_object_mut() else { continue };
        for key in KEYS {
            let Some(value) = keys.remove(key) else { continue };
            let name = format!("cuda-graph-{}-{phase}", key.replace('_', "-"));
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            flags.push(Flag { name, values: vec![text], at: whole.at.clone() });
        }
    }
    config.retain(|_, keys| keys.as_object().is_none_or(|keys| !keys.is_empty()));
    if config.is_empty() {
        flags.retain(|flag| flag.name != JSON);
    }
    flags
}

/// Reads what is captured.
pub(super) fn read(server: &mut Server, flags: &mut Flags<'_>) {
    if super::is_without_graphs(flags) {
        server.key(DECODE.key, 0, "--deepep-mode normal");
    } else if !is_off(server, flags, &DECODE) {
        decode(server, flags);
    }
    if !is_off(server, flags, &PREFILL) {
        prefill(server, flags);
    }
}

/// Batches that only decode: a list of sizes, or the largest, and whether others are filled up.
fn decode(server: &mut Server, flags: &mut Flags<'_>) {
    server.graphs(flags, &DECODE.sizes, &DECODE.largest);
    if flags.is(UNPADDED) {
        server.key("graph_padding", false, "--disable-cuda-graph-padding");
    }
}

/// Iterations with prompts, which are not filled up: the largest alone counts.
fn prefill(server: &mut Server, flags: &mut Flags<'_>) {
    let named = flags.last_of(&PREFILL.sizes).and_then(|name| Some((name, flags.text(name)?)));
    match named.and_then(|(name, text)| Some((name, words(&text).filter_map(|word| word.parse::<u64>().ok()).max()?))) {
        Some((name, most)) => server.key(PREFILL.key, most, &format!("--{name}")),
        None => server.count(flags, PREFILL.key, &PREFILL.largest, TOKENS_MAX),
    }
}

/// Whether the graphs of a phase are turned off, which is written then.
fn is_off(server: &mut Server, flags: &mut Flags<'_>, phase: &Phase) -> bool {
    let backend = flags.find(phase.backend).map(Flag::value);
    let Some(switch) = off(server, flags, phase, backend.as_deref()) else { return false };
    server.key(phase.key, 0, &format!("--{switch}"));
    true
}

/// The option that turns the graphs of a phase off.
fn off<'p>(server: &Server, flags: &Flags<'_>, phase: &'p Phase, backend: Option<&str>) -> Option<&'p str> {
    match backend {
        Some("disabled") => return Some(phase.backend),
        Some(_) => return None,
        None => {}
    }
    let own = phase.off.into_iter().find(|switch| flags.is(switch));
    own.or_else(|| (flags.is(OFF) && is_of_both(server)).then_some(OFF))
}

/// Whether the switch of both phases is one in such a version.
fn is_of_both(server: &Server) -> bool {
    const SINCE: Version = Version(0, 5, 14);
    let version = server.keys.iter().find(|(key, ..)| *key == "version");
    version.is_none_or(|(_, text, _)| Version::parse(text.trim_matches('"')) >= SINCE)
}

#[cfg(test)]
mod tests {
    use crate::example::{import_text, on, said};

    const SERVER: &str = "python -m sglang.launch_server --model-path llama-3-8b";

    fn keys(options: &str) -> Vec<String> {
        let found = import_text(&format!("{SERVER} {options}"), &on("h100-sxm"));
        let lines = found
            .scenario
            .lines()
            .filter(|line| ["graph_max", "graph_sizes", "graph_padding"].iter().any(|key| line.contains(key)));
        lines.filter_map(|line| Some(line.split_once(" #")?.0.trim().to_owned())).collect()
    }

    #[test]
    fn each_phase_has_options_of_its_own() {
        for (options, expected) in [
            ("--disable-cuda-graph", &["graph_max = 0", "prompt_graph_max = 0"][..]),
            ("--disable-decode-cuda-graph", &["graph_max = 0"]),
            ("--disable-prefill-cuda-graph", &["prompt_graph_max = 0"]),
            ("--cuda-graph-backend-decode disabled", &["graph_max = 0"]),
            ("--cuda-graph-backend-prefill=disabled", &["prompt_graph_max = 0"]),
            ("--cuda-graph-backend-decode full --cuda-graph-backend-prefill breakable", &[]),
            // What names a phase counts before what turns both off.
            ("--disable-cuda-graph --cuda-graph-backend-decode full", &["prompt_graph_max = 0"]),
            ("--cuda-graph-max-bs 64 --cuda-graph-max-bs-prefill 2048", &["graph_max = 64", "prompt_graph_max = 2048"]),
            ("--cuda-graph-bs-decode 1 2 48 --cuda-graph-max-bs-decode 64", &["graph_sizes = [1, 2, 48]"]),
            ("--disable-cuda-graph-padding", &["graph_padding = false"]),
            (
                "--cuda-graph-max-bs 8 --cuda-graph-config '{\"decode\":{\"backend\":\"full\",\"max_bs\":256},\"prefill\":{\"backend\":\"disabled\"}}'",
                &["graph_max = 256", "prompt_graph_max = 0"],
            ),
            ("--cuda-graph-config '{\"prefill\":{\"bs\":[16,512]}}'", &["prompt_graph_max = 512"]),
        ] {
            assert_eq!(keys(options), expected, "{options}");
        }
    }

    #[test]
    fn before_0_5_14_the_switch_of_both_is_of_decoding_alone() {
        for (tag, expected) in
            [("v0.5.12", &["graph_max = 0"][..]), ("v0.5.14", &["graph_max = 0", "prompt_graph_max = 0"])]
        {
            let run = format!("docker run lmsysorg/sglang:{tag} {SERVER} --disable-cuda-graph");
            let scenario = import_text(&run, &on("h100-sxm")).scenario;
            for key in ["graph_max = 0", "prompt_graph_max = 0"] {
                let is_there = scenario.lines().any(|line| line.starts_with(key));
                assert_eq!(is_there, expected.contains(&key), "{tag} {key}: {scenario}");
            }
        }
    }

    #[test]
    fn what_is_not_timed_of_graphs_is_said() {
        for (options, is_said) in [
            ("--debug-cuda-graph", true),
            ("--cuda-graph-backend-decode breakable", true),
            ("--cuda-graph-backend-decode full", false),
            ("--cuda-graph-backend-prefill breakable", false),
            ("--cuda-graph-max-seq-len-prefill 4096", true),
        ] {
            let found = import_text(&format!("{SERVER} {options}"), &on("h100-sxm"));
            let told = said(&found).iter().any(|what| what.contains("is not modelled"));
            assert_eq!(told, is_said, "{options}: {:?}", found.findings);
        }
        let found = import_text(&format!("{SERVER} --cuda-graph-backend-decode fast"), &on("h100-sxm"));
        assert!(said(&found).iter().any(|what| what.contains("none of its words")), "{:?}", found.findings);
    }
}
