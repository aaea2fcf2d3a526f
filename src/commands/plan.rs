//! `plan`: only decide, and write the plan.

use super::{Failure, load, out_dir, print, write};
use crate::cli::PlanArgs;
use crate::{diagnostic, pipeline};

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
    let decision = pipeline::decide(&scenario, choice, cost.as_ref())
        .map_err(|why| Failure::Gate(format!("error: policy `{}` has no plan: {why}", choice.name)))?;
    let text =
        serde_json::to_string_pretty(&decision.plan).map_err(|error| Failure::Machine(format!("error: {error}")))?;
    let path = out_dir(&args.scenario, &scenario.name)?.join("plan.json");
    write(&path, &text)?;
    print(&format!(
        "{}: {} steps by `{}` ({})\n",
        path.display(),
        decision.plan.steps.len(),
        choice.name,
        decision.status.name()
    ))
}
