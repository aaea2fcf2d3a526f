//! Keys of serving whose value says nothing change no figure, whatever they stand beside, and sections may stand in any order.

use std::path::Path;

use engine::random::Stream;
use input::diagnostic::Source;
use reports::PolicyResult;
use scenario::Overrides;
use skrull_sim::kinds;

use super::{pick, stream};

/// Scenarios that are drawn.
const DRAWS: u64 = 40;

/// A drawn scenario: sections, and what was drawn for the laws.
struct Asked {
    /// Texts of the sections, in an order that may change but for lists of tables.
    sections: Vec<String>,
    /// Whether requests have prefixes that a cache keeps.
    shares: bool,
    /// Tokens of an iteration.
    tokens: u32,
    /// Whether prompts are cut.
    cuts: bool,
    has_groups: bool,
}

fn once_in(draw: &mut Stream, n: u64) -> bool {
    draw.below(n) == 0
}

fn asked(draw: &mut Stream) -> Asked {
    let batcher = pick(draw, &["vllm-v1", "sarathi", "vllm-v0", "sglang", "trtllm"]);
    let cuts = !["vllm-v0", "trtllm"].contains(&batcher);
    let tokens = if cuts { pick(draw, &[256, 1024]) } else { 4096 };
    let (model, degrees) = pick(
        draw,
        &[
            ("llama-3-8b", "tp = 1"),
            ("llama-3-8b", "tp = 1\npp = 2"),
            ("llama-3-8b", "tp = 2\npp = 4"),
            ("qwen3-30b-a3b", "tp = 1\nep = 4"),
            ("qwen3-30b-a3b", "tp = 2\nep = 2"),
        ],
    );
    let shares = once_in(draw, 2);
    let mut engine = format!(
        "[engine]\n{degrees}\nmax_sequences = {}\nmax_tokens = {tokens}\nkv_blocks = {}\nprefix_cache = {shares}\n",
        pick(draw, &[4, 16, 64]),
        pick(draw, &[2000, 20_000]),
    );
    if once_in(draw, 3) {
        engine +=
            &format!("loop = \"async\"\nhost_us_per_step = 500\nhost_us_per_sequence = {}\n", pick(draw, &[0, 30]));
    }
    if once_in(draw, 4) {
        engine += "preemption = \"swap\"\n";
    }
    let mut trace = "[trace]\nprompt_tokens = [20, 900]\noutput_tokens = [1, 80]\nrequests = 60\n".to_owned();
    trace += &format!("arrivals = \"poisson\"\nrate_per_s = {}\n", pick(draw, &[2, 20, 200]));
    if shares {
        trace += "sessions = { turns = 3, system_tokens = 64 }\n";
    }
    let has_groups = once_in(draw, 2);
    let router = pick(draw, &["round-robin", "least-loaded", "power-of-two", "least-memory"]);
    let group = |name: &str, role: &str, n: u32| {
        format!(
            "[[fleet.group]]\nname = \"{name}\"\ngpu = \"h100-sxm\"\nreplicas = {n}\nrole = \"{role}\"\nusd_per_gpu_hour = 2\n"
        )
    };
    let groups = match (has_groups, once_in(draw, 2)) {
        (false, _) => "replicas = 1\nusd_per_gpu_hour = 2\n".to_owned(),
        (true, false) => format!("\n{}", group("all", "both", 2)),
        (true, true) => format!("\n{}\n{}", group("read", "prefill", 2), group("write", "decode", 1)),
    };
    let sections = vec![
        format!("[model]\nname = \"{model}\"\nweights = \"bf16\"\n"),
        "[cluster]\ngpu = \"h100-sxm\"\nnodes = 2\ngpus_per_node = 8\n".to_owned(),
        trace,
        engine,
        format!("[fleet]\nrouter = \"{router}\"\n{groups}"),
        "[slo]\nttft_s = 0.5\ntpot_s = 0.05\n".to_owned(),
        format!("[policies]\nrun = [\"{batcher}\"]\n"),
    ];
    Asked { sections, shares, tokens, cuts, has_groups }
}

impl Asked {
    fn text(&self) -> String {
        format!("kind = \"serving\"\nseed = 3\n\n{}", self.sections.join("\n"))
    }

    /// The only row under some keys, or why there is none.
    fn row(&self, text: String, set: &[String]) -> Result<PolicyResult, String> {
        let source = Source { path: "drawn.toml".to_owned(), text };
        let overrides = Overrides { set: set.to_vec(), ..Overrides::default() };
        let checked = kinds::check(source, Path::new(""), &overrides);
        let what = || checked.findings.iter().map(|finding| finding.what.clone()).collect::<Vec<_>>().join("; ");
        let scenario = checked.scenario.as_ref().ok_or_else(what)?;
        Ok(scenario.run(&|_| {}).results.remove(0))
    }
}

