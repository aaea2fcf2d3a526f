//! What `skrull-sim tune` answers: the best of many settings, of which few are served (`planner::deploy::tune::search`).
//!
//! A setting is left out where it does not fit, where `serve::outlook` shows that it cannot keep the limits, and where its outlook is not better
//! than what was found.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use engine::capacity::Overload;
use engine::play::Case;
use engine::stop;
use engine::verdict::Refused;
use planner::deploy::tune::{self, Outcome, Search};
use rayon::prelude::*;
use reports::expect::{self, Holds};
use reports::tuned::{self, Change, Counts, SCHEMA, Setting, Tuned, Unknown};
use serve::fleet::held::Users;
use serve::metrics;
use serve::outlook::{self, Outlook};
use serve::replica::{Limits, Role};

use super::best::candidate;
use super::figures;
use crate::kinds;
use scenario::serving::{Best, Serving, ServingChoice, ServingGroup};

/// How much better another setting may be when the search ends.
const GAP: f64 = 0.01;
/// Metrics of a setting that are kept.
const KEPT: [&str; 10] = [
    "ttft_s.mean",
    "ttft_s.p99",
    "tpot_s.mean",
    "tpot_s.p99",
    "requests_per_s",
    "output_tokens_per_s_per_gpu",
    "slo_attainment_ratio",
    "cost_usd_per_hour",
    "cost_usd_per_mtok",
    "busy_ratio",
];

/// What is known of a setting that was served.
struct Played {
    figure: Result<f64, Refused>,
    metrics: BTreeMap<String, f64>,
}

/// The settings of a scenario and what is known of them.
struct Settings<'s> {
    scenario: &'s Serving,
    best: &'s Best,
    ways: Vec<&'s ServingChoice>,
    /// What replicas of each role and operation may do at best; none where nothing bounds them.
    replicas: Vec<(Role, &'s ServingChoice, outlook::Replica<'s>)>,
    played: BTreeMap<usize, Played>,
    /// What is sought or limited and no result has, with the metrics that there are.
    unknown: OnceLock<Unknown>,
}

/// The answer; `None` where the scenario lists no settings.
pub fn tuned(scenario: &Serving) -> Option<Tuned> {
    let best = scenario.tune.as_ref()?;
    let ways: Vec<&ServingChoice> = scenario.ways_of(best).collect();
    let replicas = replicas(scenario, &ways);
    let mut settings = Settings { scenario, best, ways, replicas, played: BTreeMap::new(), unknown: OnceLock::new() };
    let outlooks: Vec<Result<f64, Refused>> =
        (0..settings.ways.len()).into_par_iter().map(|at| settings.outlook(at)).collect();
    let search = tune::search(best.aim.counts, &outlooks, GAP, &mut |positions| settings.serve(positions));
    let mut report = report(&settings, &search);
    if let Some(unknown) = settings.unknown.get() {
        return Some(Tuned { unknown: Some(unknown.clone()), ..report });
    }
    if let Some(found) = search.found.filter(|_| !stop::is_asked()) {
        report.changes = settings.changes(found.best, &search);
        settings.ends(found.best, &mut report);
    }
    Some(report)
}

