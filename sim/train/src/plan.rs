//! What a policy decided; the one file that simulator, executor and other programs read (`plan.json`).
//!
//! Invariant, held by `check.rs`: every sequence of the workload is placed exactly once over all steps.
//! Units: tokens. Sequence ids are positions in the workload.

use engine::Origin;
use engine::formats::Formats;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::problem::Problem;
use crate::schedule::Order;

/// Schema of `plan.json`.
pub const SCHEMA: &str = "skrull-sim/plan/1";

/// Decision for every simulated step of a training job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// `SCHEMA`.
    pub schema: String,
    /// Policy that made it.
    pub policy: String,
    /// Pipeline schedule that ordered the passes.
    pub schedule: String,
    /// Parallel degrees it is for.
    pub layout: Layout,
    /// What a search chose besides; without one it is the scenario's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searched: Option<Searched>,
    /// One entry per optimizer step.
    pub steps: Vec<Step>,
    /// Scenario that was planned, so that the file alone can be executed or simulated elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

impl Plan {
    /// What a policy decided for a problem.
    pub fn new(policy: &str, problem: &Problem, steps: Vec<Step>) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            policy: policy.to_owned(),
            schedule: problem.schedule.name.to_owned(),
            layout: problem.layout,
            searched: None,
            steps,
            origin: None,
        }
    }
}

/// What a search of layouts chose besides degrees and schedule, in the words of a scenario: without it a plan that is read back would be another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Searched {
    /// Activation recompute.
    pub recompute: String,
    /// Formats of the products of attention, dense feed-forwards, experts and head; empty for that of the activations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub products: Vec<String>,
    /// Share of activations in host memory.
    pub offload_ratio: f64,
    /// Layers of every stage along the path; empty for an even split.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<u32>,
    /// Tokens of a micro-batch on a rank.
    pub bucket_tokens: u64,
    /// Nodes that are used.
    pub nodes: u32,
}

impl Searched {
    /// What a problem with a found layout has.
    pub fn of(problem: &Problem) -> Self {
        let words = |formats: Formats| formats.products().map(|format| format.word().to_owned()).to_vec();
        Self {
            recompute: problem.execution.recompute.written(),
            products: problem.execution.formats.map(words).unwrap_or_default(),
            offload_ratio: problem.execution.offload,
            layers: problem.execution.layers.clone(),
            bucket_tokens: problem.bucket_tokens,
            nodes: problem.cluster.n_nodes,
        }
    }
}

/// One optimizer step: work of each data-parallel group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// `groups[i]` is the ordered list of micro-batches of data-parallel index i; counts may differ.
    pub groups: Vec<Vec<MicroBatch>>,
    /// Shape of each group's pipeline on consecutive ranks of its own; empty where all groups have the plan's layout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pipelines: Vec<PipelineShape>,
    /// Stages of each group's pipeline where they are placed one by one; empty where groups have the plan's layout or `pipelines`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placed: Vec<Vec<PlacedStage>>,
    /// Time before the step in which nothing is computed, because the job changes from another plan to this one: nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pause_ns: u64,
    /// Different orders of passes on the pipeline ranks; empty without a pipeline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<Order>,
    /// Which of `orders` each data-parallel group follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order_of: Vec<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A stage of a pipeline with a tensor group of its own (Malleus, arXiv:2410.13333).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacedStage {
    /// Ranks of its tensor group, on one node.
    pub ranks: Vec<u32>,
    /// Layers that it holds.
    pub layers: u32,
}

/// Ranks of one data-parallel group whose shape is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineShape {
    /// Tensor degree.
    pub tp: u32,
    /// Pipeline degree.
    pub pp: u32,
}

impl PipelineShape {
    /// Ranks that it takes.
    pub const fn n_ranks(self) -> u32 {
        self.tp * self.pp
    }
}

/// Sequences that are computed together by one context-parallel group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MicroBatch {
    /// Sequences with their place.
    pub sequences: Vec<Placement>,
    /// Tokens of padding that are computed but count for nothing, spread over the ranks.
    pub padding: u64,
    /// Whether only its keys and values are wanted: its activations go, and another micro-batch computes it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forward_only: bool,
    /// Whether all context ranks of the group wait for each other before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub barrier: bool,
    /// Thousandths of each context rank's activations that wait in host memory, streamed out behind forward and back behind
    /// backward; empty for what the execution says. The layers that stay on the device are not in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offload_permille: Vec<u32>,
}

/// Where one sequence of a micro-batch is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// Position in the workload.
    pub sequence: u32,
    /// First token, where the sequence is cut into consecutive chunks; 0 for a whole one.
    #[serde(default)]
    pub from: u64,
    /// Tokens of this part: the length of a whole sequence.
    pub tokens: u64,
    /// Whole on one rank or cut over the group.
    pub place: Place,
}

/// Place of a sequence inside its context-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Whole on the context rank with this index.
    Local(u32),
    /// Cut evenly (zigzag, so that causal work is even) over all context ranks.
    Sharded,
    /// Cut the same way over some consecutive context ranks.
    Ring {
        /// First of them.
        first: u32,
        /// How many they are.
        count: u32,
    },
}

impl Place {
    /// Context ranks that share the sequence: first and count; `None` for one that is whole.
    pub const fn ring(self, cp: u32) -> Option<(u32, u32)> {
        match self {
            Self::Local(_) => None,
            Self::Sharded => Some((0, cp)),
            Self::Ring { first, count } => Some((first, count)),
        }
    }
}

impl Step {
    /// Order of a data-parallel group, if the plan has one.
    pub fn order(&self, group: usize) -> Option<&Order> {
        self.orders.get(*self.order_of.get(group)? as usize)
    }

    /// Whether groups have pipelines of their own, not the plan's layout.
    pub const fn is_mixed(&self) -> bool {
        !self.pipelines.is_empty() || !self.placed.is_empty()
    }

    /// Pipeline ranks of a group, where its pipeline is its own.
    pub fn own_depth(&self, group: usize) -> Option<usize> {
        let shaped = self.pipelines.get(group).map(|shape| shape.pp as usize);
        shaped.or_else(|| self.placed.get(group).map(Vec::len))
    }

    /// A step whose passes are not yet in order.
    pub const fn of_groups(groups: Vec<Vec<MicroBatch>>) -> Self {
        Self {
            groups,
            pipelines: Vec::new(),
            placed: Vec::new(),
            pause_ns: 0,
            orders: Vec::new(),
            order_of: Vec::new(),
        }
    }
}

impl MicroBatch {
    /// Real tokens, padding left out.
    pub fn tokens(&self) -> u64 {
        self.sequences.iter().map(|placement| placement.tokens).sum()
    }

    /// Tokens that context rank `cp_index` of `cp` holds, padding and the ceiling of uneven shards included.
    pub fn tokens_on(&self, cp_index: u32, cp: u32) -> u64 {
        let placed: u64 = self
            .sequences
            .iter()
            .map(|placement| match placement.place {
                Place::Local(index) if index == cp_index => placement.tokens,
                Place::Local(_) => 0,
                Place::Sharded => placement.tokens.div_ceil(u64::from(cp)),
                Place::Ring { first, count } if (first..first + count).contains(&cp_index) => {
                    placement.tokens.div_ceil(u64::from(count))
                }
                Place::Ring { .. } => 0,
            })
            .sum();
        placed + self.padding.div_ceil(u64::from(cp))
    }
}
