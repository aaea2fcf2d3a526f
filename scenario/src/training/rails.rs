//! `cluster.oversubscription` on rails: links above the leaves carry what leaves its rail, and most layouts send nothing there.

use planner::train::policies;
use planner::train::policy::Reads;
use train::Problem;
use train::layout::{ContextExchange, Layout, Zero};

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

/// Whether every exchange between nodes joins GPUs of one place in their nodes. That is so where degrees are powers of two on consecutive ranks: a group then
/// has as many places in each of its nodes. A ring of context and stages of a pipeline reach their neighbours, whatever place these have.
fn stays_on_rails(choice: &PolicyChoice, problem: &Problem) -> bool {
    let (layout, in_node) = (&problem.layout, problem.cluster.domain());
    let has_own_groups = policies::named(&choice.policy).is_none_or(|policy| policy.reads() != Reads::Room);
    let usual = Layout::data_and_context(1, 1, Zero::Off, layout.exchange).order;
    let degrees = [layout.tp, layout.cp, layout.dp, layout.pp, layout.ep, in_node];
    if has_own_groups || layout.order != usual || !degrees.into_iter().all(u32::is_power_of_two) {
        return false;
    }
    let inside = |n: u32| n <= in_node;
    let ring_stays = layout.exchange != ContextExchange::Ring || layout.cp == 1 || inside(layout.tp * layout.cp);
    let of_stage = layout.tp * layout.cp * layout.dp;
    let stages_stay = layout.pp == 1 || of_stage.is_multiple_of(in_node) || inside(of_stage * layout.pp);
    ring_stays && stages_stay
}
