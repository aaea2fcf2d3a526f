//! Cost of asking a model every question several times: a classification pass of Gradual Learning (arXiv:2410.05802; taxonomy of
//! arXiv:2405.05904), or an evaluation of held-out facts.
//!
//! A question is asked behind several few-shot prompts, and each prompt gets one greedy answer and some samples. The engine batches
//! continuously and is always full, so a pass is a number of equal iterations: with `s` answers under way, each of which lives `a`
//! iterations (the one of its prompt, then one per further token), an iteration holds `s (a − 1) / a` decoding sequences and starts
//! `s / (a g)` prompts of `g` answers, and `n` answers take `n a / s` iterations. Fractions of a prompt are iterations with one more and one
//! less. Left out: filling and draining the engine. Keys and values of a shared prefix are kept once, but every answer reads them by itself,
//! as engines without a cascade kernel do. Units: tokens, seconds.

use engine::cost::{CostModel, Source};
use engine::play::Case;
use engine::verdict::Refused;
use serve::step_cost::{Chunk, ReplicaConfig, StepLoad, StepTable};

hw::words! {
    /// Whose keys and values of a prompt are kept for others.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Sharing: word {
        /// Answers to one prompt share it.
        Samples = "samples",
        /// Nobody's: every answer computes its prompt.
        Off = "none",
        /// The same, and questions of one type share the examples in front of them.
        Questions = "questions",
    }
}

/// How a question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prompts {
    /// Prompts per question.
    pub n_prompts: u32,
    /// Sampled answers per prompt, beside the greedy one.
    pub n_samples: u32,
    /// Tokens of the examples in front of a question.
    pub shots_tokens: u32,
    /// Tokens of a question.
    pub question_tokens: u32,
    /// Tokens of an answer.
    pub answer_tokens: u32,
    /// Types of questions, each with examples of its own.
    pub n_question_types: u32,
    /// What is computed once for several answers.
    pub sharing: Sharing,
}

impl Prompts {
    /// Answers to a question.
    pub const fn answers_per_question(&self) -> u32 {
        self.n_prompts * (1 + self.n_samples)
    }

    /// One greedy answer behind one prompt: an evaluation.
    pub const fn greedy(self) -> Self {
        Self { n_prompts: 1, n_samples: 0, ..self }
    }

    /// Answers that share a computed prompt.
    const fn answers_per_prompt(&self) -> u32 {
        match self.sharing {
            Sharing::Off => 1,
            Sharing::Samples | Sharing::Questions => 1 + self.n_samples,
        }
    }

    /// Tokens in front of an answer.
    const fn context_tokens(&self) -> u32 {
        self.shots_tokens + self.question_tokens
    }

    /// What is computed for a prompt.
    const fn chunk(&self) -> Chunk {
        match self.sharing {
            Sharing::Questions => Chunk { past: self.shots_tokens, new: self.question_tokens },
            Sharing::Off | Sharing::Samples => Chunk { past: 0, new: self.context_tokens() },
        }
    }

    /// Examples that are computed once for a whole pass, per prompt and type of question.
    fn n_prefixes(&self) -> u64 {
        if self.sharing == Sharing::Questions {
            u64::from(self.n_prompts) * u64::from(self.n_question_types)
        } else {
            0
        }
    }

    /// Tokens whose keys and values are kept while so many answers are under way; questions come type by type.
    fn kept_tokens(&self, n_answers: u32) -> u64 {
        let n_prompts = u64::from(n_answers.div_ceil(self.answers_per_prompt()));
        let prefixes = if self.n_prefixes() > 0 { self.n_prompts * self.shots_tokens } else { 0 };
        u64::from(prefixes)
            + n_prompts * u64::from(self.chunk().new)
            + u64::from(n_answers) * u64::from(self.answer_tokens)
    }
}

/// What an engine holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences of a batch.
    pub sequences_max: u32,
    /// Tokens of an iteration.
    pub tokens_max: u32,
    /// Tokens of keys and values.
    pub kv_tokens: u64,
}

/// A full engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// Answers under way.
    pub n_answers: u32,
    /// Prompts that an iteration starts.
    pub n_prompts: f64,
    /// What keeps it from growing, in words.
    pub binding: &'static str,
}

/// The largest batch that limits allow; `None` where not even one answer fits memory.
pub fn batch(prompts: &Prompts, limits: &Limits) -> Option<Batch> {
    let life = f64::from(prompts.answer_tokens);
    let (per_prompt, new) = (f64::from(prompts.answers_per_prompt()), f64::from(prompts.chunk().new));
    let tokens = |n: u32| f64::from(n) * (life - 1.0 + new / per_prompt) / life;
    // A prompt that is longer than an iteration takes several, at the same pace: one answer always fits.
    let by_tokens = |n: &u32| *n == 1 || tokens(*n) <= f64::from(limits.tokens_max);
    let by_memory = |n: &u32| prompts.kept_tokens(*n) <= limits.kv_tokens;
    let n_answers = (1..=limits.sequences_max).rev().find(|n| by_tokens(n) && by_memory(n))?;
    let next = n_answers + 1;
    let binding = match next {
        _ if n_answers == limits.sequences_max => "sequences of a batch",
        _ if !by_memory(&next) => "memory for keys and values",
        _ => "tokens of an iteration",
    };
    Some(Batch { n_answers, n_prompts: f64::from(n_answers) / (life * per_prompt), binding })
}

