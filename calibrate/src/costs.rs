//! The cost model of a machine, one for training and for serving.

use crate::profiles;
use engine::CostModel;
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::cost::roofline::Roofline;
use engine::cost::sustained::Sustained;
use hw::Cluster;

/// Its profile or the datasheet roofline, with products held to a share of the peak where that is below 1.
pub fn cost_model(cluster: &Cluster, profile: Option<&Profile>, sustained_flops_ratio: f64) -> Box<dyn CostModel> {
    let model: Box<dyn CostModel + Send> = match profile {
        Some(profile) => Box::new(Profiled::new(profile, cluster)),
        None => Box::new(Roofline::new(cluster)),
    };
    if sustained_flops_ratio < 1.0 {
        return Box::new(Sustained::new(model, &cluster.gpu, sustained_flops_ratio));
    }
    model
}

/// Costs of a serving engine on a machine by the tables that are shipped for its card, or lent to it.
pub fn of_serving(cluster: &Cluster, engine: &str) -> Box<dyn CostModel> {
    cost_model(cluster, profiles::of_serving(&cluster.gpu.name, Some(engine)).as_ref(), 1.0)
}
