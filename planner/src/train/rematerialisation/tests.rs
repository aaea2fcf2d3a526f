//! Against brute force, a scheduler that knows numbers only, and an evaluator that computes with the buffers that are there.

use std::collections::BTreeMap;

use engine::random::{Stream, stream};
use train::problem::AttentionKernel;
use train::tensor_graph::bound::{of_orders, of_working_sets};
use train::tensor_graph::play::{AtSizes, Event, Eviction, Played, play};
use train::tensor_graph::symbolic::{Expression, Symbol, SymbolId, Symbols};
use train::tensor_graph::transformer::training_step;
use train::tensor_graph::{Kind, Operation, TensorId, Work};

use super::*;

const EVERY_RULE: &[Eviction] = &[Eviction::FirstFound, Eviction::SizeTimesDistance, Eviction::LeastTimePerByte];
const NEAR: Rules = Rules { distance: 2, operations: 10, static_bytes: 0 };

/// A graph of random operations with weights that change at the end, and results.
fn random_graph(draws: &mut Stream, n: u64, batch: Symbol, sequence: Symbol) -> TensorGraph {
    let mut symbols = Symbols::default();
    let dims = [batch, sequence].map(|symbol| Expression::symbol(symbols.add(symbol)));
    let mut graph = TensorGraph { symbols, ..TensorGraph::default() };
    let weights: Vec<TensorId> = (0..2).map(|_| graph.argument("w", &Expression::constant(8))).collect();
    let mut tensors = weights.clone();
    let add = |graph: &mut TensorGraph, draws: &mut Stream, updates: Option<TensorId>, tensors: &mut Vec<TensorId>| {
        let n_inputs = 1 + draws.below(2);
        let recent = |draws: &mut Stream| {
            let back = if draws.below(3) == 0 { tensors.len() as u64 } else { 4.min(tensors.len() as u64) };
            tensors[tensors.len() - 1 - draws.below(back) as usize]
        };
        let inputs = (0..n_inputs).map(|_| recent(draws)).collect();
        let kind = [Kind::Compute, Kind::Compute, Kind::Compute, Kind::Expanding, Kind::Collective, Kind::Custom]
            [draws.below(6) as usize];
        let size = |draws: &mut Stream| {
            let linear = dims[draws.below(2) as usize].times(1 + i128::from(draws.below(40)));
            let square = dims[0].product(&dims[1]).times(i128::from(draws.below(4)));
            linear.plus(&square)
        };
        let sizes: Vec<Expression> = (0..1 + u64::from(draws.below(8) == 0)).map(|_| size(draws)).collect();
        let outputs: Vec<(&str, &Expression)> =
            if updates.is_some() { Vec::new() } else { sizes.iter().map(|size| ("t", size)).collect() };
        let work = Work::Fixed(1 + draws.below(100));
        let operation = Operation { name: "op".to_owned(), kind, inputs, outputs: Vec::new(), updates, work };
        let written = graph.operation(operation, &outputs);
        tensors.extend(written);
    };
    for _ in 0..n {
        add(&mut graph, draws, None, &mut tensors);
    }
    for weight in weights {
        add(&mut graph, draws, Some(weight), &mut tensors);
    }
    graph.tensors.last_mut().expect("tensors").is_output = true;
    graph
}

fn unbounded() -> [Symbol; 2] {
    ["batch", "sequence"].map(Symbol::unbounded)
}

fn at_sizes(graph: &TensorGraph, sizes: [u64; 2]) -> AtSizes {
    let of = |id: SymbolId| sizes[id.0 as usize];
    let time = |operation: &Operation| if let Work::Fixed(ns) = operation.work { ns } else { 1 };
    AtSizes { bytes: graph.bytes(&of), ns: graph.operations.iter().map(time).collect() }
}

