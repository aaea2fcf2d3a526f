//! What no run passes: on the placement of a run with its own mix of tokens and requests in flight, and before any run with the requests
//! of the scenario and room for them in caches. Units: tokens per second.

use std::collections::BTreeMap;

use hw::Time;
use serve::pool::{Outcome, Passed, Pool};
use serve::request::Request;

use super::{Machines, Traffic, on_pool};
use crate::Bound;
use crate::deploy::RentalError;

/// What was run.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'r> {
    /// What could arrive.
    pub requests: &'r [Request],
    /// From when on it counts.
    pub warm_up: Time,
    /// When it ended.
    pub until: Time,
}

/// Figures of a run beside those of the same span of time that nothing passes.
///
/// # Errors
/// When a linear program is not solved.
pub fn of_run(
    ran: &Ran<'_>,
    parts: &[Pool],
    outcomes: &[Outcome],
) -> Result<(BTreeMap<String, f64>, String), RentalError> {
    let until_s = (ran.until - Time::ZERO).to_seconds().get();
    let counted_s = (ran.until - ran.warm_up).to_seconds().get();
    let prompt_max = ran.requests.iter().map(|request| request.prompt).max().unwrap_or(0);
    let sum = |of: fn(&Outcome) -> &Passed, seconds: f64| -> Result<(f64, Vec<String>), RentalError> {
        let mut all = (0.0, Vec::new());
        for (pool, outcome) in parts.iter().zip(outcomes) {
            let Some(traffic) = Traffic::of_run(of(outcome), seconds, prompt_max) else { continue };
            let Bound { value, limit } = on_pool(pool, &traffic)?;
            all.0 += value;
            all.1.push(limit);
        }
        Ok(all)
    };
    let (from_start, _) = sum(|outcome| &outcome.from_start, until_s)?;
    let (within, binding) = sum(|outcome| &outcome.within, counted_s)?;
    let tokens = |of: fn(&Outcome) -> u64| hw::real(outcomes.iter().map(of).sum());
    // What came back in the counted time and was under way before is not bounded by its work, so it is added.
    let counted = tokens(|outcome| outcome.prompt_tokens + outcome.decode_tokens);
    let bound = within + (counted - tokens(|outcome| outcome.within.tokens())) / counted_s;
    let all = tokens(|outcome| outcome.from_start.tokens());
    let in_flight_ns = outcomes.iter().map(|outcome| outcome.within.in_flight_ns).sum();
    let figures = [
        ("bound_tokens_per_s", bound),
        ("bound_ratio", counted / counted_s / bound),
        ("bound_from_start_ratio", all / until_s / from_start),
        ("in_flight", hw::Span::from_ns(in_flight_ns).to_seconds().get() / counted_s),
    ];
    // Where nothing passed there is no ratio.
    let figures = figures.into_iter().filter(|figure| figure.1.is_finite());
    let words = format!("no run with this mix of tokens passes more than {bound:.0} tokens/s: {}", binding.join("; "));
    Ok((figures.map(|(key, value)| (key.to_owned(), value)).collect(), words))
}

/// The scenario's requests and the bound on any placement; nothing where there are no requests.
pub type OfPool = Result<Option<(Traffic, Bound)>, RentalError>;

/// What no placement passes in the long run with the scenario's requests and caches that are never overfilled: it depends on the scenario alone,
/// so all its policies share it.
///
/// # Errors
/// When a linear program is not solved.
pub fn of_pool(machines: &Machines, requests: &[Request]) -> OfPool {
    let Some(traffic) = Traffic::of_requests(requests) else { return Ok(None) };
    let any = machines.any_placement(&traffic)?;
    Ok(Some((traffic, any)))
}

/// The same on a placement, beside that on any.
///
/// # Errors
/// When a linear program is not solved.
pub fn of_plan(pool: Result<&Option<(Traffic, Bound)>, &RentalError>, parts: &[Pool]) -> Result<Most, RentalError> {
    let Some((traffic, any)) = pool.map_err(Clone::clone)? else { return Ok(Most::default()) };
    let on_parts = parts.iter().map(|pool| on_pool(pool, traffic)).collect::<Result<Vec<Bound>, RentalError>>()?;
    let placement = on_parts.iter().map(|bound| bound.value).sum();
    let binding: Vec<&str> = on_parts.iter().map(|bound| bound.limit.as_str()).collect();
    Ok(Most {
        placement_tokens_per_s: placement,
        pool_tokens_per_s: any.value,
        words: format!(
            "whatever the batches, this placement passes at most {placement:.0} tokens/s of the scenario's requests ({}), any placement {:.0} ({})",
            binding.join("; "),
            any.value,
            any.limit
        ),
    })
}

/// Bounds before any run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Most {
    /// On the placement.
    pub placement_tokens_per_s: f64,
    /// On any placement.
    pub pool_tokens_per_s: f64,
    /// In words, with what binds.
    pub words: String,
}
