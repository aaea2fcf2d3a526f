//! A plan as a deployment, with the times of its replicas, and what clients see when the request loop plays it.
//!
//! Groups become replicas of stages. One that only reads prompts takes them one whole prompt after another through its stages; one that
//! generates, or does both, goes in rounds. Keys and values go over a wire that the pairs of two machines share. Times are those of
//! `group.rs`, with attention over the keys that are there. Units: seconds, bytes per second, tokens.

use engine::cost::Source;
use hw::{Seconds, Span, Time};
use serve::check::{Site, check};
use serve::deployment::{self, Deployment as Placed, EngineOptions, Link, Range, Route};
use serve::fleet::Fleet;
use serve::fleet::dynamics::Failures;
use serve::kv::tiers::{N_TIERS, NO_STORE, Store};
use serve::pool::Answer;
use serve::records::Record;
use serve::replica::{PromptRank, Role};
use serve::request::{Request, Requests};
use serve::router;
use serve::step_cost::StepTable;
use serve::step_cost::stages::{Passage, StageLaw};

use super::group::{self, Stage};
use super::{Deployment, Replica, Task};
use crate::deploy::RentalError;
use crate::deploy::inventory::Offer;
use crate::deploy::roofline::Pass;

/// Share of a route below which it is rounding.
const ROUNDING: f64 = 1e-9;
/// Tokens of a block of the cache; the common default of serving engines.
pub const BLOCK_TOKENS: u32 = 16;

/// Groups, and pairs of a group that reads and one that generates with their shares; the same one does both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Groups {
    /// Stages of every group.
    pub groups: Vec<Vec<Stage>>,
    /// (group of the prompt, group of the tokens, share).
    pub pairs: Vec<(usize, usize, f64)>,
}

/// How the replicas work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Working {
    /// Batching policy by name.
    pub batcher: &'static str,
    /// Tokens of a batch; `None` for as many as the longest request has.
    pub tokens_max: Option<u32>,
    /// Whether prefixes that requests share are kept where prompts are read.
    pub prefix_cache: bool,
    /// Memory of a replica's host and disks where they go that leave its GPUs.
    pub tiers: [Store; N_TIERS],
}

impl Default for Working {
    /// As the plan counts: whole prompts one after another.
    fn default() -> Self {
        Self { batcher: "one-prompt", tokens_max: None, prefix_cache: false, tiers: [NO_STORE; N_TIERS] }
    }
}

/// What plans are played with.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'t> {
    /// Requests that arrive once per second.
    pub requests: &'t Requests,
    /// Share of them that must meet both targets.
    pub attainment_ratio: f64,
    /// How the replicas work.
    pub working: Working,
}

/// What clients saw.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Played {
    /// Share of the requests that met both targets.
    pub attainment: f64,
    /// Prompt and output tokens over the time from first arrival to last token.
    pub tokens_per_s: f64,
    /// Mean time to the first token.
    pub ttft_s: f64,
    /// Mean time per further token, of requests that have one.
    pub tpot_s: f64,
    /// Share of the prompt tokens that a kept prefix saved.
    pub prefix_hit_ratio: f64,
}

impl Groups {
    /// Of a deployment with phases.
    pub fn of(deployment: &Deployment) -> Self {
        let groups = deployment.groups.iter().map(|group| group.stages.clone()).collect();
        let rows = deployment.routes.iter().enumerate();
        let pairs = rows.flat_map(|(i, row)| row.iter().enumerate().map(move |(j, &share)| (i, j, share)));
        Self { groups, pairs: pairs.filter(|pair| pair.2 > ROUNDING).collect() }
    }

    /// Of replicas that run both phases, by their rates.
    pub fn colocated(replicas: &[Replica]) -> Self {
        let pairs = replicas.iter().enumerate().map(|(i, replica)| (i, i, replica.requests_per_s));
        Self { groups: replicas.iter().map(|replica| replica.stages.clone()).collect(), pairs: pairs.collect() }
    }

    /// Whether the same is played: the same groups, and the same part of the requests on every pair.
    pub fn is_played_as(&self, other: &Self) -> bool {
        let total = |groups: &Self| groups.pairs.iter().map(|pair| pair.2).sum::<f64>();
        let totals = [total(self), total(other)];
        let mut pairs = self.pairs.iter().zip(&other.pairs);
        let is_same = |(a, b): (&(usize, usize, f64), &(usize, usize, f64))| {
            (a.0, a.1) == (b.0, b.1) && (a.2 / totals[0] - b.2 / totals[1]).abs() <= ROUNDING
        };
        self.groups == other.groups && self.pairs.len() == other.pairs.len() && pairs.all(is_same)
    }

