//! What changes a fleet and what is between its groups: `[fleet.group.failures]`, `[[fleet.outage]]`, `[[fleet.link]]`; `scaling.rs` reads
//! `[fleet.group.scaling]`.

use engine::shard::Shard;
use hw::{Seconds, Span, Time};
use planner::deploy::capacity::Clock;
use serve::capacity::draft_kv_bytes_per_token;
use serve::fleet::dynamics::{Failures, Outage};
use serve::fleet::{Link, Moves};
use serve::kept::Kept;
use serve::replica::Role;

use super::{Serving, ServingChoice, ServingGroup};
use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader, Section, unknown};

/// A link between two groups, by name.
#[derive(Clone, Debug)]
pub struct ServingLink {
    from: String,
    to: String,
    at: Place,
    gb_per_s: Option<f64>,
    latency_s: f64,
    wire_ratio: f64,
}

/// A replica that is lost, by the name of its group.
#[derive(Clone, Debug)]
pub struct ServingOutage {
    group: String,
    at: Place,
    replica: u32,
    at_s: f64,
    notice_s: f64,
    back_after_s: Option<f64>,
}

impl ServingOutage {
    /// Name of the group that loses a replica.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Seconds after the start.
    pub(super) const fn at_s(&self) -> f64 {
        self.at_s
    }

    /// Where it stands.
    pub(super) const fn place(&self) -> &Place {
        &self.at
    }

    /// The same on the clock of a part of the trace; `None` where it is over by then. A replica that is away as the part begins is lost at once, for as
    /// long as it stays away. Notice is the time of a machine, and stays as it is.
    pub(super) fn on(&self, clock: &Clock) -> Option<Self> {
        let at_s = clock.moment_s(self.at_s);
        let lost_s = at_s + self.notice_s;
        let back_after_s = self.back_after_s.map(|after_s| clock.lasting_s(after_s) + lost_s.min(0.0));
        let notice_s = if at_s < 0.0 { lost_s.max(0.0) } else { self.notice_s };
        let outage = Self { at_s: at_s.max(0.0), notice_s, back_after_s, ..self.clone() };
        back_after_s.is_none_or(|after_s| after_s > 0.0 || lost_s >= 0.0).then_some(outage)
    }
}

impl ServingLink {
    /// Names of the groups that it comes from and goes to.
    pub(super) fn ends(&self) -> [&str; 2] {
        [&self.from, &self.to]
    }

    /// What all that goes there shares, where it is limited.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        self.gb_per_s.map(|rate| rate * 1e9)
    }

    /// Where it stands.
    pub(super) const fn place(&self) -> &Place {
        &self.at
    }
}

fn group_name(section: &mut Section<'_>, key: &'static str) -> String {
    const HELP: &str = "the name of a `[[fleet.group]]`";
    let Some((name, at)) = section.text(key) else {
        section.missing(key, HELP);
        return String::new();
    };
    if name.is_empty() {
        section.refuse(Code::UnknownGroup, at, format!("`{key}` names no group"), HELP);
    }
    name
}

/// `failures` of a group.
pub fn failures(section: &mut Section<'_>) -> Option<Failures> {
    let mut table = section.table("failures")?;
    let mut mean = |key, help| Seconds::new(table.needed(key, 1e-3..=1e9, help));
    let (mtbf, mttr) =
        (mean("mtbf_s", "mean seconds until a replica fails"), mean("mttr_s", "mean seconds until it is back"));
    table.finish();
    Some(Failures { mtbf, mttr, seed: 0 })
}

/// `[[fleet.link]]`.
pub fn link(mut section: Section<'_>) -> ServingLink {
    let link = ServingLink {
        from: group_name(&mut section, "from"),
        to: group_name(&mut section, "to"),
        at: section.at(),
        gb_per_s: section.some_number("gb_per_s", 1e-3..=1e6),
        latency_s: section.number("latency_us", 0.0, 0.0..=1e9) / 1e6,
        wire_ratio: section.number("wire_ratio", 1.0, 0.01..=1.0),
    };
    section.finish();
    link
}

