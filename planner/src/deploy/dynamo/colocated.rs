//! The planner for replicas that do both phases (Dynamo's aggregated mode): a rate of requests per replica within both targets.
//!
//! Of B sequences that decode, B/OSL end in an iteration on average and as many prompts begin, so with t(B) an iteration that only decodes and
//! t(B, c) one that also computes chunk c of a prompt,
//!
//! ITL(B) = t(B) + B/OSL · Σ_c (t(B, c) − t(B));  TTFT(B) = ITL(B)/2 + Σ_c t(B, c);  rate(B) = B / (OSL · ITL(B)),
//!
//! and the largest B counts whose ITL and TTFT are within the targets, whose keys and values fit, and whose prompts leave a part of the
//! iterations alone: n = ceil(N/Δ / rate(B)). (Dynamo spreads prompts evenly over iterations; engines compute them as soon as they come.)
//! Where an iteration gives a sequence a tokens of drafts, an answer takes OSL/a of them and ITL is an a-th of an iteration.
//! The target between tokens is divided by ITL observed / expected, as for decode replicas. Units: seconds, requests per second and replica.

use serve::fleet::scaler::GroupSeen;
use serve::replica::Engine;

use super::profile::{batch_max, decode_s, prompt_s};
use super::{Observed, RentalError, Rules, Traffic, count, positive};
use crate::proof::{Aim, Bound, Decision, RunnerUp, Status};

/// Equal replicas of an engine.
#[derive(Clone, Debug)]
pub struct Colocated<'e> {
    /// What a replica runs.
    pub engine: &'e Engine,
    /// GPUs of a replica.
    pub n_gpus: u32,
    /// Targets and limits.
    pub rules: Rules,
    /// Tokens that an iteration gives a sequence.
    pub tokens_per_step: f64,
}

/// A replica in the steady state with so many decoding sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Mean time between tokens, seconds.
    pub itl_s: f64,
    /// Time to the first token without a queue, seconds.
    pub ttft_s: f64,
    /// Requests per second.
    pub requests_per_s: f64,
    /// Part of the iterations that compute prompts.
    pub prompts_ratio: f64,
}

/// The largest rate of a replica, and what holds it back.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// Requests per second.
    pub requests_per_s: f64,
    /// Decoding sequences.
    pub batch: u32,
    /// What a larger batch would break.
    pub binding: &'static str,
}

