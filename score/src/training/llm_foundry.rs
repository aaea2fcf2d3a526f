//! Steps of MPT under fully sharded data parallelism on H100 and A100, as `collect_results.py` of mosaicml/llm-foundry writes them.
//!
//! Source: mosaicml/llm-foundry @ 8c8dd48f7, `scripts/train/benchmarking/README.md` (216 rows of 2023), `submit_benchmarks.py` and the models' files. No
//! constant has seen a row. Layers were not compiled. The loss is one kernel (`fused_crossentropy`), for which PyTorch's compiled one stands in. In `PURE`
//! precision gradients are reduced in 16 bits.

use engine::Model;
use engine::formats::Formats;
use hw::Format;
use train::layout::Zero;
use train::metrics::unexplained::Kernels;
use train::optimizer::{Optimizer, UpdateKernels};
use train::problem::{Casts, Execution, Framework, GradientSync, Loss, Overlap, Recompute, TorchModules};

use super::row::{Asked, Label, Measured, Row, Run};
use super::setting::{Degrees, Machine, StepSize};
use crate::reason::Reason;
use crate::table::Cells;

/// Columns without which nothing can be said.
pub(super) const NEEDED: [&str; 11] = [
    "Model",
    "SeqLen (T)",
    "# GPUs",
    "GPU",
    "MicroBatchSize",
    "GradAccum",
    "GlobalBatchSize",
    "Throughput (T/s/GPU)",
    "Precision",
    "Sharding Strategy",
    "Activation Checkpointing",
];

/// Rows of the vocabulary.
const VOCABULARY: u64 = 50_368;

/// Models: width, heads, layers.
const MODELS: [(&str, [u64; 3]); 9] = [
    ("125m", [768, 12, 12]),
    ("350m", [1024, 16, 24]),
    ("760m", [1536, 12, 24]),
    ("1b", [2048, 16, 24]),
    ("3b", [2560, 20, 32]),
    ("7b", [4096, 32, 32]),
    ("13b", [5120, 40, 40]),
    ("30b", [7168, 56, 48]),
    ("70b", [8192, 64, 80]),
];

/// Cards as the table writes them, and as tables of this project do.
const CARDS: [(&str, &str); 3] = [("h100_80gb", "H100"), ("a100_80gb", "A100 80GB"), ("a100_40gb", "A100 40GB")];

/// A line of the table.
pub(super) fn row(cells: &mut Cells<'_>) -> Row {
    let dp = cells.positive("# GPUs");
    let degrees = Degrees { dp, ..Degrees::read(cells) };
    let [tokens, micro_batch, accumulated, sequences] =
        ["SeqLen (T)", "MicroBatchSize", "GradAccum", "GlobalBatchSize"].map(|column| cells.positive(column));
    let card = cells.word("GPU").to_owned();
    let [format, mode, sharding] =
        ["Precision", "MP Mode", "Sharding Strategy"].map(|column| cells.word(column).to_owned());
    let label = Label {
        row: cells.line.to_string(),
        set: "llm-foundry",
        model: format!("MPT {}", cells.word("Model")),
        card: CARDS.iter().find(|(word, _)| *word == card).map_or(card, |(_, name)| (*name).to_owned()),
        format: format!("{format} {mode}").trim().to_owned(),
        variant: variant(cells),
        ..super::setting::label(cells, &degrees)
    };
    let per_second = cells.positive_number("Throughput (T/s/GPU)");
    let step_s = per_second.map(|rate| f64::from(sequences) * f64::from(tokens) / f64::from(dp) / rate);
    let asked = asked(cells, &label, &degrees, [micro_batch, accumulated, sequences, tokens]).map(|problem| {
        // The rows are older than every table of kernels.
        let run = Run::usual(problem, [micro_batch, accumulated], u64::from(tokens));
        Asked::from(Run { kernels: Kernels::OfOtherAge, ..run })
    });
    let size = StepSize { sequences, micro_batch, tokens: u64::from(tokens), gpus: dp };
    let compared = Some(super::setting::compared(&label, "", &size, &sharding));
    Row { label, asked, measured: Measured { step_s, ..Measured::default() }, compared }
}

/// What tells rows of a model apart: length, micro-batch, checkpoints.
fn variant(cells: &Cells<'_>) -> String {
    let kept = if is_set(cells, "Activation Checkpointing") { ", checkpoints" } else { "" };
    format!("{} of {}{kept}", cells.word("MicroBatchSize"), cells.word("SeqLen (T)"))
}

fn is_set(cells: &Cells<'_>, column: &str) -> bool {
    cells.word(column).eq_ignore_ascii_case("true")
}

