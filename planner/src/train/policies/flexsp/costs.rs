//! What a sequence costs on a group: seconds by length bucket and degree, and the tokens that a rank holds.
//!
//! Own costs: one layer forward and backward of s/d tokens with attention of all keys over 1/d of the heads and four all-to-alls, times
//! the layers. Every micro-batch takes the host's time and, under ZeRO 3, waits for gathers that are not prefetched; the others and the
//! reductions run beside it, as do the launches of a framework's host. Published costs (`profiles/published/flexsp.toml`): (α1·s² + α2·s)/d + bytes/(d·v_d) milliseconds, β1 per group; a rank
//! holds (device − parameters · 16 B/N) / M_token tokens.

use std::sync::OnceLock;

use engine::task::Collective;
use engine::{CostModel, Op};
use serde::Deserialize;
use train::Problem;
use train::layout::{Position, Zero};
use train::lower::training::{Parts, parts};
use train::plan::{MicroBatch, Place, Placement};
use train::problem::Launches;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    #[expect(dead_code, reason = "names the file's form for people")]
    schema: String,
    device_gib: f64,
    state_bytes_per_parameter: f64,
    bandwidth: Vec<(u32, f64)>,
    model: Vec<PublishedModel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedModel {
    name: String,
    layers: u32,
    hidden: u32,
    alpha1_ms: f64,
    alpha2_ms: f64,
    beta1_ms: f64,
    mib_per_token: f64,
    giga_parameters: f64,
}

fn file() -> &'static Published {
    static FILE: OnceLock<Published> = OnceLock::new();
    FILE.get_or_init(|| {
        toml::from_str(include_str!("../../../../../profiles/published/flexsp.toml"))
            .expect("the shipped file is well formed")
    })
}

