//! `[[requests.types]]`, `[[configurations]]` and `[[plans]]`: work, replicas with their rates, and plans that somebody has already.

use std::collections::BTreeMap;

use engine::Model;
use planner::deploy::inventory::Offer;
use planner::deploy::rental::GivenPlan;
use planner::deploy::throughput::Lengths;
use planner::deploy::{Configuration, Demand};
use toml_span::value::{Table, ValueInner};

use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader, Section, unknown};

/// A demand as it stands in the file.
pub struct DemandTable {
    name: Option<String>,
    model: Option<(String, Place)>,
    lengths: Option<Lengths>,
    pub(super) requests: f64,
    at: Place,
}

/// A configuration as it stands in the file.
pub struct ConfigurationTable {
    name: String,
    model: Option<(String, Place)>,
    gpus: BTreeMap<String, f64>,
    rates: Vec<f64>,
    at: Place,
}

/// A plan as it stands in the file.
pub struct PlanTable {
    name: String,
    counts: BTreeMap<String, f64>,
    rows: BTreeMap<String, Vec<f64>>,
    at: Place,
}

impl PlanTable {
    /// Name in results.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn number(value: &toml_span::Value<'_>) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64)).filter(|number| number.is_finite())
}

fn numbers(value: &toml_span::Value<'_>) -> Option<Vec<f64>> {
    value.as_array()?.iter().map(number).collect()
}

/// A table whose values are all of one kind; a finding where one is not.
fn map<T>(
    section: &mut Section<'_>,
    key: &'static str,
    help: &str,
    read: impl Fn(&toml_span::Value<'_>) -> Option<T>,
) -> BTreeMap<String, T> {
    let Some((value, at)) = section.take(key) else { return BTreeMap::new() };
    let pairs = |table: Table<'static>| -> Option<BTreeMap<String, T>> {
        table.into_iter().map(|(name, value)| Some((name.name.into_owned(), read(&value)?))).collect()
    };
    let found = match value {
        ValueInner::Table(table) => pairs(table),
        _ => None,
    };
    found.unwrap_or_else(|| {
        section.refuse(Code::WrongType, at, format!("`{key}` cannot be read"), help);
        BTreeMap::new()
    })
}

/// `[[requests.types]]`.
pub fn demand(mut section: Section<'_>) -> DemandTable {
    let name = section.text("name").map(|(name, _)| name);
    let model = section.text("model");
    let is_given = section.has("input") || section.has("output");
    let input = section.count("input", Some(1), 1..=100_000_000).0;
    let output = section.count("output", Some(1), 1..=100_000_000).0;
    let requests = section.needed("requests", 0.0..=1e12, "how many requests of this type there are");
    let lengths = is_given.then_some(Lengths { input: hw::Tokens(input), output: hw::Tokens(output) });
    let at = section.at();
    section.finish();
    DemandTable { name, model, lengths, requests, at }
}

/// `[[configurations]]`.
pub fn configuration(mut section: Section<'_>) -> ConfigurationTable {
    let name = section.text("name").map(|(name, _)| name);
    if name.is_none() {
        section.missing("name", "the name that results show");
    }
    let model = section.text("model");
    let gpus = map(&mut section, "gpus", "write `gpus = { a100 = 2 }`", number);
    let rates = match section.take("requests_per_s") {
        Some((ValueInner::Array(items), at)) => {
            items.iter().map(number).collect::<Option<Vec<f64>>>().unwrap_or_else(|| {
                section.wrong(Code::WrongType, at, "`requests_per_s` holds something that is no number");
                Vec::new()
            })
        }
        _ => {
            section.missing("requests_per_s", "one saturated rate per request type, in their order");
            Vec::new()
        }
    };
    let at = section.at();
    section.finish();
    ConfigurationTable { name: name.unwrap_or_default(), model, gpus, rates, at }
}

/// `[[plans]]`.
pub fn plan(mut section: Section<'_>) -> Option<PlanTable> {
    let name = section.text("name").map(|(name, _)| name);
    if name.is_none() {
        section.missing("name", "the name that `policies.run` uses");
    }
    let counts = map(&mut section, "replicas", "write `replicas = { c1 = 1 }`", number);
    let rows = map(&mut section, "shares", "write `shares = { c1 = [0.15, 1.0] }`, a number per request type", numbers);
    let at = section.at();
    section.finish();
    Some(PlanTable { name: name?, counts, rows, at })
}

