//! Scenarios of `kind = "rl"`: steps of reinforcement learning. `[rollouts]` says what is generated and how a step is made of its parts, `[train]` has the
//! sections of a training scenario without its workload, `[generate]` those of a serving scenario without its trace. So every option of both combines.

mod checks;
mod rollouts;

use std::borrow::Cow;
use std::path::Path;

use engine::cost;
use engine::verdict::Refused;
use rl::cycle::CASES;
use rl::generation;
use rl::rollouts::Rollouts;
use rl::split::{self, Written};
use rl::step::{Engines, Rules};

use crate::serving::requests::{Asked, Stream};
use crate::serving::{self, Serving, ServingChoice, ServingGroup, played};
use crate::training::{self, PolicyChoice, Scenario, workload};
use crate::{Head, Overrides, expect};
use hw::{Bytes, Seconds};
use input::diagnostic::Source;
use input::reader::Reader;
use rollouts::Given;
pub use rollouts::{Nodes, Places};
use train::{fitting, memory};

const SECTIONS: [&str; 6] = ["model", "cluster", "rollouts", "train", "generate", "expect"];
/// Sections that both sides have where they say nothing else.
const SHARED: [&str; 2] = ["model", "cluster"];
/// Where answers come from, in words.
const SOURCE: &str = "answers of a step, with their prompts";

/// One way of making a step: a training policy, a way of serving, and who works where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Name in results.
    pub name: String,
    /// Position among the training policies.
    pub policy: usize,
    /// Name of the way of serving.
    pub serves: String,
    /// Who works on which GPUs, and how far weights may be behind.
    pub places: Places,
}

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct Rl {
    /// Whose it is.
    pub head: Head,
    /// What is generated in a step.
    pub rollouts: Rollouts,
    /// Tokens of every answer.
    pub answers: Vec<u32>,
    /// How a step is made of its parts; placement and `off_policy` are those of a way.
    pub rules: Rules,
    /// The trainer.
    pub training: Scenario,
    /// The engines.
    pub serving: Serving,
    /// What is compared, in order.
    pub ways: Vec<Way>,
}

impl Way {
    /// The way of serving among those of a side.
    ///
    /// # Panics
    /// Never: ways are made of those that there are.
    pub fn serving<'s>(&self, side: &'s Serving) -> &'s ServingChoice {
        side.plain().find(|choice| choice.name == self.serves).expect("a way of serving")
    }
}

impl Rl {
    /// The training policy of a way.
    pub fn policy(&self, way: &Way) -> &PolicyChoice {
        &self.training.policies[way.policy]
    }

    /// Rules of a way.
    pub const fn rules(&self, way: &Way) -> Rules {
        Rules { placement: way.places.placement, off_policy: way.places.off_policy, ..self.rules }
    }

    /// Nodes of the shared machine that may train, over all ways; `None` for all of a side's own.
    pub fn train_nodes(&self) -> Vec<Option<u32>> {
        let of = |way: &Way| match way.places.train_nodes {
            Nodes::Own => vec![None],
            Nodes::Stated(n) => vec![Some(n)],
            Nodes::Searched => (1..self.training.problem.cluster.n_nodes).map(Some).collect(),
        };
        let mut found: Vec<Option<u32>> = self.ways.iter().flat_map(of).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The same of ways that say how many: their trainers are found whatever comes of a way.
    pub fn stated_nodes(&self) -> Vec<Option<u32>> {
        let is_stated = |n: &Option<u32>| {
            self.ways.iter().any(|way| match way.places.train_nodes {
                Nodes::Own => n.is_none(),
                Nodes::Stated(stated) => *n == Some(stated),
                Nodes::Searched => false,
            })
        };
        self.train_nodes().into_iter().filter(is_stated).collect()
    }

    /// The trainer on so many nodes of the shared machine, or on all of its own.
    ///
    /// # Errors
    /// When its degrees do not fit them.
    pub fn trainer(&self, n_nodes: Option<u32>) -> Result<Cow<'_, Scenario>, Refused> {
        let Some(n_nodes) = n_nodes else { return Ok(Cow::Borrowed(&self.training)) };
        let mut problem = split::trainer(&self.training.problem, n_nodes)?;
        if self.training.finds_bucket && self.training.search.is_none() && memory::fits(&problem).is_ok() {
            problem.bucket_tokens = fitting::usual_bucket(&problem);
        }
        let search = self.training.search.as_ref().map(|space| space.of_part(&self.training.problem, &problem));
        Ok(Cow::Owned(Scenario { problem, search, ..self.training.clone() }))
    }

