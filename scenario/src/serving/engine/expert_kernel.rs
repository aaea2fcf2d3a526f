//! Which kernel computes experts: that of the library that is asked for, or what the named engine chooses.

use engine::cost::experts::Tactic;
use engine::cost::experts::kernel::ExpertKernel;
use hw::{Format, Gpu};

use super::super::ServingGroup;
use super::EngineSection;

impl EngineSection {
    /// Which variant of their kernel experts of a format run on a group, with so many ranks of data-parallel attention: that of the library that is asked for,
    /// where the group's profile has its time, or what the named engine chooses. Whether experts are on other GPUs as well decides the curve.
    pub(crate) fn expert_tactic(&self, format: Format, group: &ServingGroup, (ranks, spreads): (u32, bool)) -> Tactic {
        let (gpu, asked) = (&group.cluster.gpu, self.asked_tactic(format, group, spreads));
        match (asked, self.preset) {
            (Some(asked), Some(preset)) => preset.as_tuned(asked, format, gpu, ranks),
            (None, Some(preset)) => preset.expert_tactic(format, &group.model, gpu, ranks),
            (asked, None) => asked.unwrap_or_default(),
        }
    }

    /// The variant of the library that is asked for; `None` where none is, or where the group's profile has no time of it.
    fn asked_tactic(&self, format: Format, group: &ServingGroup, spreads: bool) -> Option<Tactic> {
        self.experts.kernel?.tactic(&group.profile.as_ref()?.experts, format, spreads)
    }

    /// Whether experts of a format run by the kernel that is asked for, as far as its time or the engine's own choice is known.
    pub(crate) fn has_asked_kernel(&self, format: Format, group: &ServingGroup, spreads: bool) -> bool {
        let is_own =
            self.experts.kernel == Some(ExpertKernel::Triton) && self.has_triton_experts(format, &group.cluster.gpu);
        is_own || self.asked_tactic(format, group, spreads).is_some()
    }

    /// Whether experts of a format run through kernels of Triton under the named engine.
    pub(crate) fn has_triton_experts(&self, format: Format, gpu: &Gpu) -> bool {
        self.preset.is_some_and(|preset| preset.has_triton_experts(format, gpu))
    }
}
