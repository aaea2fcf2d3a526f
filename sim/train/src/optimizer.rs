//! The optimizer of a step: what it keeps of a parameter, where that lies, and what its step moves and computes.
//!
//! Source: NVIDIA/Megatron-LM `megatron/core/optimizer` (`optimizer_config.py`: precision-aware states and the offload to the host's Adam). Muon's
//! products are in `muon.rs`.

use hw::{Dtype, Seconds};

use engine::layer;
use engine::shard::Framework;
use engine::task::{CopyKind, Op, Ops};

use crate::muon::Muon;

/// Bytes of a gradient that goes to the host.
const GRADIENT_BYTES: f64 = 4.0;
/// Bytes per parameter that kernels over lists move beyond the fused one: decay 8, first moment 12, second 8 and 12, root 8, correction 8, epsilon 8,
/// update 16 (pytorch/pytorch, `_multi_tensor_adamw`), less 28.
const FOREACH_BYTES: f64 = 52.0;
/// Bytes of 16 bits over those of 32.
const NARROW_OVER_WIDE: f64 = 0.5;
/// Moments of 8 bits that share a scale of 32 (bitsandbytes 0.43 and torchao; 2,048 before). Tensors of fewer than 4,096 numbers keep 32 bits there, and are not told
/// apart here: norms are below a thousandth.
const BLOCK: f64 = 256.0;
/// Bytes of a parameter that comes back, and of one that is updated itself.
const PARAMETER_BYTES: f64 = 2.0;

hw::words! {
    /// Which rule updates the matrices of layers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Rule: word {
        /// Two moments of every parameter.
        Adam = "adam",
        /// One moment, made orthogonal.
        Muon = "muon",
    }
}

hw::words! {
    /// How PyTorch's AdamW runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum UpdateKernels: word {
        /// One kernel for everything that a step does to a parameter (`fused`).
        Fused = "fused",
        /// A kernel for each operation, over lists of tensors (`foreach`).
        Foreach = "foreach",
        /// One kernel for a parameter as soon as backward has its gradient, which is then freed (pytorch/torchtune, `optimizer_in_bwd`:
        /// `register_post_accumulate_grad_hook`).
        InBackward = "in-backward",
    }
}

/// Optimizer states in the memory of the host, and the host's step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnHost {
    /// Share of the states.
    pub share: f64,
    /// What the host's memory moves for each GPU, bytes per second.
    pub bytes_per_second: f64,
}

/// An optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// Of matrices of layers; embedding and head have Adam.
    pub rule: Rule,
    /// How Muon makes matrices orthogonal.
    pub muon: Muon,
    /// Format of the master copy; `None` updates parameters in 16 bits themselves.
    pub master: Option<Dtype>,
    /// Formats of the first and the second moment. Integers have scales per block (arXiv:2110.02861).
    pub moments: [Dtype; 2],
    /// What the host keeps and updates.
    pub on_host: Option<OnHost>,
    /// How it runs where it is PyTorch's AdamW.
    pub kernels: UpdateKernels,
}

impl Optimizer {
    /// Adam with everything in 32 bits on the device.
    pub const ADAM: Self = Self {
        rule: Rule::Adam,
        muon: Muon::DEFAULT,
        master: Some(Dtype::Fp32),
        moments: [Dtype::Fp32; 2],
        on_host: None,
        kernels: UpdateKernels::Fused,
    };

    /// Bytes that it keeps of a parameter, on device and host together. Sharded PyTorch modules have no other parameters than those in 32 bits, but
    /// under DeepSpeed.
    pub fn bytes_per_parameter(&self, framework: Framework, rule: Rule) -> f64 {
        let [first, second] = self.moments.map(moment_bytes);
        let copy = self.master.filter(|_| !framework.has_wide_parameters());
        let master = copy.map_or(0.0, |copy| hw::real(copy.bytes()));
        master + first + if rule == Rule::Adam { second } else { 0.0 }
    }

    /// Whether all states are in 32 bits on the device.
    pub fn is_plain(&self) -> bool {
        let base = Self::ADAM;
        (self.master, self.moments, self.on_host) == (base.master, base.moments, base.on_host)
    }

    /// Share of the states that is on the device.
    pub fn on_device(&self) -> f64 {
        1.0 - self.on_host.map_or(0.0, |host| host.share)
    }

