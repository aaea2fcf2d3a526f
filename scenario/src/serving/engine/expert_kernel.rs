//! Which kernel computes experts: that of the library that is asked for, or what the named engine chooses.

use engine::Model;
use engine::cost::experts::Tactic;
use engine::cost::experts::kernel::ExpertKernel;
use hw::{Format, Gpu};

use super::super::ServingGroup;
use super::super::degrees::Degrees;
use super::EngineSection;

/// How experts lie on the GPUs that share them.
#[derive(Clone, Copy)]
pub(crate) struct ExpertPlacement {
    /// Ranks of data-parallel attention.
    pub(crate) ranks: u32,
    /// GPUs over which whole experts are spread; 1 where each expert is cut.
    spread: u32,
    /// GPUs that have a part of each expert.
    cut: u32,
}

impl ExpertPlacement {
    /// That of a replica.
    pub(crate) fn of(degrees: Degrees) -> Self {
        let cut = if degrees.has_whole_experts() { 1 } else { degrees.tensor };
        Self { ranks: degrees.attention_ranks(), spread: degrees.expert_gpus(), cut }
    }

    /// Whether whole experts are spread.
    pub(crate) const fn is_spread(self) -> bool {
        self.spread > 1
    }

    /// Experts on a GPU, where so many are kept once more, and the inner width of one there.
    fn shape(self, model: &Model, redundant: u32) -> Option<(u64, u64)> {
        let experts = model.experts?;
        let n_kept = experts.n_routed + u64::from(redundant);
        Some((n_kept.div_ceil(u64::from(self.spread)), experts.intermediate.div_ceil(u64::from(self.cut))))
    }
}

impl EngineSection {
    /// Which variant of their kernel experts of a format run on a group: that of the library that is asked for, where the group's profile has its time, or what the
    /// named engine chooses. Whether experts are on other GPUs as well decides the curve.
    pub(crate) fn expert_tactic(&self, format: Format, group: &ServingGroup, placed: ExpertPlacement) -> Tactic {
        let (gpu, model) = (&group.cluster.gpu, &group.model);
        let asked = self.asked_tactic(format, group, placed.is_spread());
        let Some(preset) = self.preset else { return asked.unwrap_or_default() };
        let chosen = match asked {
            Some(asked) => preset.as_tuned(asked, format, gpu, placed.ranks),
            None => preset.expert_tactic(format, model, gpu, placed.ranks),
        };
        let is_triton = asked.is_none() || self.experts.kernel == Some(ExpertKernel::Triton);
        match placed.shape(model, self.experts.redundant.unwrap_or(0)) {
            Some(shape) if is_triton => preset.with_default_tiles(chosen, format, gpu, shape),
            _ => chosen,
        }
    }

    /// Rows to which experts of a format are filled up. `DeepGEMM` does that, so another library that is asked for does not, where its time is known.
    pub(crate) fn expert_rows(&self, format: Format, group: &ServingGroup, placed: ExpertPlacement) -> Option<u64> {
        let is_other = self.experts.kernel != Some(ExpertKernel::DeepGemm)
            && self.asked_tactic(format, group, placed.is_spread()).is_some();
        self.preset.filter(|_| !is_other)?.expert_rows_of(format, placed.cut)
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
