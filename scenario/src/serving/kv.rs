//! `[kv]`: on what terms replicas lend each other memory for keys and values. A variant may say it for itself, a group may stay apart.

use hw::Seconds;
use serve::kv::lending::{Borrow, Exchange, Party, Terms};
use serve::replica::Role;

use super::dynamics::kv_bytes;
use super::{CostLaw, Serving, ServingChoice, ServingGroup};
use input::diagnostic::Code;
use input::reader::{Place, Reader, Section};

/// Most replicas that share memory: the ledger has a debt for every pair.
const SHARING_MAX: u32 = 256;

/// What the section or a variant says.
#[derive(Clone, Debug, PartialEq)]
pub struct KvTerms {
    /// Whose keys and values may lie elsewhere.
    pub borrow: Borrow,
    plans_moves: bool,
    lend_ratio: f64,
    heartbeat_s: f64,
    /// Where it stands, for findings.
    at: Place,
    is_given: bool,
}

impl KvTerms {
    /// Nobody borrows.
    const NONE: Self = Self {
        borrow: Borrow::Never,
        plans_moves: false,
        lend_ratio: 1.0,
        heartbeat_s: 0.5,
        at: None,
        is_given: false,
    };
}

/// Reads the section.
pub fn kv(section: Section<'_>) -> KvTerms {
    let is_given = section.is_given();
    KvTerms { is_given, ..terms(section, &KvTerms::NONE) }
}

/// Reads terms over those that hold without them.
pub fn terms(mut section: Section<'_>, base: &KvTerms) -> KvTerms {
    let terms = KvTerms {
        borrow: section.one_of("borrow", base.borrow, &Borrow::ALL),
        plans_moves: section.word("moves", usize::from(base.plans_moves), &["none", "planned"]) == 1,
        lend_ratio: section.number("lend_ratio", base.lend_ratio, 0.0..=1.0),
        heartbeat_s: section.number("heartbeat_s", base.heartbeat_s, 0.001..=1000.0),
        at: section.at(),
        is_given: true,
    };
    section.finish();
    terms
}

/// Terms of a choice's fleet, one party per group that serves; `None` where the scenario says nothing about lending.
pub fn terms_of(serving: &Serving, choice: &ServingChoice) -> Option<Terms> {
    if !serving.kv.is_given && !choice.kv.is_given {
        return None;
    }
    let groups = serving.groups_of(choice);
    let first = groups.first().map_or(0, |group| kv_bytes(serving, choice, group));
    Some(Terms {
        borrow: choice.kv.borrow,
        plans_moves: choice.kv.plans_moves,
        heartbeat: Seconds::new(choice.kv.heartbeat_s),
        block_bytes: first * u64::from(choice.limits.block_tokens),
        parties: groups.iter().map(|group| party(serving, choice, group, groups.len() == 1)).collect(),
    })
}

/// What the replicas of a group do: those of the only group may all be on one node.
fn party(serving: &Serving, choice: &ServingChoice, group: &ServingGroup, is_alone: bool) -> Party {
    let (cluster, n_gpus) = (&group.cluster, serving.deployment_of(choice, group).n_gpus());
    let per_node = (cluster.domain() / n_gpus).max(1);
    let is_one_node = is_alone && serving.replicas_of(choice, group) <= per_node;
    let (latency, bandwidth) = if is_one_node {
        (cluster.intra_node_latency, cluster.gpu.bandwidth_to(1))
    } else {
        (cluster.inter_node_latency, hw::BytesPerSecond::new(group.card_bytes_per_s()))
    };
    let blocks = hw::real(serving.limits(choice, group).kv_blocks.into());
    let lent_max = u32::try_from(hw::whole(blocks * choice.kv.lend_ratio)).expect("a share of the blocks");
    Party {
        lent_max: if group.lends { lent_max } else { 0 },
        borrows: group.borrows,
        hands_on: group.role == Role::Prefill,
        per_node,
        exchange: Exchange::of_model(&serving.model, latency, bandwidth * f64::from(n_gpus)),
    }
}

/// Blocks that others lend a replica of a group at most.
pub fn lendable(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> u64 {
    let Some(terms) = terms_of(serving, choice) else { return 0 };
    let groups = serving.groups_of(choice);
    let index = groups.iter().position(|other| other.name == group.name).expect("a group that serves");
    terms.lendable(index, &groups.iter().map(|group| always(serving, choice, group)).collect::<Vec<u32>>())
}

/// Replicas of a group that always serve.
fn always(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> u32 {
    let n = serving.replicas_of(choice, group);
    group.scaling.as_ref().map_or(n, |found| found.scaling.replicas_min.clamp(1, n))
}

/// Every word about lending means something: somebody borrows, and somebody else lends.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    let borrows = |choice: &ServingChoice| choice.kv.borrow != Borrow::Never;
    let is_apart = |group: &ServingGroup| !group.lends || !group.borrows;
    if !serving.choices.iter().any(borrows) {
        let help = "write `borrow = \"when-short\"` or `\"when-long\"` in `[kv]` or in the `kv` of a variant";
        if serving.kv.is_given {
            let what = "`[kv]` says how memory is lent, and no policy borrows";
            reader.refuse(Code::WrongLending, serving.kv.at.clone(), what, help);
        }
        if let Some(group) = serving.groups.iter().find(|group| is_apart(group)) {
            let what = format!("group `{}` neither lends nor borrows anyway: no policy borrows", group.name);
            reader.refuse(Code::WrongLending, None, what, help);
        }
    }
    for choice in &serving.choices {
        let what = if borrows(choice) { nobody(serving, choice) } else { unused(choice) };
        if let Some((what, help)) = what {
            let what = format!("`{}`: {what}", choice.name);
            reader.refuse(Code::WrongLending, choice.kv.at.clone(), what, help);
        }
    }
}

/// Words of a choice that borrows nothing.
fn unused(choice: &ServingChoice) -> Option<(String, &'static str)> {
    let what = "`moves = \"planned\"` moves blocks to lenders, and nobody borrows".to_owned();
    choice.kv.plans_moves.then_some((what, "write `borrow`, or `moves = \"none\"`"))
}

/// Why nobody could lend to anybody, or not in this fleet.
fn nobody(serving: &Serving, choice: &ServingChoice) -> Option<(String, &'static str)> {
    let groups = serving.groups_of(choice);
    if groups.iter().any(|group| group.model_index != groups[0].model_index) {
        let what = "replicas of two models cannot hold each other's keys and values".to_owned();
        return Some((what, "a variant with `groups` of one model for each, or `borrow = \"never\"`"));
    }
    if !matches!(serving.law, CostLaw::Operations) {
        let what = "the law of `[cost]` gives times of whole prompts or runs, and knows no keys and values elsewhere"
            .to_owned();
        return Some((what, "a cost model of operations, or `borrow = \"never\"`"));
    }
    if groups.iter().all(|group| lendable(serving, choice, group) == 0) {
        let what = "nobody can borrow: there is no second replica that lends".to_owned();
        return Some((what, "more replicas, `lend_ratio` above 0, groups without `lend = false` and `borrow = false`"));
    }
    let n: u32 = groups.iter().map(|group| serving.replicas_of(choice, group)).sum();
    let what = format!("{n} replicas share memory, at most {SHARING_MAX} can");
    (n > SHARING_MAX).then_some((what, "fewer replicas, or larger ones"))
}