/// A pass over questions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// Duration.
    pub seconds: f64,
    /// Answers.
    pub n_answers: f64,
    /// Weakest source of the costs.
    pub source: Source,
}

/// An engine that answers.
pub struct Engine<'a> {
    /// What a replica runs.
    pub deployment: &'a ReplicaConfig<'a>,
    /// What it holds.
    pub limits: Limits,
    /// Replicas that share the questions evenly.
    pub n_replicas: u32,
}

impl Engine<'_> {
    /// Iteration times for batches of one way to ask, at one end of the cost model's interval or as expected.
    pub fn table(&self, prompts: &Prompts, cost: &dyn CostModel, case: Case) -> StepTable {
        // Room for one prompt beyond the limit: an iteration may start one more than the mean.
        let tokens_max = self.limits.tokens_max + prompts.context_tokens();
        StepTable::new(self.deployment, (tokens_max, 2 * self.limits.sequences_max + 1), cost, case)
    }

    /// Time of asking so many questions.
    ///
    /// # Errors
    /// A sentence when not even one answer fits memory.
    pub fn pass(&self, prompts: &Prompts, n_questions: f64, table: &StepTable) -> Result<Pass, Refused> {
        let Some(batch) = batch(prompts, &self.limits) else {
            return Err(Refused::out_of_memory(format!(
                "an answer keeps {} tokens of keys and values, the engine has room for {}",
                prompts.kept_tokens(1),
                self.limits.kv_tokens
            )));
        };
        let n_answers = n_questions * f64::from(prompts.answers_per_question());
        let on_replica = n_answers / f64::from(self.n_replicas);
        let iterations = on_replica * f64::from(prompts.answer_tokens) / f64::from(batch.n_answers);
        let prefix = Chunk { past: 0, new: prompts.shots_tokens };
        let load = StepLoad { n_chunk_tokens: prefix.new, n_chunks: 1, ..StepLoad::default() };
        let one_prefix_s = table.step(&load, std::iter::once(prefix)).to_seconds();
        // Every replica computes the examples of the types that it answers.
        let prefixes = hw::real(prompts.n_prefixes()) / f64::from(self.n_replicas);
        let spent = iterations * iteration_s(prompts, &batch, table) + prefixes * one_prefix_s;
        Ok(Pass { seconds: spent, n_answers, source: table.source })
    }
}

/// Mean duration of a full engine's iteration.
fn iteration_s(prompts: &Prompts, batch: &Batch, table: &StepTable) -> f64 {
    let decoding = f64::from(batch.n_answers) * (1.0 - 1.0 / f64::from(prompts.answer_tokens));
    let n_decode = u32::try_from(hw::whole(decoding)).expect("at most the sequences of a batch");
    // Half of an answer is there on average.
    let context = u64::from(prompts.context_tokens()) + u64::from(prompts.answer_tokens / 2);
    let starting = |n: u32| {
        let chunk = prompts.chunk();
        let load = StepLoad {
            n_decode,
            context: u64::from(n_decode) * context,
            n_chunk_tokens: n * chunk.new,
            n_chunks: n,
            n_sampled: n_decode + n * prompts.answers_per_prompt(),
            ..StepLoad::default()
        };
        table.step(&load, std::iter::repeat_n(chunk, n as usize)).to_seconds()
    };
    let fewer = batch.n_prompts.floor();
    let n = u32::try_from(hw::whole(fewer)).expect("at most the sequences of a batch");
    let share = batch.n_prompts - fewer;
    starting(n) * (1.0 - share) + starting(n + 1) * share
}

#[cfg(test)]
mod tests {
    use hw::{Seconds, Time};

    use super::*;
    use serve::fleet::serve;
    use serve::replica::{self, Spans};
    use serve::request::{Request, Requests};
    use serve::{batcher, router};

    const PROMPTS: Prompts = Prompts {
        n_prompts: 10,
        n_samples: 16,
        shots_tokens: 96,
        question_tokens: 16,
        answer_tokens: 8,
        n_question_types: 5,
        sharing: Sharing::Samples,
    };
    const LIMITS: Limits = Limits { sequences_max: 256, tokens_max: 2048, kv_tokens: 100_000 };

