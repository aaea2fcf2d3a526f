//! `plan`: only decide, and write the plan.

use super::{Failure, load, out_dir, print, write};
use crate::cli::PlanArgs;
use crate::diagnostic;
use crate::pipeline::{self, Decided};
use hw::topology::Topology;
use planner::search::Found;

/// Runs the verb.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let scenario = load(&args.scenario)?;
    let choice = match &args.policy {
        None => scenario.policies.last(),
        Some(name) => scenario.policies.iter().find(|choice| choice.name == *name),
    };
    let Some(choice) = choice else {
        let names: Vec<&str> = scenario.policies.iter().map(|choice| choice.name.as_str()).collect();
        let found = args.policy.as_deref().unwrap_or_default();
        let near = diagnostic::nearest(found, names.iter().copied())
            .map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
        return Err(Failure::Input(format!(
            "error[S027]: the scenario has no policy `{found}`{near}\n  = it has {}",
            names.join(", ")
        )));
    };
    let cost = pipeline::cost_model(&scenario);
    let topology = Topology::of(&scenario.problem.cluster);
    let Decided { mut decision, found, .. } = pipeline::decide(&scenario, choice, cost.as_ref(), &topology)
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
        ms(found.best.step_s),
        ms(found.best.bound_s),
        (1.0 - found.best.bound_s / found.best.step_s) * 100.0,
        found.best.why,
        found.best.candidate.to_toml(),
    );
    if let Some(other) = &found.runner_up {
        text += &format!("runner-up: step {}: {}\n\n{}\n", ms(other.step_s), other.why, other.candidate.to_toml());
    }
    text
}