impl Colocated<'_> {
    /// The steady state of a batch.
    pub fn point(&self, batch: u32, traffic: &Traffic) -> Point {
        let context = traffic.input + traffic.output / 2.0;
        let prompt = super::whole(traffic.input.max(1.0));
        let alone = decode_s(self.engine, batch, context);
        let with = prompt_s(self.engine, prompt, batch, context);
        let per_step = f64::from(batch) * self.tokens_per_step / traffic.output.max(1.0);
        let added: f64 = with.iter().map(|seconds| (seconds - alone).max(0.0)).sum();
        let step_s = alone + per_step * added;
        Point {
            itl_s: step_s / self.tokens_per_step,
            ttft_s: step_s / 2.0 + with.iter().sum::<f64>(),
            requests_per_s: per_step / step_s,
            prompts_ratio: per_step * hw::real(with.len() as u64),
        }
    }

    /// What a batch breaks of targets and iterations, where it does.
    fn breaks(&self, batch: u32, traffic: &Traffic, itl_s: f64) -> Option<&'static str> {
        let point = self.point(batch, traffic);
        let over = |found: f64, limit: f64| found > limit * (1.0 + 1e-9);
        [
            (over(point.itl_s, itl_s), "the target between tokens"),
            (over(point.ttft_s, self.rules.ttft_s), "the target of first tokens"),
            (over(point.prompts_ratio, 1.0), "iterations full of prompts"),
        ]
        .into_iter()
        .find_map(|(is_over, words)| is_over.then_some(words))
    }

    /// The largest rate within the targets, that between tokens being `itl_s`; all three figures of a point rise with the batch.
    ///
    /// # Errors
    /// Where even one sequence breaks a target; says which.
    pub fn rate(&self, traffic: &Traffic, itl_s: f64) -> Result<Rate, RentalError> {
        if let Some(words) = self.breaks(1, traffic, itl_s) {
            let Point { itl_s: itl, ttft_s, .. } = self.point(1, traffic);
            let what = format!(
                "one sequence alone breaks {words}: {ttft_s:.4} s to the first token and {itl:.4} s between tokens"
            );
            return Err(RentalError::Infeasible(format!(
                "{what}; {:.4} s and {itl_s:.4} s are allowed",
                self.rules.ttft_s
            )));
        }
        let most = batch_max(self.engine, traffic.input + traffic.output / 2.0);
        let (mut low, mut high) = (1, most + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.breaks(middle, traffic, itl_s).is_none() {
                low = middle;
            } else {
                high = middle;
            }
        }
        let binding = self.breaks(high, traffic, itl_s).filter(|_| high <= most);
        let requests_per_s = self.point(low, traffic).requests_per_s;
        Ok(Rate { requests_per_s, batch: low, binding: binding.unwrap_or("sequences and memory of a replica") })
    }

    /// Time between tokens that is expected where a replica serves such a rate.
    pub fn itl_s(&self, traffic: &Traffic, requests_per_s: f64) -> f64 {
        let (mut low, mut high) = (1, batch_max(self.engine, traffic.input + traffic.output / 2.0));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.point(middle, traffic).requests_per_s >= requests_per_s {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.point(low, traffic).itl_s
    }

    /// Replicas that traffic takes, in parts of one, without correction.
    ///
    /// # Errors
    /// Where even one sequence breaks a target.
    pub fn load(&self, traffic: &Traffic) -> Result<f64, RentalError> {
        let rate = self.rate(traffic, self.rules.itl_s)?;
        Ok(traffic.requests / self.rules.interval_s / rate.requests_per_s)
    }

    /// Replicas for an interval of that traffic after the one that was observed.
    ///
    /// # Errors
    /// On figures without meaning, where one sequence alone breaks a target, or where the GPUs do not suffice for one replica.
    pub fn plan(
        &self,
        observed: &Observed,
        next: &Traffic,
        now: Option<GroupSeen>,
    ) -> Result<Decision<u32>, RentalError> {
        self.rules.check(observed, next)?;
        let most = self.rules.n_gpus_max / self.n_gpus.max(1);
        if most == 0 {
            let (n, max) = (self.n_gpus, self.rules.n_gpus_max);
            return Err(RentalError::Infeasible(format!("one replica takes {n} GPUs, {max} are allowed")));
        }
        let correction = match (observed.itl_s, now) {
            (Some(seen), Some(now)) => {
                let per_s = observed.traffic.requests / self.rules.interval_s / f64::from(now.up.max(1));
                seen / self.itl_s(&observed.traffic, per_s)
            }
            _ => 1.0,
        };
        let correction = if positive(correction) { correction } else { 1.0 };
        let rate = self.rate(next, self.rules.itl_s / correction)?;
        let load = next.requests / self.rules.interval_s / rate.requests_per_s;
        let asked = count(load, 1);
        let slow = now.map_or(asked, |now| self.rules.slow(asked, now.current));
        let replicas = slow.min(most);
        let binding = if slow > most {
            format!("budget of {} GPUs: the load asks for {}", self.rules.n_gpus_max, slow * self.n_gpus)
        } else if slow != asked {
            format!("change of {} replicas at most: {asked} were asked", self.rules.change_max)
        } else {
            format!("load of {load:.3} replicas, held at {} sequences by {}", rate.batch, rate.binding)
        };
        Ok(self.decided(replicas, load, &binding))
    }

    /// Replicas with the load as a bound, and one more as the second choice; the limit says what one fewer would carry.
    fn decided(&self, replicas: u32, load: f64, binding: &str) -> Decision<u32> {
        let gpus = |n: f64| n * f64::from(self.n_gpus);
        let objective = gpus(f64::from(replicas));
        let share = load / f64::from(replicas.saturating_sub(1));
        let fewer = format!("; one replica fewer would carry {share:.3} of its rate");
        let limit = if share.is_finite() { format!("{binding}{fewer}") } else { binding.to_owned() };
        let more = RunnerUp { plan: replicas.saturating_add(1), objective: objective + gpus(1.0) };
        let more = Some(more).filter(|more| more.objective <= f64::from(self.rules.n_gpus_max));
        let bound = Bound::plain(gpus(load).min(objective));
        let decision = Decision::new(replicas, Aim::Gpus, objective).bounded(Some(bound), Status::Heuristic);
        decision.limited(limit).beside(more)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use hw::Seconds;
    use serve::replica::{Limits, Spans};
    use serve::step_cost::StepTable;

    use super::*;

    /// Iterations of 10 ms, 0.1 ms more per token, nothing for keys.
    pub fn engine(sequences_max: u32) -> Engine {
        let limits =
            Limits { sequences_max, tokens_max: 512, context_max: 1 << 16, kv_blocks: 1 << 14, ..Limits::ROOMY };
        let table = StepTable::linear(Seconds::new(0.01), Seconds::new(1e-4), Seconds::ZERO);
        let batcher = serve::batcher::named("vllm-v1").expect("listed");
        Engine { limits, table, batcher, spans: Spans::Closed }
    }

    const RULES: Rules = Rules { ttft_s: 0.2, itl_s: 0.02, interval_s: 60.0, n_gpus_max: 64, change_max: 8 };

    fn traffic(requests: f64, input: f64, output: f64) -> Traffic {
        Traffic { requests, input, output }
    }

    fn seen(traffic: Traffic, itl_s: Option<f64>) -> Observed {
        Observed { traffic, ttft_s: None, itl_s }
    }

    #[test]
    fn the_rate_of_a_replica_by_hand() {
        // B sequences decode in 10 ms + 0.1 ms · B, and a prompt of 300 tokens adds 30 ms to one iteration. With 100 tokens of output,
        // ITL = 10 + 0.1 B + B/100 · 30 = 10 + 0.4 B ms: 20 ms at B = 25, which ends 25 / (100 · 0.02 s) = 12.5 requests per second.
        let engine = engine(200);
        let found = Colocated { engine: &engine, n_gpus: 1, rules: RULES, tokens_per_step: 1.0 };
        let of = traffic(1.0, 300.0, 100.0);
        let rate = found.rate(&of, RULES.itl_s).expect("a rate");
        assert_eq!((rate.batch, rate.binding), (25, "the target between tokens"));
        assert!((rate.requests_per_s - 12.5).abs() < 1e-6, "{rate:?}");
        // First token at B = 25: half of 20 ms, and the iteration of 10 + 2.5 + 30 ms.
        assert!((found.point(25, &of).ttft_s - 0.0525).abs() < 1e-6);
        assert!((found.itl_s(&of, 12.5 - 1e-6) - 0.02).abs() < 1e-6, "the inverse of the rate");
        // A prompt of 600 tokens takes two iterations: the first token of a batch that keeps the target takes 12 + 51.2 … ms.
        let tight = Colocated { rules: Rules { ttft_s: 0.04, ..RULES }, ..found.clone() };
        assert!(
            tight.rate(&of, RULES.itl_s).is_err_and(|error| error.to_string().contains("the target of first tokens"))
        );
        let few = super::super::profile::batch_max(&self::engine(7), 350.0);
        assert_eq!(few, 7);
    }

    #[test]
    fn accepted_drafts_give_several_tokens_in_an_iteration() {
        use serve::speculation::Speculation;

        let drafts = Speculation { n_drafts: 3, tree: None, acceptance: 1.0, per_draft: Seconds::ZERO, seed: 0 };
        let plain = engine(200);
        let engine = Engine { table: plain.table.clone().speculating(&drafts), ..plain };
        assert!((super::super::profile::tokens_per_step(&engine) - 4.0).abs() < 1e-12);
        let found = Colocated { engine: &engine, n_gpus: 1, rules: RULES, tokens_per_step: 4.0 };
        // Ten sequences verify four tokens each: 10 + 4 ms. An answer of 100 tokens takes 25 iterations, so 0.4 of them end in one, and as many prompts of 30 ms
        // begin: 26 ms for four tokens of each.
        let point = found.point(10, &traffic(1.0, 300.0, 100.0));
        assert!((point.itl_s - 0.0065).abs() < 1e-6 && (point.requests_per_s - 0.4 / 0.026).abs() < 1e-4, "{point:?}");
    }

    #[test]
    fn constant_load_takes_its_rate_rounded_up_and_stays() {
        let engine = engine(200);
        let found = Colocated { engine: &engine, n_gpus: 2, rules: RULES, tokens_per_step: 1.0 };
        for per_s in [0.1, 12.4, 12.6, 50.1, 99.0] {
            let of = traffic(per_s * 60.0, 300.0, 100.0);
            let expected = super::super::whole((per_s / 12.5_f64).ceil());
            let mut now = None;
            for _ in 0..6 {
                // A plant that is as its profile says.
                let itl = now.map(|n: u32| found.itl_s(&of, per_s / f64::from(n)));
                let groups = now.map(|n| GroupSeen { up: n, current: n, in_system: 0.0 });
                let count = found.plan(&seen(of, itl), &of, groups).expect("a count");
                assert_eq!(count.plan, expected, "{per_s} per second");
                assert!(count.bound().expect("bounded") <= 2.0 * f64::from(expected));
                now = Some(count.plan);
            }
        }
    }

    #[test]
    fn a_slow_plant_gets_more_and_limits_are_named() {
        let engine = engine(200);
        let found = Colocated { engine: &engine, n_gpus: 1, rules: RULES, tokens_per_step: 1.0 };
        let of = traffic(100.0 * 60.0, 300.0, 100.0);
        let now = |n| Some(GroupSeen { up: n, current: n, in_system: 0.0 });
        let slow = 1.2 * found.itl_s(&of, 100.0 / 8.0);
        let more = found.plan(&seen(of, Some(slow)), &of, now(8)).expect("a count");
        // ITL* / 1.2 = 16.7 ms at B = 16.67: 16 end 16 / (100 · 16.4 ms) = 9.756 per second, 10.25 replicas.
        assert_eq!(more.plan, 11);
        let words = |count: Result<Decision<u32>, RentalError>| count.expect("a count").limit;
        assert!(words(found.plan(&seen(of, None), &of, now(30))).starts_with("change of 8 replicas at most"));
        let tight = Colocated { rules: Rules { n_gpus_max: 3, ..RULES }, ..found.clone() };
        assert!(words(tight.plan(&seen(of, None), &of, None)).starts_with("budget of 3 GPUs"));
        let none = Colocated { rules: Rules { n_gpus_max: 0, ..RULES }, ..found };
        assert!(none.plan(&seen(of, None), &of, None).is_err());
    }
}
