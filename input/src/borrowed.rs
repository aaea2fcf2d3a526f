//! Words that other tools have for a key, and keys that stand in a section of another name: an unknown key is answered with the key that it means here.

use crate::diagnostic::Finding;

/// A word of another tool in small letters with underscores, and the keys that mean it: `section.key`, or a section alone.
const BORROWED: &[(&str, &[&str])] = &[
    // Sections.
    ("load", &["trace"]),
    ("traffic", &["trace"]),
    ("pool", &["fleet"]),
    ("workers", &["fleet"]),
    ("server", &["engine"]),
    ("hardware", &["cluster"]),
    ("parallelism", &["parallel", "engine"]),
    ("data", &["workload", "trace"]),
    ("dataset", &["workload", "trace"]),
    ("sla", &["slo"]),
    // Degrees, as launch scripts of Megatron-LM, vLLM, SGLang and TensorRT-LLM call them.
    ("tensor_parallel", &["parallel.tp", "engine.tp"]),
    ("tensor_parallel_size", &["parallel.tp", "engine.tp"]),
    ("tensor_model_parallel_size", &["parallel.tp", "engine.tp"]),
    ("tp_size", &["parallel.tp", "engine.tp"]),
    ("tp", &["parallel.tp", "engine.tp"]),
    ("pipeline_parallel", &["parallel.pp", "engine.pp"]),
    ("pipeline_parallel_size", &["parallel.pp", "engine.pp"]),
    ("pipeline_model_parallel_size", &["parallel.pp", "engine.pp"]),
    ("pp_size", &["parallel.pp", "engine.pp"]),
    ("pp", &["parallel.pp", "engine.pp"]),
    ("expert_parallel", &["parallel.ep", "engine.ep"]),
    ("expert_parallel_size", &["parallel.ep", "engine.ep"]),
    ("expert_model_parallel_size", &["parallel.ep", "engine.ep"]),
    ("ep_size", &["parallel.ep", "engine.ep"]),
    ("ep", &["parallel.ep", "engine.ep"]),
    ("data_parallel", &["parallel.dp"]),
    ("data_parallel_size", &["parallel.dp", "fleet.replicas"]),
    ("dp_size", &["parallel.dp", "fleet.replicas"]),
    ("dp", &["parallel.dp", "fleet.replicas"]),
    ("context_parallel", &["parallel.cp"]),
    ("context_parallel_size", &["parallel.cp"]),
    ("cp", &["parallel.cp"]),
    ("expert_tensor_parallel_size", &["parallel.expert_tp"]),
    ("virtual_pipeline_size", &["parallel.chunks"]),
    ("vpp", &["parallel.chunks"]),
    ("fsdp", &["parallel.zero"]),
    ("zero_stage", &["parallel.zero"]),
    // Machines.
    ("gpus", &["cluster.nodes", "cluster.gpus_per_node"]),
    ("num_gpus", &["cluster.nodes", "cluster.gpus_per_node"]),
    ("world_size", &["cluster.nodes", "cluster.gpus_per_node"]),
    ("num_nodes", &["cluster.nodes"]),
    ("nnodes", &["cluster.nodes"]),
    ("gpu_type", &["cluster.gpu"]),
    ("device", &["cluster.gpu"]),
    ("num_replicas", &["fleet.replicas"]),
    // Formats.
    ("precision", &["training.products", "model.weights"]),
    ("dtype", &["training.dtype", "model.weights"]),
    ("quantization", &["model.weights", "training.products"]),
    ("kv_cache_dtype", &["model.weights.kv"]),
    // Steps of training.
    ("global_batch_size", &["training.batch_size"]),
    ("gbs", &["training.batch_size"]),
    ("micro_batch", &["training.bucket_tokens"]),
    ("micro_batch_size", &["training.bucket_tokens"]),
    ("mbs", &["training.bucket_tokens"]),
    ("sequence", &["workload.tokens"]),
    ("sequence_length", &["workload.tokens"]),
    ("seq_length", &["workload.tokens"]),
    ("seq_len", &["workload.tokens"]),
    ("activation_checkpointing", &["training.recompute"]),
    ("gradient_checkpointing", &["training.recompute"]),
    ("recompute_granularity", &["training.recompute"]),
    // Engines.
    ("max_num_seqs", &["engine.max_sequences"]),
    ("max_batch_size", &["engine.max_sequences"]),
    ("max_running_requests", &["engine.max_sequences"]),
    ("max_num_tokens", &["engine.max_tokens"]),
    ("max_num_batched_tokens", &["engine.max_tokens"]),
    ("chunked_prefill_size", &["engine.chunk_tokens"]),
    ("max_model_len", &["engine.max_context"]),
    ("max_seq_len", &["engine.max_context"]),
    ("context_length", &["engine.max_context", "workload.tokens"]),
    ("gpu_memory_utilization", &["engine.memory_ratio"]),
    ("mem_fraction_static", &["engine.memory_ratio"]),
    ("free_gpu_memory_fraction", &["engine.memory_ratio"]),
    ("block_size", &["engine.block_tokens"]),
    ("page_size", &["engine.block_tokens"]),
    ("enable_prefix_caching", &["engine.prefix_cache"]),
    ("prefix_caching", &["engine.prefix_cache"]),
    ("speculative", &["engine.speculation"]),
    ("lora", &["engine.adapters", "optimizer.trains"]),
    // Requests.
    ("rps", &["trace.rate_per_s"]),
    ("qps", &["trace.rate_per_s"]),
    ("rate", &["trace.rate_per_s"]),
    ("request_rate", &["trace.rate_per_s"]),
    ("requests_per_s", &["trace.rate_per_s"]),
    ("num_requests", &["trace.requests"]),
    ("num_prompts", &["trace.requests"]),
    ("isl", &["trace.prompt_tokens"]),
    ("input_len", &["trace.prompt_tokens"]),
    ("input_tokens", &["trace.prompt_tokens"]),
    ("prompt_len", &["trace.prompt_tokens"]),
    ("osl", &["trace.output_tokens"]),
    ("output_len", &["trace.output_tokens"]),
    ("max_concurrency", &["trace.concurrency"]),
    ("in_flight", &["trace.concurrency"]),
    ("users", &["trace.concurrency"]),
    ("burstiness", &["trace.cv"]),
    // Keys of this tool in a section that does not have them.
    ("zero", &["parallel.zero"]),
    ("optimizer", &["optimizer.rule"]),
    ("chunks", &["parallel.chunks"]),
    ("schedule", &["parallel.schedule"]),
    ("sequence_parallel", &["parallel.sequence_parallel"]),
    ("expert_tp", &["parallel.expert_tp"]),
    ("gpu", &["cluster.gpu"]),
    ("nodes", &["cluster.nodes"]),
    ("gpus_per_node", &["cluster.gpus_per_node"]),
    ("recompute", &["training.recompute"]),
    ("framework", &["training.framework"]),
    ("products", &["training.products"]),
    ("batch_size", &["training.batch_size"]),
    ("weights", &["model.weights"]),
    ("block_tokens", &["engine.block_tokens"]),
    ("chunk_tokens", &["engine.chunk_tokens"]),
    ("max_sequences", &["engine.max_sequences"]),
    ("max_tokens", &["engine.max_tokens"]),
    ("memory_ratio", &["engine.memory_ratio"]),
    ("prefix_cache", &["engine.prefix_cache"]),
    ("speculation", &["engine.speculation"]),
    ("concurrency", &["trace.concurrency"]),
    ("rate_per_s", &["trace.rate_per_s"]),
    ("requests", &["trace.requests"]),
    ("replicas", &["fleet.replicas"]),
];