/// Computes with floats in exactly the buffers that the events leave, and panics when one is read that is not there.
fn evaluate(graph: &TensorGraph, events: &[Event]) -> Vec<f64> {
    let mut buffers: Vec<Option<f64>> =
        (0..graph.tensors.len()).map(|at| graph.tensors[at].producer.is_none().then_some(0.3 + at as f64)).collect();
    let mut results = vec![0.0_f64; graph.tensors.len()];
    let value = |buffers: &[Option<f64>], id: OperationId, output: usize| {
        let mut sum: f64 = (f64::from(id.0) + 1.7) * (output as f64 + 0.9);
        for input in &graph.at(id).inputs {
            sum = (sum * 0.37 + buffers[input.index()].expect("an input is there")).sqrt() + 0.1;
        }
        sum
    };
    for event in events {
        match *event {
            Event::Run(id) | Event::Again(id) => {
                for (at, output) in graph.at(id).outputs.iter().enumerate() {
                    let found = value(&buffers, id, at);
                    assert!(matches!(event, Event::Run(_)) || found.to_bits() == results[output.index()].to_bits());
                    (buffers[output.index()], results[output.index()]) = (Some(found), found);
                }
                if let Some(changed) = graph.at(id).updates {
                    let found = buffers[changed.index()].expect("an argument stays") + value(&buffers, id, 0);
                    (buffers[changed.index()], results[changed.index()]) = (Some(found), found);
                }
            }
            Event::Evict(tensor) | Event::Free(tensor) => {
                assert!(buffers[tensor.index()].take().is_some(), "what goes was there");
            }
        }
    }
    let outputs = (0..graph.tensors.len()).filter(|at| graph.tensors[*at].is_output);
    outputs.for_each(|at| assert!(buffers[at].is_some(), "a result of the step stays"));
    results
}

fn natural(graph: &TensorGraph, order: Vec<OperationId>, at: &AtSizes) -> Played {
    play(graph, &Program::of_order(order), at, u64::MAX, Eviction::FirstFound)
}

/// Peak of an order counted from its events alone.
fn counted_peak(graph: &TensorGraph, played: &Played, bytes: &[u64]) -> u64 {
    let is_argument = |at: &usize| graph.tensors[*at].producer.is_none();
    let mut live: u64 = (0..bytes.len()).filter(is_argument).map(|at| bytes[at]).sum();
    let mut peak = live;
    for event in &played.events {
        match event {
            Event::Run(id) | Event::Again(id) => {
                live += graph.at(*id).outputs.iter().map(|output| bytes[output.index()]).sum::<u64>();
            }
            Event::Evict(tensor) | Event::Free(tensor) => live -= bytes[tensor.index()],
        }
        peak = peak.max(live);
    }
    peak
}

/// Whether an order has every operation once, each behind those that it waits for.
fn follows(before: &[Vec<OperationId>], order: &[OperationId]) -> bool {
    let mut places: BTreeMap<OperationId, usize> = BTreeMap::new();
    places.extend(order.iter().enumerate().map(|(at, &id)| (id, at)));
    let is_behind = |id: &OperationId| before[id.index()].iter().all(|other| places[other] < places[id]);
    order.len() == before.len() && places.len() == before.len() && order.iter().all(is_behind)
}

#[test]
fn whatever_is_evicted_every_value_stays_what_it_was() {
    let (mut n_evictions, mut n_kept) = (0, 0);
    for seed in 0..150 {
        let mut draws = stream(seed, "graphs");
        let [batch, sequence] = unbounded();
        let graph = random_graph(&mut draws, 30, batch, sequence);
        let at = at_sizes(&graph, [1 + draws.below(9), 1 + draws.below(9)]);
        let original = natural(&graph, graph.original_order(), &at);
        let expected = evaluate(&graph, &original.events);
        for schedule in [false, true] {
            let compiled = Compiled::new(&graph, Passes { schedule, rematerialise: Some(NEAR) });
            for program in &compiled.programs {
                assert!(follows(&graph.predecessors(), &program.order));
                n_kept += program.candidates.iter().filter(|candidate| !candidate.kept.is_empty()).count();
                for (rule, part) in EVERY_RULE.iter().zip([3, 6, 8]).chain(EVERY_RULE.iter().zip([9, 4, 0])) {
                    let limit = original.peak_bytes * part / 10;
                    let played = play(&graph, program, &at, limit, *rule);
                    n_evictions += played.n_evictions;
                    let found = evaluate(&graph, &played.events);
                    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&found), bits(&expected), "seed {seed}");
                    assert_eq!(played.peak_bytes, counted_peak(&graph, &played, &at.bytes), "seed {seed}");
                    assert!(played.peak_bytes >= of_working_sets(&graph, &at.bytes).bytes, "seed {seed}");
                }
            }
        }
    }
    assert!(n_evictions > 1000, "{n_evictions} evictions");
    assert!(n_kept > 10, "{n_kept} candidates keep an input");
}

