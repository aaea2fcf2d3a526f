//! Cost of training low-rank adapters (LoRA, arXiv:2106.09685) on short examples.
//!
//! The weights are frozen, so a step is forward and gradients of inputs through the whole model: the passes of training's own cost
//! (`lower/training`), without gradients of weights. Each matrix of a layer has an adapter of two thin factors, with all three products and an
//! Adam step. Replicas of a tensor group share the batch and reduce the adapters' gradients behind the last backward. Left out: the pause of
//! a last batch that is not full, and reading data. Units: tokens, bytes, seconds.

use hw::{Bytes, Cluster, Dtype, Rank, Seconds};

use engine::cost::{CostModel, Estimate, Source};
use engine::layer;
use engine::model::Model;
use engine::play::Case;
use engine::task::Ops;
use engine::task::{Collective, Op};
use engine::verdict::Refused;
use train::layout::{ContextExchange, Layout, Zero};
use train::lower::training::parts;
use train::memory;
use train::plan::{MicroBatch, Place, Placement};
use train::problem::{Execution, Problem};
use train::stage::{Stage, stages};
use train::workload::Workload;

/// Bytes of a trained parameter: value 2, gradient 2, master copy and two moments 12.
const BYTES_PER_TRAINED_PARAMETER: u64 = 16;

/// How adapters are trained.
#[derive(Clone, Debug)]
pub struct FineTuning {
    /// Model, machine and layout: `tp` GPUs share a replica, `dp` replicas share a batch, neither stages nor experts.
    pub problem: Problem,
    /// Rank of the adapters.
    pub lora_rank: u64,
    /// Tokens of an example.
    pub example_tokens: u64,
    /// Examples of an optimizer step, over all replicas.
    pub batch_examples: u64,
}

/// Figure of an estimate that a step is made of.
#[derive(Clone, Copy)]
enum Figure {
    Of(Case),
    Outside,
}

/// A cost model that answers with one figure of another's estimates.
struct Seen<'a> {
    cost: &'a dyn CostModel,
    figure: Figure,
}

impl CostModel for Seen<'_> {
    fn elementary(&self, op: &Op) -> Estimate {
        let estimate = self.cost.estimate(op);
        let seen = match self.figure {
            Figure::Of(case) => case.of(&estimate),
            Figure::Outside => estimate.outside,
        };
        Estimate::exact(seen, estimate.source)
    }
}

/// An optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Duration.
    pub seconds: f64,
    /// Part of it outside the measured hull.
    pub outside_s: f64,
    /// Micro-batches that a replica computes one after another.
    pub n_micro_batches: u64,
    /// Memory that a GPU needs.
    pub memory: Bytes,
}

/// The training question of replicas of `tp` GPUs that share a batch.
pub fn replicas(model: &Model, cluster: &Cluster, tp: u32, dp: u32, host_per_layer: Seconds) -> Problem {
    let layout = Layout::data_and_context(dp, 1, Zero::Off, ContextExchange::Gather);
    Problem {
        model: model.clone(),
        cluster: cluster.clone(),
        layout: Layout { tp, expert_tp: tp, sequence_parallel: false, ..layout },
        schedule: train::schedule::named("1f1b").expect("the table has 1F1B"),
        workload: Workload { lengths: vec![1], batch_size: 1, source: String::new() },
        dtype: Dtype::Bf16,
        execution: Execution { host_overhead_per_layer: host_per_layer, ..Execution::default() },
        bucket_tokens: 1,
        reserved_memory: Bytes::ZERO,
        seed: 0,
    }
}

impl FineTuning {
    /// Inputs and outputs of a layer's matrices, cut over the tensor group.
    fn matrices(&self) -> Vec<[u64; 2]> {
        let (model, tp) = (&self.problem.model, u64::from(self.problem.layout.tp));
        let (hidden, heads) = (model.hidden, model.n_heads * model.head_dim);
        let column = |outputs: u64| [hidden, outputs.div_ceil(tp)];
        let row = |inputs: u64| [inputs.div_ceil(tp), hidden];
        let mut matrices = vec![column(heads), column(model.kv_width()), column(model.kv_width()), row(heads)];
        matrices.extend([column(model.intermediate), row(model.intermediate)]);
        matrices.extend(model.gated.then(|| column(model.intermediate)));
        matrices
    }

    /// Parameters of all adapters on a GPU.
    pub fn n_trained(&self) -> u64 {
        let of_layer: u64 = self.matrices().iter().map(|[inputs, outputs]| self.lora_rank * (inputs + outputs)).sum();
        of_layer * self.problem.model.n_layers
    }

    fn stage(&self) -> Stage {
        stages(&self.problem)[0]
    }