    /// Stages of the groups that have requests.
    fn used(&self) -> impl Iterator<Item = &[Stage]> {
        (0..self.groups.len()).filter(|&at| self.role(at).is_some()).map(|at| self.groups[at].as_slice())
    }

    fn role(&self, group: usize) -> Option<Role> {
        let reads = self.pairs.iter().any(|pair| pair.0 == group);
        let generates = self.pairs.iter().any(|pair| pair.1 == group);
        match (reads, generates) {
            (true, true) => Some(Role::Both),
            (true, false) => Some(Role::Prefill),
            (false, true) => Some(Role::Decode),
            (false, false) => None,
        }
    }
}

/// The machines of a task: GPUs of one type in one node each.
pub fn machines(task: &Task) -> Vec<deployment::Machine> {
    let machine = |(at, machine): (usize, &Offer)| deployment::Machine {
        name: machine.name.clone(),
        gpu: task.gpu(at).name.clone(),
        n_gpus: machine.n_available,
        gpus_per_node: machine.n_available.max(1),
        memory: Some(task.gpu(at).memory),
        ..machine.terms()
    };
    task.machines.offers.iter().enumerate().map(machine).collect()
}

/// Groups as a deployment for requests of at most so many tokens; groups without requests are left out.
pub fn placed(task: &Task, groups: &Groups, working: Working, longest: u32) -> Placed {
    let n_layers = u32::try_from(task.model.n_layers).expect("fewer than 2^32 layers");
    let mut all = Placed::new(&task.model.name, n_layers, machines(task));
    let mut taken = vec![0; task.n_machines()];
    let mut position = vec![0; groups.groups.len()];
    for (at, stages) in groups.groups.iter().enumerate() {
        let Some(role) = groups.role(at) else { continue };
        position[at] = u32::try_from(all.replicas.len()).expect("few groups");
        all.replicas.push(deployment::Replica {
            name: format!("{} {at}", role.word()),
            copies: 1,
            role,
            stages: on_gpus(stages, &mut taken),
            engine: options(task, stages, working, longest),
        });
    }
    let total: f64 = groups.pairs.iter().map(|pair| pair.2).sum();
    for &(i, j, share) in &groups.pairs {
        let (from, to) = (position[i], position[j]);
        let replicas = if i == j { vec![from] } else { vec![from, to] };
        all.routes.push(Route { class: 0, replicas, share_ratio: share / total });
        if i != j {
            let ends = (group::home(&groups.groups[i]), group::home(&groups.groups[j]));
            all.links.push(link(task, (from, to), ends));
        }
    }
    all
}

/// Stages on the next GPUs of their machines.
fn on_gpus(stages: &[Stage], taken: &mut [u32]) -> Vec<deployment::Stage> {
    let mut first = 0;
    let mut held = Vec::new();
    for stage in stages {
        let layers = Range::new(first, u32::try_from(stage.layers).expect("fewer than 2^32 layers"));
        first = layers.end;
        let gpus = Range::new(taken[stage.machine], stage.tp);
        taken[stage.machine] = gpus.end;
        let machine = u32::try_from(stage.machine).expect("few machines");
        held.push(deployment::Stage { machine, gpus, tensor: stage.tp, ffn_gpus: 0, on_host: None, layers });
    }
    held
}

fn options(task: &Task, stages: &[Stage], working: Working, longest: u32) -> EngineOptions {
    let sequences_max = u32::try_from(group::RUNNING_MAX).expect("few");
    EngineOptions {
        batcher: working.batcher.to_owned(),
        sequences_max,
        tokens_max: working.tokens_max.unwrap_or(longest).max(sequences_max * task.beside.n_verified()),
        context_max: None,
        prompts_max: None,
        batch_context_max: None,
        block_tokens: BLOCK_TOKENS,
        kv_tokens: hw::whole(group::cache_tokens(task, stages).floor()),
        watermark_blocks: 0,
        prefix_cache: working.prefix_cache,
        recv_interval: std::num::NonZeroU32::MIN,
        batch_wait: None,
        capacity_policy: serve::replica::CapacityPolicy::MaxUtilization,
        prompt_rank: PromptRank::Even,
    }
}

/// What lies between two groups whose layers are mostly on these machines: pairs of the same machines share a wire.
fn link(task: &Task, (from, to): (u32, u32), ends: (usize, usize)) -> Link {
    let n = task.n_machines();
    Link {
        from: Some(from),
        to: Some(to),
        bytes_per_s: Some(task.bandwidth(ends.0, ends.1)),
        latency_s: task.start_s(ends.0, ends.1),
        wire: Some(u32::try_from(ends.0 * n + ends.1).expect("few machines")),
        wire_ratio: f64::from(task.wire_bits) / 16.0,
        pack_s_per_token: 0.0,
    }
}

