//! What the GPUs of a job draw in a step, by how busy the memory and the products of each are (`hw::power`).
//!
//! Work is counted lane by lane, so a rank that waits draws less. The shares of a card were fitted to runs of serving (`docs/energy.md`): no measured
//! training was at hand. Hosts, switches, losses and cooling are not in it. Units: watt-hours, watts, joules.

use std::collections::BTreeMap;

use hw::power::{self, JOULES_PER_WH};
use hw::{Gpu, Power};

use super::{Played, f64_of, op_flops};
use crate::problem::Problem;
use engine::Model;
use engine::cost::busy::{self, Busy, Part};
use engine::cost::{CostModel, Estimate};
use engine::task::{Op, Stream};

/// What the GPUs of a job draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Energy {
    /// In a step, on average over the steps, joules.
    pub joules: f64,
    /// Of a GPU, on average over a step, watts.
    pub gpu_watts: f64,
    /// What a GPU may draw at most, watts.
    pub limit_watts: f64,
    /// Card whose shares of power stand for those of this one, where none were fitted on it.
    pub lender: Option<&'static str>,
}

impl Energy {
    /// Of played steps that take so long on average; `None` where nobody knows what the card draws, or where passes have a given duration and no work.
    pub fn of(problem: &Problem, steps: &[Played], step_s: f64) -> Option<Self> {
        if problem.execution.unit_times.is_some() {
            return None;
        }
        let power = Power::of(&problem.cluster.gpu)?;
        let joules = steps.iter().map(|step| joules(step, (&problem.model, &problem.cluster.gpu), &power)).sum::<f64>()
            / f64_of(steps.len());
        // Sums of many ranks are rounded, and no card draws more than its limit.
        let gpu_watts = (joules / (step_s * f64::from(problem.layout.n_ranks()))).min(power.limit_watts);
        Some(Self { joules, gpu_watts, limit_watts: power.limit_watts, lender: power.lender })
    }

    /// Contract keys, for steps of so many tokens.
    pub fn values(&self, tokens: f64) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [
            ("energy_wh", self.joules / JOULES_PER_WH),
            ("gpu_power_w", self.gpu_watts),
            ("gpu_power_limit_w", self.limit_watts),
            ("energy_j_per_token", self.joules / tokens),
        ];
        all.into_iter().chain(self.lender.map(|_| (power::BORROWED, 1.0)))
    }
}

/// Intervals of these figures, where a step has them: those of what GPUs draw while they serve.
pub fn intervals(metrics: &BTreeMap<String, f64>) -> Vec<(String, [f64; 2])> {
    let of = |key: &str| metrics.get(key).copied();
    let Some((watts, limit_watts)) = of("gpu_power_w").zip(of("gpu_power_limit_w")) else { return Vec::new() };
    let [low, high] = power::ends(watts, limit_watts, of(power::BORROWED).unwrap_or(0.0));
    let ends = |key: &str| of(key).map(|value| (key.to_owned(), [value * low, value * high]));
    ["energy_wh", "gpu_power_w", "energy_j_per_token"].into_iter().filter_map(ends).collect()
}

/// How long a part of a card is busy with the operations of a model.
struct BusyWith<'a> {
    busy: Busy<'a>,
    model: &'a Model,
}

impl CostModel for BusyWith<'_> {
    fn elementary(&self, op: &Op) -> Estimate {
        let priced = self.busy.elementary(op);
        let flops = op.flops();
        if self.busy.part == Part::Memory || flops == 0.0 {
            return priced;
        }
        Estimate { time: priced.time * (op_flops(self.model, op) / flops), ..priced }
    }

    fn estimate(&self, op: &Op) -> Estimate {
        busy::work(self, op)
    }
}

