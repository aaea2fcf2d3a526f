//! Measured serving runs against simulated ones: vLLM 0.19 with Llama-3.1-8B, 300 requests with their moments.
//!
//! Source: casys-kaist/LLMServingSim @ 5daddb21a545, bench/examples (MIT). Costs are the shipped profiles of both cards, which were fitted
//! to the same repository's operator tables; nothing is fitted to the runs and no host time is assumed. Series are compared once a second:
//! requests that are served and that wait, and the share of blocks in use, as the mean of |simulated − measured| over the
//! mean of the measured.

use hw::{Seconds, Span, Tick, Time};

use crate::fleet::serve;
use crate::metrics::{self, Slo};
use crate::records::Records;
use crate::replica::{Engine, Limits, Replica, Spans};
use crate::request::{Request, Requests};
use crate::step_cost::{ReplicaConfig, StepTable};
use crate::{batcher, router};
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::play::Case;

/// One measured run and how it was set up.
struct Run {
    folder: &'static str,
    gpu: &'static str,
    profile: &'static str,
    sequences_max: u32,
    /// As vLLM reported them for the RTX 4090; the other card has room for all.
    kv_blocks: u32,
}

const RUNS: [Run; 2] = [
    Run {
        folder: "RTX4090",
        gpu: "rtx-4090",
        profile: include_str!("../../../profiles/rtx-4090.toml"),
        sequences_max: 256,
        kv_blocks: 2588,
    },
    Run {
        folder: "RTXPRO6000",
        gpu: "rtx-pro-6000",
        profile: include_str!("../../../profiles/rtx-pro-6000.toml"),
        sequences_max: 128,
        kv_blocks: 35_000,
    },
];

/// A request as measured, seconds from the first arrival.
struct Measured {
    arrival: f64,
    first: f64,
    last: f64,
    prompt: u32,
    output: u32,
}

impl Run {
    fn read(&self, file: &str) -> Option<String> {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/llmservingsim/bench/examples/");
        let path = format!("{data}{}/Llama-3.1-8B/vllm/{file}", self.folder);
        let text = std::fs::read_to_string(&path).ok();
        if text.is_none() {
            println!("skipped: shared data absent ({path})");
        }
        text
    }

    fn measured(&self) -> Option<Vec<Measured>> {
        let text = self.read("requests.jsonl")?;
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("a measured request")).collect();
        let number = |row: &serde_json::Value, key: &str| row[key].as_f64().expect("a number");
        let count =
            |row: &serde_json::Value, key: &str| u32::try_from(row[key].as_u64().expect("a count")).expect("small");
        let start = rows.iter().map(|row| number(row, "queued_ts")).fold(f64::INFINITY, f64::min);
        let measured = |row: &serde_json::Value| Measured {
            arrival: number(row, "queued_ts") - start,
            first: number(row, "first_token_ts") - start,
            last: number(row, "last_token_ts") - start,
            prompt: count(row, "input_toks"),
            output: count(row, "output_toks"),
        };
        Some(rows.iter().map(measured).collect())
    }

    fn engine(&self) -> Engine {
        let cluster = hw::catalog::cluster(&hw::catalog::gpu(self.gpu).expect("listed"), 1, 1);
        let model = engine::model::embedded("llama-3-8b").expect("listed");
        let deployment = ReplicaConfig::new(&model, &cluster, 1);
        let limits = Limits {
            sequences_max: self.sequences_max,
            tokens_max: 2048,
            context_max: 32_768,
            kv_blocks: self.kv_blocks,
            ..Limits::ROOMY
        };
        let profile = Profile::parse(self.profile).expect("shipped");
        let cost = Profiled::new(&profile, &cluster);
        let table = StepTable::new(&deployment, (limits.tokens_max, limits.sequences_max), &cost, Case::Expected);
        // Step by step, so that samples between two ends see what is there at that moment.
        Engine { limits, table, batcher: batcher::named("vllm-v1").expect("listed"), spans: Spans::Stepwise }
    }

    /// Mean error of the series of served, waiting and blocks, relative to the measured means; `None` where nothing was measured.
    fn series(&self, engine: &Engine, requests: &Requests) -> Option<[Option<f64>; 3]> {
        let text = self.read("timeseries.csv")?;
        let rows: Vec<Vec<f64>> = text
            .lines()
            .skip(1)
            .map(|line| line.split(',').map(|field| field.parse().expect("a number")).collect())
            .collect();
        let samples = sampled(engine, requests, rows.iter().map(|row| row[0]));
        let mut sums = [[0.0; 2]; 3];
        for (row, found) in rows.iter().zip(samples) {
            for (sum, (found, measured)) in sums.iter_mut().zip(found.into_iter().zip(&row[3..6])) {
                *sum = [sum[0] + (found - measured).abs(), sum[1] + measured];
            }
        }
        Some(sums.map(|[off, measured]| (measured > 0.0).then(|| off / measured)))
    }
}

