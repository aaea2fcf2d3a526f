//! From a checked scenario of endpoints to a result: the closed form of each setting, or why there is none.

use std::collections::BTreeMap;
use std::time::Instant;

use engine::cost::Source;
use reports::{CostModelFacts, Measured, PolicyResult, RunResult};

use crate::kinds::endpoint::read::{Endpoint, Endpoints};
use crate::kinds::{self, Kind};
use crate::scenario::Head;

/// What the table shows: key and heading.
const COLUMNS: [(&str, &str); 4] = [
    ("output_tokens_per_s_per_gpu", "tokens/s/GPU"),
    ("ttft_s.mean", "TTFT mean"),
    ("tpot_s.mean", "TPOT mean"),
    ("output_tokens_per_s_per_user", "tokens/s/user"),
];

impl Kind for Endpoints {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.list.iter().map(|endpoint| endpoint.name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        let results = kinds::rows(&self.list, |endpoint| &endpoint.name, done, |endpoint| row(self, endpoint));
        let worth = |row: &PolicyResult| row.metrics.get(COLUMNS[0].0).copied();
        let speedup_ratio = kinds::gains(&results, &self.head.baseline, worth);
        RunResult {
            cost_model: CostModelFacts {
                profile: "published/serving".to_owned(),
                source: Source::Published.name().to_owned(),
                free_parameters: vec![format!(
                    "all coefficients are fitted to published runs, one set per framework and kind of model: {}",
                    self.laws.source
                )],
                outside_hull_ratio: f64::NAN,
                ..CostModelFacts::default()
            },
            columns: kinds::columns(&COLUMNS),
            results,
            speedup_ratio,
            ..kinds::blank(&self.head)
        }
    }
}

fn row(scenario: &Endpoints, endpoint: &Endpoint) -> PolicyResult {
    let begun = Instant::now();
    let setting = endpoint.setting();
    let found = scenario.laws.steady(&endpoint.framework, &setting);
    let (mut metrics, mut interval) = (BTreeMap::new(), BTreeMap::new());
    let (status, why) = match &found {
        Err(why) => ("infeasible", why.clone()),
        Ok(steady) => {
            let [output, concurrency] = [setting.output, setting.concurrency].map(|n| hw::Tokens(n).as_f64());
            let e2e_s = steady.ttft.mean + (output - 1.0) * steady.tpot.mean;
            for (key, latency) in [("ttft_s.mean", steady.ttft), ("tpot_s.mean", steady.tpot)] {
                metrics.insert(key.to_owned(), latency.mean);
                interval.insert(key.to_owned(), latency.interval);
            }
            let rate = concurrency * output / e2e_s;
            metrics.insert("e2e_s.mean".to_owned(), e2e_s);
            metrics.insert("output_tokens_per_s".to_owned(), rate);
            metrics.insert("output_tokens_per_s_per_gpu".to_owned(), rate / f64::from(setting.gpus));
            metrics.insert("output_tokens_per_s_per_user".to_owned(), 1.0 / steady.tpot.mean);
            metrics.insert("sequences_held".to_owned(), setting.sequences_held().floor());
            let outside =
                steady.outside.map_or_else(String::new, |what| format!("; {what} outside of the fitted runs"));
            let held = setting.sequences_held();
            ("ok", format!("{} in flight of {held:.0} that memory holds{outside}", setting.concurrency))
        }
    };
    let simulate_wall_s = begun.elapsed().as_secs_f64();
    PolicyResult {
        policy: endpoint.name.clone(),
        status: status.to_owned(),
        why,
        metrics,
        interval,
        planner: None,
        measured: Measured { planner_wall_s: 0.0, simulate_wall_s },
    }
}
