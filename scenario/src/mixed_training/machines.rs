//! `[[group]]` and `[[link]]`: machines of one card in one zone, and what connects zones.

use calibrate::profiles;
use engine::task::Collective;
use hw::{Bytes, Cluster, InsideLink, Seconds};
use toml_span::value::ValueInner;
use train::Problem;
use train::layout::Zero;
use train::long_run::{LongRun, gigabytes, hours};
use train::mixed_gpus::{self, Group, Link, MixedJob, Pipelines};
use train::optimizer::Rule;
use train::problem::{AttentionKernel, Framework, Launches};

use crate::cluster;
use crate::network::{Exchanges, OF_DENSE, SUMS, Written};
use crate::training::long_run;
use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader, Section, items, number, unknown};

/// Memory of a host of a group, and what joins its GPUs to it.
const HOST: [&str; 3] = ["host_memory_gib", "host_gb_per_s", "gpus_per_switch"];
/// How often a GPU of a group fails.
const MTBF: &str = "gpu_mtbf_hours";

/// What stands in all groups.
#[derive(Default)]
pub struct Machines {
    /// Machines.
    pub groups: Vec<Group>,
    /// How the network of each carries exchanges.
    pub networks: Vec<Written>,
    /// Keys of hosts that are written, with their groups.
    pub hosts: Vec<(usize, &'static str, Place)>,
    /// Where times between failures are written.
    pub mtbfs: Vec<Place>,
    /// Memory that is not the job's on any card.
    pub reserved: Bytes,
}

/// Reads every group.
pub fn groups(top: &mut Section<'_>) -> Machines {
    let (mut all, mut is_given) = (Machines::default(), false);
    top.each_table("group", &mut |table| {
        is_given = true;
        let (network, mtbf, index) = (Written::inside(&table), table.place(MTBF), all.groups.len());
        let hosts = HOST.map(|key| Some((index, key, table.place(key)?)));
        if let Some((group, bytes)) = group(table, &all.groups) {
            all.reserved = all.reserved.max(bytes);
            all.groups.push(group);
            all.networks.push(network);
            all.hosts.extend(hosts.into_iter().flatten());
            all.mtbfs.extend(mtbf);
        }
    });
    let groups = &all.groups;
    if !is_given {
        top.missing("group", "write `[[group]]` with `name`, `gpu` and `nodes`");
    }
    let has_price = |group: &&Group| group.usd_per_gpu_hour > 0.0;
    if let Some(free) =
        groups.iter().find(|group| !has_price(group)).filter(|_| groups.iter().any(|group| has_price(&group)))
    {
        let what = format!("group `{}` has no price beside groups that have one, so its GPUs cost nothing", free.name);
        top.find(
            Finding::warning(Code::NoPrice, None, what).help("write `usd_per_gpu_hour` in every group, or in none"),
        );
    }
    all
}

/// A run of days over all groups, where one is asked for.
pub fn run(reader: &mut Reader<'_>, groups: &[Group], mtbfs: Vec<Place>, has_model: bool) -> Option<LongRun> {
    let is_drawn = reader.has("failures") && reader.peek_in("failures", "at_hours").is_none();
    for at in mtbfs.into_iter().filter(|_| !is_drawn) {
        let help = "it needs a section `[failures]` with `gpu_mtbf_hours`";
        reader.warn(Code::NoEffect, at, format!("`group.{MTBF}` changes nothing"), help);
    }
    if reader.has("failures") && !has_model {
        let what =
            "`[failures]` makes a run of days, whose checkpoints hold a model, and the scenario has no `[model]`";
        let at = reader.peek_in("failures", "days").and_then(|(_, at)| at);
        reader.refuse(Code::MissingKey, at, what, "name a model, or leave the section out");
    }
    let failing = groups.iter().map(|group| group.failing(group.cluster.n_gpus())).collect();
    let n_nodes = groups.iter().map(|group| group.cluster.n_nodes).max().unwrap_or(1);
    let n_nodes_in_all = groups.iter().map(|group| group.cluster.n_nodes).sum();
    long_run::of_types(reader, &long_run::Machines { failing, n_nodes, n_nodes_in_all, has_others: false })
}

/// Warns of memories of hosts on which nothing lies, and of links to them that nothing crosses.
pub fn heed_hosts(reader: &mut Reader<'_>, hosts: Vec<(usize, &'static str, Place)>, job: &MixedJob) {
    let uses_hosts = job.problem.as_ref().is_some_and(Problem::uses_hosts);
    for (index, key, at) in hosts.into_iter().filter(|_| !uses_hosts) {
        let cluster = &job.groups[index].cluster;
        let is_bus = cluster.inside_link(cluster.gpus_per_node) != InsideLink::Own;
        let is_heeded = match key {
            "host_memory_gib" => false,
            "host_gb_per_s" => is_bus || job.run.is_some(),
            _ => is_bus || cluster.gpus_per_switch == 1,
        };
        if !is_heeded {
            let help = "it needs something on the host: `optimizer.offload_ratio` or `training.offload_ratio`";
            reader.warn(Code::NoEffect, at, format!("`group.{key}` changes nothing"), help);
        }
    }
}

