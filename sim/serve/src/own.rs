//! Rules that somebody brings along: a router, a batching rule and a planner of the fleet, each a function.
//!
//! A rule is asked where one of the tables would be, in the one loop, and its answer is checked. The first answer that is wrong is kept with the
//! reason. From then on nobody is asked, a plain rule ends the run, and its figures count for nothing. Units: replicas, requests, seconds.

use std::sync::{Mutex, PoisonError};

use hw::{Seconds, Time};

use crate::fleet::dynamics::Rule;
use crate::fleet::scaler::{Scaler, Seen};
use crate::fleet::{Fleet, Rules};
use crate::replica::batcher::Batcher;
use crate::replica::offer::{Batch, Offer, WrongBatch};
use crate::replica::{Composed, Replica, Spans};
use crate::router::{Router, View};

/// Why a rule is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum Refusal {
    /// It gave no answer.
    #[error("the {0} gave no answer")]
    Silent(&'static str),
    /// A replica that the fleet does not have.
    #[error("the router sends request {request} to replica {replica}, and the fleet has 0 to {last}")]
    NoReplica { request: u32, replica: u32, last: u32 },
    /// A replica that takes no such request now.
    #[error(
        "the router sends request {request} to replica {replica}, which takes no such request now; {candidates:?} do"
    )]
    NoCandidate { request: u32, replica: u32, candidates: Vec<u32> },
    /// A batch beyond a limit.
    #[error("the batching rule breaks a limit at {:.6} s: {why}", seconds(*.at))]
    Batch { at: Time, why: WrongBatch },
    /// A fleet on which batches of others cannot be made.
    #[error("an own batching rule cannot be used with {0}")]
    NotBatched(&'static str),
    /// Another number of groups.
    #[error("the scaler answers for {found} groups, and the fleet has {expected}")]
    Groups { found: usize, expected: usize },
    /// Replicas beyond the limits of a group.
    #[error("the scaler wants {wish} replicas of group `{group}`, which has {least} to {most}")]
    Replicas { group: String, wish: u32, least: u32, most: u32 },
    /// Nothing to scale.
    #[error("no group of the fleet scales: give a deployment `scaling`")]
    NothingScales,
    /// Nobody says how often.
    #[error("the scenario's own rule has no interval: say how often the scaler is asked")]
    NoInterval,
}

fn seconds(at: Time) -> f64 {
    (at - Time::ZERO).to_seconds().get()
}

/// Which replica takes a request; `None` gives up.
pub type Route<'r> = Box<dyn FnMut(u32, &View<'_, '_>) -> Option<u32> + 'r>;
/// What an iteration holds; `None` gives up.
pub type Compose<'r> = Box<dyn FnMut(&Offer) -> Option<Batch> + Send + 'r>;
/// Replicas of every group; `None` gives up.
pub type Scale<'r> = Box<dyn FnMut(&Seen) -> Option<Vec<u32>> + 'r>;

/// A router that is held to its candidates.
pub struct OwnRouter<'r> {
    rule: Route<'r>,
    refused: Option<Refusal>,
}

impl Router for OwnRouter<'_> {
    fn choose(&mut self, request: u32, view: &View<'_, '_>) -> u32 {
        if self.refused.is_none() {
            match chosen((self.rule)(request, view), request, view) {
                Ok(replica) => return replica,
                Err(why) => self.refused = Some(why),
            }
        }
        view.candidates[0]
    }

    fn looks_into_caches(&self) -> bool {
        true
    }
}

/// The answer of a router, if it is a candidate.
fn chosen(answer: Option<u32>, request: u32, view: &View<'_, '_>) -> Result<u32, Refusal> {
    let replica = answer.ok_or(Refusal::Silent("router"))?;
    if view.candidates.binary_search(&replica).is_ok() {
        return Ok(replica);
    }
    let last = u32::try_from(view.replicas.len()).expect("fewer than 2^32 replicas") - 1;
    if replica > last {
        return Err(Refusal::NoReplica { request, replica, last });
    }
    Err(Refusal::NoCandidate { request, replica, candidates: view.candidates.to_vec() })
}

/// A batching rule that is held to the limits of the engine. It is offered what is cached before decoding sequences take their blocks, so a preempted sequence
/// is computed again as a whole.
pub struct OwnBatcher<'r> {
    // Policies of the table are shared by threads; this one has a single caller.
    asked: Mutex<(Compose<'r>, Option<Refusal>)>,
}

impl OwnBatcher<'_> {
    fn refused(&mut self) -> Option<Refusal> {
        self.asked.get_mut().unwrap_or_else(PoisonError::into_inner).1.take()
    }
}

impl std::fmt::Debug for OwnBatcher<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("OwnBatcher")
    }
}

impl Batcher for OwnBatcher<'_> {
    fn name(&self) -> &'static str {
        "own"
    }

    fn about(&self) -> &'static str {
        "a rule from outside"
    }

    fn compose(&self, replica: &mut Replica<'_>, composed: &mut Composed) {
        let Some(offer) = replica.offer() else { return };
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (rule, refused) = &mut *asked;
        if refused.is_none() {
            match batch(rule(&offer), &offer) {
                Ok(batch) => return replica.grant(&batch, composed),
                Err(why) => *refused = Some(why),
            }
        }
        drop(asked);
        Plain.compose(replica, composed);
    }
}

/// The answer of a batching rule, if it breaks no limit.
fn batch(answer: Option<Batch>, offer: &Offer) -> Result<Batch, Refusal> {
    let batch = answer.ok_or(Refusal::Silent("batching rule"))?;
    offer.check(&batch).map_err(|why| Refusal::Batch { at: offer.at, why })?;
    Ok(batch)
}

