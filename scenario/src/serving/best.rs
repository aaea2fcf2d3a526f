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
use super::kv::KvTerms;
use super::listed::{self, Shown};
use super::{ServingChoice, way};
use crate::expect;
use input::diagnostic::Code;
use input::reader::{self, Listed, Place, Section, unknown};

/// Keys of a variant that may have a list of values.
const LISTS: [&str; 15] = [
    "policy",
    "router",
    "replicas",
    "prefill_replicas",
    "tp",
    "pp",
    "ep",
    "max_sequences",
    "max_tokens",
    "chunk_tokens",
    "chunk_sizes",
    "weights",
    "prefill_attention",
    "kv",
    "adapters",
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
const SOUGHT: [(&str, Seeks, planner::Aim); 7] = [
    ("makespan_s", Seeks::Least, planner::Aim::Seconds),
    ("requests_per_s", Seeks::Most, planner::Aim::RequestsPerS),
    ("goodput_requests_per_s", Seeks::Most, planner::Aim::RequestsPerS),
    ("cost_usd_per_hour", Seeks::Least, planner::Aim::UsdPerHour),
    ("cost_usd_per_mtok", Seeks::Least, planner::Aim::UsdPerMtok),
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
    let ways = ways(section, None, engine, router)?;
    let name = ways.first()?.candidate.as_ref()?.of.clone();
    Some((Best { name, at, aim: aim?, within, limits_at: Case::Expected }, ways))
}

/// What holds for keys that `[tune]` leaves out.
pub struct Usual<'s> {
    policy: Option<&'static str>,
    n_joined: u32,
    has_price: bool,
    slo: &'s Slo,
}

impl<'s> Usual<'s> {
    /// What follows from the other sections.
    pub fn of(choices: &[ServingChoice], cluster: Option<&Cluster>, has_price: bool, slo: &'s Slo) -> Self {
        let n_joined = cluster.map_or(1, |cluster| cluster.domain().min(cluster.n_gpus()));
        Self { policy: choices.first().map(|choice| choice.batcher.name()), n_joined, has_price, slo }
    }

    /// Lays it over the section.
    fn over(&self, section: &mut Section<'_>) {
        let numbers = |of: &[i64]| ValueInner::Array(of.iter().map(|n| Value::new(ValueInner::Integer(*n))).collect());
        if let Some(policy) = self.policy {
            section.or("policy", ValueInner::String(policy.into()));
        }
        let by = if self.has_price { "cost_usd_per_mtok" } else { "output_tokens_per_s_per_gpu" };
        section.or("by", ValueInner::String(by.into()));
        let degrees: Vec<i64> = (0..=self.n_joined.max(1).ilog2()).map(|power| 1 << power).collect();
        section.or("tp", numbers(&degrees));
        section.or("max_sequences", numbers(&SEQUENCES));
        section.or("max_tokens", numbers(&TOKENS));
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
    let at = section.at();
    let aim = aim(&mut section);
    let within = section.table("within").map_or_else(|| usual.within(), expect::limits);
    let limits_at = section.one_of("limits_at", Case::Expected, &[("expected", Case::Expected), ("slow", Case::High)]);
    if within.is_empty() {
        section.idle(&["limits_at"], "limits: `within`, or `[slo]`");
    }
    let ways = ways(section, Some(TUNE), engine, router).unwrap_or_default();
    (aim.map(|aim| Best { name: TUNE.to_owned(), at, aim, within, limits_at }), ways)
}

/// Every combination of what a section lists, for a choice of a name; one that is not given is the section's own.
fn ways(
    section: Section<'_>,
    of: Option<&str>,
    engine: (&EngineSection, &KvTerms),
    router: &'static RouterKind,
) -> Option<Vec<ServingChoice>> {
    let (mut ways, mut lists) = (Vec::new(), Lists::default());
    let (mut seen, mut n_again) = (BTreeSet::new(), 0);
    let most = if of == Some(TUNE) { SETTINGS_MAX } else { WAYS_MAX };
    let n = section.each_combination(&LISTS, most, &mut |mut way, listed| {
        let number = |(key, value): &Listed| Some(((*key).to_owned(), reader::number(value.as_ref())?));
        let values = listed.iter().filter_map(number).collect();
        let name = of.map_or_else(|| way.name(), |name| Some(name.to_owned()));
        let read = way::way(&mut way, engine, router);
        way.finish();
        let Some((of, choice)) = name.zip(read) else { return };
        let at = listed.iter().map(|(key, value)| lists.add(key, Shown::of(value.as_ref()))).collect::<Vec<_>>();
        // A value that is listed twice is one setting.
        if !seen.insert(at.clone()) {
            n_again += 1;
            return;
        }
        ways.push((at, ServingChoice { candidate: Some(Candidate { of, values, ..Candidate::default() }), ..choice }));
    });
    (n == ways.len() + n_again).then(|| lists.label(ways))
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
