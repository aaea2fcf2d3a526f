//! One choice among several ways. A way has the keys of a variant, each with one value or a list of them; the best one within `within` by a
//! metric is the choice. `[[policies.best]]` serves every combination and is compared with other policies; `[tune]` is what
//! `skrull-sim tune` asks, of many ways, with usual lists for keys that it leaves out.

use std::collections::BTreeSet;

use engine::play::Case;
use hw::Cluster;
use planner::deploy::tune::Seeks;
use reports::expect::{Expectation, Holds};
use serve::metrics::Slo;
use serve::router::RouterKind;
use toml_span::Value;
use toml_span::value::ValueInner;

use super::engine::EngineSection;
use super::fleet::FleetSection;
use super::kv::KvTerms;
use super::listed::{self, Shown};
use super::{ServingChoice, ffn, way};
use crate::expect;
use input::diagnostic::Code;
use input::reader::{Listed, Place, Section, unknown};

/// Keys of a variant that may have a list of values.
const LISTS: [&str; 23] = [
    "policy",
    "router",
    "replicas",
    "prefill_replicas",
    "prefill_tp",
    "concurrency",
    "tp",
    "pp",
    "ep",
    "ffn",
    "max_sequences",
    "max_tokens",
    "chunk_tokens",
    "chunk_sizes",
    "weights",
    "prefill_attention",
    "kv",
    "adapters",
    "speculation",
    "prefix_cache",
    "eviction",
    "tiers",
    "scheduling",
];
/// Ways of a choice that are tried at most; all of them are served.
const WAYS_MAX: usize = 4096;
/// Settings that are looked at at most; few of them are served.
const SETTINGS_MAX: usize = 100_000;
/// Name of what `[tune]` chooses.
const TUNE: &str = "tune";
/// Share of the requests that keep the limits of `[slo]`, where `[tune]` has no limits of its own.
const ATTAINMENT: f64 = 0.99;
/// Usual numbers of sequences and of tokens of an iteration.
const SEQUENCES: [i64; 6] = [32, 64, 128, 256, 512, 1024];
const TOKENS: [i64; 5] = [1024, 2048, 4096, 8192, 16_384];

/// What is chosen among several ways.
#[derive(Clone, Debug)]
pub struct Best {
    /// Name in results.
    pub name: String,
    /// Where it is written.
    pub at: Place,
    /// What is sought.
    pub aim: Aim,
    /// Limits on metrics that a way has to keep.
    pub within: Vec<Expectation>,
    /// End of the costs at which these limits hold too.
    pub limits_at: Case,
}

impl Best {
    /// Whether a limit is on how long requests wait: a queue that grows breaks it in the end.
    pub fn limits_waits(&self) -> bool {
        let waits = ["queue_s", "ttft_s", "e2e_s", "slo_attainment_ratio"];
        self.within.iter().any(|limit| waits.iter().any(|key| limit.key.starts_with(key)))
    }
}

/// What is sought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aim {
    /// Little or much.
    pub seeks: Seeks,
    /// Of this metric.
    pub metric: String,
    /// What it counts.
    pub counts: planner::Aim,
}

/// Times of requests that may be sought, each by its mean or a percentile.
const TIMES: [&str; 3] = ["ttft_s", "tpot_s", "e2e_s"];
/// What of them.
const PARTS: [&str; 4] = ["mean", "p50", "p90", "p99"];
/// Other metrics that may be sought, with what they count.
const SOUGHT: [(&str, Seeks, planner::Aim); 9] = [
    ("makespan_s", Seeks::Least, planner::Aim::Seconds),
    ("requests_per_s", Seeks::Most, planner::Aim::RequestsPerS),
    ("goodput_requests_per_s", Seeks::Most, planner::Aim::RequestsPerS),
    ("cost_usd_per_hour", Seeks::Least, planner::Aim::UsdPerHour),
    ("cost_usd_per_mtok", Seeks::Least, planner::Aim::UsdPerMtok),
    ("energy_wh", Seeks::Least, planner::Aim::WattHours),
    ("energy_j_per_output_token", Seeks::Least, planner::Aim::JoulesPerToken),
    ("output_tokens_per_s", Seeks::Most, planner::Aim::TokensPerS),
    ("output_tokens_per_s_per_gpu", Seeks::Most, planner::Aim::TokensPerSPerGpu),
];