/// `[[fleet.outage]]`.
pub fn outage(mut section: Section<'_>) -> ServingOutage {
    let outage = ServingOutage {
        group: group_name(&mut section, "group"),
        at: section.at(),
        replica: section.small("replica", Some(0), 0..=100_000),
        at_s: section.needed("at_s", 0.0..=8e6, "seconds after the start"),
        notice_s: section.number("notice_s", 0.0, 0.0..=1e6),
        back_after_s: section.some_number("back_after_s", 0.0..=8e6),
    };
    section.finish();
    outage
}

/// Names stand for groups, and every prefill group of a choice has somebody who decodes.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    let names: Vec<&str> = serving.groups.iter().map(|group| group.name.as_str()).collect();
    let ends = serving.links.iter().flat_map(|link| [(&link.from, &link.at), (&link.to, &link.at)]);
    let lost = serving.outages.iter().map(|outage| (&outage.group, &outage.at));
    let nowhere = None;
    let chosen = serving.choices.iter().flat_map(|choice| choice.groups.iter().map(|name| (name, &nowhere)));
    for (name, at) in ends.chain(lost).chain(chosen) {
        // An empty name was refused where it was read.
        if !name.is_empty() && !names.contains(&name.as_str()) {
            let what = format!("unknown group `{name}`");
            reader.find(unknown(Code::UnknownGroup, what, name, names.iter().copied(), at.clone()));
        }
    }
    for outage in &serving.outages {
        let group = serving.groups.iter().find(|group| group.name == outage.group);
        if let Some(group) = group.filter(|group| group.n_replicas > 0 && outage.replica >= group.n_replicas) {
            let what =
                format!("`fleet.outage.replica` = {}, group `{}` has {}", outage.replica, group.name, group.n_replicas);
            reader.refuse(Code::UnknownPosition, outage.at.clone(), what, "replicas count from 0");
        }
    }
    links_twice(reader, serving);
    idle_links(reader, serving);
    idle_outages(reader, serving);
    for choice in &serving.choices {
        let groups = serving.groups_of(choice);
        let has = |model, role| groups.iter().any(|group| group.model_index == model && group.role == role);
        let missing = |group: &&ServingGroup| match group.role {
            Role::Prefill if !has(group.model_index, Role::Decode) => {
                Some("computes prompts that no group decodes; add one with `role = \"decode\"`")
            }
            Role::Decode if !has(group.model_index, Role::Prefill) => {
                Some("decodes what no group prefills; add one with `role = \"prefill\"`")
            }
            _ => None,
        };
        if let Some(missing) = groups.iter().find_map(missing) {
            reader.wrong(Code::MissingRole, None, format!("`{}` {missing}", choice.name));
        }
    }
}

/// Two groups have one link in a direction.
fn links_twice(reader: &mut Reader<'_>, serving: &Serving) {
    for (index, link) in serving.links.iter().enumerate() {
        let is_same = |other: &ServingLink| [&other.from, &other.to] == [&link.from, &link.to];
        if serving.links[..index].iter().any(is_same) {
            let what = format!("two links go from `{}` to `{}`", link.from, link.to);
            reader.refuse(
                Code::TwiceNamed,
                link.at.clone(),
                what,
                "one link has all that goes from the one to the other",
            );
        }
    }
}

/// Keys and values go over links from groups that compute prompts to those that decode. What is lent goes over the network cards alone.
fn idle_links(reader: &mut Reader<'_>, serving: &Serving) {
    let group = |name: &str| serving.groups.iter().find(|group| group.name == name);
    for link in &serving.links {
        let (Some(from), Some(to)) = (group(&link.from), group(&link.to)) else { continue };
        // A fleet with and without a group is one scenario.
        if from.n_replicas == 0 || to.n_replicas == 0 {
            continue;
        }
        let is_of = |choice: &ServingChoice, name: &String| choice.groups.is_empty() || choice.groups.contains(name);
        let is_one_model = from.model_index == to.model_index;
        let hands_on = is_one_model && from.role == Role::Prefill && to.role == Role::Decode;
        let is_taken = |choice: &ServingChoice| [&link.from, &link.to].iter().all(|name| is_of(choice, name));
        if !hands_on || !serving.choices.iter().any(is_taken) {
            let what = format!("the link from `{}` to `{}` changes nothing: nothing goes there", link.from, link.to);
            let help = "keys and values go from a group with `role = \"prefill\"` to one with `role = \"decode\"` of the same policy and model";
            reader.warn(Code::NoEffect, link.at.clone(), what, help);
        }
    }
}

