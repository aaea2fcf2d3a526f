//! What bounds in closed form know of a fleet: nothing where more happens to its requests than they count.

use serve::outlook::Load;
use serve::replica::Role;

use super::costs::CostLaw;
use super::{Serving, ServingChoice};

impl ServingChoice {
    /// Whether its engines do the same work for the same requests as another one's: prices of it hold for both.
    pub fn works_as(&self, other: &Self) -> bool {
        self.operation == other.operation && self.limits.shares_prefixes == other.limits.shares_prefixes
    }
}

impl Serving {
    /// The requests, where a bound knows all that happens to them on engines that keep prefixes, or that do not.
    pub fn load(&self, keeps_prefixes: bool) -> Option<Load<'_>> {
        if self.is_plain() { Load::of(&self.requests, keeps_prefixes) } else { None }
    }

    /// Whether a bound knows all that happens to requests under a choice: lent memory and hand-overs are not priced.
    pub fn is_bounded(&self, choice: &ServingChoice) -> bool {
        let is_own = choice.prefill_replicas == 0 && choice.kv == self.kv;
        self.is_plain() && is_own && choice.streams.is_empty()
    }

    /// Whether a bound of a metric holds under a choice: a first token that waits for the frontend comes closer to the next one.
    pub fn bounds(&self, choice: &ServingChoice, metric: &str) -> bool {
        self.is_bounded(choice) && !(metric.starts_with("tpot_s") && choice.limits.frontend.takes_time())
    }

    /// Whether one group serves whatever comes, with nothing else that happens to it.
    fn is_plain(&self) -> bool {
        let [group] = &self.groups[..] else { return false };
        matches!(self.law, CostLaw::Operations)
            && self.warm_up.get() == 0.0
            && self.streams.iter().all(|stream| stream.users.is_none())
            && self.outages.is_empty()
            && group.role == Role::Both
            && group.scaling.is_none()
            && group.failures.is_none()
    }
}
