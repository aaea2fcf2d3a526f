//! Tables of a served choice: a row for every request, and a row for every sample in time.

use engine::play::Case;
use hw::Seconds;
use reports::curves::Curves;
use reports::frame::Frame;
use serve::fleet::{Fleet, Keeps, Served};
use serve::metrics::rows::{self, Sample};
use serve::own::Own;
use serve::request::Requests;

use super::serve_choice;
use crate::kinds::Frames;
use scenario::serving::played::fleet;
use scenario::serving::{Serving, ServingChoice};

/// Samples of a series.
const SAMPLES: u32 = 1000;

/// Points of a curve that is drawn.
pub const POINTS: u32 = 200;

/// Serves a choice with the expected costs and keeps both tables.
pub fn of(scenario: &Serving, choice: &ServingChoice) -> Frames {
    let fleet = Fleet { keeps: Keeps::Tokens { samples: SAMPLES }, ..fleet(scenario, choice, Case::Expected).0 };
    let (requests, served, _) = serve_choice(scenario, choice, &fleet, &mut Own::default());
    let lines = rows::requests(&requests, &served).map(|row| row.cells()).collect();
    let samples = rows::series(&requests, &fleet, &served, SAMPLES).iter().map(Sample::cells).collect();
    Frames {
        requests: Frame { columns: &rows::REQUEST_COLUMNS, rows: lines },
        series: Frame { columns: &rows::SAMPLE_COLUMNS, rows: samples },
    }
}

/// Requests, and what became of them.
type Play<'p> = (&'p Requests, &'p Served);

/// What is drawn of a served choice.
pub fn curves(scenario: &Serving, choice: &ServingChoice, fleet: &Fleet, (requests, served): Play<'_>) -> Curves {
    let sample = |of: &Sample| {
        let [waiting, running, replicas] = [of.waiting, of.running, of.replicas].map(f64::from);
        [of.at_s, waiting, running, of.output_tokens_per_s, of.kv_tokens, replicas, of.cost_usd.unwrap_or(0.0)]
    };
    Curves {
        policy: choice.name.clone(),
        latencies_s: rows::curves(requests, served, POINTS),
        limits_s: [scenario.slo.ttft, scenario.slo.tpot, scenario.slo.e2e].map(|limit| limit.map(Seconds::get)),
        samples: rows::series(requests, fleet, served, POINTS).iter().map(sample).collect(),
    }
}
