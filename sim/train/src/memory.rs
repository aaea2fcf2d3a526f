//! Bytes of a training job on one rank: model states by ZeRO stage, activations by recompute mode, of a pipeline stage.
//!
//! Activation terms follow arXiv:2205.05198 section 4 (per token and layer 10 + 24/t bytes times the hidden size, all of it
//! over t with sequence parallelism, plus 5·a·s/t for an unfused score matrix), rewritten for grouped key-value heads, gated
//! feed-forwards and experts. With flash attention all terms are linear in tokens, which is Skrull's Memory(S) = α·S + β
//! (arXiv:2505.19609, section 4.1) with β in the static part.

use hw::{Bytes, Dtype};

use crate::layout::{ContextExchange, Zero};
use engine::memory::{
    adapter_parameters, buffer_bytes_per_token, graph_bytes_per_token, logit_bytes_per_token, mask_bytes_per_token,
    narrow_copies, score_bytes_per_pair, stage_parameters, working_bytes_per_token,
};
use engine::shard::Shard;
use engine::verdict::Refused;

use crate::activation::Activation;
use crate::exchange_buffers;
use crate::optimizer::Rule;
use crate::pipeline_states::{self, Batches};
use crate::problem::{Adapters, Execution, Framework, Problem};
use crate::schedule::{Pipeline, play};
use crate::stage::{Stage, no_matrices, stages};
use crate::units_in_use;

/// Layers whose offloaded activations or parameters a device holds while a pass makes or takes them: one is computed, one is copied.
pub const LAYERS_IN_PASSING: u32 = 2;

/// Model states that stay on a rank for the whole step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Parameters.
    pub parameters: Bytes,
    /// Gradients.
    pub gradients: Bytes,
    /// Optimizer states.
    pub optimizer: Bytes,
    /// Whole parameters and gradients of layers in use, where the rank keeps shares of them.
    pub in_use: Bytes,
    /// Narrow copies of parameters, as products read them.
    pub copies: Bytes,
}

impl States {
    /// All of them.
    pub fn total(self) -> Bytes {
        self.parameters + self.gradients + self.optimizer + self.in_use + self.copies
    }
}

/// Bytes of a parameter itself, and of what Adam keeps of it.
pub fn bytes_per_parameter(problem: &Problem) -> [f64; 2] {
    let execution = &problem.execution;
    let states = execution.optimizer.bytes_per_parameter(execution.framework, Rule::Adam);
    [hw::real(problem.parameter_dtype().bytes()), states]
}

/// What a CUDA context takes of a device, of what is reserved.
const CONTEXT: Bytes = Bytes(1 << 29);

/// Memory outside of the framework's allocator: what is reserved, and buffers of exchanges. Buffers that the reserve has room for beside a context are part of it.
pub fn outside(problem: &Problem) -> [Bytes; 2] {
    let (reserved, buffers) = (problem.reserved_memory, exchange_buffers::of(problem));
    [Bytes(reserved.0.saturating_sub(buffers.0).max(reserved.0.min(CONTEXT.0))), buffers]
}

/// Both together.
pub fn all_outside(problem: &Problem) -> Bytes {
    let [reserved, buffers] = outside(problem);
    reserved + buffers
}