    fn pass(prompts: Prompts, limits: Limits, n_questions: f64, table: &StepTable) -> Pass {
        let model = engine::model::embedded("qwen2.5-7b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let deployment = ReplicaConfig::new(&model, &cluster, 1);
        Engine { deployment: &deployment, limits, n_replicas: 1 }.pass(&prompts, n_questions, table).expect("fits")
    }

    /// A fixed part of 5 ms, 20 µs per token, 10 ns per cached token.
    fn table() -> StepTable {
        StepTable::linear(Seconds::new(5e-3), Seconds::new(2e-5), Seconds::new(1e-8))
    }

    #[test]
    fn a_batch_is_as_large_as_its_tightest_limit_allows() {
        // 256 answers: 15.06 prompts of 112 tokens over 8 iterations each, 224 decoding: 434.8 tokens of 2048.
        let of = |limits| batch(&PROMPTS, &limits).expect("fits");
        let full = of(LIMITS);
        assert_eq!((full.n_answers, full.binding), (256, "sequences of a batch"));
        assert!((full.n_prompts - 256.0 / 136.0).abs() < 1e-12);
        // 7 + 112 / 17 tokens per answer over 8 iterations are 1.6985: 235 answers take 399.2 of 400.
        let found = of(Limits { tokens_max: 400, ..LIMITS });
        assert_eq!((found.n_answers, found.binding), (235, "tokens of an iteration"));
        // 17 answers of 8 tokens and a prompt of 112 are 248; 1000 tokens hold four prompts and their 68 answers (992), one more needs a prompt.
        let found = of(Limits { kv_tokens: 1000, ..LIMITS });
        assert_eq!((found.n_answers, found.binding), (68, "memory for keys and values"));
        assert_eq!(batch(&PROMPTS, &Limits { kv_tokens: 119, ..LIMITS }), None);
    }

    #[test]
    fn a_linear_engine_takes_the_time_that_its_tokens_say() {
        // Fixed part: iterations. Per token: each prompt once per 17 answers, and 7 decoded tokens per answer. Cached tokens: 7 reads of 116.
        let found = pass(PROMPTS, LIMITS, 1000.0, &table());
        let answers = 170_000.0;
        assert_eq!(found.n_answers, answers);
        let expected = answers * (8.0 / 256.0 * 5e-3 + (112.0 / 17.0 + 7.0) * 2e-5 + 7.0 * 116.0 * 1e-8);
        assert!((found.seconds / expected - 1.0).abs() < 1e-9, "{} s, expected {expected} s", found.seconds);
    }

    #[test]
    fn a_shared_prefix_saves_its_tokens() {
        // Room for all tokens, so that every batch has 256 answers.
        let limits = Limits { tokens_max: 8192, ..LIMITS };
        let seconds = |sharing| pass(Prompts { sharing, ..PROMPTS }, limits, 1000.0, &table()).seconds;
        let (none, samples, questions) =
            (seconds(Sharing::Off), seconds(Sharing::Samples), seconds(Sharing::Questions));
        // 16 of 17 prompts of 112 tokens; 10,000 times 96 tokens, and 50 prefixes computed in iterations of their own.
        assert!(((none - samples) / (160_000.0 * 112.0 * 2e-5) - 1.0).abs() < 1e-6);
        assert!(((samples - questions) / (10_000.0 * 96.0 * 2e-5 - 50.0 * (5e-3 + 96.0 * 2e-5)) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_pass_takes_as_long_as_the_engine_that_serves_it_request_by_request() {
        // Without sharing every answer is a request of its own. All come at once, so filling and draining are a few iterations of many.
        let prompts = Prompts { n_samples: 0, n_prompts: 1, answer_tokens: 12, sharing: Sharing::Off, ..PROMPTS };
        let limits = Limits { sequences_max: 64, tokens_max: 4096, ..LIMITS };
        let n_questions = 6000;
        let requests = Requests::of((0..n_questions).map(|_| Request::new(Time::ZERO, 112, 12)).collect());
        let engine = replica::Engine {
            limits: replica::Limits {
                sequences_max: limits.sequences_max,
                tokens_max: limits.tokens_max,
                context_max: 10_000,
                kv_blocks: 10_000,
                ..replica::Limits::ROOMY
            },
            table: table(),
            batcher: batcher::named("vllm-v1").expect("listed"),
            spans: Spans::Closed,
        };
        let served = serve(&requests, &[&engine], (router::named("round-robin").expect("listed").make)(0).as_mut());
        let ends = served.records.list.iter().filter_map(|record| record.finished());
        let simulated = ends.map(Time::as_ns).max().expect("served");
        let simulated = hw::real(simulated) / 1e9;
        let found = pass(prompts, limits, f64::from(n_questions), &table()).seconds;
        // Arriving together, requests go in waves: the engine's iterations are uneven, their sum is what counts.
        assert!((found / simulated - 1.0).abs() < 0.02, "{found} s in closed form, {simulated} s request by request");
    }
}
