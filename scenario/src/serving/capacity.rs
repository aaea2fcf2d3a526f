//! `[capacity]`: fleets that `skrull-sim capacity` tries, and the share of requests that has to meet every limit.
//!
//! Fleets of equal replicas are numbers of replicas and tensor degrees on types of GPUs; where the scenario's fleet has groups, fleets are
//! numbers of replicas of the groups that `[[capacity.group]]` names, and the others stay as they are.

use std::collections::BTreeSet;

use engine::verdict::Refused;
use planner::deploy::capacity::{Clock, Degree, Minimize, Peak, Question, Quoted, Variation, Varied, mixed, uniform};
use serve::metrics::Slo;
use serve::request::Requests;
use toml_span::Value;

use super::{Serving, ServingChoice, ServingGroup};
use input::diagnostic::{Code, Severity};
use input::reader::{Place, Reader, Section, items, small, unknown};

/// What `skrull-sim capacity` is asked.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Policy that batches.
    pub policy: String,
    /// Fleets, prices and limits.
    pub question: Question,
}

/// Length of the busiest part that headroom is about, seconds.
const PEAK_S: f64 = 3600.0;
/// Fleets that are tried at most.
const FLEETS_MAX: usize = 1000;

/// What the section says.
pub struct CapacitySection {
    at: Place,
    policy: String,
    /// Without fleets yet.
    question: Question,
    replicas: Vec<u64>,
    /// `None` where the scenario's own holds.
    tensor_degrees: Option<Vec<u64>>,
    n_gpus_per_node: u64,
    groups: Vec<(String, Place, Vec<u64>)>,
}

