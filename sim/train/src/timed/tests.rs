//! Claims about steps of timed stages: closed forms, hand arithmetic, and a play by rounds.

use proptest::prelude::*;

use super::*;

fn span_of(step: &TimedStep) -> u64 {
    step.span().as_ns()
}

fn stage(forward: u64, backward: u64, message: u64) -> StageTimes {
    StageTimes { n_gpus: 1, passes: passes(forward, backward, message), update: Span::from_ns(7) }
}

fn passes(forward: u64, backward: u64, message: u64) -> PassTimes {
    let [forward, backward] = [forward, backward].map(|ns| PassTime::computing(Span::from_ns(ns)));
    PassTimes { forward, backward, message: Message { line: Span::from_ns(message), latency: Span::ZERO } }
}

/// Replicas whose stages reduce gradients so long, and do nothing else together.
fn with_ends(replicas: Vec<Replica>, reductions: Vec<Span>) -> TimedStep {
    let gathers = vec![Span::ZERO; reductions.len()];
    TimedStep { replicas, reductions, gathers, tied: Span::ZERO, messages: Messages::Behind }
}

fn step(stages: Vec<StageTimes>, n_micro_batches: u32) -> TimedStep {
    let reductions = vec![Span::ZERO; stages.len()];
    let replicas = vec![Replica { stages, n_micro_batches, own: Vec::new() }];
    TimedStep { messages: Messages::Blocking, ..with_ends(replicas, reductions) }
}

#[test]
fn equal_stages_without_messages_have_the_span_of_1f1b() {
    // (m + p − 1)(f + b), and the optimizer.
    for (p, m) in [(1, 1), (2, 8), (4, 8), (4, 3)] {
        let found = span_of(&step(vec![stage(100, 200, 0); p], m));
        assert_eq!(found, (u64::from(m) + p as u64 - 1) * 300 + 7, "{p} stages, {m} micro-batches");
    }
}

#[test]
fn a_message_keeps_both_stages_busy() {
    // One micro-batch through two stages: both forwards, both backwards, a message each way.
    assert_eq!(span_of(&step(vec![stage(100, 200, 50), stage(100, 200, 0)], 1)), 600 + 2 * 50 + 7);
    // Many: the slow stage computes, takes a message and sends one for each of them.
    let few = span_of(&step(vec![stage(10, 20, 50), stage(100, 200, 0)], 40));
    let more = span_of(&step(vec![stage(10, 20, 50), stage(100, 200, 0)], 41));
    assert_eq!(more - few, 300 + 2 * 50);
}

#[test]
fn a_message_behind_computation_costs_what_two_micro_batches_in_flight_cannot_hide() {
    // Two stages of 1F1B have two micro-batches in flight. A way there and back takes 100 + 50 + 300 + 50 + 200, which is 700 for two of them.
    let behind = |n| {
        let blocking = step(vec![stage(100, 200, 50), stage(100, 200, 0)], n);
        span_of(&TimedStep { messages: Messages::Behind, ..blocking })
    };
    assert_eq!(behind(1), 600 + 2 * 50 + 7);
    assert_eq!(behind(42) - behind(40), 700);
}

#[test]
fn a_reduction_waits_for_the_slowest_replica_of_its_stage() {
    let replica = |forward| Replica { stages: vec![stage(forward, 200, 0)], n_micro_batches: 4, own: Vec::new() };
    let reductions = vec![Span::from_ns(1000)];
    let two = with_ends(vec![replica(100), replica(300)], reductions);
    assert_eq!(span_of(&two), 4 * 500 + 1000 + 7);
}

#[test]
fn replicas_may_have_other_numbers_of_micro_batches() {
    let replica = |forward, n_micro_batches| Replica {
        stages: vec![stage(forward, forward, 0)],
        n_micro_batches,
        own: Vec::new(),
    };
    let replicas = vec![replica(100, 9), replica(300, 3)];
    let two = with_ends(replicas, vec![Span::ZERO]);
    assert_eq!(span_of(&two), 1800 + 7);
}

/// Micro-batches of 300, 600 and 900 take their sum on one stage. On two, the first stage has forwards 1 and 2, backward 1, forward 3, and the other backwards.
#[test]
fn micro_batches_of_their_own_take_their_own_times() {
    let times = |n: u64| passes(100 * n, 200 * n, 0);
    let own: Vec<PassTimes> = [1, 2, 3].map(times).to_vec();
    let alone = StageTimes { passes: PassTimes::mean(&own), ..stage(0, 0, 0) };
    assert_eq!(alone.passes, times(2));
    let replica = |n_stages: usize, own: &[PassTimes]| Replica {
        stages: vec![alone; n_stages],
        n_micro_batches: 3,
        own: vec![own.to_vec(); n_stages],
    };
    let span = |n_stages: usize, own: &[PassTimes]| {
        let reductions = vec![Span::ZERO; n_stages];
        let step = with_ends(vec![replica(n_stages, own)], reductions);
        (span_of(&step), step.computed_gpu_s())
    };
    assert_eq!(span(1, &own), (1800 + 7, 1807e-9));
    // First stage: forwards until 300; backward 1 of the last stage is from 100 + 100 until 400, so backward 1 here until 600; forward 3 until 900;
    // backward 2 of the last stage is from 400 + 200 until 1000, so here until 1400. The last stage has forward 3 until 1300 and backward 3 until 1900,
    // which ends here at 2500.
    assert_eq!(span(2, &own).0, 2500 + 7);
    // Alike, they are those of a stage.
    let alike = vec![times(2); 3];
    let plain = step(vec![stage(200, 400, 0); 2], 3);
    assert_eq!(span(2, &alike).0, span_of(&TimedStep { messages: Messages::Behind, ..plain }));
}

