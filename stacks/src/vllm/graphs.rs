//! What vLLM compiles and captures: sizes and modes of graphs, and norms inside of all-reduces, by options of their own or in the JSON of one.

use serde_json::{Map, Value};

use crate::flags::{Flags, listed};
use crate::serving::Server;

/// Keys of the JSON of `--compilation-config` that say how many sequences are captured.
const GRAPH_SIZES: [&str; 2] = ["cudagraph_capture_sizes", "max_cudagraph_capture_size"];

/// The option of what is compiled and captured.
const COMPILATION: &str = "compilation-config";
/// Sizes of captured batches, and the name that they had before.
const SIZES: &str = "cudagraph-capture-sizes";
const OLDER: &str = "cuda-graph-sizes";

/// What a reader takes out of the JSON of that option, which is gone where nothing else stands in it.
fn of_compilation<T>(flags: &mut Flags<'_>, take: fn(&mut Map<String, Value>) -> Option<T>) -> Option<T> {
    let flag = flags.given.iter_mut().rev().find(|flag| flag.name == COMPILATION)?;
    let mut config = serde_json::from_str::<Map<String, Value>>(&flag.value()).ok()?;
    let taken = take(&mut config)?;
    let is_read = config.is_empty();
    flag.values = vec![Value::Object(config).to_string()];
    flags.given.retain(|flag| flag.name != COMPILATION || !is_read);
    Some(taken)
}

/// Whether norms are done inside of all-reduces (`PassConfig` in `vllm/config/compilation.py`).
fn fuses_reduces(config: &mut Map<String, Value>) -> Option<bool> {
    let passes = config.get_mut("pass_config")?.as_object_mut()?;
    let fuses = passes.remove("fuse_allreduce_rms")?.as_bool()?;
    if passes.is_empty() {
        config.remove("pass_config");
    }
    Some(fuses)
}

/// The key that is 0 in a mode which captures nothing, or nothing with prompts (`CUDAGraphMode` there); none in the usual one. Other modes stay.
fn without_graphs(config: &mut Map<String, Value>) -> Option<Option<&'static str>> {
    const KEY: &str = "cudagraph_mode";
    let key = match config.get(KEY)?.as_str()?.to_uppercase().as_str() {
        "NONE" => Some("graph_max"),
        "FULL_DECODE_ONLY" => Some("prompt_graph_max"),
        "FULL_AND_PIECEWISE" => None,
        _ => return None,
    };
    config.remove(KEY);
    Some(key)
}

/// Sequences of captured graphs: by options of their own, or in the JSON of `--compilation-config`.
pub(super) fn read(server: &mut Server, flags: &mut Flags<'_>) {
    if let Some(fuses) = of_compilation(flags, fuses_reduces) {
        server.key("all_reduce", if fuses { "\"fused\"" } else { "\"separate\"" }, "--compilation-config");
    }
    let without = of_compilation(flags, without_graphs).flatten();
    if flags.is("enforce-eager") {
        return server.key("graph_max", 0, "--enforce-eager");
    }
    if let Some(key) = without {
        server.key(key, 0, "cudagraph_mode");
    }
    if without == Some("graph_max") {
        return;
    }
    // An older flag with one number is the largest of the usual ones (`_set_cudagraph_sizes` in vllm/config of 0.9 to 0.11).
    let is_largest = flags.text(OLDER).is_some_and(|sizes| sizes.parse::<u64>().is_ok());
    let lists: &[&str] = if is_largest { &[SIZES] } else { &[SIZES, OLDER] };
    server.graphs(flags, lists, &["max-cudagraph-capture-size", OLDER]);
    let config = flags.text(COMPILATION).and_then(|text| serde_json::from_str::<Map<String, Value>>(&text).ok());
    let Some(config) = config.filter(|config| !config.is_empty()) else { return };
    let sizes = config.get(GRAPH_SIZES[0]).and_then(Value::as_array);
    let list = sizes.and_then(|sizes| listed(&Value::from(sizes.clone()).to_string()));
    let most = config.get(GRAPH_SIZES[1]).and_then(Value::as_u64);
    match (&list, most) {
        (Some(list), _) => server.key("graph_sizes", list, "--compilation-config"),
        (None, Some(most)) => server.key("graph_max", most, "--compilation-config"),
        (None, None) => {}
    }
    // What else stands there is judged; sizes alone are read.
    if (list.is_some() || most.is_some()) && config.keys().all(|key| GRAPH_SIZES.contains(&key.as_str())) {
        flags.given.retain(|flag| flag.name != COMPILATION);
    }
}

#[cfg(test)]
mod tests {
    use input::diagnostic::Code;

    use crate::Imported;
    use crate::example::{import_text, on};

    fn read(text: &str) -> Imported {
        import_text(text, &on("h100-sxm"))
    }

    #[test]
    fn norms_inside_of_all_reduces_are_read_as_they_are_written() {
        let command = "vllm serve Qwen/Qwen3-32B -tp 2";
        for (option, key) in [
            ("--compilation-config '{\"pass_config\":{\"fuse_allreduce_rms\":false}}'", "all_reduce = \"separate\""),
            ("-cc.pass_config.fuse_allreduce_rms=true", "all_reduce = \"fused\""),
            ("--compilation-config.pass_config.fuse_allreduce_rms true", "all_reduce = \"fused\""),
        ] {
            let Imported { scenario, findings } = read(&format!("{command} {option}"));
            assert!(scenario.contains(key), "{option}: {scenario}");
            assert!(findings.iter().all(|found| found.code == Code::MissingFlag), "{option}: {findings:?}");
        }
        // Sizes beside it are read too, and what else stands there has its warning.
        let both = "'{\"pass_config\":{\"fuse_allreduce_rms\":true},\"max_cudagraph_capture_size\":64}'";
        let Imported { scenario, findings } = read(&format!("{command} --compilation-config {both}"));
        assert!(scenario.contains("graph_max = 64") && scenario.contains("all_reduce = \"fused\""), "{scenario}");
        assert!(findings.iter().all(|found| found.code == Code::MissingFlag), "{findings:?}");
        let more = "'{\"pass_config\":{\"fuse_allreduce_rms\":true,\"enable_sp\":true}}'";
        let Imported { scenario, findings } = read(&format!("{command} --compilation-config {more}"));
        assert!(scenario.contains("all_reduce = \"fused\""), "{scenario}");
        assert!(findings.iter().any(|found| found.code == Code::NotModelled), "{findings:?}");
    }

    #[test]
    fn modes_of_graphs_and_lengths_that_fit_are_keys() {
        let command = "vllm serve Qwen/Qwen3-32B -tp 2";
        for (option, line) in [
            ("--compilation-config.cudagraph_mode FULL_DECODE_ONLY", "prompt_graph_max = 0 "),
            ("--compilation-config '{\"cudagraph_mode\":\"NONE\"}'", "\ngraph_max = 0 "),
            ("--max-model-len auto", "max_context = \"fits\""),
            ("--max-model-len=-1", "max_context = \"fits\""),
            ("--max-model-len -1", "max_context = \"fits\""),
        ] {
            let Imported { scenario, findings } = read(&format!("{command} {option}"));
            assert!(scenario.contains(line), "{option}: {scenario}");
            assert!(findings.iter().all(|found| found.code == Code::MissingFlag), "{option}: {findings:?}");
        }
    }
}