/// Times of every replica, in the order of `placed`.
pub fn tables(task: &Task, groups: &Groups, placed: &Placed) -> Vec<StepTable> {
    let replicas = groups.used().zip(&placed.replicas);
    replicas.map(|(stages, replica)| table(task, stages, replica.role, replica.engine.tokens_max)).collect()
}

/// Seconds of a stage: its weights and products, attention per pair and per key, and the way to the next stage.
struct StageTimes<'t> {
    task: &'t Task,
    stage: &'t Stage,
    next: Option<&'t Stage>,
}

impl StageTimes<'_> {
    fn layers(&self) -> f64 {
        hw::real(self.stage.layers)
    }

    fn tokens(&self, n: u64) -> Seconds {
        let gpu = self.task.gpu(self.stage.machine);
        let pass = Pass { tokens: hw::real(n), attended: 0.0, read: 0.0 };
        let layer = self.task.layer().seconds(gpu, f64::from(self.stage.tp), pass);
        Seconds::new(self.layers() * layer)
    }

    fn hand_over(&self, n: u64) -> Seconds {
        let Some(next) = self.next else { return Seconds::ZERO };
        let (from, to) = (self.stage.machine, next.machine);
        let sending_s = hw::real(n * self.task.model.hidden) * 2.0 / self.task.bandwidth(from, to);
        Seconds::new(self.task.start_s(from, to) + sending_s)
    }
}

fn table(task: &Task, stages: &[Stage], role: Role, tokens_max: u32) -> StepTable {
    let times: Vec<StageTimes<'_>> =
        stages.iter().enumerate().map(|(at, stage)| StageTimes { task, stage, next: stages.get(at + 1) }).collect();
    let tokens: Vec<_> = times.iter().map(|of| |n: u64| of.tokens(n)).collect();
    let hand_over: Vec<_> = times.iter().map(|of| |n: u64| of.hand_over(n)).collect();
    let laws: Vec<StageLaw<'_>> = (0..stages.len())
        .map(|at| {
            let gpu = task.gpu(stages[at].machine);
            let (per_pair_s, per_key_s) = task.layer().attention_s(gpu, f64::from(stages[at].tp));
            let layers = times[at].layers();
            StageLaw {
                tokens: &tokens[at],
                per_pair: Seconds::new(layers * per_pair_s),
                per_key: Seconds::new(layers * per_key_s),
                hand_over: &hand_over[at],
            }
        })
        .collect();
    let passage = if role == Role::Prefill { Passage::Flow } else { Passage::Rounds };
    task.beside_in(StepTable::of_stages(&laws, passage, tokens_max, Source::Datasheet), stages)
}

/// A plan as the loop plays it, and as it is written.
#[derive(Clone, Debug)]
pub struct Playable {
    /// The deployment.
    pub placed: Placed,
    fleet: Fleet,
}

/// The most requests per second that a plan serves within the targets.
///
/// # Errors
/// When the checker refuses the plan.
pub fn rate(task: &Task, groups: &Groups, trial: &Trial<'_>) -> Result<f64, RentalError> {
    Ok(rate_from(0.0, task, groups, trial)?.unwrap_or(0.0))
}

/// The same where it is no less than `least`, at which the plan is played first: as in the search for the rate, one that is missed leaves none above it.
///
/// # Errors
/// When the checker refuses the plan.
pub fn rate_from(least: f64, task: &Task, groups: &Groups, trial: &Trial<'_>) -> Result<Option<f64>, RentalError> {
    let Trial { requests, attainment_ratio, working } = *trial;
    let playable = playable(task, groups, working, &requests.list)?;
    let meets = |per_s: f64| play(task, &playable, &faster(requests, per_s)).attainment >= attainment_ratio;
    Ok((least <= 0.0 || meets(least)).then(|| goodput(task, &playable, requests, attainment_ratio).0))
}

/// Checks a plan and makes it what the loop plays; `requests` say how long they get.
///
/// # Errors
/// Every refusal of the checker, which would be a fault of the planner.
pub fn playable(task: &Task, groups: &Groups, working: Working, requests: &[Request]) -> Result<Playable, RentalError> {
    let longest = requests.iter().map(|request| request.prompt + request.output).max().unwrap_or(1);
    let placed = placed(task, groups, working, longest);
    let machines = machines(task);
    let site = Site::of(&task.model, &machines);
    check(&placed, &site).map_err(RentalError::refused)?;
    let mut fleet = deployment::fleet(&placed, tables(task, groups, &placed), task.token_bytes())
        .map_err(|why| RentalError::Refused(why.to_string()))?;
    for ((group, replica), stages) in fleet.groups.iter_mut().zip(&placed.replicas).zip(groups.used()) {
        group.failures = failures(task, replica);
        let limits = &mut group.engine.limits;
        (limits.tiers, limits.adapters) = (task.tiers(&working.tiers, stages), task.adapter_limits(stages));
    }
    Ok(Playable { placed, fleet })
}

