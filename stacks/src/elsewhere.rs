//! Files that are no scenario and that another verb or key takes: what they are by their content, and where they belong.

pub(crate) mod servers;

use serde_json::Value;

/// What a file is, and what takes it; `None` where it is nothing that is known.
pub fn of_text(text: &str) -> Option<&'static str> {
    let head = crate::head(text);
    let first = head.trim_start();
    if let Some(what) = servers::named(head)
        && toml_span::parse(text).is_err()
        && crate::recognise(text).is_none()
    {
        return Some(what);
    }
    if !first.starts_with(['{', '[']) {
        return None;
    }
    if has(head, &["\"traceEvents\""]) {
        return Some("a trace of PyTorch's profiler: give it to `skrull-sim validate SCENARIO --measured FILE`");
    }
    let runs = [
        "\"mean_ttft_ms\"",
        "\"request_throughput\"",
        "\"benchmarks\"",
        "\"first_token_ts\"",
        "\"gen_ai.",
        "\"request_start_ns\"",
        "\"time_to_first_token\"",
    ];
    if has(head, &runs) {
        return Some(
            "a run as a benchmark client measured it: give it to `skrull-sim validate SCENARIO --measured FILE`",
        );
    }
    let line: Value = serde_json::from_str(first.lines().next()?).ok()?;
    let is_tokens = ["input_ids", "tokens", "length", "text"].iter().any(|key| line.get(key).is_some());
    let is_trace = ["timestamp", "hash_ids", "input_length", "prompt_tokens"].iter().any(|key| line.get(key).is_some());
    if is_trace {
        return Some("a trace of requests: a serving scenario names it as `trace.file = \"FILE\"`");
    }
    is_tokens.then_some("a data set: a training scenario names it as `workload.file = \"FILE\"`")
}

/// What a text reads like that is neither TOML nor of a known stack, and what to give in its place; `None` where it is nothing of the kind.
pub fn reads_like(text: &str) -> Option<&'static str> {
    let head = crate::head(text);
    let lines: Vec<&str> = head.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let begins = |marks: &[&str]| lines.iter().filter(|line| marks.iter().any(|mark| line.starts_with(mark))).count();
    if head.starts_with("#!") && head.contains("sh")
        || begins(&["torchrun ", "srun ", "sbatch ", "python ", "export "]) > 0
    {
        return Some(
            "it reads like a script that starts no program of a stack below: give the one that starts the training or the server",
        );
    }
    if begins(&["import ", "from ", "def ", "class "]) > 1 {
        return Some("it reads like a Python program: give the command that starts it, or its configuration");
    }
    let is_key = |line: &&&str| {
        let key = line.split_once(':').map_or("", |(key, _)| key);
        !key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-')
    };
    let n_keys = lines.iter().filter(is_key).count();
    if n_keys > 1 && n_keys * 4 > lines.iter().filter(|line| !line.starts_with([' ', '#', '-'])).count() * 3 {
        return Some("it reads like a YAML that says neither a training job nor a server of a stack below");
    }
    head.trim_start().starts_with('{').then_some("it is JSON that no stack below has")
}

/// What a file that is no text is, by its name.
pub fn of_name(name: &str) -> Option<&'static str> {
    let ending = std::path::Path::new(name).extension()?.to_str()?;
    Some(match ending {
        "bin" => "tokens of Megatron: a training scenario names the `.idx` beside it as `workload.file = \"FILE.idx\"`",
        "idx" | "parquet" | "arrow" => "a data set: a training scenario names it as `workload.file = \"FILE\"`",
        "sqlite" => "a trace of Nsight Systems: give it to `skrull-sim validate SCENARIO --measured FILE`",
        _ => return None,
    })
}

fn has(text: &str, marks: &[&str]) -> bool {
    marks.iter().any(|mark| text.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_content() {
        for (text, part) in [
            ("{\"schemaVersion\": 1, \"traceEvents\": []}", "profiler"),
            ("{\"backend\": \"vllm\", \"request_throughput\": 3.1, \"mean_ttft_ms\": 80.0}", "benchmark client"),
            ("{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4]}\n", "workload.file"),
            ("{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 3}\n", "trace.file"),
        ] {
            assert!(of_text(text).is_some_and(|found| found.contains(part)), "{text}");
        }
        for (text, part) in [
            ("#!/bin/bash\npython3 -c 'print(1)'\n", "a script"),
            ("import torch\nfrom x import y\nprint(y)\n", "a Python program"),
            ("name: a\nvalue: 3\nlist:\n  - x\n", "a YAML"),
            ("{\"a\": 1}", "JSON"),
        ] {
            assert!(reads_like(text).is_some_and(|found| found.contains(part)), "{text}");
        }
        assert_eq!(reads_like("kind = \"training\"\nseed = \n"), None);
        assert_eq!(of_text("kind = \"training\"\n"), None);
        assert!(of_name("data/corpus.bin").is_some_and(|found| found.contains(".idx")));
        assert_eq!(of_name("train.sh"), None);
    }
}
