//! The fleet of a choice as deployments: engines of every group on machines of their own, one deployment for each model, checked.

use engine::verdict::Refused;
use planner::deploy::RentalError;
use serve::check::{Site, check};
use serve::deployment::{Deployment, Lifted, of_engines};

use super::{Serving, ServingChoice, ServingGroup};

/// The fleet of a choice as deployments that the checker holds, one for each model.
///
/// # Errors
/// Why the checker refuses one.
pub fn deployments(scenario: &Serving, choice: &ServingChoice) -> Result<Vec<Deployment>, Refused> {
    let groups = scenario.groups_of(choice);
    let mut models: Vec<u32> = groups.iter().map(|group| group.model_index).collect();
    models.sort_unstable();
    models.dedup();
    if models.is_empty() {
        return Err(Refused::infeasible("no group serves"));
    }
    let of_model = |model: u32| groups.iter().copied().filter(move |group| group.model_index == model).collect();
    models.into_iter().map(|model| deployment(scenario, choice, of_model(model))).collect()
}

/// Groups of one model as a deployment.
fn deployment(scenario: &Serving, choice: &ServingChoice, groups: Vec<&ServingGroup>) -> Result<Deployment, Refused> {
    let mut engines = Vec::new();
    for &group in &groups {
        engines.push(Lifted {
            name: &group.name,
            copies: scenario.replicas_of(choice, group),
            role: group.role,
            config: scenario.deployment_of(choice, group),
            limits: scenario.limits(choice, group),
            batcher: choice.batcher.name(),
            usd_per_gpu_hour: group.usd_per_gpu_hour,
        });
    }
    let model = &groups[0].model;
    let deployment = of_engines(model, &engines);
    let (mut parameter_bytes, mut kv_bytes) = (2.0_f64, 2.0_f64);
    for config in groups.iter().map(|group| scenario.deployment_of(choice, group)) {
        let least = config.formats.narrowest_bytes();
        // What sparse kernels keep of weights the checker cannot say; its room for keys and values has been taken already.
        parameter_bytes = parameter_bytes.min(if config.sparse_weights.is_some() { 0.0 } else { least });
        kv_bytes = kv_bytes.min(hw::real(config.formats.kv.bytes()));
    }
    let site = Site { model, machines: &deployment.machines, parameter_bytes, kv_bytes };
    check(&deployment, &site).map_err(RentalError::refused)?;
    Ok(deployment)
}
