//! From a checked long-prompt scenario to a result: costs of the stages, one way after the other through the pipeline.

use std::collections::BTreeMap;
use std::time::Instant;

use engine::cost::Source;
use engine::play::Case;
use planner::Decision;
use planner::deploy::long_prompt::{Best, Judged, Question, Way, best};
use reports::{CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};
use serve::long_prompt::chunks::{ChunkLaw, Cut, sizes};
use serve::long_prompt::cost::{Attention, SparseAttention, StageCost};
use serve::long_prompt::{PromptChunk, laid, play};
use serve::step_cost::{ReplicaConfig, StepTable};

use crate::costs::cost_model;
use crate::kinds::long_prompt::read::{LongPrompt, Policy, PromptChoice};
use crate::kinds::{self, Kind, Planned};
use crate::scenario::Head;

impl Kind for LongPrompt {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        let rows = kinds::rows(&self.choices, |(name, _)| name, done, |(name, choice)| row(self, name, choice));
        let (results, source) = kinds::weakest(rows);
        result(self, results, source)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, String>> {
        let (name, choice) = self.choices.iter().find(|(name, _)| name == choice)?;
        Some(Planned::of_row(&row(self, name, choice).0))
    }
}

fn result(scenario: &LongPrompt, results: Vec<PolicyResult>, source: Source) -> RunResult {
    let speedup_ratio = gains(scenario, &results);
    let mut free_parameters = scenario.free_parameters.clone();
    let mut kernels: Vec<&str> = scenario.choices.iter().map(|(_, choice)| choice.kernel.name).collect();
    kernels.sort_unstable();
    kernels.dedup();
    free_parameters.extend(kernels.iter().map(|name| {
        format!(
            "sparse kernel `{name}`: three constants fitted to prefill times of Llama-3-8B on one A100 (MInference)"
        )
    }));
    RunResult {
        cost_model: CostModelFacts {
            profile: scenario.profile.as_ref().map_or_else(|| "roofline".to_owned(), |profile| profile.name.clone()),
            source: source.name().to_owned(),
            free_parameters,
            outside_hull_ratio: f64::NAN,
            ..CostModelFacts::default()
        },
        columns: kinds::columns(&[
            ("ttft_s.mean", "TTFT"),
            ("prompt_tokens_per_s", "tokens/s"),
            ("n_chunks", "chunks"),
            ("attention_ratio", "attention"),
            ("bubble_ratio", "bubble"),
            ("peak_memory_bytes", "memory"),
        ]),
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    }
}

/// The baseline's time over each policy's, where both compute the same prompts on the same machine.
fn gains(scenario: &LongPrompt, results: &[PolicyResult]) -> BTreeMap<String, f64> {
    let time = |name: &str| {
        let row = results.iter().find(|row| row.policy == name)?;
        let choice = scenario.choices.iter().find(|(known, _)| known == name).map(|(_, choice)| choice)?;
        let is_alike = choice.law.is_none();
        is_alike.then_some((choice.tokens, *row.metrics.get("makespan_s")?))
    };
    let Some((tokens, base)) = time(&scenario.head.baseline) else { return BTreeMap::new() };
    let gain = |row: &PolicyResult| {
        let (same, own) = time(&row.policy)?;
        (same == tokens).then(|| (row.policy.clone(), base / own))
    };
    results.iter().filter_map(gain).collect()
}

/// One way at all ends of the costs.
fn row(scenario: &LongPrompt, name: &str, choice: &PromptChoice) -> (PolicyResult, Source) {
    let begun = Instant::now();
    let empty = PolicyResult { policy: name.to_owned(), ..PolicyResult::default() };
    let (mut row, source) = match &choice.law {
        Some(law) => (by_law(scenario, choice, law, empty), Source::Published),
        None => by_cost(scenario, choice, empty),
    };
    row.measured = Measured { planner_wall_s: 0.0, simulate_wall_s: begun.elapsed().as_secs_f64() };
    (row, source)
}

/// How a policy cuts prompts.
const fn way(choice: &PromptChoice) -> Way {
    let size = choice.chunk_tokens;
    let (cut, is_sparse) = match choice.policy {
        Policy::Dense | Policy::Best => (Cut::Whole, false),
        Policy::FixedChunks => (Cut::Fixed(size), false),
        Policy::Dcpp => (Cut::Dynamic(size), false),
        Policy::Sparse => (Cut::Fixed(size), true),
        Policy::SparseDcpp => (Cut::Dynamic(size), true),
    };
    Way { cut, is_sparse }
}