/// Figures that are not the same; those that a change adds are its own.
fn differing(one: &PolicyResult, other: &PolicyResult) -> Vec<String> {
    let differs = |(key, value): (&String, &f64)| {
        let found = other.metrics.get(key);
        (found != Some(value)).then(|| format!("{key}: {value} and {found:?}"))
    };
    let mut found: Vec<String> = one.metrics.iter().filter_map(differs).collect();
    if one.status != other.status {
        found.push(format!("{:?}: {}, and {:?}: {}", one.status, one.why, other.status, other.why));
    }
    found
}

/// Keys that say nothing beside a drawn scenario.
fn neutral(asked: &Asked) -> Vec<Vec<String>> {
    let mut keys: Vec<Vec<&str>> = vec![
        vec!["engine.recv_interval=1"],
        vec!["engine.stream_us_per_token=0"],
        vec!["engine.start_ms=0", "engine.tokenize_us_per_token=0"],
        vec!["engine.batch_wait={iterations=0}"],
        vec!["engine.speculation={draft_tokens=0,acceptance=0.5}"],
        vec!["trace.timeout_s=1000000", "trace.first_token_timeout_s=1000000"],
        vec!["trace.cancel_ratio=0"],
        vec!["trace.priority=5", "engine.scheduling='priority'"],
        vec!["engine.expert_kernel='auto'", "engine.dispatcher='auto'", "engine.two_batch_overlap=false"],
        vec!["slo.warm_up_s=0", "trace.load=1", "trace.seeds=1"],
        vec!["cost.sustained_flops_ratio=1"],
    ];
    if asked.shares {
        keys.push(vec!["engine.tiers={host_gib=0,disk_gib=0}"]);
    } else {
        keys.push(vec!["engine.eviction='lfu'"]);
        keys.push(vec!["trace.long={share=0}"]);
    }
    if asked.has_groups {
        keys.push(vec!["fleet.outage=[{group='all',at_s=100000}]"]);
        keys.push(vec!["fleet.outage=[{group='read',at_s=100000}]"]);
    }
    let mut all: Vec<Vec<String>> = keys.into_iter().map(|set| set.into_iter().map(str::to_owned).collect()).collect();
    if asked.cuts {
        all.push(vec![format!("engine.chunk_tokens={}", asked.tokens)]);
    }
    all
}

#[test]
fn keys_that_say_nothing_change_no_figure() {
    let (mut wrong, mut n, mut refused) = (Vec::new(), 0, std::collections::BTreeMap::<String, u32>::new());
    for number in 0..DRAWS {
        let draw = &mut stream("neutral keys", number);
        let asked = asked(draw);
        let Ok(plain) = asked.row(asked.text(), &[]) else { continue };
        let keys = neutral(&asked);
        for _ in 0..4 {
            let set = keys[usize::try_from(draw.below(keys.len() as u64)).expect("small")].clone();
            match asked.row(asked.text(), &set) {
                Err(why) => *refused.entry(format!("{set:?}: {why}")).or_default() += 1,
                Ok(other) => {
                    n += 1;
                    let found = differing(&plain, &other);
                    if !found.is_empty() {
                        wrong.push(format!("{number}, {set:?}: {found:.3?}\n{}", asked.text()));
                    }
                }
            }
        }
    }
    println!("{n} held; refused {refused:#?}");
    assert!(wrong.is_empty(), "{} of {n}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n > DRAWS, "{n} of {DRAWS}");
}

#[test]
fn sections_may_stand_in_any_order() {
    for number in 0..DRAWS / 4 {
        let draw = &mut stream("order of sections", number);
        let asked = asked(draw);
        let Ok(plain) = asked.row(asked.text(), &[]) else { continue };
        let mut other = Asked { sections: asked.sections.clone(), ..asked };
        draw.shuffle(&mut other.sections);
        let found = other.row(other.text(), &[]).expect("as valid as before");
        assert_eq!(differing(&plain, &found), Vec::<String>::new(), "{}", other.text());
    }
}

#[test]
fn a_row_knows_nothing_of_others() {
    for number in 0..DRAWS / 4 {
        let asked = asked(&mut stream("rows beside others", number));
        let Ok(plain) = asked.row(asked.text(), &[]) else { continue };
        let both = asked.text().replace("run = [", "baseline = 'other'\nrun = ['other', ")
            + "\n[[policies.variant]]\nname = \"other\"\npolicy = \"sarathi\"\nmax_sequences = 8\n";
        let checked = crate::written(both.clone(), &[]);
        let rows = checked.scenario.unwrap_or_else(|| panic!("{both}: {:?}", checked.findings)).run(&|_| {}).results;
        assert_eq!(differing(&plain, &rows[1]), Vec::<String>::new(), "{both}");
    }
}
