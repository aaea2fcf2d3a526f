//! Scenarios of `kind = "rl"`: steps of reinforcement learning. `[rollouts]` says what is generated and how a step is made of its parts, `[train]` has the
//! sections of a training scenario without its workload, `[generate]` those of a serving scenario without its trace. So every option of both combines.

mod checks;
mod rollouts;

use std::borrow::Cow;
use std::path::Path;

use engine::verdict::Refused;
use rl::rollouts::Rollouts;
use rl::step::Rules;
use rl::{generation, split};

use crate::serving::requests::{Asked, Stream};
use crate::serving::{self, Serving, ServingChoice};
use crate::training::{self, PolicyChoice, Scenario, workload};
use crate::{Head, Overrides, expect};
use hw::Seconds;
use input::diagnostic::Source;
use input::reader::Reader;
use rollouts::{Given, Places};

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

    /// Both sides as a way has them: where nodes of one machine are shared out, each with its own.
    ///
    /// # Errors
    /// When the degrees of a side do not fit its nodes.
    pub fn sides(&self, way: &Way) -> Result<(Cow<'_, Scenario>, Cow<'_, Serving>), Refused> {
        let Some(n_nodes) = way.places.train_nodes else {
            return Ok((Cow::Borrowed(&self.training), Cow::Borrowed(&self.serving)));
        };
        let whole = &self.training.problem;
        let training = Scenario { problem: split::trainer(whole, n_nodes)?, ..self.training.clone() };
        let mut serving = self.serving.clone();
        for group in &mut serving.groups {
            group.n_replicas = split::replicas(whole, n_nodes, self.serving.engine.n_gpus(group.tensor_degree))?;
        }
        Ok((Cow::Owned(training), Cow::Owned(serving)))
    }
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Rl> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
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
    checks::check(reader, &found);
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
