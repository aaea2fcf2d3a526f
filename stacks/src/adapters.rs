//! Adapters (LoRA) in the options of servers: `--enable-lora` of vLLM and SGLang as keys of a scenario, and the keys as options again.
//!
//! Sources: vllm-project/vllm, `vllm/config/lora.py` and `vllm/entrypoints/openai/cli_args.py`; sgl-project/sglang, `python/sglang/srt/server_args.py`.

use input::diagnostic::{Code, Finding};
use serde_json::Value;

use crate::flags::Flags;

/// Ranks that vLLM's `--max-lora-rank` takes.
const RANKS_VLLM: [u64; 9] = [1, 8, 16, 32, 64, 128, 256, 320, 512];
/// Rank that is taken where a command does not say it; vLLM's default.
const RANK_USUAL: u64 = 16;
/// Slots of SGLang where a command does not say them.
const SLOTS_SGLANG: u64 = 8;
/// What a replica's disks are taken to read, GB per second: an assumption, named in a warning.
const DISK_GB_PER_S: f64 = 3.0;
/// Matrices of attention, and of the feed-forward, as checkpoints name them.
const ATTENTION: [&str; 5] = ["q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"];
const FEED_FORWARD: [&str; 4] = ["gate_proj", "up_proj", "down_proj", "gate_up_proj"];

/// What a command says of adapters.
#[derive(Clone, Debug)]
pub(crate) struct Adapters {
    slots: u64,
    rank_max: u64,
    /// Adapters in host memory; all that are named where nobody says how many.
    host_slots: Option<u64>,
    modules: &'static str,
    /// Adapters that it names.
    n_named: u64,
}

/// `--enable-lora --max-loras 4 --max-lora-rank 16 --max-cpu-loras 40 --lora-modules NAME=PATH …`.
pub(crate) fn of_vllm(flags: &mut Flags<'_>) -> Option<Adapters> {
    if !flags.is("enable-lora") {
        return None;
    }
    let slots = flags.count("max-loras", 1..=4096).unwrap_or(1);
    let rank_max = flags.count("max-lora-rank", 1..=512).unwrap_or(RANK_USUAL);
    if !RANKS_VLLM.contains(&rank_max) {
        let ranks: Vec<String> = RANKS_VLLM.iter().map(u64::to_string).collect();
        let what = format!("`--max-lora-rank {rank_max}` is no rank that vLLM takes");
        flags.wrong("max-lora-rank", what, format!("allowed are {}", ranks.join(", ")));
    }
    Some(Adapters {
        slots,
        rank_max,
        host_slots: Some(flags.count("max-cpu-loras", slots..=100_000).unwrap_or(slots)),
        modules: modules(flags),
        n_named: named(flags, "lora-modules"),
    })
}

/// `--enable-lora --max-loras-per-batch 8 --max-lora-rank 16 --max-loaded-loras 40 --lora-paths NAME=PATH …`.
pub(crate) fn of_sglang(flags: &mut Flags<'_>) -> Option<Adapters> {
    if !flags.is("enable-lora") && flags.find("lora-paths").is_none() {
        return None;
    }
    let slots = flags.count("max-loras-per-batch", 1..=4096).unwrap_or(SLOTS_SGLANG);
    let rank = flags.count("max-lora-rank", 1..=512);
    if rank.is_none() {
        let what = format!("the largest rank stands in the adapters' own files: {RANK_USUAL} is taken");
        flags.warn(Code::MissingFlag, None, what, "give `--max-lora-rank`");
    }
    Some(Adapters {
        slots,
        rank_max: rank.unwrap_or(RANK_USUAL),
        host_slots: flags.count("max-loaded-loras", slots..=100_000),
        modules: modules(flags),
        n_named: named(flags, "lora-paths"),
    })
}

/// How many adapters a flag names: words with a path behind a sign, or objects with a name.
fn named(flags: &mut Flags<'_>, name: &str) -> u64 {
    let Some(text) = flags.text(name) else { return 0 };
    let objects = text.matches("\"name\"").count().max(text.matches("\"lora_name\"").count());
    let words = text.split_whitespace().filter(|word| !word.is_empty()).count();
    (if objects > 0 { objects } else { words }) as u64
}

