//! Files that are no scenario and that another verb or key takes: what they are by their content, and where they belong.

pub(crate) mod servers;

use std::sync::LazyLock;

use serde_json::Value;

/// Stacks whose jobs are known and not read, each with marks of which a text has one, or all of those with `+` between them.
const NOT_READ: [(&str, &[&str]); 12] = [
    ("OpenRLHF", &["openrlhf.cli", "openrlhf/cli"]),
    ("litgpt", &["litgpt pretrain", "litgpt finetune", "litgpt.Config", "litgpt.data", "\nlora_query:"]),
    ("GPT-NeoX", &["deepy.py", "pipe_parallel_size", "pipe-parallel-size"]),
    ("Colossal-AI", &["colossalai run", "colossalai.booster", "/colossalai/"]),
    ("MaxText", &["MaxText/train.py", "MaxText.train", "maxtext.trainers", "\nici_fsdp_parallelism:"]),
    ("NeMo", &["megatron_gpt_pretraining", "nemo llm ", "nemo_run", PROGRAM_OF_NEMO, "\nexp_manager:"]),
    ("NeMo RL", &["nemo_rl", "examples/run_grpo", "\ngrpo:+\npolicy:"]),
    ("picotron", &["\"distributed\"+\"pp_engine\"", "picotron"]),
    ("LLM Foundry", &["composer train/train.py", "composer train.py", "\ncallbacks:+\nmax_duration:"]),
    ("fairseq", &["fairseq-train", "fairseq-hydra-train"]),
    ("XTuner", &["xtuner train"]),
    ("Levanter", &["levanter.main"]),
];

/// What programs of NeMo 2 import, whose recipes are named like scripts of Megatron-LM.
const PROGRAM_OF_NEMO: &str = "nemo.collections";

/// Whether a text is such a program.
pub(crate) fn is_of_nemo(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("from ") && line.contains(PROGRAM_OF_NEMO))
}

/// What is said of each of them, in the same order, and of a file of no stack behind them.
static SAID: LazyLock<Vec<String>> = LazyLock::new(|| {
    let read: Vec<&str> = crate::Stack::WORDS.iter().map(|(name, _)| *name).collect();
    let read = format!("those of {} are: docs/launch-scripts.md", read.join(", "));
    let known = NOT_READ.iter().map(|(name, _)| format!("a job of {name}, whose files are not read; {read}"));
    known.chain([format!("a file of no stack that is known; {read}")]).collect()
});

/// A job of a stack that is known and not read; nothing for TOML, which scenarios are.
fn of_stack(text: &str) -> Option<&'static str> {
    if toml_span::parse(text).is_ok() {
        return None;
    }
    // Keys begin lines, the first one too; what remarks say is no mark of a script.
    let is_script = text.starts_with("#!");
    let lines: Vec<&str> = text.lines().filter(|line| !is_script || !line.trim_start().starts_with('#')).collect();
    let text = format!("\n{}", lines.join("\n"));
    let has = |mark: &&str| mark.split('+').all(|part| text.contains(part));
    let found = NOT_READ.iter().position(|(_, marks)| marks.iter().any(&has))?;
    SAID.get(found).map(String::as_str)
}

/// What is said of a text that is a script, a program or a YAML of no stack; `None` where it may be a table.
pub fn of_no_stack(text: &str) -> Option<&'static str> {
    reads_like(text)?;
    SAID.last().map(String::as_str)
}

/// What a file is, and what takes it; `None` where it is nothing that is known.
pub fn of_text(text: &str) -> Option<&'static str> {
    let head = crate::head(text);
    of_stack(head).or_else(|| of_server(text, head)).or_else(|| of_json(head)).or_else(|| of_sweep(text))
}

/// Why there is nothing to import of a file of this program, and what takes it; `None` for any other.
pub fn of_own(text: &str) -> Option<&'static str> {
    if text.starts_with('{') && text.contains("\"skrull-sim/") {
        return Some(
            "a plan or a result is nothing to import\n  = `skrull-sim run FILE` takes it; `export FILE --to TARGET` writes a plan for another stack",
        );
    }
    let parsed = toml_span::parse(text).ok()?;
    let is_there = |key: &&str| parsed.pointer(key).is_some();
    let is_scenario = ["/kind", "/policies", "/model", "/cluster"].iter().any(is_there);
    is_scenario.then_some("this is a scenario already: there is nothing to import\n  = `skrull-sim run FILE` takes it, and `--set KEY=VALUE` changes a key")
}