/// What ends a run whose own rule is refused.
#[derive(Debug)]
struct Plain;

impl Batcher for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn about(&self) -> &'static str {
        "decodes first, prompts fill the token budget"
    }
}

/// A planner of the fleet that is held to the limits of its groups.
pub struct OwnScaler<'r> {
    rule: Scale<'r>,
    /// Time between two questions; `None` takes that of the scenario's own rule.
    every: Option<Seconds>,
    /// Names of the groups, and limits of those that scale.
    groups: Vec<(String, Option<[u32; 2]>)>,
    refused: Option<Refusal>,
}

impl OwnScaler<'_> {
    /// The answer, if every group keeps its limits.
    fn wishes(&self, answer: Option<Vec<u32>>, seen: &Seen) -> Result<Vec<u32>, Refusal> {
        let wishes = answer.ok_or(Refusal::Silent("scaler"))?;
        if wishes.len() != seen.groups.len() {
            return Err(Refusal::Groups { found: wishes.len(), expected: seen.groups.len() });
        }
        for ((&wish, now), (name, limits)) in wishes.iter().zip(&seen.groups).zip(&self.groups) {
            // A group that does not scale stays as it is.
            let [least, most] = limits.unwrap_or([now.current; 2]);
            if wish < least || wish > most {
                return Err(Refusal::Replicas { group: name.clone(), wish, least, most });
            }
        }
        Ok(wishes)
    }

    /// Groups of a fleet that scale ask this rule instead of theirs.
    fn fit(&mut self, fleet: &mut Fleet) -> Result<(), Refusal> {
        let own = fleet.groups.iter().find_map(|group| match &group.scaling.as_ref()?.rule {
            Rule::Concurrency(rule) => Some(rule.interval),
            Rule::Planned { interval } => Some(*interval),
            Rule::Timetable(_) => None,
        });
        self.groups.clear();
        for group in &mut fleet.groups {
            let mut limits = None;
            if let Some(scaling) = &mut group.scaling {
                let interval = self.every.or(own).ok_or(Refusal::NoInterval)?;
                scaling.rule = Rule::Planned { interval };
                limits = Some([0, u32::MAX].map(|wish| scaling.within(wish, group.n_replicas)));
            }
            self.groups.push((group.name.clone(), limits));
        }
        if self.groups.iter().all(|(_, limits)| limits.is_none()) { Err(Refusal::NothingScales) } else { Ok(()) }
    }
}

impl Scaler for OwnScaler<'_> {
    fn decide(&mut self, seen: &Seen) -> Vec<u32> {
        if self.refused.is_none() {
            let answer = (self.rule)(seen);
            match self.wishes(answer, seen) {
                Ok(wishes) => return wishes,
                Err(why) => self.refused = Some(why),
            }
        }
        seen.groups.iter().map(|group| group.current).collect()
    }
}

/// The rules that somebody brings along; all others stay those of the scenario.
#[derive(Default)]
pub struct Own<'r> {
    router: Option<OwnRouter<'r>>,
    batcher: Option<OwnBatcher<'r>>,
    scaler: Option<OwnScaler<'r>>,
    refused: Option<Refusal>,
}

impl<'r> Own<'r> {
    /// The same with a router.
    pub fn routed(self, rule: Route<'r>) -> Self {
        Self { router: Some(OwnRouter { rule, refused: None }), ..self }
    }

    /// The same with a batching rule.
    pub fn batched(self, rule: Compose<'r>) -> Self {
        Self { batcher: Some(OwnBatcher { asked: Mutex::new((rule, None)) }), ..self }
    }

    /// The same with a planner of the fleet, asked every so often.
    pub fn scaled(self, rule: Scale<'r>, every: Option<Seconds>) -> Self {
        Self { scaler: Some(OwnScaler { rule, every, groups: Vec::new(), refused: None }), ..self }
    }

    /// What a router is called in words, where the scenario's is `named`.
    pub const fn router_name(&self, named: &'static str) -> &'static str {
        if self.router.is_some() { "an own router" } else { named }
    }

    /// Prepares a fleet for these rules. An own batching rule is asked before every iteration, for it may count or wait.
    pub fn fit(&mut self, fleet: &mut Fleet) {
        if self.batcher.is_some() {
            fleet.groups.iter_mut().for_each(|group| group.engine.spans = Spans::Stepwise);
            let gathers = fleet.groups.iter().any(|group| group.engine.limits.gather.is_some());
            let what =
                [(fleet.lending.is_some(), "replicas that lend memory"), (gathers, "prompts that wait for others")];
            self.refused = what.into_iter().find_map(|(is, what)| is.then_some(Refusal::NotBatched(what)));
        }
        if let Some(Err(why)) = self.scaler.as_mut().map(|scaler| scaler.fit(fleet)) {
            self.refused.get_or_insert(why);
        }
    }

    /// These rules in place of a scenario's.
    pub fn over<'p>(&'p mut self, mut rules: Rules<'p>) -> Rules<'p> {
        if let Some(router) = &mut self.router {
            rules.router = router;
        }
        if let Some(batcher) = &self.batcher {
            rules.batcher = Some(batcher);
        }
        if let Some(scaler) = &mut self.scaler {
            rules.scaler = Some(scaler);
        }
        rules
    }

    /// Why a run counts for nothing, where it does.
    pub fn refused(&mut self) -> Option<Refusal> {
        let router = self.router.as_mut().and_then(|router| router.refused.take());
        let batcher = self.batcher.as_mut().and_then(OwnBatcher::refused);
        let scaler = self.scaler.as_mut().and_then(|scaler| scaler.refused.take());
        self.refused.take().or(router).or(batcher).or(scaler)
    }
}

#[cfg(test)]
mod tests;
