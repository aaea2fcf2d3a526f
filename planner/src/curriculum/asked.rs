//! What every way of a scenario is asked, what it costs, and how it is judged: answering priced by the simulator of serving, training played before
//! (`trained`), then recipes compared.
//!
//! Units: seconds, facts, dollars. Times carry the cost model's interval, classes binomial noise.

use std::collections::BTreeMap;

use curriculum::generation::{self, Engine, Prompts, batch};
use curriculum::{Class, Counts, Effect, TrainingSet, Transition, retested};
use engine::cost::Source;
use engine::play::Case;
use engine::verdict::Refused;
use engine::{CostModel, Model};
use hw::{Bytes, Cluster, Seconds};
use serve::capacity;
use serve::step_cost::ReplicaConfig;

use super::policies::Way;
use super::trained::{PEAK, Trainings};
use super::{Best, Choice, Costs, Plan, Question, Stage, best};
use crate::proof::{Aim, Bound, Decision, Status};

/// Tokens of a block of keys and values.
const BLOCK_TOKENS: u32 = 16;
const HOUR_S: f64 = 3600.0;

/// The engine that answers.
#[derive(Clone, Copy, Debug)]
pub struct Answering {
    /// GPUs that share a replica.
    pub tensor: u32,
    /// Sequences of a batch.
    pub sequences_max: u32,
    /// Tokens of an iteration.
    pub tokens_max: u32,
    /// Share of a GPU's memory that it may use.
    pub memory_ratio: f64,
    /// Host time per iteration and per sequence of it, seconds: free parameters.
    pub host_s: [f64; 2],
}

/// What every way is asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Architecture.
    pub model: Model,
    /// Machine.
    pub cluster: Cluster,
    /// Memory that is not the job's.
    pub reserved: Bytes,
    /// Facts by class.
    pub facts: Counts,
    /// The engine that answers.
    pub engine: Answering,
    /// Epochs after the best one before training stops.
    pub patience_epochs: u32,
    /// What a retest without training does.
    pub retest: Transition,
    /// Stages, calibrated where the scenario asks for it.
    pub stages: Vec<Stage>,
    /// Effect of a stage that trains on all classes.
    pub everything: Option<Effect>,
    /// What a planner may choose from, its time without a limit.
    pub search: Choice,
    /// Price, where dollars are asked for.
    pub usd_per_gpu_hour: Option<f64>,
}

/// Costs at one end of the cost model's interval or as expected.
struct Priced {
    costs: Costs,
    source: Source,
    /// The engine's batch and what limits it.
    words: String,
}

/// A way that was judged: its plan and figures by their keys.
pub struct Judged {
    /// The plan and what is known of it.
    pub decision: Decision<Plan>,
    /// What dominates, in words.
    pub why: String,
    /// Figures.
    pub metrics: BTreeMap<String, f64>,
    /// Low and high ends of some.
    pub interval: BTreeMap<String, [f64; 2]>,
    /// Weakest source of its costs.
    pub source: Source,
}

