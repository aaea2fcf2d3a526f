//! From a checked curriculum scenario to a result: what asking and training cost, what every policy masters, the planned one in words.

use std::collections::BTreeMap;
use std::time::Instant;

use curriculum::fine_tuning::{self, FineTuning};
use curriculum::generation::{self, Engine, batch};
use curriculum::{Class, TrainingSet, retested};
use engine::CostModel;
use engine::cost::Source;
use engine::play::Case;
use hw::Seconds;
use planner::curriculum::{Best, Choice, Costs, Plan, Question, best};
use planner::{Aim, Bound, Decision, Status};
use reports::{CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};
use serve::capacity;
use serve::step_cost::ReplicaConfig;
use train::Problem;

use crate::costs::cost_model;
use crate::kinds::curriculum::read::{Curriculum, CurriculumChoice};
use crate::kinds::{self, Kind, Planned};
use crate::scenario::Head;

/// Tokens of a block of keys and values.
const BLOCK_TOKENS: u32 = 16;
const HOUR_S: f64 = 3600.0;

impl Kind for Curriculum {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        let rows = kinds::rows(&self.choices, |(name, _)| name, done, |(name, choice)| row(self, name, choice));
        result(self, rows)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, String>> {
        let (name, choice) = self.choices.iter().find(|(name, _)| name == choice)?;
        Some(Planned::of_row(&row(self, name, choice).0))
    }
}

fn result(scenario: &Curriculum, rows: Vec<(PolicyResult, Source)>) -> RunResult {
    let (results, source) = kinds::weakest(rows);
    let source = if scenario.profile.is_none() { Source::Datasheet } else { source };
    let mastered = |row: &PolicyResult| row.metrics.get("mastered_facts").copied();
    let speedup_ratio = kinds::gains(&results, &scenario.head.baseline, mastered);
    let outside = |row: &PolicyResult| row.metrics.get("outside_hull_ratio").copied().unwrap_or(0.0);
    let outside_hull_ratio = results.iter().map(outside).fold(0.0, f64::max);
    let mut columns = vec![
        ("mastered_facts", "mastered"),
        ("mastered_gain_facts", "over retests"),
        ("total_s", "time"),
        ("classification_ratio", "classifying"),
        ("n_stages", "stages"),
    ];
    if scenario.usd_per_gpu_hour.is_some() {
        columns.insert(4, ("cost_usd", "cost"));
    }
    RunResult {
        cost_model: CostModelFacts {
            profile: scenario.profile.as_ref().map_or_else(|| "roofline".to_owned(), |profile| profile.name.clone()),
            source: source.name().to_owned(),
            outside_hull_ratio,
            outside_hull: if outside_hull_ratio > 0.0 { vec!["products of training".to_owned()] } else { Vec::new() },
            free_parameters: scenario.free_parameters.clone(),
        },
        columns: kinds::columns(&columns),
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    }
}

/// Costs at one end of the cost model's interval or as expected.
struct Priced {
    costs: Costs,
    source: Source,
    /// Share of training outside the measured hull.
    outside_ratio: f64,
    /// The engine's batch and what limits it, and training's micro-batches.
    words: [String; 2],
}

fn priced(
    scenario: &Curriculum,
    choice: &CurriculumChoice,
    cost: &dyn CostModel,
    case: Case,
) -> Result<Priced, String> {
    let (engine, training) = (&scenario.engine, &scenario.training);
    let n_replicas = scenario.cluster.n_gpus() / engine.tensor;
    let deployment = ReplicaConfig {
        host_per_step: Seconds::new(engine.host_s[0]),
        host_per_sequence: Seconds::new(engine.host_s[1]),
        ..ReplicaConfig::new(&scenario.model, &scenario.cluster, engine.tensor)
    };
    let room = capacity::of(&deployment, engine.memory_ratio, scenario.reserved)?;
    let limits = generation::Limits {
        sequences_max: engine.sequences_max,
        tokens_max: engine.tokens_max,
        kv_tokens: u64::from(room.blocks(BLOCK_TOKENS)) * u64::from(BLOCK_TOKENS),
    };
    let answering = Engine { deployment: &deployment, limits, n_replicas };
    let table = answering.table(&choice.prompts, cost, case);
    let n_facts: f64 = scenario.facts.iter().sum();
    let classified = answering.pass(&choice.prompts, n_facts, &table)?;
    let n_held_out = n_facts * choice.held_out_ratio;
    let evaluated = answering.pass(&choice.prompts.greedy(), n_held_out, &table)?;
    let host = Seconds::new(training.host_s);
    let problem = Problem {
        reserved_memory: scenario.reserved,
        ..fine_tuning::replicas(&scenario.model, &scenario.cluster, engine.tensor, n_replicas, host)
    };
    let batch_examples = training.batch_examples;
    let tuning =
        FineTuning { problem, lora_rank: training.lora_rank, example_tokens: training.example_tokens, batch_examples };
    let step = tuning.step(cost, case)?;
    let costs = Costs {
        classification_s: classified.seconds,
        evaluation_s: if n_held_out > 0.0 { evaluated.seconds / n_held_out } else { 0.0 },
        training_s: step.seconds / hw::Tokens(batch_examples).as_f64(),
    };
    let full = batch(&choice.prompts, &limits).expect("the pass found a batch");
    let words = [
        format!("{} answers at once on each of {n_replicas} replicas, limited by {}", full.n_answers, full.binding),
        format!(
            "adapters of rank {} (forward and gradients of inputs, weights frozen): {} micro-batches per step, {:.1} GiB per GPU",
            training.lora_rank,
            step.n_micro_batches,
            step.memory.as_f64() / 1_073_741_824.0
        ),
    ];
    let outside_ratio = step.outside_s / step.seconds;
    Ok(Priced { costs, source: classified.source.max(tuning.source(cost)), outside_ratio, words })
}

