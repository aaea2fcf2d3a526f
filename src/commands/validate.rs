//! `validate`: measure the machine, plan, predict, execute the very same plans, and show the error term by term.

mod epoch;
mod measured;

use std::fmt::Display;
use std::path::Path;

use calibrate::campaign;
use calibrate::device::Device;
use calibrate::sample::{self, Sample};
use engine::cost::profile::Profile;
use engine::validation::{Execution, Pair, Validation, rank};
use engine::{CostModel, Timeline};
use reports::gate::{self, Gate};
use reports::validation::{Errors, Executed, Refit, Report, kernels};

use super::calibrate::{failed, fit, measure, open, slug};
use super::{Failure, begin, load, out_dir, print, training, unwritable, write};
use crate::cli::{Format, ValidateArgs};
use crate::hardware::{self, PlannedStep};
use input::diagnostic::Code;
use input::text_file;
use scenario::Head;
use scenario::training::Scenario;

/// What plans that run are judged by; the last two compare several.
const OF_PLANS: [&str; 4] = ["step_error", "operator_error", "tau", "regret"];

/// Runs the verb.
pub fn validate(args: &ValidateArgs) -> Result<(), Failure> {
    begin(args.scenario.common)?;
    let scenario = load(&args.scenario, !args.measured.is_empty())?;
    if !args.measured.is_empty() {
        return match scenario.training() {
            Some(scenario) => measured::recorded(args, scenario),
            None => measured::validate(args, scenario.as_ref()),
        };
    }
    if let Some(epoch) = scenario.epoch() {
        return epoch::validate(args, scenario.as_ref(), epoch);
    }
    let scenario = training(scenario.as_ref())?;
    let gates = gates(args, if scenario.policies.len() > 1 { &OF_PLANS } else { &OF_PLANS[..2] })?;
    let mut device = open(&args.device.device)?;
    same_device(args, &scenario, device.as_ref())?;
    if !args.device.unchecked {
        device.check_kernels().map_err(|error| failed(&error))?;
    }
    let dir = out_dir(&args.scenario, &scenario.head.name)?;
    let known = known(args, &scenario, device.as_mut(), &dir)?;
    let scenario = Scenario { profile: Some(known.profile.clone()), of_card: None, ..scenario };
    let cost = scenario.costs();
    let (ran, mut report, stopped) = execute_all(args, &scenario, device.as_mut(), cost.as_ref());
    report.profile = known.words.clone();
    if args.refit {
        let (refit, profile) = refit(&scenario, &ran, &known, device.as_ref());
        write(&dir.join("profile.toml"), &profile.to_toml())?;
        report.refit = refit;
    }
    save(&dir, &report, &ran)?;
    let kept = dir.join("executed.samples.jsonl");
    sample::keep(&kept, device.facts(), &executed(ran.iter())).map_err(|error| unwritable(&kept, &error))?;
    show(args, &report, &dir)?;
    if let Some(failure) = stopped {
        return Err(failure);
    }
    hold(&gates, &report)?;
    if ran.is_empty() {
        return Err(Failure::Gate("error: no policy of the scenario was feasible".to_owned()));
    }
    Ok(())
}

fn show(args: &ValidateArgs, report: &Report, dir: &Path) -> Result<(), Failure> {
    print(&match args.scenario.common.format {
        Format::Table => {
            format!("{}\nreport: {}\n", reports::validation::table(report), dir.join("validation.html").display())
        }
        Format::Markdown => reports::validation::markdown(report),
        Format::Json => reports::validation::json(report),
    })
}

/// A report without plans.
fn report_of(head: &Head, device: &dyn Device) -> Report {
    Report {
        schema: reports::validation::SCHEMA.to_owned(),
        scenario: head.name.clone(),
        seed: head.seed,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: format!("{} ({})", device.facts().name, device.facts().driver),
        ..Report::default()
    }
}

/// Refuses a scenario that is for another device.
fn same_device(args: &ValidateArgs, scenario: &Scenario, device: &dyn Device) -> Result<(), Failure> {
    let (wanted, found) = (&scenario.problem.cluster.gpu.name, &device.facts().gpu);
    let is_same = found.as_ref().is_none_or(|gpu| gpu == wanted || wanted.starts_with(&format!("{gpu}-")));
    if is_same || args.allow_foreign_profile {
        return Ok(());
    }
    Err(Failure::input(
        Code::OtherDevice,
        format!(
            "the scenario's cluster is of `{wanted}`, device `{}` is {} (`{}` in the catalogue)\n  \
         = set `cluster.gpu`, or take the figures of another device with `--allow-foreign-profile`",
            args.device.device,
            device.facts().name,
            found.as_deref().unwrap_or("not listed")
        ),
    ))
}

