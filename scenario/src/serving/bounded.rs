//! What bounds in closed form know of a fleet: nothing where more happens to its requests than they count.

use engine::capacity::Overload;
use engine::play::Case;
use serve::fleet::held::Users;
use serve::kv::lending::Borrow;
use serve::outlook::{Counted, Load, Replica};
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

    /// Why a choice cannot keep up with its requests for long, where a bound knows.
    pub fn overload(&self, choice: &ServingChoice) -> Option<Overload> {
        Overload::of(self.requests_per_s_offered()?, self.requests_per_s_most(choice)?)
    }

    /// Requests per second that the fleet of a choice serves at most, however many wait; `None` where no bound knows. When requests count changes nothing.
    fn requests_per_s_most(&self, choice: &ServingChoice) -> Option<f64> {
        let is_known = choice.kv == self.kv && choice.kv.borrow == Borrow::Never && choice.streams.is_empty();
        let group = self.lone_group().filter(|_| is_known && self.users_of(choice).is_none())?;
        if group.role == Role::Outputs || (choice.prefill_replicas > 0 && choice.operation.drafts.is_some()) {
            return None;
        }
        let each = self.groups_of(choice).into_iter().map(|group| self.requests_per_s_of(choice, group));
        each.reduce(|least, other| Some(least?.min(other?)))?
    }

    /// The same of one of its groups.
    fn requests_per_s_of(&self, choice: &ServingChoice, group: &ServingGroup) -> Option<f64> {
        let counted = Counted { role: group.role, keeps_prefixes: choice.limits.shares_prefixes, is_held: false };
        let (load, deployment) = (Load::of(&self.requests, counted)?, self.deployment_of(choice, group));
        let (limits, cost) = (self.limits(choice, group), self.costs(group));
        let table = self.table(choice, group, &limits, cost.as_ref(), Case::Expected);
        let replica = Replica::new(&deployment, cost.as_ref(), table, load);
        let outlook = replica.outlook(self.replicas_of(choice, group), deployment.n_gpus(), &limits)?;
        Some(outlook.requests_per_s_most())
    }

    /// Requests per second that come, where they come by themselves; `None` where all come at one moment.
    pub fn requests_per_s_offered(&self) -> Option<f64> {
        self.requests.per_s()
    }

    /// The group that serves whatever comes, where every request counts.
    fn plain_group(&self) -> Option<&ServingGroup> {
        self.lone_group().filter(|_| self.warm_up.get() == 0.0)
    }

    /// The group that serves whatever comes, where there is one alone and nothing else happens to it. It may be both of the roles under a choice.
    fn lone_group(&self) -> Option<&ServingGroup> {
        let [group] = &self.groups[..] else { return None };
        let counts_all = |users: Users| matches!(users, Users::Held { warm_up: 0, .. });
        let is_plain = matches!(self.law, CostLaw::Operations)
            && self.streams.iter().all(|stream| stream.users.is_none_or(counts_all))
            && self.outages.is_empty()
            && matches!(group.role, Role::Both | Role::Outputs)
            && group.scaling.is_none()
            && group.failures.is_none();
        is_plain.then_some(group)
    }
}