    /// No step over so many parameters is shorter: the published bytes of the states that are on the device.
    pub fn least_step(&self, stepped: f64) -> Ops {
        let states = self.bytes_per_parameter(Framework::Formulas, self.rule);
        layer::optimizer_step(Framework::Formulas, stepped, stepped * self.on_device(), states)
    }

    /// One step of a rank that holds so many gradients and updates so many parameters, of which `matrices` are those of layers. All ranks step together, so
    /// copies to the host and back take turns with those of the other ranks below a PCIe switch.
    pub fn step(&self, framework: Framework, [held, stepped, matrices]: [f64; 3], n_of_switch: u32) -> Ops {
        let own = self.own_bytes(framework);
        let bytes = |rule| own + self.bytes_per_parameter(framework, rule);
        let states = match self.rule {
            Rule::Adam => bytes(Rule::Adam),
            Rule::Muon => {
                let of_layers = if stepped > 0.0 { matrices / stepped } else { 1.0 };
                (1.0 - of_layers) * bytes(Rule::Adam) + of_layers * bytes(Rule::Muon)
            }
        };
        let narrow = if self.master.is_none() { NARROW_OVER_WIDE } else { 1.0 };
        let mut ops = if framework.has_wide_parameters() {
            layer::sharded_step(stepped * self.on_device(), narrow, states)
        } else {
            layer::optimizer_step(framework, held, stepped * self.on_device(), states)
        };
        if self.kernels == UpdateKernels::Foreach && framework.torch().is_some() {
            ops.push((Op::Elementwise { bytes: hw::whole(stepped * FOREACH_BYTES * narrow) }, 1));
        }
        if let Some(host) = self.on_host.filter(|host| host.share > 0.0) {
            ops.extend(on_host(host, stepped, states, n_of_switch));
        }
        ops
    }

    /// Bytes of the parameter itself that a step reads and writes as it does the states. Sharded PyTorch modules update what they hold. Without a master copy
    /// the published formulas read the parameter besides, whose writing `optimizer_step` counts: two bytes, half of what is read and written.
    fn own_bytes(&self, framework: Framework) -> f64 {
        match (framework.has_wide_parameters(), self.master) {
            (true, Some(_)) => hw::real(Dtype::Fp32.bytes()),
            (true, None) => PARAMETER_BYTES,
            (false, Some(_)) => 0.0,
            (false, None) => PARAMETER_BYTES / 2.0,
        }
    }
}

/// Bytes of a moment, with its part of a scale where it is an integer.
fn moment_bytes(moment: Dtype) -> f64 {
    let scale = if moment == Dtype::Int8 { hw::real(Dtype::Fp32.bytes()) / BLOCK } else { 0.0 };
    hw::real(moment.bytes()) + scale
}

