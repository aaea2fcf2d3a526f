//! Megatron Bridge's published throughput with the recipe of each row.
//!
//! Source: NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b, docs/performance-summary.md and its archive (releases 25.09 to 26.08); recipes at the tag of
//! each row. The same setting is printed in several releases; rows are grouped by release.

use engine::Model;
use engine::formats::Formats;
use hw::{Dtype, Format};
use train::layout::Zero;
use train::problem::{Execution, ExpertTraffic, Framework, GradientSync, Overlap, Recompute};

use super::reason::Reason;
use super::row::{Asked, Label, Measured, Row};
use super::setting::{Degrees, Machine};
use crate::table::Cells;

/// Columns without which nothing can be said.
pub(super) const NEEDED: [&str; 11] = [
    "row",
    "release",
    "task",
    "model",
    "gpu",
    "gpus",
    "precision",
    "global_batch_seqs",
    "micro_batch_seqs",
    "seq_tokens",
    "step_time_s",
];

/// GPUs that NVLink joins: a rack of NVL72 holds whole groups of 64, a node eight.
const RACK: u32 = 64;
/// GPUs of a node elsewhere.
const NODE: u32 = 8;
/// Share of tensor exchange that user buffers run behind products: of a ring of chunks all but one.
const USER_BUFFERS: f64 = 0.75;
/// Share of the all-to-all that runs behind the neighbour micro-batch (`--overlap-moe-expert-parallel-comm`).
const EXPERT_OVERLAP: f64 = 1.0;

/// A line of the table.
pub(super) fn row(cells: &mut Cells<'_>) -> Row {
    let degrees = Degrees::read(cells);
    let format = cells.word("precision").to_owned();
    let variant = [cells.word("release"), cells.word("variant"), cells.word("task")].join(" ");
    let label = Label { format, variant, set: "Bridge", ..super::setting::label(cells, &degrees) };
    let tokens = u64::from(cells.positive("seq_tokens"));
    let micro_batch = cells.positive("micro_batch_seqs");
    let batch = cells.positive("global_batch_seqs");
    let step_s = cells.positive_number("step_time_s");
    let asked = asked(cells, &label, &degrees).and_then(|problem| {
        let step = micro_batch * degrees.dp;
        if !batch.is_multiple_of(step) {
            return Err(Reason::Degrees { what: format!("{batch} sequences in micro-batches of {step}") });
        }
        Ok(Asked { problem, micro_batch, n_micro_batches: batch / step, tokens })
    });
    Row { label, asked, measured: Measured { step_s, memory: Vec::new() } }
}

fn asked(cells: &Cells<'_>, label: &Label, degrees: &Degrees) -> Result<train::Problem, Reason> {
    if cells.word("task") == "lora" {
        return Err(Reason::Task { word: "lora".to_owned() });
    }
    let per_node = if label.card.starts_with("GB") { RACK } else { NODE };
    let machine = Machine::of(&label.card, degrees.n_gpus(), per_node)?;
    let mut model = model(&label.model)?;
    // A head that predicts a further token is a layer more on the last stage; its second pass through the output head is left out.
    model.n_layers += cells.word("mtp_layers").parse::<u64>().unwrap_or(0).min(1);
    let mut execution = execution(cells, label)?;
    execution.layers = stage_layers(cells.word("pipeline_layout"));
    let n_stages = (degrees.pp * degrees.chunks) as usize;
    if execution.layers.len() != n_stages || execution.layers.iter().sum::<u32>() != layers_of(&model) {
        execution.layers = Vec::new();
    }
    let mut problem = machine.problem(model, degrees, execution)?;
    // What a graph replays was launched once.
    if !matches!(cells.word("cuda_graph_impl"), "" | "none") {
        problem.execution.host_overhead_per_layer = hw::Seconds::ZERO;
    }
    if cells.flag("fsdp") {
        problem.layout.zero = Zero::Parameters;
    }
    Ok(problem)
}

fn layers_of(model: &Model) -> u32 {
    u32::try_from(model.n_layers).expect("layer counts fit u32")
}

