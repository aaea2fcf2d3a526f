//! `host_weights` of `[engine]`: weights of layers in the memory of the host, where a device has no room for all of them.

use hw::Bytes;
use serve::step_cost::host_weights::{HostPart, HostWay, HostWeights};
use serve::step_cost::{ReplicaConfig, host_bytes};

use super::{CostLaw, Serving, ServingChoice, ServingGroup};
use input::diagnostic::Code;
use input::reader::{Section, small};

/// What may lie there.
const PARTS: [(&str, HostPart); 2] = [("all", HostPart::All), ("experts", HostPart::Experts)];
/// Whether so many bytes are copied before they are needed, or read by the kernels that need them.
const WAYS: [(&str, bool); 2] = [("in-place", false), ("copied", true)];
/// Layers of a group, at most.
const LAYERS_MAX: u64 = 1024;

/// `host_weights = { gib = 20 }`, or `{ layers = 1, of = 4, ahead = 1 }`; none with `gib = 0`.
pub fn host_weights(mut section: Section<'_>) -> Option<HostWeights> {
    let given = section.alternatives(&["gib", "layers"]);
    let part = section.one_of("part", HostPart::All, &PARTS);
    let way = match given[..] {
        ["layers"] => Some(ahead(&mut section)),
        ["gib"] => bytes(&mut section),
        _ => {
            let what = "`host_weights` has a size or a share of the layers";
            section.refuse_all(Code::WrongOperation, what, "`{ gib = 20 }`, or `{ layers = 1, of = 4 }`, one of both");
            // They are known, whichever is meant.
            for key in ["gib", "layers", "of", "ahead", "way"] {
                section.take(key);
            }
            None
        }
    };
    section.finish();
    way.map(|way| HostWeights { way, part })
}

/// `gib` and `way`.
fn bytes(section: &mut Section<'_>) -> Option<HostWay> {
    section.idle(&["of", "ahead"], "`layers` in place of `gib`");
    let gib = section.number("gib", 0.0, 0.0..=1e5);
    let is_copied = section.one_of("way", false, &WAYS);
    let bytes = Bytes::from_gib(gib);
    (gib > 0.0).then_some(if is_copied { HostWay::Copied(bytes) } else { HostWay::InPlace(bytes) })
}

/// `layers`, `of` and `ahead`.
fn ahead(section: &mut Section<'_>) -> HostWay {
    section.idle(&["way"], "`gib` in place of `layers`");
    let n = section.small("layers", Some(1), 1..=LAYERS_MAX);
    let (of, of_at) = section.count("of", Some(n.into()), 1..=LAYERS_MAX);
    let ahead = section.small("ahead", Some(1), 1..=LAYERS_MAX);
    if of < n.into() {
        let what = format!("{n} `layers` `of` {of}");
        section.refuse(Code::WrongOperation, of_at, what, "layers in host memory are the last ones of every `of`");
    }
    HostWay::Ahead { n, of: small(of).max(n), ahead }
}

/// What is wrong with weights in host memory of a choice on a group, and what to do.
pub(super) fn misfit(
    serving: &Serving,
    choice: &ServingChoice,
    group: &ServingGroup,
) -> Option<(String, &'static str)> {
    let weights = choice.operation.host_weights?;
    let deployment = serving.deployment_of(choice, group);
    if matches!(serving.law, CostLaw::Stages(_)) {
        let what = "`host_weights` beside `cost.stage_ms`, which gives the time of a stage wherever its weights lie"
            .to_owned();
        return Some((what, "costs of operations, or no `host_weights`"));
    }
    if deployment.sparse_weights.is_some() {
        let what = "`host_weights` beside weights that are kept sparse".to_owned();
        return Some((what, "dense weights: no engine reads sparse ones out of host memory"));
    }
    if deployment.ffn.is_some() {
        let what = "`host_weights` beside `ffn`: two sides keep their layers by other rules".to_owned();
        return Some((what, "one of both"));
    }
    if weights.part == HostPart::Experts && group.model.experts.is_none() {
        let what = format!("`host_weights` of experts, and `{}` has none", group.model.name);
        return Some((what, "`part = \"all\"`"));
    }
    let kept = kept(&deployment, weights);
    if kept.iter().all(|bytes| *bytes == Bytes(0)) {
        let what = format!("`host_weights` takes none of the layers of `{}`", group.model.name);
        return Some((what, "an `of` of no more layers than a stage has"));
    }
    let of_node = kept.iter().map(|bytes| bytes.as_f64()).fold(0.0, f64::max) * f64::from(group.cluster.gpus_per_node);
    let room = group.cluster.host_memory?;
    (of_node > room.as_f64()).then(|| {
        let (needs, has) = (of_node / hw::GIB, room.as_f64() / hw::GIB);
        let what = format!("`host_weights` of a node take {needs:.0} GiB, and `host_memory_gib` is {has:.0}");
        (what, "fewer weights in host memory, or more of it")
    })
}

/// Bytes of a GPU of every stage.
fn kept(deployment: &ReplicaConfig<'_>, weights: HostWeights) -> Vec<Bytes> {
    deployment.stages().iter().map(|stage| host_bytes::kept(weights, deployment, stage)).collect()
}