/// Gradients go to the host, which reads and writes its states, and parameters in 16 bits come back.
fn on_host(host: OnHost, stepped: f64, states: f64, n_of_switch: u32) -> Ops {
    let n = stepped * host.share;
    let copy = |kind, bytes: f64| (Op::Copy { kind, bytes: hw::whole(n * bytes) }, n_of_switch);
    let moved = n * (GRADIENT_BYTES + 2.0 * states);
    let ns = hw::Span::from_seconds(Seconds::new(moved / host.bytes_per_second)).as_ns();
    vec![
        copy(CopyKind::DeviceToHost, GRADIENT_BYTES),
        (Op::Host { ns }, 1),
        copy(CopyKind::HostToDevice, PARAMETER_BYTES),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elementwise(ops: &Ops) -> u64 {
        let bytes = |(op, n): &(Op, u32)| if let Op::Elementwise { bytes } = op { bytes * u64::from(*n) } else { 0 };
        ops.iter().map(bytes).sum()
    }

    #[test]
    fn narrow_states_take_and_move_fewer_bytes() {
        let framework = Framework::MegatronCore;
        let narrow = Optimizer { moments: [Dtype::Bf16; 2], ..Optimizer::ADAM };
        let size = |optimizer: Optimizer, rule| optimizer.bytes_per_parameter(framework, rule);
        // A master copy of four bytes, two moments of four, or of two; Muon has one moment.
        assert_eq!(size(Optimizer::ADAM, Rule::Adam).to_bits(), 12_f64.to_bits());
        assert_eq!(size(narrow, Rule::Adam).to_bits(), 8_f64.to_bits());
        assert_eq!(size(Optimizer::ADAM, Rule::Muon).to_bits(), 8_f64.to_bits());
        // Without a master copy two moments of two bytes are left.
        let pure = Optimizer { master: None, ..narrow };
        assert_eq!(size(pure, Rule::Adam).to_bits(), 4_f64.to_bits());
        // Four bytes fewer of each are read, and four fewer written.
        let step = |optimizer: Optimizer| elementwise(&optimizer.step(framework, [0.0, 1000.0, 1000.0], 1));
        assert_eq!(step(Optimizer::ADAM) - step(narrow), 8 * 1000);
        assert_eq!(step(Optimizer::ADAM) - step(Optimizer { rule: Rule::Muon, ..Optimizer::ADAM }), 8 * 1000);
    }

    #[test]
    fn moments_of_eight_bits_are_read_and_written_with_their_scales() {
        let small = Optimizer { moments: [Dtype::Int8; 2], ..Optimizer::ADAM };
        // Adam in 8 bits keeps two bytes where it kept eight (arXiv:2110.02861, section 1), and a scale of four bytes for 256 numbers of each moment.
        let size = |optimizer: Optimizer| optimizer.bytes_per_parameter(Framework::Formulas, Rule::Adam);
        assert!((size(Optimizer::ADAM) - size(small) - (6.0 - 2.0 * 4.0 / 256.0)).abs() < 1e-12);
        let step = |optimizer: Optimizer| elementwise(&optimizer.step(Framework::Formulas, [0.0, 1024.0, 0.0], 1));
        assert_eq!(step(Optimizer::ADAM) - step(small), 2 * (6 * 1024 - 8 * 4));
    }

    #[test]
    fn parameters_in_sixteen_bits_move_half_of_what_those_in_32_do() {
        let modules = engine::shard::TorchModules {
            compiled: true,
            fused_norms: true,
            casts: engine::shard::Casts::Off,
            in_pieces: false,
            repeats_keys: true,
        };
        let pure = Optimizer { master: None, moments: [Dtype::Bf16; 2], ..Optimizer::ADAM };
        let step = |optimizer: Optimizer, framework| elementwise(&optimizer.step(framework, [0.0, 1000.0, 1000.0], 1));
        // The gradient is read for the norm, read and written to be clipped, and read; parameter and two moments are read and written.
        assert_eq!(step(Optimizer::ADAM, Framework::Fsdp2(modules)), 1000 * (4 * 4 + 2 * 3 * 4));
        assert_eq!(step(pure, Framework::Fsdp2(modules)), 1000 * (4 * 2 + 2 * 3 * 2));
        // The published formulas: gradient 2 and its copy for the norm 2, parameter 2 and 2, moments 8.
        assert_eq!(step(pure, Framework::Formulas), 1000 * (2 + 2 + 4 + 8));
        let least = elementwise(&pure.least_step(1000.0));
        assert!(least <= step(pure, Framework::Formulas) && least <= step(pure, Framework::Fsdp2(modules)));
    }

    #[test]
    fn the_host_moves_its_share_of_the_states() {
        let host = OnHost { share: 0.5, bytes_per_second: 28e9 };
        let optimizer = Optimizer { on_host: Some(host), ..Optimizer::ADAM };
        let ops = optimizer.step(Framework::Formulas, [2e9, 2e9, 0.0], 1);
        // Of two billion parameters one billion: gradients of four bytes and three states of four that are read and written, 28 GB.
        assert!(ops.contains(&(Op::Host { ns: 1_000_000_000 }, 1)), "{ops:?}");
        let copy = |kind, bytes| (Op::Copy { kind, bytes }, 1);
        assert!(ops.contains(&copy(CopyKind::DeviceToHost, 4_000_000_000)));
        assert!(ops.contains(&copy(CopyKind::HostToDevice, 2_000_000_000)));
        let whole = Optimizer::ADAM.step(Framework::Formulas, [2e9, 2e9, 0.0], 1);
        assert_eq!(elementwise(&ops) * 2, elementwise(&whole));
        // Two ranks below a switch take turns.
        let shared = optimizer.step(Framework::Formulas, [2e9, 2e9, 0.0], 2);
        assert!(shared.contains(&(Op::Copy { kind: CopyKind::DeviceToHost, bytes: 4_000_000_000 }, 2)), "{shared:?}");
    }
}
