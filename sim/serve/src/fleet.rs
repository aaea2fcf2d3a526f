//! Groups of replicas behind a router: what a fleet is, and what serving with it gives.
//!
//! Replicas of a group are equal; groups differ in GPU, layout, limits, role and price. The event loop is in `fleet/run.rs`, the way from
//! prefill to decode replicas in `fleet/run/split.rs`, memory that replicas lend each other in `fleet/run/lending.rs`, replicas of a part of the
//! layers in `fleet/run/stations.rs`, a held number of requests in flight in `fleet/held.rs`, the way from a
//! client to the queue in `fleet/start.rs`, failures and autoscaling in `fleet/run/control.rs`, what a planner of the fleet sees in
//! `fleet/scaler.rs`. A request that no replica could ever
//! hold is refused and counted. Units: replicas, GPUs, dollars per GPU and hour, bytes, ticks.

pub mod dynamics;
mod ends;
pub mod held;
mod run;
pub mod scaler;
pub mod start;

use crate::assignment::Assignment;
use crate::kept::Kept;
use crate::kv::lending::Terms;
use crate::pool::path::Paths;
use crate::pool::{self, Outcome, Pool};
use crate::records::Records;
use crate::replica::batcher::Batcher;
use crate::replica::{Counts, Engine, FirstToken, Role};
use crate::request::Requests;
use crate::router::{ROUTERS, Router};
use crate::samples::GivenTokens;
use crate::token_gaps::Gaps;
use dynamics::{Failures, Outage, Rule, Scaling};
use hw::Tick;
use run::Run;
use run::stations::Stations;
use scaler::Scaler;
use start::Start;

/// Equal replicas.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name in results.
    pub name: String,
    /// What every replica runs.
    pub engine: Engine,
    /// Replicas; with scaling, the most that there may be.
    pub n_replicas: u32,
    /// GPUs of one replica.
    pub gpus_per_replica: u32,
    /// Price of a GPU, where it is known.
    pub usd_per_gpu_hour: Option<f64>,
    /// Model that every replica serves; requests for another one do not come here.
    pub model: u32,
    /// What every replica does.
    pub role: Role,
    /// Bytes per second that a replica sends, and as many that it receives at the same time; `None` has no limit.
    pub port_bytes_per_s: Option<f64>,
    /// What of a computed prompt moves to whoever decodes it.
    pub moves: Moves,
    /// How many replicas run as load changes; `None` keeps all.
    pub scaling: Option<Scaling>,
    /// How replicas fail at random.
    pub failures: Option<Failures>,
}

impl Group {
    /// Replicas of one GPU each that do everything, without price, limits of ports, scaling or failures.
    pub fn new(name: impl Into<String>, engine: Engine, n_replicas: u32) -> Self {
        Self {
            name: name.into(),
            engine,
            n_replicas,
            gpus_per_replica: 1,
            usd_per_gpu_hour: None,
            model: 0,
            role: Role::Both,
            port_bytes_per_s: None,
            moves: Moves::default(),
            scaling: None,
            failures: None,
        }
    }
}

/// What a replica hands on of a computed prompt, on all its GPUs together, each byte once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moves {
    /// Bytes of keys and values of a token, a draft's included.
    pub kv_bytes_per_token: f64,
    /// What moves of a sequence besides, of layers that forget.
    pub kept: Kept,
}

/// What moves between two groups, one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Prefill group.
    pub from: usize,
    /// Decode group.
    pub to: usize,
    /// Bytes per second that all transfers between the groups share; `None` has no limit beyond the ports.
    pub bytes_per_s: Option<f64>,
    /// Links with the same wire carry one transfer after another, as a stream of NCCL does; `None` shares its bytes per second fairly.
    pub wire: Option<u32>,
    /// Seconds before the first byte of a transfer.
    pub latency_s: f64,
    /// Bytes on the wire over bytes in memory: below 1 where keys and values are packed, as ThunderServe packs them to 4 bits.
    pub wire_ratio: f64,
    /// Seconds of packing and unpacking per token, before the first byte.
    pub pack_s_per_token: f64,
}

/// Groups and what was planned for them.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// Groups; their replicas are numbered group by group.
    pub groups: Vec<Group>,
    /// Shares for the routers that follow a plan.
    pub assignment: Assignment,
    /// Links between groups; where there is none, only ports limit a transfer.
    pub links: Vec<Link>,
    /// How long a request is on the way from its client to the router.
    pub start: Start,
    /// Who gives first tokens where prompts are computed on some replicas and decoded on others.
    pub first_token: FirstToken,
    /// Replicas that are lost at known times; of stations, the group is the station.
    pub outages: Vec<Outage>,
    /// On what terms replicas lend each other memory, one party per group; `None` where none does.
    pub lending: Option<Terms>,
    /// How each station fails at random; replicas have it by group.
    pub station_failures: Vec<Option<Failures>>,
    /// What is kept of a run besides records and counts.
    pub keeps: Keeps,
}

