//! `objective.is = "time"` or `"dollars"`: GPU types at a price, work to be done, budgets or deadlines, and policies that choose what to rent.
//!
//! Configurations are given with their rates (`[[configurations]]`), or every GPU type is tried with the degrees of `[engine]` and its rates
//! come from the serving simulator or from a roofline. What remains for `run/time.rs` is to ask for the rates and to decide.

use std::path::Path;

use planner::deploy::inventory::Inventory;
use planner::deploy::objective::{Limit, Objective};
use planner::deploy::policies::serving;
use planner::deploy::rental::{Choice, Configurations, Decider, GivenPlan, Question, Rates};
use planner::deploy::simulated::Arriving;
use planner::effort;
use serve::metrics::Slo;

use super::given::PlanTable;
use super::inventory::inventory;
use super::{given, objective, replica};
use crate::effort::is_within_reason;
use crate::{Head, Overrides, expect, model};
use input::diagnostic::{Code, Source};
use input::reader::{Reader, Section};
use input::run_list::RunList;

const SECTIONS: [&str; 7] = ["inventory", "objective", "requests", "engine", "play", "policies", "expect"];
/// One row of the result.
#[derive(Clone, Debug)]
pub struct RentalChoice {
    /// Name in results; with several limits `policy@limit`.
    pub name: String,
    /// Who decides within which limit.
    pub choice: Choice,
}

