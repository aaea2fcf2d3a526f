//! Tables of a served choice: a row for every request, and a row for every sample in time.

use engine::play::Case;
use hw::Seconds;
use reports::curves::Curves;
use reports::frame::Frame;
use serve::fleet::Served;
use serve::metrics::rows::{self, RequestRow, Sample};
use serve::request::Requests;

use super::{fleet, serve_choice};
use crate::kinds::Frames;
use scenario::serving::{Serving, ServingChoice};

/// Samples of a series.
const SAMPLES: u32 = 1000;

/// Points of a curve that is drawn.
const POINTS: u32 = 200;

const REQUESTS: [&str; 13] = [
    "request",
    "stream",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "replica",
    "group",
    "queue_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "n_preempted",
];

const SERIES: [&str; 5] = ["at_s", "waiting_requests", "running_requests", "ended_requests", "output_tokens_per_s"];

/// Serves a choice with the expected costs and keeps both tables.
pub fn of(scenario: &Serving, choice: &ServingChoice) -> Frames {
    let (fleet, _) = fleet(scenario, choice, Case::Expected);
    let (requests, served, _) = serve_choice(scenario, choice, &fleet);
    let lines = rows::requests(&requests, &served).map(|row| request(&row)).collect();
    let samples = rows::series(&requests, &served, SAMPLES).iter().map(sample).collect();
    Frames { requests: Frame { columns: &REQUESTS, rows: lines }, series: Frame { columns: &SERIES, rows: samples } }
}

/// What is drawn of a served choice.
pub fn curves(scenario: &Serving, choice: &ServingChoice, requests: &Requests, served: &Served) -> Curves {
    let sample = |sample: &Sample| {
        [sample.at_s, f64::from(sample.waiting), f64::from(sample.running), sample.output_tokens_per_s]
    };
    let limit = |limit: Option<Seconds>| limit.map(Seconds::get);
    Curves {
        policy: choice.name.clone(),
        latencies_s: rows::curves(requests, served, POINTS),
        limits_s: [scenario.slo.ttft, scenario.slo.tpot, scenario.slo.e2e].map(limit),
        samples: rows::series(requests, served, POINTS).iter().map(sample).collect(),
    }
}

fn request(row: &RequestRow) -> Vec<Option<f64>> {
    let count = |n: u32| Some(f64::from(n));
    let mut cells = vec![count(row.request), count(row.stream), Some(row.arrival_s)];
    cells.extend(row.tokens.map(count));
    cells.push(count(row.cached_tokens));
    cells.extend(match row.served {
        None => [None; 7],
        Some(of) => [
            count(of.replica),
            count(of.group),
            Some(of.queue_s),
            Some(of.ttft_s),
            of.tpot_s,
            Some(of.e2e_s),
            count(of.n_preempted),
        ],
    });
    cells
}

fn sample(sample: &Sample) -> Vec<Option<f64>> {
    let count = |n: u32| Some(f64::from(n));
    vec![
        Some(sample.at_s),
        count(sample.waiting),
        count(sample.running),
        count(sample.ended),
        Some(sample.output_tokens_per_s),
    ]
}