/// Reads the section; `None` where the scenario has none. `policies` are names of its choices, and a fleet scales or does not.
pub fn capacity(
    mut section: Section<'_>,
    policies: &[&str],
    slo: &Slo,
    (requests, scales): (&Requests, bool),
) -> Option<CapacitySection> {
    if !section.is_given() {
        return None;
    }
    let at = section.at();
    let is_uniform = ["replicas", "tp", "gpus_per_node", "gpu"].into_iter().any(|key| section.has(key));
    let replicas = counts(&mut section, "replicas", &[1, 2, 3, 4, 6, 8], 1);
    let tensor_degrees = section.has("tp").then(|| counts(&mut section, "tp", &[1], 1));
    let target_ratio = section.number("attainment_ratio", 0.99, 0.01..=1.0);
    let minimize = section.one_of("minimize", Minimize::default(), &Minimize::WORDS);
    // Turns of sessions follow each other: no window of them is cut.
    let has_turns = !requests.follows.is_empty();
    if has_turns {
        section.idle(&["peak_s"], "requests without turns: sessions are served whole");
    }
    // Replicas that a scaler has by then are known from the beginning on alone.
    if scales && !has_turns {
        section.idle(&["peak_s"], "groups without `scaling`: a fleet that scales serves the trace from its beginning");
    }
    let peak_s = section.number("peak_s", PEAK_S, 1.0..=1e7);
    let peak_s = if has_turns || scales { f64::INFINITY } else { peak_s };
    let n_gpus_per_node = section.count("gpus_per_node", Some(8), 1..=1024).0;
    let (mut quoted, mut groups) = (Vec::new(), Vec::new());
    section.each_table("gpu", &mut |table| quoted.extend(self::quoted(table)));
    section.each_table("group", &mut |table| groups.extend(group(table)));
    if is_uniform && !groups.is_empty() {
        let what = "`capacity.group` varies groups of the fleet, and the section has keys of equal replicas too";
        section.refuse(
            Code::ExclusiveKeys,
            at.clone(),
            what,
            "leave out `replicas`, `tp`, `gpus_per_node` and `gpu`, or every `capacity.group`",
        );
    }
    let first = policies.first().map_or_else(String::new, |name| (*name).to_owned());
    let policy = section.text("policy").map_or(first, |(name, at)| {
        if !policies.contains(&name.as_str()) {
            let what = format!("policy `{name}` is not in `policies.run`");
            section.find(unknown(Code::UnknownBaseline, what, &name, policies.iter().copied(), at));
        }
        name
    });
    let given = [("ttft_s", slo.ttft), ("tpot_s", slo.tpot), ("e2e_s", slo.e2e)];
    let limits: Vec<(&'static str, f64)> =
        given.into_iter().filter_map(|(key, limit)| Some((key, limit?.get()))).collect();
    if limits.is_empty() {
        let what = "`[capacity]` asks for attainment, and `[slo]` has no limit";
        section.refuse(Code::NoLimit, at.clone(), what, "write `ttft_s`, `tpot_s` or `e2e_s`");
    }
    section.finish();
    let peak = Peak::busiest(requests, peak_s);
    let question = Question { quoted, candidates: Vec::new(), minimize, target_ratio, limits, peak };
    Some(CapacitySection { at, policy, question, replicas, tensor_degrees, n_gpus_per_node, groups })
}

/// The question with its fleets, once the groups of the scenario are known; `has_groups` where it wrote them itself.
pub fn question(
    reader: &mut Reader<'_>,
    asked: CapacitySection,
    serving: &Serving,
    has_groups: bool,
) -> Option<Capacity> {
    let CapacitySection { at, policy, question, replicas, tensor_degrees, n_gpus_per_node, groups } = asked;
    let mut find = |code, what: String, at: &Place, help: &str| {
        reader.refuse(code, at.clone(), what, help);
        None
    };
    if !serving.best.is_empty() && serving.plain().next().is_none() {
        let what = "`[capacity]` serves one way, and `policies.run` has the best of several alone".to_owned();
        return find(
            Code::ExclusiveKeys,
            what,
            &at,
            "put a policy of one way into `policies.run`; `skrull-sim tune` looks for the best way",
        );
    }
    let question = if groups.is_empty() {
        if has_groups {
            let what = "the fleet has groups, and `[capacity]` names none to try".to_owned();
            return find(
                Code::MissingKey,
                what,
                &at,
                "write `[[capacity.group]]` with `name` and `replicas`, for example [0, 2, 4]",
            );
        }
        if question.quoted.is_empty() {
            let help = "write `[[capacity.gpu]]` with `name` and `usd_per_gpu_hour` for each type to try";
            return find(Code::MissingKey, "key `capacity.gpu` is missing".to_owned(), &at, help);
        }
        let degrees = degrees(serving, &policy, tensor_degrees);
        let candidates = uniform(&replicas, &degrees, &question.quoted, n_gpus_per_node);
        Question { candidates, ..question }
    } else {
        of_groups(reader, question, &policy, &groups, serving)?
    };
    let n = question.candidates.len();
    if n > FLEETS_MAX {
        let what = format!("`[capacity]` asks for {n} fleets, at most {FLEETS_MAX} are tried");
        reader.refuse(Code::ManyFleets, at, what, "fewer numbers of replicas");
    }
    Some(Capacity { policy, question })
}

/// Tensor degrees to try, or the scenario's own, each with the GPUs of a replica. Experts on more ranks than a tensor group has take groups beside
/// it, so a replica of a lower degree may have as many GPUs.
fn degrees(serving: &Serving, policy: &str, asked: Option<Vec<u64>>) -> Vec<Degree> {
    let choice = serving.choices.iter().find(|choice| choice.name == policy);
    let operation = choice.map_or(&serving.engine.operation, |choice| &choice.operation);
    let own = operation.tensor_degree.unwrap_or(serving.engine.tensor_degree);
    let all = asked.unwrap_or_else(|| vec![own.into()]);
    all.into_iter()
        .map(|tensor| Degree { tensor, gpus_per_replica: operation.degrees(small(tensor), None).n_gpus().into() })
        .collect()
}

/// Every group that serves, with the numbers that are asked or its own.
fn of_groups(
    reader: &mut Reader<'_>,
    question: Question,
    policy: &str,
    asked: &[(String, Place, Vec<u64>)],
    serving: &Serving,
) -> Option<Question> {
    let choice = serving.choices.iter().find(|choice| choice.name == policy)?;
    let groups: Vec<&ServingGroup> =
        serving.groups.iter().filter(|group| choice.groups.is_empty() || choice.groups.contains(&group.name)).collect();
    for (name, at, _) in asked {
        if !groups.iter().any(|group| group.name == *name) {
            let what = format!("unknown group `{name}` of `{}`", choice.name);
            let names = groups.iter().map(|group| group.name.as_str());
            reader.find(unknown(Code::UnknownGroup, what, name, names, at.clone()));
        }
    }
    let (mut varied, mut quoted) = (Vec::new(), Vec::new());
    for group in groups {
        let numbers = asked.iter().find(|(name, ..)| *name == group.name);
        let Some(usd_per_gpu_hour) = group.usd_per_gpu_hour else {
            let what = format!("`[capacity]` compares dollars, and group `{}` has no price", group.name);
            reader.refuse(Code::NoPrice, None, what, "write `usd_per_gpu_hour` in `[fleet]` or in the group");
            continue;
        };
        varied.push(Varied {
            name: group.name.clone(),
            replicas: numbers.map_or_else(|| vec![group.n_replicas.into()], |(.., numbers)| numbers.clone()),
            gpus_per_replica: serving.deployment_of(choice, group).n_gpus().into(),
        });
        quoted.push(Quoted { name: group.name.clone(), usd_per_gpu_hour, quote: String::new() });
    }
    // Checked before they are made: combinations multiply.
    let n = varied.iter().map(|group| group.replicas.len()).fold(1, usize::saturating_mul);
    if n > FLEETS_MAX {
        let what = format!("`[[capacity.group]]` asks for {n} combinations, at most {FLEETS_MAX} are tried");
        reader.refuse(Code::ManyFleets, None, what, "fewer groups or fewer numbers of replicas");
        return None;
    }
    Some(Question { candidates: mixed(&varied), quoted, ..question })
}

/// What makes a scenario one with a varied fleet and one policy, as `--set` takes it.
fn overrides(choice: &ServingChoice, variation: &Variation, quoted: &[Quoted]) -> Vec<String> {
    let policy = &choice.name;
    let mut set = vec![format!("policies.run=['{policy}']"), format!("policies.baseline='{policy}'")];
    match variation {
        Variation::Groups(counts) => {
            set.extend(counts.iter().map(|(group, n)| format!("fleet.group.{group}.replicas={n}")));
        }
        Variation::Equal { quoted: at, n_replicas, tensor_degree, gpus_per_node, n_nodes } => {
            set.extend([
                format!("cluster.gpu='{}'", quoted[*at].name),
                format!("cluster.nodes={n_nodes}"),
                format!("cluster.gpus_per_node={gpus_per_node}"),
                format!("engine.tp={tensor_degree}"),
                format!("fleet.replicas={n_replicas}"),
                format!("fleet.usd_per_gpu_hour={}", quoted[*at].usd_per_gpu_hour),
            ]);
            if choice.is_variant() {
                set.push(format!("policies.variant.{policy}.tp={tensor_degree}"));
                set.push(format!("policies.variant.{policy}.replicas={n_replicas}"));
            }
        }
    }
    set
}

impl Serving {
    /// The same scenario with another fleet that serves other requests by one of its choices.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn varied(
        &self,
        policy: &str,
        variation: &Variation,
        quoted: &[Quoted],
        load: Requests,
    ) -> Result<Self, Refused> {
        let mut varied = Self { requests: load, draws: Vec::new(), groups: Vec::new(), ..self.clone() };
        (varied.capacity, varied.tune) = (None, None);
        varied.choices.retain(|choice| choice.name == policy);
        let Some(choice) = varied.choices.first_mut() else {
            return Err(Refused::infeasible(format!("no policy `{policy}` runs")));
        };
        // What was refused is the choice on the scenario's own fleet.
        choice.refused = None;
        varied.head.origin.set.extend(overrides(choice, variation, quoted));
        match variation {
            Variation::Groups(counts) => varied.given.fleet = self.given.fleet.clone().of_groups(counts),
            Variation::Equal { quoted: at, n_replicas, tensor_degree, gpus_per_node, n_nodes } => {
                let Quoted { name, usd_per_gpu_hour, .. } = &quoted[*at];
                let gpu = hw::catalog::gpu(name).ok_or_else(|| Refused::infeasible(format!("unknown GPU `{name}`")))?;
                let small = |n: u64| u32::try_from(n).map_err(|_| Refused::infeasible(format!("{n} are too many")));
                let cluster = hw::catalog::cluster(&gpu, small(*n_nodes)?, small(*gpus_per_node)?);
                varied.profile = self.given.cost.of_gpu(name, &self.cluster.gpu.name);
                varied.cluster =
                    self.given.tuning.as_ref().map_or_else(|| cluster.clone(), |tuning| tuning.of(cluster.clone()));
                varied.engine.tensor_degree = small(*tensor_degree)?;
                // A variant may have degrees and numbers of its own, and what is asked holds for it too.
                if choice.is_variant() {
                    choice.operation.tensor_degree = Some(varied.engine.tensor_degree);
                    choice.replicas = Some(small(*n_replicas)?);
                }
                varied.given.fleet = self.given.fleet.clone().of_equal(*n_replicas, *usd_per_gpu_hour);
            }
        }
        let mut findings = Vec::new();
        let mut reader = Reader::empty(&mut findings);
        super::build(&mut reader, &mut varied);
        super::check(&mut reader, &mut varied, 0);
        let wrong = findings.into_iter().find(|finding| finding.severity == Severity::Error);
        wrong.map_or(Ok(()), |finding| Err(Refused::infeasible(finding.what)))?;
        varied.choices[0].sound()?;
        Ok(varied)
    }
}

