//! From a checked serving scenario to a result: tabulate, serve, measure, for every policy in parallel.
//!
//! Results are collected by index, so the number of threads changes nothing outside `measured`. Intervals come from serving the same
//! requests with every cost at its low and at its high end.

mod best;
mod capacity;
mod draws;
mod frames;
mod published;
pub mod replay;
mod scaling;
mod tune;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use engine::cost::Source;
use engine::cost::provenance::{Grounds, Provenance};
use engine::play::Case;
use engine::verdict::Refused;
use planner::deploy::dynamo::online::SlaPlanner;
use planner::deploy::dynamo::online::Step;
use planner::deploy::dynamo::planned;
use reports::capacity::Capacity;
use reports::curves::Curves;
use reports::serving::Counted;
use reports::tuned::Tuned;
use reports::views;
use reports::{Measured, PlannerFacts, PolicyResult, RunResult};
use serve;
use serve::fleet::scaler::Scaler;
use serve::fleet::{Fleet, Rules, Served};
use serve::metrics;
use serve::metrics::saturation::{Queue, RateSetBy};
use serve::metrics::unexplained::Unexplained;
use serve::own::{Own, Refusal};
use serve::request::Requests;
use serve::step_cost::average::Average;
use serve::step_cost::chunks::Sizes;

use crate::kinds::{self, Frames, Kind, Planned, Run};
use scenario::Head;
use scenario::serving::played::fleet;
use scenario::serving::{CostLaw, Serving, ServingChoice};

impl Kind for Serving {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        run(self, done)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let plain = self.plain().find(|plain| plain.name == choice);
        if let Some(Err(why)) = plain.map(ServingChoice::sound) {
            return Some(Err(why));
        }
        if let Some(planned) = plain.filter(|plain| scenario::serving::scaling::asked(self, plain).is_some()) {
            return Some(scaling::written(self, planned));
        }
        if let Some(best) = self.best.iter().find(|best| best.name == choice) {
            return Some(best::planned(self, best::found(self, best)));
        }
        // What a scenario fixes is a deployment too, where its engines stand on machines.
        let fixed = plain.filter(|plain| {
            plain.operation.kernels.chunk_sizes == Sizes::EqualTime || matches!(self.law, CostLaw::Operations)
        });
        Some(best::planned(self, (row(self, choice), Some(fixed?))))
    }

    fn plays_requests(&self) -> bool {
        matches!(self.law, CostLaw::Operations | CostLaw::Stages(_))
            && self.plain().any(|plain| self.names.contains(&plain.name))
    }

    fn served(&self, choice: &str) -> Option<Frames> {
        let plain = self.fitting().find(|plain| plain.name == choice)?;
        self.plays_requests().then(|| frames::of(self, plain))
    }

    fn strict_hull(&self) -> Option<bool> {
        self.is_hull_strict()
    }

    fn serving(&self) -> Option<&Serving> {
        Some(self)
    }

    fn capacity(&self) -> Option<Capacity> {
        capacity::capacity(self)
    }

    fn capacity_plan(&self, fleet: &str) -> Option<Result<Planned, Refused>> {
        capacity::written(self, fleet)
    }

    fn tuned(&self) -> Option<Tuned> {
        tune::tuned(self)
    }
}

/// Serves with every policy of a scenario; `done` is called as each finishes.
fn run(scenario: &Serving, done: &(dyn Fn(&str) + Sync)) -> Run {
    let rows = kinds::rows(&scenario.names, |name| name, done, |name| row(scenario, name), Row::late);
    let (mut curves, mut known, mut provenance) = (Vec::new(), Vec::new(), Provenance::default());
    for row in rows {
        curves.extend(row.curves);
        provenance.merge(&row.provenance);
        known.push((row.result, row.source));
    }
    let (mut results, source) = kinds::weakest(known);
    let is_planned = scenario::serving::scaling::first(scenario).is_some();
    if is_planned {
        reports::gains::runners_up(&mut results);
    }
    let worth = |row: &PolicyResult| {
        if let Some(usd) = row.metrics.get(views::PLANNED_FLEETS[0].0).filter(|_| is_planned) {
            return Some(1.0 / usd);
        }
        published::worth(scenario, row).or_else(|| Some(Counted::of(row)?.1))
    };
    let speedup_ratio = reports::gains::of_worth(&results, &scenario.head.baseline, worth);
    let profile = published::profile(scenario).unwrap_or_else(|| scenario.profiles());
    let result = RunResult {
        cost_model: kinds::grounded(&profile, &Grounds::of(source, provenance), &scenario.free_parameters),
        columns: if is_planned { views::columns(&views::PLANNED_FLEETS) } else { published::columns(scenario) },
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    };
    Run { result, curves, ..Run::default() }
}