/// Stage times that the scenario gives: no memory, no messages.
fn by_law(scenario: &LongPrompt, choice: &PromptChoice, law: &ChunkLaw, row: PolicyResult) -> PolicyResult {
    let sizes = sizes(choice.tokens, way(choice).cut, law, scenario.grain);
    let prompts = vec![laid(&sizes); scenario.n_prompts as usize];
    let stage = |chunk: PromptChunk| hw::Span::from_seconds(law.time(chunk.past, chunk.new));
    let played = play(&prompts, choice.degrees.pipeline, &stage, &|_| hw::Span::ZERO);
    let makespan_s = played.makespan().to_seconds().get();
    let ends: f64 = played.ends.iter().map(|end| end.to_seconds().get()).sum();
    let n = f64::from(scenario.n_prompts);
    // A stage computes every prompt, in one chunk at best, and the last chunk still passes the stages behind it.
    let behind = f64::from(choice.degrees.pipeline) - 1.0;
    let bound_s = n * law.time(0, choice.tokens).get() + behind * law.time(0, 0).get();
    let metrics = [
        ("ttft_s.mean", ends / n),
        ("makespan_s", makespan_s),
        ("prompt_tokens_per_s", hw::Tokens(choice.tokens).as_f64() * n / makespan_s),
        ("n_chunks", hw::Tokens(sizes.len() as u64).as_f64()),
        ("bubble_ratio", played.bubble_ratio()),
    ];
    PolicyResult {
        status: "ok".to_owned(),
        why: format!("stage times as the scenario gives them; {}", cut_words(&sizes)),
        metrics: metrics.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        planner: Some(PlannerFacts {
            objective: Some(makespan_s),
            bound: Some(bound_s),
            gap_ratio: Some(((makespan_s - bound_s) / makespan_s).max(0.0)),
            status: "heuristic".to_owned(),
            figures: chunk_figures(&sizes),
            ..PlannerFacts::default()
        }),
        ..row
    }
}

/// A way with the costs of the cost model.
fn by_cost(scenario: &LongPrompt, choice: &PromptChoice, row: PolicyResult) -> (PolicyResult, Source) {
    let expected = at(scenario, choice, Case::Expected);
    let found = match expected.found {
        Ok(found) => found,
        Err(why) => return (PolicyResult { status: "oom".to_owned(), why, ..row }, expected.source),
    };
    let mut row = PolicyResult { status: "ok".to_owned(), metrics: expected.metrics, ..row };
    let ends = [Case::Low, Case::High].map(|case| at(scenario, choice, case).metrics);
    for key in ["ttft_s.mean", "makespan_s"] {
        if let (Some(low), Some(high)) = (ends[0].get(key), ends[1].get(key)) {
            row.interval.insert(key.to_owned(), [low.min(*high), high.max(*low)]);
        }
    }
    let judged = &found.best.plan;
    row.why = format!("{}; {}", binding(&row.metrics), cut_words(&judged.sizes));
    row.planner = Some(facts(&found, expected.bound_s, choice));
    (row, expected.source)
}

/// What a way gives at one end of the costs.
struct At {
    found: Result<Best, String>,
    metrics: BTreeMap<String, f64>,
    bound_s: f64,
    source: Source,
}

fn at(scenario: &LongPrompt, choice: &PromptChoice, case: Case) -> At {
    let deployment = ReplicaConfig::new(&scenario.model, &scenario.cluster, choice.degrees.tensor);
    let model = cost_model(&scenario.cluster, scenario.profile.as_ref(), scenario.sustained_flops_ratio);
    let tokens_max = u32::try_from(choice.tokens).expect("the reader keeps prompts below 2^32");
    let table = StepTable::new(&deployment, (tokens_max, 1), model.as_ref(), case);
    let cost = |sparse| StageCost {
        table: &table,
        model: &scenario.model,
        cluster: &scenario.cluster,
        degrees: choice.degrees,
        attention: Attention { flops_ratio: scenario.flops_ratio, sparse },
        case,
    };
    let sparse = scenario.budget.as_ref().map(|budget| SparseAttention {
        kernel: choice.kernel,
        positions: budget.positions(choice.degrees.tensor),
        threshold: scenario.threshold,
    });
    let (dense, sparse) = (cost(None), sparse.map(|sparse| cost(Some(sparse))));
    let question = Question {
        dense: &dense,
        sparse: sparse.as_ref(),
        tokens: choice.tokens,
        n_prompts: scenario.n_prompts,
        grain: scenario.grain,
        room: scenario.room,
        is_gated: choice.is_gated,
    };
    let found = match choice.policy {
        Policy::Best => best(&question),
        _ => question.judge(way(choice)).map(|judged| {
            let makespan_s = judged.makespan_s();
            Best { best: Decision::new(judged, planner::Aim::Seconds, makespan_s), n_judged: 1, n_too_large: 0 }
        }),
    };
    // A single way is compared with what its own attention could do at best.
    let bounded = match (choice.policy, way(choice).is_sparse) {
        (Policy::Best, _) | (_, true) => question,
        _ => Question { sparse: None, ..question },
    };
    let metrics = found.as_ref().map_or_else(|_| BTreeMap::new(), |found| metrics(&question, &found.best.plan));
    At { found, metrics, bound_s: bounded.bound().get(), source: table.source }
}