/// What the prediction rests on.
struct Known {
    profile: Profile,
    samples: Vec<Sample>,
    words: Vec<String>,
}

/// The profile that was given, or one that is measured now around what the plans run.
fn known(args: &ValidateArgs, scenario: &Scenario, device: &mut dyn Device, dir: &Path) -> Result<Known, Failure> {
    if let Some(path) = &args.profile {
        let profile = given(path, args, device)?;
        let words = vec![format!("profile {} ({}, {})", path.display(), profile.name, profile.date)];
        // A profile that was measured here has its samples beside it: a refit goes on from them.
        let samples = sample::of_log(&path.with_extension("samples.jsonl"), device.facts());
        return Ok(Known { profile, samples, words });
    }
    // The plans of the cost model at hand say what to measure; they are made again with what was measured.
    let first = hardware::plans(scenario, scenario.costs().as_ref());
    let domain = hardware::domain(first.iter().filter_map(|(_, planned)| planned.as_ref().ok()));
    let samples = dir.join("samples.jsonl");
    let effort = campaign::Effort { budget: args.device.time(), width: args.device.width };
    let campaign = measure(device, &domain, effort, &samples, args.scenario.common.no_progress)?;
    let profile = fit(&campaign, device, &slug(&device.facts().name));
    write(&dir.join("profile.toml"), &profile.to_toml())?;
    let words = vec![
        format!("{} samples in {:.0} s: {}", campaign.samples.len(), campaign.seconds, campaign.ended),
        kernels(&profile),
    ];
    Ok(Known { profile, samples: campaign.samples, words })
}

fn given(path: &Path, args: &ValidateArgs, device: &dyn Device) -> Result<Profile, Failure> {
    let wrong = |why: &dyn Display| {
        Failure::input(Code::WrongProfile, format!("profile `{}` cannot be used: {why}", path.display()))
    };
    let text = text_file::read(path).map_err(|why| wrong(&why))?;
    let profile = Profile::parse(&text).map_err(|why| wrong(&why))?;
    let of = profile.device.as_ref().map_or("an unnamed device", |device| &device.name);
    if of != device.facts().name && !args.allow_foreign_profile {
        return Err(Failure::input(
            Code::OtherDevice,
            format!(
                "profile `{}` was measured on {of}, device `{}` is {}\n  \
             = `skrull-sim calibrate --device {}` measures this one; `--allow-foreign-profile` takes it all the same",
                path.display(),
                args.device.device,
                device.facts().name,
                args.device.device
            ),
        ));
    }
    Ok(profile)
}

/// A plan, what the device did with it, and how that compares.
struct Ran {
    planned: PlannedStep,
    predicted: Timeline,
    execution: Execution,
    validation: Validation,
}

/// Runs every plan; what stopped it, where something did. Plans that ran before are kept.
fn execute_all(
    args: &ValidateArgs,
    scenario: &Scenario,
    device: &mut dyn Device,
    cost: &dyn CostModel,
) -> (Vec<Ran>, Report, Option<Failure>) {
    let mut report = report_of(&scenario.head, device);
    let bar = crate::progress::line(args.scenario.common.no_progress, "");
    let mut predicted = Vec::new();
    for (policy, planned) in hardware::plans(scenario, cost) {
        match planned.and_then(|planned| Ok((hardware::predict(&planned, cost)?.0, planned))) {
            Ok(both) => predicted.push(both),
            Err(refused) => report.failed.push((policy, refused.why)),
        }
    }
    let planned: Vec<&PlannedStep> = predicted.iter().map(|(_, planned)| planned).collect();
    let (executions, failed) = hardware::run_in_turn(&planned, device, cost, args.runs, &|message| {
        bar.set_message(message);
    });
    let mut stopped = failed.map(|(policy, error)| {
        report.failed.push((policy.clone(), "the device failed".to_owned()));
        Failure::Machine(format!("error: policy `{policy}`: {error}"))
    });
    let mut ran = Vec::new();
    for ((predicted, planned), execution) in predicted.into_iter().zip(executions) {
        match hardware::compare(&planned, &execution, cost) {
            Ok(validation) => {
                report.plans.push(validation.clone());
                ran.push(Ran { planned, predicted, execution, validation });
            }
            Err(refused) => stopped = stopped.or(Some(Failure::Gate(refused.why))),
        }
    }
    bar.finish_and_clear();
    let steps: Vec<Pair> = ran.iter().map(|ran| ran.validation.step).collect();
    report.ranking = rank(&steps);
    report.errors = Errors::of(ran.iter().map(|ran| &ran.validation));
    (ran, report, stopped)
}

