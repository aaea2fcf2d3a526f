//! What a choice asks of published runs: one group, one stream of equal requests at a held number in flight, and an engine that was measured.

use score::steady::{self, Asked};
use serve::fleet::held::Users;
use serve::replica::{Order, Role};

use super::{CostLaw, Serving, ServingChoice, ServingGroup, Stream};
use input::diagnostic::Code;
use input::reader::{Reader, unknown};

/// What a choice asks of a replica, and how many there are; `Err` has what it cannot ask, and what to do.
fn asked<'s>(serving: &'s Serving, choice: &'s ServingChoice) -> Result<(Asked<'s>, u32), (String, &'static str)> {
    let wrong = |what: &str, help| Err((format!("`{}`: published runs {what}", choice.name), help));
    let groups = serving.groups_of(choice);
    let streams: Vec<&Stream> = serving.streams.iter().filter(|stream| choice.takes(stream)).collect();
    let (&[group], &[stream]) = (groups.as_slice(), streams.as_slice()) else {
        return wrong(
            "are of one kind of replicas and of requests",
            "name one of `groups` and one of `streams` in each variant",
        );
    };
    let held = stream.held.map(|n| choice.concurrency.map_or(n, |own| own.get().into()));
    let Some((held, (prompt, output))) = held.zip(stream.lengths) else {
        let help = "write `prompt_tokens`, `output_tokens`, `arrivals = \"held\"` and `concurrency`, or leave `law` out to play arrivals";
        return wrong("are means at a held number of equal requests in flight: they tell no queue and no burst", help);
    };
    let config = serving.deployment_of(choice, group);
    let formats = config.formats;
    if steady::word(formats).is_none() || choice.operation.kernels.sparse_weights().is_some() {
        return wrong("know no such weights", "`format` is 16 or 8 bits wide, or 4 bits in the experts");
    }
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
    let Some(engine) = &choice.operation.framework else {
        return wrong("are of an engine", "write `framework`, for example \"vllm\"");
    };
    let Ok(in_flight) = u32::try_from(held / u64::from(n_replicas)) else {
        return wrong("hold fewer requests", "`concurrency` is at most four billion on a replica");
    };
    let (gpus, attention_groups, lengths) = (config.n_gpus(), config.lanes().ranks, [prompt, output]);
    let (model, gpu) = (&group.model, &group.cluster.gpu);
    let asked = Asked { engine, model, gpu, formats, gpus, attention_groups, lengths, in_flight };
    Ok((asked, n_replicas))
}

/// An option that no published run tells apart, if a choice has one.
fn plain(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Option<&'static str> {
    let operation = &choice.operation;
    let kernels = &operation.kernels;
    let given = [
        ("pipeline stages", operation.pipeline_degree > 1),
        ("experts on GPUs of their own", operation.ffn.or(group.ffn).is_some()),
        ("drafted tokens", operation.drafts.is_some()),
        ("sparse attention", kernels.attention.is_some()),
        ("chunks of their own", kernels.chunking(&choice.limits).is_some()),
        ("prefill and decode on different replicas", group.role != Role::Both),
        ("failures", group.failures.is_some() || !serving.outages.is_empty()),
        ("scaling", group.scaling.is_some()),
        ("capacity question", serving.capacity.is_some()),
        ("experts that were counted or lie twice", serving.engine.experts.is_written()),
        ("keys and values below the device", operation.has_tiers()),
        ("weights in host memory", operation.host_weights.is_some()),
        ("adapters", operation.adapters.room().is_some() || !serving.requests.ranks.is_empty()),
        ("images", !serving.requests.images.is_empty()),
        ("clients who leave", !serving.requests.is_patient()),
        ("an order by priority", choice.limits.order == Order::Priority),
        ("choice among several ways", choice.candidate.is_some()),
    ];
    given.into_iter().find(|(_, is_given)| *is_given).map(|(what, _)| what)
}

/// What a checked choice asks.
pub fn of<'s>(serving: &'s Serving, choice: &'s ServingChoice) -> Option<(Asked<'s>, u32)> {
    asked(serving, choice).ok()
}

/// A held number of requests in flight is a load of its own: nothing else arrives beside it, and nobody plans for what arrives. Sessions that arrive at a
/// rate stand beside other streams, autoscalers and `[capacity]`; who plans for arrivals does not know when further turns come.
fn check_users(reader: &mut Reader<'_>, serving: &Serving) {
    let held = serving.streams.iter().find(|stream| matches!(stream.users, Some(Users::Held { .. })));
    let sessions = serving.streams.iter().find(|stream| stream.users == Some(Users::OfSessions));
    let is_scaled = serving.groups.iter().any(|group| group.scaling.is_some()) || serving.capacity.is_some();
    let is_planned = serving.groups.iter().any(|group| group.scaling.as_ref().is_some_and(|of| of.planned.is_some()));
    let without = serving
        .choices
        .iter()
        .find(|choice| choice.concurrency.is_some() && !matches!(serving.users_of(choice), Some(Users::Held { .. })));
    if let Some(choice) = without {
        let what = format!("`concurrency` of `{}`, and no number of requests is held", choice.shown_name());
        let help = "`arrivals = \"held\"` in `[trace]`: elsewhere requests come by themselves";
        return reader.refuse(Code::WrongOperation, None, what, help);
    }
    let n_taken = |choice: &ServingChoice| serving.streams.iter().filter(|stream| choice.takes(stream)).count();
    let is_mixed = |stream: &Stream| serving.choices.iter().any(|choice| choice.takes(stream) && n_taken(choice) > 1);
    const NO_RATE: &str = "a user sends when an answer is there, so there is no rate: write `arrivals = \"poisson\"` with `rate_per_s`, or serve that \
                           stream alone";
    let (stream, what, help) = match (held, sessions) {
        (Some(held), _) if is_scaled => {
            (held, "a number of users who wait for answers beside `scaling` or `[capacity]`", NO_RATE)
        }
        (Some(held), _) if is_mixed(held) => {
            (held, "a variant that serves a stream of a held number of users beside others", NO_RATE)
        }
        (_, Some(sessions)) if is_planned => (
            sessions,
            "sessions beside a rule of `scaling` that plans",
            "a plan counts requests as they arrive, and further turns arrive when answers are there: `rule = \"concurrency\"`, or no sessions",
        ),
        _ => return,
    };
    reader.refuse(Code::WrongOperation, stream.users_at.clone(), what, help);
}

/// Every choice can be asked where costs are of published runs; elsewhere a held number of requests in flight stands alone.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    let CostLaw::PublishedRuns(learned) = &serving.law else {
        return check_users(reader, serving);
    };
    if !serving.draws.is_empty() {
        let help = "leave it out, or leave `law` out to play arrivals";
        let what = "`trace.seeds` changes nothing: published runs are means, of which nothing is drawn";
        reader.warn(Code::NoEffect, None, what, help);
    }
    for choice in &serving.choices {
        match asked(serving, choice) {
            Err((what, help)) => reader.refuse(Code::WrongOperation, None, what, help),
            Ok((found, _)) if !learned.engines().contains(&found.engine) => {
                let what = format!("unknown framework `{}`", found.engine);
                reader.find(unknown(Code::UnknownWord, what, found.engine, learned.engines(), None));
            }
            Ok(_) => {}
        }
    }
}