    /// Examples that a GPU holds in one micro-batch, and what that takes.
    ///
    /// # Errors
    /// A sentence when the model leaves no room for one.
    fn micro_batch(&self, examples: u64) -> Result<(u64, Bytes), Refused> {
        let (problem, stage) = (&self.problem, self.stage());
        let weights = memory::states(problem, &[stage]).parameters;
        let states = weights.0 + self.n_trained() * BYTES_PER_TRAINED_PARAMETER;
        let per_token =
            memory::on_device(problem, engine::memory::activation_bytes_per_token(&problem.shard(), &stage))
                + engine::memory::working_bytes_per_token(&problem.shard(), &stage)
                + engine::memory::logit_bytes_per_token(&problem.shard());
        let per_example = per_token * self.example_tokens;
        let room = problem.cluster.gpu.memory.0.saturating_sub(problem.reserved_memory.0 + states);
        let held = (room / per_example.max(1)).min(examples);
        if held == 0 {
            let gib = |bytes: u64| hw::real(bytes) / hw::GIB;
            return Err(Refused::out_of_memory(format!(
                "training does not fit: weights and adapters of `{}` take {:.1} GiB and an example {:.2} GiB of the {:.1} GiB of `{}`, of which {:.1} GiB are reserved",
                problem.model.name,
                gib(states),
                gib(per_example),
                gib(problem.cluster.gpu.memory.0),
                problem.cluster.gpu.name,
                gib(problem.reserved_memory.0)
            )));
        }
        Ok((held, Bytes(states + held * per_example)))
    }

    /// Products of all adapters: forward, gradients of inputs, gradients of the factors, and what they add to the layer's own.
    fn adapters(&self, tokens: u64) -> Ops {
        let (r, m, dtype) = (self.lora_rank, tokens, self.problem.dtype);
        let gemm = |m, n, k| Op::Gemm { m, n, k, format: dtype.into() };
        // Reads two, writes one.
        let add = |width: u64| Op::Elementwise { bytes: 3 * m * width * dtype.bytes() };
        let of = |[inputs, outputs]: [u64; 2]| {
            let forward = [gemm(m, r, inputs), gemm(m, outputs, r), add(outputs)];
            let backward = [gemm(m, r, outputs), gemm(m, inputs, r), add(inputs)];
            let factors = [gemm(outputs, r, m), gemm(r, inputs, m)];
            forward.into_iter().chain(backward).chain(factors).map(|op| (op, 1)).collect::<Vec<_>>()
        };
        let n_layers = u32::try_from(self.problem.model.n_layers).expect("few layers");
        layer::repeated(&self.matrices().into_iter().flat_map(of).collect(), n_layers)
    }

    /// Adam over the adapters, and the reduction of their gradients over replicas.
    fn update(&self) -> Ops {
        let (n, layout) = (self.n_trained(), &self.problem.layout);
        let mut ops = layer::optimizer(hw::real(n));
        if layout.dp > 1 {
            let group: Vec<Rank> = (0..layout.dp).map(|replica| Rank(replica * layout.tp)).collect();
            let shape = self.problem.cluster.shape_of(&group);
            let bytes = n * self.problem.execution.gradient_dtype.bytes();
            ops.push((Op::Collective { kind: Collective::AllReduce, bytes, shape }, 1));
        }
        ops
    }

    /// Seconds of a micro-batch of so many examples.
    fn micro_batch_s(&self, examples: u64, cost: &dyn CostModel) -> f64 {
        if examples == 0 {
            return 0.0;
        }
        let placement = |index: u64| Placement {
            sequence: u32::try_from(index).expect("few examples"),
            from: 0,
            tokens: self.example_tokens,
            place: Place::Local(0),
        };
        let micro_batch = MicroBatch { sequences: (0..examples).map(placement).collect(), ..MicroBatch::default() };
        let [forward, input, _] =
            parts(&self.problem, &micro_batch, train::experts::mean(&self.problem), cost).stage(&self.stage());
        forward + input + cost.estimate(&Op::Sequence(self.adapters(examples * self.example_tokens))).time.get()
    }

    /// An optimizer step at one end of the cost model's interval or as expected.
    ///
    /// # Errors
    /// A sentence when training does not fit memory.
    pub fn step(&self, cost: &dyn CostModel, case: Case) -> Result<Step, Refused> {
        let on_replica = self.batch_examples.div_ceil(u64::from(self.problem.layout.dp));
        let (held, memory) = self.micro_batch(on_replica)?;
        let of = |figure| {
            let seen = Seen { cost, figure };
            let whole = hw::real(on_replica / held) * self.micro_batch_s(held, &seen);
            let update: Seconds = seen.estimate(&Op::Sequence(self.update())).time;
            whole + self.micro_batch_s(on_replica % held, &seen) + update.get()
        };
        let n_micro_batches = on_replica.div_ceil(held);
        Ok(Step { seconds: of(Figure::Of(case)), outside_s: of(Figure::Outside), n_micro_batches, memory })
    }

