//! A job that goes on step after step, and the cards that it runs on. Units: seconds, bytes, dollars.

use engine::random;
use hw::{BytesPerSecond, Cluster};

use super::{Failures, LongRun, hours, tokens_per_step};
use crate::problem::Problem;

/// GPUs of one type whose failures take a job down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failing {
    /// How many.
    pub n_gpus: u32,
    /// Mean time between failures of one of them, where it is not that of the run.
    pub gpu_mtbf_s: Option<f64>,
}

impl Failing {
    fn mtbf_s(self, of_run_s: f64) -> f64 {
        self.gpu_mtbf_s.unwrap_or(of_run_s)
    }
}

/// Cards of one type that a job runs on.
#[derive(Clone, Copy, Debug)]
pub struct Cards {
    /// How often they fail.
    pub failing: Failing,
    /// GPUs of a node.
    pub per_node: u32,
    /// Of a GPU to its host.
    pub host_bandwidth: BytesPerSecond,
    /// Of a GPU to other nodes.
    pub nic_bandwidth: BytesPerSecond,
    /// Dollars of a GPU and hour, where they are known.
    pub usd_per_hour: Option<f64>,
}

impl Cards {
    /// So many GPUs of a cluster, which fail as the run says.
    pub const fn of(cluster: &Cluster, n_gpus: u32, usd_per_hour: Option<f64>) -> Self {
        Self {
            failing: Failing { n_gpus, gpu_mtbf_s: None },
            per_node: cluster.gpus_per_node,
            host_bandwidth: cluster.gpu.host_bandwidth,
            nic_bandwidth: cluster.nic_bandwidth,
            usd_per_hour,
        }
    }

    /// Nodes that they lie on.
    pub(super) const fn n_nodes(&self) -> u32 {
        self.failing.n_gpus.div_ceil(self.per_node)
    }
}

/// A job that goes on step after step.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// What is trained.
    pub problem: &'a Problem,
    /// A step.
    pub step_s: f64,
    /// Tokens of a step.
    pub tokens: f64,
    /// GPUs whose failures take the job down, by type.
    pub cards: Vec<Cards>,
    /// GPUs that write the checkpoints, an equal part each.
    pub n_writers: u32,
    /// Dollars of a step beside those of its GPUs.
    pub usd_per_step: f64,
}

impl<'a> Job<'a> {
    /// Training alone, whose steps take so long.
    pub fn of_training(problem: &'a Problem, step_s: f64) -> Self {
        let (tokens, cluster) = (tokens_per_step(problem), &problem.cluster);
        let n_writers = cluster.n_gpus();
        let cards = vec![Cards::of(cluster, n_writers, cluster.gpu.usd_per_hour())];
        Self { problem, step_s, tokens, cards, n_writers, usd_per_step: 0.0 }
    }

    /// What fails of it.
    pub fn failing(&self) -> Vec<Failing> {
        self.cards.iter().map(|cards| cards.failing).collect()
    }

    /// Dollars of a run with so many nodes of each type that stand by, over steps of which so many were computed; `None` where a price is not known.
    pub(super) fn usd(&self, run: &LongRun, n_steps: f64) -> Option<f64> {
        let n_paid =
            |cards: &Cards| f64::from(cards.failing.n_gpus) + f64::from(run.spares) * f64::from(cards.per_node);
        let per_hour = self.cards.iter().map(|cards| Some(cards.usd_per_hour? * n_paid(cards))).sum::<Option<f64>>()?;
        Some(per_hour * run.span_s / hours(1.0) + self.usd_per_step * n_steps)
    }

    /// Which type each failure of one run is of: by how often each type fails.
    pub(super) fn struck(&self, run: &LongRun, draw: u64) -> Box<dyn FnMut() -> usize> {
        self.drawn(|cards| run.failures.per_s(cards.failing), ("cards that fail", draw))
    }

    /// Which type each node of one run is of that becomes slow: by how many nodes each type has.
    pub(super) fn slowed(&self, draw: u64) -> Box<dyn FnMut() -> usize> {
        self.drawn(|cards| f64::from(cards.n_nodes()), ("cards that are slow", draw))
    }

    /// Types by their shares, one draw after another.
    fn drawn(&self, share: impl Fn(&Cards) -> f64, (stream, draw): (&str, u64)) -> Box<dyn FnMut() -> usize> {
        let shares: Vec<f64> = self.cards.iter().map(share).collect();
        let (all, last) = (shares.iter().sum::<f64>(), shares.len() - 1);
        let mut stream = random::stream(self.problem.seed, stream).branch(draw);
        Box::new(move || {
            let mut left = if last > 0 { stream.unit() * all } else { 0.0 };
            let is_it = |share: &f64| {
                left -= share;
                left < 0.0
            };
            shares.iter().position(is_it).unwrap_or(last)
        })
    }
}

impl Failures {
    /// Failures per second of such cards; none where they are listed.
    fn per_s(&self, of: Failing) -> f64 {
        match self {
            Self::Rate { gpu_mtbf_s } => f64::from(of.n_gpus) / of.mtbf_s(*gpu_mtbf_s),
            Self::Trace { .. } => 0.0,
        }
    }

    /// Mean time between failures of all of them, in a run that is so long; endless where none is listed. Rates of types add up.
    pub(super) fn between_s(&self, failing: &[Failing], span_s: f64) -> f64 {
        match self {
            Self::Rate { gpu_mtbf_s } => {
                // As if all were of the first type, of which a GPU that fails twice as often is two.
                let first_s = failing.first().map_or(*gpu_mtbf_s, |of| of.mtbf_s(*gpu_mtbf_s));
                let n = |of: &Failing| f64::from(of.n_gpus) * (first_s / of.mtbf_s(*gpu_mtbf_s));
                first_s / failing.iter().map(n).sum::<f64>()
            }
            Self::Trace { at_s } if at_s.is_empty() => f64::INFINITY,
            Self::Trace { at_s } => span_s / super::count(at_s.len()),
        }
    }
}
