//! One layer of experts as Megatron-LM's performance tests time it: forward and backward with dispatch, on eight GPUs.
//!
//! Source: NVIDIA/Megatron-LM @ d98e8a64ddf3, tests/functional_tests/test_cases/common/moe_perf. A `MoELayer` alone is timed, between a large product that hides its
//! launches and a barrier: no norm, no residual, no optimizer. Nothing is fitted. Units: seconds.

use engine::Model;
use engine::dispatcher::Dispatcher;
use engine::formats::Formats;
use engine::layer::{expert_exchange, experts_alone};
use engine::model::Experts;
use engine::shard::ExpertLoad;
use engine::stage::Stage;
use engine::task::{Op, PassKind};
use hw::{Dtype, Format, GroupShape};
use train::problem::{Execution, ExpertTraffic, Framework, Problem};

use super::constants::Constants;
use super::play::Costs;
use super::setting::{Degrees, Machine};
use crate::operators::Predicted;
use crate::reason::Reason;
use crate::table::{Cells, Fault, Table, has_columns};

/// Columns that tell the table from every other, and without which nothing can be said.
pub(crate) const NEEDED: [&str; 11] = [
    "gpu",
    "ep_gpus",
    "tokens_per_gpu",
    "hidden",
    "expert_ffn",
    "experts",
    "topk",
    "dispatcher",
    "precision",
    "forward_ms",
    "backward_ms",
];

/// Groups of experts that the router of a proxy chooses among, and those that a token chooses (`test_cases.py`, `DEEPSEEK_PROXY`).
const GROUPS: [(&str, [u64; 2]); 1] = [("deepseek", [8, 4])];

/// A layer as it was timed.
#[derive(Clone, Debug)]
pub struct ExpertLayer {
    line: u64,
    card: String,
    name: String,
    measured_s: f64,
    /// What ran, and the tokens of a GPU.
    ran: Result<(Problem, u64), Reason>,
}

/// Layers of a table; `None` where its header is of another one.
pub fn read(text: &str) -> Option<Result<Vec<ExpertLayer>, Vec<Fault>>> {
    has_columns(text, &NEEDED).then(|| Table::read(text, &NEEDED).and_then(|table| table.read_rows(layer)))
}

fn layer(cells: &mut Cells<'_>) -> ExpertLayer {
    let name = ["proxy_of", "dispatcher", "precision"].map(|column| cells.word(column)).join(" ");
    let measured_s = cells.seconds("forward_ms") + cells.seconds("backward_ms");
    let ran = problem(cells);
    ExpertLayer { line: cells.line, card: cells.word("gpu").to_owned(), name, measured_s, ran }
}

fn problem(cells: &mut Cells<'_>) -> Result<(Problem, u64), Reason> {
    let ep = cells.positive("ep_gpus");
    let degrees = Degrees { tp: 1, pp: 1, cp: 1, ep, dp: ep, chunks: 1, expert_tp: 1 };
    let tokens = u64::from(cells.positive("tokens_per_gpu"));
    let machine = Machine::of(cells.word("gpu"), ep)?;
    Ok((machine.problem(model(cells), &degrees, execution(cells)?)?, tokens))
}

/// A model whose experts they are.
fn model(cells: &mut Cells<'_>) -> Model {
    let [hidden, width, n_routed, top_k] =
        ["hidden", "expert_ffn", "experts", "topk"].map(|column| u64::from(cells.positive(column)));
    let proxy = cells.word("proxy_of");
    let [n_groups, groups_of_token] =
        GROUPS.iter().find(|(name, _)| *name == proxy).map_or([1, 1], |(_, groups)| *groups);
    let experts = Experts { n_groups, groups_of_token, ..Experts::plain(n_routed, top_k, width) };
    let base = engine::model::embedded("qwen3-30b-a3b").expect("embedded");
    Model { name: "a layer of experts".to_owned(), hidden, experts: Some(experts), ..base }
}

fn execution(cells: &Cells<'_>) -> Result<Execution, Reason> {
    let formats = match cells.word("precision") {
        "bf16" => Formats::of(Dtype::Bf16),
        "fp8 blockwise" => Formats::weights(Format::Fp8Block, Dtype::Bf16),
        word => return Err(Reason::Format { word: word.to_owned() }),
    };
    let dispatcher = match cells.word("dispatcher") {
        "DeepEP" => Dispatcher::DeepEp,
        "HybridEP" => Dispatcher::HybridEp,
        _ => Dispatcher::AllToAll,
    };
    Ok(Execution {
        recompute: train::problem::Recompute::Off,
        framework: Framework::MegatronCore,
        formats: Some(formats),
        experts: ExpertTraffic { dispatcher, ..ExpertTraffic::EVEN },
        ..Execution::default()
    })
}

/// Every layer's passes beside what costs say of them; no prediction where it cannot be expressed.
pub fn predicted(layers: &[ExpertLayer], costs: &Costs<'_>) -> Vec<Predicted> {
    let of = |layer: &ExpertLayer| Predicted {
        line: layer.line,
        device: layer.card.clone(),
        op: layer.name.clone(),
        measured_s: layer.measured_s,
        predicted_s: layer.ran.as_ref().ok().map(|(problem, tokens)| seconds(problem, *tokens, costs)),
        reason: layer.ran.as_ref().err().map(Reason::words),
    };
    layers.iter().map(of).collect()
}

/// Forward and backward. The forward waits for the counts of tokens, and the device then for the launches behind them; backward is launched ahead.
fn seconds(problem: &Problem, tokens: u64, costs: &Costs<'_>) -> f64 {
    let (shard, cost) = (problem.shard(), costs(&problem.cluster, problem.execution.framework));
    let shape = GroupShape::inside(problem.layout.ep);
    let stage = Stage { n_expert: 1, ..Stage::default() };
    let passes = [PassKind::Forward, PassKind::Backward].map(|kind| {
        let mut ops = experts_alone(&shard, tokens, kind);
        ops.extend(expert_exchange(&shard, &stage, tokens, kind, ExpertLoad::EVEN, shape));
        cost.estimate(&Op::Sequence(ops)).time
    });
    let waits = Constants::of(&problem.cluster.gpu.name).host_per_layer();
    (passes[0] + passes[1] + waits).get()
}