/// A model that the authors fitted.
#[derive(Clone, Copy)]
pub(super) struct Fitted(&'static PublishedModel);

/// A published model by name.
pub(super) fn published(name: &str) -> Option<Fitted> {
    file().model.iter().find(|model| model.name == name).map(Fitted)
}

impl Fitted {
    /// Tokens that each of `n_ranks` ranks holds beside its part of the model states (ZeRO 3).
    pub(super) fn capacity(self, n_ranks: u32) -> u64 {
        let (file, model) = (file(), self.0);
        let states_gib = model.giga_parameters * file.state_bytes_per_parameter / f64::from(n_ranks);
        hw::whole(((file.device_gib - states_gib) * 1024.0 / model.mib_per_token).max(0.0).floor())
    }

    /// Milliseconds of computation and of all-to-all of one sequence on `degree` ranks.
    pub(super) fn sequence_ms(self, tokens: u64, degree: u32) -> (f64, f64) {
        let (model, s, d) = (self.0, hw::real(tokens), f64::from(degree));
        let compute = (model.alpha1_ms * s * s + model.alpha2_ms * s) / d;
        let mib = 4.0 * 2.0 * f64::from(model.layers) * f64::from(model.hidden) * s * 2.0 / d / 1_048_576.0;
        // Degrees beyond the table keep its last bandwidth.
        let known = file().bandwidth.iter().filter(|(of, _)| *of <= degree).map(|(_, v)| *v).next_back();
        (compute, known.map_or(0.0, |v| mib / v))
    }
}

/// Costs of a step's sequences.
pub(super) struct Costs {
    /// `seconds[bucket][power]`: a sequence of the bucket's upper length on 2^power ranks.
    pub(super) seconds: Vec<Vec<f64>>,
    /// Upper length of every bucket.
    pub(super) uppers: Vec<u64>,
    /// Seconds that every micro-batch takes besides.
    pub(super) fixed_s: f64,
    /// What runs beside it takes so long: ZeRO 3 gathers all parameters twice and reduces gradients; a host launches all kernels.
    pub(super) floor_s: f64,
    /// Tokens that a rank holds.
    pub(super) capacity: u64,
}

impl Costs {
    /// Costs for these bucket lengths on groups of up to `widest` ranks.
    pub(super) fn of(
        problem: &Problem,
        cost: &dyn CostModel,
        fitted: Option<Fitted>,
        uppers: Vec<u64>,
        widest: u32,
    ) -> Self {
        let degrees: Vec<u32> = (0..=widest.ilog2()).map(|power| 1 << power).collect();
        let n_layers = hw::real(problem.model.n_layers);
        let n_expert = hw::real(problem.model.n_expert_layers());
        let of = |tokens: u64, degree: u32| match fitted {
            Some(fitted) => {
                let (compute, exchange) = fitted.sequence_ms(tokens, degree);
                (compute + exchange) * 1e-3
            }
            None => {
                let mut grouped = problem.clone();
                grouped.layout.cp = degree;
                // The host's time is of a micro-batch, not of each of its sequences.
                grouped.execution.host_overhead_per_layer = hw::Seconds::ZERO;
                grouped.execution.launches = Launches::UNSEEN;
                let [dense, expert] = layers_s(&grouped, cost, tokens, degree);
                dense * (n_layers - n_expert) + expert * n_expert
            }
        };
        let row = |&tokens: &u64| degrees.iter().map(|&degree| of(tokens, degree)).collect();
        let (fixed_s, floor_s) = match fitted {
            Some(fitted) => (fitted.0.beta1_ms * 1e-3, 0.0),
            None => {
                let (awaited_s, behind_s) = states_s(problem, cost);
                let host_s = 2.0 * n_layers * problem.execution.host_overhead_per_layer.get();
                (awaited_s + host_s, behind_s.max(launched_s(problem, cost)))
            }
        };
        Self {
            seconds: uppers.iter().map(row).collect(),
            uppers,
            fixed_s,
            floor_s,
            capacity: fitted
                .map_or(problem.bucket_tokens, |fitted| fitted.capacity(problem.layout.cp).min(problem.bucket_tokens)),
        }
    }

    /// Seconds of a sequence of a bucket on `degree` ranks.
    pub(super) fn on(&self, bucket: usize, degree: u32) -> f64 {
        self.seconds[bucket][degree.ilog2() as usize]
    }

    /// Bucket of a length.
    pub(super) fn bucket(&self, tokens: u64) -> usize {
        self.uppers.partition_point(|upper| *upper < tokens)
    }

    /// No assignment to any groups of `n_ranks` ranks ends earlier: every sequence at its cheapest degree over all ranks, and the
    /// longest at its fastest.
    pub(super) fn bound_s(&self, buckets: &[usize], n_ranks: u32) -> f64 {
        let work = |bucket: usize| {
            let rank_seconds = self.seconds[bucket].iter().enumerate().map(|(power, s)| s * f64::from(1_u32 << power));
            rank_seconds.fold(f64::INFINITY, f64::min)
        };
        let fastest = |bucket: usize| self.seconds[bucket].iter().copied().fold(f64::INFINITY, f64::min);
        let work = buckets.iter().map(|&bucket| work(bucket)).sum::<f64>() / f64::from(n_ranks);
        buckets.iter().map(|&bucket| fastest(bucket)).fold(work, f64::max)
    }

    /// Seconds of a micro-batch whose slowest group takes `slowest_s`.
    pub(super) fn micro_batch_s(&self, slowest_s: f64) -> f64 {
        slowest_s.max(self.floor_s) + self.fixed_s
    }
}

/// What a host launches for a micro-batch, forward and backward: the least that its layers take, however few tokens they have.
fn launched_s(problem: &Problem, cost: &dyn CostModel) -> f64 {
    let placement = Placement { sequence: 0, from: 0, tokens: 1, place: Place::Local(0) };
    let micro_batch = MicroBatch { sequences: vec![placement], ..MicroBatch::default() };
    let mut alone = problem.clone();
    alone.layout.cp = 1;
    alone.execution.host_overhead_per_layer = hw::Seconds::ZERO;
    let [seen, unseen] = [alone.execution.launches, Launches::UNSEEN].map(|launches| {
        alone.execution.launches = launches;
        parts(&alone, &micro_batch, train::experts::mean(&alone), cost)
    });
    let n_expert = hw::real(problem.model.n_expert_layers());
    let layers = [(false, hw::real(problem.model.n_layers) - n_expert), (true, n_expert)];
    let of_layer = |parts: &Parts, with_experts| parts.layer(with_experts).iter().sum::<f64>();
    // A host that is always ahead has nothing to wait for.
    let launched = |&(with_experts, n): &(bool, f64)| {
        let all_s = of_layer(&seen, with_experts);
        if all_s > of_layer(&unseen, with_experts) { n * all_s } else { 0.0 }
    };
    layers.iter().map(launched).sum()
}

/// One layer, forward and backward, of a sequence on `degree` ranks: dense, and with experts.
fn layers_s(problem: &Problem, cost: &dyn CostModel, tokens: u64, degree: u32) -> [f64; 2] {
    let placement = Placement { sequence: 0, from: 0, tokens, place: Place::Sharded };
    let micro_batch = MicroBatch { sequences: vec![placement], ..MicroBatch::default() };
    let parts = parts(problem, &micro_batch, train::experts::mean(problem), cost);
    let compute = [false, true].map(|with_experts| parts.layer(with_experts).iter().sum::<f64>());
    if degree == 1 {
        return compute;
    }
    // Query, key, value and output of this rank's tokens, forward and backward.
    let (model, rows) = (&problem.model, tokens.div_ceil(u64::from(degree)) * problem.dtype.bytes());
    let bytes = rows * (2 * model.n_heads + 2 * model.n_kv_heads.max(u64::from(degree))) * model.head_dim;
    let exchange = 2.0 * over(problem, cost, Collective::AllToAll, bytes, degree);
    compute.map(|compute| compute + exchange)
}

fn over(problem: &Problem, cost: &dyn CostModel, kind: Collective, bytes: u64, n_ranks: u32) -> f64 {
    let members: Vec<hw::Rank> =
        (0..n_ranks).map(|cp| problem.layout.rank(Position { cp, ..Position::default() })).collect();
    cost.estimate(&Op::Collective { kind, bytes, shape: problem.cluster.shape_of(&members) }).time.get()
}

/// Gathers of all parameters for forward and backward and the reduction of gradients under ZeRO 3: what a micro-batch waits for, and what
/// runs beside it.
fn states_s(problem: &Problem, cost: &dyn CostModel) -> (f64, f64) {
    if problem.layout.zero < Zero::Parameters || problem.layout.n_shards() < 2 {
        return (0.0, 0.0);
    }
    let stages = train::stage::stages(problem);
    let of_stage = |stage| {
        let (shared, experts) = engine::memory::stage_parameters(&problem.shard(), stage);
        shared + experts
    };
    let parameters = stages.iter().map(of_stage).sum::<f64>();
    let moved = |kind, element: u64| {
        let bytes = hw::whole(parameters * hw::real(element));
        over(problem, cost, kind, bytes, problem.layout.cp)
    };
    let gather = moved(Collective::AllGather, problem.dtype.bytes());
    let reduction = moved(Collective::ReduceScatter, problem.execution.gradient_dtype.bytes());
    let overlap = problem.execution.overlap;
    let awaited = gather * f64::from(u32::from(!overlap.forward_prefetch) + u32::from(!overlap.backward_prefetch));
    (awaited, 2.0 * gather - awaited + reduction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_capacities_and_times_come_out_of_the_formulas() {
        // Tokens per GPU on 64 GPUs with 28 GB in use, and one sequence of 8K of the 7 B model: computation + all-to-all, ms.
        let of = |name: &str| published(name).expect("shipped");
        let capacities = ["published-7b", "published-13b", "published-30b"].map(|name| of(name).capacity(64));
        assert_eq!(capacities, [5992, 5998, 6028]);
        for (degree, compute, exchange) in [(2, 926.0, 69.0), (8, 231.0, 21.0), (16, 116.0, 99.0), (64, 29.0, 53.0)] {
            let (found_compute, found_exchange) = of("published-7b").sequence_ms(8192, degree);
            assert_eq!((found_compute.round(), found_exchange.round()), (compute, exchange), "degree {degree}");
        }
        assert_eq!(of("published-7b").sequence_ms(8192, 1).1, 0.0);
        // Twice the ranks, half the states: more room, by hand (28 − 7.117 · 16/128) · 1024 / 4.4804.
        assert_eq!(of("published-7b").capacity(128), 6196);
        assert!(published("published-70b").is_none());
    }
}
