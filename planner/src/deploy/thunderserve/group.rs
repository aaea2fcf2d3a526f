//! A group of GPUs that holds one replica: its stages, and its speed in either phase.
//!
//! Stages: equal tensor-parallel GPUs of one machine; layers may be uneven. A layer of a stage takes what `deploy/roofline.rs` says;
//! hand-over between stages of different machines takes α + tokens·H·2 / β. Prompts are prefilled one by one: the slowest stage sets the
//! rate, the sum the latency. A decode step of b requests runs in as many parts as there are stages. Units: seconds, bytes, layers.

use engine::stop;
use hw::{Dtype, Tokens, real};

use super::super::roofline::{BATCH_MAX, MEMORY_USED, Pass};
use super::{Phase, Task};

/// GPUs of one machine that hold some layers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stage {
    /// Machine, an index of the pool.
    pub machine: usize,
    /// Tensor-parallel GPUs.
    pub tp: u32,
    /// Layers that it holds.
    pub layers: u64,
}

/// A replica that runs both phases.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// Stages in order.
    pub stages: Vec<Stage>,
    /// Requests per second within the targets.
    pub requests_per_s: f64,
}

/// Speed of a group for the mean request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speed {
    /// Requests per second within the targets.
    pub(super) rate: f64,
    /// Seconds per generated token at the batch of that rate; 0 for prefill groups.
    pub(super) token_s: f64,
}

/// Weights of one layer in 16 bits, with slots for adapters, on all of so many tensor-parallel GPUs.
pub(super) fn layer_bytes(task: &Task, tp: u32) -> f64 {
    task.layer().weight_bytes + task.beside.slot_bytes(&task.model, tp)
}

/// Keys and values of one token in one layer, in 16 bits.
pub(super) fn kv_layer_bytes(task: &Task) -> f64 {
    task.layer().kv_bytes
}

/// Memory of a stage for weights, keys and values.
pub(super) fn usable(task: &Task, stage: &Stage) -> f64 {
    MEMORY_USED * task.gpu(stage.machine).memory.as_f64() * f64::from(stage.tp)
}

/// Time of a stage for that many new tokens, each of which attends to `context` others.
pub(super) fn stage_s(task: &Task, stage: &Stage, tokens: f64, context: f64, cached: f64) -> f64 {
    let gpu = task.gpu(stage.machine);
    let pass = Pass { tokens, attended: context, read: cached };
    real(stage.layers) * task.layer().seconds(gpu, f64::from(stage.tp), pass)
}

/// Activations from stage to stage.
fn hand_over_s(task: &Task, stages: &[Stage], tokens: f64) -> f64 {
    let bytes = tokens * real(task.model.hidden) * 2.0;
    stages
        .windows(2)
        .map(|pair| (pair[0].machine, pair[1].machine))
        .map(|(a, b)| task.start_s(a, b) + bytes / task.bandwidth(a, b))
        .sum()
}

/// Seconds of a prompt in every stage, with its adapter; the last one has the drafter, which reads it too.
fn reading_s(task: &Task, stages: &[Stage], input: f64) -> impl Iterator<Item = f64> {
    stages.iter().enumerate().map(move |(at, stage)| {
        let (gpu, tp) = task.on(stage);
        let drafted = if at + 1 == stages.len() { task.beside.draft_reading_s(gpu, tp, input) } else { 0.0 };
        let adapted = real(stage.layers) * task.beside.adapting_s(&task.model, (gpu, tp), input, 1.0);
        // Causal attention: half the prompt on average.
        stage_s(task, stage, input, input / 2.0, input) + adapted + drafted
    })
}

/// Seconds until the first token of a prompt that waits for no other.
pub(super) fn prefill_s(task: &Task, stages: &[Stage], input: Tokens) -> f64 {
    whole_s(task, stages, input.as_f64())
}

/// Seconds that a prompt takes in all stages.
fn whole_s(task: &Task, stages: &[Stage], input: f64) -> f64 {
    reading_s(task, stages, input).sum::<f64>() + hand_over_s(task, stages, input)
}

fn prefill_slowest_s(task: &Task, stages: &[Stage], input: f64) -> f64 {
    reading_s(task, stages, input).fold(0.0, f64::max)
}

/// Seconds that a prompt takes in the slowest stage, and in all of them.
pub(super) fn read_s(task: &Task, stages: &[Stage], input: f64) -> (f64, f64) {
    (prefill_slowest_s(task, stages, input), whole_s(task, stages, input))
}