/// Joules of all ranks in a step.
fn joules(step: &Played, (model, gpu): (&Model, &Gpu), power: &Power) -> f64 {
    let of_op = |part| {
        let busy = BusyWith { busy: Busy { part, gpu }, model };
        step.graph.ops.iter().map(|op| busy.estimate(op).time.get()).collect::<Vec<f64>>()
    };
    let [memory, products] = [Part::Memory, Part::Products].map(of_op);
    let mut busy = vec![[0.0; 2]; step.graph.lanes.len()];
    for task in step.graph.tasks.iter().filter(|task| task.stream == Stream::Compute) {
        let [of_memory, of_products] = &mut busy[task.lane.index()];
        *of_memory += memory[task.op.0 as usize];
        *of_products += products[task.op.0 as usize];
    }
    let span = step.timeline.span().to_seconds().get().max(f64::MIN_POSITIVE);
    let lanes = step.graph.lanes.iter().zip(busy);
    lanes
        .map(|(lane, busy)| {
            let [memory, products] = busy.map(|seconds| seconds / span);
            f64::from(lane.multiplicity) * power.watts(memory, products) * span
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;
    use engine::play::{Case, Machine};
    use engine::task::{Document, Lane, LaneId, Pass, Role, Task, TaskGraph};
    use hw::{Format, Rank};

    use super::*;

    #[test]
    fn ranks_that_wait_draw_what_an_idle_card_draws() {
        // One rank multiplies; three that act alike have nothing to do.
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let lane = |rank, multiplicity| Lane { rank: Rank(rank), multiplicity, group: 0, stage: 0, rate: 1.0 };
        let mut graph = TaskGraph::with_lanes(vec![lane(0, 1), lane(1, 3)]);
        let op = graph.add_op(Op::Gemm { m: 4096, n: 4096, k: 4096, format: Format::Bf16 });
        let task =
            Task { op, lane: LaneId(0), stream: Stream::Compute, role: Role::Forward, micro_batch: 0, meeting: None };
        graph.add_task(task, &[]);
        let cluster = hw::catalog::cluster(&gpu, 1, 8);
        let topology = hw::topology::Topology::of(&cluster);
        let cost = Roofline::new(&cluster);
        let machine = Machine {
            cost: &cost,
            topology: &topology,
            memory_bytes: u64::MAX,
            case: Case::Expected,
            speed_changes: &[],
        };
        let engine::Outcome::Done(timeline) = engine::simulate(&graph, &machine) else { panic!("one task ends") };
        let (span, power) = (timeline.span().to_seconds().get(), Power::of(&gpu).expect("its limit is known"));
        // 2 · 4096³ operations at 989e12 a second, and three matrices of two bytes at 3.35e12.
        let (cube, square) = (68_719_476_736.0, 16_777_216.0);
        let busy = power.watts(6.0 * square / 3.35e12 / span, 2.0 * cube / 989e12 / span);
        let wanted = (busy + 3.0 * power.idle_watts()) * span;
        let model = engine::model::embedded("llama-3-8b").expect("embedded");
        let found = joules(&Played { graph, timeline }, (&model, &gpu), &power);
        assert!((found / wanted - 1.0).abs() < 1e-6, "{found} J, not {wanted}");
    }

    /// A host that launches slowly makes a step longer and is no work.
    #[test]
    fn a_card_that_waits_for_its_host_draws_what_an_idle_card_draws() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let model = engine::model::embedded("llama-3-8b").expect("embedded");
        let product = Op::Gemm { m: 4096, n: 4096, k: 4096, format: Format::Bf16 };
        let launched = Op::Launched { parts: vec![(product.clone(), 2)], ns: 1_000_000_000 };
        for part in [Part::Memory, Part::Products] {
            let busy = BusyWith { busy: Busy { part, gpu: &gpu }, model: &model };
            let [alone, both] = [&product, &launched].map(|op| busy.estimate(op).time.get());
            assert!((both / alone - 2.0).abs() < 1e-9, "{both} of {alone}");
        }
    }

    /// Sixteen heads with keys of 192 and values of 128: the units for products are busy for the one and the other.
    #[test]
    fn latent_attention_is_as_busy_as_its_keys_and_values_are_wide() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let model = engine::model::embedded("moonlight-16b-a3b").expect("embedded");
        let documents = vec![Document::causal(4096)];
        let op = Op::Attention {
            documents,
            n_heads: 16,
            n_kv_heads: 16,
            head_dim: 192,
            kv: hw::Dtype::Bf16,
            pass: Pass::Forward,
        };
        let seconds = |part| BusyWith { busy: Busy { part, gpu: &gpu }, model: &model }.estimate(&op).time.get();
        let expected = 2.0 * 16.0 * (192.0 + 128.0) * f64::from(4096 * 4097 / 2) / gpu.peak_bf16.get();
        assert!((seconds(Part::Products) / expected - 1.0).abs() < 1e-9);
        assert_eq!(seconds(Part::Memory), Busy { part: Part::Memory, gpu: &gpu }.estimate(&op).time.get());
    }
}