#[test]
fn recompute_subgraphs_are_small_and_hold_no_exchange() {
    for seed in 0..100 {
        let mut draws = stream(seed, "subgraphs");
        let [batch, sequence] = unbounded();
        let graph = random_graph(&mut draws, 40, batch, sequence);
        for candidate in candidates::candidates(&graph, &graph.original_order(), Rules { operations: 5, ..NEAR }) {
            assert!((1..=5).contains(&candidate.recompute.len()));
            for id in &candidate.recompute {
                let operation = graph.at(*id);
                assert!(matches!(operation.kind, Kind::Compute | Kind::Expanding), "{:?}", operation.kind);
                assert!(operation.outputs.len() == 1 && operation.updates.is_none());
            }
            assert!(candidate.next_use >= candidate.window[1] + 2);
        }
    }
}

#[test]
fn more_room_never_costs_more_time_and_enough_room_costs_none() {
    let mut n_fitting = 0;
    for seed in 0..60 {
        let mut draws = stream(seed, "limits");
        let [batch, sequence] = unbounded();
        let graph = random_graph(&mut draws, 35, batch, sequence);
        let at = at_sizes(&graph, [2 + draws.below(9), 2 + draws.below(9)]);
        let compiled = Compiled::new(&graph, Passes { schedule: true, rematerialise: Some(NEAR) });
        let peak = |program: &Program| play(&graph, program, &at, u64::MAX, EVERY_RULE[0]).peak_bytes;
        let natural = compiled.programs.iter().map(peak).min().expect("a program");
        // Checks that take as long as operations: programs that have fewer of them may be the better ones.
        let check_ns = seed % 3 * 7;
        let mut before: Option<u64> = None;
        for part in 0..=80 {
            let limit = natural * part / 40;
            let choice = choose(&graph, &compiled, &at, (limit, check_ns), Manager::Searched(EVERY_RULE));
            let peak = choice.plan.played.peak_bytes;
            assert_eq!(peak.saturating_sub(limit), choice.plan.residual_bytes, "seed {seed}: what misses is said");
            if choice.plan.residual_bytes > 0 {
                assert!(before.is_none(), "seed {seed}: what fits below fits above");
                continue;
            }
            let added_ns = choice.plan.again_ns + choice.plan.checks_ns;
            assert!(before.is_none_or(|before| added_ns <= before), "seed {seed}");
            before = Some(added_ns);
            n_fitting += usize::from(choice.plan.played.n_evictions > 0);
        }
        let enough = choose(&graph, &compiled, &at, (natural, 0), Manager::AtLimit(EVERY_RULE[1]));
        assert_eq!((enough.plan.again_ns, enough.plan.played.n_evictions), (0, 0), "seed {seed}");
        assert_eq!(enough.plan.played.runs, vec![1; graph.operations.len()]);
    }
    assert!(n_fitting > 50, "{n_fitting} steps fit by eviction");
}

/// Every order of a small graph, by trying all.
fn best_peak(graph: &TensorGraph, at: &AtSizes) -> u64 {
    fn extend(graph: &TensorGraph, at: &AtSizes, before: &[Vec<OperationId>], order: &mut Vec<OperationId>) -> u64 {
        if order.len() == before.len() {
            return natural(graph, order.clone(), at).peak_bytes;
        }
        let mut best = u64::MAX;
        for id in graph.original_order() {
            let is_ready = before[id.index()].iter().all(|other| order.contains(other));
            if is_ready && !order.contains(&id) {
                order.push(id);
                best = best.min(extend(graph, at, before, order));
                order.pop();
            }
        }
        best
    }
    extend(graph, at, &graph.predecessors(), &mut Vec::new())
}

#[test]
fn the_bound_lies_below_the_best_order_and_the_schedule_between_it_and_the_original() {
    let (mut n_better, mut n_best) = (0, 0);
    for seed in 0..60 {
        let mut draws = stream(seed, "small graphs");
        let [batch, sequence] = unbounded();
        let graph = random_graph(&mut draws, 6, batch, sequence);
        let compiled = Compiled::new(&graph, Passes { schedule: true, rematerialise: None });
        for sizes in [[1, 1], [7, 1], [1, 7], [5, 9]] {
            let at = at_sizes(&graph, sizes);
            let choice = choose(&graph, &compiled, &at, (0, 0), Manager::AtLimit(EVERY_RULE[0]));
            let (found, best) = (choice.plan.played.peak_bytes, best_peak(&graph, &at));
            let original = natural(&graph, graph.original_order(), &at).peak_bytes;
            assert!(of_orders(&graph, &at.bytes).bytes <= best, "seed {seed}");
            assert!(best <= found && found <= original, "seed {seed}: {best} {found} {original}");
            n_better += usize::from(found < original);
            n_best += usize::from(found == best);
        }
    }
    assert!(n_better > 40, "{n_better} of 240 below the original order");
    assert!(n_best > 120, "{n_best} of 240 are the best there is");
}

