//! `export`: a plan → files of another stack, with the prediction in a remark.

use std::fmt::Display;
use std::path::Path;

use input::diagnostic::Code;
use serve::deployment::Deployment;
use stacks::export::{self, ExportError, Planned, Words};
use stacks::weeks::Weeks;
use stacks::{checked, targets};
use train::metrics::Played;

use super::{Failure, given, make, print, write_bytes};
use crate::cli::ExportArgs;
use crate::hardware;
use crate::kinds;
use scenario::Overrides;

/// Runs the verb.
pub fn export(args: &ExportArgs) -> Result<(), Failure> {
    let beside = args.plan.parent().map_or_else(Default::default, Path::to_path_buf);
    files(&args.plan, &args.to, args.out.as_deref().unwrap_or(&beside))
}

/// Writes the files of a plan into a folder.
pub fn files(plan: &Path, target: &str, folder: &Path) -> Result<(), Failure> {
    let unusable =
        |why: &dyn Display| Failure::input(Code::NotExported, format!("`{}` is no plan: {why}", plan.display()));
    let text = given::plan_of(plan, &unusable)?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|why| unusable(&why))?;
    let files = if json["schema"] == kinds::DEPLOYMENT_SCHEMA {
        let deployments: Vec<Deployment> =
            serde_json::from_value(json["deployments"].clone()).map_err(|why| unusable(&why))?;
        let words = json["why"].as_str().unwrap_or_default().to_owned();
        let scenario = json["scenario"].as_str().unwrap_or_default().to_owned();
        let words = Words { scenario, predicted: words, weeks: None };
        let settings: Option<_> = serde_json::from_value(json["settings"].clone()).map_err(|why| unusable(&why))?;
        let settings = settings.unwrap_or_default();
        checked::deployments(&deployments, &settings).map_err(|why| unusable(&why))?;
        targets::export(target, &Planned::Serving { deployments: &deployments, settings: &settings }, &words)
    } else {
        let (found, scenario) = given::read(&text, plan, &Overrides::default()).map_err(|why| unusable(&why))?;
        let planned = hardware::of_file(&scenario, found).map_err(|why| unusable(&why))?;
        let cost = scenario.costs();
        let (predicted, step_s) = match hardware::predict(&planned, cost.as_ref()) {
            Ok((timeline, ends)) => {
                let steps = [Played { graph: planned.graph.clone(), timeline }];
                let metrics = train::metrics::of_steps(&planned.problem, &steps, cost.as_ref());
                let step_s = metrics.step_s();
                let [low, high] = metrics.parts.interval_of(&planned.problem, [ends[0], step_s, ends[1]]);
                (export::step_words([step_s, low, high]), Some(step_s))
            }
            Err(why) => (format!("no step: {why}"), None),
        };
        let weeks = scenario.long_run.clone().zip(step_s).map(|(run, step_s)| Weeks { run, step_s });
        let words = Words { scenario: scenario.head.name.clone(), predicted, weeks };
        let asked = Planned::Training { problem: &planned.problem, plan: &planned.decision.plan, cost: cost.as_ref() };
        targets::export(target, &asked, &words)
    };
    let files = files.map_err(|why| match &why {
        ExportError::NotExpressible { .. } => Failure::input(Code::NotExpressible, &why),
        _ => Failure::input(Code::NotExported, &why),
    })?;
    make(folder)?;
    for file in files {
        let path = folder.join(&file.name);
        write_bytes(&path, &file.bytes)?;
        print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}