/// A sweep of this program, which names its scenario.
fn of_sweep(text: &str) -> Option<&'static str> {
    let is_there = |key: &str| toml_span::parse(text).is_ok_and(|value| value.pointer(key).is_some());
    let is_sweep = text.contains("scenario") && is_there("/scenario") && (is_there("/axis") || is_there("/seeds"));
    is_sweep.then_some("a sweep: give it to `skrull-sim sweep FILE`")
}

/// A server or a tool around one that is not read.
fn of_server(text: &str, head: &str) -> Option<&'static str> {
    let is_none_other = || toml_span::parse(text).is_err() && crate::recognise(text).is_none();
    servers::named(head).filter(|_| is_none_other())
}

fn of_json(head: &str) -> Option<&'static str> {
    let first = head.trim_start();
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
    fn files_of_this_program_are_known_and_tables_are_none() {
        for (text, word) in [
            ("kind = \"serving\"\n", "scenario"),
            ("[model]\nname = \"llama-3-8b\"\n", "scenario"),
            ("{ \"schema\": \"skrull-sim/run/1\" }", "result"),
        ] {
            assert!(of_own(text).is_some_and(|what| what.contains(word)), "{text}");
        }
        for text in ["", "m,n,k,latency\n1,2,3,4\n", "{ \"model\": 1 }", "name = \"x\"\n", "#!/bin/sh\nvllm serve x\n"]
        {
            assert_eq!(of_own(text), None, "{text}");
        }
    }

    #[test]
    fn jobs_of_stacks_that_are_not_read_are_named() {
        // As their repositories have them: examples, recipes and configurations, in short.
        for (text, name) in [
            (
                "set -x\nread -r -d '' C <<EOF\nopenrlhf.cli.train_sft --max_len 2048\nEOF\ndeepspeed --module $C\n",
                "OpenRLHF",
            ),
            ("checkpoint_dir: a\nlora_r: 32\nlora_query: true\n", "litgpt"),
            ("# remarks\n{\n  \"pipe_parallel_size\": 4,\n  \"num_layers\": 44,\n}\n", "GPT-NeoX"),
            ("colossalai run --nproc_per_node 8 benchmark.py -c 70b --zero 1\n", "Colossal-AI"),
            ("python3 -m MaxText.train MaxText/configs/base.yml\n", "MaxText"),
            ("name: a\ntrainer:\n  devices: 8\nexp_manager:\n  name: x\n", "NeMo"),
            ("from nemo.collections import llm\nrecipe = llm.llama3_8b.pretrain_recipe(num_nodes=2)\n", "NeMo"),
            ("{\"distributed\": {\"tp_size\": 1, \"pp_engine\": \"1f1b\"}}", "picotron"),
        ] {
            assert_eq!(crate::recognise(text), None, "{text}");
            let said = of_text(text).unwrap_or_else(|| panic!("{text}"));
            assert!(said.starts_with(&format!("a job of {name}, ")), "{said}");
            for stack in ["Megatron-LM", "verl", "ms-swift"] {
                assert!(said.contains(stack), "{said}");
            }
        }
        // A scenario may speak of any stack.
        assert_eq!(of_text("# as openrlhf.cli has it\nkind = \"training\"\n"), None);
        assert_eq!(of_text("#!/bin/bash\n# not openrlhf.cli\npython a.py\n"), None);
        assert!(of_no_stack("#!/bin/bash\npython a.py\n").is_some_and(|said| said.contains("no stack that is known")));
        assert_eq!(of_no_stack("1.5 2.5\n3.5 4.5\n"), None);
    }

    #[test]
    fn files_are_known_by_their_content() {
        for (text, part) in [
            ("{\"schemaVersion\": 1, \"traceEvents\": []}", "profiler"),
            ("{\"backend\": \"vllm\", \"request_throughput\": 3.1, \"mean_ttft_ms\": 80.0}", "benchmark client"),
            ("{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4]}\n", "workload.file"),
            ("{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 3}\n", "trace.file"),
            (
                "scenario = \"quickstart\"\n[[axis]]\nkey = \"training.batch_size\"\nvalues = [64, 128]\n",
                "skrull-sim sweep",
            ),
            ("scenario = \"quickstart\"\nseeds = 3\n", "skrull-sim sweep"),
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
