//! GPUs of a replica that hold experts alone. Units: GPUs.

/// GPUs of a replica that hold the routed experts of all layers, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FfnSide {
    /// How many there are.
    pub gpus: u32,
    /// Tensor groups that attend, each to sequences of its own.
    pub attention_ranks: u32,
    /// Parts into which the batch of every group is cut, so that one part attends while another one is with the experts.
    pub micro_batches: u32,
}