impl Serving {
    /// Puts what stands on the clock of the trace on that of what is served: the same requests count, and the same ones meet an outage.
    pub fn keep_time(&mut self, clock: &Clock) {
        self.warm_up = hw::Seconds::new(clock.lasting_s(self.warm_up.get()));
        self.outages = self.outages.iter().filter_map(|outage| outage.on(clock)).collect();
    }
}

/// `[[capacity.group]]`.
fn group(mut section: Section<'_>) -> Option<(String, Place, Vec<u64>)> {
    section.needs("name", "the name of a `[[fleet.group]]`");
    section.needs("replicas", "numbers of replicas to try, for example [0, 2, 4]; 0 leaves the group out");
    let name = section.text("name");
    let replicas = counts(&mut section, "replicas", &[1], 0);
    section.finish();
    let (name, at) = name?;
    Some((name, at, replicas))
}

/// A list of counts from `least` on, each once.
fn counts(section: &mut Section<'_>, key: &'static str, default: &[u64], least: u64) -> Vec<u64> {
    let Some((value, at)) = section.take(key) else { return default.to_vec() };
    let count = |item: &Value<'_>| u64::try_from(item.as_integer()?).ok().filter(|n| (least..=10_000).contains(n));
    let once = |all: Vec<u64>| {
        let mut seen = BTreeSet::new();
        all.into_iter().filter(|n| seen.insert(*n)).collect::<Vec<_>>()
    };
    items(&value, count).map(once).filter(|all| !all.is_empty()).unwrap_or_else(|| {
        let what = format!("`{}` is no list of counts", section.full(key));
        let help = format!("allowed are whole numbers from {least} to 10000, at least one");
        section.refuse(Code::OutOfRange, at, what, help);
        default.to_vec()
    })
}

/// `[[capacity.gpu]]`.
fn quoted(mut section: Section<'_>) -> Option<Quoted> {
    section.needs("name", "a GPU type; `skrull-sim list gpus` shows the catalogue");
    section.needs("usd_per_gpu_hour", "dollars per GPU and hour, as quoted");
    let usd_per_gpu_hour = section.number("usd_per_gpu_hour", 1.0, 1e-6..=1e6);
    let mut word = |key| section.text(key).map(|(text, _)| text);
    let quote: Vec<String> = [word("provider"), word("date")].into_iter().flatten().collect();
    let gpu = section.known("name", (Code::UnknownGpu, "GPU"), hw::catalog::gpu_names, hw::catalog::gpu);
    section.finish();
    Some(Quoted { name: gpu?.name, usd_per_gpu_hour, quote: quote.join(", ") })
}
