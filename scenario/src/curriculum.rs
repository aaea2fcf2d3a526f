//! Scenarios of `kind = "curriculum"`: facts by how well a model knows them, stages of fine-tuning, and what both cost. `[train]` has the sections of a
//! training scenario: how examples are trained, whatever the stage.

mod transitions;

use std::path::Path;

use curriculum::generation::{Prompts, Sharing};
use curriculum::{Class, Counts, TrainingSet};
use engine::Model;
use engine::cost::profile::Profile;
use engine::formats::Formats;
use hw::Dtype;
use planner::curriculum::asked::{Answering, Asked};
use planner::curriculum::calibration::{calibrated, scaled};
use planner::curriculum::policies::{POLICIES, Policy, Way};
use planner::curriculum::{Choice, Costs};
use toml_span::value::{Table, ValueInner};

use crate::network::{Exchanges, Written, of_model};
use crate::training::{self, Scenario};
use crate::{Head, Overrides, cluster, cost, expect, formats, inside, model};
use input::diagnostic::{Code, Source};
use input::reader::{Reader, Section, place_of, small};
use input::run_list::{RunList, run_list};
use transitions::Transitions;

const SECTIONS: [&str; 14] = [
    "model",
    "cluster",
    "facts",
    "classification",
    "engine",
    "stages",
    "train",
    "transitions",
    "calibrate",
    "search",
    "budget",
    "policies",
    "cost",
    "expect",
];

/// Sections that training has as well where it says nothing else.
const SHARED: [&str; 3] = ["model", "cluster", "cost"];

/// Sections of a training scenario that have no place in a stage.
const NOT_OF_STAGES: [(&str, &str); 4] = [
    ("failures", "`kind = \"training\"` plays runs of days"),
    ("checkpoint", "`kind = \"training\"` plays runs of days"),
    (
        "slow_nodes",
        "`kind = \"training\"` plays runs of days; GPUs that are slow in every step are `[[train.stragglers]]`",
    ),
    inside::EXPECT,
];

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct Curriculum {
    /// Whose it is.
    pub head: Head,
    /// What every way is asked.
    pub asked: Asked,
    /// How examples are trained, each by one policy: as the scenario says where a stage says nothing else, and as stages say otherwise.
    pub trainings: Vec<Scenario>,
    /// Which of them each stage has.
    pub of_stages: Vec<usize>,
    /// Ways, in order.
    pub choices: Vec<(String, Way)>,
    /// Measured profile; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Share of the peak that matrix products hold under sustained load.
    pub sustained_flops_ratio: f64,
    /// What was fitted or assumed and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Curriculum> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
    let network = Written::of(reader);
    let transitions = transitions::transitions(reader.section("transitions"));
    let seeded = Overrides { seed: Some(head.seed), ..Overrides::default() };
    let train = |inside: &mut Reader<'_>| {
        inside::refuse(inside, ("train", "a stage"), &NOT_OF_STAGES);
        training::read(inside, source, folder, &seeded)
    };
    let Transitions { retest, stages: effects, trains, everything } = transitions;
    let (trainings, of_stages) = trainings(reader, trains, &train);
    let (model, cluster, cost) = reader.once(|reader| {
        let cluster = cluster::of_steps(reader.section("cluster"), true);
        let gpu = cluster.as_ref().map(|(cluster, _)| cluster.gpu.name.as_str());
        let cost = cost::of_engine(reader.section("cost"), folder, gpu, None);
        (model::of_answers(reader.section("model"), folder), cluster, cost)
    });
    let facts = facts(reader.section("facts"));
    let prompts = classification(reader.section("classification"));
    let checkpoint = model.as_ref().map_or(Formats::of(Dtype::Bf16), |model| model.formats);
    let (engine, formats) = engine(reader.section("engine"), checkpoint);
    let (patience_epochs, base) = stages(reader.section("stages"), prompts);
    let target = calibrate(reader.section("calibrate"));
    let search = search(reader.section("search"), effects.len());
    let gpus = cluster.as_ref().map_or(1, |(cluster, _)| cluster.n_gpus());
    let (usd_per_gpu_hour, budget_s) = budget(reader.section("budget"), gpus);
    let run = policies(reader.section("policies"), &base);
    let expectations = expect::read(reader.section("expect"));
    let trainings: Vec<Scenario> = trainings.into_iter().collect::<Option<_>>()?;
    let (model, (cluster, reserved)) = model.zip(cluster)?;
    let exchanges = Exchanges::among(&cluster, cluster.n_gpus(), of_model(&model));
    network.warn(reader, &[(&cluster, cost.profile.as_ref(), exchanges)]);
    let search = Choice { budget_s, ..search };
    let (retest, free_parameters) = (retest?, free_parameters(&engine, &trainings, cost.sustained_flops_ratio));
    let asked = Asked {
        model: Model { formats, ..model },
        cluster,
        reserved,
        facts,
        engine,
        patience_epochs,
        retest,
        stages: effects,
        everything,
        search,
        usd_per_gpu_hour,
    };
    let mut scenario = Curriculum {
        head: Head { baseline: run.baseline, expectations, ..head },
        asked,
        trainings,
        of_stages,
        choices: run.choices,
        profile: cost.profile,
        sustained_flops_ratio: cost.sustained_flops_ratio,
        free_parameters,
    };
    let before = reader.n_errors();
    cross_checks(reader, &scenario);
    if reader.n_errors() == before {
        fit(reader, &mut scenario, &base, target);
    }
    Some(scenario)
}

