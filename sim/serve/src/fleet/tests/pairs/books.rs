//! Books of a run: what came, what was computed and what was given add up, and figures are those of the rows.

use hw::{Seconds, Span, Time};

use super::{Drawn, both, ensure, hold, is_dynamic, same};
use crate::fleet::{Fleet, Keeps, Served};
use crate::metrics::rows::RequestRow;
use crate::metrics::{self, Slo};
use crate::records::End;
use crate::replica::Role;
use crate::request::Requests;

#[test]
fn books_add_up() {
    hold("books add up", |drawn| {
        let (requests, served) = drawn.serve();
        Some(books(drawn, &requests, &served))
    });
}

fn books(drawn: &Drawn, requests: &Requests, served: &Served) -> Result<(), String> {
    let ways = [End::Served, End::TimedOut, End::Cancelled].map(|end| served.records.count(end));
    let all = ways.iter().sum::<u64>() + served.n_refused + served.n_unserved;
    ensure(all == requests.len() as u64, || format!("{ways:?} and {} refused", served.n_refused))?;
    ensure(served.n_unserved == 0 && (served.n_refused == 0 || is_dynamic(drawn)), || {
        format!("{} refused, {} unserved", served.n_refused, served.n_unserved)
    })?;
    for (request, record) in requests.list.iter().zip(&served.records.list) {
        let moments = [Some(request.arrival), record.scheduled(), record.first_token(), record.ended()];
        let is_whole = record.end() != End::TimedOut && record.ended().is_some();
        let is_in_order = moments.iter().flatten().is_sorted();
        ensure(is_in_order || !is_whole, || format!("moments {moments:?}"))?;
        ensure(!is_whole || moments.iter().all(Option::is_some), || format!("moments {moments:?}"))?;
    }
    let sum = |of: &dyn Fn(&crate::replica::Counts) -> u64| served.counts.iter().map(of).sum::<u64>();
    let (given, computed) = (sum(&|counts| counts.output_tokens), sum(&|counts| counts.prefill_tokens));
    let wanted: u64 = both(requests, served, |record| record.end() != End::TimedOut && record.ended().is_some())
        .map(|(request, _)| u64::from(request.output))
        .sum();
    let loses = ways[1] > 0 || served.changes.n_outages > 0;
    ensure(given == wanted || loses && given >= wanted, || format!("{given} output tokens of {wanted}"))?;
    let n_preempted = sum(&|counts| counts.n_preempted);
    let of_records: u64 = served.records.list.iter().map(|record| u64::from(record.n_preempted)).sum();
    ensure(n_preempted == of_records, || format!("{n_preempted} preemptions, {of_records} of records"))?;
    let is_here = drawn.fleet.groups.iter().all(|group| group.role != Role::Outputs);
    if is_here && n_preempted == 0 && !loses {
        let prompts: u64 = both(requests, served, |record| record.scheduled().is_some())
            .map(|(request, _)| u64::from(request.prompt))
            .sum();
        let cached = sum(&|counts| counts.cached_tokens);
        ensure(computed + cached == prompts, || format!("{computed} computed and {cached} cached of {prompts}"))?;
    }
    let end = served.records.end_ticks();
    for ((peak, total), counts) in served.blocks.iter().zip(&served.counts) {
        ensure(peak <= total, || format!("{peak} blocks of {total}"))?;
        ensure(counts.stage_ticks <= counts.busy_ticks, || format!("stages {counts:?}"))?;
    }
    ensure(served.paid_ticks.iter().all(|paid| *paid <= end), || "paid for longer than the run".to_owned())
}

#[test]
fn requests_in_the_system_are_those_of_the_records() {
    // Little's law, exact to a nanosecond for each request: where nobody waits outside of replicas, and rounds have no lag.
    hold("requests in the system", |drawn| {
        let is_plain = drawn.fleet.groups[0].role == Role::Both && !is_dynamic(drawn) && drawn.requests.is_patient();
        let has_more = ["starts", "frontend", "stages"].iter().any(|word| drawn.has(word));
        if !is_plain || has_more {
            return None;
        }
        let (requests, served) = drawn.serve();
        let stays: u64 = both(&requests, &served, |_| true)
            .map(|(request, record)| (record.ended().expect("served") - request.arrival).as_ns())
            .sum();
        let counted = served.counts.iter().map(|counts| counts.request_ticks).sum::<hw::TickSum>().as_ns();
        let off = (counted - hw::real(stays)).abs();
        Some(ensure(off <= hw::real(2 * requests.len() as u64), || format!("{counted} ns counted of {stays}")))
    });
}

