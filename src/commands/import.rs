//! `import`: a launch script → a scenario, measured operator tables → a profile, or measured serving runs → what the request loop leaves over, with the
//! error on what the fit did not see.

use stacks::{document::over::laid_over, elsewhere};
use std::path::Path;

use calibrate::import::{ImportError, Provenance, by_engine, report};
use calibrate::{costs::of_serving, import, llmservingsim, nccl_tests, network::links, profiles};
use engine::cost::profile::Profile;
use engine::shard::{AttentionKernel, Framework};
use score::{learned::Learned, recipe::layouts, table::listed};

use super::{Failure, imported, no_scenario, print, put, unwritable, write};
use crate::ask;
use crate::cli::{ImportArgs, ImportFormat};
use input::diagnostic::{Code, Source};
use input::text_file::{self, NoText};
use scenario::Overrides;

/// Runs the verb.
pub fn import(args: &ImportArgs) -> Result<(), Failure> {
    let name = args.dir.display().to_string();
    let text = match text_file::operand(&args.dir) {
        Ok(text) => Some(text),
        // Tables of one device lie in a folder.
        Err(NoText::Folder) => None,
        // Some files that are no text are known by their names.
        Err(NoText::NotUtf8 { .. } | NoText::Packed(_)) if elsewhere::of_name(&name).is_some() => None,
        Err(why) => return Err(Failure::input(Code::UnreadableScript, format!("cannot read `{name}`: {why}"))),
    };
    if let Some(text) = text.as_ref().filter(|text| stacks::recognise(text).is_some()) {
        of_tables_alone(args)?;
        return script(args, text.clone());
    }
    if let Some(what) = text.as_deref().and_then(elsewhere::of_own) {
        return Err(Failure::about(&name, Code::UnreadableScript, what));
    }
    let like = |text| elsewhere::of_no_stack(text).filter(|_| args.name.is_none());
    let known = text.as_deref().and_then(|text| elsewhere::of_text(text).or_else(|| like(text)));
    if let Some(what) =
        known.or_else(|| elsewhere::of_name(&name).filter(|_| args.name.is_none() && args.dir.is_file()))
    {
        return Err(no_scenario(&name, what));
    }
    of_scripts_alone(args)?;
    let needed = |value: &Option<String>, name: &str| {
        let what = format!("`{}` is no script of a known stack; tables need `--{name}`", args.dir.display());
        value.clone().ok_or_else(|| Failure::input(Code::MissingFlag, what))
    };
    let provenance = Provenance {
        name: needed(&args.name, "name")?,
        gpu: needed(&args.gpu, "gpu")?,
        source: needed(&args.source, "source")?,
        date: needed(&args.date, "date")?,
    };
    let path = args.out.clone().unwrap_or_else(|| Path::new("profiles").join(format!("{}.toml", provenance.name)));
    if let Some(text) = text.filter(|text| nccl_tests::is_output(text)) {
        return exchanges(args, &provenance, &text, &path);
    }
    let format = args.format.unwrap_or(ImportFormat::Aiconfigurator);
    let tables = match format {
        ImportFormat::ServingRuns => return runs(args, &provenance, &path),
        ImportFormat::Aiconfigurator => import::operator_tables,
        ImportFormat::Simumax => import::training::operator_tables,
        ImportFormat::Neusight => import::neusight::operator_tables,
        ImportFormat::Llmservingsim => llmservingsim::operator_tables,
    };
    if let (Some(engine), ImportFormat::Aiconfigurator) = (&args.engine, format) {
        let imported = by_engine::tables(&args.dir, engine, &provenance).map_err(failure)?;
        write(&path, &imported.profile.to_toml())?;
        return print(&format!("{}\n{}", path.display(), report::of_engine(&imported)));
    }
    let mut profile = tables(&args.dir, &provenance).map_err(failure)?;
    if let Some(dir) = &args.network {
        profile.links = links(dir, args.port_gb_per_s).map_err(failure)?;
    }
    write(&path, &profile.to_toml())?;
    print(&format!("{}\n{}", path.display(), report::of_profile(&profile)))
}

/// Refuses flags that a script has no use for.
fn of_tables_alone(args: &ImportArgs) -> Result<(), Failure> {
    let given = [
        ("format", args.format.is_some()),
        ("engine", args.engine.is_some()),
        ("name", args.name.is_some()),
        ("source", args.source.is_some()),
        ("date", args.date.is_some()),
        ("network", args.network.is_some()),
        ("port-gb-per-s", args.port_gb_per_s.is_some()),
    ];
    without(args, &given, "a script, which becomes a scenario: only tables, which become a profile, use it")
}

/// Flags about a script, the keys that they stand for, and whether they are given.
fn of_script(args: &ImportArgs) -> [(&'static str, &'static str, bool); 5] {
    [
        ("gpu", "cluster.gpu", args.gpu.is_some()),
        ("nodes", "cluster.nodes", args.nodes.is_some()),
        ("gpus-per-node", "cluster.gpus_per_node", args.gpus_per_node.is_some()),
        ("model", "model.name", args.model.is_some()),
        ("tokens", "workload.tokens", args.tokens.is_some()),
    ]
}