/// A replica of every role and operation, with times for the largest limits of all settings.
fn replicas<'s>(
    scenario: &'s Serving,
    ways: &[&'s ServingChoice],
) -> Vec<(Role, &'s ServingChoice, outlook::Replica<'s>)> {
    let mut operations: Vec<(&ServingGroup, &ServingChoice)> = Vec::new();
    for way in ways.iter().filter(|way| way.refused.is_none() && way.kv == scenario.kv) {
        for group in scenario.groups_of(way) {
            let is_known =
                |(of, known): &(&ServingGroup, &ServingChoice)| of.role == group.role && known.works_as(way, of.role);
            if !operations.iter().any(is_known) {
                operations.push((group, way));
            }
        }
    }
    let of_way = |way: &&'s ServingChoice| scenario.groups_of(way).into_iter().map(|group| scenario.limits(way, group));
    let limits = || ways.iter().flat_map(of_way);
    let tokens_max = limits().map(|limits| limits.tokens_max).max().unwrap_or(1);
    let sequences_max = limits().map(|limits| limits.sequences_max).max().unwrap_or(1);
    let replica = |(group, way): &(&'s ServingGroup, &'s ServingChoice)| {
        let load = scenario.load(group.role, way.limits.shares_prefixes)?;
        let (cost, limits) = (scenario.costs(group), Limits { tokens_max, sequences_max, ..way.limits });
        let table = scenario.table(way, group, &limits, cost.as_ref(), Case::Expected);
        Some((group.role, *way, outlook::Replica::new(&scenario.deployment_of(way, group), cost.as_ref(), table, load)))
    };
    operations.par_iter().filter_map(replica).collect()
}

