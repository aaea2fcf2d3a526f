//! Shortest pipeline schedule: every order of passes on every rank is a candidate, HiGHS picks one.
//!
//! The disjunctive model of job-shop scheduling (Manne 1960): a start per pass, a binary per pair of passes of a rank that says
//! which goes first, big-M from the time windows that the best known order leaves. Zero Bubble (arXiv:2401.10241, appendix)
//! states its schedules so. Units: as in `train::schedule`; the span counts from 0 to the end of the last pass.
//!
//! The solver is asked for something shorter than the best heuristic of the same placement; when there is none, that one is
//! optimal. When the solver stops early or the case is too large, the heuristic is returned with a combinatorial bound.

use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};
use train::schedule::{Order, PassKind, Pipeline, SCHEDULES, Slot, play};

use crate::milp::{self, Budget, Program, Unsolved};
use crate::proof::{Aim, Bound, Decision, Status};
use crate::train::policy::PlanError;

mod passes;
#[cfg(test)]
mod tests;

use passes::Passes;

/// Largest number of undecided pairs that is given to the solver.
const MOST_PAIRS: usize = 4_000;

/// Largest number of pairs, decided or not, that is looked at one by one.
const MOST_PAIRS_IN_ALL: usize = 50_000;

/// A span is called optimal when the bound is nearer than this part of it: twice the relative gap at which the solver stops.
const WITHIN: u64 = 500_000;

/// An order with its span.
#[derive(Clone, Debug, PartialEq)]
pub struct Spanned {
    /// The order.
    pub order: Order,
    /// End of the last pass, nanoseconds.
    pub span: u64,
}

/// An order that no order within the memory limit undercuts by more than the bound says, nanoseconds.
fn decided(order: Order, span: u64, bound: u64, status: Status) -> Decision<Spanned> {
    let seconds = |ns| hw::Span::from_ns(ns).to_seconds().get();
    let decision = Decision::new(Spanned { order, span }, Aim::Seconds, seconds(span));
    decision.bounded(Some(Bound::plain(seconds(bound))), status)
}

/// The shortest order of a pipeline's passes within its memory limit, with whole or split backward passes: `Optimal` (to 2 parts in a million),
/// `Feasible` when the solver stopped early, `Heuristic` when the order is a heuristic's that was not proved best.
///
/// # Errors
/// `Infeasible` when a rank cannot hold a single micro-batch within the limit.
pub fn optimal_schedule(
    pipeline: &Pipeline,
    splits_backward: bool,
    budget: Budget,
) -> Result<Decision<Spanned>, PlanError> {
    let found = shortest(pipeline, splits_backward, budget)?;
    let Some(quicker) = quicker_whole(pipeline).filter(|_| splits_backward) else { return Ok(found) };
    // The solver looks at orders of halves alone, so what it proves is no bound on orders with whole passes.
    let (passes, span) = (Passes::new(&quicker, splits_backward), found.plan.span);
    let bound = if passes.n_pairs() <= MOST_PAIRS_IN_ALL { passes.raised_bound(span) } else { passes.bound() };
    let status = if bound >= span { Status::Optimal } else { found.status.weaker(Status::Feasible) };
    Ok(decided(found.plan.order, span, bound, status))
}

/// The same pipeline with halves that add up to a whole backward pass, where some whole pass is shorter than its halves.
fn quicker_whole(pipeline: &Pipeline) -> Option<Pipeline> {
    let mut quicker = pipeline.clone();
    for stage in 0..pipeline.n_stages() {
        for j in 0..pipeline.n_micro_batches {
            let whole = pipeline.duration(PassKind::Backward, stage, j);
            let input = pipeline.input[stage][j].min(whole);
            quicker.input[stage][j] = input;
            quicker.weight[stage][j] = pipeline.weight[stage][j].min(whole - input);
        }
    }
    (quicker != *pipeline).then_some(quicker)
}