/// What a pipeline rank holds for a whole step of such micro-batches, by name.
pub(crate) fn resident(problem: &Problem, pp: u32, held: &[Stage], batches: Batches) -> Vec<(&'static str, u64)> {
    let here = problem.at_stage(pp as usize);
    let (states, [reserved, buffers]) = (states(&here, held), outside(problem));
    let gradients = if gradients_come_late(problem) { Bytes::ZERO } else { states.gradients };
    let parts = [reserved, states.parameters, gradients, states.optimizer].map(|bytes| bytes.0);
    let names = ["reserved", "parameters", "gradients", "optimizer states"];
    let mut all: Vec<(&'static str, u64)> = names.into_iter().zip(parts).collect();
    let graphs = graph_bytes_per_token(&here.shard(), problem.execution.launches.captured) * batches.tokens;
    let pipeline = pipeline_states::resident(&here, pp, held, batches);
    let workspace = engine::memory::workspace_bytes(&here.shard(), held, &problem.cluster.gpu);
    let further = [
        ("exchange buffers", buffers.0),
        ("workspace", workspace.0),
        ("whole parameters and gradients", pipeline + states.in_use.0),
        ("narrow copies of parameters", states.copies.0),
        ("graphs", graphs),
    ];
    all.extend(further.into_iter().filter(|(_, bytes)| *bytes > 0));
    all
}

/// Whether a step begins without gradients: PyTorch sets them to none behind the optimizer (`zero_grad`).
pub(crate) fn gradients_come_late(problem: &Problem) -> bool {
    let execution = &problem.execution;
    execution.framework.torch().is_some() && problem.layout.pp == 1 && execution.unit_times.is_none()
}

/// Share of the gradients of so many parameters that is there at once: all, or that of the largest matrix where each is freed behind its update.
fn held_at_once(problem: &Problem, stages: &[Stage], n_parameters: f64) -> f64 {
    if !(problem.execution.updates_in_backward() && gradients_come_late(problem)) {
        return 1.0;
    }
    let model = &problem.model;
    let has_table = stages.iter().any(|stage| stage.first || stage.last);
    let table = if has_table { model.vocab * model.hidden } else { 0 };
    let largest = table.max(model.intermediate * model.hidden).div_ceil(u64::from(problem.layout.tp));
    (hw::real(largest) / n_parameters.max(1.0)).min(1.0)
}

/// Model states of a rank that holds `stages`.
pub fn states(problem: &Problem, stages: &[Stage]) -> States {
    if problem.execution.unit_times.is_some() {
        return States::default();
    }
    let [element, adam] = bytes_per_parameter(problem);
    let execution = &problem.execution;
    let trained = if execution.trains_weights() { 1.0 } else { 0.0 };
    let gradient = trained * hw::real(problem.held_gradient_dtype().bytes());
    let share = |at: Zero, n: u32| if problem.layout.zero >= at { 1.0 / f64::from(n) } else { 1.0 };
    let (shared, experts) = stages
        .iter()
        .map(|stage| stage_parameters(&problem.shard(), stage))
        .fold((0.0, 0.0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    let sharded = |at: Zero| {
        shared * share(at, problem.layout.n_shards()) + experts * share(at, problem.layout.n_expert_shards())
    };
    // FSDP2 that keeps gathered parameters has them in 16 bits beside its shares (`reshard_after_forward = False`).
    let keeps = execution.framework.torch().is_some() && problem.layout.zero == Zero::Gradients;
    let is_kept = keeps && !problem.uses_parameters_in_place();
    let parameters = if problem.shard().frozen().is_packed() {
        packed_parameters(problem, stages, share(Zero::Parameters, problem.layout.n_shards()))
    } else if is_kept {
        sharded(Zero::Gradients) * element + (shared + experts) * problem.gathered_bytes()
    } else {
        sharded(Zero::Parameters) * element
    };
    let parameters = parameters * parameters_on_device(problem, stages);
    // Copies stand beside the parameters, or in place of those that have some (`--fp8-param-gather`).
    let (copies, n_copied) = copied(problem, stages);
    let (parameters, copies) =
        if execution.gathers_narrow { (parameters - n_copied * element + copies, 0.0) } else { (parameters, copies) };
    let held = sharded(Zero::OptimizerStates);
    let optimizer = match execution.optimizer.rule {
        Rule::Adam => held * adam,
        Rule::Muon => {
            let of_layers = execution.optimizer.bytes_per_parameter(execution.framework, Rule::Muon);
            let others: f64 = stages.iter().map(|stage| no_matrices(problem, stage)).sum();
            let others = others * share(Zero::OptimizerStates, problem.layout.n_shards());
            others * adam + (held - others) * of_layers
        }
    };
    let of_adapters = of_adapters(problem, stages, |at| share(at, problem.layout.n_shards()));
    let gradients = if problem.shards_gradients() { sharded(Zero::Gradients) } else { shared + experts } * gradient;
    let gradients = gradients * problem.gradients_on_device() * held_at_once(problem, stages, shared + experts);
    let optimizer = optimizer * trained * execution.optimizer.on_device();
    States {
        parameters: Bytes::from_f64(parameters + of_adapters[0]),
        gradients: Bytes::from_f64(gradients + of_adapters[1]),
        optimizer: Bytes::from_f64(optimizer + of_adapters[2]),
        in_use: units_in_use::of(problem, stages),
        copies: Bytes::from_f64(copies),
    }
}

/// Share of a rank's parameters that is on the device: of those on the host two layers' are there.
fn parameters_on_device(problem: &Problem, stages: &[Stage]) -> f64 {
    let n_layers: u32 = stages.iter().map(Stage::n_layers).sum();
    if problem.hosts_parameters() {
        f64::from(LAYERS_IN_PASSING) / f64::from(n_layers.max(LAYERS_IN_PASSING))
    } else {
        1.0
    }
}

/// Bytes of frozen weights, of which a rank holds such a share; their scales are cut, or whole on every rank.
fn packed_parameters(problem: &Problem, stages: &[Stage], share: f64) -> f64 {
    let shard = problem.shard();
    let of_stages = stages.iter().map(|stage| engine::memory::frozen_bytes(&shard, stage));
    let of_scales = if shard.frozen().cuts_scales() { share } else { 1.0 };
    of_stages.map(|[packed, scales, wide]| (packed + wide) * share + scales * of_scales).sum()
}

/// Bytes of adapters, of their gradients and of their states on a rank, cut as other trained parameters are. PyTorch's gradients have the format of the
/// adapters, and other frameworks' that of their gradients.
fn of_adapters(problem: &Problem, stages: &[Stage], share: impl Fn(Zero) -> f64) -> [f64; 3] {
    let Some(adapters) = problem.execution.adapters else { return [0.0; 3] };
    let shard = problem.shard();
    let held: f64 = stages.iter().map(|stage| adapter_parameters(&shard, stage)).sum();
    let element = adapter_element(problem, adapters);
    let is_torch = problem.execution.framework.torch().is_some();
    let gradient = if is_torch { element } else { problem.held_gradient_dtype().bytes() };
    let [_, states] = bytes_per_parameter(problem);
    [
        held * share(Zero::Parameters) * hw::real(element),
        held * share(Zero::Gradients) * hw::real(gradient),
        held * share(Zero::OptimizerStates) * states,
    ]
}

/// Bytes of an adapter's parameter: those beside PyTorch's modules may be wider than the activations.
fn adapter_element(problem: &Problem, adapters: Adapters) -> u64 {
    let is_torch = problem.execution.framework.torch().is_some();
    if is_torch { adapters.element(problem.dtype) } else { problem.dtype.bytes() }
}

/// Adapters of all layers, each once: how many parameters, and bytes of one. Nothing where the model's own weights are trained.
pub fn all_adapters(problem: &Problem) -> Option<[f64; 2]> {
    let element = adapter_element(problem, problem.execution.adapters?);
    let shard = Shard { tp: 1, ..problem.shard() };
    Some([stages(problem).iter().map(|stage| adapter_parameters(&shard, stage)).sum(), hw::real(element)])
}

/// Whole gradients that wait on a rank for the last micro-batch: in the format in which they are reduced, or as they were made where that is no wider
/// (pytorch/pytorch, `unsharded_accumulated_grad`).
pub fn waiting_gradients(problem: &Problem, stages: &[Stage]) -> Bytes {
    if !problem.defers_gradients() {
        return Bytes::ZERO;
    }
    let of_stages = stages.iter().map(|stage| stage_parameters(&problem.shard(), stage));
    let parameters: f64 = of_stages.map(|(shared, experts)| shared + experts).sum();
    Bytes::from_f64(parameters * hw::real(problem.reduced_dtype().bytes()))
}

/// Whether some parameters have narrow copies that last for the whole step.
pub fn has_narrow_copies(problem: &Problem) -> bool {
    copied(problem, &stages(problem)).1 > 0.0
}

/// Bytes of narrow copies of parameters that last for the whole step, and how many parameters have them. Those that are gathered for every use have none.
fn copied(problem: &Problem, stages: &[Stage]) -> (f64, f64) {
    if problem.layout.zero >= Zero::Parameters {
        return (0.0, 0.0);
    }
    let of_stages = stages.iter().map(|stage| narrow_copies(&problem.shard(), stage, &problem.cluster.gpu));
    of_stages.fold((0.0, 0.0), |sum, next| (sum.0 + next.0, sum.1 + next.1))
}

/// Activations that a stage keeps from forward to backward, bytes per token.
pub fn activation_bytes_per_token(problem: &Problem, stage: &Stage) -> u64 {
    let shard = problem.shard();
    let exchanges = problem.layout.cp > 1 && problem.layout.exchange == ContextExchange::Ulysses;
    let exchanged = if exchanges { engine::memory::exchanged_bytes_per_token(&shard) } else { 0 };
    engine::memory::activation_bytes_per_token(&shard, stage) + exchanged * u64::from(stage.n_layers())
}

/// Activations of so many tokens of a micro-batch on a stage, with so many pairs of a query and a key.
pub fn activation(problem: &Problem, stage: &Stage, tokens: u64, pairs: u64) -> Activation {
    let whole = tokens * activation_bytes_per_token(problem, stage);
    let masks = tokens * mask_bytes_per_token(&problem.shard(), stage);
    Activation { whole: whole + pairs * score_bytes_per_pair(&problem.shard(), stage), for_weights: whole - masks }
}

/// Memory that a pipeline rank needs: model states, and bytes per token of a micro-batch that it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Model states.
    pub states: States,
    /// Bytes per token of `bucket_tokens`, over all micro-batches in flight.
    pub bytes_per_token: u64,
    /// Of these what a single pass has: layers in work, logits and graphs. The rest is kept from forward to backward.
    pub passing_per_token: u64,
}

/// Needs of every pipeline rank, from the activations that the schedule holds at most when micro-batches are equal.
pub fn needs(problem: &Problem) -> Vec<Need> {
    let (layout, stages) = (&problem.layout, stages(problem));
    // Enough micro-batches for any schedule to reach its peak.
    let n_micro_batches = 3 * problem.micro_batch_group() * layout.chunks as usize;
    let mut pipeline =
        Pipeline::of_schedule(problem.schedule, layout.pp as usize, layout.chunks as usize, n_micro_batches);
    pipeline.group = problem.micro_batch_group();
    pipeline.flush_every = problem.flush_every();
    let longest = problem.workload.lengths.iter().max().copied().unwrap_or(0);
    let made = |stage: &Stage| activation(problem, stage, 1, longest);
    for (index, stage) in stages.iter().enumerate() {
        let held = made(stage).map(|bytes| on_device(problem, bytes));
        pipeline.activation[index].fill(held.whole);
        pipeline.for_weights[index].fill(held.for_weights);
    }
    let order = problem.schedule.ordered(&pipeline);
    let played = play(&pipeline, &order).expect("every schedule of the table can be played");
    (0..layout.pp as usize)
        .map(|rank| {
            let held: Vec<Stage> =
                (0..layout.chunks as usize).map(|chunk| stages[pipeline.stage(rank, chunk)]).collect();
            let passing =
                |stage: &Stage| passing_bytes_per_token(problem, stage) + in_passing(problem, stage, made(stage).whole);
            let working = held.iter().map(passing).max().unwrap_or(0);
            let logits = if held.iter().any(|stage| stage.last) { logit_bytes_per_token(&problem.shard()) } else { 0 };
            let graphs = graph_bytes_per_token(&problem.shard(), problem.execution.launches.captured);
            let passing_per_token = working + logits + graphs;
            let bytes_per_token = played.peak_activation[rank] + passing_per_token;
            Need { states: states(problem, &held), bytes_per_token, passing_per_token }
        })
        .collect()
}

/// What a pass of a stage holds while it runs, bytes per token: a layer that is made again, and buffers of exchanges.
pub(crate) fn passing_bytes_per_token(problem: &Problem, stage: &Stage) -> u64 {
    working_bytes_per_token(&problem.shard(), stage) + buffer_bytes_per_token(&problem.shard(), stage)
}

/// Of so many bytes of a stage's activations, those on their way to or from the host that the device holds while a pass runs.
pub fn in_passing(problem: &Problem, stage: &Stage, bytes: u64) -> u64 {
    let factor = problem.execution.fragmentation * problem.execution.offload;
    if factor == 0.0 {
        return 0;
    }
    let n_layers = stage.n_layers().max(1);
    let window = f64::from(n_layers.min(LAYERS_IN_PASSING)) / f64::from(n_layers);
    // Upwards, so that what is planned for is never less than what is held.
    hw::whole((hw::real(bytes) * factor * window).ceil())
}

/// Of so many bytes of activations, those that wait on the host between two passes. The device's allocator takes more for them; the host and the link do not.
pub fn streamed(execution: &Execution, bytes: u64) -> u64 {
    hw::whole(hw::real(bytes) * execution.offload)
}

/// What a device's allocator takes of activations.
pub fn taken(execution: &Execution, bytes: u64) -> u64 {
    hw::whole(hw::real(bytes) * execution.fragmentation)
}

/// Activation bytes as the device sees them: fragmented, and without the share that is offloaded.
pub fn on_device(problem: &Problem, bytes: u64) -> u64 {
    let factor = problem.execution.fragmentation * (1.0 - problem.execution.offload);
    if factor == 1.0 { bytes } else { hw::whole(hw::real(bytes) * factor) }
}

/// Tokens that a rank can hold in one micro-batch, over all pipeline ranks: Skrull's BucketSize C.
pub fn token_capacity(problem: &Problem) -> u64 {
    capacity_beside(problem, Bytes::ZERO)
}

/// The same beside something else that every rank holds.
fn capacity_beside(problem: &Problem, further: Bytes) -> u64 {
    let room = |need: &Need| {
        let taken = all_outside(problem) + need.states.total() + further;
        problem.cluster.gpu.memory.0.saturating_sub(taken.0) / need.bytes_per_token.max(1)
    };
    needs(problem).iter().map(room).min().unwrap_or(0)
}

/// Tokens of a micro-batch where a step may have several: gradients that wait take room then, and not in a step of one. What leaves none is said where the step
/// is played.
fn capacity_of_step(problem: &Problem) -> u64 {
    let alone = token_capacity(problem);
    if !problem.defers_gradients() || asked_tokens(problem) <= alone {
        return alone;
    }
    match capacity_beside(problem, waiting_gradients(problem, &stages(problem))) {
        0 => alone,
        beside => beside,
    }
}

/// Micro-batches for each rank of a pipeline, with which its bubble is small (GPipe, arXiv:1811.06965, section 2.3).
const PER_RANK: u64 = 4;

/// Tokens of a micro-batch where the file says none: what memory holds, and no more than a step asks for. Sequences that are all alike fill it with
/// whole ones, as many in every micro-batch of a replica: a policy that pads would pad them to a length that nobody asked for. A framework takes one, as
/// its own default is. No policy has another default than its neighbours, so a comparison compares the policies.
pub fn usual_bucket(problem: &Problem) -> u64 {
    bucket_within(problem, capacity_of_step(problem))
}

/// The same where memory holds so many tokens.
pub(crate) fn bucket_within(problem: &Problem, capacity: u64) -> u64 {
    let lengths = &problem.workload.lengths;
    let alike = lengths.first().filter(|first| lengths.iter().all(|tokens| tokens == *first));
    let Some(shard) = alike.map(|tokens| tokens.div_ceil(u64::from(problem.layout.cp))) else {
        return capacity.min(asked_tokens(problem));
    };
    let replicas = usize::try_from(problem.layout.dp).unwrap_or(1).max(1);
    let of_replica = problem.workload.batch_size.div_ceil(replicas) as u64;
    let held = if problem.execution.framework == Framework::Formulas { capacity / shard.max(1) } else { 1 };
    let most = held.min(of_replica / micro_batches_of_replica(problem)).max(1);
    let whole = (1..=most).rev().find(|&n| of_replica.is_multiple_of(n)).unwrap_or(1);
    // One that does not fit is said where lengths are looked at.
    if shard > capacity { capacity } else { whole * shard }
}

/// Micro-batches that a replica is given at least: one, and on a pipeline `PER_RANK` for each of its ranks.
fn micro_batches_of_replica(problem: &Problem) -> u64 {
    if problem.layout.pp > 1 { PER_RANK * u64::from(problem.layout.pp) } else { 1 }
}

/// Tokens of a rank in a micro-batch where a step is spread over all replicas, each with its fewest micro-batches. Sequences that go one by one to
/// the emptiest micro-batch fill none above the mean and the longest of them together (Graham 1966, Bell System Technical Journal 45, 1563).
fn asked_tokens(problem: &Problem) -> u64 {
    let lengths = &problem.workload.lengths;
    let of_step = |step: &[u64]| step.iter().sum::<u64>();
    let most = lengths.chunks(problem.workload.batch_size.max(1)).map(of_step).max().unwrap_or(0);
    let longest = lengths.iter().max().copied().unwrap_or(0);
    let ranks = u64::from(problem.layout.cp.max(1));
    let n_micro_batches = u64::from(problem.layout.dp.max(1)) * micro_batches_of_replica(problem);
    most.div_ceil(n_micro_batches * ranks) + longest.div_ceil(ranks)
}

/// A key of a scenario as it is written, and what it changes.
type Saving = (&'static str, fn(&mut Execution));

/// What holds the states of Megatron Core in fewer bits, as keys of a scenario: gradients that are added up in 16 bits, and weights in the 8 bits of their products.
const FEWER_BITS: [Saving; 2] = [
    ("`training.gradient_dtype = \"bf16\"`", |execution| execution.gradient_dtype = Dtype::Bf16),
    ("`training.narrow_gather = true`", |execution| execution.gathers_narrow = true),
];

/// The key with which states of Megatron Core fit, alone or both together, and what they then take; nothing where none does. Weights have fewer bits where their
/// products have.
fn fewer_bits(problem: &Problem) -> Option<String> {
    if problem.execution.framework != Framework::MegatronCore {
        return None;
    }
    let taken = |changes: &[Saving]| {
        let mut easier = problem.clone();
        changes.iter().for_each(|(_, change)| change(&mut easier.execution));
        let gib = largest(&easier).as_f64() / hw::GIB;
        let names: Vec<&str> = changes.iter().map(|(name, _)| *name).collect();
        (token_capacity(&easier) > 0).then(|| format!("with {} they take {gib:.1} GiB and fit", names.join(" and ")))
    };
    let [gradients, weights] = FEWER_BITS;
    [&[gradients][..], &[weights], &[gradients, weights]].into_iter().find_map(taken)
}

/// States of the rank that has most of them.
fn largest(problem: &Problem) -> Bytes {
    needs(problem).iter().map(|need| need.states.total()).max().unwrap_or_default()
}

/// Whether the model states leave room for at least one token.
///
/// # Errors
/// A sentence with the figures, and what would fit, if anything: the smallest ZeRO stage, and states of fewer bits.
pub fn fits(problem: &Problem) -> Result<(), Refused> {
    if token_capacity(problem) > 0 {
        return Ok(());
    }
    let gib = |bytes: Bytes| bytes.as_f64() / hw::GIB;
    let (gpu, reserved) = (&problem.cluster.gpu, all_outside(problem));
    if reserved >= gpu.memory {
        let [reserved, memory] = [reserved, gpu.memory].map(gib);
        let what = format!("{reserved:.1} GiB of each GPU are reserved, and `{}` has {memory:.1} GiB", gpu.name);
        return Err(Refused::out_of_memory(what));
    }
    let zero_stages = [(Zero::OptimizerStates, 1), (Zero::Gradients, 2), (Zero::Parameters, 3)];
    let sharded = zero_stages.into_iter().filter(|(stage, _)| *stage > problem.layout.zero).find(|(stage, _)| {
        let mut easier = problem.clone();
        easier.layout.zero = *stage;
        token_capacity(&easier) > 0
    });
    let sharded = sharded.map(|(_, number)| format!("with `zero = {number}` states fit"));
    let found: Vec<String> = sharded.into_iter().chain(fewer_bits(problem)).collect();
    let none = "more GPUs, larger ones, or a larger `tp` or `pp` are needed".to_owned();
    let advice = if found.is_empty() { none } else { found.join(", and ") };
    Err(Refused::out_of_memory(format!(
        "`{}` needs {:.1} GiB of model states per GPU, and `{}` has {:.1} GiB of which {:.1} GiB are reserved; {advice}",
        problem.model.name,
        gib(largest(problem)),
        gpu.name,
        gib(gpu.memory),
        gib(reserved),
    )))
}

#[cfg(test)]
mod deepspeed;
#[cfg(test)]
mod tests;