/// Requests served and waiting and the percentage of blocks in use at some moments, in seconds.
fn sampled(engine: &Engine, requests: &Requests, seconds: impl Iterator<Item = f64>) -> Vec<[f64; 3]> {
    let mut replica = Replica::new(engine, requests);
    let mut records = Records::new(requests);
    let mut arrivals = (0_u32..).zip(&requests.list).peekable();
    let mut end = Tick::NEVER;
    seconds
        .map(|now| {
            let now = Tick::from_seconds(Seconds::new(now));
            loop {
                let arrival = arrivals.peek().map_or(Tick::NEVER, |(_, request)| Tick::from(request.arrival));
                if end.min(arrival) > now {
                    break;
                }
                if end < arrival {
                    end = replica.advance(&mut records).unwrap_or(Tick::NEVER);
                } else if let Some((id, _)) = arrivals.next() {
                    end = replica.enqueue(id, arrival, &mut records).unwrap_or(end);
                }
            }
            let (running, all) = (replica.n_running(), replica.outstanding());
            let used = f64::from(replica.pool.held()) / f64::from(replica.pool.total());
            [f64::from(running), f64::from(all - running), used * 100.0]
        })
        .collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / hw::real(values.len() as u64)
}

fn p99(values: &[f64]) -> f64 {
    hw::quantile::of(values, 0.99)
}

#[test]
fn simulated_runs_come_near_measured_ones_where_they_are_there() {
    let mut misses = Vec::new();
    for run in &RUNS {
        let Some(measured) = run.measured() else { continue };
        let request = |row: &Measured| {
            let at = Span::from_seconds(Seconds::new(row.arrival));
            Request::new(Time::ZERO + at, row.prompt, row.output)
        };
        let requests = Requests::of(measured.iter().map(request).collect());
        let engine = run.engine();
        let served = serve(&requests, &[&engine], (router::ROUTERS[0].make)(0).as_mut());
        let figures = metrics::of(&requests, &served, &Slo::default(), Seconds::ZERO);
        let ttft: Vec<f64> = measured.iter().map(|row| row.first - row.arrival).collect();
        let tpot: Vec<f64> = measured.iter().map(|row| (row.last - row.first) / f64::from(row.output - 1)).collect();
        for (key, measured, within) in [
            ("ttft_s.mean", mean(&ttft), 0.10),
            ("tpot_s.mean", mean(&tpot), 0.05),
            ("ttft_s.p99", p99(&ttft), 0.20),
            ("tpot_s.p99", p99(&tpot), 0.20),
        ] {
            let ratio = figures[key] / measured;
            println!("{}: {key} measured {measured:.4} s, simulated over measured {ratio:.3}", run.gpu);
            if (ratio - 1.0).abs() >= within {
                misses.push(format!("{}: {key} is {ratio} of the measured one", run.gpu));
            }
        }
        let Some(series) = run.series(&engine, &requests) else { continue };
        for (name, off) in ["served", "waiting", "blocks"].into_iter().zip(series) {
            println!("{}: series of {name} off by {off:.3?}", run.gpu);
            if off.is_some_and(|off| off >= 0.15) {
                misses.push(format!("{}: series of {name} is off by {off:?}", run.gpu));
            }
        }
    }
    assert!(misses.is_empty(), "{}", misses.join("\n"));
}
