//! `[engine]`: limits of a replica, its memory, and what preemption costs.

use hw::Bytes;
use sim::serving::capacity;
use sim::serving::replica::{Limits, Preemption};
use sim::serving::step_cost::ticks_of;

use super::{Serving, blocks_of};
use crate::diagnostic::Finding;
use crate::scenario::reader::{Reader, Section};

/// Share of a host link that copies of many small blocks reach; assumption, as for other copies of the roofline.
const HOST_LINK_REACHED: f64 = 0.75;

/// What the section says.
pub struct EngineSection {
    /// GPUs of a replica.
    pub tensor_degree: u32,
    /// Limits, with `kv_blocks` and `context_max` at 0 where they follow from the rest.
    pub limits: Limits,
    /// Share of the device's memory that the engine may use.
    memory_ratio: f64,
    /// Share of blocks that admissions of whole prompts leave free.
    watermark_ratio: f64,
    /// Host memory for swapped sequences; `None` recomputes.
    swap: Option<Bytes>,
    /// Host time per iteration, microseconds.
    pub host_us_per_step: f64,
    /// Host time per sequence of an iteration, microseconds.
    pub host_us_per_sequence: f64,
}

impl EngineSection {
    /// Parameters that are no measurement, as sentences.
    pub fn free_parameters(&self, sustained_flops_ratio: f64) -> Vec<String> {
        let given = [
            ("engine.host_us_per_step", self.host_us_per_step, self.host_us_per_step > 0.0),
            ("engine.host_us_per_sequence", self.host_us_per_sequence, self.host_us_per_sequence > 0.0),
            ("cost.sustained_flops_ratio", sustained_flops_ratio, sustained_flops_ratio < 1.0),
        ];
        let words = |(key, value, _): (&str, f64, bool)| format!("`{key}` = {value}: fitted or assumed, not measured");
        given.into_iter().filter(|(_, _, is_given)| *is_given).map(words).collect()
    }
}

/// Reads the section.
pub fn engine(mut section: Section<'_>) -> EngineSection {
    let small = |n: u64| u32::try_from(n).expect("ranges keep counts below 2^32");
    let tensor_degree = small(section.count("tp", Some(1), 1..=1024).0);
    let sequences_max = small(section.count("max_sequences", Some(256), 1..=65_536).0);
    let (tokens_max, tokens_at) = section.count("max_tokens", Some(2048), 1..=1 << 20);
    let context_max = small(section.count("max_context", Some(0), 2..=100_000_000).0);
    let block_tokens = small(section.count("block_tokens", Some(16), 1..=4096).0);
    let kv_blocks = small(section.count("kv_blocks", Some(0), 1..=1_000_000_000).0);
    let memory_ratio = section.number("memory_ratio", 0.9, 0.01..=1.0);
    let watermark_ratio = section.number("watermark_ratio", 0.01, 0.0..=0.5);
    let shares_prefixes = section.flag("prefix_cache", true);
    let swaps = section.word("preemption", 0, &["recompute", "swap"]) == 1;
    let swap_gib = section.number("swap_gib", 4.0, 0.0..=100_000.0);
    let host_us_per_step = section.number("host_us_per_step", 0.0, 0.0..=1e6);
    let host_us_per_sequence = section.number("host_us_per_sequence", 0.0, 0.0..=1e6);
    if tokens_max < u64::from(sequences_max) {
        let what = format!("`engine.max_tokens` = {tokens_max} is below `engine.max_sequences` = {sequences_max}");
        let help = "every decoding sequence has its token in each iteration; raise the one or lower the other";
        section.find(Finding::error("S093", tokens_at, what).help(help));
    }
    section.finish();
    let limits = Limits {
        sequences_max,
        tokens_max: small(tokens_max),
        context_max,
        block_tokens,
        kv_blocks,
        watermark_blocks: 0,
        preemption: Preemption::Recompute,
        shares_prefixes,
    };
    let swap = swaps.then(|| Bytes::from_gib(swap_gib));
    EngineSection { tensor_degree, limits, memory_ratio, watermark_ratio, swap, host_us_per_step, host_us_per_sequence }
}

/// Fills in what follows from model, limits and the memory of every group.
pub fn memory(reader: &mut Reader<'_>, serving: &mut Serving, engine: &EngineSection, reserved: Bytes) {
    for index in 0..serving.groups.len() {
        let group = &serving.groups[index];
        let reserved = group.reserved.unwrap_or(reserved);
        let found = capacity::of(&serving.deployment_of(group), engine.memory_ratio, reserved);
        let capacity = match found {
            Ok(capacity) => capacity,
            Err(why) if serving.groups.len() == 1 => return reader.find(Finding::error("S094", None, why)),
            Err(why) => {
                let what = format!("group `{}`: {why}", group.name);
                reader.find(Finding::error("S094", None, what));
                continue;
            }
        };
        let block_tokens = engine.limits.block_tokens;
        let bytes_per_block = capacity.bytes_per_token * u64::from(block_tokens);
        let (tp, host_bandwidth) = (u64::from(group.tensor_degree), group.cluster.gpu.host_bandwidth);
        let group = &mut serving.groups[index];
        let given = [group.kv_blocks, engine.limits.kv_blocks, capacity.blocks(block_tokens)];
        group.kv_blocks = given.into_iter().find(|blocks| *blocks > 0).unwrap_or(0);
        group.preemption = engine.swap.map_or(Preemption::Recompute, |bytes| Preemption::Swap {
            // Every GPU of the group moves its own part over its own link, so the group's host memory is shared by all.
            host_blocks: blocks_of(bytes, bytes_per_block * tp),
            ticks_per_block: ticks_of(Bytes(bytes_per_block) / (host_bandwidth * HOST_LINK_REACHED)),
        });
        let watermark = Bytes::from_f64(f64::from(group.kv_blocks) * engine.watermark_ratio).0;
        group.watermark_blocks = u32::try_from(watermark).expect("a share of the blocks");
    }
    let longest = u32::try_from(serving.model.max_positions).unwrap_or(u32::MAX);
    for choice in &mut serving.choices {
        let limits = &mut choice.limits;
        limits.context_max = if engine.limits.context_max > 0 { engine.limits.context_max } else { longest };
        if choice.batcher.cut() == sim::serving::replica::Cut::Never {
            // Whole prompts have to fit an iteration, as vLLM V0 sets it.
            limits.tokens_max = limits.tokens_max.max(limits.context_max);
        }
    }
}
