//! Rules of serving as functions: a router, a batching rule and a scaler are asked in Python, and their answers are checked like all.
//!
//! A rule is asked in the thread that plays, which takes the interpreter's lock for each question. The first exception is kept, ends the questions,
//! and is raised as it is.

use std::sync::{Arc, Mutex, PoisonError};

use hw::{Seconds, Time};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use scenario::Overrides;
use scenario::serving::{CostLaw, Serving, ServingChoice};
use serve::fleet::scaler::Seen;
use serve::own::Own;
use serve::replica::offer::{Batch, Offer, Offered};
use serve::request::Requests;
use serve::router::View;
use skrull_sim::kinds::serving::run::by_own;

use crate::errors;
use crate::run::Asked;
use crate::working::work;

fn seconds(at: Time) -> f64 {
    (at - Time::ZERO).to_seconds().get()
}

/// A request that looks for a replica.
#[pyclass(frozen, get_all, module = "skrull_sim.rules")]
pub struct Request {
    /// Number, by arrival.
    index: u32,
    arrival_s: f64,
    prompt_tokens: u32,
    /// Lower first.
    priority: u32,
    /// Whether its prompt is computed, and it looks for a replica that decodes.
    is_computed: bool,
}

/// A replica that takes the request.
#[pyclass(frozen, get_all, module = "skrull_sim.rules")]
pub struct Replica {
    /// Number in the fleet: what a router answers with.
    index: u32,
    group: Py<PyString>,
    /// Requests that are there and not finished.
    requests: u32,
    /// Those of them that have blocks.
    running: u32,
    decoding: u32,
    free_blocks: u32,
    /// Tokens of the request's prompt that are cached there.
    cached_tokens: u32,
}

/// A prompt under way, or a request in the queue.
#[pyclass(frozen, get_all, module = "skrull_sim.rules")]
pub struct Prompt {
    request: u32,
    arrival_s: f64,
    /// Tokens to be there before it decodes.
    tokens: u32,
    /// Those of them that are there.
    computed: u32,
    /// Most that this iteration computes of it.
    tokens_max: u32,
    /// Output tokens that its client has.
    generated: u32,
    priority: u32,
}

/// A replica before an iteration.
#[pyclass(frozen, get_all, module = "skrull_sim.rules")]
pub struct Iteration {
    at_s: f64,
    /// Sequences that decode, and the tokens that they take together.
    decoding: u32,
    decode_tokens: u32,
    /// Tokens of an iteration.
    tokens_max: u32,
    /// Sequences that run, and that may run at once.
    running: u32,
    sequences_max: u32,
    free_blocks: u32,
    block_tokens: u32,
    /// Prompts under way, oldest first.
    prompts: Py<PyList>,
    /// The queue in the engine's order.
    waiting: Py<PyList>,
}

/// A group of replicas, as a scaler sees it.
#[pyclass(frozen, get_all, module = "skrull_sim.rules")]
pub struct Group {
    /// Replicas that serve.
    up: u32,
    /// Those that serve or are loading.
    current: u32,
    /// Mean number of requests there in the interval, with those that wait for a replica.
    requests: f64,
}

/// An interval that has ended.
#[pyclass(frozen, get_all, module = "skrull_sim.rules")]
pub struct Interval {
    at_s: f64,
    interval_s: f64,
    arrived: u64,
    /// Means: of prompts that arrived, outputs that ended, first tokens that were given, and times between tokens of those that ended.
    prompt_tokens: Option<f64>,
    output_tokens: Option<f64>,
    ttft_s: Option<f64>,
    tpot_s: Option<f64>,
    /// By name.
    groups: Py<PyDict>,
}

/// A scenario, a choice in it, and the first exception of its rules.
#[derive(Clone)]
struct Asking {
    raised: Arc<Mutex<Option<PyErr>>>,
    /// Names of the groups.
    groups: Arc<Vec<Py<PyString>>>,
}

impl Asking {
    fn new(py: Python<'_>, scenario: &Serving, choice: &ServingChoice) -> Self {
        let names = scenario.groups_of(choice).into_iter();
        let groups = names.map(|group| PyString::intern(py, &group.name).unbind()).collect();
        Self { raised: Arc::default(), groups: Arc::new(groups) }
    }

    /// What a rule says; an exception is kept, and is no answer.
    fn ask<T>(&self, question: impl FnOnce(Python<'_>) -> PyResult<T>) -> Option<T> {
        Python::attach(|py| match question(py) {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                None
            }
        })
    }

    fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn route(&self, rule: &Py<PyAny>, requests: &Requests, request: u32, view: &View<'_, '_>) -> Option<u32> {
        self.ask(|py| {
            let of = &requests.list[request as usize];
            let asked = Request {
                index: request,
                arrival_s: seconds(of.arrival),
                prompt_tokens: of.prompt,
                priority: requests.priority_of(request as usize),
                is_computed: view.from.is_some(),
            };
            let mut replicas = Vec::with_capacity(view.candidates.len());
            for &index in view.candidates {
                let of = &view.replicas[index as usize];
                replicas.push(Replica {
                    index,
                    group: self.groups[view.group_of[index as usize] as usize].clone_ref(py),
                    requests: of.outstanding(),
                    running: of.n_running(),
                    decoding: of.n_decode(),
                    free_blocks: of.pool.available(),
                    cached_tokens: of.cached_tokens(request),
                });
            }
            rule.call1(py, (asked, replicas))?.extract(py)
        })
    }

