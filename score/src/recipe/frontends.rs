//! How many frontends shared the requests of a split run: data.
//!
//! A recipe has ten unless it says otherwise, and at most one on every node but the first. Those of TensorRT-LLM have one, but on B200 in 4 bits and on
//! GB200. Each deals out its own requests in turn, Dynamo's default (`--router-mode round-robin` in components/src/dynamo/frontend/main.py of
//! ai-dynamo/dynamo @ 0179043ab53f). Source: NVIDIA/srt-slurm @ c88ef731 (Apache-2.0), `recipes/` (`enable_multiple_frontends`) and
//! `cli/mixins/frontend_stage.py`; for SGLang on GB200 in December 2025 `N_ADDITIONAL_FRONTENDS` in nvidia-master.yaml of InferenceX @ c040b5cf2.
//! TensorRT-LLM's runs on GB200 had no such recipe before 4e9a376bf of 2026-01-30.

use serve::router::FRONTENDS;

use crate::client::Client;
use crate::run::{Run, Worker, Workers};

/// Runs with several frontends: engine, beginning of the card, format or any, first day.
const SEVERAL: [(&str, &str, &str, &str); 3] =
    [("sglang", "", "", "2025-12-05"), ("trtllm", "gb200", "", "2026-01-30"), ("trtllm", "b200", "fp4", "2026-01-30")];

/// Frontends of a run on nodes of so many GPUs.
pub fn of(run: &Run, client: &Client, gpus_per_node: u32) -> u32 {
    let Workers::Split { prefill, decode } = &run.workers else { return 1 };
    let is_of = |(engine, card, format, day): &(&str, &str, &str, &str)| {
        let named = run.engine == *engine && run.card.starts_with(card);
        named && (format.is_empty() || run.precision == *format) && run.measured.as_str() >= *day
    };
    if !client.name.starts_with("inferencex") || !SEVERAL.iter().any(is_of) {
        return 1;
    }
    let nodes = |worker: &Worker| worker.n.unwrap_or(1) * worker.shape().gpus.div_ceil(gpus_per_node);
    (nodes(prefill) + nodes(decode) - 1).clamp(1, FRONTENDS)
}

#[cfg(test)]
mod tests {
    use crate::recipe::split::tests::HEADER;

    /// Of a prompt's worker on four GPUs and so many others on eight.
    fn of(engine: &str, card: &str, day: &str, n_decode: u32) -> u32 {
        let source = format!("db-dump/x; silicon_concurrency=7; measured={day}");
        let line = format!(
            "a,{source},{engine},1.0,org/M,{card},fp8,disagg,1024,8192,fp8,fp8,,,1,1,4,1,1,1,1,{n_decode},8,1,8,1,433,11\n"
        );
        let run = crate::run::read(&format!("{HEADER}{line}")).expect("a table").remove(0);
        super::of(&run, crate::client::of(&run.source, &run.measured), 4)
    }

    #[test]
    fn racks_of_one_generation_have_several_frontends_under_tensorrt_llm() {
        // `enable_multiple_frontends: false` stands in recipes/trtllm/gb300-fp8 and not in gb200-fp8. Fifteen nodes have room for ten.
        assert_eq!(["gb200", "gb300"].map(|card| of("trtllm", card, "2026-02-05", 7)), [10, 1]);
        assert_eq!(of("trtllm", "gb200", "2025-12-19", 7), 1);
        // Three nodes, one of which has the balancer.
        assert_eq!(of("sglang", "gb300", "2026-02-05", 1), 2);
    }
}