/// Words for groups that attend to requests of their own, which a degree of experts says here.
const GROUPS_OF_ATTENTION: [&str; 6] =
    ["data_parallel", "data_parallel_size", "dp", "dp_size", "attention_dp_size", "enable_dp_attention"];

/// Words of other tools that no key has, and what says the same.
const EXPLAINED: [(&str, &str); 4] = [
    ("gradient_accumulation", ACCUMULATION),
    ("gradient_accumulation_steps", ACCUMULATION),
    ("grad_accum", ACCUMULATION),
    ("accumulation_steps", ACCUMULATION),
];
/// How a step of several micro-batches is said.
const ACCUMULATION: &str = "it follows: `training.batch_size` is sequences of a micro-batch × steps of accumulation × replicas, `training.bucket_tokens` the tokens of a micro-batch";

/// Values that other tools have for a key, and what says the same here.
const VALUES: [(&str, &[&str], &str); 6] = [
    (
        "training.framework",
        &["fsdp", "fsdp2", "torchtitan", "torchtune"],
        "here it is `\"pytorch\"` with `parallel.zero = 3`",
    ),
    ("training.framework", &["ddp"], "here it is `\"pytorch\"` with `parallel.zero = 0`"),
    (
        "training.framework",
        &["deepspeed", "transformers", "huggingface", "hf", "trl", "axolotl", "llama-factory", "accelerate", "torch"],
        "here it is `\"pytorch\"`, with `parallel.zero` for what ranks share; files of these stacks are read as they are",
    ),
    ("training.framework", &["megatron", "megatron-lm", "nemo", "bridge"], "here it is `\"megatron-core\"`"),
    (
        "optimizer.trains",
        &["lora", "qlora", "dora", "peft", "adapter"],
        "here it is `\"adapters\"`, with `optimizer.adapter_rank` and `optimizer.adapters_beside`",
    ),
    ("training.recompute", &["true", "on", "all"], "here it is `\"full\"`"),
];