/// Which matrices have adapters, of `--lora-target-modules`.
fn modules(flags: &mut Flags<'_>) -> &'static str {
    let Some(text) = flags.text("lora-target-modules") else { return "all" };
    let words: Vec<&str> = text.split([' ', ',', '[', ']', '"']).filter(|word| !word.is_empty()).collect();
    let all_of = |known: &[&str]| words.iter().all(|word| known.contains(word));
    if all_of(&ATTENTION) {
        return "attention";
    }
    if all_of(&FEED_FORWARD) {
        return "feed-forward";
    }
    let is_known = |word: &&str| *word == "all" || ATTENTION.contains(word) || FEED_FORWARD.contains(word);
    if !words.iter().all(is_known) {
        flags.not_modelled("lora-target-modules", "adapters of attention and feed-forward are priced, no others");
    }
    "all"
}

impl Adapters {
    /// Tables of `[engine]` and of `[trace]`, and a warning of what was assumed.
    pub(crate) fn tables(&self) -> ([String; 2], Finding) {
        let Self { slots, rank_max, modules, .. } = self;
        let count = self.n_named.max(1);
        let host_slots = self.host_slots.unwrap_or(count).max(*slots);
        let reads = count > host_slots;
        let disk = if reads { format!(", disk_gb_per_s = {DISK_GB_PER_S}") } else { String::new() };
        let which = if *modules == "all" { String::new() } else { format!(", modules = \"{modules}\"") };
        let engine = format!("{{ slots = {slots}, rank_max = {rank_max}, host_slots = {host_slots}{which}{disk} }}");
        let trace = format!("{{ count = {count}, rank = {rank_max} }}");
        let from_disk =
            if reads { format!(", and disks that read {DISK_GB_PER_S} GB per second") } else { String::new() };
        let what = format!(
            "a command does not say how often each adapter is asked for: {count} of rank {rank_max} by a power law are taken{from_disk}"
        );
        let help = "give `--set trace.adapters.skew=…`, `.count`, `.rank` and `.none_ratio`";
        ([engine, trace], Finding::warning(Code::MissingFlag, None, what).help(help))
    }
}

/// Slots, largest rank and room in host memory of a table; nobody else's words for other modules are known.
fn told(value: &Value) -> Option<[u64; 3]> {
    let number = |key: &str, usual: u64| value.get(key).map_or(Some(usual), Value::as_u64);
    let slots = number("slots", 1)?;
    Some([slots, number("rank_max", RANK_USUAL)?, number("host_slots", slots)?])
}

fn is_merged(value: &Value) -> bool {
    value.get("merged").and_then(Value::as_bool).unwrap_or(false)
}

/// Words of `vllm serve`; `None` for ranks that it does not take, and for some of the modules.
pub(crate) fn for_vllm(value: &Value) -> Option<Vec<String>> {
    if is_merged(value) {
        return Some(Vec::new());
    }
    let [slots, rank, host] = told(value)?;
    let is_sayable = RANKS_VLLM.contains(&rank) && value.get("modules").is_none_or(|modules| modules == "all");
    is_sayable.then(|| vec![format!("--enable-lora --max-loras {slots} --max-lora-rank {rank} --max-cpu-loras {host}")])
}

/// Words of SGLang's launcher.
pub(crate) fn for_sglang(value: &Value) -> Option<Vec<String>> {
    if is_merged(value) {
        return Some(Vec::new());
    }
    let [slots, rank, host] = told(value)?;
    let modules = match value.get("modules").and_then(Value::as_str).unwrap_or("all") {
        "all" => "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj",
        "attention" => "q_proj k_proj v_proj o_proj",
        _ => "gate_proj up_proj down_proj",
    };
    Some(vec![format!(
        "--enable-lora --max-loras-per-batch {slots} --max-lora-rank {rank} --max-loaded-loras {host} --lora-target-modules {modules}"
    )])
}

/// TensorRT-LLM keeps a cache of adapters of its own, by bytes.
pub(crate) fn for_trtllm(value: &Value) -> Option<Vec<String>> {
    is_merged(value).then(Vec::new)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::example::{codes, import_text, on};

    fn imported(text: &str) -> (String, Vec<Code>) {
        let imported = import_text(text, &on("h200-sxm"));
        let codes = codes(&imported);
        (imported.scenario, codes)
    }

    #[test]
    fn options_of_servers_become_slots_and_adapters() {
        let missing = Code::MissingFlag;
        for (text, engine, trace, codes) in [
            (
                "vllm serve llama-3-8b --enable-lora --max-loras 4 --max-lora-rank 32 --max-cpu-loras 8 --lora-modules a=x b=y c=z",
                "adapters = { slots = 4, rank_max = 32, host_slots = 8 }",
                "adapters = { count = 3, rank = 32 }",
                vec![missing, missing],
            ),
            (
                "vllm serve llama-3-8b --enable-lora --lora-modules '{\"name\": \"a\", \"path\": \"x\"}' '{\"name\": \"b\", \"path\": \"y\"}'",
                "adapters = { slots = 1, rank_max = 16, host_slots = 1, disk_gb_per_s = 3 }",
                "adapters = { count = 2, rank = 16 }",
                vec![missing, missing],
            ),
            (
                "python -m sglang.launch_server --model-path llama-3-8b --lora-paths a=x b=y --lora-target-modules q_proj v_proj",
                "adapters = { slots = 8, rank_max = 16, host_slots = 8, modules = \"attention\" }",
                "adapters = { count = 2, rank = 16 }",
                vec![missing, missing, missing],
            ),
        ] {
            let (scenario, found) = imported(text);
            assert!(scenario.contains(engine) && scenario.contains(trace), "{text}:\n{scenario}");
            assert_eq!(found, codes, "{text}");
        }
        let other = imported("vllm serve llama-3-8b --enable-lora --max-lora-rank 24").1;
        assert!(other.contains(&Code::WrongFlag), "{other:?}");
        assert!(!imported("vllm serve llama-3-8b --max-lora-rank 64").0.contains("adapters"), "not enabled");
    }

    #[test]
    fn slots_are_said_as_each_server_takes_them() {
        let table = || json!({ "slots": 4, "rank_max": 16, "host_slots": 40, "host_gb_per_s": 20.0 });
        let vllm = "--enable-lora --max-loras 4 --max-lora-rank 16 --max-cpu-loras 40";
        assert_eq!(for_vllm(&table()), Some(vec![vllm.to_owned()]));
        assert_eq!(for_vllm(&json!({ "rank_max": 24 })), None, "vLLM takes no such rank");
        assert_eq!(for_vllm(&json!({ "modules": "attention" })), None);
        let sglang = "--enable-lora --max-loras-per-batch 1 --max-lora-rank 16 --max-loaded-loras 1 --lora-target-modules q_proj k_proj v_proj o_proj";
        assert_eq!(for_sglang(&json!({ "modules": "attention" })), Some(vec![sglang.to_owned()]));
        assert_eq!(for_trtllm(&table()), None);
        assert_eq!(for_vllm(&json!({ "merged": true })), Some(Vec::new()), "a server of each fine-tune");
    }
}