/// Index of a model by name: of `[[models]]`, or of the names that demands use.
fn index_of(names: &[String], model: Option<&(String, Place)>, at: &Place) -> Result<usize, Finding> {
    match model {
        None if names.len() <= 1 => Ok(0),
        None => {
            let help = format!("allowed are {}", names.join(", "));
            Err(Finding::error(Code::MissingKey, at.clone(), "key `model` is missing, and there are several")
                .help(help))
        }
        Some((name, at)) => names.iter().position(|known| known == name).ok_or_else(|| {
            let known = names.iter().map(String::as_str);
            unknown(Code::UnknownModel, format!("no model `{name}` in this scenario"), name, known, at.clone())
        }),
    }
}

/// Names of models that demands use, in order of appearance.
fn used(tables: &[DemandTable]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in tables.iter().filter_map(|table| table.model.as_ref()) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// What is to be done.
pub struct Work {
    /// Demands with their models' indices.
    pub demands: Vec<Demand>,
    /// Lengths of each; a token each where none are given.
    pub lengths: Vec<Lengths>,
    /// Names of the models.
    pub models: Vec<String>,
}

/// Finds the models that demands name: those of `[[models]]`, or of any name where configurations are given.
pub fn demands(reader: &mut Reader<'_>, tables: Vec<DemandTable>, models: &[Model], is_given: bool) -> Work {
    let names = if is_given { used(&tables) } else { models.iter().map(|model| model.name.clone()).collect() };
    if !is_given && models.is_empty() {
        let help = "write `[[models]]` with a name, or `[[configurations]]` with their rates";
        reader.refuse(Code::NothingToRent, None, "there is no model to serve", help);
    }
    let (mut demands, mut lengths) = (Vec::new(), Vec::new());
    for (index, table) in tables.into_iter().enumerate() {
        let model = index_of(&names, table.model.as_ref(), &table.at).unwrap_or_else(|finding| {
            reader.find(finding);
            0
        });
        if !is_given && table.lengths.is_none() {
            let what = "a request type has no lengths, and rates are to be found";
            reader.refuse(Code::NoLengths, table.at.clone(), what, "write `input` and `output`, in tokens");
        }
        let of = names.get(model).filter(|_| names.len() > 1).map_or_else(String::new, |name| format!(" of {name}"));
        let words = table.lengths.map(|all| format!("{}+{}{of}", all.input.0, all.output.0));
        let name = table.name.or(words).unwrap_or_else(|| format!("type {}{of}", index + 1));
        if demands.iter().any(|other: &Demand| other.name == name) {
            let help = "give each a `name` of its own, or write their requests as one type";
            twice(reader, table.at, ("request types", &name), help);
        }
        demands.push(Demand { name, model, requests: table.requests });
        lengths.push(table.lengths.unwrap_or(Lengths { input: hw::Tokens(1), output: hw::Tokens(1) }));
    }
    if !demands.is_empty() && demands.iter().all(|demand| demand.requests == 0.0) {
        reader.wrong(Code::NothingToRent, None, "the demand is empty: every type has 0 requests");
    }
    Work { demands, lengths, models: names }
}

/// Two of a list with one name.
fn twice(reader: &mut Reader<'_>, at: Place, (what, name): (&str, &str), help: &str) {
    reader.refuse(Code::TwiceNamed, at, format!("two {what} are called `{name}`"), help);
}

/// The configurations with GPUs by offer.
pub fn configurations(
    reader: &mut Reader<'_>,
    tables: Vec<ConfigurationTable>,
    offers: &[Offer],
    work: &Work,
) -> Vec<Configuration> {
    let mut all: Vec<Configuration> = Vec::new();
    for table in tables {
        if all.iter().any(|other| other.name == table.name) {
            twice(
                reader,
                table.at.clone(),
                ("configurations", &table.name),
                "plans and figures name them: give each its own",
            );
        }
        let mut n_gpus = vec![0; offers.len()];
        for (gpu, n) in &table.gpus {
            let known = offers.iter().map(|offered| offered.name.as_str());
            match offers.iter().position(|offered| offered.name == *gpu) {
                Some(offer) if (1.0..=1e6).contains(n) && n.fract() == 0.0 => n_gpus[offer] = whole(*n),
                Some(_) => {
                    let what = format!("`{}` takes {n} of `{gpu}`", table.name);
                    reader.refuse(Code::OutOfRange, table.at.clone(), what, "allowed are whole numbers from 1");
                }
                None => reader.find(unknown(
                    Code::UnknownGpu,
                    format!("`{}` takes GPUs of `{gpu}`, which is not offered", table.name),
                    gpu,
                    known,
                    table.at.clone(),
                )),
            }
        }
        if table.gpus.is_empty() {
            reader.wrong(Code::NoGpus, table.at.clone(), format!("`{}` takes no GPU", table.name));
        }
        let (found, wanted) = (table.rates.len(), work.demands.len());
        if found != wanted || table.rates.iter().any(|rate| *rate < 0.0) {
            let what = format!("`{}` has {found} rates for {wanted} request types", table.name);
            let help = "one rate per `[[requests.types]]` in their order, not below 0; 0 where it cannot serve them";
            reader.refuse(Code::WrongRates, table.at.clone(), what, help);
        }
        let model = index_of(&work.models, table.model.as_ref(), &table.at).unwrap_or_else(|finding| {
            reader.find(finding);
            0
        });
        all.push(Configuration { name: table.name, model, n_gpus, requests_per_s: table.rates });
    }
    all
}

/// A whole number that was checked.
fn whole(n: f64) -> u32 {
    u32::try_from(hw::whole(n)).expect("a range keeps it below 2^32")
}

/// The plans by configuration.
pub fn plans(
    reader: &mut Reader<'_>,
    tables: Vec<PlanTable>,
    all: &[Configuration],
    n_demands: usize,
) -> Vec<GivenPlan> {
    let mut plans: Vec<GivenPlan> = Vec::new();
    for table in tables {
        if plans.iter().any(|other| other.name == table.name) {
            twice(reader, table.at.clone(), ("plans", &table.name), "results go by name: give each its own");
        }
        let names = || all.iter().map(|configuration| configuration.name.as_str());
        for name in table.counts.keys().chain(table.rows.keys()).filter(|name| !names().any(|known| known == *name)) {
            let what = format!("plan `{}` names `{name}`", table.name);
            reader.find(unknown(Code::WrongPlan, what, name, names(), table.at.clone()));
        }
        let counts: Vec<f64> = all.iter().map(|c| table.counts.get(&c.name).copied().unwrap_or(0.0)).collect();
        if counts.iter().any(|n| !(0.0..=1e6).contains(n) || n.fract() != 0.0) {
            let what = format!("plan `{}` has replicas that are no whole number from 0", table.name);
            reader.wrong(Code::WrongPlan, table.at.clone(), what);
            continue;
        }
        let replicas = counts.into_iter().map(whole).collect();
        let shares = (!table.rows.is_empty()).then(|| shares(reader, &table, all, n_demands));
        plans.push(GivenPlan { name: table.name, replicas, shares });
    }
    plans
}

/// Shares of a plan: those of every request type add up to 1.
fn shares(reader: &mut Reader<'_>, table: &PlanTable, all: &[Configuration], n_demands: usize) -> Vec<Vec<f64>> {
    let row = |c: &Configuration| table.rows.get(&c.name).cloned().unwrap_or_else(|| vec![0.0; n_demands]);
    let shares: Vec<Vec<f64>> = all.iter().map(row).collect();
    let whole = |w: usize| (shares.iter().filter_map(|row| row.get(w)).sum::<f64>() - 1.0).abs() < 1e-6;
    if shares.iter().any(|row| row.len() != n_demands) || !(0..n_demands).all(whole) {
        let what = format!("shares of plan `{}` do not add up to 1 for every request type", table.name);
        let help = "one number per request type and configuration; those of a type add up to 1";
        reader.refuse(Code::WrongPlan, table.at.clone(), what, help);
    }
    shares
}