/// An outage of a replica that a way with `replicas` of its own does not have, and what to do.
pub(super) fn of_nobody(
    serving: &Serving,
    choice: &ServingChoice,
    group: &ServingGroup,
) -> Option<(Code, String, String)> {
    let n = choice.replicas.map(|_| serving.replicas_of(choice, group))?;
    let outage = serving.outages.iter().find(|outage| outage.group == group.name && outage.replica >= n)?;
    let what = format!("`fleet.outage.replica` = {}, and it has {n}", outage.replica);
    Some((
        Code::UnknownPosition,
        what,
        "replicas count from 0: more `replicas`, or an outage of one of them".to_owned(),
    ))
}

/// Outages of replicas that a way with other degrees does not have: it loses its last one then.
pub(super) fn of_fewer(serving: &Serving) -> Vec<Finding> {
    let mut found = Vec::new();
    for outage in &serving.outages {
        let has_fewer = |(choice, group): &(&ServingChoice, &ServingGroup)| {
            group.name == outage.group && serving.replicas_of(choice, group) <= outage.replica
        };
        let tried = serving.choices.iter().filter(|choice| choice.is_tried());
        let mut on = tried.flat_map(|choice| serving.groups_of(choice).into_iter().map(move |group| (choice, group)));
        let Some((choice, group)) = on.find(has_fewer) else { continue };
        let n = serving.replicas_of(choice, group);
        let what = format!(
            "`fleet.outage.replica` = {}, and with the degrees of `{}` the GPUs of `{}` are {n} replicas: the last one is lost",
            outage.replica,
            choice.candidate.as_ref().map_or(&choice.name, |candidate| &candidate.of),
            outage.group
        );
        let help = "let a replica be lost that every way of serving has";
        found.push(Finding::warning(Code::UnknownPosition, outage.at.clone(), what).help(help));
    }
    found
}

/// A replica that is lost already is not lost again.
fn idle_outages(reader: &mut Reader<'_>, serving: &Serving) {
    // Of a group that scales another machine takes the place of one that does not come back.
    let is_scaled = |name: &str| serving.groups.iter().any(|group| group.name == name && group.scaling.is_some());
    let lost_s = |outage: &ServingOutage| outage.at_s + outage.notice_s;
    for (index, outage) in serving.outages.iter().enumerate() {
        let holds = |(other_index, other): (usize, &ServingOutage)| {
            let never = if is_scaled(&other.group) { lost_s(other) } else { f64::INFINITY };
            let back_s = other.back_after_s.map_or(never, |after| lost_s(other) + after);
            let is_first = (other.at_s, lost_s(other), other_index) < (outage.at_s, lost_s(outage), index);
            other_index != index
                && (&other.group, other.replica) == (&outage.group, outage.replica)
                && is_first
                && lost_s(other) <= lost_s(outage)
                && lost_s(outage) < back_s
        };
        if serving.outages.iter().enumerate().any(holds) {
            let what = format!(
                "the outage of replica {} of `{}` at {} s changes nothing: it is lost already",
                outage.replica, outage.group, outage.at_s
            );
            reader.warn(
                Code::NoEffect,
                outage.at.clone(),
                what,
                "let it begin when the other one is over, or leave it out",
            );
        }
    }
}

