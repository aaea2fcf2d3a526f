//! What steps of a plan take beside a slow node, for a run of days: with its micro-batches as they are, and with micro-batches that follow the speed of its
//! replicas again. The latter moves nothing: a replica that computes more reads more sequences. Nodes that are alike are played once. Units: seconds.

use engine::CostModel;
use engine::play::Case;
use engine::verdict::Refused;
use train::long_run::slow::{Asked, Beside, Reaction, Replanned, Slowed};
use train::mixed_gpus::{MixedJob, Pipelines, SlowNode};

use super::{counted, fits};

/// Most kinds of nodes of which one is slow once; of more the first ones are.
const KINDS: usize = 16;

/// What steps of a plan take beside a slow node, and what the job may do about it; `None` where no node is slow.
///
/// # Errors
/// When micro-batches are to follow the speed, and there is one replica, or memory has no room for them.
pub(super) fn beside(
    job: &MixedJob,
    plan: &Pipelines,
    costs: &[Box<dyn CostModel>],
) -> Result<Option<Beside>, Refused> {
    let Some(slow) = job.run.as_ref().and_then(|run| run.slow_nodes.as_ref()) else { return Ok(None) };
    let asked = if slow.reaction == Asked::OfPolicy { Asked::Given(Reaction::Endure) } else { slow.reaction };
    let healthy_s = step_s(job, plan, costs);
    let mut endured: Vec<(f64, u32)> = Vec::new();
    let mut shared: Option<Vec<(f64, u32)>> = Some(Vec::new());
    for (group, node, n) in job.kinds_of_nodes(plan).into_iter().take(KINDS) {
        let slow_node = Some(SlowNode { group, node, rate: slow.rate });
        let beside = MixedJob { slow_node, ..job.clone() };
        endured.push((step_s(&beside, plan, costs), n));
        let other = if is_shared_again(asked) { shared_again(&beside, plan, costs) } else { None };
        shared = shared.zip(other).map(|(mut all, other)| {
            all.push((step_s(&beside, &other, costs), n));
            all
        });
    }
    let replanned =
        shared.map(|steps| Replanned { pace: (pace(&steps) / healthy_s).max(1.0), pause_s: 0.0, late_s: 0.0 });
    let slowed = Slowed { endured: (pace(&endured) / healthy_s).max(1.0), replanned };
    let reactions = match asked {
        Asked::Given(Reaction::Replan) if slowed.replanned.is_none() => {
            let why = "`slow_nodes.reaction = \"replan\"` gives micro-batches of a slow replica to others, and there is none with room for them";
            return Err(Refused::infeasible(why.to_owned()));
        }
        Asked::Given(reaction) => vec![reaction],
        _ => slowed.reactions().collect(),
    };
    Ok(Some(Beside { slowed, reactions }))
}

/// Whether micro-batches may follow the speed again.
const fn is_shared_again(asked: Asked) -> bool {
    !matches!(asked, Asked::Given(Reaction::Endure | Reaction::Restart))
}

/// A plan whose micro-batches follow the speed of its replicas; `None` with one replica, or where it does not fit.
fn shared_again(job: &MixedJob, plan: &Pipelines, costs: &[Box<dyn CostModel>]) -> Option<Pipelines> {
    let micro_batches = counted(job, plan, costs).ok()??;
    let shared = Pipelines { micro_batches, ..plan.clone() };
    (plan.micro_batches.len() > 1 && fits(job, &shared)).then_some(shared)
}

fn step_s(job: &MixedJob, plan: &Pipelines, costs: &[Box<dyn CostModel>]) -> f64 {
    let (step, _) = job.step(plan, costs, Case::Expected).expect("plans have the links that they need");
    step.span().to_seconds().get()
}

/// A step that takes as long as those do together, each of so many nodes: whichever is slow, it is for as long a time, so steps per second add up.
fn pace(steps: &[(f64, u32)]) -> f64 {
    let n: f64 = steps.iter().map(|(_, n)| f64::from(*n)).sum();
    n / steps.iter().map(|(step_s, n)| f64::from(*n) / step_s).sum::<f64>()
}