fn execution(cells: &Cells<'_>, label: &Label) -> Result<Execution, Reason> {
    let is_hidden = cells.flag("grad_reduce_overlap");
    let gradients = if cells.word("main_grads_dtype") == "bf16" || !cells.flag("grad_reduce_fp32") {
        Dtype::Bf16
    } else {
        Dtype::Fp32
    };
    let capacity = cells.word("moe_capacity_factor").parse().ok();
    Ok(Execution {
        recompute: recompute(cells),
        framework: Framework::MegatronCore,
        formats: Some(formats(&label.format)?),
        gathers_narrow: cells.flag("fp8_param_gather") || cells.flag("fp4_param_gather"),
        gradient_sync: if is_hidden { GradientSync::Overlapped } else { GradientSync::AtEnd },
        gradient_dtype: gradients,
        overlap: Overlap {
            tensor: if cells.flag("tp_comm_overlap") { USER_BUFFERS } else { 0.0 },
            expert: if cells.flag("moe_a2a_overlap") { EXPERT_OVERLAP } else { 0.0 },
            stage: cells.flag("p2p_overlap"),
            parameter_gather: cells.flag("param_gather_overlap"),
            ..Overlap::NONE
        },
        experts: ExpertTraffic { imbalance: 0.0, capacity, compression: None },
        ..Execution::default()
    })
}

/// Recompute by module: the dense feed-forward is an option here; norms, activation functions and the up-projections of latent attention are
/// cheap and taken as kept.
fn recompute(cells: &Cells<'_>) -> Recompute {
    match cells.word("recompute_granularity") {
        "full" => Recompute::Full,
        _ if cells.word("recompute_modules").split('+').any(|module| module == "mlp") => Recompute::FeedForward,
        _ => Recompute::Off,
    }
}

fn formats(word: &str) -> Result<Formats, Reason> {
    let format = match word {
        "BF16" => Format::Bf16,
        "FP8-CS" => Format::Fp8,
        "FP8-MX" => Format::Mxfp8,
        "NVFP4" => Format::Nvfp4,
        _ => return Err(Reason::Format { word: word.to_owned() }),
    };
    Ok(Formats::weights(format, Dtype::Bf16))
}

fn model(word: &str) -> Result<Model, Reason> {
    let name = match word {
        "LLAMA3_8B" => "llama-3.1-8b",
        "LLAMA3_70B" => "llama-3.1-70b",
        "LLAMA3.1_405B" => "llama-3.1-405b",
        "DeepSeekV3" => "deepseek-v3",
        "GPT_OSS_120B" => "gpt-oss-120b",
        "Qwen3_30B_a3B" => "qwen3-30b-a3b",
        "Qwen3_235B_a22B" => "qwen3-235b-a22b",
        "Kimi_K2" => "kimi-k2",
        "Nemotron_3_Nano" => "nemotron-3-nano-30b-a3b",
        _ => return Err(Reason::Model { word: word.to_owned() }),
    };
    engine::model::embedded(name).ok_or_else(|| Reason::Model { word: word.to_owned() })
}

/// Layers of every stage from a layout string of Megatron-LM, for example `Et*4|t*4|t*1mL`: `t` is a layer and `m` one that predicts a further
/// token, `E` and `L` are embedding and loss, a bar ends a stage, brackets and stars repeat. Empty for an empty string.
fn stage_layers(text: &str) -> Vec<u32> {
    if text.is_empty() {
        return Vec::new();
    }
    let plain = expanded(text);
    plain.split('|').map(|stage| u32::try_from(stage.matches(['t', 'm']).count()).expect("few layers")).collect()
}

/// The string without repetitions.
fn expanded(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (unit, after) = match (first, rest.find(')')) {
            ('(', Some(end)) => (expanded(&rest[1..end]), &rest[end + 1..]),
            _ => (first.to_string(), &rest[1..]),
        };
        let (times, after) = repetition(after);
        out += &unit.repeat(times);
        rest = after;
    }
    out
}

/// How often what stands before is meant, and what follows.
fn repetition(text: &str) -> (usize, &str) {
    let Some(digits) = text.strip_prefix('*') else { return (1, text) };
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    (digits[..end].parse().unwrap_or(1), &digits[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_strings_of_recipes_are_read() {
        // DeepSeek-V3: 61 layers and one that predicts, on sixteen stages, and on 32 (eight ranks of four).
        let sixteen = stage_layers("Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*1mL");
        assert_eq!((sixteen.len(), sixteen.iter().sum::<u32>()), (16, 62));
        assert_eq!((sixteen[0], sixteen[15]), (4, 2));
        let many = stage_layers("Et|(tt|)*30mL");
        assert_eq!((many.len(), many.iter().sum::<u32>()), (32, 62));
        assert_eq!((many[0], many[1], many[31]), (1, 2, 1));
        assert_eq!(stage_layers(""), Vec::<u32>::new());
    }
}
