//! Measured serving runs against simulated ones: vLLM 0.19 with Llama-3.1-8B, 300 requests with their moments.
//!
//! Source: casys-kaist/LLMServingSim @ 5daddb21a545, bench/examples (MIT). Costs are the datasheet roofline and the assumed law of decode
//! attention, as neither GPU has a fitted profile; nothing here is fitted to these runs.

use hw::{Dtype, Seconds, Span, Time};

use crate::cost::roofline::Roofline;
use crate::engine::Case;
use crate::serving::fleet::serve;
use crate::serving::metrics::{self, Slo};
use crate::serving::replica::{Engine, Limits, Preemption, Spans};
use crate::serving::request::{Request, Requests};
use crate::serving::step_cost::{Deployment, StepTable};
use crate::serving::{batcher, router};

/// Simulated over measured mean TTFT and mean TPOT; `None` where the data is absent.
fn ratios(folder: &str, gpu: &str, sequences_max: u32, kv_blocks: u32) -> Option<[f64; 2]> {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/llmservingsim/bench/examples/");
    let path = format!("{data}{folder}/Llama-3.1-8B/vllm/requests.jsonl");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: shared data absent ({path})");
        return None;
    };
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a measured request")).collect();
    let number = |row: &serde_json::Value, key: &str| row[key].as_f64().expect("a number");
    let start = rows.iter().map(|row| number(row, "queued_ts")).fold(f64::INFINITY, f64::min);
    let count = |row: &serde_json::Value, key: &str| u32::try_from(row[key].as_u64().expect("a count")).expect("small");
    let request = |row: &serde_json::Value| {
        let at = Span::from_seconds(Seconds::new(number(row, "queued_ts") - start));
        Request::new(Time::ZERO + at, count(row, "input_toks"), count(row, "output_toks"))
    };
    let requests = Requests::of(rows.iter().map(request).collect());
    let mean = |values: &dyn Fn(&serde_json::Value) -> f64| {
        rows.iter().map(values).sum::<f64>() / hw::Tokens(rows.len() as u64).as_f64()
    };
    let ttft = mean(&|row| number(row, "first_token_ts") - number(row, "queued_ts"));
    let tpot = mean(&|row| {
        (number(row, "last_token_ts") - number(row, "first_token_ts")) / f64::from(count(row, "output_toks") - 1)
    });
    let limits = Limits {
        sequences_max,
        tokens_max: 2048,
        context_max: 32_768,
        block_tokens: 16,
        kv_blocks,
        watermark_blocks: 0,
        preemption: Preemption::Recompute,
        shares_prefixes: false,
    };
    let figures = figures(&requests, gpu, limits);
    println!("{gpu}: measured TTFT {ttft} s, TPOT {tpot} s; {figures:?}");
    Some([figures["ttft_s.mean"] / ttft, figures["tpot_s.mean"] / tpot])
}

fn figures(requests: &Requests, gpu: &str, limits: Limits) -> std::collections::BTreeMap<String, f64> {
    let cluster = hw::catalog::cluster(&hw::catalog::gpu(gpu).expect("listed"), 1, 1);
    let model = crate::model::embedded("llama-3-8b").expect("listed");
    let deployment = Deployment {
        model: &model,
        cluster: &cluster,
        tensor_degree: 1,
        dtype: Dtype::Bf16,
        host_per_step: Seconds::ZERO,
        host_per_sequence: Seconds::ZERO,
    };
    let sizes_max = (limits.tokens_max, limits.sequences_max);
    let table = StepTable::new(&deployment, sizes_max, &Roofline::new(&cluster), Case::Expected);
    let engine = Engine { limits, table, batcher: batcher::named("vllm-v1").expect("listed"), spans: Spans::Closed };
    let served = serve(requests, &[&engine], (router::ROUTERS[0].make)(0).as_mut());
    metrics::of(requests, &served, &Slo::default(), Seconds::ZERO)
}

#[test]
fn unfitted_datasheet_costs_come_near_measured_runs_where_they_are_there() {
    // Blocks as vLLM reported them for the RTX 4090; the larger card never runs out.
    // Today's ratios: the RTX 4090 reaches more of its bandwidth than the roofline assumes (1.27 and 1.21), the RTX PRO 6000 a
    // little less (0.87 and 0.95). A profile of each would bring both within the aims of 10 % and 5 %.
    for (folder, gpu, sequences_max, kv_blocks, expected) in [
        ("RTX4090", "rtx-4090", 256, 2588, [1.268, 1.212]),
        ("RTXPRO6000", "rtx-pro-6000", 128, 30_000, [0.872, 0.949]),
    ] {
        let Some(found) = ratios(folder, gpu, sequences_max, kv_blocks) else { continue };
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 0.02, "{gpu}: {found} of the measured mean, {expected} before");
        }
    }
}
