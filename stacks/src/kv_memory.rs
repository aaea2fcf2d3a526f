//! `--kv-cache-memory-bytes` of vLLM: so many bytes of each GPU for keys and values, whatever share of the device is asked for (`vllm/config/cache.py`, 0.32).
//!
//! A scenario says blocks of a replica, which are as many as fit into those bytes.

use engine::memory::kv_bytes_per_token;
use engine::model::of_checkpoint;
use serve::engine_preset::{Version, named};

use crate::flags::Flags;
use crate::serving::{Server, with_letter};

const NAME: &str = "kv-cache-memory-bytes";
/// Most blocks of a replica.
const BLOCKS_MAX: u64 = 1_000_000_000;

/// Reads the option into `kv_blocks`, where a token's keys and values are those of all layers on one GPU.
pub(crate) fn of_vllm(server: &mut Server, flags: &mut Flags<'_>) {
    // Blocks that are given count before bytes, as in vLLM.
    if flags.find(NAME).is_none() || flags.find("num-gpu-blocks-override").is_some() {
        return;
    }
    let Some(text) = flags.needed(NAME) else { return };
    let Some(bytes) = with_letter(&text).or_else(|| text.replace('_', "").parse().ok()).filter(|bytes| *bytes > 0)
    else {
        let what = format!("`--{NAME} {text}` is no number of bytes");
        return flags.wrong(NAME, what, "allowed are whole numbers, also with a letter: 25G is 25 GiB".to_owned());
    };
    let model = server.model.as_deref().and_then(of_checkpoint);
    let (Some(model), 1, None) = (model, server.pp, &server.drafts) else {
        let why = "memory for keys and values follows from the share of the device: stages, drafts and unknown models have blocks of other sizes";
        return flags.not_modelled(NAME, why);
    };
    let width = match server.formats[1] {
        Some(kv) if kv.contains('8') => 1,
        Some(_) => 2,
        None => model.formats.kv.bytes(),
    };
    let asked = server.keys.iter().find(|(key, ..)| *key == "block_tokens");
    let usual = named(server.engine, Version::NEWEST).map_or(1, |preset| preset.block_tokens.into());
    let tokens = asked.and_then(|(_, value, _)| value.parse().ok()).unwrap_or(usual);
    let tp = u32::try_from(server.tp).unwrap_or(1);
    let block = kv_bytes_per_token(&model, tp, width).saturating_mul(tokens).max(1);
    // Ranks of attention that are one replica have keys and values of their own.
    let ranks = server.ep.map_or(1, |ep| ep / server.tp.max(1)).max(1);
    let blocks = (bytes / block).saturating_mul(ranks);
    if !(1..=BLOCKS_MAX).contains(&blocks) {
        let what = format!("`--{NAME} {text}` is room for {blocks} blocks of {tokens} tokens");
        return flags.wrong(NAME, what, format!("allowed is room for 1 to {BLOCKS_MAX}"));
    }
    // The engine leaves the share out then.
    server.keys.retain(|(key, ..)| *key != "memory_ratio");
    server.key("kv_blocks", blocks, &format!("--{NAME}: blocks that fit"));
}

#[cfg(test)]
mod tests {
    use crate::example::{codes, import_text, on};
    use input::diagnostic::Code;

    #[test]
    fn bytes_are_blocks_of_the_replica() {
        let said = [Code::MissingFlag];
        for (options, line, told) in [
            // 32 layers of 8 heads of 128: 128 KiB a token over two GPUs, so 1 MiB a block on each.
            ("--kv-cache-memory-bytes 16G -tp 2 --gpu-memory-utilization 0.5", "kv_blocks = 16384 ", &said[..]),
            ("--kv-cache-memory-bytes 17179869184 --block-size 32 -tp 2", "kv_blocks = 8192 ", &said),
            ("--kv-cache-memory-bytes 1G --kv-cache-dtype fp8", "kv_blocks = 1024 ", &said),
            ("--kv-cache-memory-bytes 1G -pp 2", "pp = 2 ", &[Code::NotModelled, Code::MissingFlag]),
            ("--kv-cache-memory-bytes many", "tp = 1 ", &[Code::WrongFlag, Code::MissingFlag]),
        ] {
            let text = format!("vllm serve llama-3-8b {options}");
            let found = import_text(&text, &on("h200-sxm"));
            assert!(found.scenario.contains(line), "{text}:\n{}", found.scenario);
            assert!(!found.scenario.contains("memory_ratio"), "{text}");
            assert_eq!(codes(&found), told, "{text}: {:?}", found.findings);
        }
    }
}