    fn compose(&self, rule: &Py<PyAny>, offer: &Offer) -> Option<Batch> {
        self.ask(|py| {
            let asked = Iteration {
                at_s: seconds(offer.at),
                decoding: offer.n_decode,
                decode_tokens: offer.decode_tokens,
                tokens_max: offer.tokens_max,
                running: offer.n_running,
                sequences_max: offer.sequences_max,
                free_blocks: offer.free_blocks,
                block_tokens: offer.block_tokens,
                prompts: prompts(py, &offer.prompts)?,
                waiting: prompts(py, &offer.waiting)?,
            };
            let batch = rule.call1(py, (asked,))?.into_bound(py);
            Ok(Batch {
                decodes: batch.getattr("decode")?.extract()?,
                chunks: batch.getattr("chunks")?.extract()?,
                reserves_whole: batch.getattr("whole")?.extract()?,
            })
        })
    }

    fn scale(&self, rule: &Py<PyAny>, seen: &Seen) -> Option<Vec<u32>> {
        self.ask(|py| {
            let groups = PyDict::new(py);
            for (name, group) in self.groups.iter().zip(&seen.groups) {
                let group = Group { up: group.up, current: group.current, requests: group.in_system };
                groups.set_item(name, Py::new(py, group)?)?;
            }
            let asked = Interval {
                at_s: seconds(seen.at),
                interval_s: seen.interval.get(),
                arrived: seen.n_arrived,
                prompt_tokens: seen.prompt,
                output_tokens: seen.output,
                ttft_s: seen.ttft.map(Seconds::get),
                tpot_s: seen.tpot.map(Seconds::get),
                groups: groups.clone().unbind(),
            };
            let answer = rule.call1(py, (asked,))?.into_bound(py).cast_into::<PyDict>()?;
            for name in answer.keys() {
                if !groups.contains(&name)? {
                    let all = groups.keys();
                    return Err(errors::wrong(format!("the scaler names group {name:?}, and the fleet has {all}")));
                }
            }
            let wish = |(name, group): (&Py<PyString>, &serve::fleet::scaler::GroupSeen)| {
                answer.get_item(name)?.map_or(Ok(group.current), |wish| wish.extract())
            };
            self.groups.iter().zip(&seen.groups).map(wish).collect()
        })
    }
}

fn prompts(py: Python<'_>, offered: &[Offered]) -> PyResult<Py<PyList>> {
    let prompt = |of: &Offered| Prompt {
        request: of.request,
        arrival_s: seconds(of.arrival),
        tokens: of.target,
        computed: of.computed,
        tokens_max: of.tokens_max,
        generated: of.generated,
        priority: of.priority,
    };
    let all: PyResult<Vec<Py<Prompt>>> = offered.iter().map(|of| Py::new(py, prompt(of))).collect();
    Ok(PyList::new(py, all?)?.unbind())
}

/// The choice whose rules are replaced: the one that is named, or the baseline.
fn choice<'s>(scenario: &'s Serving, named: Option<&str>) -> PyResult<&'s ServingChoice> {
    if matches!(scenario.law, CostLaw::PublishedRuns(_)) {
        return Err(errors::wrong(
            "the scenario takes its times from published runs, which no rule changes".to_owned(),
        ));
    }
    let name = named.unwrap_or(&scenario.head.baseline);
    let names = || scenario.plain().map(|plain| plain.name.as_str()).collect::<Vec<_>>().join("`, `");
    let wrong = || errors::wrong(format!("no policy `{name}` serves; own rules can stand in `{}`", names()));
    scenario.plain().find(|plain| plain.name == name).ok_or_else(wrong)
}

/// Functions in place of rules, and how often the scaler is asked.
#[derive(FromPyObject)]
pub struct Given {
    router: Option<Py<PyAny>>,
    batching: Option<Py<PyAny>>,
    scaler: Option<Py<PyAny>>,
    interval_s: Option<f64>,
}

/// Serves a scenario once, at the expected costs, with functions in place of some rules of a policy; its row of `result.json`.
#[pyfunction]
#[pyo3(signature = (name, text, set, seed, policy, given))]
pub fn serve_by(
    py: Python<'_>,
    name: String,
    text: Option<String>,
    set: Vec<String>,
    seed: Option<u64>,
    policy: Option<String>,
    given: Given,
) -> PyResult<String> {
    work(py, move || {
        let found = Asked { name, text, overrides: Overrides { set, seed, ..Overrides::default() } }.read()?;
        let no_serving = || errors::wrong("the scenario is not of kind `serving`, and has no such rules".to_owned());
        let scenario = found.serving().ok_or_else(no_serving)?;
        let choice = choice(scenario, policy.as_deref())?;
        let asking = Python::attach(|py| Asking::new(py, scenario, choice));
        let requests = scenario.requests_of(choice);
        let played = by_own(scenario, choice, &mut own(&asking, &requests, &given));
        if let Some(error) = asking.raised() {
            return Err(error);
        }
        let row = played.map_err(|why| errors::wrong(why.to_string()))?;
        serde_json::to_string(&row).map_err(|error| errors::wrong(error.to_string()))
    })?
}

/// Functions as rules.
fn own<'r>(asking: &'r Asking, requests: &'r Requests, given: &'r Given) -> Own<'r> {
    let mut own = Own::default();
    if let Some(rule) = &given.router {
        own = own.routed(Box::new(move |request, view| asking.route(rule, requests, request, view)));
    }
    if let Some(rule) = &given.batching {
        own = own.batched(Box::new(move |offer| asking.compose(rule, offer)));
    }
    if let Some(rule) = &given.scaler {
        let every = given.interval_s.map(Seconds::new);
        own = own.scaled(Box::new(move |seen| asking.scale(rule, seen)), every);
    }
    own
}
