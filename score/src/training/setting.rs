//! What the readers of measured steps share: degrees, machines, labels, units.

use engine::Model;
use engine::dispatcher::Dispatcher;
use hw::Capability;
use hw::{Bytes, Cluster, Dtype};
use train::layout::{Axis, ContextExchange, Layout, Zero};
use train::problem::{Execution, Module, Modules, Problem, Recompute};
use train::stage_text;
use train::workload::Workload;

use super::constants::{Constants, Graphs};
use super::row::{Compared, Label};
use crate::reason::Reason;
use crate::table::Cells;

/// Bytes of a mebibyte, in which SimuMax prints.
pub(super) const MEBIBYTE: f64 = 1_048_576.0;
/// Bytes of a gibibyte, in which torchtitan prints.
pub(super) const GIBIBYTE: f64 = 1_073_741_824.0;

/// What a recipe computes again: nothing, whole layers, or modules. Modules without a granularity are nothing: Megatron-Core asks for `selective` wherever it
/// computes one again (core 0.15.0, `experts.py`, `transformer_layer.py`). Megatron Bridge sets it with the modules from v0.3.0 on (`utils/overrides.py`), and did not
/// before (v0.2.0, `helpers.py`: `set_recompute_overrides`). An empty list is nothing.
pub(super) fn recompute(cells: &Cells<'_>, separator: char) -> Result<Recompute, Reason> {
    match cells.word("recompute_granularity") {
        "full" => return Ok(Recompute::Full),
        "" | "none" => return Ok(Recompute::Off),
        "selective" => {}
        word => {
            let allowed = "allowed are `none`, `selective`, `full`";
            return Err(Reason::Option { what: format!("recompute_granularity `{word}`; {allowed}") });
        }
    }
    let words = cells.word("recompute_modules").split(separator).filter(|word| !word.is_empty());
    let named = |word: &str| Module::named(word).ok_or_else(|| Reason::Option { what: format!("recompute of {word}") });
    let modules: Modules = words.map(named).collect::<Result<_, Reason>>()?;
    Ok(if modules == Modules::NONE { Recompute::Off } else { Recompute::Modules(modules) })
}

/// What sends tokens where a table says it by the words of Megatron-Core: the type, and a backend where that is flexible.
pub(super) fn dispatcher(kind: &str, backend: &str, card: Capability) -> Dispatcher {
    match (kind, backend) {
        ("flex", "deepep") => Dispatcher::DeepEp,
        ("flex", "hybridep") => Dispatcher::HybridEp,
        ("flex", _) => Dispatcher::flex(card),
        _ => Dispatcher::AllToAll,
    }
}

/// Degrees of a row; 1 where a table has no such column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Degrees {
    pub(crate) tp: u32,
    pub(crate) pp: u32,
    pub(crate) cp: u32,
    pub(crate) ep: u32,
    pub(crate) dp: u32,
    pub(crate) chunks: u32,
    pub(crate) expert_tp: u32,
}

impl Degrees {
    pub(super) fn read(cells: &mut Cells<'_>) -> Self {
        let of = |name: &str| cells.count(name).unwrap_or(1).max(1);
        Self {
            tp: of("tp_gpus"),
            pp: of("pp_stages"),
            cp: of("cp_gpus"),
            ep: of("ep_gpus"),
            dp: of("dp_replicas"),
            chunks: of("vp_chunks"),
            expert_tp: of("etp_gpus"),
        }
    }

    pub(crate) const fn n_gpus(&self) -> u32 {
        self.tp * self.pp * self.cp * self.dp
    }

    pub(crate) fn words(&self) -> String {
        let named =
            [("tp", self.tp), ("pp", self.pp), ("cp", self.cp), ("vp", self.chunks), ("ep", self.ep), ("dp", self.dp)];
        let shown: Vec<String> =
            named.iter().filter(|(_, degree)| *degree > 1).map(|(name, degree)| format!("{name}{degree}")).collect();
        if shown.is_empty() { "one GPU".to_owned() } else { shown.join(" ") }
    }
}

