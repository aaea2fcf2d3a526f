//! SimuMax's measured steps: short models on one node, bf16, Megatron-LM with a distributed optimizer, no overlap and no recompute.
//!
//! Source: MooreThreads/SimuMax @ 4dcaae513ba7, docs/b200 (release v1.2), docs/FULL_RESULTS.md; Megatron-LM 23e00ed, Transformer Engine 2.11.

use engine::Model;
use engine::model::{Experts, Pattern};
use hw::BytesPerSecond;
use train::layout::ContextExchange;
use train::problem::{Execution, ExpertTraffic, Framework, GradientSync, Loss, Overlap, Recompute};

use super::constants::PORT_SHARE;
use super::models;
use super::row::{Asked, Label, Measured, Other, Row, Run, Weighs};
use super::setting::{Degrees, MEBIBYTE, Machine, StepSize};
use crate::reason::Reason;
use crate::table::Cells;

/// Columns without which nothing can be said.
pub(super) const NEEDED: [&str; 11] = [
    "row",
    "model",
    "layers",
    "gpu",
    "gpus",
    "seq_tokens",
    "micro_batch_seqs",
    "micro_batches_per_step",
    "tp_gpus",
    "pp_stages",
    "ep_gpus",
];

/// The card whose node is one of PCIe.
const PCIE_CARD: &str = "A100 PCIe";
/// GPUs of such a node that reach each other without the link between both processors. Groups of two and four reach 0.69 of a link there, groups of
/// eight 0.45 (configs/system/a100_pcie.json, `intra_node_pcie_{2x,4x,8x}`).
const PCIE_HALF: u32 = 4;
/// What each of four GPUs has of that link while all exchange, bytes per second: groups of two that lie in both halves gather at 4 GiB/s and scatter sums
/// at 3.9 (the same, `dp_fixed_bw`).
const BETWEEN_HALVES: f64 = 3.95 * 1_073_741_824.0;

/// A line of either card's table; what only one of them has is not there in the other.
pub(super) fn row(cells: &mut Cells<'_>) -> Row {
    let degrees = Degrees::read(cells);
    let label = Label { format: "bf16".to_owned(), set: "SimuMax", ..super::setting::label(cells, &degrees) };
    let n_layers = u64::from(cells.positive("layers"));
    let tokens = u64::from(cells.positive("seq_tokens"));
    let [micro_batch, n_micro_batches] =
        ["micro_batch_seqs", "micro_batches_per_step"].map(|name| cells.positive(name));
    let measured = measured(cells, &degrees);
    let sound = super::setting::same_gpus(cells, &degrees);
    let asked = sound.and_then(|()| model(cells, &label.model, n_layers)).and_then(|model| {
        let has_halves = label.card == PCIE_CARD;
        let n_gpus = degrees.n_gpus();
        let machine = if has_halves {
            Machine::on_nodes_of(PCIE_HALF, &label.card, n_gpus)?
        } else {
            Machine::of(&label.card, n_gpus)?
        };
        let mut problem = machine.problem(model, &degrees, execution())?;
        if has_halves {
            problem.cluster.nic_bandwidth = BytesPerSecond::new(BETWEEN_HALVES / PORT_SHARE);
        }
        problem.layout.exchange = ContextExchange::Ulysses;
        let run = Run::usual(problem, [micro_batch, n_micro_batches], tokens);
        let other = other(&run, &label).map(Box::new);
        Ok(Asked::from(Run { other, ..run }))
    });
    let size =
        StepSize { sequences: micro_batch * n_micro_batches * degrees.dp, micro_batch, tokens, gpus: degrees.n_gpus() };
    let compared = Some(super::setting::compared(&label, "", &size, ""));
    Row { label, asked, measured, compared }
}