fn metrics(question: &Question<'_>, judged: &Judged) -> BTreeMap<String, f64> {
    let cost = question.cost(judged.way.is_sparse);
    let n = f64::from(question.n_prompts);
    let tokens = hw::Tokens(question.tokens).as_f64();
    let makespan_s = judged.makespan_s();
    let chunks = laid(&judged.sizes);
    let attention: f64 = chunks.iter().map(|&chunk| cost.attend(chunk).get()).sum();
    let stage: f64 = chunks.iter().map(|&chunk| cost.stage(chunk).to_seconds().get()).sum();
    let model = cost.model;
    let width = hw::Tokens(model.n_heads * model.head_dim * model.n_layers).as_f64();
    let products = hw::Tokens(model.active_parameters() - model.embedding_parameters()).as_f64();
    // Work of dense attention, whatever was computed: what the time is worth.
    let flops = n * (2.0 * products * tokens + 2.0 * tokens * tokens * width);
    let n_gpus = f64::from(cost.degrees.tensor * cost.degrees.pipeline);
    let n_sparse = chunks.iter().filter(|&&chunk| cost.is_sparse(chunk)).count();
    [
        ("ttft_s.mean", judged.played.ends.iter().map(|end| end.to_seconds().get()).sum::<f64>() / n),
        ("makespan_s", makespan_s),
        ("prompt_tokens_per_s", tokens * n / makespan_s),
        ("n_chunks", hw::Tokens(chunks.len() as u64).as_f64()),
        ("n_sparse_chunks", hw::Tokens(n_sparse as u64).as_f64()),
        ("attention_ratio", attention / stage),
        ("bubble_ratio", judged.played.bubble_ratio()),
        ("dense_equivalent_mfu_ratio", flops / (makespan_s * n_gpus * cost.cluster.gpu.peak_bf16.get())),
        ("peak_memory_bytes", judged.memory.total().as_f64()),
        ("kv_bytes", judged.memory.kv.as_f64()),
        ("activation_bytes", judged.memory.activations.as_f64()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// What takes most of the time.
fn binding(metrics: &BTreeMap<String, f64>) -> String {
    let value = |key: &str| metrics.get(key).copied().unwrap_or(0.0);
    let busy = 1.0 - value("bubble_ratio");
    let shares = [
        ("attention", busy * value("attention_ratio")),
        ("products, norms and exchanges", busy * (1.0 - value("attention_ratio"))),
        ("stages that wait for each other", value("bubble_ratio")),
    ];
    let (name, share) = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("three shares");
    format!("limited by {name}, {:.0} % of the time", share * 100.0)
}

fn cut_words(sizes: &[u64]) -> String {
    match sizes {
        [one] => format!("one chunk of {one} tokens"),
        [first, .., last] => format!("{} chunks from {first} to {last} tokens", sizes.len()),
        [] => "no chunk".to_owned(),
    }
}

/// `chunk_01_tokens` and so on.
fn chunk_figures(sizes: &[u64]) -> BTreeMap<String, f64> {
    let figure = |(index, size): (usize, &u64)| (format!("chunk_{:02}_tokens", index + 1), hw::Tokens(*size).as_f64());
    sizes.iter().enumerate().map(figure).collect()
}

fn facts(found: &Best, bound_s: f64, choice: &PromptChoice) -> PlannerFacts {
    let objective = found.best.plan.makespan_s();
    let mut notes = vec![found.best.plan.way.words()];
    if way(choice).cut != found.best.plan.way.cut && choice.policy != Policy::Best {
        notes.push("gated: several prompts at once fill the pipeline, so chunks stay equal".to_owned());
    }
    if let Some(other) = found.best.runner_up().map(|other| &other.plan) {
        let more = (other.makespan_s() / objective - 1.0) * 100.0;
        notes.push(format!(
            "best of {} ways ({} more do not fit memory); runner-up {more:.1} % slower: {}",
            found.n_judged,
            found.n_too_large,
            other.way.words()
        ));
    }
    PlannerFacts {
        objective: Some(objective),
        bound: Some(bound_s),
        gap_ratio: Some(((objective - bound_s) / objective).max(0.0)),
        status: if choice.policy == Policy::Best { "feasible" } else { "heuristic" }.to_owned(),
        notes,
        figures: chunk_figures(&found.best.plan.sizes),
        ..PlannerFacts::default()
    }
}