impl Settings<'_> {
    /// What a setting may do at best; `None` where nothing bounds it.
    fn best_of(&self, at: usize) -> Option<Outlook<'_>> {
        let way = self.ways[at];
        let groups = self.scenario.is_bounded(way).then(|| self.scenario.groups_of(way))?;
        let phases: Option<Vec<Outlook<'_>>> = groups.into_iter().map(|group| self.phase(way, group)).collect();
        let outlook = phases?.into_iter().reduce(Outlook::beside)?;
        Some(match self.scenario.users_of(way) {
            Some(Users::Held { n, .. }) => outlook.held(n),
            _ => outlook,
        })
    }

    /// What the replicas of a group may do at best under a way. Users who are held have no more sequences under way than they are.
    fn phase(&self, way: &ServingChoice, group: &ServingGroup) -> Option<Outlook<'_>> {
        let is_known = |role: Role, known: &ServingChoice| role == group.role && known.works_as(way, role);
        let (_, _, replica) = self.replicas.iter().find(|(role, known, _)| is_known(*role, known))?;
        let mut limits = self.scenario.limits(way, group);
        if let Some(Users::Held { n, .. }) = self.scenario.users_of(way) {
            limits.sequences_max = limits.sequences_max.min(n);
        }
        let n_gpus = self.scenario.deployment_of(way, group).n_gpus();
        replica.outlook(self.scenario.replicas_of(way, group), n_gpus, &limits)
    }

    /// The best that is sought may be with a setting.
    fn outlook(&self, at: usize) -> Result<f64, Refused> {
        let aim = &self.best.aim;
        self.ways[at].sound()?;
        let unknown = if aim.counts.is_least() { f64::NEG_INFINITY } else { f64::INFINITY };
        let price = self.scenario.groups[0].usd_per_gpu_hour;
        let bounded = self.best_of(at).filter(|_| self.scenario.bounds(self.ways[at], &aim.metric));
        Ok(bounded.and_then(|outlook| outlook.figure(&aim.metric, price)).unwrap_or(unknown))
    }

    /// Serves settings, those that may keep the limits.
    fn serve(&mut self, positions: &[usize]) -> Vec<Outcome> {
        let answers: Vec<(Outcome, Option<Played>)> = positions
            .par_iter()
            .map(|at| stop::unless_over(|| self.judge(*at)).unwrap_or((Outcome::Outdone, None)))
            .collect();
        let mut outcomes = Vec::with_capacity(positions.len());
        for (at, (outcome, played)) in positions.iter().zip(answers) {
            self.played.extend(played.map(|played| (*at, played)));
            outcomes.push(outcome);
        }
        outcomes
    }

    fn judge(&self, at: usize) -> (Outcome, Option<Played>) {
        let late = self.late(at).map(|why| (Outcome::Refused(Refused::infeasible(why)), None));
        late.unwrap_or_else(|| self.play(at))
    }

    /// The limit that a setting cannot keep, whatever happens.
    fn late(&self, at: usize) -> Option<String> {
        let (outlook, slo, price) = (self.best_of(at)?, &self.scenario.slo, self.scenario.groups[0].usd_per_gpu_hour);
        let offered = self.scenario.requests_per_s_offered().filter(|_| self.best.limits_waits());
        if let Some(overload) = offered.and_then(|rate| Overload::of(rate, outlook.requests_per_s_most())) {
            return Some(format!("no limit of waiting holds for long: {}", overload.words()));
        }
        let mut bounded = self.best.within.iter().filter(|limit| self.scenario.bounds(self.ways[at], &limit.key));
        bounded.find_map(|limit| {
            let Holds::Between(low, high) = limit.holds else { return None };
            outlook.misses(&limit.key, [low, high], slo, price)
        })
    }

    fn play(&self, at: usize) -> (Outcome, Option<Played>) {
        let values = figures(self.scenario, self.ways[at], Case::Expected).values;
        let n_refused = values.get("n_refused").copied().unwrap_or(0.0);
        let keys = self.best.within.iter().map(|limit| &limit.key).chain([&self.best.aim.metric]);
        if let Some(metric) = keys.into_iter().find(|key| n_refused == 0.0 && !values.contains_key(*key)) {
            self.unknown.get_or_init(|| self.missing(metric, values));
            return (Outcome::Outdone, None);
        }
        let broken = metrics::words::past_clock(&values).or_else(|| expect::broken(&self.best.within, &values));
        let broken = broken.or_else(|| self.broken_when_slow(at));
        let metric = &self.best.aim.metric;
        let figure = match broken {
            _ if n_refused > 0.0 => Err(Refused::infeasible(format!("{n_refused} requests are refused"))),
            Some(why) => Err(Refused::infeasible(why)),
            None => values.get(metric).copied().ok_or_else(|| Refused::infeasible(format!("there is no `{metric}`"))),
        };
        let metrics = KEPT.iter().filter_map(|key| Some(((*key).to_owned(), *values.get(*key)?))).collect();
        (Outcome::Served(figure.clone()), Some(Played { figure, metrics }))
    }

    /// What is known of a metric that a result does not have.
    fn missing(&self, metric: &str, values: BTreeMap<String, f64>) -> Unknown {
        let why = metrics::words::absent(metric, &values, &self.scenario.slo, self.scenario.warm_up);
        Unknown { metric: metric.to_owned(), why, known: values.into_keys().collect() }
    }

    /// The limit that a setting breaks with every cost at its high end, where limits hold there too.
    fn broken_when_slow(&self, at: usize) -> Option<String> {
        if self.best.limits_at == Case::Expected {
            return None;
        }
        let slow = figures(self.scenario, self.ways[at], self.best.limits_at).values;
        expect::broken(&self.best.within, &slow).map(|why| format!("at the slow end of the costs: {why}"))
    }

    /// What the next smaller and the next larger listed value of every key would give.
    fn changes(&mut self, answer: usize, search: &Search) -> Vec<Change> {
        let settings: Vec<&[(String, String)]> = self.ways.iter().map(|way| candidate(way).words.as_slice()).collect();
        let (words, near) = (settings[answer].to_vec(), tune::neighbours(&settings, answer));
        let unserved: Vec<usize> =
            near.iter().map(|(_, at)| *at).filter(|at| search.outcomes[*at] == Outcome::Outdone).collect();
        let answers = self.serve(&unserved);
        let outcome = |at: usize| {
            let again = unserved.iter().position(|known| *known == at).map(|index| &answers[index]);
            again.unwrap_or(&search.outcomes[at])
        };
        let change = |(key, at): &(usize, usize)| {
            let why = match outcome(*at) {
                Outcome::Refused(refused) | Outcome::Served(Err(refused)) => refused.why.clone(),
                Outcome::Outdone | Outcome::Served(Ok(_)) => String::new(),
            };
            let (key, from) = words[*key].clone();
            let to = candidate(self.ways[*at]).words.iter().find(|(other, _)| *other == key);
            let to = to.map(|(_, value)| value.clone()).unwrap_or_default();
            Change { key, from, to, figure: outcome(*at).figure(), why }
        };
        near.iter().map(change).collect()
    }

    /// Adds the interval of the figure of a setting, as `run` has it, the limit that breaks at the slow end of the costs, and what users who leave say of it.
    fn ends(&self, at: usize, report: &mut Tuned) {
        let [expected, fast, slow] =
            [Case::Expected, Case::Low, Case::High].map(|case| figures(self.scenario, self.ways[at], case));
        let (ends, open) = ([fast.values, slow.values], expected.unexplained.as_ref());
        report.interval = metrics::interval(&self.best.aim.metric, &expected.values, &ends, open);
        report.broken_when_slow = expect::broken(&self.best.within, &ends[1]).unwrap_or_default();
        report.notes.extend(metrics::words::of_few_users(&expected.values));
    }
}