/// The shortest order of halves, or of whole backward passes; a heuristic's own order where that is shorter.
fn shortest(pipeline: &Pipeline, splits_backward: bool, budget: Budget) -> Result<Decision<Spanned>, PlanError> {
    let mut passes = Passes::new(pipeline, splits_backward);
    let (order, span) = best_heuristic(pipeline, splits_backward)?;
    let small = passes.n_pairs() <= MOST_PAIRS_IN_ALL;
    let bound = if small { passes.raised_bound(span) } else { passes.bound() };
    let heuristic = |order, bound, status| Ok(decided(order, span, bound, status));
    if bound >= span {
        return heuristic(order, span, Status::Optimal);
    }
    if !small {
        return heuristic(order, bound, Status::Heuristic);
    }
    // Spans are multiples of the unit, so a shorter one is shorter by at least that.
    let unit = passes.unit();
    let shorter = passes.tighten(span - unit).then(|| Model::new(pipeline, &passes, unit, bound, span - unit));
    let Some(model) = shorter.flatten() else {
        return heuristic(order, span, Status::Optimal);
    };
    if model.n_pairs > MOST_PAIRS {
        return heuristic(order, bound, Status::Heuristic);
    }
    match model.solve(&passes, budget) {
        Err(Unsolved::Infeasible) => heuristic(order, span, Status::Optimal),
        Err(Unsolved::Stopped(_)) => heuristic(order, bound, Status::Heuristic),
        Ok((candidate, solver_bound)) => match judge(pipeline, &candidate) {
            Some(shorter) if shorter < span => {
                let bound = solver_bound.unwrap_or(bound).clamp(bound, shorter);
                let status = if shorter - bound <= shorter / WITHIN { Status::Optimal } else { Status::Feasible };
                Ok(decided(candidate, shorter, bound, status))
            }
            _ => heuristic(order, bound, Status::Heuristic),
        },
    }
}

/// Span of an order that can be played within the limit.
fn judge(pipeline: &Pipeline, order: &Order) -> Option<u64> {
    let played = play(pipeline, order).ok()?;
    let peak = played.peak_activation.into_iter().max().unwrap_or(0);
    (peak <= pipeline.limit.unwrap_or(u64::MAX)).then_some(played.span)
}

/// The shortest order of the table's schedules of this placement, made to split or not and as they are, that fits the limit; else one
/// micro-batch after the other.
fn best_heuristic(pipeline: &Pipeline, splits_backward: bool) -> Result<(Order, u64), PlanError> {
    let table = SCHEDULES.iter().filter(|schedule| schedule.placement == pipeline.placement);
    let drawn: Vec<Order> = table.map(|schedule| (schedule.order)(pipeline)).collect();
    let remade = drawn.iter().map(|order| with_split(order.clone(), splits_backward));
    // A whole pass may be shorter than its halves.
    let orders = remade.chain(drawn.iter().filter(|_| splits_backward).cloned());
    let one_by_one = with_split(one_by_one(pipeline), splits_backward);
    let judged = orders.chain([one_by_one]).filter_map(|order| judge(pipeline, &order).map(|span| (order, span)));
    judged.min_by_key(|(_, span)| *span).ok_or_else(|| {
        let limit = pipeline.limit.unwrap_or(u64::MAX);
        PlanError::Infeasible(format!("a rank's activation of one micro-batch exceeds the limit of {limit}"))
    })
}

/// The same order with every backward pass split or none. Whole passes free memory earlier, halves side by side as early.
fn with_split(order: Order, splits_backward: bool) -> Order {
    let remade = |slot: Slot| -> Vec<Slot> {
        match (slot.kind, splits_backward) {
            (PassKind::Backward, true) => {
                vec![Slot { kind: PassKind::Input, ..slot }, Slot { kind: PassKind::Weight, ..slot }]
            }
            (PassKind::Input, false) => vec![Slot { kind: PassKind::Backward, ..slot }],
            (PassKind::Weight, false) => Vec::new(),
            _ => vec![slot],
        }
    };
    order.into_iter().map(|slots| slots.into_iter().flat_map(remade).collect()).collect()
}

/// Every micro-batch forward and backward before the next one starts: the least memory.
fn one_by_one(pipeline: &Pipeline) -> Order {
    let mut order: Order = vec![Vec::new(); pipeline.n_ranks];
    for j in 0..pipeline.n_micro_batches {
        let stages = 0..pipeline.n_stages();
        let forward = stages.clone().map(|stage| (PassKind::Forward, stage));
        for (kind, stage) in forward.chain(stages.rev().map(|stage| (PassKind::Backward, stage))) {
            let (rank, chunk) = pipeline.place(stage, j);
            order[rank].push(passes::slot(kind, chunk, j));
        }
    }
    order
}

/// Which of two passes of a rank goes first.
#[derive(Clone, Copy)]
enum First {
    One,
    Other,
    Free(Variable),
}