    /// Weakest source of a step's costs.
    pub fn source(&self, cost: &dyn CostModel) -> Source {
        cost.estimate(&Op::Sequence(self.adapters(self.example_tokens))).source
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::cost::roofline::Roofline;
    use train::lower::training::lower;
    use train::plan::{Plan, Step as PlanStep};

    fn tuning(gpu: &str, tp: u32, dp: u32) -> FineTuning {
        let model = engine::model::embedded("qwen2.5-7b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu(gpu).expect("listed"), 1, 8);
        let problem = replicas(&model, &cluster, tp, dp, Seconds::ZERO);
        FineTuning { problem, lora_rank: 16, example_tokens: 64, batch_examples: 64 }
    }

    #[test]
    fn adapters_have_the_parameters_that_peft_reports() {
        // Rank 16 on all seven matrices of Qwen2-7B: 28 layers × 16 × (q 7168, k and v 4096 each, o 7168, gate, up and down 22528 each).
        let expected = 28 * 16 * (7168 + 2 * 4096 + 7168 + 3 * 22_528);
        assert_eq!(tuning("h100-sxm", 1, 1).n_trained(), expected);
        assert_eq!(expected, 40_370_176);
    }

    #[test]
    fn frozen_weights_save_a_third_of_the_products() {
        // Large products at the roofline: 4 of 6 operations per parameter and token remain, and the adapters' own.
        let tuning = FineTuning { batch_examples: 256, lora_rank: 1, ..tuning("h200-sxm", 1, 1) };
        let cost = Roofline::new(&tuning.problem.cluster);
        let step = tuning.step(&cost, Case::Expected).expect("fits");
        let tokens = 256.0 * 64.0;
        let flops = 4.0 * tokens * hw::real(tuning.problem.model.n_parameters());
        let products_s = flops / tuning.problem.cluster.gpu.peak_bf16.get();
        let ratio = step.seconds / products_s;
        assert!((0.9..2.0).contains(&ratio), "{} s, products alone {products_s} s", step.seconds);
        let whole = full_step_s(&tuning, &cost);
        assert!(step.seconds < whole, "{} s, {whole} s with all gradients", step.seconds);
    }

    /// The step of full training that the event engine plays, without its optimizer and memory.
    fn full_step_s(tuning: &FineTuning, cost: &dyn CostModel) -> f64 {
        let mut problem = tuning.problem.clone();
        problem.cluster.gpu.memory = Bytes(1 << 50);
        problem.workload.lengths = vec![tuning.example_tokens; 256];
        let placement =
            |sequence| Placement { sequence, from: 0, tokens: tuning.example_tokens, place: Place::Local(0) };
        let micro_batch = MicroBatch { sequences: (0..256).map(placement).collect(), ..MicroBatch::default() };
        let plan = Plan::new("test", &problem, vec![PlanStep::of_groups(vec![vec![micro_batch]])]);
        let graph = lower(&problem, &plan, 0);
        let busy = |role| graph.tasks.iter().filter(move |task| task.role == role);
        let forward_and_backward = busy(engine::task::Role::Forward)
            .chain(busy(engine::task::Role::Backward))
            .chain(busy(engine::task::Role::Recompute));
        forward_and_backward.map(|task| cost.estimate(&graph.ops[task.op.0 as usize]).time.get()).sum()
    }

    #[test]
    fn replicas_share_the_batch_and_intervals_hold_the_step() {
        let (one, four) = (tuning("h100-sxm", 1, 1), tuning("h100-sxm", 1, 4));
        let cost = Roofline::new(&one.problem.cluster);
        let step = |tuning: &FineTuning, case| tuning.step(&cost, case).expect("fits").seconds;
        let (alone, shared) = (step(&one, Case::Expected), step(&four, Case::Expected));
        assert!(shared < alone && shared > alone / 4.0, "{alone} s alone, {shared} s on four");
        assert!(step(&one, Case::Low) <= alone && alone <= step(&one, Case::High));
    }

    #[test]
    fn what_does_not_fit_at_once_is_cut_and_what_never_fits_is_said() {
        let cost = Roofline::new(&tuning("h100-sxm", 1, 1).problem.cluster);
        let large = FineTuning { batch_examples: 4096, ..tuning("h100-sxm", 1, 1) };
        let step = large.step(&cost, Case::Expected).expect("fits in parts");
        assert!(step.n_micro_batches > 1 && step.memory.0 <= 80 << 30, "{step:?}");
        // 15.2 GB of weights.
        let mut small = tuning("h100-sxm", 1, 1);
        small.problem.cluster.gpu.memory = Bytes(15 << 30);
        assert!(small.step(&cost, Case::Expected).expect_err("too small").why.contains("training does not fit"));
    }
}