fn report(settings: &Settings<'_>, search: &Search) -> Tuned {
    let (scenario, best) = (settings.scenario, settings.best);
    let count = |is: &dyn Fn(usize, &Outcome) -> bool| {
        search.outcomes.iter().enumerate().filter(|(at, outcome)| is(*at, outcome)).count()
    };
    let unfit = |at: usize| settings.ways[at].refused.is_some();
    let counts = Counts {
        settings: settings.ways.len(),
        unfit: count(&|at, _| unfit(at)),
        late: count(&|at, outcome| !unfit(at) && matches!(outcome, Outcome::Refused(_))),
        outdone: count(&|_, outcome| *outcome == Outcome::Outdone),
        broke: count(&|_, outcome| matches!(outcome, Outcome::Served(Err(_)))),
        within: count(&|_, outcome| matches!(outcome, Outcome::Served(Ok(_)))),
    };
    let setting = |(at, played): (&usize, &Played)| Setting {
        values: candidate(settings.ways[*at]).words.iter().cloned().collect(),
        n_gpus: settings.scenario.n_gpus(settings.ways[*at]),
        figure: played.figure.as_ref().ok().copied(),
        broken: played.figure.as_ref().err().map_or_else(String::new, |refused| refused.why.clone()),
        metrics: played.metrics.clone(),
    };
    let served = tuned::ordered(settings.played.iter().map(setting).collect(), best.aim.counts);
    Tuned {
        schema: SCHEMA.to_owned(),
        scenario: scenario.head.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        origin: kinds::origin(&scenario.head),
        by: best.aim.metric.clone(),
        aim: best.aim.counts,
        limits: best.within.iter().map(|limit| limit.key.clone()).collect(),
        counts,
        settings: served,
        bound: search.bound.filter(|bound| bound.is_finite()),
        gap_ratio: search.gap().filter(|gap| gap.is_finite()),
        is_complete: search.is_complete,
        notes: notes(scenario, best, settings),
        ..Tuned::default()
    }
}

/// What holds for all figures.
fn notes(scenario: &Serving, best: &Best, settings: &Settings<'_>) -> Vec<String> {
    let mut notes = vec![format!("costs: {}; every figure is the expected one", scenario.profiles())];
    if best.within.is_empty() {
        notes.push("no limits are asked for: there is no `[slo]`, or `within` in `[tune]` is empty".to_owned());
    }
    if best.limits_at != Case::Expected {
        notes.push("limits hold with every cost as expected and at its slow end".to_owned());
    }
    let unfit: Vec<&Refused> = settings.ways.iter().filter_map(|way| way.refused.as_ref()).collect();
    if let Some(why) = unfit.first().filter(|_| unfit.len() == settings.ways.len()) {
        notes.push(format!("no setting fits; of the first one: {why}"));
    } else if settings.replicas.is_empty() {
        notes.push("nothing bounds these settings in closed form, so all that fit were served".to_owned());
    }
    notes.extend(scenario.one_draw());
    notes.extend(scenario.free_parameters.iter().cloned());
    notes
}