/// What is kept of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeps {
    /// Records and counts.
    #[default]
    Records,
    /// Times between the tokens of every request too, and how many came between so many samples of the run.
    Tokens {
        /// Samples behind the first one.
        samples: u32,
    },
}

/// How keys and values moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Transfers that ended.
    pub n: u64,
    /// Tokens that they carried.
    pub tokens: u64,
    /// Ticks from the reservation of blocks to the last byte, together.
    pub ticks: Tick,
    /// Ticks from the end of the prompt to the reservation of blocks, together.
    pub waiting_ticks: Tick,
    /// Ticks that the busiest link or port takes for what it carried.
    pub link_ticks: Tick,
}

/// What became of replicas while time ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Times that a request was put back into the queue.
    pub n_retried: u64,
    /// Replicas lost.
    pub n_outages: u64,
    /// Replicas that were lost again and again before a token came, and for which nobody waits any more.
    pub n_given_up: u64,
    /// Replicas that scaling started.
    pub n_started: u64,
    /// Replicas that scaling stopped.
    pub n_stopped: u64,
}

/// A replica begins to be paid, or is paid no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaidChange {
    /// When.
    pub tick: Tick,
    /// Which.
    pub replica: u32,
    /// Whether it is paid from then on.
    pub is_paid: bool,
}

/// What replicas lent each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaned {
    /// Loans that a lender refused.
    pub n_refused: u64,
    /// Requests that were preempted because a lender needed its blocks.
    pub n_evicted: u64,
    /// Blocks that were borrowed.
    pub borrowed_blocks: u64,
    /// Blocks that were moved: sent away, asked back, planned, or home from a cancelled cycle.
    pub moved_blocks: u64,
    /// Debt that cancelled cycles took away, blocks.
    pub cancelled_blocks: u64,
    /// Largest sum of debts, blocks.
    pub debt_max: u64,
}

/// What a simulation gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Moments of every request, in order of arrival.
    pub records: Records,
    /// Counts of every replica.
    pub counts: Vec<Counts>,
    /// Most blocks in use and all blocks, of every replica.
    pub blocks: Vec<(u32, u32)>,
    /// Group of every replica.
    pub group_of: Vec<u32>,
    /// Ticks for which every replica is paid.
    pub paid_ticks: Vec<Tick>,
    /// Ticks in which every replica served, be it only what it had: those that are paid but for loading.
    pub up_ticks: Vec<Tick>,
    /// When replicas began to be paid, and when they ended to be, in order of time.
    pub paid_changes: Vec<PaidChange>,
    /// Requests that no replica could hold.
    pub n_refused: u64,
    /// Requests that had not ended when the clock did.
    pub n_unserved: u64,
    /// What moved between replicas.
    pub moved: Moved,
    /// Replicas that came and went.
    pub changes: Changes,
    /// What replicas lent each other.
    pub loaned: Loaned,
    /// Times between the tokens of every request, in order of arrival; empty where they are not kept.
    pub token_gaps: Vec<Option<Gaps>>,
    /// When fewer than half of the users were left who are held: the others found no request to send. `None` where nobody is held.
    pub half_left: Option<Tick>,
    /// Tokens of the requests that have such times, where that was asked.
    pub given_tokens: Option<GivenTokens>,
}

impl Fleet {
    /// A fleet of one group.
    pub fn of(group: Group) -> Self {
        Self { groups: vec![group], ..Self::default() }
    }

    /// How replicas of a group fail, or stations.
    fn failures_of(&self, group: u32) -> Option<Failures> {
        let of_station = || self.station_failures.get(group as usize).copied().flatten();
        self.groups.get(group as usize).map_or_else(of_station, |group| group.failures)
    }

    /// Replicas of all groups.
    pub fn n_replicas(&self) -> u32 {
        self.groups.iter().map(|group| group.n_replicas).sum()
    }

    /// First replica of a group.
    pub fn first_of(&self, group: usize) -> u32 {
        if self.groups.is_empty() {
            // A station is a group of its own.
            return u32::try_from(group).expect("fewer than 2^32 stations");
        }
        self.groups[..group].iter().map(|group| group.n_replicas).sum()
    }

    /// Tokens of the longest request that some replica holds, with what others always lend it.
    pub fn context_max_tokens(&self) -> u64 {
        let always = |group: &Group| {
            let least = group.scaling.as_ref().map_or(group.n_replicas, |scaling| scaling.replicas_min.max(1));
            least.min(group.n_replicas)
        };
        let n_replicas: Vec<u32> = self.groups.iter().map(always).collect();
        // Of those that serve all, that prefill, and that decode.
        let mut longest = [0; 3];
        for (index, group) in self.groups.iter().enumerate() {
            let limits = &group.engine.limits;
            let lent = self.lending.as_ref().map_or(0, |terms| terms.lendable(index, &n_replicas));
            let own = u64::from(limits.kv_blocks / group.engine.table.lanes().ranks);
            // Windows and states of the request take blocks beside those of its tokens.
            let of_tokens = (own + lent).saturating_sub(limits.blocks_per_sequence.into());
            let tokens = of_tokens * u64::from(limits.block_tokens);
            let of_role = &mut longest[match group.role {
                Role::Both | Role::Outputs => 0,
                Role::Prefill => 1,
                Role::Decode => 2,
            }];
            *of_role = tokens.min(limits.context_max.into()).max(*of_role);
        }
        let [both, prefill, decode] = longest;
        both.max(prefill.min(decode))
    }

