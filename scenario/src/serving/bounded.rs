//! What bounds in closed form know of a fleet: nothing where more happens to its requests than they count.

use serve::fleet::held::Users;
use serve::outlook::{Counted, Load};
use serve::replica::Role;

use super::costs::CostLaw;
use super::{Serving, ServingChoice, ServingGroup};

impl ServingChoice {
    /// Whether its engines do the same work for the same requests as another one's, in replicas of such a role: prices of it hold for both.
    pub fn works_as(&self, other: &Self, role: Role) -> bool {
        let degree = |choice: &Self| choice.prefill_tensor_degree.filter(|_| role == Role::Prefill);
        self.operation == other.operation
            && self.limits.shares_prefixes == other.limits.shares_prefixes
            && degree(self) == degree(other)
    }
}

impl Serving {
    /// What replicas of such a role do with the requests, where a bound knows all that happens to them on engines that keep prefixes, or that do not.
    pub fn load(&self, role: Role, keeps_prefixes: bool) -> Option<Load<'_>> {
        self.plain_group()?;
        let is_held = self.streams.iter().any(|stream| stream.users.is_some());
        Load::of(&self.requests, Counted { role, keeps_prefixes, is_held })
    }

    /// Whether a bound knows all that happens to requests under a choice: lent memory is not priced, and neither is a first token that comes with
    /// drafts.
    pub fn is_bounded(&self, choice: &ServingChoice) -> bool {
        let is_own = choice.kv == self.kv;
        let has_first = |group: &ServingGroup| group.role == Role::Both || choice.operation.drafts.is_none();
        is_own && choice.streams.is_empty() && self.plain_group().is_some_and(has_first)
    }

    /// Whether a bound of a metric holds under a choice: a first token that waits for the frontend comes closer to the next one.
    pub fn bounds(&self, choice: &ServingChoice, metric: &str) -> bool {
        self.is_bounded(choice) && !(metric.starts_with("tpot_s") && choice.limits.frontend.takes_time())
    }

    /// The group that serves whatever comes, where there is one alone and nothing else happens to it. It may be both of the roles under a choice.
    fn plain_group(&self) -> Option<&ServingGroup> {
        let [group] = &self.groups[..] else { return None };
        let counts_all = |users: Users| matches!(users, Users::Held { warm_up: 0, .. });
        let is_plain = matches!(self.law, CostLaw::Operations)
            && self.warm_up.get() == 0.0
            && self.streams.iter().all(|stream| stream.users.is_none_or(counts_all))
            && self.outages.is_empty()
            && matches!(group.role, Role::Both | Role::Outputs)
            && group.scaling.is_none()
            && group.failures.is_none();
        is_plain.then_some(group)
    }
}
