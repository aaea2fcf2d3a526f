//! The exact optimum of Skrull's objective by MILP, for small batches, so that the heuristic's gap is known.
//!
//! Variables per step: L[k,i,j,r] = 1 when sequence k is whole on rank r of micro-batch j of data-parallel rank i,
//! D[k,i,j] = 1 when it is cut over that micro-batch's ranks; Y[i,j] = 1 when anything is cut there; T[i,j] its time.
//! min Z s.t. Z ≥ Σ_j T[i,j]; T[i,j] ≥ Σ_k L·t_k + Σ_k D·t_k/N for each rank; T[i,j] ≥ t0·Y + a·Σ_k D·S_k + Σ_k D·t_k/N;
//! Σ L + Σ D = 1 for each k; Σ_k L·S_k + Σ_k D·⌈S_k/N⌉ ≤ C for each rank; D ≤ Y. Times in microseconds of one layer forward.
//! Micro-batches per data-parallel rank are at most those that the heuristic uses.

use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};
use train::plan::{MicroBatch, Place, Placement, Step};
use train::{Plan, Problem};

use super::all_fit;
use crate::milp::{self, Budget, Program, Unsolved};
use crate::proof::{Aim, Bound, Decision, Status};
use crate::train::dacp::{self, First, Terms};
use crate::train::policy::{Card, Parameter, PlanContext, PlanError};

pub(super) const CARD: Card = Card {
    name: "skrull_exact",
    about: "the exact optimum of Skrull's objective for small batches",
    source: "arXiv:2505.19609 section 4, solved exactly",
    method: "MILP (HiGHS)",
    parameters: &[
        Parameter::count(
            ("binaries_max", "count"),
            ("1200", 1.0, 100_000.0),
            "largest number of binary variables per step that is tried",
        ),
        Parameter::count(("nodes_max", "count"), ("200000", 1.0, 1e9), "branch-and-bound nodes per step"),
    ],
};

const MICROSECONDS: f64 = 1e6;

/// Variables of one step.
struct Formulation<'a> {
    problem: &'a Problem,
    sequences: Vec<(u32, u64)>,
    n_micro_batches: usize,
    local: Vec<Variable>,
    cut: Vec<Variable>,
    any_cut: Vec<Variable>,
    time: Vec<Variable>,
}

impl Formulation<'_> {
    fn n_slots(&self) -> usize {
        self.problem.layout.dp as usize * self.n_micro_batches
    }

    fn local(&self, k: usize, slot: usize, rank: usize) -> Variable {
        let n = self.problem.layout.cp as usize;
        self.local[(k * self.n_slots() + slot) * n + rank]
    }

    fn cut(&self, k: usize, slot: usize) -> Variable {
        self.cut[k * self.n_slots() + slot]
    }
}

pub(super) fn plan(problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    all_fit(problem)?;
    let heuristic = dacp::plan(problem, context, First::LeastLoad)?;
    let mut steps = Vec::with_capacity(heuristic.len());
    let (mut bound, mut status) = (Some(0.0), Status::Optimal);
    for (step_index, start) in heuristic.iter().enumerate() {
        let solved = exact_step(problem, context, step_index, start)?;
        bound = bound.zip(solved.bound).map(|(sum, bound)| sum + bound / MICROSECONDS);
        if solved.status != Status::Optimal {
            status = Status::Feasible;
        }
        steps.push(solved.step);
    }
    let plan = Plan::new(CARD.name, problem, steps);
    let objective = dacp::objective(problem, &plan);
    // Equal up to rounding where the search was finished.
    let bound = bound.map(|bound| bound.min(objective));
    Ok(Decision::new(plan, Aim::Seconds, objective).bounded(bound.map(Bound::plain), status))
}

struct ExactStep {
    step: Step,
    bound: Option<f64>,
    status: Status,
}

fn exact_step(
    problem: &Problem,
    context: &PlanContext<'_>,
    step_index: usize,
    start: &Step,
) -> Result<ExactStep, PlanError> {
    let sequences: Vec<(u32, u64)> = problem.workload.step(step_index).collect();
    let n_micro_batches = start.groups.iter().map(Vec::len).max().unwrap_or(1).max(1);
    let n_slots = problem.layout.dp as usize * n_micro_batches;
    let n_binaries = sequences.len() * n_slots * (problem.layout.cp as usize + 1);
    let most = context.number("binaries_max", 1200.0);
    if hw::real(n_binaries as u64) > most {
        return Err(PlanError::Unsupported(format!(
            "step {step_index} needs {n_binaries} binary variables, `binaries_max` is {most}; use a smaller batch"
        )));
    }
    let mut variables = ProblemVariables::new();
    let step = Formulation {
        problem,
        n_micro_batches,
        local: variables.add_vector(variable().binary(), sequences.len() * n_slots * problem.layout.cp as usize),
        cut: variables.add_vector(variable().binary(), sequences.len() * n_slots),
        any_cut: variables.add_vector(variable().binary(), n_slots),
        time: variables.add_vector(variable().min(0.0), n_slots),
        sequences,
    };
    let slowest = variables.add(variable().min(0.0));
    let constraints = constraints(&step, slowest);
    let wanted: Vec<Variable> = step.local.iter().chain(&step.cut).copied().collect();
    let nodes = context.number("nodes_max", 200_000.0);
    #[expect(clippy::cast_possible_truncation, reason = "the card allows at most 1e9")]
    let budget = Budget { nodes: nodes as i32, ..Budget::default() };
    let program = Program { variables, objective: slowest.into(), constraints, start: binaries(&step, start) };
    let solved = milp::minimise(program, &wanted, budget).map_err(|why| match why {
        Unsolved::Infeasible => PlanError::Infeasible(format!("no placement of step {step_index} fits")),
        Unsolved::Stopped(why) => PlanError::Budget(format!("step {step_index}: {why}")),
    })?;
    Ok(ExactStep { step: read(&step, &solved.values), bound: solved.bound, status: solved.status })
}