/// The same list schedule by numbers alone.
fn numeric_schedule(graph: &TensorGraph, bytes: &[u64]) -> Vec<OperationId> {
    let before = graph.predecessors();
    let original = graph.original_order();
    let reads = |id: &OperationId, tensor: usize| graph.at(*id).inputs.iter().any(|input| input.index() == tensor);
    let dies = |id: &OperationId| {
        let last = |output: &TensorId| {
            let at = original.iter().rposition(|reader| reads(reader, output.index())).unwrap_or(id.index());
            if graph.tensors[output.index()].is_output { original.len() } else { at }
        };
        graph.at(*id).outputs.iter().map(last).max().unwrap_or(id.index()) - id.index()
    };
    let mut order: Vec<OperationId> = Vec::new();
    while order.len() < original.len() {
        let left: Vec<&OperationId> = original.iter().filter(|id| !order.contains(id)).collect();
        let ready = left.iter().filter(|id| before[id.index()].iter().all(|other| order.contains(other)));
        let impact = |id: &OperationId| {
            let mut sum = 0_i128;
            for (tensor, &bytes) in bytes.iter().enumerate() {
                let is_needed = graph.tensors[tensor].is_output;
                let readers = left.iter().filter(|other| reads(other, tensor)).count();
                if graph.tensors[tensor].producer == Some(*id) && (readers > 0 || is_needed) {
                    sum += i128::from(bytes);
                } else if graph.tensors[tensor].producer.is_some() && reads(id, tensor) && readers == 1 && !is_needed {
                    sum -= i128::from(bytes);
                }
            }
            sum
        };
        order.push(**ready.min_by_key(|id| (impact(id), dies(id), id.index())).expect("something is ready"));
    }
    order
}

#[test]
fn with_sizes_that_are_known_the_symbolic_schedule_is_the_numeric_one() {
    for seed in 0..40 {
        let mut draws = stream(seed, "static graphs");
        let sizes = [1 + draws.below(9), 1 + draws.below(9)];
        let [batch, sequence] = [Symbol::known("batch", sizes[0]), Symbol::known("sequence", sizes[1])];
        let graph = random_graph(&mut draws, 30, batch, sequence);
        let at = at_sizes(&graph, sizes);
        assert_eq!(order::schedule(&graph), numeric_schedule(&graph, &at.bytes), "seed {seed}");
    }
}

#[test]
fn a_training_step_in_the_chosen_order_never_needs_more_than_in_the_original() {
    let model = engine::model::embedded("llama-3m").expect("embedded");
    for kernel in [AttentionKernel::Flash, AttentionKernel::Unfused] {
        let [batch, sequence] = unbounded();
        let graph = training_step(&model, kernel, batch, sequence).expect("dense");
        let compiled = Compiled::new(&graph, Passes { schedule: true, rematerialise: Some(Rules::default()) });
        let mut n_better = 0;
        for sizes in [[1, 1], [1, 128], [16, 100], [16, 3000], [1, 100_000], [500, 2]] {
            let at = at_sizes(&graph, sizes);
            let original = natural(&graph, graph.original_order(), &at).peak_bytes;
            let found =
                choose(&graph, &compiled, &at, (u64::MAX, 0), Manager::AtLimit(EVERY_RULE[1])).plan.played.peak_bytes;
            let least = compiled.programs.iter().map(|program| natural(&graph, program.order.clone(), &at).peak_bytes);
            assert!(least.min().expect("a program") <= original && of_orders(&graph, &at.bytes).bytes <= found);
            n_better += usize::from(found < original);
        }
        assert!(n_better > 0, "{kernel:?}");
        // What is evicted is computed again from what is alive, so values stay.
        let at = at_sizes(&graph, [4, 500]);
        let expected = evaluate(&graph, &natural(&graph, graph.original_order(), &at).events);
        let limit = of_working_sets(&graph, &at.bytes).bytes;
        let played = play(&graph, &compiled.programs[0], &at, limit, Eviction::SizeTimesDistance);
        assert!(played.n_evictions > 0);
        assert_eq!(evaluate(&graph, &played.events), expected);
    }
}