/// Sections of serving, which have no keys of training beside them.
const OF_SERVING: [&str; 6] = ["engine", "fleet", "trace", "slo", "kv", "capacity"];

fn is_of_serving(section: &str) -> bool {
    OF_SERVING.contains(&section.split('.').next().unwrap_or(section))
}

/// What a word of another tool comes to, where one key does not say it.
pub(crate) fn explained(word: &str, section: &str) -> Option<&'static str> {
    let word = word.to_lowercase().replace('-', "_");
    if let Some((_, explained)) = EXPLAINED.iter().find(|(known, _)| *known == word) {
        return Some(explained);
    }
    let is_group = GROUPS_OF_ATTENTION.contains(&word.as_str());
    (is_group && is_of_serving(section)).then_some(
        "attention is data-parallel over `ep / tp` groups: `tp = 1, ep = 8` has eight; \
         `fleet.replicas` are engines beside each other",
    )
}

/// An error about a value that is none of the words of a key, with what it means where another tool has it.
pub(crate) fn word(finding: Finding, key: &str, value: &str) -> Finding {
    let value = value.to_lowercase().replace('_', "-");
    let is_of = |(of, words, _): &&(&str, &[&str], &str)| key.ends_with(of) && words.contains(&value.as_str());
    match VALUES.iter().find(is_of) {
        Some((.., meant)) => finding.label(*meant),
        None => finding,
    }
}

/// An error about a text where a number is expected, with the number that it may mean: `4k`.
pub(crate) fn number(finding: Finding, text: &str) -> Finding {
    let plain = text.trim().replace([',', '_'], "");
    let (figures, unit) = match plain.trim_end_matches(['k', 'K', 'm', 'M']) {
        figures if figures.len() == plain.len() => (figures, 1),
        figures if plain.ends_with(['k', 'K']) => (figures, 1024),
        figures => (figures, 1024 * 1024),
    };
    let is_whole = !figures.is_empty() && figures.bytes().all(|byte| byte.is_ascii_digit());
    match figures.parse::<i64>().ok().filter(|_| is_whole).and_then(|number| number.checked_mul(unit)) {
        None if is_whole => finding.label(format!("whole numbers go up to {}", i64::MAX)),
        Some(number) => finding.label(format!("write it as a number, without quotes: {number}")),
        None if with_unit(&plain).is_some() => {
            finding.label("write the number alone, without quotes: its unit is that of the key's name")
        }
        None => finding,
    }
}

/// The number of a text that goes on with a unit: `50 GB/s`.
fn with_unit(text: &str) -> Option<f64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    text[..end].parse().ok()
}

/// The keys that `word` of another tool means: of `section` where it has one in `asked`, else of other sections. Empty where no tool is
/// known to have the word.
pub(crate) fn meant(word: &str, section: &str, asked: &[&str]) -> Vec<&'static str> {
    let word = word.to_lowercase().replace('-', "_");
    let keys = BORROWED.iter().find(|(borrowed, _)| *borrowed == word).map_or(&[][..], |(_, keys)| keys);
    let here: Vec<&str> =
        keys.iter().filter_map(|key| inside(key, section)).filter(|key| asked.contains(key)).collect();
    if !here.is_empty() || section.is_empty() {
        return here;
    }
    let fits = |key: &&str| key.contains('.') && !(is_of_serving(section) && is_of_training(key));
    keys.iter().copied().filter(fits).collect()
}

