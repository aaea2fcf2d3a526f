//! Time and bytes of adapters (LoRA) beside the model's own products: per adapted product a thin one down to the rank and one up again.
//!
//! As vLLM computes them (`vllm/lora/ops/triton_ops/lora_shrink_op.py` and `lora_expand_op.py` @ 00bd1493b3e8, after Punica's SGMV, arXiv:2310.18547, and
//! S-LoRA, arXiv:2311.03285): products side by side share their launches, so queries, keys and values are one module, gate and up another. A module
//! is three kernels: zeros for the result of the first product, the first product, and the second one added to the module's result. Adapters lie
//! padded to the largest rank, so every one of a batch costs that.
//! A kernel takes the time of its bytes, or of its multiplications at the peak where that is longer: up to ranks of some hundred it is bytes. A batch
//! without an adapter pays nothing (vLLM's `cudagraph_specialize_lora`, on by default in 0.19). Approximations: blocks of rows that an
//! adapter does not fill cost nothing more, and launches that no graph holds start as fast as others. Units: tokens, adapters, bytes, seconds.
//!
//! Experts have a pair of matrices each for every adapter, and the same three kernels for gate and up and for down (`vllm/lora/layers/fused_moe.py` and
//! `ops/triton_ops/fused_moe_lora_op.py`, 0.17). Rows are tokens times their experts, and read are the matrices of visited experts of every adapter. Left out: the
//! kernel that sorts rows by adapter and expert, and that experts themselves run through Triton there, also where tables have a faster kernel.

use engine::model::Model;
use engine::task::Op;
use hw::{Dtype, Seconds, Tick};

use super::StepTable;
use super::adapter_room::{AdapterRoom, Module};
use super::sizes::{at, filled};
use super::writer::Writer;

/// What the time of adapters is called.
const ADAPTERS: &str = "adapters";
/// Bytes of an element between the two products; those of experts keep the format of activations (`a_intermediate_cache1` of `fused_moe_lora_op.py`).
const BETWEEN_BYTES: u64 = 4;

/// What adapters compute in an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterLoad {
    /// Tokens of sequences with an adapter.
    pub tokens: u32,
    /// Different adapters among them.
    pub n: u32,
}

/// One kernel: its bytes, and its operations.
struct Kernel {
    bytes: u64,
    flops: f64,
}

impl Module {
    /// Its kernels for so many tokens of so many adapters of one rank, in an iteration.
    fn kernels(&self, [tokens, n, rank]: [u64; 3], dtype: Dtype) -> [Kernel; 3] {
        let (element, wide) = (dtype.bytes(), self.slices * rank);
        let (rows, matrices) = (self.rows(tokens), self.matrices(tokens, n));
        let between = rows * wide * if self.experts.is_some() { element } else { BETWEEN_BYTES };
        let (read, written) = (rows * self.inputs * element, rows * self.outputs * element);
        let weights = |width: u64, elements: u64| hw::whole(matrices * hw::real(width * elements * element));
        let flops = |width: u64, elements: u64| 2.0 * hw::real(rows) * hw::real(width) * hw::real(elements);
        [
            Kernel { bytes: between, flops: 0.0 },
            Kernel { bytes: read + weights(wide, self.inputs) + between, flops: flops(wide, self.inputs) },
            // It reads the module's result and writes the sum.
            Kernel { bytes: between + weights(rank, self.outputs) + 2 * written, flops: flops(rank, self.outputs) },
        ]
    }
}

impl AdapterRoom {
    /// Bytes and operations of the kernels of a layer on one GPU of a tensor group of so many, for so many tokens of so many different adapters.
    pub fn kernels_of_layer(
        &self,
        model: &Model,
        n_ranks: u32,
        [tokens, n]: [u64; 2],
        dtype: Dtype,
    ) -> Vec<(f64, f64)> {
        let load = [tokens, n.min(tokens), self.rank_max.into()];
        let modules = self.modules_of(model, n_ranks.into());
        let kernels = modules.iter().flat_map(|module| module.kernels(load, dtype));
        kernels.map(|kernel| (hw::real(kernel.bytes), kernel.flops)).collect()
    }
}

impl StepTable {
    /// The same with room for so many adapters, which take what a law says for tokens and for different adapters among them.
    pub fn adapted_by(self, slots: u32, law: &dyn Fn(u64, u64) -> Seconds) -> Self {
        Self { adapters: Some(AdapterTicks::of_law(slots, self.tokens_max, law)), ..self }
    }
}

