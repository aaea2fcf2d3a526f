//! Pipelines over GPUs of several types: which machines there are, which stage of which replica lies where, and what a step of that takes.
//!
//! Machines of one type are a group, and a group lies in a zone. Within a zone stages exchange over the machines' own ports; between zones they need a
//! link, which may have a price. A stage has as many replicas as every other one and the same layers in each, on cards of their own (Sailor, SOSP 2025).
//! What a stage takes is priced by the cost model of its card, or measured and given. Units: seconds, bytes, dollars.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::cost::Estimate;
use engine::cost::collective::Network;
use engine::play::Case;
use engine::task::Op;
use hw::{Cluster, Seconds, Span};
use thiserror::Error;

use crate::layout::{ContextExchange, Layout, Zero};
use crate::lower::training::pipelines;
use crate::memory;
use crate::metrics::Played;
use crate::plan::{MicroBatch, Place, Placement, Plan, Step};
use crate::problem::Problem;
use crate::stage::stages;
use crate::timed::{Messages, Replica, StageTimes, TimedStep, UNEXPLAINED, ring_steps};

/// Megabytes as bytes.
pub fn megabytes(megabytes: f64) -> f64 {
    megabytes * 1e6
}

/// Milliseconds as seconds.
pub fn milliseconds(milliseconds: f64) -> f64 {
    milliseconds / 1e3
}

/// Machines of one type in one zone.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name in the scenario.
    pub name: String,
    /// The machines, with their card and their network.
    pub cluster: Cluster,
    /// Whether the card is known. Else only the number of GPUs counts, and stages on them were measured.
    pub has_card: bool,
    /// Where they are.
    pub zone: String,
    /// Price of a GPU.
    pub usd_per_gpu_hour: f64,
    /// Time per layer and pass in which a device waits for its host.
    pub host_per_layer: Seconds,
}

/// What connects two zones, or the machines of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its ends.
    pub zones: [String; 2],
    /// Bytes per second of one connection between two stages, by the bytes of a message, rising; straight lines over the logarithm of the size between them.
    pub bytes_per_s: Vec<(f64, f64)>,
    /// Start-up of a message.
    pub latency_s: f64,
    /// Price of a gigabyte.
    pub usd_per_gb: f64,
}

/// Measured times of a stage on the cards of a replica, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Forward of a micro-batch.
    pub forward_s: f64,
    /// Backward of a micro-batch.
    pub backward_s: f64,
    /// Step of the optimizer.
    pub update_s: f64,
}

/// Where a replica of a stage lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    /// Position in the groups.
    pub group: usize,
    /// Its tensor group.
    pub n_gpus: u32,
    /// Where they were measured.
    pub times: Option<Times>,
}

/// What a stage exchanges, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Activations of a micro-batch to the next stage.
    pub message: f64,
    /// Gradients over its replicas.
    pub gradients: f64,
}

/// A stage of all pipelines.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedStage {
    /// Layers of the model.
    pub layers: u32,
    /// Its replicas.
    pub slots: Vec<Slot>,
    /// What it exchanges, where no model says so.
    pub sizes: Option<Sizes>,
}

/// A plan: stages with their replicas, and micro-batches of every replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipelines {
    /// Along the path of a micro-batch.
    pub stages: Vec<MixedStage>,
    /// By replica.
    pub micro_batches: Vec<u32>,
}

/// What is trained on which machines.
#[derive(Clone, Debug)]
pub struct MixedJob {
    /// Machines.
    pub groups: Vec<Group>,
    /// Links of zones.
    pub links: Vec<Link>,
    /// Model and execution; its cluster and layout are those of every stage in turn. `None` where all stages were measured.
    pub problem: Option<Problem>,
    /// Sequences of a micro-batch.
    pub micro_batch: u32,
    /// Micro-batches of a step, over all replicas.
    pub n_micro_batches: u32,
    /// Tokens of a sequence.
    pub tokens: u64,
    /// How stages exchange messages.
    pub messages: Messages,
}