/// Whether a key is one of training's own sections.
fn is_of_training(key: &str) -> bool {
    ["parallel.", "training.", "optimizer.", "workload."].iter().any(|section| key.starts_with(section))
}

/// The key's name inside of `section`, if it is one of its keys; the empty section holds sections.
fn inside(key: &'static str, section: &str) -> Option<&'static str> {
    match key.rsplit_once('.') {
        Some((owner, name)) => (owner == section).then_some(name),
        None => section.is_empty().then_some(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Code;

    #[test]
    fn values_of_other_tools_are_answered_with_what_says_the_same() {
        let wrong = || Finding::error(Code::UnknownWord, None, "wrong");
        for (key, value, part) in [
            ("training.framework", "fsdp", "parallel.zero = 3"),
            ("train.training.framework", "DeepSpeed", "\"pytorch\""),
            ("optimizer.trains", "lora", "adapter_rank"),
        ] {
            assert!(word(wrong(), key, value).label.contains(part), "{value}");
        }
        assert_eq!(word(wrong(), "trace.arrivals", "fsdp").label, wrong().label);
        for (text, part) in [("4k", ": 4096"), ("1_000", ": 1000"), ("2M", ": 2097152")] {
            assert!(number(wrong(), text).label.ends_with(part), "{text}");
        }
        assert_eq!(number(wrong(), "many").label, wrong().label);
        let said = explained("gradient_accumulation", "training").expect("it is one");
        assert!(said.contains("training.batch_size"));
    }

    #[test]
    fn a_word_is_a_key_of_its_own_section_first_and_of_others_else() {
        assert_eq!(meant("tensor-parallel-size", "engine", &["tp", "pp"]), ["tp"]);
        assert_eq!(meant("precision", "training", &["products", "steps"]), ["products"]);
        assert_eq!(meant("sequence", "training", &["products"]), ["workload.tokens"]);
        assert_eq!(meant("TP", "cluster", &["gpu"]), ["parallel.tp", "engine.tp"]);
        assert_eq!(meant("zero", "training", &["steps"]), ["parallel.zero"]);
        assert_eq!(meant("micro_batch", "training", &["steps", "bucket_tokens"]), ["bucket_tokens"]);
    }

    #[test]
    fn sections_of_serving_are_not_answered_with_keys_of_training() {
        assert_eq!(meant("ep", "fleet.group", &["tp", "pp"]), ["engine.ep"]);
        assert_eq!(meant("tensor_parallel_size", "fleet", &["replicas"]), ["engine.tp"]);
        assert_eq!(meant("cp", "engine", &["tp"]), [""; 0]);
        let said = explained("dp", "engine").expect("it is one");
        assert!(said.contains("`tp = 1, ep = 8`") && said.contains("`fleet.replicas`"));
        assert_eq!(explained("dp-size", "fleet.group"), Some(said));
        assert!(explained("dp", "training").is_none() && explained("tp", "engine").is_none());
    }

    #[test]
    fn a_section_is_named_only_where_the_kind_has_it() {
        assert_eq!(meant("load", "", &["trace", "fleet"]), ["trace"]);
        assert_eq!(meant("load", "", &["workload"]), [""; 0]);
        assert_eq!(meant("load", "engine", &["tp"]), [""; 0]);
        assert_eq!(meant("nonsense", "engine", &["tp"]), [""; 0]);
    }

    #[test]
    fn no_word_stands_twice() {
        let mut words: Vec<&str> = BORROWED.iter().map(|(word, _)| *word).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), BORROWED.len());
    }

    #[test]
    fn every_key_is_one_of_the_page_of_keys() {
        let page = include_str!("../../docs/keys.md");
        for key in BORROWED.iter().flat_map(|(_, keys)| keys.iter()) {
            let (section, name) = key.rsplit_once('.').unwrap_or((key, "name"));
            let rows = page
                .split_once(&format!("## `{section}`\n"))
                .map(|(_, rest)| rest.split("\n## ").next().unwrap_or(rest));
            let rows = rows.unwrap_or_else(|| panic!("no section `{section}`"));
            assert!(!key.contains('.') || rows.contains(&format!("| `{name}` |")), "no key `{key}`");
        }
    }
}