#[test]
fn no_more_than_there_are_places_are_served_at_once() {
    hold("places", |drawn| {
        let group = &drawn.fleet.groups[0];
        let is_plain =
            group.role == Role::Both && !is_dynamic(drawn) && !drawn.has("impatient") && !drawn.has("frontend");
        let served = is_plain.then(|| drawn.serve().1)?;
        // Who has lost its blocks has given its place up.
        if served.counts.iter().any(|counts| counts.n_preempted > 0) {
            return None;
        }
        let places = i64::from(group.engine.limits.sequences_max * group.engine.table.lanes().ranks);
        for replica in 0..drawn.fleet.n_replicas() {
            let here = served.records.list.iter().filter(|record| record.replica == replica);
            let mut changes: Vec<(Time, i64)> = here
                .flat_map(|record| [(record.scheduled(), 1), (record.ended(), -1)])
                .map(|(at, by)| (at.expect("served"), by))
                .collect();
            // At equal moments a place is given up before it is taken.
            changes.sort_unstable();
            let mut n = 0;
            let most = changes
                .iter()
                .map(|(_, by)| {
                    n += by;
                    n
                })
                .max()
                .unwrap_or(0);
            if most > places {
                return Some(Err(format!("{most} at once on replica {replica} with {places} places")));
            }
        }
        Some(Ok(()))
    });
}

#[test]
fn gaps_between_tokens_are_within_the_stay() {
    hold("gaps between tokens", |drawn| {
        let (requests, served) = drawn.with(|other| other.fleet.keeps = Keeps::Tokens { samples: SAMPLES }).serve();
        let plain = drawn.serve().1;
        let found = same(&plain.records.list, &served.records.list);
        let rows: Vec<_> = crate::metrics::rows::requests(&requests, &served).collect();
        let wrong = rows.iter().find_map(|row| {
            let (of, n) = (row.served?, f64::from(row.output_tokens?) - 1.0);
            let (gaps, tpot) = (of.gaps_s, of.tpot_s?);
            let Some([p50, p90, p99, most]) = gaps else { return Some(format!("no gaps {row:?}")) };
            let stay = of.e2e_s - of.ttft_s;
            let is_sound = [0.0, p50, p90, p99, most].is_sorted() && most <= stay + 1e-8 && tpot <= most + 1e-8;
            (!is_sound).then(|| format!("{n} gaps {row:?}"))
        });
        Some(found.and(wrong.map_or(Ok(()), Err)))
    });
}

#[test]
fn figures_are_those_of_the_rows() {
    hold("figures of rows", |drawn| {
        let (requests, served) = drawn.serve();
        let figures = metrics::of(&requests, &served, &Slo::default(), Seconds::ZERO);
        let rows: Vec<RequestRow> = metrics::rows::requests(&requests, &served).collect();
        let of_served: Vec<_> =
            rows.iter().filter(|row| row.left_s[1].is_none()).filter_map(|row| row.served).collect();
        for (key, of) in [
            ("ttft_s.mean", of_served.iter().map(|row| row.ttft_s).collect::<Vec<f64>>()),
            ("queue_s.mean", of_served.iter().map(|row| row.queue_s).collect()),
            ("e2e_s.mean", of_served.iter().map(|row| row.e2e_s).collect()),
            ("tpot_s.mean", of_served.iter().filter_map(|row| row.tpot_s).collect()),
        ] {
            let (n, sum) = (of.len(), of.iter().sum::<f64>());
            let found = figures.get(key).map_or(0.0, |mean| mean * hw::real(n as u64));
            if (found - sum).abs() > 1e-9 * (1.0 + sum) {
                return Some(Err(format!("{key}: {found} and {sum} of {n}")));
            }
        }
        let known = drawn.with(|other| other.fleet.keeps = Keeps::Tokens { samples: SAMPLES }).serve().1;
        let of = |served| samples(&requests, &drawn.fleet, served);
        Some(of(&served).and_then(|()| of(&known)))
    });
}

/// Samples of a run behind the first one.
const SAMPLES: u32 = 50;

/// Samples of a run add up to its tokens and end with nobody.
fn samples(requests: &Requests, fleet: &Fleet, served: &Served) -> Result<(), String> {
    let n = SAMPLES;
    let samples = metrics::rows::series(requests, fleet, served, n);
    let step_s =
        Span::from_ns((served.records.end_ticks().time() - Time::ZERO).as_ns() / u64::from(n)).to_seconds().get();
    let found: f64 = samples.iter().map(|sample| sample.output_tokens_per_s * step_s).sum();
    let given = both(requests, served, |record| record.end() != End::TimedOut && record.ended().is_some());
    let wanted: u64 = given.map(|(request, _)| u64::from(request.output)).sum();
    ensure((found - hw::real(wanted)).abs() < 1e-6 * (1.0 + found), || format!("{found} tokens of samples, {wanted}"))?;
    let last = samples.last().expect("samples");
    ensure(
        last.waiting + last.running == 0
            && u64::from(last.ended) == served.records.n_ended() + served.records.n_refused(),
        || format!("{last:?}"),
    )
}