/// Why a plan cannot run.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Unlinked {
    /// Two zones that a plan joins, with nothing between them; or one, of cards whose ports are not known.
    #[error("stages of zones `{0}` and `{1}` exchange data, and no link joins them")]
    Zones(String, String),
}

/// A step of a plan.
#[derive(Debug)]
pub struct MixedStep {
    /// As it was played.
    pub played: Played,
    /// What sets the pace.
    pub why: String,
    /// Low and high end of its time, seconds.
    pub interval_s: [f64; 2],
    /// Figures.
    pub metrics: BTreeMap<String, f64>,
    /// The stage with the least memory to spare: stage, replica, bytes needed, bytes there. `None` where stages were measured.
    pub fullest: Option<Fullest>,
}

/// A stage with its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fullest {
    /// Stage.
    pub stage: usize,
    /// Replica.
    pub replica: usize,
    /// What it needs.
    pub bytes: f64,
    /// What its card has.
    pub device_bytes: f64,
}

/// Costs of one card at one end of their interval.
struct AtCase<'c>(&'c dyn CostModel, Case);

impl CostModel for AtCase<'_> {
    fn elementary(&self, op: &Op) -> Estimate {
        let estimate = self.0.elementary(op);
        Estimate { time: self.1.of(&estimate), ..estimate }
    }
}

/// Bytes per second and start-up of what joins two slots, and the price of a gigabyte.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Wire {
    bytes_per_s: f64,
    latency_s: f64,
    usd_per_gb: f64,
}

impl Link {
    /// Whether it is between two zones, in either order.
    pub fn joins(&self, ends: [&str; 2]) -> bool {
        let zones = [self.zones[0].as_str(), self.zones[1].as_str()];
        zones == ends || [zones[1], zones[0]] == ends
    }

    fn at(&self, bytes: f64) -> Wire {
        let points = &self.bytes_per_s;
        let above = points.iter().position(|(size, _)| *size >= bytes).unwrap_or(points.len() - 1);
        let ((from, slow), (to, fast)) = (points[above.saturating_sub(1)], points[above]);
        let way = if to > from { (libm::log(bytes / from) / libm::log(to / from)).clamp(0.0, 1.0) } else { 1.0 };
        let bytes_per_s = slow + (fast - slow) * way;
        Wire { bytes_per_s, latency_s: self.latency_s, usd_per_gb: self.usd_per_gb }
    }
}

impl Pipelines {
    /// Slots that exchange something, by stage: neighbours of a pipeline, and of a ring over the replicas of a stage.
    pub fn exchanges(&self) -> Vec<(usize, [Slot; 2])> {
        let mut found = Vec::new();
        for (index, stage) in self.stages.iter().enumerate() {
            for (replica, &slot) in stage.slots.iter().enumerate() {
                found.extend(self.stages.get(index + 1).map(|next| (index, [slot, next.slots[replica]])));
                let next = stage.slots[(replica + 1) % stage.slots.len()];
                found.extend((stage.slots.len() > 1).then_some((index, [slot, next])));
            }
        }
        found
    }

    /// Layers of every stage.
    pub fn layers(&self) -> Vec<u32> {
        self.stages.iter().map(|stage| stage.layers).collect()
    }

    /// GPUs that it takes of a group.
    pub fn n_gpus_of(&self, group: usize) -> u32 {
        let slots = self.stages.iter().flat_map(|stage| &stage.slots);
        slots.filter(|slot| slot.group == group).map(|slot| slot.n_gpus).sum()
    }

    /// GPUs that it takes.
    pub fn n_gpus(&self) -> u32 {
        self.stages.iter().flat_map(|stage| &stage.slots).map(|slot| slot.n_gpus).sum()
    }

