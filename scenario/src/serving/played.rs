//! The fleet of a choice as the request loop plays it: engines with their times, replicas, links, and what happens to them.

use calibrate::costs::cost_model;
use engine::CostModel;
use engine::cost::Source;
use engine::play::Case;
use planner::deploy::dynamo::planned;
use serve::fleet::{Fleet, Group};
use serve::replica::{Engine, Limits, Spans};
use serve::speculation::Speculation;
use serve::step_cost::StepTable;

use super::{CostLaw, Serving, ServingChoice, ServingGroup, dynamics, kv, scaling};

impl Serving {
    /// Costs of a group's machine.
    pub fn costs(&self, group: &ServingGroup) -> Box<dyn CostModel> {
        cost_model(&group.cluster, group.profile.as_ref(), self.sustained_flops_ratio)
    }

    /// Times of iterations of a group's replicas under a choice, within limits of sequences and tokens, with what it drafts.
    pub fn table(
        &self,
        choice: &ServingChoice,
        group: &ServingGroup,
        limits: &Limits,
        cost: &dyn CostModel,
        case: Case,
    ) -> StepTable {
        let deployment = self.deployment_of(choice, group);
        let sizes_max = (limits.tokens_max, limits.sequences_max * choice.operation.tokens_per_sequence());
        let table = match &self.law {
            CostLaw::Stages(law) => StepTable::of_chunks(law, deployment.pipeline_degree, limits.tokens_max),
            CostLaw::Operations | CostLaw::PublishedRuns(_) => StepTable::new(&deployment, sizes_max, cost, case),
        };
        match &choice.operation.drafts {
            Some(drafts) => table.speculating(&Speculation { seed: self.head.seed, ..drafts.speculation }),
            None => table,
        }
    }
}

/// The fleet of a choice at one end of the costs, and the weakest source of its times.
pub fn fleet(scenario: &Serving, choice: &ServingChoice, case: Case) -> (Fleet, Source) {
    let mut source = Source::Measured;
    let group = |group: &ServingGroup| {
        let limits = scenario.limits(choice, group);
        let cost = scenario.costs(group);
        let deployment = scenario.deployment_of(choice, group);
        let mut table = scenario.table(choice, group, &limits, cost.as_ref(), case);
        if let Some(chunking) = choice.operation.kernels.chunking(&limits) {
            table = table.chunked(chunking);
        }
        source = source.max(table.source_of(&scenario.requests));
        let n_gpus = deployment.n_gpus();
        Group {
            name: group.name.clone(),
            engine: Engine { limits, table, batcher: choice.batcher, spans: Spans::Closed },
            n_replicas: scenario.replicas_of(choice, group),
            gpus_per_replica: n_gpus,
            usd_per_gpu_hour: group.usd_per_gpu_hour,
            model: group.model_index,
            role: group.role,
            port_bytes_per_s: Some(scenario.port_of(choice, group) * f64::from(deployment.n_attending())),
            moves: dynamics::moves(scenario, choice, group),
            scaling: group.scaling.as_ref().map(|found| found.scaling.clone()),
            failures: group.failures,
        }
    };
    let groups = scenario.groups_of(choice).into_iter().map(group).collect();
    let mut fleet = Fleet {
        groups,
        assignment: scenario.assignment_of(choice),
        links: dynamics::links(scenario, choice),
        start: scenario.start_of(choice),
        first_token: scenario.first_token(),
        outages: dynamics::outages(scenario, choice),
        lending: kv::terms_of(scenario, choice),
        ..Fleet::default()
    };
    if let Some(planned) = scaling::asked(scenario, choice) {
        planned::timetable(&planned, &scenario.slo, &scenario.requests_of(choice), &mut fleet);
    }
    (fleet, source)
}