/// The mixed-integer program. Times are in units of the durations' greatest common divisor, which keeps big-M small.
struct Model {
    variables: ProblemVariables,
    constraints: Vec<Constraint>,
    span: Variable,
    start: Vec<Variable>,
    /// When the message of a pass has arrived, where messages of its rank may wait for each other.
    arrival: Vec<Option<Variable>>,
    /// Per rank, per pair of its passes (row before column, row < column).
    first: Vec<Vec<Vec<First>>>,
    unit: u64,
    n_pairs: usize,
}

impl Model {
    /// `None` when the windows alone show that no order spans `upper` or less.
    fn new(pipeline: &Pipeline, passes: &Passes, unit: u64, lower: u64, upper: u64) -> Option<Self> {
        let time = |ns: u64| hw::real(ns / unit);
        let mut variables = ProblemVariables::new();
        let span = variables.add(variable().min(time(lower)).max(time(upper)));
        let mut start = Vec::with_capacity(passes.all.len());
        for pass in &passes.all {
            let latest = upper.checked_sub(pass.tail + pass.duration).filter(|&latest| latest >= pass.head)?;
            start.push(variables.add(variable().min(time(pass.head)).max(time(latest))));
        }
        let arrival = vec![None; passes.all.len()];
        let mut model =
            Self { variables, constraints: Vec::new(), span, start, arrival, first: Vec::new(), unit, n_pairs: 0 };
        for (index, pass) in passes.all.iter().enumerate() {
            model.constraints.push(constraint!(model.start[index] + time(pass.duration + pass.tail) <= span));
            for &(next, lag) in &pass.next {
                model
                    .constraints
                    .push(constraint!(model.start[index] + time(pass.duration + lag) <= model.start[next]));
            }
        }
        for rank in 0..pipeline.n_ranks {
            if passes.queues_messages(rank) {
                model.add_arrivals(passes, rank, upper);
            }
            model.add_rank(passes, rank, upper)?;
            if let Some(limit) = pipeline.limit {
                model.limit_memory(passes, rank, limit);
            }
        }
        Some(model)
    }

    /// Passes of a rank exclude each other.
    fn add_rank(&mut self, passes: &Passes, rank: usize, upper: u64) -> Option<()> {
        let ids = &passes.of_rank[rank];
        let unit = self.unit;
        let time = |ns: u64| hw::real(ns / unit);
        let mut rows = Vec::with_capacity(ids.len());
        for (row, &a) in ids.iter().enumerate() {
            let mut firsts = Vec::with_capacity(ids.len() - row);
            for &b in &ids[row + 1..] {
                let first = match (passes.may_precede(a, b, upper), passes.may_precede(b, a, upper)) {
                    (false, false) => return None,
                    (true, false) => First::One,
                    (false, true) => First::Other,
                    (true, true) => {
                        self.n_pairs += 1;
                        First::Free(self.variables.add(variable().binary()))
                    }
                };
                // Slack by which `x` may end after `y` starts when the pair is the other way round.
                let slack = |x: usize, y: usize| {
                    let (x, y) = (&passes.all[x], &passes.all[y]);
                    time((upper - x.tail).saturating_sub(y.head))
                };
                let (sa, sb) = (self.start[a], self.start[b]);
                let (da, db) = (time(passes.all[a].duration), time(passes.all[b].duration));
                match first {
                    First::One => self.constraints.push(constraint!(sa + da <= sb)),
                    First::Other => self.constraints.push(constraint!(sb + db <= sa)),
                    First::Free(y) => {
                        self.constraints.push(constraint!(sa + da <= sb + slack(a, b) * (1.0 - y)));
                        self.constraints.push(constraint!(sb + db <= sa + slack(b, a) * y));
                    }
                }
                self.queue_messages(passes, [a, b], first, upper);
                firsts.push(first);
            }
            rows.push(firsts);
        }
        self.first.push(rows);
        Some(())
    }

    /// Arrivals of a rank's messages: behind the pass that sends, before the pass that waits.
    fn add_arrivals(&mut self, passes: &Passes, rank: usize, upper: u64) {
        for &id in passes.of_rank[rank].iter().filter(|&&id| passes.all[id].message > 0) {
            let latest = self.time(upper - passes.after_arrival(id));
            let arrival = self.variables.add(variable().min(self.time(passes.earliest_arrival(id))).max(latest));
            let sent = self.time(passes.all[id].duration + passes.all[id].message);
            self.constraints.push(constraint!(self.start[id] + sent <= arrival));
            let (next, _) = passes.all[id].next[0];
            self.constraints.push(constraint!(arrival <= self.start[next]));
            self.arrival[id] = Some(arrival);
        }
    }