/// What came of a choice.
struct Row {
    result: PolicyResult,
    /// Weakest source of its times.
    source: Source,
    /// What is drawn of its requests, where they were played.
    curves: Option<Curves>,
    /// What share of the time of an average iteration comes from where.
    provenance: Provenance,
}

impl Row {
    /// Of a choice that was not served.
    fn late(result: PolicyResult) -> Self {
        Self { result, source: Source::Measured, curves: None, provenance: Provenance::default() }
    }
}

/// The row of what is compared under a name.
fn row(scenario: &Serving, name: &str) -> Row {
    if let Some(best) = scenario.best.iter().find(|best| best.name == name) {
        return best::row(scenario, best);
    }
    let choice = scenario.plain().find(|choice| choice.name == name).expect("every name has a choice");
    if let Err(why) = choice.sound() {
        return Row::late(kinds::refused(name, why));
    }
    match &scenario.law {
        CostLaw::PublishedRuns(learned) => published::row(scenario, choice, learned),
        CostLaw::Operations | CostLaw::Stages(_) => policy(scenario, choice),
    }
}

/// What a choice gives at one end of the costs.
struct Figures {
    values: BTreeMap<String, f64>,
    source: Source,
    planner: Option<PlannerFacts>,
    /// What served, and what limits it.
    why: String,
    /// What a planner decided while it served.
    steps: Vec<Step>,
    /// What no cost explains of the figures; `None` where times are given.
    unexplained: Option<Unexplained>,
    /// What is drawn of the requests, with the expected costs.
    curves: Option<Curves>,
    /// What an iteration holds on average, where one was played.
    average: Option<Average>,
}

/// What a choice takes with the moments at which it came, what became of it with a fleet, and what a planner of the fleet decided on the way.
type Outcome<'s, 'f> = (Cow<'s, Requests>, Served, Option<SlaPlanner<'f>>);

/// Serves what a choice takes with its fleet, by the choice's rules where nobody brings others along.
fn serve_choice<'s, 'f>(
    scenario: &'s Serving,
    choice: &ServingChoice,
    fleet: &'f Fleet,
    own: &mut Own<'_>,
) -> Outcome<'s, 'f> {
    let requests = scenario.requests_of(choice);
    let mut router = (choice.router.make)(scenario.head.seed);
    let planned = scenario::serving::scaling::asked(scenario, choice);
    let mut planner = planned.and_then(|planned| planned::planner(&planned, &scenario.slo, fleet));
    let scaler = planner.as_mut().map(|planner| planner as &mut dyn Scaler);
    let rules = own.over(Rules { scaler, ..Rules::of(router.as_mut()) });
    if let Some(users) = scenario.users_of(choice) {
        let (requests, served) = fleet.serve_held(&requests, rules, users);
        return (Cow::Owned(requests), served, planner);
    }
    let served = fleet.serve_by(&requests, rules);
    (requests, served, planner)
}

/// Serves with a choice and measures.
fn figures(scenario: &Serving, choice: &ServingChoice, case: Case) -> Figures {
    figures_by(scenario, choice, case, &mut Own::default())
}

/// The row of a choice with rules of somebody's own in place of some of its own, at the expected costs.
///
/// # Errors
/// Why the rules are not believed.
pub fn by_own(scenario: &Serving, choice: &ServingChoice, own: &mut Own<'_>) -> Result<PolicyResult, Refusal> {
    if let Err(why) = choice.sound() {
        return Ok(kinds::refused(&choice.name, why));
    }
    let Figures { values, why, planner, .. } = figures_by(scenario, choice, Case::Expected, own);
    if let Some(why) = own.refused() {
        return Err(why);
    }
    let late = metrics::words::past_clock(&values).map(Refused::infeasible);
    let (policy, status) = (choice.name.clone(), reports::Ended::Ok);
    let played = PolicyResult { policy, status, why, metrics: values, planner, ..PolicyResult::default() };
    Ok(late.map_or(played, |why| kinds::refused(&choice.name, why)))
}