    /// The same, all of whose groups hand on so many bytes of a token.
    #[must_use]
    pub fn handing_on(mut self, kv_bytes_per_token: f64) -> Self {
        self.groups.iter_mut().for_each(|group| group.moves.kv_bytes_per_token = kv_bytes_per_token);
        self
    }

    /// Whether prompts are computed on some replicas and decoded on others.
    pub fn is_split(&self) -> bool {
        self.groups.iter().any(|group| group.role == Role::Prefill)
    }

    /// Whether replicas come and go.
    pub fn is_dynamic(&self) -> bool {
        let changes = |group: &Group| group.scaling.is_some() || group.failures.is_some();
        !self.outages.is_empty() || self.station_failures.iter().any(Option::is_some) || self.groups.iter().any(changes)
    }

    /// Time between decisions of a planner of the fleet: that of its first planned group; `None` where nothing is planned.
    pub fn planned_every(&self) -> Option<hw::Seconds> {
        self.groups.iter().find_map(|group| match group.scaling.as_ref()?.rule {
            Rule::Planned { interval } => Some(interval),
            _ => None,
        })
    }

    /// Serves all requests to the end; groups that wait for a planner keep the replicas that they have.
    ///
    /// # Panics
    /// When there is no replica.
    pub fn serve(&self, requests: &Requests, router: &mut dyn Router) -> Served {
        self.serve_by(requests, Rules::of(router))
    }

    /// Serves all requests to the end, with a planner for the groups that wait for one.
    ///
    /// # Panics
    /// When there is no replica.
    pub fn serve_planned(&self, requests: &Requests, router: &mut dyn Router, scaler: &mut dyn Scaler) -> Served {
        self.serve_by(requests, Rules { scaler: Some(scaler), ..Rules::of(router) })
    }

    /// Serves all requests to the end by these rules.
    ///
    /// # Panics
    /// When there is no replica.
    pub fn serve_by<'p>(&'p self, requests: &'p Requests, rules: Rules<'p>) -> Served {
        self.run(requests, rules).play()
    }

    fn run<'p>(&'p self, requests: &'p Requests, rules: Rules<'p>) -> Run<'p, 'p> {
        let of_group = |(index, group): (usize, &'_ Group)| {
            let index = u32::try_from(index).expect("few groups");
            std::iter::repeat_n(index, group.n_replicas as usize)
        };
        let group_of: Vec<u32> = self.groups.iter().enumerate().flat_map(of_group).collect();
        let engines: Vec<&Engine> = group_of.iter().map(|group| &self.groups[*group as usize].engine).collect();
        let Rules { router, batcher, scaler } = rules;
        Run::new(requests, &engines, group_of, self, router).batched_by(batcher).planned_by(scaler)
    }
}

/// Who decides while a fleet serves.
pub struct Rules<'r> {
    /// Which replica takes a request.
    pub router: &'r mut dyn Router,
    /// What an iteration holds, on every replica; `None` leaves it to the engines.
    pub batcher: Option<&'r dyn Batcher>,
    /// How many replicas the groups have that wait for a planner; without one they keep theirs.
    pub scaler: Option<&'r mut (dyn Scaler + 'r)>,
}

impl<'r> Rules<'r> {
    /// A router, and the engines' own batching.
    pub fn of(router: &'r mut dyn Router) -> Self {
        Self { router, batcher: None, scaler: None }
    }
}

/// What changes stations while they serve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changing {
    /// Stations that are lost at known times.
    pub outages: Vec<Outage>,
    /// How each of them fails at random; empty where none does.
    pub failures: Vec<Option<Failures>>,
}

/// Serves requests with stations until the end that is asked for.
///
/// # Panics
/// When there is no station.
pub fn serve_stations(pool: &Pool, paths: &mut dyn Paths, asked: &pool::Run<'_>, changing: &Changing) -> Outcome {
    let (outages, station_failures) = (changing.outages.clone(), changing.failures.clone());
    let fleet = Fleet { outages, station_failures, ..Fleet::default() };
    let group_of = (0..u32::try_from(pool.nodes.len()).expect("fewer than 2^32 stations")).collect();
    let requests = Requests::default();
    // Paths take the place of the router.
    let mut router = (ROUTERS[0].make)(0);
    let run = Run::new(&requests, &[], group_of, &fleet, router.as_mut());
    run.over(Stations::new(pool, paths, asked)).play_stations()
}

/// Serves all requests with these replicas, one group.
///
/// # Panics
/// When there is no replica.
pub fn serve(requests: &Requests, engines: &[&Engine], router: &mut dyn Router) -> Served {
    Run::new(requests, engines, vec![0; engines.len()], &Fleet::default(), router).play()
}

#[cfg(test)]
mod tests;
