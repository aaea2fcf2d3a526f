//! `import`: measured operator tables → a profile, with its error on rows that the fit did not see.

use calibrate::import::{ImportError, Provenance, operator_tables};
use calibrate::network::links;
use sim::cost::profile::Residuals;

use super::{Failure, print, write};
use crate::cli::ImportArgs;

/// Runs the verb.
pub fn import(args: &ImportArgs) -> Result<(), Failure> {
    let provenance = Provenance {
        name: args.name.clone(),
        gpu: args.gpu.clone(),
        source: args.source.clone(),
        date: args.date.clone(),
    };
    let failure = |error| match error {
        ImportError::Device(_) => Failure::Input(format!("error[S023]: {error}; `skrull-sim list gpus` shows it")),
        other => Failure::Input(format!("error[S070]: {other}")),
    };
    let mut profile = operator_tables(&args.dir, &provenance).map_err(failure)?;
    if let Some(dir) = &args.network {
        profile.links = links(dir, args.port_gb_per_s).map_err(failure)?;
    }
    let path = args.out.clone().unwrap_or_else(|| std::path::Path::new("profiles").join(format!("{}.toml", args.name)));
    write(&path, &profile.to_toml())?;
    let mut text = format!("{}\noperator        fitted  unseen  median error  90 % error\n", path.display());
    for (name, operator) in &profile.operators {
        text += &row(name, &operator.residuals);
    }
    for link in &profile.links {
        text += &row(if link.crosses_nodes { "message across" } else { "message inside" }, &link.residuals);
    }
    print(&text)
}

fn row(name: &str, residuals: &Residuals) -> String {
    format!(
        "{name:14} {:>7} {:>7} {:>11.1} % {:>9.1} %\n",
        residuals.n_fit,
        residuals.n_held_out,
        residuals.median_error * 100.0,
        residuals.p90_error * 100.0
    )
}