    /// The plan in words, as a stage a part: replicas, cards, layers.
    pub fn words(&self, groups: &[Group]) -> String {
        let stage = |stage: &MixedStage| {
            let slots = stage.slots.chunk_by(|a, b| (a.group, a.n_gpus) == (b.group, b.n_gpus));
            let slots = slots.map(|of| format!("{} x {} {}", of.len(), of[0].n_gpus, groups[of[0].group].name));
            let slots = slots.collect::<Vec<_>>().join(" + ");
            if stage.layers > 0 { format!("{} layers on {slots}", stage.layers) } else { slots }
        };
        let stages: Vec<String> = self.stages.iter().map(stage).collect();
        format!("{}; micro-batches {:?}", stages.join(", "), self.micro_batches)
    }
}

/// Ports that a slot sends through, and whether its group's part of an exchange lies in one node.
#[derive(Clone, Copy, Debug)]
struct Ports {
    n: u32,
    is_inside: bool,
}

impl MixedJob {
    /// What joins two slots, for a message of so many bytes.
    fn wire(&self, from: Slot, to: Slot, bytes: f64) -> Result<Wire, Unlinked> {
        let ports = |slot: Slot| Ports { n: slot.n_gpus, is_inside: self.groups[slot.group].cluster.n_domains() == 1 };
        self.joined([from, to], bytes, &ports)
    }

    /// What joins two slots of a ring over the replicas of a stage. Replicas on a card lie side by side, and rings go through every port of a node (NCCL), so
    /// what leaves a node has the ports of all replicas there.
    fn in_ring(&self, slots: &[Slot], ends: [Slot; 2], bytes: f64) -> Result<Wire, Unlinked> {
        let ports = |slot: Slot| {
            let used: u32 = slots.iter().filter(|other| other.group == slot.group).map(|other| other.n_gpus).sum();
            let per_node = self.groups[slot.group].cluster.domain();
            let is_inside = used <= per_node;
            Ports {
                n: if is_inside && ends[0].group == ends[1].group { slot.n_gpus } else { used.min(per_node) },
                is_inside,
            }
        };
        self.joined(ends, bytes, &ports)
    }

    fn joined(&self, [from, to]: [Slot; 2], bytes: f64, ports: &dyn Fn(Slot) -> Ports) -> Result<Wire, Unlinked> {
        let [a, b] = [from, to].map(|slot| &self.groups[slot.group]);
        let ends = [a.zone.as_str(), b.zone.as_str()];
        if let Some(link) = self.links.iter().find(|link| link.joins(ends)) {
            return Ok(link.at(bytes));
        }
        if a.zone != b.zone || !a.has_card || !b.has_card {
            return Err(Unlinked::Zones(a.zone.clone(), b.zone.clone()));
        }
        // Ports of both sides carry a part each; the side with fewer or slower ones sets the pace.
        let side = |slot: Slot| {
            let cluster = &self.groups[slot.group].cluster;
            let network = Network::assumed(cluster);
            let Ports { n, is_inside } = ports(slot);
            let is_inside = is_inside && from.group == to.group;
            let port = if is_inside {
                cluster.inside_bandwidth(cluster.domain()).get() * network.inside_share
            } else {
                cluster.nic_bandwidth.get() * network.across_share
            };
            let latency_s = if is_inside { network.inside_alpha_s } else { network.across_alpha_s };
            (port * f64::from(n), latency_s)
        };
        let ((one, early), (other, late)) = (side(from), side(to));
        Ok(Wire { bytes_per_s: one.min(other), latency_s: early.max(late), usd_per_gb: 0.0 })
    }

    /// Pairs of zones that a plan joins without a link, each once, with the first stage that does.
    pub fn unlinked(&self, plan: &Pipelines) -> Vec<(usize, Unlinked)> {
        let mut found: Vec<(usize, Unlinked)> = Vec::new();
        for (stage, [from, to]) in plan.exchanges() {
            if let Err(unlinked) = self.wire(from, to, 1.0)
                && !found.iter().any(|(_, known)| *known == unlinked)
            {
                found.push((stage, unlinked));
            }
        }
        found
    }

    /// Links that nothing of a plan crosses.
    pub fn unused(&self, plan: &Pipelines) -> Vec<&Link> {
        let zones = |slots: &[Slot; 2]| slots.map(|slot| self.groups[slot.group].zone.as_str());
        let is_crossed = |link: &Link| plan.exchanges().iter().any(|(_, slots)| link.joins(zones(slots)));
        self.links.iter().filter(|link| !is_crossed(link)).collect()
    }

