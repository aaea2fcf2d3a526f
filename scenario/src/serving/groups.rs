//! Groups of a fleet: which serve under a choice, with how many replicas, and by which profiles.

use serve::fleet::dynamics::Failures;
use serve::replica::Role;
use serve::transfer::reached;

use super::{Serving, ServingChoice, ServingGroup};

impl ServingGroup {
    /// The same with failures of another seed.
    pub(super) fn reseeded(&self, seed: u64) -> Self {
        let failures = self.failures.map(|failures| Failures { seed, ..failures });
        Self { failures, ..self.clone() }
    }

    /// Bytes per second that one of its GPUs sends to another node.
    pub(super) fn card_bytes_per_s(&self) -> f64 {
        self.port_bytes_per_s.unwrap_or_else(|| reached(self.cluster.nic_bandwidth))
    }
}

impl Serving {
    /// Groups that serve under a choice.
    pub fn groups_of(&self, choice: &ServingChoice) -> Vec<&ServingGroup> {
        let roles = choice.prefill_replicas > 0 && !self.roles.is_empty();
        let groups = if roles { &self.roles } else { &self.groups };
        groups.iter().filter(|group| roles || choice.serves(group)).collect()
    }

    /// Whether a group has GPUs of its own, on other machines than the cluster's.
    pub fn is_apart(&self, group: &ServingGroup) -> bool {
        self.given.fleet.is_apart(&group.name)
    }

    /// Whether no network lies between the replicas of a choice: all of them fit one node of the cluster, or the nodes that NVLink joins.
    pub(super) fn is_one_node(&self, choice: &ServingChoice) -> bool {
        !self.groups_of(choice).into_iter().any(|group| self.is_apart(group))
            && self.n_gpus(choice) <= self.cluster.domain()
    }

    /// Bytes per second that one GPU of a group sends to other replicas of a choice. Engines' connectors (NIXL over UCX, Mooncake) take NVLink, or the bus, inside
    /// a node.
    pub(super) fn port_of(&self, choice: &ServingChoice, group: &ServingGroup) -> f64 {
        match group.port_bytes_per_s {
            None if self.is_one_node(choice) => reached(group.cluster.gpu.bandwidth_to(1)),
            _ => group.card_bytes_per_s(),
        }
    }

    /// GPUs of a group: its replicas with the engine's own degrees.
    pub fn gpus_of(&self, group: &ServingGroup) -> u32 {
        group.n_replicas * self.engine.n_gpus(group.tensor_degree, group.ffn)
    }

    /// GPUs of all groups that serve under a choice.
    pub fn n_gpus(&self, choice: &ServingChoice) -> u32 {
        let of = |group| self.replicas_of(choice, group) * self.deployment_of(choice, group).n_gpus();
        self.groups_of(choice).into_iter().map(of).sum()
    }

    /// Replicas of a group under a choice; one with other degrees has as many as the same GPUs give, where it does not say how many.
    pub fn replicas_of(&self, choice: &ServingChoice, group: &ServingGroup) -> u32 {
        let of_gpus = |n: u32| n / self.deployment_of(choice, group).n_gpus();
        let (all, of_prompts) = (self.gpus_of(group), choice.prefill_replicas);
        match (group.role, choice.replicas) {
            (Role::Prefill, _) if of_prompts > 0 => of_prompts,
            (Role::Decode, Some(n)) if of_prompts > 0 => n.saturating_sub(of_prompts),
            (Role::Decode, None) if of_prompts > 0 => of_gpus(all.saturating_sub(self.prefill_gpus(choice))),
            (_, n) => n.unwrap_or_else(|| of_gpus(all)),
        }
    }

    /// GPUs of the replicas that compute prompts for others under a choice that has some.
    fn prefill_gpus(&self, choice: &ServingChoice) -> u32 {
        let prefill = self.roles.iter().find(|group| group.role == Role::Prefill);
        prefill.map_or(0, |group| choice.prefill_replicas * self.deployment_of(choice, group).n_gpus())
    }

    /// Names of the profiles of all groups that serve, each once.
    pub fn profiles(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        let runs = |choice: &&ServingChoice| self.names.contains(&choice.name) || choice.candidate.is_some();
        let serves = |group: &&ServingGroup| self.choices.iter().filter(runs).any(|choice| choice.serves(group));
        for group in self.groups.iter().filter(serves) {
            let name = group.profile.as_ref().map_or("roofline", |profile| profile.name.as_str());
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    }
}
