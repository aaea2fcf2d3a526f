//! One way of serving that a scenario compares: rules, limits and options, and how many replicas.

use std::num::NonZeroU32;

use engine::verdict::Refused;
use serve::batcher::Batcher;
use serve::replica::{Limits, Role};
use serve::router::RouterKind;

use super::kv::KvTerms;
use super::{Candidate, Operation, ServingGroup, Stream};

/// One way of serving that a scenario compares.
#[derive(Clone, Debug)]
pub struct ServingChoice {
    /// Name in results.
    pub name: String,
    /// Batching policy.
    pub batcher: &'static dyn Batcher,
    /// Routing policy.
    pub router: &'static RouterKind,
    /// Limits of a replica but for its memory, see `Serving::limits`.
    pub limits: Limits,
    /// Tokens of an iteration before its longest prompt raises them.
    pub tokens_asked: u32,
    /// Whether its sequences and its tokens are the engine's own, which every group takes of its GPU.
    pub is_usual: [bool; 2],
    /// API servers of a replica, where somebody wrote them; else those of a group's degrees, see `Serving::frontend_of`.
    pub servers: Option<NonZeroU32>,
    /// How the engine works besides.
    pub operation: Operation,
    /// On what terms its replicas lend each other memory.
    pub kv: KvTerms,
    /// Names of the groups that serve; empty where all do.
    pub groups: Vec<String>,
    /// Names of the streams that are served; empty where all are.
    pub streams: Vec<String>,
    /// Replicas of the only group, where they are not as many as its GPUs give.
    pub replicas: Option<u32>,
    /// How many of them compute prompts for the others, which decode; 0 where each does both.
    pub prefill_replicas: u32,
    /// GPUs that share every layer where prompts are computed for others, where they are not as many as elsewhere.
    pub prefill_tensor_degree: Option<u32>,
    /// Requests that are held in flight, where they are not as many as the trace says.
    pub concurrency: Option<NonZeroU32>,
    /// What was listed of a choice that is one of several to choose among; `None` for any other.
    pub candidate: Option<Candidate>,
    /// Why it cannot be served, where that was found when the scenario was read and others are looked at: it is one of several, or `[tune]` or `[capacity]`
    /// stand beside it.
    pub refused: Option<String>,
}

impl ServingChoice {
    /// Whether it can be served.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn sound(&self) -> Result<(), Refused> {
        self.refused.as_ref().map_or(Ok(()), |why| Err(Refused::infeasible(why)))
    }

    /// Whether it is a batching policy under a name of its own, which may have keys of its own.
    pub(super) fn is_variant(&self) -> bool {
        self.candidate.is_none() && self.name != self.batcher.name()
    }

    /// Whether its model is served, by itself or by others beside it: one of several that cannot be is not tried.
    pub(super) fn is_tried(&self) -> bool {
        self.candidate.is_none() || self.refused.is_none()
    }

    /// What it has of figures that nobody measured, as sentences.
    pub(super) fn free_parameters(&self) -> Vec<String> {
        self.operation.free_parameters(self.shown_name())
    }

    /// Its name, or that of what is chosen where it is one of several.
    pub(super) fn shown_name(&self) -> &str {
        self.candidate.as_ref().map_or(&self.name, |candidate| &candidate.of)
    }

    /// GPUs that share every layer in replicas of a group.
    pub fn tensor_degree(&self, group: &ServingGroup) -> u32 {
        let of_prompts =
            self.prefill_tensor_degree.filter(|_| self.prefill_replicas > 0 && group.role == Role::Prefill);
        of_prompts.or(self.operation.tensor_degree).unwrap_or(group.tensor_degree)
    }

    /// Tokens of the longest sequence that its replicas take; any where the engine's limit is not known yet.
    pub(super) fn context_max(&self) -> u64 {
        if self.limits.context_max == 0 { u64::MAX } else { self.limits.context_max.into() }
    }

    /// Whether a stream is served.
    pub fn takes(&self, stream: &Stream) -> bool {
        self.streams.is_empty() || self.streams.contains(&stream.name)
    }

    /// Whether a group serves; one without replicas does not.
    pub(super) fn serves(&self, group: &ServingGroup) -> bool {
        group.n_replicas > 0 && (self.groups.is_empty() || self.groups.contains(&group.name))
    }
}