/// Seconds of a decode step of `batch` requests for each token that it gives a request on average.
pub(super) fn token_s(task: &Task, stages: &[Stage], batch: f64, context: f64) -> f64 {
    let n = real(stages.len() as u64);
    let part = batch / n;
    let tokens = part * task.beside.verified();
    let of_stage = |stage: &Stage| {
        let adapted = real(stage.layers) * task.beside.adapting_s(&task.model, task.on(stage), tokens, part);
        stage_s(task, stage, tokens, context, part * context) + adapted
    };
    let slowest = stages.iter().map(of_stage).fold(0.0, f64::max);
    let drafted = stages.last().map_or(0.0, |last| {
        let (gpu, tp) = task.on(last);
        task.beside.drafting_s(gpu, tp, part, context)
    });
    (n * (slowest + drafted) + hand_over_s(task, stages, tokens)) / task.beside.given()
}

/// Bytes of who drafts on a stage, and of a token's keys and values there: all on the last of so many stages.
fn drafter_bytes(task: &Task, at: usize, n_stages: usize) -> (f64, f64) {
    if at + 1 == n_stages { task.beside.drafter_bytes() } else { (0.0, 0.0) }
}

/// Requests that a group generates for at a time, at most.
pub(super) const RUNNING_MAX: usize = 256;

/// Tokens whose keys and values fit beside the weights.
pub(super) fn cache_tokens(task: &Task, stages: &[Stage]) -> f64 {
    let room = |(at, stage): (usize, &Stage)| {
        let layers = real(stage.layers);
        let (drafter, drafter_kv) = drafter_bytes(task, at, stages.len());
        let free = usable(task, stage) - layers * layer_bytes(task, stage.tp) - drafter;
        free / (layers * kv_layer_bytes(task) + drafter_kv)
    };
    let held = stages.iter().enumerate().filter(|(_, stage)| stage.layers > 0);
    let fits = held.map(room).fold(f64::INFINITY, f64::min);
    if fits.is_finite() { fits.max(0.0) } else { 0.0 }
}

/// Requests whose keys and values fit beside the weights.
fn batch_max(task: &Task, stages: &[Stage], tokens: f64) -> f64 {
    (cache_tokens(task, stages) / tokens).floor().clamp(0.0, BATCH_MAX)
}

/// Machine that holds most layers of a group.
pub(super) fn home(stages: &[Stage]) -> usize {
    let of = |machine: usize| stages.iter().filter(|s| s.machine == machine).map(|s| s.layers).sum::<u64>();
    let machines = stages.iter().map(|stage| stage.machine).max().map_or(0, |most| most + 1);
    (0..machines).rev().max_by_key(|&machine| of(machine)).unwrap_or(0)
}

/// A mean length in whole tokens.
pub(super) fn whole_tokens(mean: f64) -> Tokens {
    Tokens(hw::whole(mean))
}

/// Largest load of a server with fixed service time whose mean wait and service stay within a target (M/D/1: ρ·s / (2·(1 - ρ))).
pub(super) fn load_within(service_s: f64, latency_s: f64, target_s: f64) -> f64 {
    let slack = (target_s - latency_s) / service_s;
    if slack <= 0.0 { 0.0 } else { 2.0 * slack / (1.0 + 2.0 * slack) }
}

/// Speed of a group that runs one phase.
pub(super) fn speed(task: &Task, stages: &[Stage], phase: Phase) -> Speed {
    let (input, output) = task.mean();
    match phase {
        Phase::Prefill => {
            let slowest = prefill_slowest_s(task, stages, input);
            let latency = prefill_s(task, stages, whole_tokens(input));
            Speed { rate: load_within(slowest, latency, task.ttft_s) / slowest, token_s: 0.0 }
        }
        Phase::Decode => {
            let context = input + output / 2.0;
            let most = batch_max(task, stages, input + output);
            let target = task.tpot_s * super::DECODE_SHARE;
            let batch = largest(most, |batch| token_s(task, stages, batch, context) <= target);
            let token_s = token_s(task, stages, batch.max(1.0), context);
            Speed { rate: batch / (output * token_s), token_s }
        }
    }
}

/// Share of the requests whose prompt a group reads in time when it waits for no other; 1 for groups that generate.
pub(super) fn in_time(task: &Task, stages: &[Stage], phase: Phase) -> f64 {
    match phase {
        Phase::Prefill => {
            let meets = |lengths: &super::Lengths| prefill_s(task, stages, lengths.input) <= task.ttft_s;
            task.classes.iter().filter(|(lengths, _)| meets(lengths)).map(|(_, share)| share).sum()
        }
        Phase::Decode => 1.0,
    }
}

