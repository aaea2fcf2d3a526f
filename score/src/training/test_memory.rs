//! What the last rank of Megatron-LM's tests holds by options that no layout says, and what it does without. Units: bytes.
//!
//! Sources: the tests' configurations and `megatron/core` of NVIDIA/Megatron-LM @ d98e8a64ddf3, `transformer_engine/pytorch` of NVIDIA/TransformerEngine
//! @ d0067d0da, `aten/src/ATen/cuda/CublasHandlePool.cpp` of PyTorch. Nothing is fitted.

use engine::memory::{library_workspaces, stand_in_gradients};
use engine::recompute::Recompute;
use engine::stage::Stage;
use hw::{Capability, Dtype};
use train::problem::{AttentionKernel, Problem};
use train::stage::stages;

use super::megatron_shapes::has;
use crate::table::Cells;

/// Bytes of a value.
const HALF: f64 = 2.0;
/// `CUBLAS_WORKSPACE_CONFIG=:4096:8` of deterministic tests, on every card.
const DETERMINISTIC: f64 = 33_554_432.0;
/// What PyTorch gives cards other than Hopper (`:4096:2:16:8`). Later releases give Blackwell as much as Hopper.
const USUAL: f64 = 8_519_680.0;
/// Threads with a handle of PyTorch's library.
const HANDLES: f64 = 2.0;

/// Bytes of a gradient: 32 bits with bfloat16, else those of the parameters unless a flag asks for more (`accumulate_allreduce_grads_in_fp32`).
pub(super) fn gradient_dtype(cells: &Cells<'_>) -> Dtype {
    let is_wide = has(cells, "accumulate-allreduce-grads-in-fp32");
    if cells.word("precision") == "fp16" && !is_wide { Dtype::Fp16 } else { Dtype::Fp32 }
}

/// Whose code computes layers, and how, as far as memory goes.
pub(super) struct Options {
    /// Megatron-Core's own modules in place of Transformer Engine's (`--transformer-impl local`).
    is_local: bool,
    is_deterministic: bool,
    /// Experts in one launch (`--moe-grouped-gemm`).
    is_grouped: bool,
    /// Gradients of weights are tensors of their own (`--no-gradient-accumulation-fusion`).
    has_own_gradients: bool,
    /// The data loader makes a mask of all pairs, which is the default of Megatron-LM.
    has_mask: bool,
    /// Softmax in 32 bits by PyTorch (`--no-masked-softmax-fusion`): tests that take Transformer Engine and Apex away say so.
    has_wide_softmax: bool,
}

impl Options {
    /// Those of a row.
    pub(super) fn read(cells: &Cells<'_>) -> Self {
        let test = cells.word("test");
        let is_gpt = matches!(cells.word("kind"), "gpt" | "moe");
        Self {
            is_local: cells.word("transformer_impl") == "local",
            is_deterministic: cells.flag("deterministic"),
            is_grouped: cells.flag("moe_grouped_gemm"),
            has_own_gradients: has(cells, "no-gradient-accumulation-fusion"),
            has_mask: is_gpt && !test.contains("no_create_attention_mask"),
            has_wide_softmax: test.contains("uninstall_te"),
        }
    }

    /// All of it on the last rank, which may be less than nothing.
    pub(super) fn beside(&self, problem: &Problem, micro_batch: u32, tokens: u64) -> f64 {
        let pp = problem.layout.pp as usize;
        let held: Vec<Stage> = stages(problem).into_iter().skip(pp - 1).step_by(pp).collect();
        let own = if self.has_own_gradients { stand_in_gradients(&problem.shard(), &held) } else { 0 };
        let of_batch = Batch::of(problem, &held, micro_batch, tokens);
        let masks = if self.has_mask { of_batch.pairs } else { 0.0 };
        let scores = if self.is_local { HALF * of_batch.pairs * of_batch.n_heads } else { 0.0 };
        let softmax =
            if self.has_wide_softmax { HALF * of_batch.pairs * of_batch.n_heads * of_batch.n_layers } else { 0.0 };
        let copies = if self.copies_results(problem, micro_batch) { of_batch.result() } else { 0.0 };
        let sent = if pp > 1 { of_batch.stream } else { 0.0 };
        self.workspaces(problem, &held) - hw::real(own) + masks + scores + softmax + copies + sent
    }

    /// Workspaces beside those that a plan counts.
    fn workspaces(&self, problem: &Problem, held: &[Stage]) -> f64 {
        let gpu = &problem.cluster.gpu;
        let ([library, plain], streams) = library_workspaces(gpu);
        let is_usual = gpu.peak_fp8.is_none() || gpu.capability() == Capability::Ten;
        let chosen = match (self.is_deterministic, is_usual) {
            (true, _) => DETERMINISTIC,
            (false, true) => USUAL,
            (false, false) => hw::real(plain),
        };
        let has_experts = held.iter().any(|stage| stage.n_expert > 0);
        // The router's product is the library's even where layers are not.
        let without = match (has_experts, self.is_grouped, self.is_local) {
            (true, false, _) => streams,
            (false, _, true) => 1,
            _ => 0,
        };
        HANDLES * (chosen - hw::real(plain)) - hw::real(without * library)
    }

