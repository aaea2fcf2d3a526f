//! Which layers of a problem's model the stages of its pipeline hold: as given, or split evenly with the rest to the middle stages.

use engine::stage;
pub use engine::stage::Stage;

use crate::problem::Problem;

/// Layers of each of so many stages over `n_places`, where an embedding in front and a loss behind may each stand in for a layer (`ends`: 1 where it
/// does; Megatron-Core, `get_num_layers_to_build`). A stage with an end alone has no layer.
///
/// # Panics
/// Where stages have no equal number of places.
pub fn beside_ends(n_places: u64, n_stages: u64, ends: [u32; 2]) -> Vec<u32> {
    assert!(n_places > 0 && n_places.is_multiple_of(n_stages), "{n_places} places in {n_stages} stages");
    let each = u32::try_from(n_places / n_stages).expect("layer counts are checked by the model reader");
    let mut layers = vec![each; usize::try_from(n_stages).expect("stages fit usize")];
    layers[0] -= ends[0];
    let last = layers.len() - 1;
    layers[last] -= ends[1];
    layers
}

/// Parameters of a stage on one rank that lie outside of its layers.
pub fn outside_layers(problem: &Problem, stage: &Stage) -> f64 {
    engine::memory::around_layers(&problem.shard(), stage).iter().sum()
}

/// Parameters of a stage on one rank that have Adam's states whatever the rule of matrices is: those outside of its layers, and norms.
pub fn no_matrices(problem: &Problem, stage: &Stage) -> f64 {
    outside_layers(problem, stage) + engine::memory::norm_parameters(&problem.shard(), stage)
}

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
    let is_hybrid = problem.model.is_hybrid();
    let mut before = [0, 0];
    for stage in &mut stages {
        *stage = stage.recomputing(execution.recompute, execution.recompute_layers);
        stage.before = is_hybrid.then_some(before);
        before = [before[0] + stage.n_dense, before[1] + stage.n_expert];
    }
    stages
}