    /// Of two messages of a rank that may wait for each other, the later pass's leaves when the other one's has arrived.
    fn queue_messages(&mut self, passes: &Passes, [a, b]: [usize; 2], first: First, upper: u64) {
        let (Some(at_a), Some(at_b)) = (self.arrival[a], self.arrival[b]) else { return };
        let [of_a, of_b] = [a, b].map(|id| self.time(passes.all[id].message));
        match first {
            First::One => self.constraints.push(constraint!(at_a + of_b <= at_b)),
            First::Other => self.constraints.push(constraint!(at_b + of_a <= at_a)),
            First::Free(y) => {
                let [behind_a, behind_b] = [(a, b), (b, a)].map(|(x, y)| self.time(passes.overlap(x, y, upper)));
                self.constraints.push(constraint!(at_a + of_b <= at_b + behind_a * (1.0 - y)));
                self.constraints.push(constraint!(at_b + of_a <= at_a + behind_b * y));
            }
        }
    }

    /// A time in units.
    fn time(&self, ns: u64) -> f64 {
        hw::real(ns / self.unit)
    }

    /// 1 if the pass at `one` of a rank's list goes before that at `other`.
    fn before(&self, rank: usize, one: usize, other: usize) -> Expression {
        let (low, high) = (one.min(other), one.max(other));
        let low_first = match self.first[rank][low][high - low - 1] {
            First::One => Expression::from(1.0),
            First::Other => Expression::from(0.0),
            First::Free(y) => y.into(),
        };
        if one < other { low_first } else { 1.0 - low_first }
    }

    /// When a forward starts, what was taken before and is not given back leaves room for it.
    fn limit_memory(&mut self, passes: &Passes, rank: usize, limit: u64) {
        let ids = &passes.of_rank[rank];
        let taken: i64 = ids.iter().map(|&id| &passes.all[id]).filter(|p| p.takes()).map(|p| p.memory).sum();
        if taken.unsigned_abs() <= limit {
            return;
        }
        for (position, _) in ids.iter().enumerate().filter(|(_, id)| passes.all[**id].takes()) {
            let mut held = Expression::from(passes.all[ids[position]].memory as f64);
            for (other, &id) in ids.iter().enumerate().filter(|(other, _)| *other != position) {
                let change = passes.all[id].memory;
                if change != 0 {
                    held += self.before(rank, other, position) * (change as f64);
                }
            }
            self.constraints.push(constraint!(held <= hw::real(limit)));
        }
    }

    /// An order and, if the search was finished, a lower bound on every span.
    fn solve(self, passes: &Passes, budget: Budget) -> Result<(Order, Option<u64>), Unsolved> {
        let pairs = self.first.iter().flatten().flatten().filter_map(|first| match first {
            First::Free(y) => Some(*y),
            First::One | First::Other => None,
        });
        let wanted: Vec<Variable> = pairs.collect();
        let solved = {
            let program = Program {
                variables: self.variables,
                objective: self.span.into(),
                constraints: self.constraints,
                start: Vec::new(),
            };
            milp::minimise(program, &wanted, budget)?
        };
        let mut values = solved.values.iter();
        let mut order = Order::new();
        for (rows, ids) in self.first.iter().zip(&passes.of_rank) {
            let mut n_before = vec![0_usize; ids.len()];
            for (row, firsts) in rows.iter().enumerate() {
                for (offset, first) in firsts.iter().enumerate() {
                    let low_first = match first {
                        First::One => true,
                        First::Other => false,
                        First::Free(_) => *values.next().expect("one value per free pair") > 0.5,
                    };
                    n_before[if low_first { row + 1 + offset } else { row }] += 1;
                }
            }
            let mut sorted: Vec<usize> = (0..ids.len()).collect();
            sorted.sort_by_key(|&position| n_before[position]);
            order.push(sorted.into_iter().map(|position| passes.all[ids[position]].slot).collect());
        }
        // Spans are whole units; the solver's bound may be a rounding error above one.
        let whole = |bound: f64| (bound - 1e-3).ceil().max(0.0) as u64 * self.unit;
        Ok((order, solved.bound.map(whole)))
    }
}