/// Warns of keys of a group's network that nothing heeds: sums of a tensor group, and what stages and replicas of a zone without a link of its own exchange.
pub fn heed_networks(reader: &mut Reader<'_>, networks: &[Written], job: &MixedJob, given: Option<&Pipelines>) {
    for (index, (group, network)) in job.groups.iter().zip(networks).enumerate() {
        let slots = given.into_iter().flat_map(|plan| plan.stages.iter().flat_map(|stage| &stage.slots));
        let computed = slots.filter(|slot| slot.group == index && slot.times.is_none()).map(|slot| slot.n_gpus);
        // A search tries all degrees of a node.
        let n_gpus = if given.is_some() { computed.max().unwrap_or(1) } else { group.cluster.domain() };
        let n_gpus = if job.problem.is_some() { n_gpus } else { 1 };
        let profile = profiles::training(&group.cluster.gpu, Framework::MegatronCore, AttentionKernel::Flash);
        let zone = in_zone(job, index, given);
        let (whole, kinds) = (zone.group(zone.n_gpus(), zone.n_domains()), between_replicas(job, &group.zone));
        let exchanges = Exchanges::among(&group.cluster, n_gpus, &SUMS).and(&zone, whole, kinds);
        network.warn(reader, &[(&zone, Some(&profile), exchanges)]);
    }
}

/// Machines of a group as many as those of its zone that a plan may use together, all as though they were of its kind.
fn in_zone(job: &MixedJob, index: usize, given: Option<&Pipelines>) -> Cluster {
    let own = &job.groups[index];
    let is_used = |of: usize| of == index || given.is_none_or(|plan| plan.n_gpus_of(of) > 0);
    let beside = job.groups.iter().enumerate().filter(|(of, other)| other.zone == own.zone && is_used(*of));
    Cluster { n_nodes: beside.map(|(_, other)| other.cluster.n_nodes).sum(), ..own.cluster.clone() }
}

/// How gradients, parameters and messages travel between replicas and stages of a zone; by nothing of its cards where it has a link of its own.
fn between_replicas(job: &MixedJob, zone: &str) -> &'static [Collective] {
    if job.links.iter().any(|link| link.joins([zone, zone])) {
        return &[];
    }
    let is_summed = job.problem.as_ref().is_some_and(|problem| {
        problem.layout.zero == Zero::Off || problem.model.tied || problem.execution.optimizer.rule == Rule::Muon
    });
    if is_summed { &OF_DENSE } else { &OF_DENSE[1..] }
}

fn group(mut section: Section<'_>, known: &[Group]) -> Option<(Group, Bytes)> {
    let name = section.name();
    let zone = section.text("zone").map(|(zone, _)| zone);
    let usd_per_gpu_hour = section.number("usd_per_gpu_hour", 0.0, 0.0..=1e6);
    let gpu_mtbf_s = section.some_number(MTBF, 0.001..=1e9).map(hours);
    if let Some(name) = name.as_ref().filter(|name| known.iter().any(|other| other.name == **name)) {
        let what = format!("two groups are called `{name}`");
        let finding = Finding::error(Code::TwiceNamed, section.at(), what);
        section.find(finding.help("stages refer to them by name; give each its own"));
    }
    let has_card = section.has("gpu");
    let (cluster, reserved) =
        if has_card { cluster::of_steps(section, true)? } else { (unnamed(section), Bytes::default()) };
    let zone = zone.unwrap_or_else(|| "one".to_owned());
    let (host_per_layer, launches, attention) = (Seconds::ZERO, Launches::UNSEEN, AttentionKernel::Flash);
    Some((
        Group {
            name: name?,
            cluster,
            has_card,
            zone,
            usd_per_gpu_hour,
            gpu_mtbf_s,
            host_per_layer,
            launches,
            attention,
        },
        reserved,
    ))
}

