//! Requests per second within the targets that no deployment on a pool is planned above, whatever its groups, phases, stages and routes.
//!
//! Every step below gives something up in the plan's favour. L layers, t(D) the time of one layer of a mean prompt on a stage of D GPUs.
//!
//! 1. Layers need not be whole, and stages hand over at once. A group with load ρ reads r = ρ/S, where S is the time of its slowest stage; a
//!    stage with l layers is busy for v = r·l·t(D) <= ρ. The sum over its stages is r·L = Σ v/t(D), and the latency is Λ = Σ l·t(D).
//! 2. The planner's mean wait is ρ·S/(2(1 - ρ)) <= TTFT - Λ, which times r is r·TTFT - Σ v >= h(ρ) = ρ²/(2(1 - ρ)).
//! 3. All GPUs that read form one group: groups add up to R = Σ r, R·TTFT - Σ v >= Σ h >= h(max ρ), v <= max ρ.
//! 4. For any price μ >= 0 of that inequality R <= max_ρ A·ρ - μ·h(ρ) with A = Σ_GPUs max_D ((1 + μ·TTFT)/(L·t(D)) - μ)/D, the best degree of every
//!    GPU; the maximum is at 1 - ρ = (1 + 2A/μ)^-1/2 and is μ/2·(√(1 + 2A/μ) - 1)². The price that makes it least counts.
//! 5. Decoding: a stage passes a group's r requests per second with output tokens each in steps of k parts of x = b/k requests, so that
//!    r·output·l <= x/t(D, x). D·t(D) >= t(1), since GPUs that share a layer only add messages, and r·output·L <= Σ_GPUs x/t(1, x). It rises with x,
//!    which is at most the batch b: b·tokens·L·κ <= memory - L·weights summed over stages, b <= the batch limit, and L·min_D t(D, x) <= k·(slowest
//!    stage) <= the step's share of the token target. More GPUs raise each of these limits. Where groups need several stages that is far
//!    too kind, so that a second bound, in which k, D and every group's own weights count, is taken where it is lower: the linear program of
//!    `bound/stages.rs`.
//! 6. Routes are limited by the links together, Σ r <= Σ_ab bandwidth_ab / bytes over machines a with GPUs that read and b with GPUs that
//!    generate; and a request meets its targets if the fastest stages and the fastest of these links could meet them.
//! 7. GPUs are whole: of every type some read and the rest generate, and all splits are looked at. On pools with too many, GPUs are shared out
//!    in fractions by the linear program itself; what reads is then linear, at the price that suits all GPUs, since step 4 is convex in A.
//!
//! Drafted tokens are verified with the others, and a step counts for each token that it gives on average. Drafting takes its least time, a layer's part in
//! every layer: groups of several stages wait for it once for each. Adapters take their slots and no time. Beginnings that replicas keep are
//! always found: nobody reads them, and they lie and travel once.
//!
//! Degrees are powers of two, as the planner's. Replicas of both phases: a request holds a stage for l·(t_prompt + output·t_step(x)/x), and the
//! token target holds for step + b·prompt/output, which is the plan's stalled step. Units: requests per second, seconds, layers.

mod stages;

use super::super::inventory::Network;
use super::super::roofline::BATCH_MAX;
use super::super::throughput::Lengths;
use super::group::{self, Stage};
use super::{DECODE_SHARE, Task};
use stages::Law;

/// Splits into whole GPUs that are looked at, at most.
const SPLITS_MAX: usize = 100;
/// Halvings of an interval of batches, and cuts of one of prices by a third: as close as matters.
const HALVINGS: usize = 60;
/// Prices of waiting, requests per second.
const PRICES: (f64, f64) = (1e-9, 1e9);

/// GPUs of one type, on whatever machines.
struct Type {
    /// Machines that have them.
    machines: Vec<usize>,
    /// All of them.
    n_gpus: u32,
    /// Most on one machine.
    widest: u32,
}

/// The pool by types of GPUs, with the mean request; `counts` below are GPUs of each type.
struct Relaxed<'a> {
    task: &'a Task,
    types: Vec<Type>,
    /// Tokens of a prompt that are read, and of an answer.
    input: f64,
    output: f64,
    /// Keys that a generated token attends to.
    context: f64,
}

