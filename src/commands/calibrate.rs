//! `calibrate`: measure this machine and fit a profile. Samples are kept as they come; a stopped calibration goes on from them.

use std::path::Path;
use std::time::{Instant, SystemTime};

use calibrate::campaign::{self, Budget, Campaign, CampaignError, Effort, Header};
use calibrate::device::{Device, DeviceError};
use calibrate::devices;
use calibrate::family::{self, Domain};
use calibrate::host;
use calibrate::sample::Log;
use engine::cost::profile::Profile;
use reports::validation::kernels;

use super::{Failure, make, print, unwritable, write};
use crate::cli::CalibrateArgs;
use crate::progress;
use input::diagnostic::Code;

/// Largest graph on which kernels of the host are measured.
const HOST_BYTES_MAX: f64 = 134_217_728.0;

/// Runs the verb.
pub fn calibrate(args: &CalibrateArgs) -> Result<(), Failure> {
    let mut device = open(&args.device.device)?;
    if args.check {
        return check(device.as_mut());
    }
    if !args.device.unchecked {
        device.check_kernels().map_err(|error| failed(&error))?;
    }
    let facts = device.facts().clone();
    let name = args.name.clone().unwrap_or_else(|| slug(&facts.name));
    let out = args.out.clone().unwrap_or_else(|| Path::new("profiles").join(format!("{name}.toml")));
    let samples = out.with_extension("samples.jsonl");
    if args.fresh && samples.exists() {
        std::fs::remove_file(&samples).map_err(|error| unwritable(&samples, &error))?;
    }
    let domain = family::general(args.max_len, facts.n_devices);
    let budget = Budget::of(args.device.budget, args.device.quick);
    let effort = Effort { budget: budget.device, width: args.device.width };
    let mut campaign = measure(device.as_mut(), &domain, effort, &samples, args.no_progress)?;
    if campaign.samples.is_empty() {
        let budget = humantime::format_duration(budget.device);
        return Err(Failure::input(
            Code::NothingMeasured,
            format!("nothing was measured in {budget}; give a longer `--budget`"),
        ));
    }
    let mut profile = fit(&campaign, device.as_ref(), &name);
    if let Some(pool) = device.host() {
        let bar = progress::line(args.no_progress, "");
        let say = |words: &str| bar.set_message(words.to_owned());
        let begun = Instant::now();
        profile.host = host::measured(pool, HOST_BYTES_MAX, budget.host, &say);
        campaign.seconds += begun.elapsed().as_secs_f64();
        bar.finish_and_clear();
    }
    write(&out, &profile.to_toml())?;
    print(&format!(
        "{}\n{}\n\n{} samples in {:.0} s ({}), kept in {}\n",
        out.display(),
        kernels(&profile),
        campaign.samples.len(),
        campaign.seconds,
        campaign.ended,
        samples.display()
    ))
}

/// Kernels against their references, then rates: also where a kernel is wrong, and as far as the device comes.
fn check(device: &mut dyn Device) -> Result<(), Failure> {
    let checked = device.check_kernels();
    let mut lines = checked.clone().unwrap_or_default();
    let ended = match &checked {
        Ok(_) | Err(DeviceError::Wrong { .. }) => device.speeds(&mut |line| lines.push(line)),
        // What does not run at all has no rates.
        Err(_) => Ok(()),
    };
    print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    checked.map(drop).and(ended).map_err(|error| failed(&error))
}

/// Opens a device; there being none is a failure of the machine.
pub fn open(name: &str) -> Result<Box<dyn Device>, Failure> {
    devices::open(name).map_err(|error| failed(&error))
}

/// A failure of the device.
pub fn failed(error: &DeviceError) -> Failure {
    match error {
        DeviceError::Unknown { .. } => Failure::input(Code::UnknownDevice, error),
        other => Failure::Machine(format!("error: {other}")),
    }
}

/// Measures a domain with what a command line asks, keeping samples in a file.
pub fn measure(
    device: &mut dyn Device,
    domain: &Domain,
    effort: Effort,
    samples: &Path,
    quiet: bool,
) -> Result<Campaign, Failure> {
    samples.parent().map_or(Ok(()), make)?;
    let (mut log, earlier) = Log::open(samples, device.facts()).map_err(|error| unwritable(samples, &error))?;
    let bar = progress::line(quiet, "");
    let campaign =
        campaign::measure(device, domain, effort, &mut log, earlier, &|words| bar.set_message(words.to_owned()));
    bar.finish_and_clear();
    campaign.map_err(|error| match error {
        CampaignError::Device(error) => Failure::Machine(format!(
            "error: {error}\n  = samples so far are in `{}`; the same command goes on from them",
            samples.display()
        )),
        CampaignError::Log(error) => unwritable(samples, &error),
    })
}

/// Fits what a campaign measured.
pub fn fit(campaign: &Campaign, device: &dyn Device, name: &str) -> Profile {
    let header = Header { name: name.to_owned(), date: today(), command: command(), seconds: campaign.seconds };
    campaign::profile(&campaign.samples, device.facts(), &header)
}

/// Today, as ISO date.
pub fn today() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.split('T').next().unwrap_or_default().to_owned()
}

/// The command line as it was given, without the folder of the program.
pub fn command() -> String {
    std::iter::once("skrull-sim".to_owned()).chain(std::env::args().skip(1)).collect::<Vec<String>>().join(" ")
}

/// A name for files: letters, digits and dashes.
pub fn slug(name: &str) -> String {
    let mapped =
        name.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect::<String>();
    mapped.split('-').filter(|part| !part.is_empty()).collect::<Vec<&str>>().join("-")
}