impl Asked {
    /// What a way asks, at some costs; `stages` are those of `stages_of`.
    pub fn question<'s>(&self, way: &Way, stages: &'s [Stage], costs: Costs) -> Question<'s> {
        let everything = self.everything.map(|effect| if way.is_noise { Effect::none(self.retest) } else { effect });
        Question {
            facts: self.facts,
            retest: self.retest,
            stages,
            everything,
            held_out_ratio: way.held_out_ratio,
            patience_epochs: self.patience_epochs,
            costs,
        }
    }

    /// Stages as a way plays them.
    pub fn stages_of(&self, way: &Way) -> Vec<Stage> {
        let noise = |stage: &Stage| Stage { effect: Effect::none(self.retest), ..*stage };
        if way.is_noise { self.stages.iter().map(noise).collect() } else { self.stages.clone() }
    }

    /// Prices a way of such training and judges it.
    ///
    /// # Errors
    /// A sentence where answering does not fit the machine.
    pub fn judged(&self, way: &Way, trained: &Trainings, cost: &dyn CostModel) -> Result<Judged, Refused> {
        let expected = self.priced(way, trained, cost, Case::Expected)?;
        let ends = [self.priced(way, trained, cost, Case::Low)?, self.priced(way, trained, cost, Case::High)?];
        let stages = self.stages_of(way);
        let question = self.question(way, &stages, expected.costs);
        let decision = self.decide(way, &question);
        let plan = &decision.plan;
        let mut metrics = self.metrics(&way.prompts, plan, &question);
        let n_stages = plan.recipe.n_stages;
        let outside = trained.outside_hull_ratio(n_stages) * ratio(plan.training_s, plan.total_s());
        metrics.insert("outside_hull_ratio".to_owned(), outside);
        if plan.training_s > 0.0 {
            metrics.insert(PEAK.to_owned(), trained.peak_bytes(n_stages));
        }
        let ends = ends.map(|end| Question { costs: end.costs, ..question.clone() }.plan(plan.recipe));
        let interval = interval(plan, &ends);
        let why = format!("{}; {}; {}", plan.recipe.words(), dominant(plan), decision.limit);
        let words = std::iter::once(expected.words).chain(trained.words(n_stages)).collect();
        let decision = said(decision, &question, words);
        Ok(Judged { decision, why, metrics, interval, source: expected.source })
    }

    fn priced(&self, way: &Way, trained: &Trainings, cost: &dyn CostModel, case: Case) -> Result<Priced, Refused> {
        let engine = &self.engine;
        let n_replicas = self.cluster.n_gpus() / engine.tensor;
        let deployment = ReplicaConfig {
            host_per_step: Seconds::new(engine.host_s[0]),
            host_per_sequence: Seconds::new(engine.host_s[1]),
            ..ReplicaConfig::new(&self.model, &self.cluster, engine.tensor)
        };
        let limits = self.limits(&deployment)?;
        let answering = Engine { deployment: &deployment, limits, n_replicas };
        let table = answering.table(&way.prompts, cost, case);
        let n_facts: f64 = self.facts.iter().sum();
        let classified = answering.pass(&way.prompts, n_facts, &table)?;
        let n_held_out = n_facts * way.held_out_ratio;
        let evaluated = answering.pass(&way.prompts.greedy(), n_held_out, &table)?;
        let costs = Costs {
            classification_s: classified.seconds,
            evaluation_s: if n_held_out > 0.0 { evaluated.seconds / n_held_out } else { 0.0 },
            training_s: trained.examples_s(case),
        };
        let full = batch(&way.prompts, &limits).expect("the pass found a batch");
        let words =
            format!("{} answers at once on each of {n_replicas} replicas, limited by {}", full.n_answers, full.binding);
        Ok(Priced { costs, source: classified.source.max(trained.source()), words })
    }

    fn limits(&self, deployment: &ReplicaConfig<'_>) -> Result<generation::Limits, Refused> {
        let room = capacity::of(deployment, self.engine.memory_ratio, self.reserved)?;
        Ok(generation::Limits {
            sequences_max: self.engine.sequences_max,
            tokens_max: self.engine.tokens_max,
            kv_tokens: u64::from(room.blocks(BLOCK_TOKENS)) * u64::from(BLOCK_TOKENS),
        })
    }

    /// A plan with what holds it back and what else is possible. The bound is within the budget for the planned one, without one for others.
    fn decide(&self, way: &Way, question: &Question<'_>) -> Decision<Plan> {
        let Some(recipe) = way.recipe() else {
            let found = best(question, &self.search);
            let notes = searched(&found);
            return found.best.said(notes, BTreeMap::new());
        };
        let mut replay_ratios = self.search.replay_ratios.clone();
        replay_ratios.push(way.replay_ratio);
        let stages_max = question.stages.len();
        let found = best(question, &Choice { replay_ratios, stages_max, budget_s: f64::INFINITY });
        let plan = question.plan(recipe);
        let mut notes = Vec::new();
        if plan.total_s() > self.search.budget_s {
            notes.push(format!("takes {} of a budget of {}", hours(plan.total_s()), hours(self.search.budget_s)));
        }
        let mastered = plan.mastered();
        let bound = found.unlimited.mastered().max(mastered);
        let limit = if bound > mastered {
            format!("limited by the policy: {} masters most", found.unlimited.recipe.words())
        } else {
            "no other recipe masters more".to_owned()
        };
        let decision = Decision::new(plan, Aim::Facts, mastered).bounded(Some(Bound::plain(bound)), Status::Heuristic);
        decision.limited(limit).said(notes, BTreeMap::new())
    }

    fn metrics(&self, prompts: &Prompts, plan: &Plan, question: &Question<'_>) -> BTreeMap<String, f64> {
        let (facts, total_s) = (&plan.course.facts, plan.total_s());
        let (all, known) = (question.facts.iter().sum::<f64>(), question.facts[Class::HighlyKnown.index()]);
        let generations = f64::from(prompts.answers_per_question());
        let mut found = BTreeMap::new();
        let mut put = |key: &str, value: f64| found.insert(key.to_owned(), value);
        put("mastered_facts", plan.mastered());
        put("mastered_gain_facts", plan.gain());
        if known > 0.0 {
            put("mastered_growth_ratio", plan.mastered() / known - 1.0);
        }
        for class in &Class::ALL[1..] {
            put(&format!("{}_facts", class.key()), facts[class.index()]);
        }
        put("facts", facts.iter().sum());
        put("total_s", total_s);
        if self.search.budget_s.is_finite() {
            put("budget_ratio", total_s / self.search.budget_s);
        }
        put("classification_s", plan.classification_s);
        put("training_s", plan.training_s);
        put("evaluation_s", plan.evaluation_s);
        put("classification_ratio", ratio(plan.classification_s, total_s));
        put("n_classifications", f64::from(plan.n_classifications));
        put("n_stages", hw::real(plan.recipe.n_stages as u64));
        put("held_out_ratio", question.held_out_ratio);
        put("answers_per_fact", generations);
        put("answer_s", question.costs.classification_s / (all * generations));
        put("example_epoch_s", question.costs.example_s(0));
        if let Some(usd) = self.usd_per_gpu_hour {
            put("cost_usd", usd * total_s / HOUR_S * f64::from(self.cluster.n_gpus()));
        }
        found
    }
}