impl<'a> Relaxed<'a> {
    fn new(task: &'a Task) -> Self {
        let mut types: Vec<Type> = Vec::new();
        for (m, machine) in task.machines.offers.iter().enumerate().filter(|(_, machine)| machine.n_available > 0) {
            let gpu = |other: &Type| task.gpu(other.machines[0]);
            match types.iter_mut().find(|other| Some(gpu(other)) == machine.gpu.as_ref()) {
                Some(of) => {
                    of.machines.push(m);
                    of.n_gpus += machine.n_available;
                    of.widest = of.widest.max(machine.n_available);
                }
                None => {
                    types.push(Type { machines: vec![m], n_gpus: machine.n_available, widest: machine.n_available })
                }
            }
        }
        let (input, output) = task.mean();
        Self { task, types, input: task.mean_least_read(), output, context: input + output / 2.0 }
    }

    fn all(&self) -> Vec<u32> {
        self.types.iter().map(|of| of.n_gpus).collect()
    }

    fn n_layers(&self) -> f64 {
        hw::real(self.task.model.n_layers)
    }

    /// One layer on so many GPUs of a type.
    fn layer(&self, of: usize, tp: u32) -> Stage {
        Stage { machine: self.types[of].machines[0], tp, layers: 1 }
    }

    /// Type of a stage's GPUs.
    fn type_of(&self, stage: &Stage) -> usize {
        self.types.iter().position(|of| of.machines[0] == stage.machine).expect("made by `layer`")
    }

    /// Tensor-parallel degrees on so many GPUs of a type.
    fn degrees(&self, of: usize, n: u32) -> impl Iterator<Item = u32> + use<> {
        let most = n.min(self.types[of].widest);
        (0..u32::BITS).map(|power| 1 << power).take_while(move |tp| *tp <= most)
    }

    /// Passes of all layers per second over all GPUs, each by itself, where a layer takes `seconds`.
    fn passes_per_s(&self, counts: &[u32], seconds: &dyn Fn(&Stage) -> f64) -> f64 {
        let of = |(of, &n): (usize, &u32)| f64::from(n) / seconds(&self.layer(of, 1));
        counts.iter().enumerate().map(of).sum::<f64>() / self.n_layers()
    }

    /// Seconds of all layers where they are fastest; infinite without GPUs.
    fn least_s(&self, counts: &[u32], seconds: &dyn Fn(&Stage) -> f64) -> f64 {
        let of = |(of, &n): (usize, &u32)| {
            self.degrees(of, n).map(|tp| seconds(&self.layer(of, tp))).fold(f64::INFINITY, f64::min)
        };
        counts.iter().enumerate().map(of).fold(f64::INFINITY, f64::min) * self.n_layers()
    }

    /// Tokens whose keys and values fit beside the weights when all memory is one; below 0 where the weights do not fit.
    fn room_tokens(&self, counts: &[u32]) -> f64 {
        let usable = counts.iter().enumerate().map(|(of, &n)| group::usable(self.task, &self.layer(of, n)));
        let (weights, token) = self.held_bytes();
        (usable.sum::<f64>() - weights) / token
    }

    /// Bytes of weights of a replica, and of a token's keys and values, with who drafts. Slots for adapters take least on single GPUs.
    fn held_bytes(&self) -> (f64, f64) {
        let (drafter, drafter_kv) = self.task.beside.drafter_bytes();
        let of_layers = |bytes: f64| self.n_layers() * bytes;
        let (weights, kv) = (group::layer_bytes(self.task, 1), group::kv_layer_bytes(self.task));
        (of_layers(weights) + drafter, of_layers(kv) + drafter_kv)
    }

    /// One layer of a prompt.
    fn prompt_s(&self, stage: &Stage, input: f64) -> f64 {
        group::stage_s(self.task, stage, input, input / 2.0, input)
    }

    /// One layer of a decode step for part of a batch at the mean context, for each token that it gives, with its part of what is drafted.
    fn step_s(&self, stage: &Stage, part: f64) -> f64 {
        let beside = &self.task.beside;
        let of_layer = group::stage_s(self.task, stage, part * beside.verified(), self.context, part * self.context);
        (of_layer + self.least_drafting_s(part) / self.n_layers()) / beside.given()
    }

    /// Drafting for part of a batch where it is fastest.
    fn least_drafting_s(&self, part: f64) -> f64 {
        if !self.task.beside.drafts() {
            return 0.0;
        }
        let stages = (0..self.types.len())
            .flat_map(|of| self.degrees(of, self.types[of].n_gpus).map(move |tp| self.layer(of, tp)));
        let drafting_s = |stage: Stage| {
            let (gpu, tp) = self.task.on(&stage);
            self.task.beside.drafting_s(gpu, tp, part, self.context)
        };
        stages.map(drafting_s).fold(f64::INFINITY, f64::min)
    }

    /// Largest part of a batch that memory holds and whose layers end within the target (step 5).
    fn part_max(&self, counts: &[u32], law: &Law<'_>) -> f64 {
        let most = (self.room_tokens(counts) / (self.input + self.output)).floor().clamp(0.0, BATCH_MAX);
        highest(most, |part| self.least_s(counts, &|stage| (law.pass_s)(stage, part)) <= law.target_s)
    }

