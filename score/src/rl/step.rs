//! A measured step as it was run: trainer, engine that generates, lengths, packs.
//!
//! Sources of NeMo-RL (NVIDIA-NeMo/RL @ v0.5.0): nemo_rl/algorithms/grpo.py, `grpo_train` and `async_grpo_train`;
//! nemo_rl/models/policy/workers/megatron_policy_worker.py; nemo_rl/models/generation/vllm/vllm_worker.py. The limit of a sequence is that of prompt and answer together
//! (`max_total_sequence_length`, which is vLLM's `max_model_len`). Units: tokens, sequences, GPUs.

use engine::Model;
use engine::formats::Formats;
use hw::{Bytes, Cluster, Dtype, Format};
use rl::cycle::{Batches, Placement};
use rl::orchestrator::Orchestrator;
use rl::reference::Reference;
use rl::rollouts::Rollouts;
use rl::step::Rules;
use serve::memory_rule::MemoryRule;
use serve::step_cost::host::EngineLoop;
use train::problem::{Execution, Framework, GradientSync, Loss, Overlap, Problem, Recompute};

use super::named;
use super::recipe::{Recipe, UPDATE};
use crate::reason::Reason;
use crate::run::{Run, Worker, Workers};
use crate::setup::{self, Setup};
use crate::training::setting::{Degrees, Machine};

/// A step that can be played.
#[derive(Clone, Debug)]
pub struct Step {
    /// Model, machine and layout of the trainer.
    pub trainer: Problem,
    /// Prompts and answers.
    pub rollouts: Rollouts,
    /// GPUs of trainer and engines together, where each have their own.
    pub both: Cluster,
    /// Sequences of an optimizer step.
    pub update: u32,
    /// Tokens of a pack in an optimizer step, and of one of log probabilities.
    pub pack_tokens: [u64; 2],
    /// Engines that generate.
    pub generator: Setup,
    /// GPUs of an engine.
    pub generator_tp: u32,
    /// Which GPUs generate.
    pub placement: Placement,
    /// Updates by which weights that generate may be behind.
    pub off_policy: u32,
}

/// What a line says of a step.
#[derive(Clone, Debug)]
pub(super) struct Stated {
    pub(super) model: String,
    pub(super) card: String,
    pub(super) format: String,
    pub(super) gpus: [u32; 2],
    pub(super) degrees: Degrees,
    pub(super) generator_tp: u32,
    pub(super) memory_ratio: f64,
    pub(super) checkpoints: bool,
    pub(super) prompts: u32,
    pub(super) answers: u32,
    pub(super) prompt: u32,
    /// Tokens of prompt and answer.
    pub(super) limit: u32,
    pub(super) mean: f64,
    pub(super) placement: Placement,
    pub(super) off_policy: u32,
}

impl Step {
    /// Weights of an engine on one of its GPUs.
    pub fn engine_bytes(&self) -> Bytes {
        Bytes(rl::weights::moved(&self.trainer).0 / u64::from(self.generator_tp))
    }

    /// How the step is made of its parts, as NeMo-RL does it.
    pub fn rules(&self) -> Rules {
        Rules {
            placement: self.placement,
            off_policy: self.off_policy,
            batches: Batches::Streamed,
            n_forwards: 2,
            rewards_s: None,
            orchestrator: Orchestrator::NemoRl,
            sends_states: true,
            weights_gb_per_s: None,
            reference: Reference::Host,
        }
    }

    /// Tokens of a block of keys and values that prompts share.
    pub fn block_tokens(&self) -> u32 {
        self.generator.parts[0].limits.block_tokens
    }
}

impl Stated {
    /// The step by its recipe.
    pub(super) fn step(&self, recipe: &Recipe) -> Result<Step, Reason> {
        self.check()?;
        let model = named::model(&self.model)?;
        let most = self.limit.saturating_sub(self.prompt);
        let rollouts =
            Rollouts { n_prompts: self.prompts, n_answers: self.answers, prompt: self.prompt, mean: self.mean, most };
        Ok(Step {
            trainer: self.trainer(model.clone(), recipe)?,
            both: self.both()?,
            rollouts,
            update: UPDATE,
            pack_tokens: [1, recipe.log_prob_sequences].map(|n| u64::from(self.limit * n)),
            generator: self.generator(model, recipe)?,
            generator_tp: self.generator_tp,
            placement: self.placement,
            off_policy: self.off_policy,
        })
    }

