//! `cluster.oversubscription` on rails: links above the leaves carry what leaves its rail, and most layouts send nothing there.

use planner::train::policies;
use planner::train::policy::Reads;
use train::Problem;

use super::PolicyChoice;
use hw::Fabric;
use input::diagnostic::Code;
use input::reader::{Place, Reader};

/// Where the section says that links above leaves are narrow.
pub fn narrow_at(reader: &Reader<'_>) -> Option<Place> {
    reader.peek_in("cluster", "oversubscription").map(|(_, at)| at)
}

/// Warns of narrow links above the leaves of rails that no exchange of the policies' layouts passes.
pub fn warn(reader: &mut Reader<'_>, at: Option<Place>, problem: &Problem, choices: &[PolicyChoice]) {
    let cluster = &problem.cluster;
    let is_narrow = cluster.oversubscription > 1.0 && cluster.n_nodes > 1 && cluster.fabric == Fabric::Rail;
    let Some(at) = at.filter(|_| is_narrow) else { return };
    if choices.iter().all(|choice| stays_on_rails(choice, &choice.problem(problem))) {
        let help =
            "all exchanges of these degrees between nodes stay on their rail; it needs `cluster.fabric = \"fat_tree\"`";
        reader.warn(Code::NoEffect, at, "`cluster.oversubscription` changes nothing", help);
    }
}

/// Whether every exchange of a policy between nodes stays on its rail. Groups that a policy makes by itself may lie anywhere.
fn stays_on_rails(choice: &PolicyChoice, problem: &Problem) -> bool {
    let has_own_groups = policies::named(&choice.policy).is_none_or(|policy| policy.reads() != Reads::Room);
    !has_own_groups && problem.layout.stays_on_rails(problem.cluster.domain())
}