    /// Prompts per second that a GPU of each type adds when so many read (steps 1 to 4); their sum is what no groups exceed.
    fn reading(&self, counts: &[u32]) -> Vec<f64> {
        let whole = group::whole_tokens(self.input).as_f64();
        let seconds = |of: usize, tp: u32| {
            let at = |input: f64| self.n_layers() * self.prompt_s(&self.layer(of, tp), input);
            (f64::from(tp), at(self.input), at(whole))
        };
        let of_type = |(of, &n): (usize, &u32)| self.degrees(of, n).map(|tp| seconds(of, tp)).collect();
        let degrees: Vec<Vec<(f64, f64, f64)>> = counts.iter().enumerate().map(of_type).collect();
        // Latencies are of whole tokens, rates of the mean.
        let worth = |price: f64| -> Vec<f64> {
            let of = |&(tp, mean_s, whole_s): &(f64, f64, f64)| {
                ((1.0 + price * self.task.ttft_s) / mean_s - price * whole_s / mean_s) / tp
            };
            degrees.iter().map(|all| all.iter().map(of).fold(0.0, f64::max)).collect()
        };
        let sum = |worth: &[f64]| worth.iter().zip(counts).map(|(worth, &n)| worth * f64::from(n)).sum::<f64>();
        let most = |price: f64| price / 2.0 * ((1.0 + 2.0 * sum(&worth(price)) / price).sqrt() - 1.0).powi(2);
        let price = cheapest(most);
        let worth = worth(price);
        let scale = most(price) / sum(&worth).max(f64::MIN_POSITIVE);
        worth.into_iter().map(|worth| worth * scale).collect()
    }

    /// Prompts per second; 0 where the GPUs do not hold the model.
    fn read_per_s(&self, counts: &[u32]) -> f64 {
        if self.room_tokens(counts) < 0.0 {
            return 0.0;
        }
        self.reading(counts).iter().zip(counts).map(|(rate, &n)| rate * f64::from(n)).sum()
    }

    /// Requests per second that a law allows: of all GPUs by themselves at the largest part, and of stages in groups.
    fn served_per_s(&self, counts: &[u32], law: &Law<'_>, with: Detail) -> f64 {
        let part = self.part_max(counts, law);
        if part <= 0.0 {
            return 0.0;
        }
        let alone = self.passes_per_s(counts, &|stage| 1.0 / (law.served_per_s)(stage, part));
        match with {
            Detail::Gpus => alone,
            Detail::Stages => alone.min(stages::served_per_s(self, counts, law, None)),
        }
    }