/// What operations of executed plans took, as samples.
fn executed<'a>(ran: impl Iterator<Item = &'a Ran>) -> Vec<Sample> {
    let parts = ran.flat_map(|ran| &ran.execution.parts).filter(|part| part.seconds > 0.0);
    parts.map(|part| Sample { op: part.op.clone(), seconds: part.seconds, spread: 0.0, slowdown: 1.0 }).collect()
}

/// Fits again with what every other plan measured; the errors of the rest before and after.
fn refit(scenario: &Scenario, ran: &[Ran], known: &Known, device: &dyn Device) -> (Option<Refit>, Profile) {
    let (seen, unseen): (Vec<_>, Vec<_>) = ran.iter().enumerate().partition(|(index, _)| index % 2 == 0);
    let new = executed(seen.iter().map(|(_, ran)| *ran));
    let samples: Vec<Sample> = known.samples.iter().cloned().chain(new).collect();
    let old = known.profile.device.as_ref();
    let header = campaign::Header {
        name: known.profile.name.clone(),
        date: super::calibrate::today(),
        command: super::calibrate::command(),
        seconds: old.map_or(0.0, |device| device.seconds),
    };
    let profile = campaign::profile(&samples, device.facts(), &header);
    if unseen.is_empty() {
        return (None, profile);
    }
    let names = |rans: &[(usize, &Ran)]| rans.iter().map(|(_, ran)| ran.planned.policy.clone()).collect();
    let cost = Scenario { profile: Some(profile.clone()), of_card: None, ..scenario.clone() }.costs();
    let after: Vec<Validation> = unseen
        .iter()
        .filter_map(|(_, ran)| hardware::compare(&ran.planned, &ran.execution, cost.as_ref()).ok())
        .collect();
    let refit = Refit {
        seen: names(&seen),
        unseen: names(&unseen),
        before: Errors::of(unseen.iter().map(|(_, ran)| &ran.validation)),
        after: Errors::of(after.iter()),
    };
    (Some(refit), profile)
}

fn save(dir: &Path, report: &Report, ran: &[Ran]) -> Result<(), Failure> {
    write(&dir.join("validation.json"), &reports::validation::json(report))?;
    write(&dir.join("validation.md"), &reports::validation::markdown(report))?;
    let mut pictures = Vec::new();
    for ran in ran {
        write(
            &dir.join(format!("timeline-{}.json", ran.planned.policy)),
            &serde_json::to_string(&ran.execution.timeline)?,
        )?;
        write(
            &dir.join(format!("plan-{}.json", ran.planned.policy)),
            &serde_json::to_string(&ran.planned.decision.plan)?,
        )?;
        pictures.push(Executed {
            policy: &ran.planned.policy,
            graph: &ran.planned.graph,
            predicted: &ran.predicted,
            timeline: &ran.execution.timeline,
        });
    }
    write(&dir.join("validation.html"), &reports::validation::html(report, &pictures))
}

/// Gates of a run that has some figures.
fn gates(args: &ValidateArgs, of_run: &[&str]) -> Result<Vec<Gate>, Failure> {
    gate::of_figures(&args.gate, of_run).map_err(|why| Failure::input(Code::WrongGate, why))
}

/// Holds the gates against the report.
fn hold(gates: &[Gate], report: &Report) -> Result<(), Failure> {
    hold_figures(gates, &|gate| report.figure(gate.metric()))
}

/// Holds gates against figures.
fn hold_figures(gates: &[Gate], found: &dyn Fn(&Gate) -> f64) -> Result<(), Failure> {
    gate::missed(gates, found).map_or(Ok(()), |missed| Err(Failure::Gate(format!("error: gates failed\n  {missed}"))))
}