/// `by`: the metric, which says itself whether it is to be small or large.
fn aim(section: &mut Section<'_>) -> Option<Aim> {
    let times = TIMES.iter().flat_map(|time| PARTS.iter().map(move |part| format!("{time}.{part}")));
    let times: Vec<String> = times.collect();
    let names = || times.iter().map(String::as_str).chain(SOUGHT.iter().map(|(name, ..)| *name));
    let Some((metric, at)) = section.text("by") else {
        let all = names().collect::<Vec<_>>().join(", ");
        section.missing("by", &format!("the metric that is best in the choice: {all}"));
        return None;
    };
    let other = SOUGHT.iter().find(|(name, ..)| *name == metric).map(|(_, seeks, counts)| (*seeks, *counts));
    let known = other.or_else(|| times.contains(&metric).then_some((Seeks::Least, planner::Aim::Seconds)));
    let Some((seeks, counts)) = known else {
        section.find(unknown(Code::UnknownWord, format!("nothing is chosen by `{metric}`"), &metric, names(), at));
        return None;
    };
    Some(Aim { seeks, metric, counts })
}

/// Whose way a choice is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Name of what is chosen.
    pub of: String,
    /// Values that were listed, as a label of the way: `tp_4_max_sequences_8`.
    pub label: String,
    /// Listed values that are numbers, by key.
    pub values: Vec<(String, f64)>,
    /// All listed values in words, by key.
    pub words: Vec<(String, String)>,
}

/// Reads one, with every way that it may choose.
pub fn best(
    mut section: Section<'_>,
    engine: (&EngineSection, &KvTerms),
    router: &'static RouterKind,
) -> Option<(Best, Vec<ServingChoice>)> {
    let at = section.at();
    let aim = aim(&mut section);
    let within = section.table("within").map_or_else(Vec::new, expect::limits);
    let mut ways = Ways::new(None, engine, router);
    let is_whole = ways.add(section, WAYS_MAX, &[]);
    let ways = is_whole.then(|| ways.label())?;
    let name = ways.first()?.candidate.as_ref()?.of.clone();
    Some((Best { name, at, aim: aim?, within, limits_at: Case::Expected }, ways))
}

/// What holds for keys that `[tune]` leaves out.
pub struct Usual<'s> {
    policy: Option<&'static str>,
    n_joined: u32,
    has_price: bool,
    /// Groups have tensor degrees of their own.
    has_groups: bool,
    slo: &'s Slo,
}

/// A value of the scenario's own, where it is listed beside usual ones.
const OWN: &str = "own";

impl<'s> Usual<'s> {
    /// What follows from the other sections.
    pub fn of(choices: &[ServingChoice], cluster: Option<&Cluster>, fleet: &FleetSection, slo: &'s Slo) -> Self {
        let n_joined = cluster.map_or(1, |cluster| cluster.domain().min(cluster.n_gpus()));
        let policy = choices.first().map(|choice| choice.batcher.name());
        Self { policy, n_joined, has_price: fleet.has_price(), has_groups: fleet.has_groups(), slo }
    }

    /// Lays what is sought, and the policy, over the section.
    fn over(&self, section: &mut Section<'_>) {
        if let Some(policy) = self.policy {
            section.or("policy", ValueInner::String(policy.into()));
        }
        let by = if self.has_price { "cost_usd_per_mtok" } else { "output_tokens_per_s_per_gpu" };
        section.or("by", ValueInner::String(by.into()));
    }

    /// Lists of keys that the section leaves out. Groups keep their tensor degrees: one degree for all of them would be another fleet.
    fn lists(&self, section: &Section<'_>) -> Vec<(&'static str, Vec<i64>)> {
        let degrees = (0..=self.n_joined.max(1).ilog2()).map(|power| 1 << power).collect();
        let mut lists = vec![("max_sequences", SEQUENCES.to_vec()), ("max_tokens", TOKENS.to_vec())];
        if !self.has_groups {
            lists.push(("tp", degrees));
        }
        lists.retain(|(key, _)| !section.has(key));
        lists
    }