    /// Degrees divide GPUs and batches, and answers fit their limit.
    fn check(&self) -> Result<(), Reason> {
        let [trains, generates] = self.gpus;
        let Degrees { dp, .. } = self.degrees;
        if dp == 0 || self.degrees.n_gpus() != trains {
            return Err(Reason::Degrees { what: format!("{} on {trains} GPUs", self.degrees.words()) });
        }
        if generates == 0 || !generates.is_multiple_of(self.generator_tp) {
            return Err(Reason::Degrees { what: format!("engines of {} GPUs on {generates}", self.generator_tp) });
        }
        let n = self.prompts * self.answers;
        if n == 0 || !n.min(UPDATE).is_multiple_of(dp) || !n.is_multiple_of(n.min(UPDATE)) {
            return Err(Reason::Degrees { what: format!("{n} answers in updates of {UPDATE} over {dp} groups") });
        }
        let room = self.limit.saturating_sub(self.prompt);
        if self.mean > f64::from(room) {
            return Err(Reason::Limit { what: format!("a mean of {} in {room} tokens", self.mean) });
        }
        Ok(())
    }

    fn both(&self) -> Result<Cluster, Reason> {
        let n_gpus = match self.placement {
            Placement::Colocated => self.gpus[0],
            Placement::Split => self.gpus[0] + self.gpus[1],
        };
        Ok(Machine::of(&self.card, n_gpus)?.cluster())
    }

    /// Scales of 8 bits are of blocks in trainer and engine (`fp8_recipe: blockwise`, `use_deep_gemm`).
    fn formats(&self) -> Formats {
        let format = if self.format == "fp8" { Format::Fp8Block } else { Format::Bf16 };
        Formats::weights(format, Dtype::Bf16)
    }

    /// Megatron-Core as NeMo-RL sets it: gradients of 16 bits, both exchanges overlapped, and a loss of its own over 32-bit logits
    /// (`distributed_data_parallel_config`; nemo_rl/distributed/model_utils.py, `from_parallel_logits_to_logprobs`).
    fn trainer(&self, model: Model, recipe: &Recipe) -> Result<Problem, Reason> {
        let execution = Execution {
            recompute: if self.checkpoints { Recompute::Full } else { Recompute::Off },
            framework: Framework::MegatronCore,
            unfused: recipe.unfused,
            loss: Loss::Unfused,
            formats: Some(self.formats()),
            gradient_sync: GradientSync::Overlapped,
            gradient_dtype: Dtype::Bf16,
            overlap: Overlap { parameter_gather: true, stage: false, ..Overlap::NONE },
            layers: recipe.layers(model.n_layers, self.degrees.pp),
            ..Execution::default()
        };
        let machine = Machine::of(&self.card, self.gpus[0]).map_err(Reason::of_trainer)?;
        machine.problem(model, &self.degrees, execution).map_err(Reason::of_trainer)
    }

    /// vLLM with its defaults beside what the recipe states. Answers of one batch are in flight together, and those of further ones that
    /// may be generated beside it.
    fn generator(&self, model: Model, recipe: &Recipe) -> Result<Setup, Reason> {
        let card = crate::training::setting::one_card(&self.card);
        let card = card.ok_or_else(|| Reason::Card { word: self.card.clone() })?.gpu.name;
        let n_engines = self.gpus[1] / self.generator_tp;
        let of_engine = (self.prompts * self.answers * (1 + self.off_policy)).div_ceil(n_engines);
        let worker = Worker { batch: of_engine, ..Worker::of(self.generator_tp, 1) };
        let run = Run {
            line: 0,
            id: String::new(),
            source: String::new(),
            measured: String::new(),
            engine: ENGINE.to_owned(),
            version: recipe.vllm.to_owned(),
            model: String::new(),
            card,
            precision: String::new(),
            formats: [String::new(), String::new()],
            prompt: self.prompt,
            output: self.limit - self.prompt,
            in_flight: Some(of_engine * n_engines),
            workers: Workers::Whole(worker),
            ttft_s: 0.0,
            tpot_s: 0.0,
        };
        let started = crate::recipe::Recipe::of_defaults(MemoryRule::OfDevice(self.memory_ratio), self.engine_loop());
        setup::of_recipe(&run, model, self.formats(), &started).map_err(Reason::of_generator)
    }

    /// Tensor groups run under Ray (`distributed_executor_backend`), whose executor knows no asynchronous scheduling
    /// (vllm-project/vllm, tests/v1/executor: `Executor.supports_async_scheduling`, which only those of one process and of several on a node override).
    fn engine_loop(&self) -> Option<EngineLoop> {
        (self.generator_tp > 1).then_some(EngineLoop::Serial)
    }
}

/// Engine of all steps that are played.
pub const ENGINE: &str = "vllm";