/// Largest whole batch up to `most` that holds a condition which larger batches break; 0 for none.
fn largest(most: f64, holds: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, most + 1.0);
    while high - low > 1.0 {
        let middle = (low.midpoint(high)).floor();
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Rate of a replica that runs both phases: prompts stop decoding, so that a token takes step / (1 - r·prefill) on average.
pub(super) fn colocated_rate(task: &Task, stages: &[Stage]) -> f64 {
    let (input, output) = task.mean();
    let context = input + output / 2.0;
    let prefill = prefill_slowest_s(task, stages, input);
    let latency = prefill_s(task, stages, whole_tokens(input));
    let most = batch_max(task, stages, input + output);
    let rate_of = |batch: f64| {
        let step = token_s(task, stages, batch, context);
        // A batch of b ends in output·step + b·prefill seconds.
        (batch / (output * step + batch * prefill), step)
    };
    let batch = largest(most, |batch| {
        let (rate, step) = rate_of(batch);
        let stalled = step / (1.0 - rate * prefill).max(1e-9);
        stalled <= task.tpot_s && rate * prefill <= load_within(prefill, latency, task.ttft_s)
    });
    if batch < 1.0 { 0.0 } else { rate_of(batch).0 }
}

/// Every way to lay a replica on these GPUs; empty where it does not fit.
pub(super) fn layouts(task: &Task, n_gpus: &[u32]) -> Vec<Vec<Stage>> {
    let machines: Vec<usize> = (0..n_gpus.len()).filter(|&m| n_gpus[m] > 0).collect();
    let mut cuts: Vec<Vec<Stage>> = vec![Vec::new()];
    for &machine in &chained(task, &machines) {
        let n = n_gpus[machine];
        let degrees = (0..=n.ilog2()).map(|power| 1_u32 << power).filter(|tp| n.is_multiple_of(*tp));
        let parts: Vec<Vec<Stage>> =
            degrees.map(|tp| (0..n / tp).map(|_| Stage { machine, tp, layers: 0 }).collect()).collect();
        cuts = cuts.iter().flat_map(|cut| parts.iter().map(|part| [cut.as_slice(), part].concat())).collect();
    }
    let mut all: Vec<Vec<Stage>> = Vec::new();
    for cut in cuts.iter().filter(|cut| !cut.is_empty()) {
        let gpu = |stage: &Stage| task.gpu(stage.machine);
        let by: [&dyn Fn(&Stage) -> f64; 3] = [
            &|stage| f64::from(stage.tp) * gpu(stage).peak(Dtype::Bf16).get(),
            &|stage| f64::from(stage.tp) * gpu(stage).memory_bandwidth.get(),
            &|stage| usable(task, stage),
        ];
        for weight in by {
            if let Some(stages) = spread(task, cut, weight).filter(|stages| !all.contains(stages)) {
                all.push(stages);
            }
        }
    }
    all
}

/// Machines in an order whose weakest link is strong: from each one on, the strongest link to one that is left; the best start counts.
fn chained(task: &Task, machines: &[usize]) -> Vec<usize> {
    let mut best: (f64, Vec<usize>) = (-1.0, machines.to_vec());
    for &start in machines {
        let mut order = vec![start];
        let mut weakest = f64::INFINITY;
        while order.len() < machines.len() {
            stop::pause();
            let last = order[order.len() - 1];
            let left = machines.iter().filter(|m| !order.contains(m));
            let Some(&next) = left.max_by(|&&a, &&b| task.bandwidth(last, a).total_cmp(&task.bandwidth(last, b)))
            else {
                break;
            };
            weakest = weakest.min(task.bandwidth(last, next));
            order.push(next);
        }
        if weakest > best.0 {
            best = (weakest, order);
        }
    }
    best.1
}

/// Layers in proportion to a weight, as far as memory holds them with the longest request; `None` where not all fit.
fn spread(task: &Task, cut: &[Stage], weight: &dyn Fn(&Stage) -> f64) -> Option<Vec<Stage>> {
    let mut stages = cut.to_vec();
    let longest = task.longest();
    let held = |at: usize, stage: &Stage, layers: u64| {
        let (drafter, drafter_kv) = drafter_bytes(task, at, cut.len());
        let of_layer = layer_bytes(task, stage.tp) + kv_layer_bytes(task) * longest;
        real(layers) * of_layer + drafter + drafter_kv * longest
    };
    for _ in 0..task.model.n_layers {
        stop::pause();
        let open = (0..stages.len()).filter(|&s| held(s, &stages[s], stages[s].layers + 1) <= usable(task, &stages[s]));
        let after = |s: usize| real(stages[s].layers + 1) / weight(&stages[s]);
        let next = open.min_by(|&a, &b| after(a).total_cmp(&after(b)))?;
        stages[next].layers += 1;
    }
    stages.retain(|stage| stage.layers > 0);
    Some(stages)
}
