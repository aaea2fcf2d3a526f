//! What a choice asks of published runs: one group, one stream of equal requests at a held number in flight, and an engine that was measured.

use engine::cost::published_runs::{Format, Setting};
use engine::formats::Formats;
use serve::replica::{Order, Role};

use super::{CostLaw, Serving, ServingChoice, ServingGroup, Stream};
use input::diagnostic::{Code, Finding};
use input::reader::{Reader, unknown};

/// What is asked of one replica, and how many there are.
pub struct Asked<'s> {
    /// Engine.
    pub framework: &'s str,
    /// Setting of a replica: it holds its part of the requests in flight.
    pub setting: Setting<'s>,
    /// Replicas.
    pub n_replicas: u32,
}

/// What a choice asks; `Err` has what it cannot ask, and what to do.
fn asked<'s>(serving: &'s Serving, choice: &'s ServingChoice) -> Result<Asked<'s>, (String, &'static str)> {
    let wrong = |what: &str, help| Err((format!("`{}`: published runs {what}", choice.name), help));
    let groups = serving.groups_of(choice);
    let streams: Vec<&Stream> = serving.streams.iter().filter(|stream| choice.takes(stream)).collect();
    let (&[group], &[stream]) = (groups.as_slice(), streams.as_slice()) else {
        return wrong(
            "are of one kind of replicas and of requests",
            "name one of `groups` and one of `streams` in each variant",
        );
    };
    let Some((held, (prompt, output))) = stream.held.zip(stream.lengths) else {
        let help = "write `prompt_tokens`, `output_tokens`, `arrivals = \"held\"` and `concurrency`, or leave `law` out to play arrivals";
        return wrong("are means at a held number of equal requests in flight: they tell no queue and no burst", help);
    };
    let formats = serving.deployment_of(choice, group).formats;
    let is_dense = choice.operation.kernels.sparse_weights().is_none();
    let Some(format) = published_format(formats).filter(|_| is_dense) else {
        return wrong("know no such weights", "`format` is bf16, fp8 or 4-bit-experts");
    };
    let n_replicas = serving.replicas_of(choice, group);
    if n_replicas == 0 || !held.is_multiple_of(u64::from(n_replicas)) {
        return wrong(
            "hold as many requests on each replica",
            "`concurrency` is a multiple of the replicas, at least one of which fits the GPUs",
        );
    }
    if let Some(what) = plain(serving, choice, group) {
        return wrong(&format!("have no {what}"), "leave it out, or leave `law` out to play iterations");
    }
    let Some(framework) = &choice.operation.framework else {
        return wrong("are of an engine", "write `framework`, for example \"vllm\"");
    };
    let config = serving.deployment_of(choice, group);
    let (gpus, attention_groups) = (config.n_gpus(), config.lanes().ranks);
    let (prompt, output, concurrency) = (prompt.into(), output.into(), held / u64::from(n_replicas));
    let (model, gpu) = (&group.model, &group.cluster.gpu);
    let setting = Setting { model, gpu, format, gpus, attention_groups, prompt, output, concurrency };
    Ok(Asked { framework, setting, n_replicas })
}

/// The format of published runs that stands for those of a replica: they tell 16 bits, 8 bits and 4-bit experts apart.
fn published_format(formats: Formats) -> Option<Format> {
    let bits = |format: hw::Format| format.weight_bits();
    match (bits(formats.attention), bits(formats.experts)) {
        (16.0, 16.0) => Some(Format::Bf16),
        (_, experts) if experts < 8.0 => Some(Format::FourBitExperts),
        (attention, experts) if attention <= 8.25 && experts <= 8.25 => Some(Format::Fp8),
        _ => None,
    }
}

/// An option that no published run tells apart, if a choice has one.
fn plain(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Option<&'static str> {
    let operation = &choice.operation;
    let kernels = &operation.kernels;
    let given = [
        ("pipeline stages", operation.pipeline_degree > 1),
        ("drafted tokens", operation.drafts.is_some()),
        ("sparse attention", kernels.attention.is_some()),
        ("chunks of their own", kernels.chunking(&choice.limits).is_some()),
        ("prefill and decode on different replicas", group.role != Role::Both),
        ("failures", group.failures.is_some() || !serving.outages.is_empty()),
        ("scaling", group.scaling.is_some()),
        ("capacity question", serving.capacity.is_some()),
        ("adapters", operation.adapters.room().is_some() || !serving.requests.ranks.is_empty()),
        ("images", !serving.requests.images.is_empty()),
        ("clients who leave", !serving.requests.is_patient()),
        ("an order by priority", choice.limits.order == Order::Priority),
        ("choice among several ways", choice.candidate.is_some()),
    ];
    given.into_iter().find(|(_, is_given)| *is_given).map(|(what, _)| what)
}

/// What a checked choice asks.
#[must_use]
pub fn of<'s>(serving: &'s Serving, choice: &'s ServingChoice) -> Option<Asked<'s>> {
    asked(serving, choice).ok()
}

/// A held number of requests in flight is a load of its own: nothing else arrives beside it, and nobody plans for what arrives.
fn check_held(reader: &mut Reader<'_>, serving: &Serving) {
    if serving.streams.iter().all(|stream| stream.users.is_none()) {
        return;
    }
    let is_planned = serving.groups.iter().any(|group| group.scaling.is_some()) || serving.capacity.is_some();
    let is_mixed = serving.choices.iter().any(|choice| serving.users_of(choice).is_none());
    let what = match (is_planned, is_mixed) {
        (true, _) => "users who wait for answers beside `scaling` or `[capacity]`",
        (_, true) => "a variant that serves a stream of waiting users beside others",
        _ => return,
    };
    let help = "a user sends when an answer is there, so there is no rate: write `arrivals = \"poisson\"` with `rate_per_s`, or serve that stream alone";
    reader.find(Finding::error(Code::WrongOperation, None, what).help(help));
}

/// Every choice can be asked where costs are of published runs; elsewhere a held number of requests in flight stands alone.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    let CostLaw::PublishedRuns(laws) = &serving.law else {
        return check_held(reader, serving);
    };
    if !serving.draws.is_empty() {
        let help = "leave it out, or leave `law` out to play arrivals";
        let what = "`trace.seeds` changes nothing: published runs are means, of which nothing is drawn";
        reader.find(Finding::warning(Code::NoEffect, None, what).help(help));
    }
    for choice in &serving.choices {
        match asked(serving, choice) {
            Err((what, help)) => reader.find(Finding::error(Code::WrongOperation, None, what).help(help)),
            Ok(found) if !laws.frameworks().contains(&found.framework) => {
                let what = format!("unknown framework `{}`", found.framework);
                reader.find(unknown(Code::UnknownWord, what, found.framework, laws.frameworks(), None));
            }
            Ok(_) => {}
        }
    }
}