/// A replica is lost when any of its machines is; it is back when the slowest is.
fn failures(task: &Task, replica: &deployment::Replica) -> Option<Failures> {
    let (mut per_s, mut mttr_s) = (0.0, 0.0_f64);
    let mut machines: Vec<u32> = replica.stages.iter().map(|stage| stage.machine).collect();
    machines.dedup();
    for machine in machines {
        if let Some(losses) = task.machines.offers[machine as usize].losses {
            per_s += 1.0 / losses.mtbf_s;
            mttr_s = mttr_s.max(losses.mttr_s);
        }
    }
    (per_s > 0.0).then(|| Failures { mtbf: Seconds::new(1.0 / per_s), mttr: Seconds::new(mttr_s), seed: 0 })
}

/// Serves requests in order of their arrivals.
pub fn play(task: &Task, playable: &Playable, requests: &Requests) -> Played {
    let kind = router::named("plan-weights").expect("a row of the table");
    let served = playable.fleet.serve(requests, (kind.make)(0).as_mut());
    let answer = |record: &Record| Some(Answer { first: record.first_token()?, last: record.finished()? });
    let answers: Vec<Option<Answer>> = served.records.list.iter().map(answer).collect();
    Played { prefix_hit_ratio: hits(requests, &served), ..seen(task, requests, &answers) }
}

/// Share of the prompt tokens that a kept prefix saved; none where nobody was served.
fn hits(requests: &Requests, served: &serve::fleet::Served) -> f64 {
    let ratio = serve::metrics::prefix_hit_ratio(requests, served);
    if ratio.is_finite() { ratio } else { 0.0 }
}

/// What clients saw of answers to requests, `None` for those that had none.
pub fn seen(task: &Task, requests: &Requests, answers: &[Option<Answer>]) -> Played {
    let mut played = Played::default();
    let (mut met, mut n_more, mut tokens) = (0.0, 0.0, 0);
    let mut last = Time::ZERO;
    let since = |time: Time, start: Time| (time - start).to_seconds().get();
    for (request, answer) in requests.list.iter().zip(answers) {
        let Some(answer) = answer else { continue };
        let ttft_s = since(answer.first, request.arrival);
        let tpot_s = (request.output > 1).then(|| since(answer.last, answer.first) / f64::from(request.output - 1));
        let meets = ttft_s <= task.ttft_s && tpot_s.unwrap_or(0.0) <= task.tpot_s;
        met += f64::from(u8::from(meets));
        played.ttft_s += ttft_s;
        played.tpot_s += tpot_s.unwrap_or(0.0);
        n_more += f64::from(u8::from(tpot_s.is_some()));
        tokens += u64::from(request.prompt) + u64::from(request.output);
        last = last.max(answer.last);
    }
    let n = hw::real(requests.len().max(1) as u64);
    let begun = requests.list.first().map_or(Time::ZERO, |request| request.arrival);
    let took_s = since(last.max(begun), begun);
    played.attainment = met / n;
    played.ttft_s /= n;
    played.tpot_s /= f64::max(n_more, 1.0);
    played.tokens_per_s = hw::real(tokens) / took_s.max(1e-9);
    played
}

/// The same requests, so many per second where they came once per second.
pub fn faster(requests: &Requests, per_s: f64) -> Requests {
    let mut requests = requests.clone();
    for request in &mut requests.list {
        let at_s = (request.arrival - Time::ZERO).to_seconds().get() / per_s;
        request.arrival = Time::ZERO + Span::from_seconds(Seconds::new(at_s));
    }
    requests
}

/// The largest arrival rate at which a share of the requests meets both targets, up to 1 %, with what clients saw at it. `requests` arrive
/// once per second; other rates are the same draws faster or slower.
pub fn goodput(task: &Task, playable: &Playable, requests: &Requests, share: f64) -> (f64, Played) {
    highest(share, &|per_s| play(task, playable, &faster(requests, per_s)))
}

/// The largest rate at which a share of the requests meets both targets, up to 1 %, with what clients saw at it.
pub fn highest(share: f64, at: &dyn Fn(f64) -> Played) -> (f64, Played) {
    let (mut low, mut best) = (0.0, Played::default());
    let mut high = 1.0 / 64.0;
    // Doubles until it fails, then halves the ratio of the two.
    loop {
        let played = at(high);
        if played.attainment < share || high > 1e4 {
            break;
        }
        (low, best, high) = (high, played, 2.0 * high);
    }
    while low > 0.0 && high / low > 1.01 {
        let middle = (low * high).sqrt();
        let played = at(middle);
        if played.attainment >= share {
            (low, best) = (middle, played);
        } else {
            high = middle;
        }
    }
    (low, best)
}
