//! How a job reacts to stragglers: Malleus and what it is compared with, all under one cost model.
//!
//! | reaction | arrangement | a change costs |
//! |---|---|---|
//! | `replan` | Malleus: the best division of re-formed tensor groups | migration of slices |
//! | `none` | the layout's, whatever straggles (Megatron-LM, DeepSpeed) | nothing |
//! | `restart` | the best uniform one on nodes without a straggler | `restart_s` |
//! | `templates` | nodes without a straggler, in as many pipelines of unequal depth (after Oobleck, arXiv:2309.08125) | migration of slices |

use std::cell::RefCell;
use std::collections::BTreeMap;

use train::Problem;
use train::straggler::Rates;

use super::arrangement::{Arrangement, Pipeline, dealt, laid};
use super::costs::Costs;
use super::division::{Class, Divided, Divider, Found, lay};
use super::grouping::{self, Group, Node};

hw::words! {
    /// How a job reacts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Reaction: word {
        Replan = "replan",
        Nothing = "none",
        Restart = "restart",
        Templates = "templates",
    }
}

/// Limits of the planner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    /// Rates below it count as healthy.
    pub(super) threshold: f64,
    /// Splits of a node that are tried.
    pub(super) splits: usize,
    /// Nodes of the search over divisions, for every set of groups.
    pub(super) budget: usize,
}

/// Sets of groups of several nodes that are tried at most.
const SETS_MAX: usize = 128;
/// Of those, sets whose divisions are searched at most.
const SEARCHED_MAX: usize = 24;

/// Rates for which plans are made besides, where stragglers are faster: those of the authors' tests. Each takes as long to plan as the own one.
pub(super) const SLOWER: [f64; 3] = [2.57, 5.42, 12.53];

/// What the planner is asked: one problem for all situations.
pub(super) struct Planner<'a> {
    pub(super) problem: &'a Problem,
    pub(super) costs: &'a Costs,
    pub(super) limits: Limits,
    /// Micro-batches of a step.
    pub(super) n_micro_batches: u64,
    /// Divisions that were searched before.
    pub(super) known: &'a Divisions,
}

/// What divisions of a job follow from, besides its costs: classes of groups by degree, rate and count, and the ranks that hold the optimizer's states.
type Asked = (Vec<(u32, u64, u32)>, u32);

/// Divisions that were searched, of problems that differ in their stragglers alone: whichever node is slow, its groups and those of others are of the same
/// classes.
#[derive(Debug, Default)]
pub struct Divisions(RefCell<BTreeMap<Asked, Option<Found>>>);

/// An arrangement with what is known about it.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) arrangement: Arrangement,
    /// Objective of the best other division that was looked at, seconds.
    pub(super) runner_up_s: Option<f64>,
    /// Whether every division of the groups that were tried was looked at or cut off.
    pub(super) is_exhaustive: bool,
    /// Stages whose memory is full.
    pub(super) n_full: usize,
}

impl Answer {
    const fn known(arrangement: Arrangement) -> Self {
        Self { arrangement, runner_up_s: None, is_exhaustive: true, n_full: 0 }
    }
}