/// Machines of a card that has no name: only their number counts, and stages on them bring their times along.
fn unnamed(mut section: Section<'_>) -> hw::Cluster {
    let nodes = section.small("nodes", None, 1..=100_000);
    let per_node = section.small("gpus_per_node", Some(8), 1..=1024);
    section.finish();
    hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), nodes, per_node)
}

/// Reads every link.
pub fn links(top: &mut Section<'_>, groups: &[Group]) -> Vec<Link> {
    let mut links = Vec::new();
    top.each_table("link", &mut |table| {
        let found = link(table, groups, &links);
        links.extend(found);
    });
    links
}

fn link(mut section: Section<'_>, groups: &[Group], known: &[Link]) -> Option<Link> {
    let zones = between(&mut section, groups);
    let bytes_per_s = rates(&mut section);
    let latency_s = section.number("latency_ms", 0.0, 0.0..=1e5);
    let latency_s = mixed_gpus::milliseconds(latency_s);
    let usd_per_gb = section.number("usd_per_gb", 0.0, 0.0..=1e6);
    let found = zones.zip(bytes_per_s);
    let found = found.map(|(zones, bytes_per_s)| Link { zones, bytes_per_s, latency_s, usd_per_gb });
    if let Some(link) = found.as_ref().filter(|link| known.iter().any(|other| contradicts(link, other))) {
        let [a, b] = &link.zones;
        let finding = Finding::error(Code::TwiceNamed, section.at(), format!("two links are between `{a}` and `{b}`"));
        section.find(finding.help("a link goes both ways; write the pair once"));
    }
    section.finish();
    found
}

/// Whether two links of one pair of zones differ. One that is written from either end is the same.
fn contradicts(link: &Link, other: &Link) -> bool {
    let [a, b] = &link.zones;
    other.joins([a, b]) && Link { zones: link.zones.clone(), ..other.clone() } != *link
}

/// `between = ["a", "b"]`: two zones that groups lie in, or one twice.
fn between(section: &mut Section<'_>, groups: &[Group]) -> Option<[String; 2]> {
    section.needs("between", "two zones, for example [\"east\", \"west\"]");
    let (value, at) = section.take("between")?;
    let names = items(&value, |item| item.as_str().map(str::to_owned));
    let Some(zones) = names.and_then(|names| <[String; 2]>::try_from(names).ok()) else {
        section.wrong(Code::WrongType, at, "`link.between` is not a list of two zones");
        return None;
    };
    for zone in &zones {
        if !groups.iter().any(|group| group.zone == *zone) {
            let known = groups.iter().map(|group| group.zone.as_str());
            let what = format!("no group lies in a zone `{zone}`");
            section.find(unknown(Code::UnknownName, what, zone, known, at.clone()));
            return None;
        }
    }
    Some(zones)
}

/// `gb_per_s`: one number, or pairs of megabytes of a message and gigabytes per second.
fn rates(section: &mut Section<'_>) -> Option<Vec<(f64, f64)>> {
    section
        .needs("gb_per_s", "gigabytes per second between two stages, or a list of [megabytes, gigabytes per second]");
    let (value, at): (ValueInner<'static>, Place) = section.take("gb_per_s")?;
    let pair = |item: &toml_span::Value<'_>| {
        let pair = items(item.as_ref(), |item| number(item.as_ref()))?;
        let &[megabytes, rate] = pair.as_slice() else { return None };
        Some((mixed_gpus::megabytes(megabytes), gigabytes(rate)))
    };
    let all = number(&value).map(|rate| vec![(1.0, gigabytes(rate))]).or_else(|| items(&value, pair));
    let is_rising = |all: &Vec<(f64, f64)>| all.windows(2).all(|two| two[0].0 < two[1].0);
    let is_positive =
        |all: &Vec<(f64, f64)>| !all.is_empty() && all.iter().all(|(size, rate)| *size > 0.0 && *rate > 0.0);
    let good = all.filter(|all| is_rising(all) && is_positive(all));
    if good.is_none() {
        let help =
            "write `gb_per_s = 1.25`, or `[[1, 0.4], [64, 1.2]]`: megabytes of a message, rising, and what it gets";
        section.refuse(Code::OutOfRange, at, "`link.gb_per_s` is no bandwidth", help);
    }
    good
}
