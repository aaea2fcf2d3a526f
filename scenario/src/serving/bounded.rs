//! What bounds in closed form know of a fleet: nothing where more happens to its requests than they count.

use serve::outlook::Load;
use serve::replica::Role;

use super::Serving;
use super::costs::CostLaw;

impl Serving {
    /// The requests, where a bound knows all that happens to them.
    pub fn load(&self) -> Option<Load<'_>> {
        let [group] = &self.groups[..] else { return None };
        let is_plain = matches!(self.law, CostLaw::Operations)
            && self.warm_up.get() == 0.0
            && self.streams.iter().all(|stream| stream.users.is_none())
            && self.outages.is_empty()
            && group.role == Role::Both
            && group.scaling.is_none()
            && group.failures.is_none();
        if is_plain { Load::of(&self.requests) } else { None }
    }
}