/// Refuses flags that tables have no use for.
fn of_scripts_alone(args: &ImportArgs) -> Result<(), Failure> {
    // Tables are of a GPU too.
    let further = of_script(args).into_iter().skip(1).map(|(flag, _, is_given)| (flag, is_given));
    let given: Vec<_> = further.chain([("set", !args.set.is_empty())]).collect();
    without(args, &given, "no script of a known stack: only a script, which becomes a scenario, uses it")
}

fn without(args: &ImportArgs, given: &[(&str, bool)], why: &str) -> Result<(), Failure> {
    let names: Vec<String> =
        given.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| format!("`--{name}`")).collect();
    if names.is_empty() {
        return Ok(());
    }
    let what = format!("{} has no meaning: `{}` is {why}", names.join(", "), args.dir.display());
    Err(Failure::input(Code::WrongFlag, what))
}

fn failure(error: ImportError) -> Failure {
    match error {
        ImportError::Device(_) => Failure::input(Code::UnknownGpu, format!("{error}; `skrull-sim list gpus` shows it")),
        other => Failure::input(Code::WrongTables, other),
    }
}

/// Output of nccl-tests → the shipped profile of the card with the exchanges that were measured.
fn exchanges(args: &ImportArgs, provenance: &Provenance, text: &str, path: &Path) -> Result<(), Failure> {
    let wrong =
        |error: nccl_tests::NcclError| Failure::input(Code::WrongTables, format!("`{}`: {error}", args.dir.display()));
    let gpu = hw::catalog::gpu(&provenance.gpu).ok_or_else(|| {
        let why = ImportError::Device(provenance.gpu.clone());
        Failure::input(Code::UnknownGpu, format!("{why}; `skrull-sim list gpus` shows it"))
    })?;
    let of_engine = args.engine.as_ref().and_then(|engine| profiles::of_serving(&gpu.name, Some(engine)));
    // A profile that is lent would pass for measured in a file.
    let of_card = Some(profiles::training(&gpu, Framework::Formulas, AttentionKernel::Flash));
    let shipped = of_engine.or(of_card).filter(|profile| profile.lent_by.is_none());
    let base = shipped.unwrap_or_else(|| provenance.profile());
    let (profile, left_out) = nccl_tests::measured(base, text, args.port_gb_per_s).map_err(wrong)?;
    let source = format!("{}; exchanges: {}", profile.source, provenance.source);
    let (name, date) = (provenance.name.clone(), provenance.date.clone());
    let profile = Profile { name, gpu: gpu.name, source, date, ..profile };
    write(path, &profile.to_toml())?;
    let left_out: String = left_out.iter().map(|why| format!("left out: {why}\n")).collect();
    print(&format!("{}\n{}{left_out}", path.display(), report::of_profile(&profile)))
}

/// A launch script or a file of flags → a scenario.
fn script(args: &ImportArgs, text: String) -> Result<(), Failure> {
    let set = stacks::Machine::of_overrides(&args.set);
    let twice =
        of_script(args).map(|(flag, key, is_given)| (flag, is_given && set.stated.iter().any(|own| own == key)));
    without(args, &twice, "a script whose key `--set` says too")?;
    let machine = stacks::Machine {
        gpu: args.gpu.clone().or(set.gpu),
        nodes: args.nodes.or(set.nodes),
        gpus_per_node: args.gpus_per_node.or(set.gpus_per_node),
        model: args.model.clone().or(set.model),
        tokens: args.tokens.or(set.tokens),
        ..set
    };
    let found = imported(Source { path: args.dir.display().to_string(), text }, &machine)?;
    let scenario = laid_over(&found.text, &args.set);
    if !args.set.is_empty() {
        let folder = args.dir.parent().unwrap_or(Path::new(""));
        ask::scenario(found, folder, &Overrides { set: args.set.clone(), seed: None, ..Overrides::default() })?;
    }
    match args.out.as_deref().filter(|path| *path != Path::new("-")) {
        Some(path) => put(path, scenario.as_bytes()).and_then(|()| print(&format!("{}\n", path.display()))),
        None => print(&scenario),
    }
}

/// Measured serving runs on some cards → what the request loop leaves over of them.
fn runs(args: &ImportArgs, provenance: &Provenance, path: &Path) -> Result<(), Failure> {
    text_file::can_write(path).map_err(|error| unwritable(path, &error))?;
    let table = args.dir.display().to_string();
    let text =
        text_file::operand(&args.dir).map_err(|why| Failure::input(Code::WrongTables, format!("{table}: {why}")))?;
    let runs = layouts::read(&text).map_err(|faults| Failure::input(Code::WrongTables, listed(&table, &faults)))?;
    let gpus: Vec<&str> = provenance.gpu.split(',').map(str::trim).collect();
    if let Some(unknown) = gpus.iter().find(|gpu| hw::catalog::gpu(gpu).is_none()) {
        return Err(failure(ImportError::Device((*unknown).to_owned())));
    }
    let learned = Learned::from_runs(runs, &gpus, [&provenance.source, &provenance.date], &of_serving);
    write(path, &learned.to_toml())?;
    print(&format!("{}\n{}", path.display(), learned.errors()))
}
