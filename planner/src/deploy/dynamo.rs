//! NVIDIA Dynamo's planner (ai-dynamo/dynamo, design document): prefill and decode replicas for the next interval, from averages.
//!
//! With N requests of mean lengths ISL and OSL per interval Δ, profiled rates thr per GPU, g GPUs per replica, and corrections
//! k_p = TTFT observed / expected, k_d = ITL observed / expected of the last interval:
//!
//! n_p = ceil(N·ISL/Δ·min(1, k_p) / thr_p / g_p);  n_d = ceil(N·OSL/Δ / thr_d / g_d),
//!
//! where thr_d is the largest profiled rate with ITL <= ITL*/k_d at the context ISL + OSL/2. N, ISL and OSL of the next interval are forecast
//! (`dynamo/forecast.rs`); profiles come from an engine's iteration times (`dynamo/profile.rs`), replicas that do both phases are in
//! `dynamo/colocated.rs`, and `dynamo/online.rs` plans a fleet that serves. Known limits, kept: means only, so that mixed lengths miss
//! targets unseen; no term for start-up time.
//!
//! Units: seconds, tokens per second and GPU. The objective is GPUs; its bound is the load without rounding up, the runner-up has one replica more.

pub mod colocated;
pub mod forecast;
pub mod online;
pub mod planned;
pub mod profile;

use serve::fleet::scaler::GroupSeen;

use super::{RentalError, whole};
use crate::proof::{Aim, Bound, Decision, RunnerUp, Status};

/// Halvings of the interval of profiled rates: more than a float can tell apart.
const BISECTIONS: usize = 60;

/// A profiled prompt length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefill {
    /// Tokens of the prompt.
    pub input: f64,
    /// Time to the first token, seconds.
    pub ttft_s: f64,
    /// Prompt tokens per second and GPU.
    pub tokens_per_s: f64,
}

/// A profiled load of decoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Tokens in the cache of each request.
    pub context: f64,
    /// Time between tokens, seconds.
    pub itl_s: f64,
    /// Generated tokens per second and GPU.
    pub tokens_per_s: f64,
}

/// What holds for every decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Target of the time to the first token, seconds.
    pub ttft_s: f64,
    /// Target of the time between tokens, seconds.
    pub itl_s: f64,
    /// Length of an interval, seconds; 180 by default there.
    pub interval_s: f64,
    /// GPUs at most.
    pub n_gpus_max: u32,
    /// Replicas of a phase that one decision may add or take away; 8 in newer versions.
    pub change_max: u32,
}

/// What is deployed, and how well it must serve.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Rows by prompt length.
    pub prefill: Vec<Prefill>,
    /// Rows by context, and in each context by rate.
    pub decode: Vec<Decode>,
    /// GPUs of a prefill replica.
    pub prefill_gpus: u32,
    /// GPUs of a decode replica.
    pub decode_gpus: u32,
    /// Targets and limits.
    pub rules: Rules,
}

/// Requests of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Requests that arrive.
    pub requests: f64,
    /// Mean tokens of a prompt.
    pub input: f64,
    /// Mean tokens of an answer.
    pub output: f64,
}

/// Averages of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// What arrived.
    pub traffic: Traffic,
    /// Mean time to the first token, seconds; `None` before anything was served.
    pub ttft_s: Option<f64>,
    /// Mean time between tokens, seconds; `None` before anything was served.
    pub itl_s: Option<f64>,
}

/// What traffic needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loads {
    /// GPUs of prefill replicas.
    pub prefill: f64,
    /// GPUs of decode replicas.
    pub decode: f64,
    /// Rate of a GPU that decoding is planned with, tokens per second.
    pub decode_tokens_per_s: f64,
}

/// Replicas of the next interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replicas {
    /// Prefill replicas.
    pub prefill: u32,
    /// Decode replicas.
    pub decode: u32,
    /// Rate of a GPU that decoding was planned with, tokens per second.
    pub decode_tokens_per_s: f64,
    /// Whether a length lay outside of the profile, whose border then counted.
    pub is_outside: bool,
}

fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

impl Rules {
    /// Names the first figure that has no meaning, of these and of what was observed and forecast.
    fn check(&self, observed: &Observed, next: &Traffic) -> Result<(), RentalError> {
        let named = [("ttft_s", self.ttft_s), ("itl_s", self.itl_s), ("interval_s", self.interval_s)];
        let of =
            |traffic: &Traffic| [("input", traffic.input), ("output", traffic.output), ("requests", traffic.requests)];
        let seen = [("observed ttft_s", observed.ttft_s), ("observed itl_s", observed.itl_s)];
        let seen = seen.into_iter().filter_map(|(name, value)| value.map(|value| (name, value)));
        let mut all = named.into_iter().chain(of(&observed.traffic)).chain(of(next)).chain(seen);
        match all.find(|(_, value)| !positive(*value)) {
            Some((name, value)) => Err(RentalError::Input(format!("`{name}` must be above 0, found {value}"))),
            None => Ok(()),
        }
    }

    /// A count within the change that a decision may make.
    fn slow(&self, to: u32, from: u32) -> u32 {
        to.clamp(from.saturating_sub(self.change_max).max(1), from.saturating_add(self.change_max))
    }
}

/// Replicas for a load in GPUs.
fn count(load: f64, gpus: u32) -> u32 {
    whole((load / f64::from(gpus) - 1e-9).ceil().max(1.0))
}

fn check(service: &Service) -> Result<(), RentalError> {
    let input = |message: String| Err(RentalError::Input(message));
    if service.prefill.is_empty() || service.decode.is_empty() {
        return input("a profile has no row: both phases need one".to_owned());
    }
    let prefill = service.prefill.iter().all(|row| [row.input, row.ttft_s, row.tokens_per_s].into_iter().all(positive));
    let decode = service.decode.iter().all(|row| [row.context, row.itl_s, row.tokens_per_s].into_iter().all(positive));
    if !(prefill && decode) {
        return input("every figure of a profile must be above 0".to_owned());
    }
    if service.prefill_gpus == 0 || service.decode_gpus == 0 {
        return input("a replica has 1 GPU or more, found 0".to_owned());
    }
    Ok(())
}

/// Linear between the neighbours of x, the border's value outside; rows are sorted by their first figure.
fn between(rows: &[(f64, f64)], x: f64) -> f64 {
    let after = rows.partition_point(|row| row.0 < x);
    match (after.checked_sub(1).map(|before| rows[before]), rows.get(after)) {
        (Some((a, of_a)), Some(&(b, of_b))) => of_a + (of_b - of_a) * (x - a) / (b - a),
        (Some((_, value)), None) | (None, Some(&(_, value))) => value,
        (None, None) => 0.0,
    }
}

fn sorted(mut rows: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    rows.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    rows.dedup_by(|a, b| a.0 == b.0);
    rows
}

/// Rows of each profiled context.
fn contexts(service: &Service) -> Vec<(f64, Vec<&Decode>)> {
    let mut rows: Vec<&Decode> = service.decode.iter().collect();
    rows.sort_by(|a, b| a.context.total_cmp(&b.context).then(a.itl_s.total_cmp(&b.itl_s)));
    let mut all: Vec<(f64, Vec<&Decode>)> = Vec::new();
    for row in rows {
        match all.last_mut() {
            Some((context, of)) if *context == row.context => of.push(row),
            _ => all.push((row.context, vec![row])),
        }
    }
    all
}

/// Largest profiled rate of a GPU at a context: what a full batch gives.
fn decode_rate_max(service: &Service, context: f64) -> f64 {
    between(&contexts(service).into_iter().map(|(at, rows)| (at, most(&rows))).collect::<Vec<_>>(), context)
}

/// The largest rate of some rows.
fn most(rows: &[&Decode]) -> f64 {
    rows.iter().map(|row| row.tokens_per_s).fold(0.0, f64::max)
}