/// A step of as many stages with equal passes, and messages behind them.
fn behind(n_stages: u64, n_micro_batches: u32, times: PassTimes) -> TimedStep {
    let stage = StageTimes { n_gpus: 1, passes: times, update: Span::ZERO };
    let all = step(vec![stage; n_stages as usize], n_micro_batches);
    TimedStep { messages: Messages::Behind, ..all }
}

/// With one micro-batch everything is in turn: two messages over each of the links, each with its latency.
#[test]
fn a_latency_delays_a_message_and_holds_no_line() {
    let message = Message { line: Span::from_ns(20), latency: Span::from_ns(50) };
    let times = PassTimes { message, ..passes(10, 20, 0) };
    assert_eq!(span_of(&behind(3, 1, times)), 3 * 30 + 4 * 70);
    // Two stages, four micro-batches, nothing on the line. The first has forwards 1 and 2 until 20; backward 1 is there at 10 + 50 + 30 + 50 = 140 and
    // ends at 160, forward 3 ends at 170. Two micro-batches are on their way at a time, so two further ones end 160 later.
    let times = PassTimes { message: Message { line: Span::ZERO, ..message }, ..times };
    assert_eq!(span_of(&behind(2, 2, times)), 190);
    assert_eq!(span_of(&behind(2, 4, times)), 350);
}

/// When the last backward of the first stage ends, where each direction of a link is a line of its own: rounds over all passes until no end moves.
fn end_by_rounds(n_stages: usize, n: usize, times: &PassTimes) -> u64 {
    let order = (schedule::named("1f1b").expect("listed").order)(&Pipeline::of_schedule(
        schedule::named("1f1b").expect("listed"),
        n_stages,
        1,
        n,
    ));
    let [forward, backward] = [times.forward, times.backward].map(|pass| pass.whole().as_ns());
    let [line, latency] = [times.message.line, times.message.latency].map(Span::as_ns);
    // By way, stage and micro-batch: when a message has left its line, and when a pass has ended.
    let mut left = vec![vec![vec![0; n]; n_stages]; 2];
    let mut ended = left.clone();
    loop {
        let before = ended.clone();
        for (stage, slots) in order.iter().enumerate() {
            let mut now = 0;
            for slot in slots {
                let (at, way) = (slot.micro_batch as usize, usize::from(slot.kind != PassKind::Forward));
                let from =
                    if way == 0 { stage.checked_sub(1) } else { Some(stage + 1).filter(|from| *from < n_stages) };
                let ready = from.map_or(0, |from: usize| left[way][from][at] + latency);
                now = now.max(ready) + [forward, backward][way];
                ended[way][stage][at] = now;
                let free = if at == 0 { 0 } else { left[way][stage][at - 1] };
                left[way][stage][at] = now.max(free) + line;
            }
        }
        if ended == before {
            return ended[1][0][n - 1];
        }
    }
}

proptest! {
    #[test]
    fn each_direction_of_a_link_is_a_line_of_its_own(
        n_stages in 1_u32..5,
        n in 1_u32..8,
        [forward, backward] in [0_u64..100, 0_u64..100],
        [line, latency] in [0_u64..200, 0_u64..200],
    ) {
        let message = Message { line: Span::from_ns(line), latency: Span::from_ns(latency) };
        let times = PassTimes { message, ..passes(forward, backward, 0) };
        let found = span_of(&behind(u64::from(n_stages), n, times));
        prop_assert_eq!(found, end_by_rounds(n_stages as usize, n as usize, &times));
    }
}

/// A pass waits for exchanges and copies, in which its GPUs compute nothing.
#[test]
fn passes_wait_for_exchanges_and_copies() {
    let [computed, exchanged] = [100, 30].map(Span::from_ns);
    let span = |copied| {
        let pass = PassTime { computed, exchanged, copied: Span::from_ns(copied) };
        let times = PassTimes { forward: pass, backward: pass, ..PassTimes::default() };
        let step = behind(2, 5, times);
        assert!((step.computed_gpu_s() - 2.0 * 5.0 * 200e-9).abs() < 1e-15);
        span_of(&step)
    };
    assert_eq!([0, 130, 150].map(span), [130, 130, 150].map(|pass| (5 + 1) * 2 * pass));
}