/// How examples are trained: by `[train]` where a stage says nothing else, then as stages say otherwise; and which of these each stage has.
fn trainings(
    reader: &mut Reader<'_>,
    overs: Vec<Option<Table<'static>>>,
    read: &dyn Fn(&mut Reader<'_>) -> Option<Scenario>,
) -> (Vec<Option<Scenario>>, Vec<usize>) {
    // Where every stage says something else, none trains by `[train]` alone.
    let is_shared = overs.is_empty() || overs.iter().any(Option::is_none);
    if !is_shared {
        reader.overlaid("train", &overs.iter().flatten().collect::<Vec<_>>());
    }
    let (mut own, mut of_stages) = (Vec::new(), vec![0; overs.len()]);
    for (of_stage, over) in of_stages.iter_mut().zip(overs) {
        if let Some(over) = over {
            *of_stage = own.len() + usize::from(is_shared);
            own.push(reader.inside_with("train", &SHARED, over, read));
        }
    }
    let shared = is_shared.then(|| reader.inside("train", &SHARED, read));
    (shared.into_iter().chain(own).collect(), of_stages)
}

fn facts(mut section: Section<'_>) -> Counts {
    let found = Class::ALL.map(|class| hw::real(section.count(class.key(), None, 0..=1_000_000_000).0));
    if section.is_given() && found == [0.0; Class::ALL.len()] {
        section.refuse_all(Code::OutOfRange, "`facts` has no fact", "one class at least is not empty");
    }
    section.finish();
    found
}

fn classification(mut section: Section<'_>) -> Prompts {
    let sharing = Sharing::WORDS[section.word("sharing", 0, &Sharing::WORDS.map(|(word, _)| word))].1;
    if sharing != Sharing::Questions {
        section.idle(&["question_types"], "`sharing = \"questions\"`");
    }
    let mut count = |key, default, most| section.small(key, default, 1..=most);
    let prompts = Prompts {
        n_prompts: count("prompts", Some(10), 1000),
        n_samples: 0,
        shots_tokens: count("shots_tokens", None, 100_000),
        question_tokens: count("question_tokens", None, 100_000),
        answer_tokens: count("answer_tokens", None, 100_000),
        n_question_types: count("question_types", Some(1), 1_000_000),
        sharing,
    };
    let n_samples = section.small("samples", Some(16), 0..=1000);
    section.finish();
    Prompts { n_samples, ..prompts }
}

/// The engine that answers, and the formats of its weights over those of the checkpoint.
fn engine(mut section: Section<'_>, checkpoint: Formats) -> (Answering, Formats) {
    let mut us = |key| section.number(key, 0.0, 0.0..=1e6) / 1e6;
    let host_s = [us("host_us_per_step"), us("host_us_per_sequence")];
    let found = Answering {
        tensor: section.small("tp", Some(1), 1..=64),
        sequences_max: section.small("max_sequences", Some(256), 1..=65_536),
        tokens_max: section.small("max_tokens", Some(8192), 1..=1_000_000),
        memory_ratio: section.number("memory_ratio", 0.9, 0.01..=1.0),
        host_s,
    };
    let formats = formats::weights(&mut section, checkpoint);
    section.finish();
    (found, formats)
}

/// Epochs of patience, and the choice that every policy starts from.
fn stages(mut section: Section<'_>, prompts: Prompts) -> (u32, Way) {
    let patience_epochs = section.small("patience_epochs", Some(1), 0..=1000);
    let base = Way {
        policy: Policy::Gradual,
        replay_ratio: section.number("replay_ratio", 1.0, 0.0..=1.0),
        held_out_ratio: section.number("held_out_ratio", 0.1, 0.0..=0.9),
        prompts,
        is_noise: false,
    };
    section.finish();
    (patience_epochs, base)
}

/// Growth of mastered facts under `gradual` that learning is fitted to.
fn calibrate(mut section: Section<'_>) -> Option<f64> {
    let is_given = section.has("mastered_growth_ratio");
    let target = section.number("mastered_growth_ratio", 0.0, -1.0..=1000.0);
    section.finish();
    is_given.then_some(target)
}

fn search(mut section: Section<'_>, n_stages: usize) -> Choice {
    let most = hw::Tokens(n_stages.max(1) as u64).0;
    let stages_max = section.count("stages", Some(most), 1..=most).0;
    let replay_ratios = ratios(&mut section);
    section.finish();
    Choice { replay_ratios, stages_max: small(stages_max) as usize, budget_s: f64::INFINITY }
}

/// `replay_ratios`: shares from 0 to 1; every tenth where nothing is said.
fn ratios(section: &mut Section<'_>) -> Vec<f64> {
    const ALLOWED: &str = "allowed is a list of 1 to 1000 numbers from 0 to 1";
    let default = (0..=10).map(|tenth| f64::from(tenth) / 10.0).collect();
    let Some((value, at)) = section.take("replay_ratios") else { return default };
    let ValueInner::Array(items) = value else {
        section.refuse(Code::WrongType, at, "`search.replay_ratios` is not a list", ALLOWED);
        return default;
    };
    let mut found = Vec::with_capacity(items.len());
    for item in &items {
        let number = item.as_float().or_else(|| item.as_integer().map(|n| n as f64));
        match number.filter(|number| (0.0..=1.0).contains(number)) {
            Some(number) => found.push(number),
            None => {
                let what = "`search.replay_ratios` holds something that is no number from 0 to 1";
                section.refuse(Code::OutOfRange, place_of(item), what, ALLOWED);
            }
        }
    }
    if items.is_empty() || items.len() > 1000 {
        let what = format!("`search.replay_ratios` has {} numbers", items.len());
        section.refuse(Code::OutOfRange, at, what, ALLOWED);
    }
    found
}

/// Price of a GPU and hour, and seconds that may be spent.
fn budget(mut section: Section<'_>, n_gpus: u32) -> (Option<f64>, f64) {
    let mut limit = |key| {
        let value = section.number(key, 0.0, 1e-9..=1e9);
        (value > 0.0).then_some(value)
    };
    let (price, hours, usd) = (limit("usd_per_gpu_hour"), limit("hours"), limit("usd"));
    if usd.is_some() && price.is_none() {
        section.missing("usd_per_gpu_hour", "dollars become hours by the price of a GPU");
    }
    section.finish();
    let by_usd = usd.zip(price).map(|(usd, price)| usd / (price * f64::from(n_gpus)));
    let hours = hours.into_iter().chain(by_usd).fold(f64::INFINITY, f64::min);
    (price, hours * 3600.0)
}

fn policies(mut section: Section<'_>, base: &Way) -> RunList<Way> {
    let mut variants = Vec::new();
    section.each_table("variant", &mut |table| variants.extend(variant(table, base)));
    let plain = POLICIES.iter().map(|(name, policy, _)| (*name, Way { policy: *policy, ..*base }));
    let run = run_list(&mut section, plain.collect(), variants);
    section.finish();
    run
}

/// `[[policies.variant]]`: a policy under a name of its own, with settings of its own.
fn variant(mut section: Section<'_>, base: &Way) -> Option<(String, Way)> {
    let name = section.name();
    let policy = POLICIES[section.word("policy", 0, &POLICIES.map(|(name, ..)| name))].1;
    let prompts = Prompts {
        n_prompts: section.small("prompts", Some(base.prompts.n_prompts), 1..=1000),
        n_samples: section.small("samples", Some(base.prompts.n_samples), 0..=1000),
        ..base.prompts
    };
    let choice = Way {
        policy,
        replay_ratio: section.number("replay_ratio", base.replay_ratio, 0.0..=1.0),
        held_out_ratio: section.number("held_out_ratio", base.held_out_ratio, 0.0..=0.9),
        prompts,
        is_noise: section.word("transitions", 0, &["stages", "retest"]) == 1,
    };
    section.finish();
    name.map(|name| (name, choice))
}

fn free_parameters(engine: &Answering, trainings: &[Scenario], sustained_flops_ratio: f64) -> Vec<String> {
    let given =
        [("engine.host_us_per_step", engine.host_s[0] * 1e6), ("engine.host_us_per_sequence", engine.host_s[1] * 1e6)];
    let words = |(key, value): (&str, f64)| format!("`{key}` = {value}: fitted or assumed, not measured");
    let mut found: Vec<String> = given.into_iter().filter(|(_, value)| *value > 0.0).map(words).collect();
    let of_answers =
        (sustained_flops_ratio < 1.0).then(|| words(("cost.sustained_flops_ratio", sustained_flops_ratio)));
    for sentence in of_answers.into_iter().chain(trainings.iter().flat_map(|training| training.free_parameters.clone()))
    {
        if !found.contains(&sentence) {
            found.push(sentence);
        }
    }
    found.push("`transitions`: what a stage does to facts is the scenario's data, nothing here predicts it".to_owned());
    found
}

/// One policy trains, the model that answers, on the machine that answers.
fn suits(reader: &mut Reader<'_>, scenario: &Curriculum, training: &Scenario) {
    if training.policies.len() > 1 {
        let what = format!("`train.policies.run` has {} policies", training.policies.len());
        let help = "examples are trained by one; which is the fastest is the same for every curriculum, and `kind = \"training\"` says it";
        reader.refuse(Code::AskedElsewhere, None, what, help);
    }
    let trained = &training.problem;
    if trained.model.name != scenario.asked.model.name {
        let what = format!("`{}` is trained, and `{}` answers", trained.model.name, scenario.asked.model.name);
        reader.refuse(Code::OtherModel, None, what, "write one `[model]` for both");
    }
    if trained.cluster != scenario.asked.cluster {
        let what = "`[train.cluster]` is another machine than `[cluster]`";
        reader.refuse(
            Code::ExclusiveKeys,
            None,
            what,
            "answers and training take turns on one machine: write one `[cluster]`",
        );
    }
}

/// Degrees fit, and every way finds the stages that it needs.
fn cross_checks(reader: &mut Reader<'_>, scenario: &Curriculum) {
    let (model, tensor, n_gpus) =
        (&scenario.asked.model, scenario.asked.engine.tensor, scenario.asked.cluster.n_gpus());
    scenario.trainings.iter().for_each(|training| suits(reader, scenario, training));
    if let Some(what) = formats::misfit(&model.formats, &scenario.asked.cluster.gpu) {
        reader.refuse(
            Code::WrongOperation,
            None,
            format!("{what}, which `engine.weights` asks for"),
            formats::NARROW_WEIGHTS,
        );
    }
    if tensor > n_gpus || !n_gpus.is_multiple_of(tensor) {
        let what = format!("`engine.tp` {tensor} does not divide the {n_gpus} GPUs of the cluster");
        reader.wrong(Code::WrongGpuCount, None, what);
    }
    if !model.n_heads.is_multiple_of(u64::from(tensor)) {
        let what = format!("`engine.tp` {tensor} does not divide the {} heads of `{}`", model.n_heads, model.name);
        reader.wrong(Code::UnevenDegree, None, what);
    }
    for (name, choice) in &scenario.choices {
        let Some(recipe) = choice.recipe() else { continue };
        if recipe.n_stages > scenario.asked.stages.len() {
            let (needed, found) = (recipe.n_stages, scenario.asked.stages.len());
            let what = format!("`{name}` runs {needed} stages, `transitions.stage` has {found}");
            reader.refuse(Code::MissingKey, None, what, "write `[[transitions.stage]]` for every stage");
        }
        if recipe.first == TrainingSet::Everything && scenario.asked.everything.is_none() {
            let what = format!("`{name}` trains on all facts, and `transitions.everything` is missing");
            let help = "facts that are not known change what training does: give its matrices under `[transitions.everything]`";
            reader.refuse(Code::MissingKey, None, what, help);
        }
    }
}

/// Fits learning to the growth that the scenario asks for.
fn fit(reader: &mut Reader<'_>, scenario: &mut Curriculum, base: &Way, target: Option<f64>) {
    let Some(target) = target else { return };
    let recipe = base.recipe().expect("gradual has a recipe");
    let what = "`calibrate.mastered_growth_ratio` cannot be met";
    if scenario.asked.stages.len() < recipe.n_stages || scenario.asked.facts[Class::HighlyKnown.index()] == 0.0 {
        let help = "a growth over two stages needs two `[[transitions.stage]]` and `facts.highly_known` above 0";
        reader.refuse(Code::UnreachableGrowth, None, what, help);
        return;
    }
    match calibrated(&scenario.asked.question(base, &scenario.asked.stages, Costs::default()), recipe, target) {
        Ok(found) => {
            scenario.free_parameters.push(format!(
                "learning of trained MaybeKnown facts × {:.4}: fitted so that `gradual` masters {:.1} % more facts, not predicted",
                found.factor,
                target * 100.0
            ));
            scenario.asked.everything = scenario.asked.everything.map(|effect| scaled(&effect, found.factor));
            scenario.asked.stages = found.stages;
        }
        Err(why) => reader.wrong(Code::UnreachableGrowth, None, format!("{what}: {why}")),
    }
}