/// A plan with what holds it back and what else is possible. The bound is within the budget for the planned one, without one for others.
fn judged(scenario: &Curriculum, choice: &CurriculumChoice, question: &Question<'_>) -> Decision<Plan> {
    let Some(recipe) = choice.recipe() else {
        let found = best(question, &scenario.search);
        let notes = notes(&found);
        return found.best.said(notes, BTreeMap::new());
    };
    let mut replay_ratios = scenario.search.replay_ratios.clone();
    replay_ratios.push(choice.replay_ratio);
    let stages_max = question.stages.len();
    let found = best(question, &Choice { replay_ratios, stages_max, budget_s: f64::INFINITY });
    let plan = question.plan(recipe);
    let mut notes = Vec::new();
    if plan.total_s() > scenario.search.budget_s {
        let (needed, budget) = (plan.total_s() / HOUR_S, scenario.search.budget_s / HOUR_S);
        notes.push(format!("takes {needed:.2} h of a budget of {budget:.2} h"));
    }
    let bound = found.unlimited.mastered().max(plan.mastered());
    let limit = if bound > plan.mastered() {
        format!("limited by the policy: {} masters most", found.unlimited.recipe.words())
    } else {
        "no other recipe masters more".to_owned()
    };
    let mastered = plan.mastered();
    let decision = Decision::new(plan, Aim::Facts, mastered).bounded(Some(Bound::plain(bound)), Status::Heuristic);
    decision.limited(limit).said(notes, BTreeMap::new())
}

/// What the search saw.
fn notes(found: &Best) -> Vec<String> {
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

fn row(scenario: &Curriculum, name: &str, choice: &CurriculumChoice) -> (PolicyResult, Source) {
    let begun = Instant::now();
    let row = PolicyResult { policy: name.to_owned(), ..PolicyResult::default() };
    let cost = cost_model(&scenario.cluster, scenario.profile.as_ref(), scenario.sustained_flops_ratio);
    let at = |case| priced(scenario, choice, cost.as_ref(), case);
    let (expected, low, high) = match (at(Case::Expected), at(Case::Low), at(Case::High)) {
        (Ok(expected), Ok(low), Ok(high)) => (expected, low, high),
        (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => {
            return (PolicyResult { status: "infeasible".to_owned(), why, ..row }, Source::Measured);
        }
    };
    let stages = scenario.stages_of(choice);
    let question = scenario.question(choice, &stages, expected.costs);
    let judged = judged(scenario, choice, &question);
    let plan = &judged.plan;
    let mut metrics = metrics(scenario, choice, plan, &question);
    metrics.insert("outside_hull_ratio".to_owned(), expected.outside_ratio * ratio(plan.training_s, plan.total_s()));
    let ends = [&low, &high].map(|end| Question { costs: end.costs, ..question }.plan(plan.recipe));
    let interval = interval(plan, &ends);
    let why = format!("{}; {}; {}", plan.recipe.words(), dominant(plan), judged.limit);
    let planner = facts(&judged, &question, expected.words);
    let measured = Measured { planner_wall_s: begun.elapsed().as_secs_f64(), simulate_wall_s: 0.0 };
    let row = PolicyResult { status: "ok".to_owned(), why, metrics, interval, planner: Some(planner), measured, ..row };
    (row, expected.source)
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

fn metrics(
    scenario: &Curriculum,
    choice: &CurriculumChoice,
    plan: &Plan,
    question: &Question<'_>,
) -> BTreeMap<String, f64> {
    let (facts, total_s) = (&plan.course.facts, plan.total_s());
    let (all, known) = (question.facts.iter().sum::<f64>(), question.facts[Class::HighlyKnown.index()]);
    let generations = f64::from(choice.prompts.answers_per_question());
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
    put("classification_s", plan.classification_s);
    put("training_s", plan.training_s);
    put("evaluation_s", plan.evaluation_s);
    put("classification_ratio", ratio(plan.classification_s, total_s));
    put("n_classifications", f64::from(plan.n_classifications));
    put("n_stages", hw::Tokens(plan.recipe.n_stages as u64).as_f64());
    put("held_out_ratio", question.held_out_ratio);
    put("answers_per_fact", generations);
    put("answer_s", question.costs.classification_s / (all * generations));
    put("example_epoch_s", question.costs.training_s);
    if let Some(usd) = scenario.usd_per_gpu_hour {
        put("cost_usd", usd * total_s / HOUR_S * f64::from(scenario.cluster.n_gpus()));
    }
    found
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

fn facts(judged: &Decision<Plan>, question: &Question<'_>, words: [String; 2]) -> PlannerFacts {
    let (plan, objective) = (&judged.plan, judged.plan.mastered());
    let mut figures = BTreeMap::new();
    if let TrainingSet::Kept { replay_ratio, .. } = plan.recipe.later {
        figures.insert("replay_ratio".to_owned(), replay_ratio);
    }
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
    let passes = format!("{} classification passes over all facts", plan.n_classifications);
    let stopping = match question.held_out_ratio {
        0.0 => "no facts are held out: every stage runs its epochs".to_owned(),
        ratio => format!(
            "{:.0} % of facts are held out to stop training, evaluated after every epoch, {} epochs of patience",
            ratio * 100.0,
            question.patience_epochs
        ),
    };
    let notes = judged.notes.iter().cloned().chain([passes, stopping]).chain(words);
    PlannerFacts {
        objective: Some(objective),
        aim: reports::Aim::Facts,
        bound: judged.bound(),
        gap_ratio: judged.gap(),
        status: judged.status.name().to_owned(),
        notes: notes.collect(),
        figures,
    }
}