/// A checked scenario of given work.
#[derive(Clone, Debug)]
pub struct Rental {
    /// Whose it is.
    pub head: Head,
    /// What is to be best: time or dollars.
    pub objective: Objective,
    /// What every policy is asked.
    pub asked: Question,
    /// Rows, in order.
    pub choices: Vec<RentalChoice>,
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(
    reader: &mut Reader<'_>,
    (objective, limits): (Objective, &[Limit]),
    source: &Source,
    folder: &Path,
    overrides: &Overrides,
) -> Option<Rental> {
    let (mut models, mut demands) = (Vec::new(), Vec::new());
    let (mut given, mut plans) = (Vec::new(), Vec::new());
    let mut top = reader.top(&SECTIONS);
    let head = Head::of(&mut top, source, overrides);
    top.each_table("models", &mut |section| models.extend(model::in_its_formats(section, folder)));
    top.each_table("configurations", &mut |section| given.push(given::configuration(section)));
    top.each_table("plans", &mut |section| plans.extend(given::plan(section)));
    top.finish();
    let stock = inventory(reader.section("inventory"), objective);
    let mut engine = reader.section("engine");
    if engine.is_given() && !given.is_empty() {
        let (at, what) = (engine.at(), "`[engine]` changes nothing beside `[[configurations]]`");
        engine.warn(Code::NoEffect, at, what, "their rates are known; leave the section out");
    }
    let replica = replica::replica(engine, head.seed);
    let mut requests = reader.section("requests");
    requests.each_table("types", &mut |section| demands.push(given::demand(section)));
    if given.is_empty() && replica.rates == Rates::Simulated {
        let n: f64 = demands.iter().map(|demand| demand.requests).sum();
        let what = format!("{n} requests that are served one by one");
        let help = "lower `requests` of the types, or take `rates = \"roofline\"` in `[engine]`";
        let at = requests.at();
        is_within_reason(&mut requests, effort::served(hw::whole(n), 0), (at, &what, help));
    }
    requests.finish();
    let play = play(reader.section("play"), head.seed);
    let (choices, baseline, gap) = policies(reader.section("policies"), &plans, (objective, limits));
    let expectations = expect::read(reader.section("expect"));
    let before = reader.n_errors();
    let offers = &stock.inventory.offers;
    if demands.is_empty() {
        reader.refuse(Code::NothingToRent, None, "there is no work", "write one `[[requests.types]]` per request type");
    }
    let work = given::demands(reader, demands, &models, !given.is_empty());
    let (configurations, unheld) = if given.is_empty() {
        let (all, unheld) = replica::enumerated(reader, &replica, &stock, &models, &work.demands);
        (Configurations::Enumerated(all), unheld)
    } else {
        (Configurations::Given(given::configurations(reader, given, offers, &work)), Vec::new())
    };
    let plans = planned(reader, plans, &configurations, work.demands.len());
    let rates = matches!(configurations, Configurations::Enumerated(_)).then_some(replica.rates);
    unplayed(reader, play.as_ref(), &stock.inventory, rates);
    (reader.n_errors() == before).then_some(())?;
    let given::Work { demands, lengths, models: model_names } = work;
    let inventory = stock.inventory;
    let asked = Question {
        inventory,
        play,
        models,
        model_names,
        demands,
        lengths,
        configurations,
        unheld,
        replica,
        plans,
        gap,
    };
    Some(Rental { head: Head { baseline, expectations, ..head }, objective, asked: asked.in_order(), choices })
}

/// Plans that somebody has of configurations that are given.
fn planned(
    reader: &mut Reader<'_>,
    plans: Vec<PlanTable>,
    configurations: &Configurations,
    n_demands: usize,
) -> Vec<GivenPlan> {
    if let Configurations::Given(all) = configurations {
        return given::plans(reader, plans, all, n_demands);
    }
    if !plans.is_empty() {
        let what = "`[[plans]]` name configurations, and the scenario gives none";
        reader.refuse(Code::WrongPlan, None, what, "write `[[configurations]]` with their rates");
    }
    Vec::new()
}

/// `[play]`: requests that come one by one, and what clients allow; `None` without the section.
fn play(mut section: Section<'_>, seed: u64) -> Option<Arriving> {
    if !section.is_given() {
        return None;
    }
    let per_s = section.needed("rate_per_s", 1e-6..=1e6, "requests of all types that arrive per second");
    let mut limit = |key| section.some_number(key, 1e-6..=1e6).map(hw::Seconds::new);
    let slo = Slo { ttft: limit("ttft_s"), tpot: limit("tpot_s"), e2e: limit("e2e_s") };
    section.finish();
    Some(Arriving { per_s, slo, seed })
}

/// Finds what would be ignored: losses that nobody plays, and plays of given rates, which no engine stands behind.
fn unplayed(reader: &mut Reader<'_>, play: Option<&Arriving>, inventory: &Inventory, rates: Option<Rates>) {
    let mut find = |what: &str, help: &str| {
        reader.refuse(Code::MissingKey, None, what.to_owned(), help.to_owned());
    };
    if play.is_none() && inventory.offers.iter().any(|offer| offer.losses.is_some()) {
        find(
            "`inventory.gpus.mtbf_s` is given, and there is no `[play]`",
            "replicas are lost while a plan is played: write `[play]` with `rate_per_s`",
        );
    }
    if play.is_some() && rates != Some(Rates::Simulated) {
        find(
            "`[play]` is given, and rates are not simulated",
            "an engine serves what is played: `rates = \"simulated\"` in `[engine]`, and no `[[configurations]]`",
        );
    }
}

/// Who decides; within one limit alone where the name of a row was given.
type Named = (Decider, Option<Limit>);

/// `[policies]`: rows for every policy and limit, or single rows by their names; the baseline, the gap.
fn policies(
    mut section: Section<'_>,
    plans: &[PlanTable],
    (objective, limits): (Objective, &[Limit]),
) -> (Vec<RentalChoice>, String, f64) {
    let plain = serving(objective, |policy| Some((Decider::Policy(policy.rents.as_ref()?), None)));
    let given = plans.iter().enumerate();
    let given = given.map(|(index, plan)| (plan.name().to_owned(), (Decider::Given(index), None)));
    let given: Vec<(String, Named)> = given.collect();
    let mut single = Vec::new();
    for &limit in limits.iter().filter(|_| limits.len() > 1) {
        let given = given.iter().map(|(name, named)| (name.as_str(), named));
        let all = plain.iter().map(|(name, named)| (*name, named)).chain(given);
        single.extend(all.map(|(name, (decider, _))| (row_name(name, limit), (decider.clone(), Some(limit)))));
    }
    let names = single.iter().map(|(name, named): &(String, Named)| (name.as_str(), named.clone()));
    let plain = plain.into_iter().chain(names).collect();
    let RunList { choices, baseline } = objective::run_list(&mut section, objective, plain, given);
    let gap = section.number("gap_ratio", 1e-6, 0.0..=0.5);
    section.finish();
    // Every row is held against the baseline within its own limit.
    let of_row = choices.iter().find(|(name, (_, only))| *name == baseline && only.is_some());
    let policy = of_row.and_then(|(name, _)| name.rsplit_once('@')).map(|(policy, _)| policy.to_owned());
    (rows(&choices, limits), policy.unwrap_or(baseline), gap)
}

/// Name of a row where there are several limits.
fn row_name(name: &str, limit: Limit) -> String {
    format!("{name}@{}", limit.value())
}

/// A row for everybody who decides and every limit, each once.
fn rows(choices: &[(String, Named)], limits: &[Limit]) -> Vec<RentalChoice> {
    let mut rows: Vec<RentalChoice> = Vec::new();
    for &limit in limits {
        for (name, (decider, only)) in choices.iter().filter(|(_, (_, only))| only.is_none_or(|only| only == limit)) {
            let is_whole = only.is_some() || limits.len() == 1;
            let name = if is_whole { name.clone() } else { row_name(name, limit) };
            if rows.iter().all(|row| row.name != name) {
                let stricter = stricter(limits, limit);
                rows.push(RentalChoice { name, choice: Choice { decider: decider.clone(), limit, stricter } });
            }
        }
    }
    rows
}

/// Budgets or deadlines below one, ascending.
fn stricter(limits: &[Limit], limit: Limit) -> Vec<f64> {
    // Limits of a scenario are all budgets, or none is.
    let mut below: Vec<f64> = limits.iter().map(|limit| limit.value()).filter(|value| *value < limit.value()).collect();
    below.sort_by(f64::total_cmp);
    below
}