/// Asks for the time of adapters.
pub(super) struct AdapterWriter<'w, 'a> {
    writer: &'w Writer<'a>,
    room: AdapterRoom,
    modules: Vec<Module>,
    n_layers: u32,
    /// Seconds that a multiplication takes at least.
    per_flop: f64,
}

impl<'w, 'a> AdapterWriter<'w, 'a> {
    pub(super) fn new(writer: &'w Writer<'a>, room: AdapterRoom) -> Self {
        let config = writer.deployment;
        // The least time of a product is in proportion to its operations.
        let unit = Op::Gemm { m: 1024, n: 1024, k: 1024, format: config.dtype.into() };
        Self {
            writer,
            room,
            modules: room.modules_of(config.model, config.tensor_degree.into()),
            n_layers: u32::try_from(config.model.n_layers).expect("few layers"),
            per_flop: writer.cost.least(&unit).get() / unit.flops(),
        }
    }

    /// Adapters of all layers, for so many tokens of so many different ones.
    pub(super) fn time(&self, tokens: u64, n: u64) -> Seconds {
        let load = [tokens, n.min(tokens), self.room.rank_max.into()];
        let dtype = self.writer.deployment.dtype;
        let kernels = self.modules.iter().flat_map(|module| module.kernels(load, dtype));
        kernels.map(|kernel| self.kernel(&kernel)).sum()
    }

    /// A kernel of every layer.
    fn kernel(&self, kernel: &Kernel) -> Seconds {
        let (writer, moves) = (self.writer, Op::Elementwise { bytes: kernel.bytes });
        let least = Seconds::new(kernel.flops * self.per_flop);
        let found = writer.cost.estimate(&moves).at_least(least);
        let whole = writer.own(ADAPTERS, &found, self.n_layers);
        let saved = writer.saved(&vec![(moves, self.n_layers)], 0);
        writer.take(ADAPTERS, saved);
        (whole - saved).max(Seconds::ZERO)
    }
}

/// Ticks of adapters by how many different ones a batch has and by tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AdapterTicks {
    /// Numbers of adapters that are tabulated: powers of two, and all slots.
    knots: Vec<u32>,
    rows: Vec<Vec<Tick>>,
}

impl AdapterTicks {
    pub(super) fn new(writer: &Writer<'_>, room: &AdapterRoom, tokens_max: u32) -> Self {
        let asked = AdapterWriter::new(writer, *room);
        Self::of_law(room.slots, tokens_max, &|tokens, n| asked.time(tokens, n))
    }

    /// By a law of tokens and of different adapters among them, of so many at most.
    pub(super) fn of_law(slots: u32, tokens_max: u32, law: &dyn Fn(u64, u64) -> Seconds) -> Self {
        let mut knots: Vec<u32> = (0..32).map(|power| 1 << power).take_while(|knot| *knot < slots).collect();
        knots.push(slots);
        let row = |n: &u32| filled(tokens_max as usize, |tokens| law(tokens, (*n).into()));
        let rows = knots.iter().map(row).collect();
        Self { knots, rows }
    }

    #[cfg(test)]
    pub(super) fn linear(per_token: Tick, per_adapter: Tick, [tokens_max, slots]: [u32; 2]) -> Self {
        let knots: Vec<u32> = (1..=slots).collect();
        let row = |n: &u32| (0..=tokens_max).map(|m| per_token * u64::from(m) + per_adapter * u64::from(*n)).collect();
        let rows = knots.iter().map(row).collect();
        Self { knots, rows }
    }

    /// Ticks of an iteration.
    pub(super) fn ticks(&self, load: AdapterLoad) -> Tick {
        if load.tokens == 0 {
            return Tick::ZERO;
        }
        let of = |row: usize| at(&self.rows[row], load.tokens.into());
        let above = self.knots.partition_point(|knot| *knot < load.n).min(self.knots.len() - 1);
        if self.knots[above] <= load.n || above == 0 {
            return of(above);
        }
        let (low, high) = (u64::from(self.knots[above - 1]), u64::from(self.knots[above]));
        let n = u64::from(load.n);
        (of(above - 1) * (high - n) + of(above) * (n - low)) / (high - low)
    }
}

#[cfg(test)]
mod tests;