    /// What the scenario has of these keys, in words. What an engine takes by itself is a number where nothing else decides it.
    fn own(
        &self,
        section: &Section<'_>,
        engine: &EngineSection,
        lists: &[(&'static str, Vec<i64>)],
    ) -> Vec<(&'static str, Shown)> {
        let (limits, operation) = (&engine.limits, &engine.operation);
        let is_plain = !self.has_groups
            && operation.expert_degree == 1
            && operation.ffn.is_none()
            && operation.drafts.is_none()
            && !["ep", "ffn", "speculation"].iter().any(|key| section.has(key))
            && limits.sequences_max <= limits.tokens_max;
        let number = |is_usual: bool, n: u32| {
            if is_usual && !is_plain { OWN.to_owned() } else { n.to_string() }
        };
        let of = |key: &'static str| match key {
            "tp" => number(false, engine.tensor_degree),
            "max_sequences" => number(engine.is_usual[0], limits.sequences_max),
            _ => number(engine.is_usual[1], limits.tokens_max),
        };
        lists.iter().map(|(key, _)| (*key, Shown::Word(of(key)))).collect()
    }

    fn within(&self) -> Vec<Expectation> {
        let kept =
            || Expectation { key: "slo_attainment_ratio".to_owned(), holds: Holds::Between(ATTAINMENT, f64::INFINITY) };
        self.slo.is_given().then(kept).into_iter().collect()
    }
}

/// `[tune]`: what is sought within which limits, and every setting; nothing where the scenario has none.
pub fn tune(
    mut section: Section<'_>,
    engine: (&EngineSection, &KvTerms),
    router: &'static RouterKind,
    usual: &Usual<'_>,
) -> (Option<Best>, Vec<ServingChoice>) {
    if !section.is_given() {
        return (None, Vec::new());
    }
    if section.has("name")
        && let Some((_, at)) = section.text("name")
    {
        section.refuse(
            Code::UnknownKey,
            at,
            "unknown key `tune.name`",
            "there is one `[tune]`, and its choice is called so",
        );
    }
    usual.over(&mut section);
    let mut ways = Ways::new(Some(TUNE), engine, router);
    let lists = usual.lists(&section);
    let mut is_whole = true;
    if !lists.is_empty() {
        // The scenario's own values stand beside usual ones, so that no answer is worse than what was given.
        let own = usual.own(&section, engine.0, &lists);
        is_whole &= section.aside(|section| ways.add(section, SETTINGS_MAX, &own));
        lists.iter().for_each(|(key, list)| section.or(key, numbers(list)));
    }
    let at = section.at();
    let aim = aim(&mut section);
    let within = section.table("within").map_or_else(|| usual.within(), expect::limits);
    let limits_at = section.one_of("limits_at", Case::Expected, &[("expected", Case::Expected), ("slow", Case::High)]);
    if within.is_empty() {
        section.idle(&["limits_at"], "limits: `within`, or `[slo]`");
    }
    is_whole &= ways.add(section, SETTINGS_MAX, &[]);
    ways.sort(&lists);
    let ways = if is_whole { ways.label() } else { Vec::new() };
    (aim.map(|aim| Best { name: TUNE.to_owned(), at, aim, within, limits_at }), ways)
}

/// Numbers as the list of a key.
fn numbers(of: &[i64]) -> ValueInner<'static> {
    ValueInner::Array(of.iter().map(|n| Value::new(ValueInner::Integer(*n))).collect())
}

/// Every combination of what sections list, for a choice of a name; one that is not given is the section's own.
struct Ways<'r> {
    of: Option<&'static str>,
    engine: (&'r EngineSection, &'r KvTerms),
    router: &'static RouterKind,
    lists: Lists,
    /// Each with the places of its values.
    ways: Vec<(Vec<(usize, usize)>, ServingChoice)>,
}

impl<'r> Ways<'r> {
    fn new(of: Option<&'static str>, engine: (&'r EngineSection, &'r KvTerms), router: &'static RouterKind) -> Self {
        Self { of, engine, router, lists: Lists::default(), ways: Vec::new() }
    }