    /// The problem as a replica of the stages sees it on a group's cards.
    fn seen_by(&self, plan: &Pipelines, slot: Slot) -> Option<Problem> {
        let mut own = self.problem.clone()?;
        let group = &self.groups[slot.group];
        let n = |n: usize| u32::try_from(n).expect("few stages");
        own.cluster = group.cluster.clone();
        own.layout = Layout {
            tp: slot.n_gpus,
            pp: n(plan.stages.len()),
            sequence_parallel: slot.n_gpus > 1,
            ..Layout::data_and_context(1, 1, own.layout.zero, ContextExchange::Gather)
        };
        own.execution.layers = plan.layers();
        own.execution.host_overhead_per_layer = group.host_per_layer;
        own.workload.lengths = vec![self.tokens; self.micro_batch as usize];
        own.workload.batch_size = self.micro_batch as usize;
        Some(own)
    }

    /// Times of a stage on a slot that has none of its own.
    fn times(&self, plan: &Pipelines, stage: usize, slot: Slot, cost: &dyn CostModel) -> Times {
        let own = self.seen_by(plan, slot).expect("a stage has a model or times");
        let sequence = |index| Placement { sequence: index, from: 0, tokens: self.tokens, place: Place::Local(0) };
        let sequences = (0..self.micro_batch).map(sequence).collect();
        let one = vec![vec![MicroBatch { sequences, ..MicroBatch::default() }]];
        let (of_stages, _) = pipelines(&own, &Plan::new("mixed", &own, vec![Step::of_groups(one)]), 0, cost);
        let [forward, input, weight] = [&of_stages[0].forward, &of_stages[0].input, &of_stages[0].weight]
            .map(|durations| Span::from_ns(durations[stage][0]).to_seconds().get());
        let held = engine::memory::stage_parameters(&own.shard(), &stages(&own)[stage]);
        let held = held.0 + held.1;
        let stepped = if own.layout.zero >= Zero::OptimizerStates {
            held / hw::real(plan.micro_batches.len() as u64)
        } else {
            held
        };
        let update = Op::Sequence(own.execution.optimizer.step(
            own.execution.framework,
            [held, stepped, 0.0],
            own.cluster.gpus_per_switch,
        ));
        Times { forward_s: forward, backward_s: input + weight, update_s: cost.estimate(&update).time.get() }
    }

    /// What a stage exchanges.
    fn sizes(&self, plan: &Pipelines, stage: usize) -> Sizes {
        if let Some(sizes) = plan.stages[stage].sizes {
            return sizes;
        }
        let own = self
            .seen_by(plan, Slot { n_gpus: 1, ..plan.stages[stage].slots[0] })
            .expect("a stage has a model or sizes");
        let (shared, experts) = engine::memory::stage_parameters(&own.shard(), &stages(&own)[stage]);
        let values = hw::real(u64::from(self.micro_batch) * self.tokens * own.model.hidden);
        Sizes {
            message: values * hw::real(own.dtype.bytes()),
            gradients: (shared + experts) * hw::real(own.execution.gradient_dtype.bytes()),
        }
    }

