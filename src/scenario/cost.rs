//! `[cost]`: a profile, shipped or from a file, or the datasheet roofline; `[cost.units]` for studies of schedules.

use std::path::Path;

use engine::cost::profile::Profile;
use toml_span::value::ValueInner;
use train::problem::UnitTimes;

use input::diagnostic::{Code, Finding};
use input::reader::{Section, unknown};

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
        let text = calibrate::profiles::shipped(gpu, self.engine).and_then(calibrate::profiles::embedded)?;
        Profile::parse(text).ok()
    }
}

/// Reads the section of a training scenario.
pub fn cost(mut section: Section<'_>, folder: &Path, gpu: Option<&str>) -> Cost {
    let units = units(&mut section);
    let strict_hull = section.flag("strict_hull", false);
    Cost { units, strict_hull, ..of_engine(section, folder, gpu, None) }
}

/// Reads the section of a scenario in which engines serve: no passes of a pipeline, and no share outside the hull.
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
    let mut ns = |key: &'static str| {
        let value = table.remove(key)?;
        let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64))?;
        (0.0..=1e9).contains(&number).then(|| hw::Bytes::from_f64(number * 1000.0).0)
    };
    let times = (ns("forward_us"), ns("input_us"), ns("weight_us"));
    let left: Vec<String> = table.keys().map(|key| key.name.to_string()).collect();
    match times {
        (Some(forward), Some(input), Some(weight)) if left.is_empty() => Some(UnitTimes { forward, input, weight }),
        _ => {
            let what = "`cost.units` needs exactly `forward_us`, `input_us` and `weight_us`, from 0 to 1e9";
            section.refuse(
                Code::WrongUnits,
                at,
                what,
                "durations of a pipeline rank's passes per token, in microseconds",
            );
            None
        }
    }
}

/// The profile that `profile` of a section names, shipped or as a file, whatever it was measured on.
pub fn named(section: &mut Section<'_>, folder: &Path) -> Option<Profile> {
    profile(section, folder, None, None).0
}

fn profile(
    section: &mut Section<'_>,
    folder: &Path,
    gpu: Option<&str>,
    engine: Option<&str>,
) -> (Option<Profile>, bool) {
    let named = section.text("profile");
    let is_named = named.is_some();
    let (text, name, at) = match named {
        Some((name, _)) if name == "roofline" => return (None, true),
        Some((name, at)) => match calibrate::profiles::embedded(&name) {
            Some(text) => (Some(text.to_owned()), name, at),
            None => match input::text_file::read(&folder.join(&name)) {
                Ok(text) => (Some(text), name, at),
                Err(why) if folder.join(&name).exists() => {
                    section.wrong(Code::UnknownProfile, at, format!("cannot read profile `{name}`: {why}"));
                    (None, name, None)
                }
                Err(_) => {
                    let names = calibrate::profiles::names().into_iter().chain(["roofline"]);
                    section.find(unknown(
                        Code::UnknownProfile,
                        format!("no profile `{name}`, shipped or as a file"),
                        &name,
                        names,
                        at,
                    ));
                    (None, name, None)
                }
            },
        },
        None => match gpu.and_then(|gpu| calibrate::profiles::shipped(gpu, engine)) {
            Some(name) => (calibrate::profiles::embedded(name).map(str::to_owned), name.to_owned(), None),
            None => (None, String::new(), None),
        },
    };
    let profile = text.and_then(|text| {
        Profile::parse(&text)
            .map_err(|why| {
                section.wrong(Code::WrongProfile, at.clone(), format!("profile `{name}` cannot be used: {why}"))
            })
            .ok()
    });
    if let (Some(found), Some(gpu), true) = (&profile, gpu, is_named)
        && !is_of(&found.gpu, gpu)
    {
        let what = format!("profile `{name}` was measured on `{}`, the cluster has `{gpu}`", found.gpu);
        let help = "its times are taken as they are; `cost.profile = \"roofline\"` uses the datasheet instead";
        section.find(Finding::warning(Code::OtherGpu, at, what).help(help));
    }
    (profile, false)
}

/// Whether a profile of one GPU stands for another: the same one, or one of the same family.
fn is_of(measured: &str, gpu: &str) -> bool {
    let family = calibrate::profiles::of_gpu(gpu);
    measured == gpu || (family.is_some() && family == calibrate::profiles::of_gpu(measured))
}
