//! Layouts that the table of runs does not have: data.
//!
//! - Until 2025-11-03 (17d5e204f) scripts of InferenceX derived the degree of experts and data-parallel attention from lengths and load. The table
//!   has what the configuration said, which was nothing: one expert group and one attention group.
//! - Scripts of Kimi-K2.5 did not heed the degree of experts that their configuration gave them.
//! - The table writes vLLM's runs with experts spread alike, whether attention was cut or data-parallel (`dp-attn`).
//!
//! Source: SemiAnalysisAI/InferenceX (Apache-2.0), `benchmarks/` @ 9596d23d7, `gptoss_fp4_b200_trt_slurm.sh` @ ac1998a50, nvidia-master.yaml @ 8c3eb5b86.

use super::{ANY, Of};
use crate::client::{self, Client};
use crate::run::{self, Run, Worker, Workers};
use crate::table::Fault;

/// First day without such scripts.
const CONFIGURED: &str = "2025-11-03";

/// How a script cut its model, beside the tensor group that the table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Every expert over all GPUs.
    Tensor,
    /// Whole experts over all GPUs.
    Experts,
    /// Attention by itself on every GPU too.
    ExpertsAndAttention,
}
use Cut::{Experts, ExpertsAndAttention, Tensor};

const TRTLLM: Of = Of {
    client: "inferencex",
    engine: "trtllm",
    model: "DeepSeek",
    card: "b200",
    format: "fp4",
    days: ["", CONFIGURED],
    whole: true,
    ..ANY
};
const FP8: Of = Of { format: "fp8", ..TRTLLM };
const H200: Of = Of { card: "h200", ..FP8 };
const MINIMAX: Of = Of {
    client: "inferencex",
    engine: "vllm",
    model: "MiniMax",
    card: "b",
    format: "fp4",
    lengths: CHAT,
    tensor: [2, 2],
    spreads_experts: true,
    ..ANY
};
const CHAT: Option<[u32; 2]> = Some([1024, 1024]);
const LONG_ANSWER: Option<[u32; 2]> = Some([1024, 8192]);
const LONG_PROMPT: Option<[u32; 2]> = Some([8192, 1024]);

/// Special rows first.
static LAYOUTS: [(Of, Cut); 22] = [
    // dsr1_fp4_b200_trt_slurm.sh
    (Of { lengths: CHAT, in_flight: 256, ..TRTLLM }, ExpertsAndAttention),
    (Of { lengths: LONG_ANSWER, in_flight: 256, ..TRTLLM }, ExpertsAndAttention),
    (Of { lengths: LONG_PROMPT, in_flight: 33, ..TRTLLM }, ExpertsAndAttention),
    (Of { lengths: CHAT, in_flight: 33, tensor: [4, 4], ..TRTLLM }, Experts),
    (Of { lengths: LONG_ANSWER, in_flight: 33, tensor: [4, 4], ..TRTLLM }, Experts),
    (Of { lengths: CHAT, in_flight: 9, tensor: [8, 8], ..TRTLLM }, Experts),
    (Of { lengths: LONG_ANSWER, in_flight: 17, tensor: [8, 8], ..TRTLLM }, Experts),
    // dsr1_fp8_b200_trt_slurm.sh
    (Of { lengths: CHAT, in_flight: 33, ..FP8 }, ExpertsAndAttention),
    (Of { lengths: LONG_ANSWER, in_flight: 65, ..FP8 }, ExpertsAndAttention),
    (Of { lengths: LONG_PROMPT, in_flight: 65, ..FP8 }, ExpertsAndAttention),
    (FP8, Experts),
    // dsr1_fp8_h200_trt_slurm.sh
    (Of { lengths: CHAT, in_flight: 65, ..H200 }, ExpertsAndAttention),
    (Of { lengths: LONG_ANSWER, in_flight: 65, ..H200 }, ExpertsAndAttention),
    (Of { lengths: LONG_PROMPT, in_flight: 33, ..H200 }, ExpertsAndAttention),
    (H200, Experts),
    // gptoss_fp4_b200_trt_slurm.sh
    (Of { model: "gpt-oss", in_flight: 256, ..TRTLLM }, ExpertsAndAttention),
    // dsr1_fp4_b200_docker.sh @ 4b860b78e: `--enable-ep-moe`. The day after it was replaced the configuration had the same degrees (97f253b51).
    (Of { engine: "sglang", days: ["", "2025-11-11"], ..TRTLLM }, Experts),
    // kimik2.5_fp4_b200.sh @ a58dedd5a to 6c3acebfa, _b300.sh: the degree of experts is given and not heeded.
    (Of { model: "Kimi", lengths: None, tensor: [1, 8], ..MINIMAX }, Tensor),
    // nvidia-master.yaml
    (Of { days: ["2026-04-08", "2026-04-21"], in_flight: 512, ..MINIMAX }, ExpertsAndAttention),
    (Of { days: ["2026-04-21", "~"], in_flight: 256, ..MINIMAX }, ExpertsAndAttention),
    (
        Of { days: ["2026-04-21", "~"], lengths: LONG_PROMPT, card: "b300", in_flight: 512, ..MINIMAX },
        ExpertsAndAttention,
    ),
    (Of { days: ["2026-04-21", "~"], format: "fp8", card: "b300", in_flight: 1024, ..MINIMAX }, ExpertsAndAttention),
];

