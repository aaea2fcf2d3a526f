//! `[cost]`: a profile, shipped or from a file, or the datasheet roofline; `[cost.units]` for studies of schedules.

use std::path::Path;

use engine::cost::profile::Profile;
use toml_span::value::ValueInner;
use train::problem::UnitTimes;

use input::diagnostic::Code;
use input::reader::{Place, Section, unknown};

/// What the section says.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Measured profile; `None` for the roofline.
    pub profile: Option<Profile>,
    /// Whether the section asks for the roofline by name.
    pub is_roofline: bool,
    /// Serving engine whose curves are taken where they were measured.
    pub engine: Option<&'static str>,
    /// Whether a query outside the measured hull is an error.
    pub strict_hull: bool,
    /// Share of the peak that matrix products hold under sustained load; 1 is no limit.
    pub sustained_flops_ratio: f64,
    /// Fixed durations instead of operations.
    pub units: Option<UnitTimes>,
}

impl Cost {
    /// Profile of a GPU where a scenario has several: the section's for the GPU that it was read for, else the shipped one, unless the
    /// section asks for the roofline.
    pub fn of_gpu(&self, gpu: &str, main_gpu: &str) -> Option<Profile> {
        if gpu == main_gpu || self.is_roofline {
            return self.profile.clone();
        }
        calibrate::profiles::of_serving(gpu, self.engine)
    }
}

/// Reads the section of a training scenario.
pub fn cost(mut section: Section<'_>, folder: &Path, gpu: Option<&str>) -> Cost {
    let units = units(&mut section);
    let strict_hull = section.flag("strict_hull", false);
    Cost { units, strict_hull, ..of_engine(section, folder, gpu, None) }
}

/// Reads what the section of every kind has: a profile, or the datasheet.
pub fn of_engine(mut section: Section<'_>, folder: &Path, gpu: Option<&str>, engine: Option<&'static str>) -> Cost {
    let sustained_flops_ratio = section.number("sustained_flops_ratio", 1.0, 0.01..=1.0);
    let (profile, is_roofline) = profile(&mut section, folder, gpu, engine);
    section.finish();
    Cost { profile, is_roofline, engine, strict_hull: false, sustained_flops_ratio, units: None }
}

/// Durations per token and pipeline rank, in microseconds, kept in whole nanoseconds.
fn units(section: &mut Section<'_>) -> Option<UnitTimes> {
    let (value, at) = section.take("units")?;
    let ValueInner::Table(mut table) = value else {
        section.wrong(Code::WrongType, at, "`cost.units` is not a table");
        return None;
    };
    let has_messages = table.contains_key("message_us");
    let mut ns = |key: &'static str| {
        let value = table.remove(key)?;
        let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64))?;
        (0.0..=1e9).contains(&number).then(|| hw::whole(number * 1000.0))
    };
    let passes = (ns("forward_us"), ns("input_us"), ns("weight_us"));
    let message = if has_messages { ns("message_us") } else { Some(0) };
    if let ((Some(forward), Some(input), Some(weight)), Some(message), true) = (passes, message, table.is_empty()) {
        return Some(UnitTimes { forward, input, weight, message });
    }
    let what = "`cost.units` needs `forward_us`, `input_us` and `weight_us`, takes `message_us`, from 0 to 1e9, and no other key";
    let help = "durations per token in microseconds: of a pipeline rank's passes, and of its message to the next rank";
    section.refuse(Code::WrongUnits, at, what, help);
    None
}

/// The profile, and whether the roofline is asked for by name.
fn profile(
    section: &mut Section<'_>,
    folder: &Path,
    gpu: Option<&str>,
    engine: Option<&str>,
) -> (Option<Profile>, bool) {
    let Some((name, at)) = section.text("profile") else {
        return (gpu.and_then(|gpu| calibrate::profiles::of_serving(gpu, engine)), false);
    };
    if name == "roofline" {
        return (None, true);
    }
    let Some(profile) = named(section, folder, &name, &at) else { return (None, false) };
    (Some(gpu.map_or_else(|| profile.clone(), |gpu| on_gpu(section, &profile, gpu, &at))), false)
}

/// A profile that is shipped or in a file.
pub fn named(section: &mut Section<'_>, folder: &Path, name: &str, at: &Place) -> Option<Profile> {
    let path = folder.join(name);
    let text = match calibrate::profiles::embedded(name) {
        Some(text) => text.to_owned(),
        None => match input::text_file::read(&path) {
            Ok(text) => text,
            Err(why) if path.exists() => {
                section.wrong(Code::UnknownProfile, at.clone(), format!("cannot read profile `{name}`: {why}"));
                return None;
            }
            Err(_) => {
                let names = calibrate::profiles::names().into_iter().chain(["roofline"]);
                let what = format!("no profile `{name}`, shipped or as a file");
                section.find(unknown(Code::UnknownProfile, what, name, names, at.clone()));
                return None;
            }
        },
    };
    let parsed = Profile::parse(&text);
    if let Err(why) = &parsed {
        section.wrong(Code::WrongProfile, at.clone(), format!("profile `{name}` cannot be used: {why}"));
    }
    parsed.ok()
}

/// A profile of another GPU is lent; one of a host processor says nothing about a GPU, and one of another maker's card runs other libraries.
fn on_gpu(section: &mut Section<'_>, profile: &Profile, gpu: &str, at: &Place) -> Profile {
    let family = calibrate::profiles::of_gpu(gpu);
    let is_own = profile.gpu == gpu || (family.is_some() && family == calibrate::profiles::of_gpu(&profile.gpu));
    if is_own {
        return profile.clone();
    }
    let what = format!("profile `{}` was measured on `{}`, the cluster has `{gpu}`", profile.name, profile.gpu);
    let makers = [gpu, &profile.gpu].map(hw::catalog::maker);
    if makers.iter().all(Option::is_some) && makers[0] != makers[1] {
        let help = if makers.contains(&Some(hw::Maker::Host)) {
            "a host processor and a GPU cannot stand for each other"
        } else {
            "cards of two makers run no kernel in common; `cost.profile = \"roofline\"` uses the datasheet"
        };
        section.refuse(Code::OtherGpu, at.clone(), what, help);
        return profile.clone();
    }
    let help = "its times are scaled by the datasheets of both, with wider intervals; `cost.profile = \"roofline\"` uses the datasheet alone";
    section.warn(Code::OtherGpu, at.clone(), what, help);
    hw::catalog::gpu(gpu).map_or_else(|| profile.clone(), |gpu| profile.lent_to(&gpu))
}
