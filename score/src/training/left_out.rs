//! Steps on a card that is left out: what the tables of two other generations and its own datasheet say of it.
//!
//! - **Kernels** reach the middle of the others' shares of their own peaks, shape by shape (`Profile::between`). Products in 16 bits reach the greater share: power holds those
//!   of B200 at half of its peak, so its share says nothing of kernels (`Operator::greater_share`).
//! - **Power.** Products of hours reach as many operations per joule as those of a lender that is made in the same process, or else as the others' in the
//!   middle, those of 16 bits and narrower ones each. That times the power of the card is most that they hold. Curves alone cannot say so: B200's peak is
//!   2.3 times H100's, and its power 1.4 times.
//! - **Exchanges** are the middle of the others' tables and, where those say nothing, of their constants. So is the host.
//!
//! No row of the card's generation and no table of it is asked. Units: seconds, watts.

use engine::cost::CostModel;
use engine::cost::profile::{CollectiveCurve, Operator, Profile};
use engine::cost::profiled::Profiled;
use engine::cost::sustained::Sustained;
use engine::task::Op;
use hw::{Cluster, Format, Gpu};

use super::constants::{Constants, PORT_SHARE};
use super::row::{Asked, Row, Run};

/// A shipped profile by its name.
pub type Tables<'t> = dyn Fn(&str) -> Profile + Sync + 't;

/// A generation that was measured.
struct Lender {
    /// Beginnings of its cards' names.
    generation: &'static [&'static str],
    /// Profile of its kernels of training.
    kernels: &'static str,
    /// Profile of an engine that serves: products in 16 and, where there are any, in 8 bits, and exchanges by the library.
    served: &'static str,
    /// Card whose constants of exchange and host stand for it.
    constants: &'static str,
    /// TSMC's process (NVIDIA's white papers of the three architectures), which decides what an operation costs: 4N and 4NP are one node.
    process: Process,
}

/// Where a generation is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    N7,
    N4,
}

/// A100 has no products in 8 bits.
const LENDERS: [Lender; 3] = [
    Lender {
        generation: &["a100"],
        kernels: "a100-pcie-80g",
        served: "a100-sxm-trtllm",
        constants: "a100-sxm-80g",
        process: Process::N7,
    },
    Lender {
        generation: &["h100", "h200", "gh"],
        kernels: "h100-sxm",
        served: "h100-sxm-trtllm",
        constants: "h100-sxm",
        process: Process::N4,
    },
    Lender {
        generation: &["b200", "b300", "gb"],
        kernels: "b200",
        served: "b200-trtllm",
        constants: "b200",
        process: Process::N4,
    },
];

/// Edge of a product that fills every card, elements.
const FILLS: u64 = 8192;
/// Products in 16 bits.
const WIDE: &str = "gemm";
/// Products in 8 bits.
const NARROW: &str = "gemm-fp8";

/// Whether a card is of a lender's generation.
fn is_own(lender: &Lender, card: &str) -> bool {
    lender.generation.iter().any(|beginning| card.starts_with(beginning))
}

/// The first two generations that are not the card's.
fn lenders(card: &str) -> [&'static Lender; 2] {
    let mut others = LENDERS.iter().filter(|lender| !is_own(lender, card));
    [(); 2].map(|()| others.next().expect("three generations, of which a card is in one at most"))
}