/// Reads a table of runs, with the layouts that they had.
///
/// # Errors
/// Every fault of the file.
pub fn read(text: &str) -> Result<Vec<Run>, Vec<Fault>> {
    let started = |run: Run| {
        let client = client::of(&run.source, &run.measured);
        as_started(run, client)
    };
    Ok(run::read(text)?.into_iter().map(started).collect())
}

fn as_started(run: Run, client: &Client) -> Run {
    let Workers::Whole(worker) = run.workers else { return run };
    let Some((_, cut)) = LAYOUTS.iter().find(|(of, _)| of.fits(&run, client)) else { return run };
    let shape = worker.shape();
    let tp = if *cut == ExpertsAndAttention { 1 } else { shape.gpus };
    let [moe_tp, moe_ep] = if *cut == Tensor { [shape.gpus, 1] } else { [1, shape.gpus] };
    // The table's batch is that of one of its groups.
    let batch = worker.batch * worker.dp.max(1);
    Run { workers: Workers::Whole(Worker { batch, tp, dp: 0, moe_tp, moe_ep, ..worker }), ..run }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GPUs, attention groups and whether whole experts are spread, of a run as the table writes it.
    fn shape(
        engine: &str,
        card: &str,
        [format, day]: [&str; 2],
        [in_flight, prompt, output, tp]: [u32; 4],
    ) -> (u32, u32, bool) {
        let load = format!("{prompt},{output},fp8,fp8,{in_flight},{tp},1,{tp},1");
        written(engine, &["deepseek-ai/DeepSeek-R1", card, format, day], in_flight, &load)
    }

    /// The same with lengths, formats, batch and degrees as the table writes them.
    fn written(engine: &str, [model, card, format, day]: &[&str; 4], in_flight: u32, cells: &str) -> (u32, u32, bool) {
        let text = format!(
            "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,moe_quant_mode,batch_size,tp_size,\
             attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms\n\
             a,db-dump/x; silicon_concurrency={in_flight}; measured={day}T00:00:00.000Z,{engine},,{model},{card},{format},agg,\
             {cells},500,20\n"
        );
        let run = read(&text).expect("a table").remove(0);
        let Workers::Whole(worker) = run.workers else { unreachable!("one engine") };
        assert_eq!(run.n_engines(), 1);
        let shape = worker.shape();
        (shape.gpus, shape.groups, shape.spreads_experts)
    }

    #[test]
    fn scripts_chose_layouts_until_configurations_did() {
        let b200 = |day, load| shape("trtllm", "b200_sxm", ["fp4", day], load);
        let before = "2025-11-02";
        assert_eq!(b200(before, [8, 1024, 1024, 8]), (8, 1, false));
        assert_eq!(b200(before, [16, 1024, 1024, 8]), (8, 1, true));
        assert_eq!(b200(before, [16, 1024, 1024, 4]), (4, 1, false));
        assert_eq!(b200(before, [256, 1024, 8192, 8]), (8, 8, true));
        assert_eq!(b200(before, [64, 8192, 1024, 4]), (4, 4, true));
        // From that day on the table has what ran.
        assert_eq!(b200("2025-11-03", [256, 1024, 8192, 8]), (8, 1, false));
        assert_eq!(shape("trtllm", "h200_sxm", ["fp8", before], [4, 1024, 1024, 8]), (8, 1, true));
        assert_eq!(shape("trtllm", "h200_sxm", ["fp8", before], [64, 8192, 1024, 8]), (8, 8, true));
        assert_eq!(shape("sglang", "b200_sxm", ["fp4", before], [64, 8192, 1024, 8]), (8, 1, true));
        assert_eq!(shape("sglang", "h200_sxm", ["fp8", before], [64, 8192, 1024, 8]), (8, 1, false));
    }

    #[test]
    fn experts_of_vllm_are_spread_and_attention_is_cut_unless_its_configuration_says_otherwise() {
        let minimax = |card: &str, format: &str, day: &str, in_flight: u32, lengths: &str| {
            let cells = format!("{lengths},nvfp4,nvfp4,{},2,2,1,4", in_flight / 2);
            written("vllm", &["MiniMaxAI/MiniMax-M2.5", card, format, day], in_flight, &cells)
        };
        assert_eq!(minimax("b200_sxm", "fp4", "2026-04-22", 128, "1024,1024"), (2, 1, true));
        assert_eq!(minimax("b200_sxm", "fp4", "2026-04-22", 256, "1024,1024"), (2, 2, true));
        assert_eq!(minimax("b200_sxm", "fp4", "2026-04-17", 256, "1024,1024"), (2, 1, true));
        assert_eq!(minimax("b200_sxm", "fp4", "2026-04-22", 512, "8192,1024"), (2, 1, true));
        assert_eq!(minimax("b300_sxm", "fp4", "2026-04-22", 512, "8192,1024"), (2, 2, true));
        assert_eq!(minimax("b300_sxm", "fp8", "2026-04-22", 512, "1024,1024"), (2, 1, true));
        let kimi = ["moonshotai/Kimi-K2.5", "b200_sxm", "fp4", "2026-03-27"];
        assert_eq!(written("vllm", &kimi, 64, "1024,1024,nvfp4,nvfp4,16,4,4,1,16"), (4, 1, false));
    }
}