    /// Whether attention's result is there twice: FlashAttention takes and gives sequence by sequence, and the product behind it reads token by token. One
    /// sequence alone is both. From Hopper on Transformer Engine prefers cuDNN, whose deterministic kernels Blackwell does not have.
    fn copies_results(&self, problem: &Problem, micro_batch: u32) -> bool {
        let gpu = &problem.cluster.gpu;
        let is_plain = gpu.peak_fp8.is_none() || (gpu.capability() == Capability::Ten && self.is_deterministic);
        let execution = &problem.execution;
        let is_flash = execution.attention == AttentionKernel::Flash && !self.is_local && problem.layout.cp == 1;
        is_plain && is_flash && micro_batch > 1 && execution.recompute == Recompute::Off
    }
}

/// A micro-batch on the last rank.
struct Batch {
    /// Pairs of a query and a key, whatever the head.
    pairs: f64,
    /// Heads of a rank.
    n_heads: f64,
    /// Layers whose activations it holds: of every micro-batch in flight.
    n_layers: f64,
    /// The residual.
    stream: f64,
    tokens: f64,
    head_dim: f64,
}

impl Batch {
    fn of(problem: &Problem, held: &[Stage], micro_batch: u32, tokens: u64) -> Self {
        let (layout, model) = (&problem.layout, &problem.model);
        let [tp, cp] = [f64::from(layout.tp), f64::from(layout.cp)];
        let whole = f64::from(micro_batch) * hw::real(tokens);
        let n_layers: u32 = held.iter().map(Stage::n_layers).sum();
        // The last rank begins its first backward when it has forwarded a group on each of its other chunks.
        let group = u32::try_from(problem.micro_batch_group()).unwrap_or(layout.pp);
        let in_flight = f64::from((layout.chunks - 1) * group + 1) / f64::from(layout.chunks);
        let cut = if layout.sequence_parallel { tp } else { 1.0 };
        Self {
            pairs: whole * hw::real(tokens) / cp,
            n_heads: hw::real(model.n_heads) / tp,
            n_layers: f64::from(n_layers) * in_flight,
            stream: HALF * whole * hw::real(model.hidden) / cp / cut,
            tokens: whole / cp,
            head_dim: hw::real(model.latent.map_or(model.head_dim, |latent| latent.value_dim)),
        }
    }

    /// What attention gives in all layers.
    fn result(&self) -> f64 {
        HALF * self.tokens * self.n_heads * self.head_dim * self.n_layers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::setting::{Degrees, Machine};
    use train::problem::{Execution, Framework};

    const PLAIN: Options = Options {
        is_local: false,
        is_deterministic: false,
        is_grouped: true,
        has_own_gradients: false,
        has_mask: false,
        has_wide_softmax: false,
    };
    const MIB: f64 = 1_048_576.0;

    /// Two layers of a width of 64 with four heads, over so many stages.
    fn problem(card: &str, pp: u32) -> Problem {
        let model = crate::training::models::small_gpt();
        let execution =
            Execution { framework: Framework::MegatronCore, recompute: Recompute::Off, ..Execution::default() };
        let degrees = Degrees { tp: 1, pp, cp: 1, ep: 1, dp: 1, chunks: 1, expert_tp: 1 };
        let machine = Machine::of(card, pp).expect("a card");
        machine.problem(model, &degrees, execution).expect("a problem")
    }

    fn close(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1.0, "{found} for {wanted}");
    }

    #[test]
    fn workspaces_follow_the_card_and_determinism() {
        let of = |card, is_deterministic| Options { is_deterministic, ..PLAIN }.beside(&problem(card, 1), 1, 8) / MIB;
        // Two of 8.125 MiB where a plan counts 8 on A100 and 32 on Blackwell; two of 32 in deterministic tests.
        for (card, is_deterministic, wanted) in [
            ("A100", false, 0.25),
            ("A100", true, 48.0),
            ("H100", false, 0.0),
            ("H100", true, 0.0),
            ("GB200", false, -47.75),
            ("GB200", true, 0.0),
        ] {
            let found = of(card, is_deterministic);
            assert!((found - wanted).abs() < 1e-6, "{card} {is_deterministic}: {found}");
        }
    }

    #[test]
    fn masks_scores_and_copies_have_closed_forms() {
        let (h100, a100) = (problem("H100", 1), problem("A100", 1));
        let workspaces = PLAIN.beside(&a100, 1, 100);
        let pairs = 3.0 * 100.0 * 100.0;
        let of = |options: Options| options.beside(&h100, 3, 100);
        close(of(Options { has_mask: true, ..PLAIN }), pairs);
        // One matrix of four heads, and no workspace of Transformer Engine.
        close(of(Options { is_local: true, ..PLAIN }), 2.0 * 4.0 * pairs - 32.0 * MIB);
        close(of(Options { has_wide_softmax: true, ..PLAIN }), 2.0 * 4.0 * 2.0 * pairs);
        // 4 h² of attention and 8 h² of the feed-forward in 16 bits.
        let own = of(Options { has_own_gradients: true, ..PLAIN });
        assert!((own / (-2.0 * 12.0 * 4096.0) - 1.0).abs() < 0.02, "{own}");
        // Results of two layers of three sequences; one sequence alone has no copy, and cuDNN makes none.
        close(PLAIN.beside(&a100, 3, 100) - workspaces, 2.0 * 2.0 * 64.0 * 300.0);
        close(of(PLAIN), 0.0);
    }

    #[test]
    fn a_pipeline_holds_what_it_sent_last() {
        let of = |pp| PLAIN.beside(&problem("H100", pp), 3, 100);
        close(of(2), 2.0 * 64.0 * 300.0);
        close(of(1), 0.0);
    }
}