/// Lenders whose operations cost as many joules as the card's: those of its process, or all where there is none.
fn of_same_process(card: &str, lenders: [&'static Lender; 2]) -> Vec<&'static Lender> {
    let own = LENDERS.iter().find(|lender| is_own(lender, card));
    let alike: Vec<&Lender> =
        lenders.into_iter().filter(|lender| own.is_some_and(|own| own.process == lender.process)).collect();
    if alike.is_empty() { lenders.to_vec() } else { alike }
}

/// The middle of a figure of two lenders.
fn middle(lenders: [&Lender; 2], of: impl Fn(&Lender) -> f64) -> f64 {
    geometric_mean(&lenders.map(of))
}

fn geometric_mean(values: &[f64]) -> f64 {
    libm::pow(values.iter().product(), 1.0 / hw::real(values.len() as u64))
}

/// Costs of training on a machine whose card is left out.
pub fn costs(cluster: &Cluster, tables: &Tables<'_>) -> Box<dyn CostModel> {
    let gpu = &cluster.gpu;
    let lenders = lenders(&gpu.name);
    let profile = Profile { collectives: exchanges(lenders, tables, gpu), ..kernels(lenders, tables).lent_to(gpu) };
    let link_share = middle(lenders, |lender| Constants::of(lender.constants).link_share);
    let profiled = Profiled::new(&profile, cluster).with_link_shares([link_share, PORT_SHARE]);
    let alike = of_same_process(&gpu.name, lenders);
    let held = [(WIDE, Format::Bf16), (NARROW, Format::Fp8)].map(|(name, format)| {
        let per_joule: Vec<f64> =
            alike.iter().filter_map(|lender| flops_per_joule(lender, tables, name, format)).collect();
        let held = |watts: f64| geometric_mean(&per_joule) * watts / gpu.peak(format).get();
        gpu.power_watts.filter(|_| !per_joule.is_empty()).map_or(1.0, held).min(1.0)
    });
    Box::new(Sustained::by_width(profiled, gpu, held))
}

/// Kernels half-way between two lenders, with those that only one of them has.
fn kernels(lenders: [&Lender; 2], tables: &Tables<'_>) -> Profile {
    let [one, two] = lenders.map(|lender| tables(lender.kernels));
    let mut profile = Profile { collectives: Vec::new(), links: Vec::new(), ..one.between(&two) };
    if let Some((one, two)) = one.operators.get(WIDE).zip(two.operators.get(WIDE)) {
        profile.operators.insert(WIDE.to_owned(), one.greater_share(two));
    }
    if let Some(narrow) = narrow(lenders, tables) {
        profile.operators.insert(NARROW.to_owned(), narrow);
    }
    profile
}

/// Exchanges inside a node: the middle of what the library takes on both lenders, over the link of this card; none over a link of another kind.
fn exchanges(lenders: [&Lender; 2], tables: &Tables<'_>, gpu: &Gpu) -> Vec<CollectiveCurve> {
    let [one, two] = lenders.map(|lender| tables(lender.served).lent_to(gpu).collectives);
    let between = |curve: CollectiveCurve| {
        let is_same = |other: &&CollectiveCurve| other.kind == curve.kind && other.n_ranks == curve.n_ranks;
        let other = two.iter().find(is_same)?;
        let at = |bytes: &f64| engine::cost::curve::at(&other.bytes, &other.seconds, *bytes).0;
        let seconds =
            curve.bytes.iter().zip(&curve.seconds).map(|(bytes, seconds)| (seconds * at(bytes)).sqrt()).collect();
        Some(CollectiveCurve { seconds, ..curve })
    };
    one.into_iter().filter_map(between).collect()
}

/// Products in 8 bits: half-way between both lenders, or from the one that has them towards the other one by both ones' products in 16 bits.
fn narrow(lenders: [&Lender; 2], tables: &Tables<'_>) -> Option<Operator> {
    let served = lenders.map(|lender| tables(lender.served));
    let narrow = [0, 1].map(|at| served[at].operators.get(NARROW));
    let wide = |at: usize| served[at].operators.get(WIDE);
    match narrow {
        [Some(one), Some(two)] => Some(one.between(two)),
        [Some(one), None] => Some(one.towards(wide(0)?, wide(1)?)),
        [None, Some(two)] => Some(two.towards(wide(1)?, wide(0)?)),
        [None, None] => None,
    }
}

/// Operations per joule of a product that fills a lender's card, in a format that it was measured in.
fn flops_per_joule(lender: &Lender, tables: &Tables<'_>, name: &str, format: Format) -> Option<f64> {
    let profile = tables(if format.is_whole() { lender.kernels } else { lender.served });
    profile.operators.get(name)?;
    let gpu = hw::catalog::gpu(&profile.gpu).expect("a profile of the catalogue");
    let watts = gpu.power_watts.expect("the catalogue says the power of every lender");
    let op = Op::Gemm { m: FILLS, n: FILLS, k: FILLS, format };
    let time = super::constants::costs(&hw::catalog::cluster(&gpu, 1, 8), &profile).estimate(&op).time;
    Some(op.flops() / time.get() / watts)
}

/// The rows as hosts of the others would launch them.
pub fn launched(mut rows: Vec<Row>) -> Vec<Row> {
    for row in &mut rows {
        match &mut row.asked {
            Ok(Asked::Layout(run)) => launched_by_others(run),
            Ok(Asked::Counts(runs)) => runs.iter_mut().for_each(launched_by_others),
            Ok(Asked::Stages(_)) | Err(_) => {}
        }
    }
    rows
}

fn launched_by_others(run: &mut Run) {
    let card = run.problem.cluster.gpu.name.as_str();
    let launch_us = |card: &str| Constants::of(card).host.launch_us();
    let factor = middle(lenders(card), |lender| launch_us(lender.constants)) / launch_us(card);
    let execution = &mut run.problem.execution;
    execution.launches.each = execution.launches.each * factor;
    execution.host_overhead_per_layer = execution.host_overhead_per_layer * factor;
    if let Some(other) = &mut run.other {
        launched_by_others(&mut other.run);
    }
}