fn figures_by(scenario: &Serving, choice: &ServingChoice, case: Case, own: &mut Own<'_>) -> Figures {
    let (mut fleet, source) = fleet(scenario, choice, case);
    own.fit(&mut fleet);
    let is_drawn = case == Case::Expected && choice.candidate.is_none();
    fleet.keeps = metrics::rows::drawn(&scenario.requests, is_drawn.then_some(frames::POINTS));
    let (requests, served, planner) = serve_choice(scenario, choice, &fleet, own);
    let warm_up = scenario.counted_from(choice, &requests);
    let mut values = metrics::of(&requests, &served, &scenario.slo, warm_up);
    metrics::fleet::add(&mut values, &fleet, &served);
    let groups = scenario.groups_of(choice).into_iter();
    let replicas: Vec<_> =
        groups.map(|group| (scenario.deployment_of(choice, group), scenario.limits(choice, group))).collect();
    metrics::memory::add(&mut values, &replicas, &served);
    if !scenario.times_are_known() {
        metrics::energy::add(&mut values, &replicas, &fleet, (&requests, &served));
    }
    metrics::lending::add(&mut values, &fleet, &served);
    metrics::adapters::add(&mut values, &fleet, &requests, &served);
    if let Some(tokens) = scenario.long_from {
        metrics::by_length(&mut values, &requests, &served, tokens);
    }
    if scenario.streams.len() > 1 {
        let names: Vec<&str> = scenario.streams.iter().map(|stream| stream.name.as_str()).collect();
        metrics::streams::add(&mut values, &names, &requests, &served, &scenario.slo, warm_up);
    }
    let steps = planner.map(|planner| planner.steps);
    let planner = scaling::hold(scenario, choice, &fleet, steps.as_deref(), &mut values);
    let steps = steps.unwrap_or_default();
    let queue = scenario.users_of(choice).is_none().then(|| Queue::of(&requests, &served, &fleet.start)).flatten();
    let unexplained = (case == Case::Expected && !scenario.times_are_known())
        .then(|| Unexplained::of(&requests, &served, &scenario.slo, warm_up, RateSetBy::of(queue.as_ref())));
    let (router, asked) = (own.router_name(choice.router.name), (queue, 1 + scenario.draws.len()));
    let why = metrics::words::of((&fleet, &served), router, asked, (&values, &replicas));
    let curves = is_drawn.then(|| frames::curves(scenario, choice, &fleet, (&requests, &served)));
    Figures {
        values,
        source,
        planner: best::chunks(&fleet, &requests, planner),
        why,
        steps,
        unexplained,
        curves,
        average: metrics::average::of(&requests, &fleet, &served),
    }
}

fn policy(scenario: &Serving, choice: &ServingChoice) -> Row {
    let begun = Instant::now();
    let Figures { values, source, planner, why, unexplained, curves, average, .. } =
        figures(scenario, choice, Case::Expected);
    let ends = [Case::Low, Case::High].map(|case| figures(scenario, choice, case).values);
    if let Some(why) = [&values, &ends[0], &ends[1]].into_iter().find_map(metrics::words::past_clock) {
        return Row::late(kinds::refused(&choice.name, Refused::infeasible(why)));
    }
    let draws = draws::spread(scenario, choice, &values);
    let simulate_wall_s = begun.elapsed().as_secs_f64();
    let interval = metrics::intervals(&values, &ends, unexplained.as_ref());
    let result = PolicyResult {
        policy: choice.name.clone(),
        status: reports::Ended::Ok,
        why,
        metrics: values,
        interval,
        draws,
        planner,
        measured: Measured { planner_wall_s: 0.0, simulate_wall_s },
        ..PolicyResult::default()
    };
    Row { result, source, curves, provenance: provenance(scenario, choice, average) }
}

/// Where the time of an average iteration comes from, on every group.
fn provenance(scenario: &Serving, choice: &ServingChoice, average: Option<Average>) -> Provenance {
    let mut all = Provenance::default();
    let Some(average) = average.filter(|_| matches!(scenario.law, CostLaw::Operations)) else { return all };
    for group in scenario.groups_of(choice) {
        let cost = scenario.costs(group);
        all.merge(&average.provenance(&scenario.deployment_of(choice, group), cost.as_ref()));
    }
    all
}

/// Names that a serving scenario may use for policies, with what they do.
pub fn policies() -> Vec<(&'static str, &'static str)> {
    serve::batcher::BATCHERS.iter().map(|batcher| (batcher.name(), batcher.about())).collect()
}
