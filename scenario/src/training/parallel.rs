//! `[parallel]`: degrees, the order of ranks, the pipeline schedule and the split of layers.

use toml_span::value::ValueInner;
use train::layout::{Axis, ContextExchange, Layout, Zero};
use train::schedule::{Schedule, chunks_of};

use super::usual::Usual;
use input::diagnostic::Code;
use input::reader::{Place, Section, place_of, small, unknown};

/// Words for the exchange inside a context group.
pub const EXCHANGES: [(&str, ContextExchange); 3] =
    [("gather", ContextExchange::Gather), ("ring", ContextExchange::Ring), ("ulysses", ContextExchange::Ulysses)];

/// What the section says.
pub struct Parallel {
    /// Degrees; `dp` is 0 where it is left to the cluster's size.
    pub layout: Layout,
    /// Pipeline schedule.
    pub schedule: &'static Schedule,
    /// Layers of every stage; empty splits evenly.
    pub layers: Vec<u32>,
    /// Micro-batches that interleaved stages run through one chunk before the next one, where they are not as many as ranks.
    pub micro_batch_group: Option<u32>,
    /// Micro-batches behind which a pipeline is flushed, where it is flushed within a step.
    pub flush_every: Option<u32>,
    /// Whether the degrees are searched for.
    pub is_searched: bool,
    /// Where its keys are.
    pub places: Places,
}

/// Positions that findings about the layout point to; the section where a key is left out.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// `cp`, or the section.
    pub cp: Place,
    /// `tp`, or the section.
    pub tp: Place,
    /// `pp`, or the section.
    pub pp: Place,
    /// `ep` or `expert_tp`, or the section.
    pub ep: Place,
    /// `layers`, or the section.
    pub layers: Place,
    /// `replicate`, or the section.
    pub replicate: Place,
}

/// Reads the section.
pub fn parallel(mut section: Section<'_>, usual: Usual) -> Parallel {
    let is_searched = layout_word(&mut section);
    let mut degree = |key, default| section.count(key, Some(default), 1..=100_000);
    let ((cp, cp_at), (tp, tp_at), (pp, pp_at)) = (degree("cp", 1), degree("tp", 1), degree("pp", 1));
    let ((ep, ep_at), (expert_tp, expert_tp_at)) = (degree("ep", 1), degree("expert_tp", 1));
    let dp = section.count("dp", Some(0), 1..=100_000).0;
    let zero = [Zero::Off, Zero::OptimizerStates, Zero::Gradients, Zero::Parameters]
        [section.size("zero", usual.zero(pp), 0..=3)];
    let (replicate, replicate_at) = section.count("replicate", Some(1), 1..=100_000);
    let exchange = section.one_of("exchange", usual.exchange(), &EXCHANGES);
    let sequence_parallel = section.flag("sequence_parallel", tp > 1);
    let order = order(&mut section);
    let default = train::schedule::named("1f1b").expect("the table has 1F1B");
    section.offers("schedule", || planner::train::orders::schedules().map(|schedule| schedule.name));
    let schedule = section.text("schedule").and_then(|(name, at)| self::schedule(&mut section, &name, at));
    // One rank has nothing to schedule: a micro-batch after the other.
    let schedule = schedule.filter(|_| pp > 1).unwrap_or(default);
    let chunks = section.count("chunks", Some(schedule.n_chunks as u64), 1..=1000).0;
    let micro_batch_group = group(&mut section, pp);
    let is_flushed = section.has("flush_every");
    let flush_every = Some(small(section.count("flush_every", Some(100_000), 1..=100_000).0)).filter(|_| is_flushed);
    let (layers, layers_at) = layers(&mut section);
    let or_section = |at: Place| at.or_else(|| section.at());
    let places = Places {
        cp: or_section(cp_at),
        tp: or_section(tp_at),
        pp: or_section(pp_at),
        ep: or_section(ep_at.or(expert_tp_at)),
        layers: or_section(layers_at),
        replicate: or_section(replicate_at),
    };
    section.finish();
    let layout = Layout {
        dp: small(dp),
        cp: small(cp),
        tp: small(tp),
        pp: small(pp),
        chunks: chunks_of(schedule, small(pp), small(chunks)),
        ep: small(ep),
        expert_tp: small(expert_tp),
        sequence_parallel,
        zero,
        replicate: small(replicate),
        exchange,
        order,
    };
    Parallel { layout, schedule, layers, micro_batch_group, flush_every, is_searched, places }
}

/// `micro_batch_group`, at least as many as ranks: with fewer the next chunk's micro-batch has not come around yet.
fn group(section: &mut Section<'_>, pp: u64) -> Option<u32> {
    const KEY: &str = "micro_batch_group";
    let is_given = section.has(KEY);
    let (n, at) = section.count(KEY, Some(pp), 1..=100_000);
    if is_given && n < pp {
        let what = format!("groups of {n} micro-batches are smaller than a pipeline of {pp} ranks");
        section.refuse(Code::OutOfRange, at, what, format!("allowed are {pp} and more"));
    }
    is_given.then(|| small(n))
}

/// A finding for a word that is not a way to choose a layout.
fn layout_word(section: &mut Section<'_>) -> bool {
    let Some((found, at)) = section.text("layout") else { return false };
    if found != "search" && found != "given" {
        section.find(unknown(
            Code::UnknownWord,
            format!("unknown way to choose a layout `{found}`"),
            &found,
            ["given", "search"],
            at,
        ));
    }
    found == "search"
}

/// A pipeline schedule by name.
pub fn schedule(section: &mut Section<'_>, name: &str, at: Place) -> Option<&'static Schedule> {
    let found = planner::train::orders::schedule(name);
    if found.is_none() {
        let names = planner::train::orders::schedules().map(|schedule| schedule.name);
        section.find(unknown(Code::UnknownSchedule, format!("unknown pipeline schedule `{name}`"), name, names, at));
    }
    found
}

/// `order = "tp-cp-dp-pp"`, fastest axis first.
fn order(section: &mut Section<'_>) -> [Axis; 4] {
    let default = [Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline];
    let Some((text, at)) = section.text("order") else { return default };
    let axes: Vec<Axis> = text
        .split('-')
        .filter_map(|word| match word {
            "tp" => Some(Axis::Tensor),
            "cp" => Some(Axis::Context),
            "dp" => Some(Axis::Data),
            "pp" => Some(Axis::Pipeline),
            _ => None,
        })
        .collect();
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if let (Ok(order), 4) = (<[Axis; 4]>::try_from(axes), sorted.len()) {
        return order;
    }
    let what = format!("`{text}` is not an order of ranks");
    section.refuse(Code::WrongRankOrder, at, what, "allowed is each of tp, cp, dp, pp once, for example `tp-cp-dp-pp`");
    default
}

/// `layers = [11, 12, 12, 11]`, along a micro-batch's path.
fn layers(section: &mut Section<'_>) -> (Vec<u32>, Place) {
    let Some((value, at)) = section.take("layers") else { return (Vec::new(), None) };
    let ValueInner::Array(items) = value else {
        section.wrong(Code::WrongType, at, "`parallel.layers` is not a list of layer counts");
        return (Vec::new(), None);
    };
    let mut layers = Vec::with_capacity(items.len());
    for item in &items {
        match item.as_integer().and_then(|n| u32::try_from(n).ok()) {
            Some(n) => layers.push(n),
            None => section.wrong(Code::WrongType, place_of(item), "a stage's layers are a whole number"),
        }
    }
    (layers, at)
}