/// Largest profiled rate of a GPU within a time between tokens at a context, between the rows the inverse of `itl_s`; `None` where even the
/// least is slower. Times between tokens rise with the rate.
pub fn decode_rate(service: &Service, target_s: f64, context: f64) -> Option<f64> {
    let mut low = service.decode.iter().map(|row| row.tokens_per_s).fold(f64::INFINITY, f64::min);
    let mut high = decode_rate_max(service, context).max(low);
    let holds = |rate: f64| itl_s(service, rate, context) <= target_s * (1.0 + 1e-9);
    if service.decode.is_empty() || !holds(low) {
        return None;
    }
    if holds(high) {
        return Some(high);
    }
    for _ in 0..BISECTIONS {
        let middle = low.midpoint(high);
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}

/// Time between tokens at a rate of a GPU and a context.
pub fn itl_s(service: &Service, tokens_per_s: f64, context: f64) -> f64 {
    let at = contexts(service).into_iter().map(|(context, rows)| {
        let curve = sorted(rows.iter().map(|row| (row.tokens_per_s, row.itl_s)).collect());
        (context, between(&curve, tokens_per_s))
    });
    between(&at.collect::<Vec<_>>(), context)
}

/// What traffic needs under the target between tokens, where everything takes `k_decode` times as long between tokens as profiled and prompts
/// count `k_prefill` times.
///
/// # Errors
/// Where no profiled rate meets the target between tokens.
pub fn loads(service: &Service, traffic: &Traffic, k_prefill: f64, k_decode: f64) -> Result<Loads, RentalError> {
    let context = traffic.input + traffic.output / 2.0;
    let target = service.rules.itl_s / k_decode;
    let decode_tokens_per_s = decode_rate(service, target, context).ok_or_else(|| {
        RentalError::Infeasible(format!(
            "no profiled rate keeps {target:.4} s between tokens at a context of {context:.0}"
        ))
    })?;
    let rates = sorted(service.prefill.iter().map(|row| (row.input, row.tokens_per_s)).collect());
    let per_s = traffic.requests / service.rules.interval_s;
    let prefill = per_s * traffic.input * k_prefill / between(&rates, traffic.input);
    Ok(Loads { prefill, decode: per_s * traffic.output / decode_tokens_per_s, decode_tokens_per_s })
}

/// TTFT and ITL observed over expected; prompts count at most once, as a longer TTFT is put down to queues.
fn corrections(service: &Service, observed: &Observed, now: Option<[GroupSeen; 2]>) -> (f64, f64) {
    let Traffic { requests, input, output } = observed.traffic;
    let ttft = sorted(service.prefill.iter().map(|row| (row.input, row.ttft_s)).collect());
    let k_prefill = observed.ttft_s.map_or(1.0, |seen| seen / between(&ttft, input));
    let k_decode = match (observed.itl_s, now) {
        (Some(seen), Some([_, decode])) => {
            let carried = requests * output / service.rules.interval_s;
            let per_gpu = carried / f64::from(decode.up.max(1)) / f64::from(service.decode_gpus);
            seen / itl_s(service, per_gpu, input + output / 2.0)
        }
        _ => 1.0,
    };
    (k_prefill.min(1.0), k_decode)
}

/// Replicas for an interval of that traffic after the one that was observed; the limit says what decided, and what one replica fewer would carry. `now` are the prefill and decode replicas, `None` at the start.
///
/// # Errors
/// On figures without meaning, where no profiled rate meets the target between tokens, or where the GPUs do not suffice for one replica of
/// each phase.
pub fn plan(
    service: &Service,
    observed: &Observed,
    next: &Traffic,
    now: Option<[GroupSeen; 2]>,
) -> Result<Decision<Replicas>, RentalError> {
    check(service)?;
    service.rules.check(observed, next)?;
    let (k_prefill, k_decode) = corrections(service, observed, now);
    let loads = loads(service, next, k_prefill, k_decode)?;
    let mut prefill = count(loads.prefill, service.prefill_gpus);
    let mut decode = count(loads.decode, service.decode_gpus);
    let mut binding = binding_load(service, loads.prefill, loads.decode);
    if let Some([of_prefill, of_decode]) = now {
        let asked = (prefill, decode);
        (prefill, decode) =
            (service.rules.slow(prefill, of_prefill.current), service.rules.slow(decode, of_decode.current));
        if asked != (prefill, decode) {
            let most = service.rules.change_max;
            binding = format!("change of {most} replicas at most: {} and {} were asked", asked.0, asked.1);
        }
    }
    if let Some(words) = fit(service, &mut prefill, &mut decode)? {
        binding = words;
    }
    let lengths = |rows: &mut dyn Iterator<Item = f64>| {
        rows.fold((f64::INFINITY, 0.0_f64), |(low, high), x| (low.min(x), high.max(x)))
    };
    let (low, high) = lengths(&mut service.prefill.iter().map(|row| row.input));
    let (near, far) = lengths(&mut service.decode.iter().map(|row| row.context));
    let context = next.input + next.output / 2.0;
    let is_outside = next.input < low || next.input > high || context < near || context > far;
    let replicas = Replicas { prefill, decode, decode_tokens_per_s: loads.decode_tokens_per_s, is_outside };
    Ok(decided(service, replicas, &loads, &binding))
}

fn binding_load(service: &Service, prefill_load: f64, decode_load: f64) -> String {
    let (prefill, decode) =
        (prefill_load.max(f64::from(service.prefill_gpus)), decode_load.max(f64::from(service.decode_gpus)));
    let (phase, load) = if prefill > decode { ("prefill", prefill_load) } else { ("decode", decode_load) };
    format!("{phase} load: {load:.3} GPUs")
}

/// Shrinks both phases in proportion to the GPUs that there are; in words where that was needed.
fn fit(service: &Service, prefill: &mut u32, decode: &mut u32) -> Result<Option<String>, RentalError> {
    let gpus =
        |p: u32, d: u32| u64::from(p) * u64::from(service.prefill_gpus) + u64::from(d) * u64::from(service.decode_gpus);
    let most = u64::from(service.rules.n_gpus_max);
    if gpus(1, 1) > most {
        let least = gpus(1, 1);
        return Err(RentalError::Infeasible(format!(
            "one replica of each phase takes {least} GPUs, {most} are allowed"
        )));
    }
    let asked = gpus(*prefill, *decode);
    if asked <= most {
        return Ok(None);
    }
    let part = f64::from(service.rules.n_gpus_max) / hw::real(asked);
    *prefill = whole((f64::from(*prefill) * part).floor().max(1.0));
    // What one replica of prefill at least takes must not come on top.
    let left = most.saturating_sub(gpus(*prefill, 0)) / u64::from(service.decode_gpus);
    let scaled = u64::from(whole((f64::from(*decode) * part).floor().max(1.0)));
    *decode = u32::try_from(left.min(scaled)).unwrap_or(u32::MAX);
    if *decode == 0 {
        *decode = 1;
        let left = most.saturating_sub(gpus(0, 1)) / u64::from(service.prefill_gpus);
        *prefill = u32::try_from(left).unwrap_or(u32::MAX).min(*prefill);
    }
    Ok(Some(format!("budget of {most} GPUs: the load asks for {asked}")))
}

/// GPUs of both phases.
fn gpus(service: &Service, prefill: u32, decode: u32) -> f64 {
    f64::from(prefill) * f64::from(service.prefill_gpus) + f64::from(decode) * f64::from(service.decode_gpus)
}

/// Replicas with the loads as a bound, and one more where it takes fewest GPUs as the second choice.
fn decided(service: &Service, replicas: Replicas, loads: &Loads, binding: &str) -> Decision<Replicas> {
    let objective = gpus(service, replicas.prefill, replicas.decode);
    let bound = Bound::plain((loads.prefill + loads.decode).min(objective));
    let limit = format!("{binding}{}", one_fewer(service, &replicas, loads));
    let more = if service.prefill_gpus < service.decode_gpus {
        Replicas { prefill: replicas.prefill.saturating_add(1), ..replicas }
    } else {
        Replicas { decode: replicas.decode.saturating_add(1), ..replicas }
    };
    let second = RunnerUp { objective: gpus(service, more.prefill, more.decode), plan: more };
    let second = Some(second).filter(|second| second.objective <= f64::from(service.rules.n_gpus_max));
    let decision = Decision::new(replicas, Aim::Gpus, objective).bounded(Some(bound), Status::Heuristic);
    decision.limited(limit).beside(second)
}

/// What one replica fewer would carry, in the phase that it would overload less; nothing where each phase has one.
fn one_fewer(service: &Service, replicas: &Replicas, loads: &Loads) -> String {
    let over = |load: f64, n: u32, gpus: u32| load / f64::from(n.saturating_sub(1)) / f64::from(gpus);
    let prefill = over(loads.prefill, replicas.prefill, service.prefill_gpus);
    let decode = over(loads.decode, replicas.decode, service.decode_gpus);
    let (phase, load) = if prefill < decode { ("prefill", prefill) } else { ("decode", decode) };
    if load.is_finite() {
        format!("; one {phase} replica fewer would carry {load:.3} of its rate")
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Service {
        let decode = |context, itl_s, tokens_per_s| Decode { context, itl_s, tokens_per_s };
        let prefill = |input, ttft_s, tokens_per_s| Prefill { input, ttft_s, tokens_per_s };
        Service {
            prefill: vec![prefill(1000.0, 0.1, 10_000.0), prefill(3000.0, 0.3, 8000.0)],
            decode: vec![
                decode(1000.0, 0.01, 100.0),
                decode(1000.0, 0.02, 400.0),
                decode(3000.0, 0.02, 100.0),
                decode(3000.0, 0.04, 400.0),
            ],
            prefill_gpus: 1,
            decode_gpus: 2,
            rules: Rules { ttft_s: 0.5, itl_s: 0.02, interval_s: 100.0, n_gpus_max: 1000, change_max: 100 },
        }
    }

    fn ruled(rules: impl Fn(Rules) -> Rules) -> Service {
        Service { rules: rules(service().rules), ..service() }
    }

    /// The next interval is taken to be like the last one.
    fn constant(service: &Service, seen: &Observed, now: Option<&Replicas>) -> Result<Decision<Replicas>, RentalError> {
        let all = |n| GroupSeen { up: n, current: n, in_system: 0.0 };
        plan(service, seen, &seen.traffic, now.map(|now| [all(now.prefill), all(now.decode)]))
    }

    fn observed(requests: f64, input: f64, output: f64) -> Observed {
        Observed { traffic: Traffic { requests, input, output }, ttft_s: None, itl_s: None }
    }

    #[test]
    fn replicas_by_hand() {
        // 400 requests of 2,000 + 200 tokens in 100 s: 8,000 prompt tokens/s over 9,000 per GPU is one replica. At a context of 2,100 a token
        // takes 0.0155·(1 + x) s with x = (rate - 100)/300, which is 0.02 s at x = 0.2903: 187.1 per GPU; 800 tokens/s take 4.276 GPUs,
        // three replicas of two.
        let found = constant(&service(), &observed(400.0, 2000.0, 200.0), None).expect("replicas");
        assert_eq!((found.plan.prefill, found.plan.decode), (1, 3));
        assert!((found.plan.decode_tokens_per_s - (100.0 + 300.0 * 9.0 / 31.0)).abs() < 1e-6);
        assert_eq!(found.limit, "decode load: 4.276 GPUs; one decode replica fewer would carry 1.069 of its rate");
        // One prefill replica of one GPU more than 1 + 3 · 2.
        assert_eq!(found.runner_up().expect("another").objective, 8.0);
        assert!(!found.plan.is_outside && found.bound().is_some_and(|bound| bound < 6.0));
        assert!(constant(&service(), &observed(400.0, 5000.0, 200.0), None).is_ok_and(|found| found.plan.is_outside));
    }

    #[test]
    fn constant_load_settles_in_two_intervals() {
        // A plant that is 1.2 times slower between tokens than its profile says, and on time for the first token.
        let service = service();
        let mut replicas: Option<Replicas> = None;
        let mut counts = Vec::new();
        for _ in 0..8 {
            let mut seen = observed(3000.0, 2000.0, 200.0);
            if let Some(now) = &replicas {
                let per_gpu = 3000.0 * 200.0 / 100.0 / f64::from(now.decode * 2);
                seen.itl_s = Some(1.2 * itl_s(&service, per_gpu, 2100.0));
                seen.ttft_s = Some(0.2);
            }
            let next = constant(&service, &seen, replicas.as_ref()).expect("replicas");
            let next = next.plan;
            counts.push((next.prefill, next.decode));
            replicas = Some(next);
        }
        assert!(counts[1].1 > counts[0].1, "{counts:?}");
        assert!(counts[2..].iter().all(|count| *count == counts[1]), "{counts:?}");
    }

    #[test]
    fn means_hide_the_long_requests_of_a_mixed_load() {
        // Half of the requests have a context of 1,100 and half of 3,000: planned for the mean, the long half waits longer than the target.
        let service = service();
        let found = constant(&service, &observed(4000.0, 1950.0, 200.0), None).expect("replicas");
        let per_gpu = 4000.0 * 200.0 / 100.0 / f64::from(found.plan.decode * 2);
        assert!(itl_s(&service, per_gpu, 2050.0) <= service.rules.itl_s);
        assert!(itl_s(&service, per_gpu, 3000.0) > service.rules.itl_s);
    }

    #[test]
    fn the_budget_and_the_change_are_kept_and_named() {
        let tight = ruled(|rules| Rules { n_gpus_max: 6, ..rules });
        let found = constant(&tight, &observed(4000.0, 2000.0, 200.0), None).expect("replicas");
        let count = &found.plan;
        assert!(count.prefill + 2 * count.decode <= 6 && count.prefill >= 1 && count.decode >= 1, "{found:?}");
        assert!(found.limit.starts_with("budget of 6 GPUs: the load asks for"), "{}", found.limit);
        let slow = ruled(|rules| Rules { change_max: 2, ..rules });
        let first = constant(&slow, &observed(400.0, 2000.0, 200.0), None).expect("replicas").plan;
        let next = constant(&slow, &observed(40_000.0, 2000.0, 200.0), Some(&first)).expect("replicas");
        assert_eq!((next.plan.prefill, next.plan.decode), (first.prefill + 2, first.decode + 2));
        assert!(next.limit.starts_with("change of 2 replicas at most"), "{}", next.limit);
    }

    #[test]
    fn bad_input_has_a_named_reason() {
        let load = observed(400.0, 2000.0, 200.0);
        let cases = [
            (Service { prefill: Vec::new(), ..service() }, load, "a profile has no row: both phases need one"),
            (ruled(|rules| Rules { itl_s: 0.0, ..rules }), load, "`itl_s` must be above 0, found 0"),
            (Service { decode_gpus: 0, ..service() }, load, "a replica has 1 GPU or more, found 0"),
            (service(), observed(0.0, 2000.0, 200.0), "`requests` must be above 0, found 0"),
            (service(), observed(f64::NAN, 2000.0, 200.0), "`requests` must be above 0, found NaN"),
            (
                ruled(|rules| Rules { itl_s: 0.001, ..rules }),
                load,
                "no profiled rate keeps 0.0010 s between tokens at a context of 2100",
            ),
            (
                ruled(|rules| Rules { n_gpus_max: 2, ..rules }),
                load,
                "one replica of each phase takes 3 GPUs, 2 are allowed",
            ),
        ];
        for (service, observed, message) in cases {
            assert_eq!(constant(&service, &observed, None).expect_err(message).to_string(), message);
        }
    }
}
