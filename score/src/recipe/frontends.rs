//! How frontends of split runs chose workers: data.
//!
//! Recipes have ten frontends unless they say otherwise, and each deals out its own requests in turn. Those of TensorRT-LLM have one but on B200 in 4 bits and
//! on GB200. Dynamo deals out in turn by default (`--router-mode round-robin` in components/src/dynamo/frontend/main.py of ai-dynamo/dynamo @ 0179043ab53f).
//! Source: NVIDIA/srt-slurm @ c88ef731 (Apache-2.0), `recipes/` (`enable_multiple_frontends`); for SGLang on GB200 in December 2025
//! `N_ADDITIONAL_FRONTENDS` in nvidia-master.yaml of InferenceX @ c040b5cf2. TensorRT-LLM's runs on GB200 had no such recipe before 4e9a376bf of 2026-01-30.

use crate::run::Run;

/// Runs with several frontends: engine, beginning of the card, format or any, first day.
const SEVERAL: [(&str, &str, &str, &str); 3] = [
    ("sglang", "", "", "2025-12-05"),
    ("trtllm", "gb200", "", "2026-01-30"),
    ("trtllm", "b200", "fp4", "2026-01-30"),
];

/// The router of a run. Workers of one kind alone have nothing to choose.
pub fn router(run: &Run) -> &'static str {
    let is_of = |(engine, card, format, day): &&(&str, &str, &str, &str)| {
        run.engine == *engine
            && run.card.starts_with(card)
            && (format.is_empty() || run.precision == *format)
            && run.measured.as_str() >= *day
    };
    if run.is_split() && SEVERAL.iter().any(|row| is_of(&row)) { "frontends" } else { "round-robin" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::split::tests::HEADER;

    fn of(engine: &str, card: &str, day: &str) -> &'static str {
        let source = format!("db-dump/x; silicon_concurrency=7; measured={day}");
        let line = format!("a,{source},{engine},1.0,org/M,{card},fp8,disagg,1024,8192,fp8,fp8,,,1,1,4,1,1,1,1,7,8,1,8,1,433,11.3\n");
        router(&crate::run::read(&format!("{HEADER}{line}")).expect("a table")[0])
    }

    #[test]
    fn racks_of_one_generation_have_several_frontends_under_tensorrt_llm() {
        // `enable_multiple_frontends: false` stands in recipes/trtllm/gb300-fp8 and not in gb200-fp8.
        assert_eq!(["gb200", "gb300"].map(|card| of("trtllm", card, "2026-02-05")), ["frontends", "round-robin"]);
        assert_eq!(of("trtllm", "gb200", "2025-12-19"), "round-robin");
        assert_eq!(["gb300", "h200_sxm"].map(|card| of("sglang", card, "2026-02-05")), ["frontends"; 2]);
    }
}