/// What the search saw.
fn searched(found: &Best) -> Vec<String> {
    let mut notes = vec![format!(
        "best of {} recipes within the budget, {} take longer; all were tried, so the bound is the answer",
        found.n_within, found.n_beyond
    )];
    if let Some(other) = found.best.runner_up().map(|other| &other.plan) {
        notes.push(format!(
            "runner-up, {:.1} facts fewer in {:.2} h: {}",
            found.best.plan.mastered() - other.mastered(),
            other.total_s() / HOUR_S,
            other.recipe.words()
        ));
    }
    notes
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Where the time goes, in words.
fn dominant(plan: &Plan) -> String {
    let parts = [
        ("classification", plan.classification_s),
        ("training", plan.training_s),
        ("evaluation for early stopping", plan.evaluation_s),
    ];
    let (name, seconds) = parts.into_iter().fold(parts[0], |most, next| if next.1 > most.1 { next } else { most });
    if plan.total_s() == 0.0 {
        return "takes no time".to_owned();
    }
    format!("{name} takes {:.0} % of {:.2} h", ratio(seconds, plan.total_s()) * 100.0, plan.total_s() / HOUR_S)
}

/// Times by the cost model's interval, classes by binomial noise.
fn interval(plan: &Plan, [low, high]: &[Plan; 2]) -> BTreeMap<String, [f64; 2]> {
    let mut found: BTreeMap<String, [f64; 2]> = [
        ("total_s".to_owned(), [low.total_s(), high.total_s()]),
        ("classification_s".to_owned(), [low.classification_s, high.classification_s]),
        ("training_s".to_owned(), [low.training_s, high.training_s]),
        ("evaluation_s".to_owned(), [low.evaluation_s, high.evaluation_s]),
        ("mastered_facts".to_owned(), plan.course.interval(Class::HighlyKnown)),
    ]
    .into();
    for class in &Class::ALL[1..] {
        found.insert(format!("{}_facts", class.key()), plan.course.interval(*class));
    }
    found
}

/// The decision with what every stage does, and how it is classified, stopped and trained.
fn said(decision: Decision<Plan>, question: &Question<'_>, words: Vec<String>) -> Decision<Plan> {
    let plan = &decision.plan;
    let mut figures = stages(plan, question);
    if let TrainingSet::Kept { replay_ratio, .. } = plan.recipe.later {
        figures.insert("replay_ratio".to_owned(), replay_ratio);
    }
    let passes = format!("{} classification passes over all facts", plan.n_classifications);
    let stopping = match question.held_out_ratio {
        0.0 => "no facts are held out: every stage runs its epochs".to_owned(),
        ratio => format!(
            "{:.0} % of facts are held out to stop training, evaluated after every epoch, {} epochs of patience",
            ratio * 100.0,
            question.patience_epochs
        ),
    };
    let notes = decision.notes.iter().cloned().chain([passes, stopping]).chain(words).collect();
    decision.said(notes, figures)
}

/// Seconds in words: as hours, and short ones as seconds, so that none is `0.00 h`.
pub(super) fn hours(seconds: f64) -> String {
    let hours = seconds / HOUR_S;
    if hours < 0.1 { format!("{seconds:.1} s") } else { format!("{hours:.2} h") }
}

/// What every stage trains on and leaves behind.
fn stages(plan: &Plan, question: &Question<'_>) -> BTreeMap<String, f64> {
    let mut figures = BTreeMap::new();
    let mut before = question.facts;
    for (index, outcome) in plan.course.stages.iter().enumerate() {
        let mut put = |key: String, value: f64| figures.insert(format!("stage_{}_{key}", index + 1), value);
        for class in Class::ALL {
            put(format!("{}_examples", class.key()), outcome.examples[class.index()]);
            put(format!("{}_facts", class.key()), outcome.facts[class.index()]);
        }
        put("epochs".to_owned(), f64::from(question.epochs(index)));
        put("upgraded_facts".to_owned(), outcome.upgraded);
        // What a retest of the same facts would have shown as upgraded.
        let mut worse = before;
        worse[Class::HighlyKnown.index()] = 0.0;
        worse[Class::MaybeKnown.index()] = 0.0;
        put("noise_upgraded_facts".to_owned(), retested(&worse, &question.retest, 1)[Class::MaybeKnown.index()]);
        before = outcome.facts;
    }
    figures
}
