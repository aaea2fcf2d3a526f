//! What no plan on some machines is below: every card computes all the time what it computes best.
//!
//! A layer of a micro-batch needs GPU-seconds on each group: at the tensor degree where it needs the fewest. A linear program deals all layers of all micro-batches
//! out to the groups, each layer in any shares, so that the last group ends as early as can be. The bound is its dual: GPU-seconds of every group have a price,
//! each layer goes where it is the cheapest, and the sum over what all GPUs cost in a second is no more than the least time. This holds for all prices, so
//! the best ones are only looked for. Copies to hosts, launches beside a pass, and layers that some stages alone compute again are left out. Units: seconds.

use engine::CostModel;
use engine::play::Case;
use train::mixed_gpus::{Batch, MixedJob, MixedStage, Pipelines, Slot};
use train::problem::Launches;

/// Rounds in which the prices of each choice of groups are set in turn, and halvings of their interval.
const ROUNDS: usize = 4;
const STEPS: usize = 40;

/// Equal work: how often it is there, and GPU-seconds of it on each group.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) n: f64,
    pub(super) gpu_s: Vec<f64>,
}

/// Layers of all micro-batches, those that take as long everywhere as one, on groups at such tensor degrees.
pub(super) fn work(job: &MixedJob, costs: &[Box<dyn CostModel>], degrees: &[Vec<u32>]) -> Vec<Work> {
    let (kinds, counts) = job.batch.kinds();
    let bare = bare(job, kinds);
    let of_groups: Vec<Vec<f64>> =
        degrees.iter().enumerate().map(|(group, degrees)| least_gpu_s(&bare, costs, group, degrees)).collect();
    let n_items = of_groups.first().map_or(0, Vec::len);
    let mut all: Vec<Work> = (0..n_items)
        .map(|item| Work {
            n: f64::from(counts[item % counts.len()]),
            gpu_s: of_groups.iter().map(|gpu_s| gpu_s[item]).collect(),
        })
        .collect();
    // Seconds are not negative, so their bits are in order.
    all.sort_by_cached_key(|work| work.gpu_s.iter().map(|s| s.to_bits()).collect::<Vec<u64>>());
    all.dedup_by(|next, kept| {
        let is_same = next.gpu_s == kept.gpu_s;
        kept.n += if is_same { next.n } else { 0.0 };
        is_same
    });
    all
}

/// The job with one micro-batch of each kind, and with passes that add up over layers: no copies, no launches beside, and nothing that a stage does in some layers alone.
fn bare(job: &MixedJob, batch: Batch) -> MixedJob {
    let mut bare = MixedJob { batch, ..job.clone() };
    bare.groups.iter_mut().for_each(|group| group.launches = Launches::UNSEEN);
    if let Some(problem) = &mut bare.problem {
        problem.execution.offload = 0.0;
        if u64::from(problem.execution.recompute_layers) < problem.model.n_layers {
            problem.execution.recompute_layers = 0;
        }
    }
    bare
}

/// GPU-seconds of every layer of every micro-batch on a group: layer by layer, and micro-batches within.
fn least_gpu_s(job: &MixedJob, costs: &[Box<dyn CostModel>], group: usize, degrees: &[u32]) -> Vec<f64> {
    let n_layers = job.problem.as_ref().map_or(0, |problem| problem.model.n_layers);
    let layers = vec![1; usize::try_from(n_layers).expect("layer counts are checked by the model reader")];
    let mut least = Vec::new();
    for &n_gpus in degrees {
        let slot = Slot { group, n_gpus, times: None };
        let [whole, of_layers] = [vec![u32::try_from(n_layers).expect("few layers")], layers.clone()]
            .map(|of| passes_s(job, costs, slot, &of));
        let n_kinds = whole.len();
        // A stage of all layers may take less than its layers one by one, by rounding at least.
        let together = (0..n_kinds).map(|kind| of_layers.iter().skip(kind).step_by(n_kinds).sum::<f64>());
        let shares: Vec<f64> =
            whole.iter().zip(together).map(|(whole, together)| (whole / together).min(1.0)).collect();
        let gpu_s = of_layers.iter().enumerate().map(|(item, s)| s * shares[item % n_kinds] * f64::from(n_gpus));
        least = if least.is_empty() { gpu_s.collect() } else { gpu_s.zip(&least).map(|(a, b)| a.min(*b)).collect() };
    }
    least
}

/// Seconds of forward and backward of every stage with so many layers, and of every micro-batch within.
fn passes_s(job: &MixedJob, costs: &[Box<dyn CostModel>], slot: Slot, layers: &[u32]) -> Vec<f64> {
    let stages = layers.iter().map(|&layers| MixedStage { layers, slots: vec![slot], sizes: None }).collect();
    let plan = Pipelines { stages, micro_batches: vec![job.batch.n_micro_batches()] };
    let (step, _) = job.step(&plan, costs, Case::Expected).expect("one group needs no link");
    let replica = &step.replicas[0];
    let passes = (0..layers.len()).flat_map(|stage| replica.times(stage));
    passes.map(|times| times.both().to_seconds().get()).collect()
}

/// Seconds that no plan is below on groups of so many GPUs.
pub(super) fn least_s(work: &[Work], n_gpus: &[u32]) -> f64 {
    // To begin with, a group's GPUs are worth what they compute.
    let mut prices: Vec<f64> =
        (0..n_gpus.len()).map(|group| 1.0 / work.iter().map(|work| work.n * work.gpu_s[group]).sum::<f64>()).collect();
    let mut best = at_prices(work, n_gpus, &prices);
    // One price alone may gain nothing where several together do: the bound has edges. Only what prices are to each other counts, so the first one stays.
    let together = (2..1_u32 << n_gpus.len()).step_by(2);
    for groups in together.cycle().take(ROUNDS * ((1 << (n_gpus.len() - 1)) - 1)) {
        // As a function of one factor the bound rises to its best and falls from there.
        let (mut low, mut high) = (-4.0, 4.0);
        for _ in 0..STEPS {
            let third = (high - low) / 3.0;
            let [left, right] = [low + third, high - third];
            let [at_left, at_right] =
                [left, right].map(|power| at_prices(work, n_gpus, &with_prices(&prices, groups, power)));
            if at_left < at_right { low = left } else { high = right }
        }
        let tried = with_prices(&prices, groups, f64::midpoint(low, high));
        let found = at_prices(work, n_gpus, &tried);
        if found > best {
            (best, prices) = (found, tried);
        }
    }
    best
}

/// Prices of which those of some groups, one bit each, are e to that power as high.
fn with_prices(prices: &[f64], groups: u32, power: f64) -> Vec<f64> {
    let factor = libm::exp(power);
    let of = |(group, price): (usize, &f64)| if groups & (1 << group) == 0 { *price } else { price * factor };
    prices.iter().enumerate().map(of).collect()
}

/// Seconds that no plan is below, by such prices.
fn at_prices(work: &[Work], n_gpus: &[u32], prices: &[f64]) -> f64 {
    let per_s: f64 = prices.iter().zip(n_gpus).map(|(price, n)| price * f64::from(*n)).sum();
    cheapest(work, prices) / per_s
}

/// What all work costs where each piece goes to the group on which it costs the least, with a price of every group's GPU-seconds.
pub(super) fn cheapest(work: &[Work], prices: &[f64]) -> f64 {
    let least = work
        .iter()
        .map(|work| work.n * work.gpu_s.iter().zip(prices).map(|(s, price)| s * price).fold(f64::INFINITY, f64::min));
    least.sum()
}