    /// What the law of decoding says of GPUs (step 5).
    fn generating<T>(&self, of: impl FnOnce(&Law<'_>) -> T) -> T {
        of(&Law {
            served_per_s: &|stage, part| part / self.step_s(stage, part) / self.output,
            pass_s: &|stage, part| self.step_s(stage, part),
            target_s: self.task.tpot_s * DECODE_SHARE,
        })
    }

    /// Requests per second through replicas of both phases.
    fn both_per_s(&self, counts: &[u32]) -> f64 {
        let prompt_s = |stage: &Stage| self.prompt_s(stage, self.input);
        let law = Law {
            served_per_s: &|stage, part| 1.0 / (prompt_s(stage) + self.output * self.step_s(stage, part) / part),
            pass_s: &|stage, part| self.step_s(stage, part) + part * prompt_s(stage) / self.output,
            target_s: self.task.tpot_s,
        };
        self.served_per_s(counts, &law, Detail::Stages).min(self.read_per_s(counts))
    }

    /// Bytes per second of all links from machines that may read to machines that may generate, and of the fastest of them (step 6).
    fn links(&self, reading: &[u32], generating: &[u32]) -> (f64, f64) {
        let machines = |counts: &[u32]| -> Vec<usize> {
            let used = self.types.iter().zip(counts).filter(|(_, n)| **n > 0);
            used.flat_map(|(of, _)| of.machines.iter().copied()).collect()
        };
        let (from, to) = (machines(reading), machines(generating));
        let (mut all, mut fastest) = (0.0, 0.0_f64);
        for &a in &from {
            // A machine of one GPU has one group.
            for &b in to.iter().filter(|b| **b != a || self.task.machines.offers[a].n_available > 1) {
                all += self.task.bandwidth(a, b);
                fastest = fastest.max(self.task.bandwidth(a, b));
            }
        }
        (all, fastest)
    }

    /// Share of the requests that could meet both targets with nobody before them (step 6).
    fn met(&self, reading: &[u32], generating: &[u32], bandwidth: f64) -> f64 {
        let step_s = self.least_s(generating, &|stage| self.step_s(stage, 0.0));
        let meets = |(lengths, _): &&(Lengths, f64)| {
            let input = self.task.least_read(lengths.input);
            let Network { within, between, .. } = self.task.machines.network;
            let wire_s = within.latency_s.min(between.latency_s) + self.task.wire_bytes(input) / bandwidth;
            self.least_s(reading, &|stage| self.prompt_s(stage, input)) <= self.task.ttft_s
                && wire_s / lengths.output.as_f64() + step_s <= self.task.tpot_s
        };
        self.task.classes.iter().filter(meets).map(|(_, share)| share).sum()
    }

    /// Requests per second within the targets of what so many phases can serve, with links between all machines of these GPUs.
    fn within_targets(&self, phases_per_s: f64, reading: &[u32], generating: &[u32]) -> f64 {
        let (links, fastest) = self.links(reading, generating);
        let carried = links / self.task.wire_bytes(self.input);
        let most = self.task.requests_per_s.min(carried).min(phases_per_s);
        if most > 0.0 { most * self.met(reading, generating, fastest) } else { 0.0 }
    }

    /// The best of all splits: in order of what GPUs by themselves could serve, until no closer look can find a better one.
    fn best_split(&self, all: &[u32]) -> f64 {
        let mut splits: Vec<Vec<u32>> = vec![Vec::new()];
        for &n in all {
            splits = splits.iter().flat_map(|split| (0..=n).map(|n| [split.as_slice(), &[n]].concat())).collect();
        }
        let value = |reading: &[u32], with: Detail| {
            let generating: Vec<u32> = reading.iter().zip(all).map(|(n, all)| all - n).collect();
            let generated = self.generating(|law| self.served_per_s(&generating, law, with));
            let phases = self.read_per_s(reading).min(generated);
            self.within_targets(phases, reading, &generating)
        };
        let mut rough: Vec<(f64, Vec<u32>)> =
            splits.into_iter().map(|split| (value(&split, Detail::Gpus), split)).collect();
        rough.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut most = 0.0_f64;
        for (rough, split) in rough {
            // What follows is rated lower than what a closer look has found.
            if rough <= most {
                break;
            }
            most = most.max(value(&split, Detail::Stages));
        }
        most
    }

    /// GPUs shared out in fractions.
    fn shared_out(&self, all: &[u32]) -> f64 {
        let reading = self.reading(all);
        let phases = self.generating(|law| stages::served_per_s(self, all, law, Some(&reading)));
        self.within_targets(phases, all, all)
    }
}

/// How closely stages that generate are looked at.
#[derive(Clone, Copy)]
enum Detail {
    /// Every GPU by itself.
    Gpus,
    /// Stages in groups, too.
    Stages,
}

/// The price of least value, which falls and then rises with the price; any other is a bound, too.
fn cheapest(value: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = PRICES;
    for _ in 0..HALVINGS {
        // Thirds of the interval of exponents.
        let ratio = libm::cbrt(high / low);
        if value(low * ratio) < value(high / ratio) { high /= ratio } else { low *= ratio }
    }
    low
}

/// Smallest figure up to `most` above which a condition does not hold, from above; the condition holds below and breaks once.
fn highest(most: f64, holds: impl Fn(f64) -> bool) -> f64 {
    if most <= 0.0 || holds(most) {
        return most;
    }
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if holds(middle) { low = middle } else { high = middle }
    }
    high
}

/// Most requests per second within the targets of any groups, phases, stages and routes: no plan of this task promises more.
pub fn split(task: &Task) -> f64 {
    split_within(task, SPLITS_MAX)
}

/// The same with whole GPUs for so many splits at most.
pub(super) fn split_within(task: &Task, splits_max: usize) -> f64 {
    let relaxed = Relaxed::new(task);
    let all = relaxed.all();
    let n_splits = all.iter().fold(1, |product: usize, &n| product.saturating_mul(n as usize + 1));
    if n_splits > splits_max { relaxed.shared_out(&all) } else { relaxed.best_split(&all) }
}

/// Most requests per second within the targets of any replicas that run both phases.
pub fn colocated(task: &Task) -> f64 {
    let relaxed = Relaxed::new(task);
    relaxed.both_per_s(&relaxed.all())
}

/// A bound where nothing spans machines: the sum over machines that are alone.
pub fn by_machine(task: &Task, of: fn(&Task) -> f64) -> f64 {
    (0..task.n_machines()).map(|machine| of(&task.alone(machine))).sum()
}
