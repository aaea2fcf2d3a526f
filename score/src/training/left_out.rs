//! Steps on a card that is left out: what the tables of two other generations and its own datasheet say of it.
//!
//! - **Kernels** reach the middle of the others' shares of their own peaks, shape by shape (`Profile::between`).
//! - **Power.** Products of hours reach as many operations per joule as the others' do, in the middle. That times the power of the card is most
//!   that they hold. Curves alone cannot say so: B200's peak is 2.3 times H100's, and its power 1.4 times.
//! - **Exchanges and the host** are the middle of the others' constants.
//!
//! No row of the card's generation and no table of it is asked. Units: seconds, watts.

use engine::cost::CostModel;
use engine::cost::profile::{Operator, Profile};
use engine::cost::profiled::Profiled;
use engine::cost::sustained::Sustained;
use engine::task::Op;
use hw::{Cluster, Format};

use super::constants::{Constants, PORT_SHARE, faster};
use super::row::{Asked, Row, Run};

/// A shipped profile by its name.
pub type Tables<'t> = dyn Fn(&str) -> Profile + Sync + 't;

/// A generation that was measured.
struct Lender {
    /// Beginnings of its cards' names.
    generation: &'static [&'static str],
    /// Profile of its kernels of training.
    kernels: &'static str,
    /// Profile of an engine that serves, with products in 16 and, where there are any, in 8 bits.
    served: &'static str,
    /// Card whose constants of exchange and host stand for it.
    constants: &'static str,
    /// Speed of products in 8 bits over the engine's, in training.
    narrow_speed: f64,
}

/// Of B200's over its own curve of serving: Bridge, rows 159 to 162. H100's is that of its constants. A100 has no products in 8 bits.
const LENDERS: [Lender; 3] = [
    Lender {
        generation: &["a100"],
        kernels: "a100-pcie-80g",
        served: "a100-sxm-sglang",
        constants: "a100-sxm-80g",
        narrow_speed: 1.0,
    },
    Lender {
        generation: &["h100", "h200", "gh"],
        kernels: "h100-sxm",
        served: "h100-sxm-sglang",
        constants: "h100-sxm",
        narrow_speed: 1.1,
    },
    Lender {
        generation: &["b200", "b300", "gb"],
        kernels: "b200",
        served: "b200-sglang",
        constants: "b200",
        narrow_speed: 1.15,
    },
];

/// Edge of a product that fills every card, elements.
const FILLS: u64 = 8192;
/// Products in 16 bits.
const WIDE: &str = "gemm";
/// Products in 8 bits.
const NARROW: &str = "gemm-fp8";

/// The first two generations that are not the card's.
fn lenders(card: &str) -> [&'static Lender; 2] {
    let is_own = |lender: &Lender| lender.generation.iter().any(|beginning| card.starts_with(beginning));
    let mut others = LENDERS.iter().filter(|lender| !is_own(lender));
    [(); 2].map(|()| others.next().expect("three generations, of which a card is in one at most"))
}

/// The middle of a figure of two lenders.
fn middle(lenders: [&Lender; 2], of: impl Fn(&Lender) -> f64) -> f64 {
    let [one, two] = lenders.map(of);
    (one * two).sqrt()
}

/// Costs of training on a machine whose card is left out.
pub fn costs(cluster: &Cluster, tables: &Tables<'_>) -> Box<dyn CostModel> {
    let gpu = &cluster.gpu;
    let lenders = lenders(&gpu.name);
    let profile = kernels(lenders, tables).lent_to(gpu);
    let link_share = middle(lenders, |lender| Constants::of(lender.constants).link_share);
    let profiled = Profiled::new(&profile, cluster).with_link_shares([link_share, PORT_SHARE]);
    let held = gpu.power_watts.map_or(1.0, |watts| {
        let flops_per_s = middle(lenders, |lender| flops_per_joule(lender, tables)) * watts;
        (flops_per_s / gpu.peak(Format::Bf16).get()).min(1.0)
    });
    Box::new(Sustained::by_width(profiled, gpu, [held, 1.0]))
}

/// Kernels half-way between two lenders, with those that only one of them has.
fn kernels(lenders: [&Lender; 2], tables: &Tables<'_>) -> Profile {
    let [one, two] = lenders.map(|lender| tables(lender.kernels));
    let mut profile = Profile { collectives: Vec::new(), links: Vec::new(), ..one.between(&two) };
    if let Some(narrow) = narrow(lenders, tables) {
        profile.operators.insert(NARROW.to_owned(), narrow);
    }
    profile
}

/// Products in 8 bits: half-way between both lenders, or from the one that has them towards the other one by both ones' products in 16 bits.
fn narrow(lenders: [&Lender; 2], tables: &Tables<'_>) -> Option<Operator> {
    let served = lenders.map(|lender| tables(lender.served));
    let narrow = [0, 1].map(|at| {
        let mut operator = served[at].operators.get(NARROW)?.clone();
        faster(&mut operator, lenders[at].narrow_speed);
        Some(operator)
    });
    let wide = |at: usize| served[at].operators.get(WIDE);
    match narrow {
        [Some(one), Some(two)] => Some(one.between(&two)),
        [Some(one), None] => Some(one.towards(wide(0)?, wide(1)?)),
        [None, Some(two)] => Some(two.towards(wide(1)?, wide(0)?)),
        [None, None] => None,
    }
}

/// Operations per joule of a product that fills a lender's card.
fn flops_per_joule(lender: &Lender, tables: &Tables<'_>) -> f64 {
    let profile = tables(lender.kernels);
    let gpu = hw::catalog::gpu(&profile.gpu).expect("a profile of the catalogue");
    let watts = gpu.power_watts.expect("the catalogue says the power of every lender");
    let op = Op::Gemm { m: FILLS, n: FILLS, k: FILLS, format: Format::Bf16 };
    let time = super::constants::costs(&hw::catalog::cluster(&gpu, 1, 8), profile).estimate(&op).time;
    op.flops() / time.get() / watts
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
