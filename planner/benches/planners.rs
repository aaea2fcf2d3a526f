//! Planning time per global batch of every long-context system on pools of 64, 256 and 1,024 GPUs: eight sequences per GPU for data-parallel
//! systems and FlexSP, 150 per 64 GPUs (about 360,000 tokens) for Hydraulis. Estimate: a planner that runs beside a step of seconds has to stay
//! below it; Skrull's runs in the data loader and has to stay below a millisecond for 256 sequences.
//!
//! Renting: six GPU types, nine request types, Llama-3 8B, 70B and both, to a gap of 1 %. Estimate: about 40 integers and 400 shares are
//! solved within a second; the aim is 5 s, so that a plan can follow a price list.

use std::collections::BTreeMap;

use criterion::{Criterion, criterion_group, criterion_main};
use engine::cost::roofline::Roofline;
use planner::deploy::cost_efficiency::{self, Form, Options};
use planner::deploy::throughput::{self, Lengths, Parallel};
use planner::milp::Budget;
use planner::{PlanContext, Value, deploy as rental};
use train::layout::{ContextExchange, Layout, Zero};
use train::problem::{Execution, Problem};
use train::workload::distribution;

/// A problem of some sequences of web text on a pool of A100.
fn problem(model: &str, layout: Layout, n_sequences: usize, longest: u64, bucket_tokens: u64) -> Problem {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    Problem {
        model: engine::model::embedded(model).expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, layout.n_ranks() / 8, 8),
        layout,
        schedule: train::schedule::named("1f1b").expect("listed"),
        workload: train::Workload {
            lengths: distribution::named("commoncrawl-like").expect("listed").sample(n_sequences, longest, 0),
            batch_size: n_sequences,
            source: "bench".to_owned(),
        },
        dtype: hw::Dtype::Bf16,
        execution: Execution::default(),
        bucket_tokens,
        reserved_memory: hw::Bytes(0),
        seed: 0,
    }
}

/// The problem that a system is asked on a pool.
fn asked(policy: &str, n: u32) -> Problem {
    let sequences = n as usize * 8;
    let pool = |exchange| Layout::data_and_context(1, n, Zero::OptimizerStates, exchange);
    match policy {
        "bytescale" => problem("mistral-7b", pool(ContextExchange::Ring), sequences, 262_144, 8192),
        "flexsp" => problem("gpt-7b-64-heads", pool(ContextExchange::Ulysses), sequences, 131_072, 5992),
        "hydraulis" => {
            let homogeneous = Layout::data_and_context(n / 16, 1, Zero::OptimizerStates, ContextExchange::Gather);
            let layout = Layout { tp: 16, sequence_parallel: true, ..homogeneous };
            problem("llama-32b", layout, n as usize * 150 / 64, 32_768, 43_520)
        }
        _ => {
            let layout = Layout::data_and_context(n / 8, 8, Zero::Gradients, ContextExchange::Gather);
            problem("qwen2.5-7b", layout, sequences, 65_536, 13_312)
        }
    }
}

fn planners(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("planners");
    group.sample_size(10).warm_up_time(std::time::Duration::from_millis(200));
    for n in [64, 256, 1024] {
        for (policy, planner) in [
            ("skrull", None),
            ("chunkflow", None),
            ("bytescale", None),
            ("flexsp", None),
            ("flexsp", Some("milp")),
            ("flexsp", Some("cold")),
            ("hydraulis", None),
        ] {
            // Programs of thousands of integers are compared where the paper solves them.
            if planner.is_some() && n > 64 {
                continue;
            }
            let problem = asked(policy, n);
            let cost = Roofline::new(&problem.cluster);
            let word = planner.map(|word| ("planner".to_owned(), Value::Word(word.to_owned())));
            let parameters: BTreeMap<String, Value> = word.into_iter().collect();
            let context = PlanContext { cost: &cost, parameters };
            let of = planner::train::policies::named(policy).expect("listed");
            let name =
                format!("{policy} {}, {n} GPUs, {} sequences", planner.unwrap_or(""), problem.workload.batch_size);
            match of.plan(&problem, &context) {
                Err(why) => println!("{name}: {why}"),
                Ok(decision) => {
                    println!("{name}: objective {:?} s, bound {:?} s", decision.objective(), decision.bound());
                    group.bench_function(name, |bencher| bencher.iter(|| of.plan(&problem, &context)));
                }
            }
        }
    }
    group.finish();
}

