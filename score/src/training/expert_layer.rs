//! One layer of experts as Megatron-LM's performance tests time it: forward and backward with dispatch, on eight GPUs.
//!
//! Source: NVIDIA/Megatron-LM @ d98e8a64ddf3, tests/performance_tests. Passes alone are timed. So what counts is a
//! step of two micro-batches less one of a single one, in which the optimizer and exchanges of gradients cancel. Nothing is fitted. Units: seconds.

use engine::Model;
use engine::formats::Formats;
use engine::model::{Experts, FeedForward, Layer, Mixer, Pattern};
use hw::{Dtype, Format};
use train::problem::{Execution, ExpertTraffic, Framework};

use super::constants::{Constants, Graphs};
use super::play::{Costs, predict};
use super::reason::Reason;
use super::row::{Asked, Run};
use super::setting::{Degrees, Machine};
use crate::operators::Predicted;
use crate::table::{Cells, Fault, Table};

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

/// Layers of a step.
const N_LAYERS: u64 = 2;

/// A layer as it was timed.
#[derive(Clone, Debug)]
pub struct ExpertLayer {
    line: u64,
    card: String,
    name: String,
    measured_s: f64,
    /// Steps of one and of two micro-batches.
    steps: Result<[Run; 2], Reason>,
}

/// Layers of a table; `None` where its header is of another one.
pub fn read(text: &str) -> Option<Result<Vec<ExpertLayer>, Vec<Fault>>> {
    let names: Vec<&str> = text.lines().next().unwrap_or("").split(',').map(str::trim).collect();
    let is_known = NEEDED.iter().all(|name| names.contains(name));
    is_known.then(|| Table::read(text, &NEEDED).and_then(|table| table.read_rows(layer)))
}

fn layer(cells: &mut Cells<'_>) -> ExpertLayer {
    let name = ["proxy_of", "dispatcher", "precision"].map(|column| cells.word(column)).join(" ");
    let measured_s = cells.seconds("forward_ms") + cells.seconds("backward_ms");
    let steps = step(cells).map(|one| [one.clone(), Run { n_micro_batches: 2, ..one }]);
    ExpertLayer { line: cells.line, card: cells.word("gpu").to_owned(), name, measured_s, steps }
}

fn step(cells: &mut Cells<'_>) -> Result<Run, Reason> {
    let ep = cells.positive("ep_gpus");
    let degrees = Degrees { tp: 1, pp: 1, cp: 1, ep, dp: ep, chunks: 1, expert_tp: 1 };
    let tokens = u64::from(cells.positive("tokens_per_gpu"));
    let machine = Machine::of(cells.word("gpu"), ep, 8)?;
    let mut problem = machine.problem(model(cells), &degrees, execution(cells)?)?;
    let (waits, launches) = Constants::of(&problem.cluster.gpu.name).host(Graphs::Off);
    (problem.execution.host_overhead_per_layer, problem.execution.launches) = (waits, launches);
    Ok(Run::usual(problem, [1, 1], tokens))
}

/// Layers of experts alone, with the smallest vocabulary.
fn model(cells: &mut Cells<'_>) -> Model {
    let [hidden, width, n_routed, top_k] =
        ["hidden", "expert_ffn", "experts", "topk"].map(|column| u64::from(cells.positive(column)));
    let block = Layer { mixer: Mixer::Off, feed_forward: FeedForward::Experts };
    let base = engine::model::embedded("qwen3-30b-a3b").expect("embedded");
    Model {
        name: "a layer of experts".to_owned(),
        n_layers: N_LAYERS,
        layers: Pattern::uniform(block),
        hidden,
        intermediate: width,
        vocab: 128,
        experts: Some(Experts::plain(n_routed, top_k, width)),
        ..base
    }
}

fn execution(cells: &Cells<'_>) -> Result<Execution, Reason> {
    let formats = match cells.word("precision") {
        "bf16" => Formats::of(Dtype::Bf16),
        "fp8 blockwise" => Formats::weights(Format::Fp8Block, Dtype::Bf16),
        word => return Err(Reason::Format { word: word.to_owned() }),
    };
    // DeepEP and HybridEP send a token to a GPU once.
    let once_per_node = !cells.word("dispatcher").starts_with("alltoall");
    Ok(Execution {
        recompute: train::problem::Recompute::Off,
        framework: Framework::MegatronCore,
        formats: Some(formats),
        experts: ExpertTraffic { once_per_node, ..ExpertTraffic::EVEN },
        ..Execution::default()
    })
}

/// Every layer's passes beside what costs say of them; no prediction where it cannot be expressed.
pub fn predicted(layers: &[ExpertLayer], costs: &Costs<'_>) -> Vec<Predicted> {
    let step_s = |run: &Run| predict(&Asked::from(run.clone()), costs).step_s;
    let of = |layer: &ExpertLayer| Predicted {
        line: layer.line,
        device: layer.card.clone(),
        op: layer.name.clone(),
        measured_s: layer.measured_s,
        predicted_s: layer.steps.as_ref().ok().map(|[one, two]| (step_s(two) - step_s(one)) / hw::real(N_LAYERS)),
    };
    layers.iter().map(of).collect()
}