fn asked(
    cells: &Cells<'_>,
    label: &Label,
    degrees: &Degrees,
    [micro_batch, accumulated, sequences, tokens]: [u32; 4],
) -> Result<train::Problem, Reason> {
    if micro_batch * accumulated * degrees.dp != sequences {
        let what =
            format!("{accumulated} micro-batches of {micro_batch} on {} GPUs are no {sequences} sequences", degrees.dp);
        return Err(Reason::Degrees { what });
    }
    if is_set(cells, "Activation CPUOffload") {
        return Err(Reason::Option { what: "Activation CPUOffload".to_owned() });
    }
    let (format, casts) = match cells.word("Precision") {
        "bf16" | "amp_bf16" => (Format::Bf16, Casts::Off),
        "amp_fp8" => (Format::Fp8, Casts::Whole),
        word => return Err(Reason::Format { word: word.to_owned() }),
    };
    let zero = match cells.word("Sharding Strategy") {
        "FULL_SHARD" => Zero::Parameters,
        "SHARD_GRAD_OP" => Zero::Gradients,
        word => return Err(Reason::Option { what: format!("sharding strategy `{word}`") }),
    };
    let gradient_dtype = match cells.word("MP Mode") {
        "PURE" => hw::Dtype::Bf16,
        "DEFAULT" | "" => hw::Dtype::Fp32,
        word => return Err(Reason::Option { what: format!("MP mode `{word}`; allowed are `DEFAULT` and `PURE`") }),
    };
    let recompute = if is_set(cells, "Activation Checkpointing") { Recompute::Full } else { Recompute::Off };
    let modules = TorchModules { compiled: false, fused_norms: true, casts, in_pieces: false, repeats_keys: true };
    let execution = Execution {
        recompute,
        loss: Loss::Compiled,
        optimizer: Optimizer { kernels: UpdateKernels::Foreach, ..Optimizer::ADAM },
        framework: Framework::Fsdp2(modules),
        formats: Some(Formats::weights(format, hw::Dtype::Bf16)),
        gradient_sync: GradientSync::Overlapped,
        gradient_dtype,
        overlap: Overlap::NONE,
        ..Execution::default()
    };
    let model = model(cells.word("Model"), tokens)?;
    let mut problem = Machine::of(&label.card, degrees.n_gpus())?.problem(model, degrees, execution)?;
    problem.layout.zero = zero;
    Ok(problem)
}

/// A model by its size: MPT with biases and a table of positions, as many as tokens of a sequence.
fn model(word: &str, tokens: u32) -> Result<Model, Reason> {
    let unknown = || Reason::Model { word: word.to_owned() };
    let (_, [hidden, heads, layers]) = MODELS.iter().find(|(name, _)| *name == word).ok_or_else(unknown)?;
    let config = format!(
        r#"{{ "model_type": "mpt", "d_model": {hidden}, "n_heads": {heads}, "n_layers": {layers}, "vocab_size": {VOCABULARY},
            "max_seq_len": {tokens}, "no_bias": false, "attn_config": {{ "alibi": false }} }}"#
    );
    Model::from_config(&format!("mpt-{word}"), &config).map_err(|_| unknown())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `NumParams` of the table.
    #[test]
    fn models_have_the_parameters_of_the_table() {
        for (name, tokens, counted) in [
            ("760m", 2048, 760_470_528),
            ("760m", 512, 758_111_232),
            ("7b", 2048, 6_658_859_008),
            ("70b", 2048, 64_862_437_376),
        ] {
            assert_eq!(model(name, tokens).expect("listed").n_parameters(), counted, "{name}");
        }
    }

    /// A line of the published page, and the same with a count that does not add up.
    #[test]
    fn a_line_is_a_step_of_its_micro_batches() {
        let header = [&NEEDED[..], &["MP Mode", "Activation CPUOffload"]].concat().join(",");
        let line = |sequences: u32| {
            format!("7b,2048,8,a100_80gb,6,2,{sequences},4641,amp_bf16,FULL_SHARD,False,DEFAULT,False")
        };
        let text = format!("{header}\n{}\n{}\n", line(96), line(95));
        let rows = crate::training::tables::read(&text, &|_| None).expect("recognised").expect("read");
        let Ok(Asked::Layout(run)) = &rows[0].asked else { panic!("{:?}", rows[0].asked) };
        assert_eq!((run.micro_batch, run.n_micro_batches, run.tokens), (6, 2, 2048));
        let step_s = rows[0].measured.step_s.expect("measured");
        assert!((step_s - 96.0 * 2048.0 / 8.0 / 4641.0).abs() < 1e-12);
        assert!(matches!(rows[1].asked, Err(Reason::Degrees { .. })));
        let other = text.replace("DEFAULT", "FULL");
        let rows = crate::training::tables::read(&other, &|_| None).expect("recognised").expect("read");
        assert!(matches!(rows[0].asked, Err(Reason::Option { .. })));
    }
}