/// Bytes of keys and values of a token in layers that keep all, each once, in the format of a group. What a draft keeps of its own moves and is lent with
/// them. Source: sgl-project/sglang, `srt/disaggregation/prefill.py` ("we should also transfer draft model kv cache"); vLLM registers the caches of all layers.
pub fn kv_bytes(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> u64 {
    let deployment = serving.deployment_of(choice, group);
    deployment.kv_bytes_per_token(1) + draft_kv_bytes_per_token(&deployment, 1)
}

/// What a group hands on of a prompt that it computed: that of all layers, and what a sequence keeps in layers that forget.
pub fn moves(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Moves {
    let deployment = serving.deployment_of(choice, group);
    Moves {
        kv_bytes_per_token: hw::real(kv_bytes(serving, choice, group)),
        kept: Kept::of(&Shard { formats: deployment.formats, ..Shard::forward(&group.model, deployment.dtype, 1) }),
    }
}

/// Links between the groups of a choice; those that nobody wrote have the latency of the machines alone. Packing reads what memory holds and writes what goes
/// over the wire, unpacking the other way round, both at the memory bandwidth of the replica's GPUs: the least that it can take.
pub fn links(serving: &Serving, choice: &ServingChoice) -> Vec<Link> {
    let groups = serving.groups_of(choice);
    let position = |name: &str| groups.iter().position(|group| group.name == name);
    let pack = |sender: &ServingGroup, group: &ServingGroup, ratio: f64| {
        let n_gpus = f64::from(serving.deployment_of(choice, group).n_gpus());
        hw::real(kv_bytes(serving, choice, sender)) * (1.0 + ratio)
            / (group.cluster.gpu.memory_bandwidth.get() * n_gpus)
    };
    let link = |link: &ServingLink| {
        let (from, to) = (position(&link.from)?, position(&link.to)?);
        let ratio = link.wire_ratio;
        let both = [groups[from], groups[to]];
        let pack = if ratio < 1.0 { both.map(|at| pack(groups[from], at, ratio)).iter().sum() } else { 0.0 };
        Some(Link {
            from,
            to,
            bytes_per_s: link.bytes_per_s(),
            wire: None,
            latency_s: link.latency_s,
            wire_ratio: ratio,
            pack_s_per_token: pack,
        })
    };
    let mut links: Vec<Link> = serving.links.iter().filter_map(link).collect();
    for (from, prefill) in groups.iter().enumerate().filter(|(_, group)| group.role == Role::Prefill) {
        let decodes = |group: &ServingGroup| (group.role, group.model_index) == (Role::Decode, prefill.model_index);
        for (to, decode) in groups.iter().enumerate().filter(|(_, group)| decodes(group)) {
            if !links.iter().any(|link| (link.from, link.to) == (from, to)) {
                let latency_s = latency_s(serving, choice, [prefill, decode]);
                let (bytes_per_s, wire) = (None, None);
                links.push(Link { from, to, bytes_per_s, wire, latency_s, wire_ratio: 1.0, pack_s_per_token: 0.0 });
            }
        }
    }
    links
}

/// Seconds before the first byte between two groups: of the network, unless all groups of a choice fit one node.
fn latency_s(serving: &Serving, choice: &ServingChoice, ends: [&ServingGroup; 2]) -> f64 {
    let is_one_node = serving.is_one_node(choice);
    let latency = |group: &ServingGroup| {
        if is_one_node { group.cluster.intra_node_latency } else { group.cluster.inter_node_latency }
    };
    ends.map(|group| latency(group).get()).into_iter().fold(0.0, f64::max)
}

/// Outages of the groups of a choice.
pub fn outages(serving: &Serving, choice: &ServingChoice) -> Vec<Outage> {
    let groups = serving.groups_of(choice);
    let outage = |outage: &ServingOutage| {
        let group = groups.iter().position(|group| group.name == outage.group)?;
        // A choice with larger replicas has fewer of them (`of_fewer`).
        let replica = outage.replica.min(serving.replicas_of(choice, groups[group]).saturating_sub(1));
        Some(Outage {
            group,
            replica,
            at: Time::ZERO + Span::from_seconds(Seconds::new(outage.at_s)),
            notice: Seconds::new(outage.notice_s),
            back_after: outage.back_after_s.map(Seconds::new),
        })
    };
    serving.outages.iter().filter_map(outage).collect()
}
