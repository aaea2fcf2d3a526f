//! `validate` of a graph scenario: an epoch on this host, predicted by measured kernels of the host and executed.

use std::path::Path;

use calibrate::campaign::Campaign;
use calibrate::device::Device;
use calibrate::host;
use engine::cost::profile::Profile;
use engine::validation::Validation;
use graph::epoch::Epoch;
use graph::host::HostCosts;
use reports::validation::{Errors, Report};

use super::{OF_PLANS, fit, gates, given, hold, open, report_of, save, show, slug};
use engine::verdict::Refused;

use crate::cli::ValidateArgs;
use crate::commands::{Failure, out_dir, write};
use crate::kinds::Kind;
use input::diagnostic::Code;

/// Measures kernels of the host, predicts an epoch of the scenario, runs it, and shows the error by part.
pub fn validate(args: &ValidateArgs, scenario: &dyn Kind, epoch: Result<Epoch, Refused>) -> Result<(), Failure> {
    let gates = gates(args, &OF_PLANS[..2])?;
    let head = scenario.head();
    let refused =
        |why: String| Failure::input(Code::WrongKind, format!("`{}` has no epoch to execute: {why}", head.name));
    let epoch = epoch.map_err(|none| refused(none.why))?;
    let device = open(&args.device.device)?;
    let no_host = || refused(format!("`{}` is no host; give `--device cpu`", args.device.device));
    let pool = device.host().ok_or_else(no_host)?;
    let dir = out_dir(&args.scenario, &head.name)?;
    let bar = crate::progress::line(args.scenario.common.no_progress, "");
    let say = |words: &str| bar.set_message(words.to_owned());
    let (profile, mut words) = match &args.profile {
        Some(path) => (given(path, args, device.as_ref())?, vec![format!("profile {}", path.display())]),
        None => measured(device.as_ref(), &dir, host::measured(pool, epoch.bytes(), args.device.time(), &say))?,
    };
    let costs = HostCosts { measured: profile.host, ..HostCosts::assumed() };
    let runs = u32::try_from(args.runs).unwrap_or(u32::MAX);
    let (validation, spread): (Validation, Vec<String>) =
        host::execute::validated(pool, "epoch", &epoch, &costs, runs, &say);
    bar.finish_and_clear();
    words.extend(spread);
    let errors = Errors::of(std::iter::once(&validation));
    let report = Report { profile: words, errors, plans: vec![validation], ..report_of(head, device.as_ref()) };
    save(&dir, &report, &[])?;
    show(args, &report, &dir)?;
    hold(&gates, &report)
}

/// A profile of the host's kernels alone, written beside the report.
fn measured(
    device: &dyn Device,
    dir: &Path,
    kernels: std::collections::BTreeMap<String, engine::cost::host::HostKernel>,
) -> Result<(Profile, Vec<String>), Failure> {
    let nothing = Campaign { samples: Vec::new(), seconds: 0.0, ended: String::new() };
    let profile = Profile { host: kernels, ..fit(&nothing, device, &slug(&device.facts().name)) };
    write(&dir.join("profile.toml"), &profile.to_toml())?;
    let words = reports::validation::kernels(&profile);
    Ok((profile, vec![words]))
}
