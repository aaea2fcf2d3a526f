//! `compare`: policies of scenarios of any kind side by side over seeded batches, or earlier results against the first; gates for CI.

use std::path::Path;

use rayon::prelude::*;
use reports::RunResult;
use reports::comparison::{self, Comparison};
use reports::gate::Gate;

use super::{Failure, begin, load, outputs, print, put};
use crate::ask;
use crate::cli::{CompareArgs, Format, Laid, ScenarioArgs, is_stdout};
use crate::kinds::Kind;
use crate::progress;
use input::diagnostic::{Code, meant, nearest};
use input::text_file;

/// Batches per scenario, where nobody says how many.
const SEEDS: u64 = 5;

/// Runs the verb.
pub fn compare(args: &CompareArgs) -> Result<(), Failure> {
    begin(args.common)?;
    let gates: Vec<Gate> = args
        .gate
        .iter()
        .map(|text| Gate::parse(text))
        .collect::<Result<_, _>>()
        .map_err(|why| Failure::input(Code::WrongGate, why))?;
    let files = [("`--junit`", &args.junit), ("`--chart`", &args.chart)];
    let files = files.into_iter().filter_map(|(name, path)| Some((name, path.as_deref()?)));
    outputs::apart(&files.collect::<Vec<_>>(), args.common.format)?;
    sweep::vary::without_seed(&args.laid.set, &args.vary).map_err(|why| Failure::input(Code::NotComparable, why))?;
    if let Some(twice) = args.inputs.iter().find(|input| args.inputs.iter().filter(|other| other == input).count() > 1)
    {
        let what = format!("`{twice}` is given twice, and has nothing to differ from");
        return Err(Failure::input(Code::NotComparable, what));
    }
    let n_results = args.inputs.iter().filter(|input| is_result(input)).count();
    let mut comparison = match n_results {
        0 => scenarios(args)?,
        n if n == args.inputs.len() && n > 1 && args.vary.is_empty() => results(args)?,
        n => {
            let alone = "one result.json has nothing to be compared with: give another one, of the same scenario";
            let mixed = "compare takes scenarios, or two or more result.json files and nothing to vary, not both";
            let is_alone = n == 1 && args.inputs.len() == 1;
            return Err(Failure::input(Code::NotComparable, if is_alone { alone } else { mixed }));
        }
    };
    for gate in &gates {
        let cases = gate.cases(&comparison, args.confidence, |found, names| nearest(found, names));
        comparison.gates.extend(cases.map_err(|why| Failure::input(Code::WrongGate, why))?);
    }
    if let Some(path) = &args.junit {
        put(path, reports::junit::render(&comparison.gates).as_bytes())?;
    }
    if let Some(path) = &args.chart {
        put(path, reports::svg::ratio_bars(&comparison).as_bytes())?;
    }
    print(&match args.common.format {
        Format::Table if is_stdout([&args.junit, &args.chart]) => String::new(),
        Format::Table => reports::compared::table(&comparison),
        Format::Markdown => reports::compared::markdown(&comparison),
        Format::Json => serde_json::to_string_pretty(&comparison)? + "\n",
    })?;
    let failed: Vec<String> = comparison
        .gates
        .iter()
        .filter_map(|case| Some(format!("{}: {}: {}", case.suite, case.name, case.failure.as_ref()?)))
        .collect();
    if !failed.is_empty() {
        return Err(Failure::Gate(format!("error: gates failed\n  {}", failed.join("\n  "))));
    }
    let unfinished = comparison.unfinished(engine::stop::is_asked());
    unfinished.map_or(Ok(()), |why| Err(Failure::Gate(format!("error: {why}"))))
}

fn is_result(input: &str) -> bool {
    Path::new(input).extension().is_some_and(|extension| extension == "json")
}

/// Refuses options of runs beside results that are there already.
fn no_options_of_runs(args: &CompareArgs) -> Result<(), Failure> {
    let laid = &args.laid;
    let runs = [("--seed", laid.seed.is_some()), ("--seeds", args.seeds.is_some()), ("--set", !laid.set.is_empty())];
    let sought = [("--maximize", laid.maximize.is_some()), ("--minimize", laid.minimize.is_some())];
    let held = [("--baseline", args.baseline.is_some()), ("--confidence", args.confidence.is_some())];
    let given: Vec<&str> = runs.into_iter().chain(sought).chain(held).filter(|all| all.1).map(|all| all.0).collect();
    let help = "give the scenarios themselves; results are held against the first of them";
    if given.is_empty() {
        return Ok(());
    }
    let given = given.join("`, `");
    let what = format!("`{given}` would change nothing: a result.json is one batch that was run\n  = {help}");
    Err(Failure::input(Code::NotComparable, what))
}

/// Every scenario with every seed, in parallel, collected by index.
fn scenarios(args: &CompareArgs) -> Result<Comparison, Failure> {
    let (first, n_seeds) = (args.laid.seed.unwrap_or(0), args.seeds.unwrap_or(SEEDS));
    let variations =
        sweep::vary::variations(&args.vary, &args.laid.set).map_err(|why| Failure::input(Code::WrongVariation, why))?;
    let mut batches: Vec<(String, Box<dyn Kind>)> = Vec::new();
    for name in &args.inputs {
        for variation in &variations {
            for seed in first..first.saturating_add(n_seeds) {
                let set = [args.laid.set.as_slice(), &variation.set].concat();
                let laid = Laid { set, seed: Some(seed), ..args.laid.clone() };
                let scenario = ScenarioArgs { scenario: name.clone(), laid, ..ScenarioArgs::default() };
                // Every batch has the warnings of the first one.
                let batch = if seed == first { load(&scenario, false) } else { ask::kept(|| load(&scenario, false)).0 };
                batches.push((variation.label(name), batch?));
            }
        }
    }
    let asked = batches.iter().map(|(label, batch)| (label.as_str(), batch.head().kind.as_str(), batch.choices()));
    let (is_beside, rows) = comparison::rows(&asked.collect::<Vec<_>>());
    if let Some(baseline) = args.baseline.as_ref().filter(|baseline| !rows.contains(&baseline.as_str())) {
        let what = format!("no scenario runs the baseline `{baseline}`{}", meant(baseline, rows));
        return Err(Failure::input(Code::UnknownBaseline, what));
    }
    let bar = progress::bar(args.common.no_progress, batches.len(), "batches");
    let runs: Vec<RunResult> = batches
        .par_iter()
        .map(|(label, batch)| {
            let result = batch.run(&|_| {});
            bar.inc(1);
            RunResult { scenario: label.clone(), ..result }
        })
        .collect();
    bar.finish_and_clear();
    Ok(comparison::of_scenarios(runs, is_beside, args.baseline.as_deref()))
}

/// Earlier results, each against the first.
fn results(args: &CompareArgs) -> Result<Comparison, Failure> {
    no_options_of_runs(args)?;
    let mut runs = Vec::new();
    for path in &args.inputs {
        let wrong = |why: String| Failure::input(Code::WrongResult, why);
        let text = text_file::read(Path::new(path)).map_err(|why| wrong(format!("cannot read `{path}`: {why}")))?;
        let run = reports::read::result(&text).map_err(|why| wrong(format!("`{path}` {why}")))?;
        runs.push((path.clone(), run));
    }
    if let Some(why) = comparison::unrelated(&runs) {
        let help = "results of one scenario are compared; a changed one keeps its `name`";
        return Err(Failure::input(Code::NotComparable, format!("{why}\n  = {help}")));
    }
    Ok(comparison::across(&runs))
}