/// Whether a row's degrees fill the GPUs that it states.
pub(super) fn same_gpus(cells: &mut Cells<'_>, degrees: &Degrees) -> Result<(), Reason> {
    match cells.count("gpus") {
        Some(gpus) if gpus != degrees.n_gpus() => Err(Reason::Degrees {
            what: format!("{} is {} GPUs, and `gpus` is {gpus}", degrees.words(), degrees.n_gpus()),
        }),
        _ => Ok(()),
    }
}

/// Layers of every stage from a layout string of Megatron-LM, those that predict a further token with them. Empty for an empty string.
pub(super) fn stage_layers(text: &str, degrees: &Degrees, model: &Model) -> Result<Vec<u32>, Reason> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let wrong = |why: String| Reason::Degrees { what: format!("the layout `{text}`: {why}") };
    let stages = stage_text::read(text).map_err(|why| wrong(why.to_string()))?;
    let layers: Vec<u32> = stages.iter().map(|stage| stage.layers + stage.predicting).collect();
    let n_stages = (degrees.pp * degrees.chunks) as usize;
    if layers.len() != n_stages {
        return Err(wrong(format!("it has {} stages, and the row has {n_stages}", layers.len())));
    }
    let n_layers: u64 = layers.iter().map(|n| u64::from(*n)).sum();
    if n_layers != model.n_layers {
        return Err(wrong(format!("it holds {n_layers} layers, and the model has {}", model.n_layers)));
    }
    Ok(layers)
}

/// What all tables say of a row.
pub(super) fn label(cells: &Cells<'_>, degrees: &Degrees) -> Label {
    let text = |column: &str| cells.word(column).to_owned();
    Label {
        row: text("row"),
        line: cells.line,
        model: text("model"),
        card: text("gpu"),
        layout: degrees.words(),
        ..Label::default()
    }
}

/// Where a row stands among others of its set, model and card: a step of so many sequences on so many GPUs.
pub(super) fn compared(label: &Label, task: &str, step: &StepSize, more: &str) -> Compared {
    let Label { set, model, card, format, layout, .. } = label;
    let StepSize { sequences, micro_batch, tokens, gpus } = step;
    let among = format!("{set} {model} {task}, {card}");
    let setting = format!("{format} {layout} {gpus} GPUs {sequences} of {tokens} by {micro_batch} {more}");
    Compared {
        among: among.replace(" ,", ","),
        setting,
        tokens_per_gpu: hw::real(u64::from(*sequences) * tokens) / f64::from(*gpus),
    }
}

/// Sequences of a step and of a micro-batch, their tokens, and GPUs.
pub(super) struct StepSize {
    pub(super) sequences: u32,
    pub(super) micro_batch: u32,
    pub(super) tokens: u64,
    pub(super) gpus: u32,
}

/// Cards as tables write them, and their entries of the catalogue.
const CARDS: [(&str, &str); 13] = [
    ("A100 PCIe", "a100-pcie-80g"),
    ("A100 80GB", "a100-sxm-80g"),
    ("A100 40GB", "a100-sxm-40g"),
    ("A100", "a100-sxm-80g"),
    ("H100 96 GB HBM2e, 500 W", "h100-sxm-96g"),
    ("H100 94-96 GB HBM2e", "h100-sxm-96g"),
    ("H100", "h100-sxm"),
    ("H200", "h200-sxm"),
    ("H20", "h20"),
    ("B200", "b200"),
    ("B300", "b300"),
    ("GB200", "gb200"),
    ("GB300", "gb300"),
];

/// One GPU of a card as tables write it; none where it is not in the catalogue.
pub(crate) fn one_card(card: &str) -> Option<Cluster> {
    Machine::of(card, 1).ok().map(|machine| machine.cluster)
}

/// A cluster of one card.
pub(crate) struct Machine {
    cluster: Cluster,
}

impl Machine {
    /// What its cards can do.
    pub(crate) fn capability(&self) -> Capability {
        self.cluster.gpu.capability()
    }

