//! Which layers of a problem's model the stages of its pipeline hold: as given, or split evenly with the rest to the middle stages.

use engine::stage;
pub use engine::stage::Stage;

use crate::problem::Problem;

/// Stages of a problem's model, along the path.
pub fn stages(problem: &Problem) -> Vec<Stage> {
    let (layout, execution) = (&problem.layout, &problem.execution);
    let n_stages = problem.schedule.placement.n_stages(layout.pp as usize, layout.chunks as usize);
    let n_layers = u32::try_from(problem.model.n_layers).expect("layer counts are checked by the model reader");
    let counts = if execution.layers.is_empty() {
        stage::even(n_layers, u32::try_from(n_stages).expect("stages fit u32"))
    } else {
        execution.layers.clone()
    };
    let mut stages = stage::stages(&problem.model, &counts);
    for stage in &mut stages {
        *stage = stage.recomputing(execution.recompute, execution.recompute_layers);
    }
    stages
}