fn constraints(step: &Formulation<'_>, slowest: Variable) -> Vec<Constraint> {
    let problem = step.problem;
    let terms = Terms::of(problem);
    let n = problem.layout.cp as usize;
    let ids = 0..step.sequences.len();
    let seconds = |k: usize| terms.compute_s(&problem.model, step.sequences[k].1) * MICROSECONDS;
    let tokens = |k: usize| hw::real(step.sequences[k].1);
    let shard = |k: usize| hw::real(step.sequences[k].1.div_ceil(n as u64));
    let mut all = Vec::new();
    for k in ids.clone() {
        let placed: Expression = (0..step.n_slots())
            .map(|slot| step.cut(k, slot) + (0..n).map(|rank| step.local(k, slot, rank)).sum::<Expression>())
            .sum();
        all.push(constraint!(placed == 1.0));
    }
    for slot in 0..step.n_slots() {
        let share: Expression = ids.clone().map(|k| seconds(k) / hw::real(n as u64) * step.cut(k, slot)).sum();
        let volume: Expression =
            ids.clone().map(|k| terms.exchange_s_per_token() * MICROSECONDS * tokens(k) * step.cut(k, slot)).sum();
        let exchange = volume + terms.exchange_start_s() * MICROSECONDS * step.any_cut[slot];
        all.push(constraint!(step.time[slot] >= exchange + share.clone()));
        for k in ids.clone() {
            all.push(constraint!(step.cut(k, slot) <= step.any_cut[slot]));
        }
        for rank in 0..n {
            let local: Expression = ids.clone().map(|k| seconds(k) * step.local(k, slot, rank)).sum();
            all.push(constraint!(step.time[slot] >= local + share.clone()));
            let held: Expression =
                ids.clone().map(|k| tokens(k) * step.local(k, slot, rank) + shard(k) * step.cut(k, slot)).sum();
            all.push(constraint!(held <= hw::real(problem.bucket_tokens)));
        }
    }
    for group in step.time.chunks(step.n_micro_batches) {
        let total: Expression = group.iter().sum();
        all.push(constraint!(slowest >= total));
    }
    all
}

/// The binaries of the heuristic's step, for the search to start from.
fn binaries(step: &Formulation<'_>, start: &Step) -> Vec<(Variable, f64)> {
    let index = |sequence: u32| step.sequences.iter().position(|(id, _)| *id == sequence).expect("of this step");
    let mut ones = Vec::new();
    for (group, micro_batches) in start.groups.iter().enumerate() {
        for (at, micro_batch) in micro_batches.iter().enumerate() {
            let slot = group * step.n_micro_batches + at;
            for placement in &micro_batch.sequences {
                let k = index(placement.sequence);
                match placement.place {
                    Place::Local(rank) => ones.push((step.local(k, slot, rank as usize), 1.0)),
                    _ => ones.extend([(step.cut(k, slot), 1.0), (step.any_cut[slot], 1.0)]),
                }
            }
        }
    }
    ones
}

fn read(step: &Formulation<'_>, values: &[f64]) -> Step {
    let (n, n_slots) = (step.problem.layout.cp as usize, step.n_slots());
    let (local, cut) = values.split_at(step.local.len());
    let mut slots: Vec<MicroBatch> = vec![MicroBatch::default(); n_slots];
    for (k, &(sequence, tokens)) in step.sequences.iter().enumerate() {
        for (slot, micro_batch) in slots.iter_mut().enumerate() {
            if cut[k * n_slots + slot] > 0.5 {
                micro_batch.sequences.push(Placement { sequence, from: 0, tokens, place: Place::Sharded });
            }
            for rank in (0..n).filter(|rank| local[(k * n_slots + slot) * n + rank] > 0.5) {
                let place = Place::Local(u32::try_from(rank).expect("ranks fit u32"));
                micro_batch.sequences.push(Placement { sequence, from: 0, tokens, place });
            }
        }
    }
    let groups = slots.chunks(step.n_micro_batches);
    Step::of_groups(groups.map(|group| group.iter().filter(|mb| !mb.sequences.is_empty()).cloned().collect()).collect())
}
