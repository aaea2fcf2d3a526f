//! Measured transfers of weights from a trainer to engines on GPUs of their own.
//!
//! What is asked is the law of a plain send of all weights over the ports of a node, gathered from the ranks that share the model. How a framework
//! names, casts, buckets and loads parameters is not in it. Units: bytes, GPUs.

use hw::Bytes;
use rl::weights;
use train::problem::{Execution, Problem};

use super::named;
use crate::reason::Reason;
use crate::training::setting::{Degrees, Machine};

/// Weights that go to the engines.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Model and machine of trainer and engines.
    pub trainer: Problem,
    /// What is sent.
    pub bytes: Bytes,
}

impl Transfer {
    /// All weights of a model from so many GPUs to so many others. Each holds the model whole, as the sender of a broadcast does once it is gathered.
    pub(super) fn of(model: &str, card: &str, [from, to]: [u32; 2]) -> Result<Self, Reason> {
        let model = named::model(model)?;
        let machine = Machine::of(card, from + to).map_err(Reason::of_trainer)?;
        let degrees = Degrees { tp: 1, pp: 1, cp: 1, ep: 1, dp: from + to, chunks: 1, expert_tp: 1 };
        let trainer = machine.problem(model, &degrees, Execution::default()).map_err(Reason::of_trainer)?;
        let bytes = weights::moved(&trainer);
        Ok(Self { trainer, bytes })
    }
}