    /// So many GPUs of a card on usual hosts, in the blocks that NVLink joins.
    pub(crate) fn of(card: &str, n_gpus: u32) -> Result<Self, Reason> {
        let gpu = known(card)?;
        Ok(Self::of_nodes(&gpu, n_gpus, hw::catalog::gpus_per_node(&gpu.name)))
    }

    /// The same on nodes of so many.
    pub(crate) fn on_nodes_of(per_node: u32, card: &str, n_gpus: u32) -> Result<Self, Reason> {
        Ok(Self::of_nodes(&known(card)?, n_gpus, per_node))
    }

    fn of_nodes(gpu: &hw::Gpu, n_gpus: u32, per_node: u32) -> Self {
        let per_node = per_node.min(n_gpus);
        Self { cluster: hw::catalog::cluster(gpu, n_gpus.div_ceil(per_node), per_node) }
    }

    /// Its GPUs.
    pub(crate) fn cluster(self) -> Cluster {
        self.cluster
    }

    /// The problem of a model on it, with a distributed optimizer; sequences come with the plan.
    pub(crate) fn problem(self, model: Model, degrees: &Degrees, execution: Execution) -> Result<Problem, Reason> {
        check(&model, degrees, !execution.layers.is_empty())?;
        let not_timed = model.not_trained();
        if !not_timed.is_empty() {
            return Err(Reason::Layers { what: not_timed });
        }
        let schedule = if degrees.chunks > 1 { "interleaved" } else { "1f1b" };
        let (host_overhead_per_layer, launches) = Constants::of(&self.cluster.gpu.name).host(Graphs::Off);
        let execution = Execution { host_overhead_per_layer, launches, ..execution };
        let layout = Layout {
            tp: degrees.tp,
            pp: degrees.pp,
            chunks: degrees.chunks,
            ep: degrees.ep,
            expert_tp: degrees.expert_tp,
            sequence_parallel: degrees.tp > 1,
            order: [Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline],
            ..Layout::data_and_context(degrees.dp, degrees.cp, Zero::OptimizerStates, ContextExchange::Ring)
        };
        if layout.expert_span().is_none() {
            return Err(Reason::Degrees { what: format!("expert groups of {} in {}", degrees.ep, degrees.words()) });
        }
        Ok(Problem {
            model,
            cluster: self.cluster,
            layout,
            schedule: train::schedule::named(schedule).expect("listed"),
            workload: Workload { lengths: Vec::new(), batch_size: 0, source: "measured".to_owned() },
            dtype: Dtype::Bf16,
            execution,
            bucket_tokens: u64::MAX,
            reserved_memory: Bytes::ZERO,
            seed: 0,
        })
    }
}

/// A card of the catalogue by the table's word.
fn known(card: &str) -> Result<hw::Gpu, Reason> {
    let name = CARDS.iter().find(|(word, _)| *word == card).map(|(_, name)| *name);
    name.and_then(hw::catalog::gpu).ok_or_else(|| Reason::Card { word: card.to_owned() })
}

/// Whether a model can be cut so. Stages whose layers are listed may have none, as those of an embedding or a loss alone.
fn check(model: &Model, degrees: &Degrees, lists_layers: bool) -> Result<(), Reason> {
    let refused = |what: String| Err(Reason::Degrees { what });
    if !model.n_heads.is_multiple_of(u64::from(degrees.tp)) {
        return refused(format!("{} heads over {} GPUs", model.n_heads, degrees.tp));
    }
    if model.n_layers < u64::from(degrees.pp * degrees.chunks) && !lists_layers {
        return refused(format!("{} layers in {} stages", model.n_layers, degrees.pp * degrees.chunks));
    }
    match model.experts {
        Some(experts) if !experts.n_routed.is_multiple_of(u64::from(degrees.ep)) => {
            refused(format!("{} experts over {} GPUs", experts.n_routed, degrees.ep))
        }
        None if degrees.ep > 1 => refused(format!("no experts for {} GPUs", degrees.ep)),
        _ => Ok(()),
    }
}