impl Planner<'_> {
    /// The layout's own arrangement.
    pub(super) fn uniform(&self) -> Arrangement {
        Arrangement::uniform(self.problem, self.n_micro_batches)
    }

    /// No plan of at most so many pipelines whose healthy nodes keep their groups is below this, seconds. A pipeline with speed S (layers per
    /// second, summed over its groups) has a slowest stage of o >= L / S and takes (m - 1) · o and all its stages once, so it does
    /// m <= 1 + (T - once) · S / L; summed over pipelines, T >= (M - pipelines) · L / S + once. Without filling, T >= M · L / S.
    /// Behind that parameters are gathered.
    pub(super) fn bound_s(&self, rates: &Rates, n_pipelines: usize) -> f64 {
        let nodes = self.nodes(rates, 0);
        let speed: f64 = nodes.iter().map(|node| node.speed).sum();
        let begun = if self.costs.counts_fill() { n_pipelines as u64 } else { 0 };
        let rest = self.n_micro_batches.saturating_sub(begun) * self.costs.n_layers;
        hw::real(rest) / speed + self.costs.least_fill_s() + self.costs.least_gather_s()
    }

    fn nodes(&self, rates: &Rates, kept: usize) -> Vec<Node> {
        grouping::nodes(self.problem, rates, self.costs, self.limits.threshold, kept)
    }

    /// What a reaction does under these rates, from an old arrangement; `None` where nothing fits.
    pub(super) fn react(&self, reaction: Reaction, rates: &Rates, old: &Arrangement) -> Option<Answer> {
        let is_slow = |rate: f64| rate >= self.limits.threshold;
        let straggles = rates.stragglers().iter().any(|&(_, rate)| is_slow(rate));
        match reaction {
            _ if !straggles => Some(Answer::known(self.uniform())),
            Reaction::Nothing => Some(Answer::known(self.uniform())),
            Reaction::Replan => self.replan(rates, old),
            Reaction::Restart => self.restart(&self.whole_groups(rates)).map(Answer::known),
            Reaction::Templates => {
                let groups = self.whole_groups(rates);
                let (found, classes) = self.divide(&groups, &self.costs_on(&groups))?;
                Some(self.planned(&found, &classes, &groups, old))
            }
        }
    }

    /// Malleus: the best division for these rates. Divisions are searched and not proven, so those for slower stragglers and the arrangement that runs are looked
    /// at too: what is planned for a slower device is no slower on a faster one. So no rate is better than one of `SLOWER` above it.
    fn replan(&self, rates: &Rates, old: &Arrangement) -> Option<Answer> {
        let own = self.divided(rates, old)?;
        let (mut best_s, mut best) = (own.arrangement.predicted_s(self.costs, rates), own.clone());
        let own_s = best_s;
        let mut slower_rates = rates.clone();
        let mut others = vec![Answer::known(old.clone())];
        for least in SLOWER {
            let slower = rates.slowed(self.limits.threshold, least);
            if slower != slower_rates {
                others.extend(self.divided(&slower, old));
                slower_rates = slower;
            }
        }
        for other in others {
            let seconds = other.arrangement.predicted_s(self.costs, rates);
            if seconds < best_s {
                (best_s, best) = (seconds, other);
            }
        }
        if best_s == own_s {
            return Some(own);
        }
        let runner_up_s = own.runner_up_s.map_or(own_s, |known| known.min(own_s));
        Some(Answer { runner_up_s: Some(runner_up_s), is_exhaustive: false, ..best })
    }

    /// The best division over the sets of groups, or the layout's where that is no worse.
    fn divided(&self, rates: &Rates, old: &Arrangement) -> Option<Answer> {
        let nodes = self.nodes(rates, self.limits.splits);
        // Stragglers may all be suspended; the optimizer's states are then cut over the others.
        let n_slow = rates.stragglers().iter().filter(|(_, rate)| *rate >= self.limits.threshold).count();
        let n_ranks = self.problem.layout.n_ranks();
        let costs = self.costs.on(n_ranks - u32::try_from(n_slow).expect("ranks fit u32").min(n_ranks - 1));
        let mut best: Option<(Divided, Answer)> = None;
        let (mut others, mut is_exhaustive) = (Vec::new(), true);
        let of_set = |set: Vec<usize>| -> Vec<Group> {
            nodes.iter().zip(set).flat_map(|(node, at)| node.groupings[at].iter().cloned()).collect()
        };
        // Sets whose first division is best are searched.
        let mut all: Vec<Vec<Group>> = sets(&nodes).into_iter().map(of_set).collect();
        if all.len() > SEARCHED_MAX {
            all.sort_by_cached_key(|groups| self.first_s(groups, &costs).to_bits());
            all.truncate(SEARCHED_MAX);
            is_exhaustive = false;
        }
        for groups in all {
            let Some((found, classes)) = self.divide(&groups, &costs) else { continue };
            is_exhaustive &= found.is_exhaustive;
            others.extend(found.runner_up_s);
            let value = |of: &Divided| (of.objective_s, of.filled_s);
            let is_first = best.as_ref().is_none_or(|(known, _)| value(&found.best) < value(known));
            if is_first {
                others.extend(best.take().map(|(known, _)| known.objective_s));
                let planned = self.planned(&found, &classes, &groups, old);
                best = Some((found.best, planned));
            } else {
                others.push(found.best.objective_s);
            }
        }
        let runner_up_s = others.into_iter().min_by(f64::total_cmp);
        let uniform = self.uniform();
        let own_s = uniform.predicted_s(self.costs, rates);
        match best {
            Some((divided, planned)) if divided.objective_s < own_s => {
                Some(Answer { runner_up_s, is_exhaustive, ..planned })
            }
            // The layout's arrangement is one that runs: it is the answer where no division is better.
            _ => Some(Answer { runner_up_s, is_exhaustive, ..Answer::known(uniform) }),
        }
    }

    /// Costs where these groups hold the optimizer's states.
    fn costs_on(&self, groups: &[Group]) -> Costs {
        self.costs.on(groups.iter().map(Group::degree).sum())
    }

    /// Objective of a first division, seconds; never negative, so its bits are in order.
    fn first_s(&self, groups: &[Group], costs: &Costs) -> f64 {
        let classes = classes(groups);
        let n_pipelines = self.problem.layout.dp as usize;
        Divider::new(&classes, costs, n_pipelines, self.n_micro_batches, 0).first_s()
    }

    fn divide(&self, groups: &[Group], costs: &Costs) -> Option<(Found, Vec<Class>)> {
        let classes = classes(groups);
        let of = |class: &Class| (class.degree, class.rate.to_bits(), class.count);
        let asked: Asked = (classes.iter().map(of).collect(), costs.n_ranks());
        let known = self.known.0.borrow().get(&asked).cloned();
        let found = known.unwrap_or_else(|| {
            let n_pipelines = self.problem.layout.dp as usize;
            let divider = Divider::new(&classes, costs, n_pipelines, self.n_micro_batches, self.limits.budget);
            let found = divider.search();
            self.known.0.borrow_mut().insert(asked, found.clone());
            found
        })?;
        Some((found, classes))
    }

    fn planned(&self, found: &Found, classes: &[Class], groups: &[Group], old: &Arrangement) -> Answer {
        Answer {
            arrangement: Arrangement::of(&found.best, classes, groups, old),
            runner_up_s: found.runner_up_s,
            is_exhaustive: found.is_exhaustive,
            n_full: found.best.pipelines.iter().map(|layers| layers.n_full).sum(),
        }
    }

    /// Full groups of the nodes that have no straggler.
    fn whole_groups(&self, rates: &Rates) -> Vec<Group> {
        let nodes = self.nodes(rates, 0);
        let own = nodes.into_iter().map(|mut node| node.groupings.pop().expect("the layout's own groups"));
        own.filter(|groups| groups.iter().all(|group| group.rate < self.limits.threshold)).flatten().collect()
    }

    /// The uniform arrangement that is soonest done on these groups; some may stay idle.
    fn restart(&self, groups: &[Group]) -> Option<Arrangement> {
        let class = [Class { degree: self.costs.tp, rate: 1.0, count: 0 }];
        let shapes = (1..=groups.len()).flat_map(|dp| (1..=groups.len() / dp).map(move |pp| (dp, pp)));
        let timed = shapes.filter_map(|(dp, pp)| {
            let costs = self.costs.on(u32::try_from(dp * pp).expect("groups fit u32") * self.costs.tp);
            let layers = lay(&class, &costs, vec![0; pp]).filter(|layers| layers.stages.len() == pp)?;
            let most = dealt(self.n_micro_batches, dp)[0];
            let seconds = layers.all_s + layers.slowest_s * hw::real(most.saturating_sub(1));
            Some((seconds, dp, layers))
        });
        let (_, dp, layers) = timed.min_by(|a, b| a.0.total_cmp(&b.0))?;
        let pp = layers.stages.len();
        let pipelines =
            groups.chunks(pp).take(dp).zip(dealt(self.n_micro_batches, dp)).map(|(groups, micro_batches)| {
                let held = groups.iter().map(|group| group.ranks.clone()).zip(layers.stages.iter().map(|(_, n)| *n));
                Pipeline { stages: laid(held), micro_batches }
            });
        let pipelines = pipelines.filter(|pipeline| pipeline.micro_batches > 0).collect();
        Some(Arrangement { pipelines, is_uniform: false })
    }
}