    /// Reads the ways of a section; `own` is said of keys that it leaves to the scenario. Whether all could be read.
    fn add(&mut self, mut section: Section<'_>, most: usize, own: &[(&'static str, Shown)]) -> bool {
        section.spread("ffn", &ffn::NUMBERS);
        way::idle_degree(&mut section);
        let mut seen: BTreeSet<Vec<(usize, usize)>> = self.ways.iter().map(|(at, _)| at.clone()).collect();
        let mut n_read = 0;
        let n = section.each_combination(&LISTS, most, &mut |mut way, listed| {
            let name = self.of.map_or_else(|| way.name(), |name| Some(name.to_owned()));
            let read = way::way(&mut way, self.engine, self.router);
            way.finish();
            let Some((of, choice)) = name.zip(read) else { return };
            n_read += 1;
            let shown = shown(listed, own, &choice);
            let number = |(key, shown): &(&str, Shown)| Some(((*key).to_owned(), shown.number()?));
            let values = shown.iter().filter_map(number).collect();
            let at: Vec<(usize, usize)> = shown.into_iter().map(|(key, shown)| self.lists.add(key, shown)).collect();
            // A value that is listed twice is one setting.
            if seen.insert(at.clone()) {
                let candidate = Some(Candidate { of, values, ..Candidate::default() });
                self.ways.push((at, ServingChoice { candidate, ..choice }));
            }
        });
        n == n_read
    }

    /// Orders ways by the values of these keys, whose numbers were not listed in order.
    fn sort(&mut self, keys: &[(&'static str, Vec<i64>)]) {
        let ranks: Vec<Vec<usize>> = self.lists.ranks(keys);
        let rank = |at: &[(usize, usize)]| at.iter().map(|(list, value)| ranks[*list][*value]).collect::<Vec<_>>();
        self.ways.sort_by_cached_key(|(at, _)| rank(at));
    }

    fn label(self) -> Vec<ServingChoice> {
        self.lists.label(self.ways)
    }
}

/// What a way has of every key that is varied, in the order of `LISTS`. One whose replicas compute their own prompts has no degree of others.
fn shown(listed: &[Listed], own: &[(&'static str, Shown)], choice: &ServingChoice) -> Vec<(&'static str, Shown)> {
    let of = |key: &&'static str| {
        let value = listed.iter().find(|(known, _)| known == key).map(|(_, value)| Shown::of(value.as_ref()));
        let own = || own.iter().find(|(known, _)| known == key).map(|(_, shown)| shown.clone());
        let value = value.or_else(own)?;
        let is_idle = *key == "prefill_tp" && choice.prefill_replicas == 0;
        Some((*key, if is_idle { Shown::Word("-".to_owned()) } else { value }))
    };
    LISTS.iter().filter_map(of).collect()
}

/// Values of all ways by key, each once. They are named when all are known, so that no two have one name.
#[derive(Default)]
struct Lists(Vec<(&'static str, Vec<Shown>)>);

impl Lists {
    /// Adds a value, where it is not there; the positions of its key and of itself.
    fn add(&mut self, key: &'static str, value: Shown) -> (usize, usize) {
        let Self(lists) = self;
        let list = lists.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            lists.push((key, Vec::new()));
            lists.len() - 1
        });
        let values = &mut lists[list].1;
        let at = values.iter().position(|known| *known == value).unwrap_or_else(|| {
            values.push(value);
            values.len() - 1
        });
        (list, at)
    }

    /// The rank of every value in its list: by its number where such keys have it, else by its place.
    fn ranks(&self, keys: &[(&'static str, Vec<i64>)]) -> Vec<Vec<usize>> {
        let Self(lists) = self;
        let of = |(key, values): &(&'static str, Vec<Shown>)| {
            let mut order: Vec<usize> = (0..values.len()).collect();
            if keys.iter().any(|(known, _)| known == key) {
                let number = |at: &usize| values[*at].number().unwrap_or(f64::INFINITY);
                order.sort_by(|a, b| number(a).total_cmp(&number(b)));
            }
            let mut ranks = vec![0; order.len()];
            order.into_iter().enumerate().for_each(|(rank, value)| ranks[value] = rank);
            ranks
        };
        lists.iter().map(of).collect()
    }

    /// Ways with the names of their values.
    fn label(self, ways: Vec<(Vec<(usize, usize)>, ServingChoice)>) -> Vec<ServingChoice> {
        let named: Vec<(&str, Vec<String>)> = self.0.iter().map(|(key, list)| (*key, listed::words(list))).collect();
        let with = |(at, mut choice): (Vec<(usize, usize)>, ServingChoice)| {
            let word = |(list, value): (usize, usize)| (named[list].0.to_owned(), named[list].1[value].clone());
            let words: Vec<(String, String)> = at.into_iter().map(word).collect();
            let label: Vec<String> = words.iter().map(|(key, value)| format!("{key}_{value}")).collect();
            let candidate = choice.candidate.as_mut().expect("a way is a candidate");
            choice.name = format!("{} ({})", candidate.of, label.join(" "));
            (candidate.label, candidate.words) = (label.join("_"), words);
            choice
        };
        ways.into_iter().map(with).collect()
    }
}
