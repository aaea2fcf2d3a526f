//! A kernel of experts that is asked for, and of which no table has a time.

use engine::cost::experts::kernel::ExpertKernel;
use input::diagnostic::{Code, Finding};
use input::reader::Place;

use super::super::{Serving, ServingChoice, ServingGroup};

/// The kernel that is asked for, on every group whose profile has no time of it for the format of its experts.
pub(super) fn unknown(serving: &Serving, at: Option<&Place>) -> Vec<Finding> {
    let (Some(asked), Some(at)) = (serving.engine.experts.kernel, at) else { return Vec::new() };
    let mut found = Vec::new();
    for choice in serving.plain() {
        for group in serving.groups_of(choice) {
            found.extend(
                without_time(serving, (choice, group), asked).map(|finding| Finding { at: at.clone(), ..finding }),
            );
        }
    }
    found
}

/// What a group says of a kernel without a time; where no model has experts that was told before.
fn without_time(
    serving: &Serving,
    (choice, group): (&ServingChoice, &ServingGroup),
    asked: ExpertKernel,
) -> Option<Finding> {
    group.model.experts?;
    let format = serving.formats_of(choice, group).experts;
    let is_known = serving.engine.has_asked_kernel(
        format,
        group,
        choice.operation.degrees(choice.tensor_degree(group), group.ffn).expert_gpus() > 1,
    );
    let what = format!(
        "`engine.expert_kernel = \"{}\"` changes nothing: no table has that kernel for experts in {} on `{}`",
        asked.word(),
        format.word(),
        group.cluster.gpu.name
    );
    let help = serving.engine.preset.map_or_else(
        || "experts run at the costs of the profile; tables are those of engines, by `engine.name`".to_owned(),
        |preset| format!("experts run at the costs of the kernel that `{}` takes by itself", preset.name),
    );
    (!is_known).then(|| Finding::warning(Code::NoEffect, None, what).help(help))
}