/// What a row may have run instead. Scripts of release 1.2 fuse no loss, and its measured memory is that of single kernels. Release 1.0, which ran on
/// A100, has no scripts: its loss took between what single kernels and what Transformer Engine's take.
fn other(asked: &Run, label: &Label) -> Option<Other> {
    if !label.card.starts_with("A100") {
        return None;
    }
    let mut run = asked.clone();
    run.problem.execution.loss = Loss::InPlace;
    Some(Other { run, weighs: Weighs::Both })
}

fn execution() -> Execution {
    Execution {
        recompute: Recompute::Off,
        framework: Framework::MegatronCore,
        gradient_sync: GradientSync::AtEnd,
        gradient_dtype: hw::Dtype::Fp32,
        overlap: Overlap { stage: false, ..Overlap::NONE },
        // Capacity factor 1 with padding.
        experts: ExpertTraffic { capacity: Some(1.0), ..ExpertTraffic::EVEN },
        ..Execution::default()
    }
}

/// The cut models. The 405B shape has 16 key-value heads there, DeepSeek one dense layer. A model that the catalogue lacks has what its line states.
fn model(cells: &mut Cells<'_>, word: &str, n_layers: u64) -> Result<Model, Reason> {
    let Some(known) = engine::model::of_checkpoint(word) else { return stated(cells, word, n_layers) };
    let n_kv_heads = cells.count("kv_heads").map_or(known.n_kv_heads, u64::from);
    let n_dense = u64::from(known.latent.is_some());
    Ok(Model { n_kv_heads, ..models::cut(&known.name, n_layers, n_dense) })
}

/// A model by its columns: grouped attention with rotary positions, gated feed-forwards, experts behind the layers that have none.
fn stated(cells: &mut Cells<'_>, word: &str, n_layers: u64) -> Result<Model, Reason> {
    let of = |column: &str| cells.count(column).map(u64::from).filter(|n| *n > 0);
    let unknown = || Reason::Model { word: word.to_owned() };
    let [hidden, n_heads] = [of("hidden"), of("heads")].map(|n| n.ok_or_else(unknown));
    let (hidden, n_heads, vocab) = (hidden?, n_heads?, of("vocab").ok_or_else(unknown)?);
    let experts = of("experts").zip(of("topk")).zip(of("moe_ffn"));
    let experts = experts.map(|((n_routed, top_k), width)| Experts {
        shared_intermediate: of("shared_ffn").unwrap_or(0),
        ..Experts::plain(n_routed, top_k, width)
    });
    let base = models::cut("llama-3-8b", n_layers, 0);
    let layers = experts.map_or(base.layers.clone(), |_| Pattern::of_experts(of("dense_layers").unwrap_or(0), 1));
    let intermediate = of("ffn").or(experts.map(|experts| experts.intermediate)).ok_or_else(unknown)?;
    let n_kv_heads = of("kv_heads").unwrap_or(n_heads);
    let head_dim = hidden / n_heads;
    Ok(Model {
        name: word.to_owned(),
        hidden,
        intermediate,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab,
        experts,
        layers,
        ..base
    })
}

/// The B200 table has milliseconds and the peaks of all ranks, in mebibytes; the A100 table has seconds.
fn measured(cells: &mut Cells<'_>, degrees: &Degrees) -> Measured {
    let ms = cells.positive_number("iter_time_ms").map(|ms| ms / 1e3);
    let step_s = ms.or_else(|| cells.positive_number("iter_time_s"));
    let mut memory: Vec<(u32, f64)> = Vec::new();
    // Memory was measured once per layout; further rows repeat it.
    if cells.flag("memory_measured_in_this_run") || !cells.has("memory_measured_in_this_run") {
        let peaks = cells.numbers("peak_mem_allocated_mib_by_rank");
        let per_stage = peaks.len() / degrees.pp as usize;
        for (stage, ranks) in (0_u32..).zip(peaks.chunks(per_stage.max(1))) {
            memory.push((stage, ranks.iter().copied().fold(0.0, f64::max) * MEBIBYTE));
        }
    }
    Measured { step_s, memory, ..Measured::default() }
}
