//! Laws between two runs: spans and single steps, those who come later, replicas by themselves, times that scale, links that are faster, a request alone.

use hw::{Tick, Time};

use super::drawn::drawn as drawn_by;
use super::{Drawn, both, ensure, far_apart, hold, is_dynamic, lines, moments, same};
use crate::fleet::{Fleet, Group, Link};
use crate::records::Record;
use crate::replica::{Engine, Role};
use crate::step_cost::lanes::Lanes;
use crate::step_cost::{Chunk, StepLoad};

#[test]
fn spans_are_single_steps() {
    hold("spans are single steps", |drawn| {
        let ((_, closed), (_, mut single)) = (drawn.serve(), drawn.stepwise().serve());
        for (single, closed) in single.counts.iter_mut().zip(&closed.counts) {
            single.n_spans = closed.n_spans;
        }
        // What is let go of in the middle of a span may have been taken within it.
        if is_dynamic(drawn) {
            single.blocks.clone_from(&closed.blocks);
        }
        let is_same = single == closed;
        let moments = same(&closed.records.list, &single.records.list);
        Some(moments.and(ensure(is_same, || lines(&closed, &single))))
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    hold("the same seed gives the same run", |drawn| {
        let [one, other] = [drawn.serve(), drawn.serve()];
        Some(if one == other { Ok(()) } else { Err("two runs differ".to_owned()) })
    });
}

#[test]
fn nobody_knows_who_will_come() {
    // What has happened by a moment is the same whoever comes after it.
    hold("causality", |drawn| {
        // Who enters the stages before a round is composed with it: one who comes later and first may take the place.
        let is_passed = drawn.has("stages") && drawn.has("priorities");
        let is_open = drawn.users.is_none() && !is_passed;
        is_open.then(|| {
            let all = drawn.serve().1;
            let cut = drawn.requests.list[drawn.requests.len() / 2].arrival;
            let early = drawn.with(|other| other.requests.list.retain(|request| request.arrival < cut));
            let first = early.serve().1;
            let until = |record: &Record| moments(record).map(|moment| moment.filter(|moment| *moment < cut));
            let differ = first.records.list.iter().zip(&all.records.list).enumerate();
            let found = differ
                .filter(|(_, (one, other))| until(one) != until(other))
                .min_by_key(|(_, (one, _))| one.scheduled());
            found.map_or(Ok(()), |(index, (one, other))| {
                Err(format!("by {cut:?} request {index} {one:?}, and with those who came later {other:?}"))
            })
        })
    });
}

/// A fleet of one replica of the first group.
fn one_replica(fleet: &Fleet) -> Fleet {
    let mut one = fleet.clone();
    one.groups.truncate(1);
    one.groups[0].n_replicas = 1;
    one
}

#[test]
fn replicas_serve_as_if_each_were_alone() {
    hold("replicas are alone", |drawn| {
        let engine = &drawn.fleet.groups[0].engine;
        let is_alone = drawn.fleet.groups[0].role != Role::Prefill
            && !is_dynamic(drawn)
            && drawn.users.is_none()
            && engine.limits.remote.is_none()
            && engine.limits.adapters.is_none()
            // Whether a draft is accepted is drawn by the position of the request.
            && engine.table.acceptance().is_none()
            && drawn.fleet.start.is_instant();
        if !is_alone {
            return None;
        }
        let served = drawn.serve().1;
        for replica in 0..drawn.fleet.n_replicas() {
            let is_here = |index: &usize| served.records.list[*index].replica == replica;
            let here: Vec<usize> = (0..drawn.requests.len()).filter(is_here).collect();
            let alone = drawn.with(|other| {
                other.fleet = one_replica(&other.fleet);
                let mut index = 0;
                let streams: Vec<u32> = (0..other.requests.len()).map(|at| other.requests.stream_of(at)).collect();
                let n_streams = streams.iter().max().map_or(1, |most| most + 1);
                // Streams twice over: those that are here, and those that are not.
                other.requests.streams = streams
                    .iter()
                    .map(|stream| {
                        let is_here = here.binary_search(&index).is_ok();
                        index += 1;
                        if is_here { *stream } else { stream + n_streams }
                    })
                    .collect();
                other.requests = other.requests.of_streams(&|stream| stream < n_streams);
            });
            let mut expected: Vec<Record> = here.iter().map(|index| served.records.list[*index]).collect();
            expected.iter_mut().for_each(|record| record.replica = 0);
            if let Err(what) = same(&expected, &alone.serve().1.records.list) {
                return Some(Err(format!("replica {replica}: {what}")));
            }
        }
        Some(Ok(()))
    });
}

#[test]
fn two_models_are_two_fleets() {
    hold("two models are two fleets", |drawn| {
        let engine = &drawn.fleet.groups[0].engine;
        let is_apart = drawn.users.is_none()
            && engine.limits.remote.is_none()
            && engine.limits.adapters.is_none()
            // Whether a draft is accepted, and on which rank a prompt is computed, is drawn by the position of the request.
            && !drawn.has("drawn ranks")
            && engine.table.acceptance().is_none()
            && drawn.fleet.start.is_instant()
            // Their draws go on from request to request.
            && !["random", "power-of-two"].contains(&drawn.router);
        is_apart.then(|| {
            let both = drawn.with(two_models);
            let alone = drawn.with(|other| other.requests = both.requests.of_streams(&|stream| stream % 2 == 0));
            let served = both.serve().1;
            let first: Vec<Record> = served
                .records
                .list
                .iter()
                .enumerate()
                .filter(|(index, _)| both.requests.model_of(*index) == 0)
                .map(|(_, record)| *record)
                .collect();
            same(&first, &alone.serve().1.records.list)
        })
    });
}

/// Every other request asks for a second model, which has as many groups of its own.
fn two_models(drawn: &mut Drawn) {
    let requests = &mut drawn.requests;
    let n_streams = requests.streams.iter().max().map_or(1, |most| most + 1);
    requests.streams =
        (0..requests.len()).map(|at| 2 * requests.stream_of(at) + u32::try_from(at % 2).expect("small")).collect();
    requests.models = (0..2 * n_streams).map(|stream| stream % 2).collect();
    requests.priorities = requests.priorities.iter().flat_map(|of| [*of; 2]).collect();
    requests.patience = requests.patience.iter().flat_map(|of| [*of; 2]).collect();
    let fleet = &mut drawn.fleet;
    let n = fleet.groups.len();
    let second: Vec<Group> = fleet.groups.iter().map(|group| Group { model: 1, ..group.clone() }).collect();
    fleet.groups.extend(second);
    let links: Vec<Link> =
        fleet.links.iter().map(|link| Link { from: link.from + n, to: link.to + n, wire: None, ..*link }).collect();
    fleet.links.extend(links);
}

#[test]
fn times_scale_together() {
    hold("four times as slow", |drawn| {
        // Draws of a mean are rounded to whole nanoseconds.
        if ["starts", "failures"].iter().any(|word| drawn.has(word)) {
            return None;
        }
        let slow = drawn_by(number_of(drawn), 4);
        let ((_, fast), (_, slow)) = (drawn.serve(), slow.serve());
        let of = |record: &Record, factor: u64| {
            moments(record).map(|moment| moment.map(|moment| (moment - Time::ZERO).as_ns() * factor))
        };
        let mut wrong =
            fast.records.list.iter().zip(&slow.records.list).enumerate().filter_map(|(index, (one, other))| {
                let near = |(one, other): (Option<u64>, Option<u64>)| match (one, other) {
                    (Some(one), Some(other)) => one.abs_diff(other) <= 2000,
                    (one, other) => one == other,
                };
                let is_near = of(one, 4).into_iter().zip(of(other, 1)).all(near);
                (!is_near).then(|| format!("request {index} {one:?} and {other:?}"))
            });
        Some(wrong.next().map_or(Ok(()), Err))
    });
}

fn number_of(drawn: &Drawn) -> u64 {
    drawn.words[0].trim_start_matches("draw ").parse().expect("a number")
}

#[test]
fn a_fast_link_is_no_slower_than_a_slow_one() {
    hold("a fast link", |drawn| {
        let is_split = drawn.fleet.is_split() && !is_dynamic(drawn);
        is_split.then(|| {
            let of = |bytes_per_s, latency_s| {
                let other = far_apart(drawn).with(|other| {
                    (other.fleet.links[0].bytes_per_s, other.fleet.links[0].latency_s) = (bytes_per_s, latency_s);
                });
                other.serve().1.records
            };
            let (fast, slow) = (of(None, 0.0), of(Some(1e8), 1e-3));
            let mut pairs = fast.list.iter().zip(&slow.list).enumerate();
            let worse =
                pairs.find(|(_, (fast, slow))| fast.first_token() > slow.first_token() || fast.ended() > slow.ended());
            worse.map_or(Ok(()), |(index, (fast, slow))| Err(format!("request {index} {fast:?} and {slow:?}")))
        })
    });
}

#[test]
fn a_request_alone_takes_its_iterations() {
    hold("a request alone", |drawn| {
        let group = &drawn.fleet.groups[0];
        let engine = &group.engine;
        let is_plain = group.role == Role::Both
            && engine.table.lanes() == Lanes::ONE
            && engine.table.acceptance().is_none()
            && !is_dynamic(drawn)
            && drawn.fleet.start.is_instant()
            && !["prefixes", "adapters", "images", "frontend"].iter().any(|word| drawn.has(word));
        is_plain.then(|| {
            let alone = far_apart(drawn);
            let served = alone.serve().1;
            let mut wrong = both(&alone.requests, &served, |_| true).filter_map(|(request, record)| {
                let expected = expected_alone(engine, request.prompt, request.output);
                let stays =
                    [record.first_token(), record.ended()].map(|at| (at.expect("served") - request.arrival).as_ns());
                let is_near = stays.iter().zip(expected).all(|(found, expected)| found.abs_diff(expected) <= 2);
                (!is_near).then(|| format!("{request:?} takes {stays:?} ns, expected {expected:?}"))
            });
            wrong.next().map_or(Ok(()), Err)
        })
    });
}

/// Nanoseconds to the first and to the last token of a request that is alone: an iteration for each chunk, and one for each further token.
fn expected_alone(engine: &Engine, prompt: u32, output: u32) -> [u64; 2] {
    let (mut past, mut ticks) = (0, Tick::ZERO);
    while past < prompt {
        let new = (prompt - past).min(engine.limits.tokens_max).min(engine.table.chunk_max(past));
        let n_sampled = u32::from(past + new == prompt);
        let load = StepLoad { n_chunk_tokens: new, n_chunks: 1, n_sampled, ..StepLoad::default() };
        ticks += engine.table.step(&load, std::iter::once(Chunk { past, new }));
        past += new;
    }
    let first = ticks;
    for n in 1..output {
        let load = StepLoad { n_decode: 1, n_sampled: 1, context: u64::from(prompt + n), ..StepLoad::default() };
        ticks += engine.table.step(&load, std::iter::empty());
    }
    [first, ticks].map(|ticks| ticks.time().as_ns())
}
