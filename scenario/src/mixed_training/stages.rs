//! `[[stage]]`: layers of a pipeline's stage and the cards of its replicas, or measured times and sizes in place of a model.

use train::mixed_gpus::{self, Group, MixedJob, MixedStage, Pipelines, Sizes, Slot, Times};

use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader, Section, unknown};

/// Times of a stage on a replica's cards.
const TIMES: [&str; 3] = ["forward_ms", "backward_ms", "update_ms"];
/// What a measured stage exchanges.
const SIZES: [&str; 2] = ["message_mb", "gradient_mb"];

/// Reads every stage, and where each stands; `None` where there are none.
pub fn stages(top: &mut Section<'_>, groups: &[Group]) -> Option<(Vec<MixedStage>, Vec<Place>)> {
    let (mut stages, mut places) = (Vec::new(), Vec::new());
    top.each_table("stage", &mut |table| {
        places.push(table.at());
        stages.push(stage(table, groups));
    });
    Some((stages, places)).filter(|(stages, _)| !stages.is_empty())
}

fn stage(mut section: Section<'_>, groups: &[Group]) -> MixedStage {
    let layers = section.small("layers", Some(0), 1..=10_000);
    let has_sizes = SIZES.iter().any(|key| section.has(key));
    let [message, gradients] = SIZES.map(|key| mixed_gpus::megabytes(section.number(key, 0.0, 0.0..=1e9)));
    let (at, is_given, mut slots) = (section.at(), section.has("replicas"), Vec::new());
    section.each_table("replicas", &mut |table| slots.extend(slot(table, groups)));
    let help = "a list such as [{ group = \"a100\", gpus = 8 }]";
    section.needs("replicas", help);
    if slots.is_empty() && is_given {
        section.refuse(Code::WrongStages, at, "a stage has no replicas that can be read", help);
    }
    section.finish();
    MixedStage { layers, slots, sizes: has_sizes.then_some(Sizes { message, gradients, gathered: gradients }) }
}

fn slot(mut section: Section<'_>, groups: &[Group]) -> Option<Slot> {
    section.needs("group", "the name of a `[[group]]`");
    let named = section.text("group");
    let n_gpus = section.small("gpus", Some(1), 1..=1024);
    let is_timed = TIMES.iter().any(|key| section.has(key));
    let [forward_s, backward_s, update_s] =
        TIMES.map(|key| mixed_gpus::milliseconds(section.number(key, 0.0, 0.0..=1e9)));
    if is_timed {
        TIMES.iter().take(2).for_each(|key| section.needs(key, "measured times come together"));
    }
    let (name, at) = named?;
    let Some(group) = groups.iter().position(|group| group.name == name) else {
        let known = groups.iter().map(|group| group.name.as_str());
        section.find(unknown(Code::UnknownGroup, format!("no group is called `{name}`"), &name, known, at));
        section.rest();
        return None;
    };
    let cluster = &groups[group].cluster;
    let domain = cluster.domain();
    if !domain.is_multiple_of(n_gpus) {
        let what = format!("a tensor group of {n_gpus} GPUs does not divide a node of `{name}`, which has {domain}");
        section.refuse(Code::UnevenDegree, section.at(), what, "a tensor group lies inside a node");
    }
    section.finish();
    Some(Slot { group, n_gpus, times: is_timed.then_some(Times { forward_s, backward_s, update_s }) })
}

/// Checks what only shows when stages, machines and model are seen together.
pub fn checks(reader: &mut Reader<'_>, job: &MixedJob, given: Option<(&Pipelines, &[Place])>, is_searched: bool) {
    let Some((plan, places)) = given else {
        let what = "policy `given` runs the stages of the file, and it has no `[[stage]]`";
        reader.refuse(Code::MissingKey, None, what, "write `[[stage]]`, or run `search` alone");
        return;
    };
    let before = reader.n_errors();
    replicas(reader, job, plan, &places[0]);
    sources(reader, job, plan, &places[0]);
    gpus(reader, job, plan, &places[0]);
    if reader.n_errors() == before {
        links(reader, job, plan, places);
        if !is_searched {
            unused(reader, job, plan, &places[0]);
        }
    }
}

