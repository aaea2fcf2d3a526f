//! Where a reference lies, a second model of the trainer's shape that gives every answer its log probabilities too. Units: bytes.
//!
//! On the host it takes the place of the trainer's weights for its forwards (NeMo-RL, `use_reference_model`; verl's FSDP workers). On the GPUs it stays beside
//! them, cut as they are (verl's Megatron workers without `param_offload`), and nothing is copied.

use hw::Bytes;
use train::problem::Problem;

use crate::weights;

hw::words! {
    /// Where a reference lies while others work.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Reference: word {
        /// In the memory of the host.
        Host = "host",
        /// On the trainer's GPUs.
        Device = "device",
    }
}

impl Reference {
    /// Bytes of so many references on the trainer's fullest GPU.
    pub fn on_device(self, n: u32, problem: &Problem) -> Bytes {
        match self {
            Self::Host => Bytes::ZERO,
            Self::Device => Bytes(u64::from(n) * weights::most(problem, |states| states.parameters.0).0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;

    #[test]
    fn a_reference_on_the_gpus_is_cut_as_the_trainers_parameters() {
        // Of two tensor ranks each has half of the parameters, in 16 bits; the optimizer alone is sharded.
        let problem = example::trainer([2, 1, 8], 2);
        let half = problem.model.n_parameters();
        let found = Reference::Device.on_device(1, &problem).0;
        assert!(found.abs_diff(half) < half / 1000, "{found} of {half}");
        assert_eq!(Reference::Device.on_device(2, &problem).0, 2 * found);
        assert_eq!(Reference::Host.on_device(1, &problem), Bytes::ZERO);
    }
}