    /// The engines of a way where so many nodes of the shared machine train, or on all of their own.
    ///
    /// # Errors
    /// When not one replica of every group fits the nodes that are left, or the way asks for more.
    pub fn engines(&self, way: &Way, n_trains: Option<u32>) -> Result<Cow<'_, Serving>, Refused> {
        let Some(n_trains) = n_trains else { return Ok(Cow::Borrowed(&self.serving)) };
        let mut serving = self.serving.clone();
        let written = |group: &ServingGroup| Written {
            n_replicas: group.n_replicas,
            n_gpus: self.serving.engine.n_gpus(group.tensor_degree, group.ffn),
        };
        let written: Vec<Written> = serving.groups.iter().map(written).collect();
        let shared_out = split::replicas(&self.training.problem, n_trains, &written)?;
        // Equal replicas that a way divides into prefill and decode are one group.
        serving.roles.iter_mut().for_each(|role| role.n_replicas = shared_out[0]);
        for (group, n_replicas) in serving.groups.iter_mut().zip(shared_out) {
            group.n_replicas = n_replicas;
        }
        self.fits(&serving, way, n_trains)?;
        Ok(Cow::Owned(serving))
    }

    /// Refuses a way whose own numbers of replicas do not fit the nodes that are left.
    fn fits(&self, serving: &Serving, way: &Way, n_trains: u32) -> Result<(), Refused> {
        let choice = way.serving(serving);
        let (n_gpus, n_left) = (serving.n_gpus(choice), split::n_left(&self.training.problem, n_trains));
        let groups = serving.groups_of(choice);
        let empty = groups.into_iter().find(|group| serving.replicas_of(choice, group) == 0);
        let name = &choice.name;
        match empty {
            Some(group) => Err(Refused::infeasible(format!(
                "{n_trains} nodes that train leave {n_left} GPUs: `{name}` has no replica for group `{}`",
                group.name
            ))),
            None if n_gpus > n_left => Err(Refused::infeasible(format!(
                "{n_trains} nodes that train leave {n_left} GPUs, and `{name}` generates on {n_gpus}"
            ))),
            None => Ok(()),
        }
    }
}

/// Engines of a side under a way of serving, at every end of the costs, and the weakest source of their times.
pub fn engines(side: &Serving, choice: &ServingChoice) -> (Engines, cost::Source) {
    let mut source = cost::Source::Measured;
    let fleets = CASES.map(|case| {
        let (fleet, weakest) = played::fleet(side, choice, case);
        source = source.max(weakest);
        fleet
    });
    let (mut bytes_per_gpu, mut weights_per_gpu) = (Bytes::ZERO, Bytes::ZERO);
    for group in side.groups_of(choice) {
        let (deployment, limits) = (side.deployment_of(choice, group), side.limits(choice, group));
        bytes_per_gpu = bytes_per_gpu.max(serve::capacity::peak(&deployment, &limits, limits.kv_blocks));
        weights_per_gpu = weights_per_gpu.max(serve::capacity::weights(&deployment));
    }
    let (seed, block_tokens) = (side.head.seed, side.engine.limits.block_tokens);
    let ports = side.groups_of(choice).into_iter().map(|group| group.cluster.node_ports());
    let inward =
        ports.reduce(|a, b| if b.get() < a.get() { b } else { a }).unwrap_or_else(|| side.cluster.node_ports());
    let engines = Engines { fleets, router: choice.router, seed, block_tokens, bytes_per_gpu, weights_per_gpu, inward };
    (engines, source)
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Rl> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
    let reference = reader.peek_in("rollouts", "reference").map(|(_, at)| at);
    let given = rollouts::read(reader.section("rollouts"), folder, head.seed);
    let expectations = expect::read(reader.section("expect"));
    let seeded = Overrides { seed: Some(head.seed), ..Overrides::default() };
    let training = reader.inside("train", &SHARED, |inside| {
        checks::of_steps(inside);
        training::of_sequences(inside, source, folder, &seeded, Some(sequences(given.as_ref()?)))
    });
    let serving = reader.inside("generate", &SHARED, |inside| {
        checks::of_requests(inside);
        serving::of_requests(inside, source, folder, &seeded, Some(requests(given.as_ref()?)))
    });
    SHARED.into_iter().for_each(|shared| drop(reader.section(shared).rest()));
    let ((given, training), serving) = given.zip(training).zip(serving)?;
    let Given { rollouts, answers, rules, places } = given;
    let ways = ways(&training, &serving, &places);
    let baseline = ways.first().map(|way| way.name.clone()).unwrap_or_default();
    let found = Rl { head: Head { baseline, expectations, ..head }, rollouts, answers, rules, training, serving, ways };
    checks::check(reader, &found, reference);
    Some(found)
}

/// What the trainer gets: every answer with its prompt.
fn sequences(given: &Given) -> workload::Given {
    let whole = |answer: &u32| u64::from(given.rollouts.prompt) + u64::from(*answer);
    workload::Given { lengths: given.answers.iter().map(whole).collect(), source: SOURCE.to_owned() }
}

/// What the engines get: every prompt as often as it has answers, all at once.
fn requests(given: &Given) -> Asked {
    let requests = generation::requests(&given.rollouts, &given.answers, 1, Seconds::ZERO, rollouts::BLOCK_TOKENS);
    Asked { requests, streams: vec![Stream::default()], source: SOURCE.to_owned(), ..Asked::default() }
}

/// Every training policy with every way of serving and of sharing out GPUs. Names say what differs.
fn ways(training: &Scenario, serving: &Serving, places: &[Places]) -> Vec<Way> {
    let serves: Vec<&str> = serving.plain().map(|choice| choice.name.as_str()).collect();
    let mut found = Vec::new();
    for (policy, of) in training.policies.iter().enumerate() {
        for served in &serves {
            for place in places {
                let of_policy = (training.policies.len() > 1).then(|| of.name.clone());
                let of_serving = (serves.len() > 1).then(|| (*served).to_owned());
                let parts: Vec<String> = of_policy.into_iter().chain(of_serving).chain(place.words(places)).collect();
                let name = if parts.is_empty() { of.name.clone() } else { parts.join("+") };
                found.push(Way { name, policy, serves: (*served).to_owned(), places: *place });
            }
        }
    }
    found
}
