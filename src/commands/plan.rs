//! `plan`: only decide, and write the plan.

use super::{Failure, Loaded, load_any, out_dir, print, threads, write};
use crate::cli::PlanArgs;
use crate::diagnostic::{self, Code};
use crate::jobs::Job;
use crate::pipeline::{self, Decided};
use crate::scenario::Scenario;
use hw::topology::Topology;
use planner::train::search::Found;

/// Runs the verb.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    threads(args.scenario.jobs)?;
    match load_any(&args.scenario)? {
        Loaded::Training(scenario) => training(args, &scenario),
        Loaded::Job(job) => of_job(args, job.as_ref()),
    }
}

/// The policy that was asked for, or the last one.
fn chosen<'a>(args: &PlanArgs, names: &[&'a str]) -> Result<&'a str, Failure> {
    let found = args.policy.as_deref().or(names.last().copied()).unwrap_or_default();
    names.iter().copied().find(|name| *name == found).ok_or_else(|| {
        let near = diagnostic::nearest(found, names.iter().copied())
            .map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
        let known = names.join(", ");
        Failure::input(Code::UnknownPolicy, format!("the scenario has no policy `{found}`{near}\n  = it has {known}"))
    })
}

/// Decides a scenario of another kind than training.
fn of_job(args: &PlanArgs, job: &dyn Job) -> Result<(), Failure> {
    let names = job.header().choices;
    let choice = chosen(args, &names)?;
    let Some(planned) = job.plan(choice) else {
        let name = job.header().name;
        return Err(Failure::input(
            Code::WrongKind,
            format!("there is nothing to decide in `{name}`\n  = `skrull-sim run` takes every kind"),
        ));
    };
    let planned = planned.map_err(|why| Failure::Gate(format!("error: policy `{choice}` has no plan: {why}")))?;
    let text =
        serde_json::to_string_pretty(&planned.json).map_err(|error| Failure::Machine(format!("error: {error}")))?;
    let path = out_dir(&args.scenario, job.header().name)?.join("plan.json");
    write(&path, &(text + "\n"))?;
    print(&format!("{}\n{}: by `{choice}`\n", planned.words, path.display()))
}

/// Decides a training scenario.
fn training(args: &PlanArgs, scenario: &Scenario) -> Result<(), Failure> {
    let names: Vec<&str> = scenario.policies.iter().map(|choice| choice.name.as_str()).collect();
    let name = chosen(args, &names)?;
    let choice = scenario.policies.iter().find(|choice| choice.name == name).expect("one of their names");
    let cost = pipeline::cost_model(scenario);
    let topology = Topology::of(&scenario.problem.cluster);
    let Decided { mut decision, found, .. } = pipeline::decide(scenario, choice, cost.as_ref(), &topology)
        .map_err(|why| Failure::Gate(format!("error: policy `{}` has no plan: {why}", choice.name)))?;
    decision.plan.origin = Some(scenario.origin.clone());
    let text =
        serde_json::to_string_pretty(&decision.plan).map_err(|error| Failure::Machine(format!("error: {error}")))?;
    let path = out_dir(&args.scenario, &scenario.name)?.join("plan.json");
    write(&path, &text)?;
    if let Some(found) = &found {
        print(&searched(found))?;
    }
    print(&format!(
        "{}: {} steps by `{}` ({})\n",
        path.display(),
        decision.plan.steps.len(),
        choice.name,
        decision.status.name()
    ))
}

/// The best layout, the runner-up, and how sure it is.
fn searched(found: &Found) -> String {
    let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    let mut text = format!(
        "{}\n\nstep {} (lower bound {}, gap {:.1} %): {}\n\n{}\n",
        pipeline::layout_words(found),
        ms(found.best.plan.step_s),
        ms(found.best.plan.bound_s),
        (1.0 - found.best.plan.bound_s / found.best.plan.step_s) * 100.0,
        found.best.plan.why,
        found.best.plan.candidate.to_toml(),
    );
    if let Some(other) = found.best.runner_up().map(|other| &other.plan) {
        text += &format!("runner-up: step {}: {}\n\n{}\n", ms(other.step_s), other.why, other.candidate.to_toml());
    }
    text
}