/// Every stage has as many replicas, which share the micro-batches of the step.
fn replicas(reader: &mut Reader<'_>, job: &MixedJob, plan: &Pipelines, at: &Place) {
    let n: Vec<usize> = plan.stages.iter().map(|stage| stage.slots.len()).collect();
    if n.iter().any(|other| *other != n[0]) {
        let what = format!("stages have {n:?} replicas");
        reader.refuse(Code::WrongStages, at.clone(), what, "each stage has as many replicas as there are pipelines");
        return;
    }
    let (shares, all) = (&plan.micro_batches, job.batch.n_micro_batches());
    let is_shared = shares.len() == n[0] && shares.iter().map(|n| u64::from(*n)).sum::<u64>() == u64::from(all);
    if !shares.is_empty() && !is_shared {
        let what =
            format!("`training.micro_batches` is {shares:?}: the step has {all}, and there are {} replicas", n[0]);
        reader.refuse(Code::WrongShares, at.clone(), what, "one number for each replica, all micro-batches in total");
    } else if (all as usize) < n[0] {
        let what = format!("{} replicas share {all} micro-batches", n[0]);
        reader.refuse(
            Code::WrongShares,
            at.clone(),
            what,
            "each replica computes one at least: raise `training.batch_size`",
        );
    }
}

/// A model says what stages take, or each was measured.
fn sources(reader: &mut Reader<'_>, job: &MixedJob, plan: &Pipelines, at: &Place) {
    let slots = || plan.stages.iter().flat_map(|stage| &stage.slots);
    match &job.problem {
        Some(problem) => {
            let sum: u64 = plan.stages.iter().map(|stage| u64::from(stage.layers)).sum();
            let is_whole = plan.stages.iter().all(|stage| stage.layers > 0);
            if sum != problem.model.n_layers || !is_whole {
                let what = format!(
                    "stages have {:?} layers, `{}` has {}",
                    plan.layers(),
                    problem.model.name,
                    problem.model.n_layers
                );
                reader.refuse(Code::WrongStages, at.clone(), what, "`layers` of every stage, all layers in total");
            }
            if slots().any(|slot| slot.times.is_some()) || plan.stages.iter().any(|stage| stage.sizes.is_some()) {
                let what = "a stage has measured times or sizes, and `[model]` says the same";
                let help = "leave `[model]` out where all stages are measured, or leave times and sizes out";
                reader.refuse(Code::ExclusiveKeys, at.clone(), what, help);
            }
            let heads = problem.model.n_heads;
            if let Some(slot) = slots().find(|slot| !heads.is_multiple_of(u64::from(slot.n_gpus))) {
                let what = format!("tensor groups of {} GPUs do not divide the {heads} attention heads", slot.n_gpus);
                reader.refuse(Code::UnevenDegree, at.clone(), what, "`gpus` of a replica is a tensor degree");
            }
            if let Some(slot) = slots().find(|slot| !job.groups[slot.group].has_card) {
                let name = &job.groups[slot.group].name;
                let what = format!("group `{name}` names no card, and no times are given there");
                let help = "give its `gpu`; `skrull-sim list gpus` shows the catalogue";
                reader.refuse(Code::MissingKey, at.clone(), what, help);
            }
        }
        None if slots().any(|slot| slot.times.is_none()) || plan.stages.iter().any(|stage| stage.sizes.is_none()) => {
            let what = "without `[model]` every replica needs `forward_ms` and `backward_ms`, and every stage `message_mb` and `gradient_mb`";
            reader.refuse(Code::MissingKey, at.clone(), what, "name a model, or give all of them");
        }
        None => {}
    }
}

/// No group has more GPUs taken than it has.
fn gpus(reader: &mut Reader<'_>, job: &MixedJob, plan: &Pipelines, at: &Place) {
    for (index, group) in job.groups.iter().enumerate() {
        let (taken, there) = (plan.n_gpus_of(index), group.cluster.n_gpus());
        if taken > there {
            let what = format!("stages take {taken} GPUs of group `{}`, which has {there}", group.name);
            reader.refuse(Code::WrongGpuCount, at.clone(), what, "lower `gpus` or the replicas, or raise `nodes`");
        } else if taken < there {
            let what = format!("group `{}` has {there} GPUs, of which stages take {taken}", group.name);
            let finding = Finding::warning(Code::WrongGpuCount, at.clone(), what);
            reader.find(finding.help("the rest is not paid for and computes nothing"));
        }
    }
}

/// Zones that exchange something have a link.
fn links(reader: &mut Reader<'_>, job: &MixedJob, plan: &Pipelines, places: &[Place]) {
    for (stage, unlinked) in job.unlinked(plan) {
        let help = "write `[[link]]` with `between`, `gb_per_s` and, where it is paid, `usd_per_gb`";
        reader.refuse(Code::NoLink, places[stage].clone(), unlinked.to_string(), help);
    }
}

/// Links that nothing crosses, where no search may use them.
fn unused(reader: &mut Reader<'_>, job: &MixedJob, plan: &Pipelines, at: &Place) {
    for link in job.unused(plan) {
        let what = format!("nothing crosses the link between `{}` and `{}`", link.zones[0], link.zones[1]);
        reader.warn(Code::NoEffect, at.clone(), what, "leave it out, or place stages at both of its ends");
    }
}