    /// A plan as a step of timed stages, with the dollars of what crosses links.
    ///
    /// # Errors
    /// When it joins zones without a link.
    pub fn step(
        &self,
        plan: &Pipelines,
        costs: &[Box<dyn CostModel>],
        case: Case,
    ) -> Result<(TimedStep, f64), Unlinked> {
        let span = |seconds: f64| Span::from_seconds(Seconds::new(seconds));
        let sizes: Vec<Sizes> = (0..plan.stages.len()).map(|stage| self.sizes(plan, stage)).collect();
        let (mut replicas, mut usd) = (Vec::with_capacity(plan.micro_batches.len()), 0.0);
        // Replicas on as many GPUs of one group take as long.
        let mut known: BTreeMap<(usize, usize, u32), Times> = BTreeMap::new();
        for (index, &n_micro_batches) in plan.micro_batches.iter().enumerate() {
            let mut of_replica = Vec::with_capacity(plan.stages.len());
            for (stage, of_stage) in plan.stages.iter().enumerate() {
                let slot = of_stage.slots[index];
                let cost = AtCase(costs[slot.group].as_ref(), case);
                let computed = || self.times(plan, stage, slot, &cost);
                let of_group = (stage, slot.group, slot.n_gpus);
                let times = slot.times.unwrap_or_else(|| *known.entry(of_group).or_insert_with(computed));
                let mut message = Span::ZERO;
                if let Some(next) = plan.stages.get(stage + 1) {
                    let bytes = sizes[stage].message;
                    let wire = self.wire(slot, next.slots[index], bytes)?;
                    message = span(wire.latency_s + bytes / wire.bytes_per_s);
                    usd += 2.0 * f64::from(n_micro_batches) * wire.usd_per_gb * bytes / 1e9;
                }
                let [forward, backward, update] = [times.forward_s, times.backward_s, times.update_s].map(span);
                of_replica.push(StageTimes { n_gpus: slot.n_gpus, forward, backward, update, message });
            }
            replicas.push(Replica { stages: of_replica, n_micro_batches });
        }
        let mut reductions = Vec::with_capacity(plan.stages.len());
        for (of_stage, sizes) in plan.stages.iter().zip(&sizes) {
            let (seconds, dollars) = self.reduction(&of_stage.slots, sizes.gradients)?;
            reductions.push(span(seconds));
            usd += dollars;
        }
        Ok((TimedStep { replicas, reductions, messages: self.messages }, usd))
    }

    /// Seconds and dollars of a ring over the replicas of a stage.
    fn reduction(&self, slots: &[Slot], bytes: f64) -> Result<(f64, f64), Unlinked> {
        if slots.len() < 2 {
            return Ok((0.0, 0.0));
        }
        let (n_steps, part) = (ring_steps(slots.len()), bytes / hw::real(slots.len() as u64));
        let (mut slowest_s, mut usd) = (0.0_f64, 0.0);
        for (index, &slot) in slots.iter().enumerate() {
            let wire = self.in_ring(slots, [slot, slots[(index + 1) % slots.len()]], part)?;
            slowest_s = slowest_s.max(wire.latency_s + part / wire.bytes_per_s);
            usd += n_steps * wire.usd_per_gb * part / 1e9;
        }
        Ok((n_steps * slowest_s, usd))
    }

    /// The slot with the least memory to spare.
    pub fn fullest(&self, plan: &Pipelines) -> Option<Fullest> {
        self.problem.as_ref()?;
        let mut fullest: Option<Fullest> = None;
        let mut known: BTreeMap<(usize, u32), Vec<f64>> = BTreeMap::new();
        let tokens = hw::real(u64::from(self.micro_batch) * self.tokens);
        for (stage, of_stage) in plan.stages.iter().enumerate() {
            for (replica, &slot) in of_stage.slots.iter().enumerate() {
                let device_bytes = self.groups[slot.group].cluster.gpu.memory.as_f64();
                let needs = known.entry((slot.group, slot.n_gpus)).or_insert_with(|| {
                    let mut own = self.seen_by(plan, slot).expect("there is a problem");
                    own.layout.dp = u32::try_from(of_stage.slots.len()).expect("few replicas");
                    let of_rank = |need: &memory::Need| {
                        let taken = own.reserved_memory + need.states.total();
                        taken.as_f64() + tokens * hw::real(need.bytes_per_token)
                    };
                    memory::needs(&own).iter().map(of_rank).collect()
                });
                let found = Fullest { stage, replica, bytes: needs[stage], device_bytes };
                let spare = |of: Fullest| of.device_bytes - of.bytes;
                if fullest.is_none_or(|known| spare(found) < spare(known)) {
                    fullest = Some(found);
                }
            }
        }
        fullest
    }