/// Six GPU types at catalogue prices, nine request types per model, rates by the roofline.
fn renting(requests: [f64; 2], budget_usd_per_hour: f64) -> rental::Problem {
    let types = [("a6000", 8), ("a40", 12), ("l40s", 12), ("a100-sxm-80g", 6), ("h100-sxm", 8), ("rtx-4090", 16)];
    let gpus: Vec<hw::Gpu> = types.iter().map(|(name, _)| hw::catalog::gpu(name).expect("listed")).collect();
    let models = ["llama-3-8b", "llama-3-70b"].map(|name| engine::model::embedded(name).expect("embedded"));
    let (mut kinds, mut demands) = (Vec::new(), Vec::new());
    for (model, requests) in requests.into_iter().enumerate().filter(|(_, requests)| *requests > 0.0) {
        for (input, i) in [(2455, 2.0), (824, 3.0), (496, 4.0)] {
            for (output, o) in [(510, 3.0), (253, 4.0), (18, 2.0)] {
                kinds.push((model, Lengths { input: hw::Tokens(input), output: hw::Tokens(output) }));
                let name = format!("{input}+{output} of {}", models[model].name);
                demands.push(rental::Demand { name, model, requests: requests * i * o / 81.0 });
            }
        }
    }
    let layouts = |all: &[(u32, u32)]| all.iter().map(|&(tp, pp)| Parallel { tp, pp }).collect::<Vec<_>>();
    let small = layouts(&[(1, 1), (2, 1), (4, 1)]);
    let large = layouts(&[(1, 2), (2, 1), (4, 1), (2, 2), (8, 1), (4, 2), (2, 4)]);
    let mut configurations = throughput::configurations(&gpus, (0, &models[0]), &small, &kinds);
    configurations.extend(throughput::configurations(&gpus, (1, &models[1]), &large, &kinds));
    let price = |gpu: &hw::Gpu| gpu.prices.iter().map(|price| price.usd_per_hour).fold(f64::INFINITY, f64::min);
    let offer = |(gpu, (name, n_available)): (&hw::Gpu, (&str, u32))| {
        rental::inventory::Offer::priced(name, price(gpu), n_available)
    };
    let offers = gpus.iter().zip(types).map(offer).collect();
    rental::Problem {
        inventory: rental::inventory::Inventory::of(offers),
        configurations,
        demands,
        budget_usd_per_hour,
    }
}

fn rentals(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rental");
    group.sample_size(10).warm_up_time(std::time::Duration::from_millis(200));
    let budget = Budget { gap: 0.01, ..Budget::default() };
    for (name, requests) in [("8b", [2000.0, 0.0]), ("70b", [0.0, 2000.0]), ("8b and 70b", [2000.0, 400.0])] {
        for usd in [15.0, 30.0, 60.0] {
            let problem = renting(requests, usd);
            for (form, words) in [(Form::Direct, "direct"), (Form::Bisection { tolerance_s: 0.1 }, "bisection")] {
                let options = Options { form, budget };
                match cost_efficiency::solve(&problem, options) {
                    Err(why) => println!("{name}, {usd} $/h, {words}: {why}"),
                    Ok(answer) => {
                        println!(
                            "{name}, {usd} $/h, {words}: {:.3} s, gap {:.4}",
                            answer.plan.makespan_s,
                            answer.gap().unwrap_or(f64::NAN)
                        );
                        group.bench_function(format!("{name}, {usd} $/h, {words}"), |bencher| {
                            bencher.iter(|| cost_efficiency::solve(&problem, options));
                        });
                    }
                }
            }
        }
    }
    group.finish();
}

criterion_group!(benches, planners, rentals);
criterion_main!(benches);