/// Groups by degree and rate.
fn classes(groups: &[Group]) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for group in groups {
        let is_of = |class: &Class| class.degree == group.degree() && class.rate.to_bits() == group.rate.to_bits();
        match classes.iter_mut().find(|class| is_of(class)) {
            Some(class) => class.count += 1,
            None => classes.push(Class { degree: group.degree(), rate: group.rate, count: 1 }),
        }
    }
    classes
}

/// Which grouping every node takes: all combinations up to the order of nodes that are alike, or one node's choices at a time where they are
/// too many.
fn sets(nodes: &[Node]) -> Vec<Vec<usize>> {
    let sizes: Vec<usize> = nodes.iter().map(|node| node.groupings.len()).collect();
    let split: Vec<usize> = (0..nodes.len()).filter(|&node| sizes[node] > 1).collect();
    let mut all = vec![vec![0; nodes.len()]];
    for (order, &node) in split.iter().enumerate() {
        let alike = split[..order].iter().rev().find(|&&before| is_alike(&nodes[before], &nodes[node]));
        let next = |begun: &Vec<usize>| {
            let least = alike.map_or(0, |&before| begun[before]);
            let with = |at| {
                let mut set = begun.clone();
                set[node] = at;
                set
            };
            (least..sizes[node]).map(with).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(next).collect();
        if all.len() > SETS_MAX {
            return single_choices(&sizes);
        }
    }
    all
}

/// Whether two nodes have the same choices.
fn is_alike(a: &Node, b: &Node) -> bool {
    let signature = |node: &Node| -> Vec<Vec<(u32, u64)>> {
        let of = |groups: &Vec<Group>| groups.iter().map(|group| (group.degree(), group.rate.to_bits())).collect();
        node.groupings.iter().map(of).collect()
    };
    signature(a) == signature(b)
}

/// The first choice of every node, the layout's own, and every choice of one node beside the first of the others.
fn single_choices(sizes: &[usize]) -> Vec<Vec<usize>> {
    let first = vec![0; sizes.len()];
    let own = sizes.iter().map(|size| size - 1).collect();
    let with = |(node, at): (usize, usize)| {
        let mut set = first.clone();
        set[node] = at;
        set
    };
    let single = sizes.iter().enumerate().flat_map(|(node, &size)| (1..size).map(move |at| (node, at)));
    let mut all = vec![first.clone(), own];
    all.extend(single.take(SETS_MAX).map(with));
    all
}