    /// Plays a plan, with costs of every group.
    ///
    /// # Errors
    /// When it joins zones without a link.
    pub fn played(&self, plan: &Pipelines, costs: &[Box<dyn CostModel>]) -> Result<MixedStep, Unlinked> {
        let (step, link_usd) = self.step(plan, costs, Case::Expected)?;
        let played = step.played();
        let step_s = played.timeline.span().to_seconds().get();
        let end = |case| self.step(plan, costs, case).map(|(step, _)| step.span().to_seconds().get());
        let [low, high] = [end(Case::Low)?, end(Case::High)?];
        let fullest = self.fullest(plan);
        Ok(MixedStep {
            why: step.why(),
            interval_s: [low.min(step_s * UNEXPLAINED[0]), high.max(step_s * UNEXPLAINED[1])],
            metrics: self.metrics(plan, &step, step_s, link_usd, fullest),
            fullest,
            played,
        })
    }

    fn metrics(
        &self,
        plan: &Pipelines,
        step: &TimedStep,
        step_s: f64,
        link_usd: f64,
        fullest: Option<Fullest>,
    ) -> BTreeMap<String, f64> {
        let n_gpus = f64::from(plan.n_gpus());
        let tokens = hw::real(u64::from(self.n_micro_batches) * u64::from(self.micro_batch) * self.tokens);
        let gpu_usd_per_hour = |slot: &Slot| f64::from(slot.n_gpus) * self.groups[slot.group].usd_per_gpu_hour;
        let usd_per_hour: f64 = plan.stages.iter().flat_map(|stage| &stage.slots).map(gpu_usd_per_hour).sum();
        let reduction = step.reductions.iter().max().map_or(0.0, |span| span.to_seconds().get());
        let mut all = vec![
            ("iteration_time_s", step_s),
            ("tokens_per_s", tokens / step_s),
            ("tokens_per_s_per_gpu", tokens / step_s / n_gpus),
            ("compute_busy_ratio", step.computed_gpu_s() / (step_s * n_gpus)),
            ("gradient_reduction_ratio", reduction / step_s),
            ("n_gpus", n_gpus),
        ];
        if usd_per_hour + link_usd > 0.0 {
            let usd = usd_per_hour / 3600.0 * step_s + link_usd;
            all.push(("cost_usd_per_step", usd));
            all.push(("cost_usd_per_mtok", usd / tokens * 1e6));
            all.push(("link_usd_per_step", link_usd));
        }
        if let Some(fullest) = fullest {
            all.push(("peak_memory_bytes", fullest.bytes));
            all.push(("free_memory_bytes_min", fullest.device_bytes - fullest.bytes));
        }
        all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_a_start_up_for_each_of_its_steps() {
        // Four replicas in four zones, links of 50 ms and 1 GB/s, faster for longer messages: 6 steps of 1 GB each, a quarter of all gradients.
        let group = |zone: usize| Group {
            name: format!("g{zone}"),
            cluster: hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8),
            has_card: false,
            zone: format!("z{zone}"),
            usd_per_gpu_hour: 0.0,
            host_per_layer: Seconds::ZERO,
        };
        let link = |zone: usize| Link {
            zones: [zone, (zone + 1) % 4].map(|zone| format!("z{zone}")),
            bytes_per_s: vec![(1e9, 1e9), (4e9, 2e9)],
            latency_s: 0.05,
            usd_per_gb: 0.02,
        };
        let job = MixedJob {
            groups: (0..4).map(group).collect(),
            links: (0..4).map(link).collect(),
            problem: None,
            micro_batch: 1,
            n_micro_batches: 4,
            tokens: 1,
            messages: Messages::Behind,
        };
        let slots: Vec<Slot> = (0..4).map(|group| Slot { group, n_gpus: 1, times: None }).collect();
        let (seconds, usd) = job.reduction(&slots, 4e9).expect("linked");
        assert!((seconds - 6.0 * (0.05 + 1.0)).abs() < 1e-9, "{seconds}");
        // Six gigabytes over each of four links.
        assert!((usd - 4.0 * 6.0 * 0.02).abs() < 1e-9, "{usd}");
    }
}
