//! The clock of serving has 208.5 days: who would be served after it is counted, and nothing wraps.

use super::*;
use crate::fleet::dynamics::{Rule, Scaling};
use crate::fleet::held::Users;
use crate::frontend::Frontend;
use crate::replica::Role;
use hw::Span;

/// A replica that serves one request at a time, and takes a month of 30 days for an iteration.
fn monthly(spans: Spans) -> Fleet {
    let mut engine = engine(1);
    engine.table = StepTable::constant(Seconds::new(MONTH_S));
    Fleet::of(Group::new("monthly", Engine { spans, ..engine }, 1))
}

const MONTH_S: f64 = 30.0 * 86_400.0;

/// Requests of one prompt token and so many output tokens each, which take as many months, all at once.
fn months(outputs: &[u32]) -> Requests {
    Requests::of(outputs.iter().map(|output| Request::new(Time::ZERO, 1, *output)).collect())
}

fn ends(served: &Served) -> Vec<Option<f64>> {
    let months = |end: Time| (end - Time::ZERO).to_seconds().get() / MONTH_S;
    served.records.list.iter().map(|record| record.finished().map(months)).collect()
}

fn round_robin() -> Box<dyn Router> {
    (router::named("round-robin").expect("listed").make)(0)
}

#[test]
fn who_would_end_after_the_clock_is_not_served() {
    for spans in [Spans::Closed, Spans::Stepwise] {
        // Six months are 180 days. The seventh ends after 210, and so would all that follow.
        for (outputs, expected) in [
            (&[6][..], &[Some(6.0)][..]),
            (&[7], &[None]),
            (&[2, 4], &[Some(2.0), Some(6.0)]),
            (&[2, 3, 2, 1], &[Some(2.0), Some(5.0), None, None]),
        ] {
            let requests = months(outputs);
            let served = monthly(spans).serve(&requests, round_robin().as_mut());
            assert_eq!(ends(&served), expected, "{outputs:?}, {spans:?}");
            let n_unserved = expected.iter().filter(|end| end.is_none()).count();
            assert_eq!(served.n_unserved, n_unserved as u64, "{outputs:?}, {spans:?}");
            let figures = metrics::of(&requests, &served, &metrics::Slo::default(), Seconds::ZERO);
            assert_eq!(metrics::words::past_clock(&figures).is_some(), n_unserved > 0);
        }
    }
}

#[test]
fn users_and_scalers_stop_at_the_end_of_the_clock() {
    let requests = months(&[1; 9]);
    let users = Users::in_flight(1);
    let (_, served) = monthly(Spans::Closed).serve_held(&requests, Rules::of(round_robin().as_mut()), users);
    assert_eq!(served.n_unserved, 3, "six months of nine are served");
    // Pauses of four months: the first request ends after one month, the second one after six, and the third one would be sent after ten.
    let mut paused = months(&[1; 3]);
    paused.pauses = vec![Span::from_seconds(Seconds::new(4.0 * MONTH_S)); 3];
    let (_, served) = monthly(Spans::Closed).serve_held(&paused, Rules::of(round_robin().as_mut()), users);
    assert_eq!((served.n_unserved, served.records.n_ended()), (1, 2));
    // A scaler that looks every month would look for ever.
    let mut fleet = monthly(Spans::Closed);
    fleet.groups[0].scaling = Some(Scaling {
        replicas_min: 1,
        replicas_first: 1,
        start_up: Seconds::ZERO,
        rule: Rule::Timetable(vec![(Time::ZERO, 1)]),
    });
    assert_eq!(fleet.serve(&months(&[9]), round_robin().as_mut()).n_unserved, 1);
}

#[test]
fn keys_that_move_for_years_do_not_come() {
    let mut prefill = monthly(Spans::Closed).groups.remove(0);
    let decode = Group { role: Role::Decode, ..prefill.clone() };
    prefill.role = Role::Prefill;
    // A token moves in a year, or in a second.
    for (bytes_per_s, n_unserved) in [(1.0 / (365.0 * 86_400.0), 1), (1.0, 0)] {
        let link = Link { bytes_per_s: Some(bytes_per_s), latency_s: 0.0, ..slow_link() };
        let groups = vec![prefill.clone(), decode.clone()];
        let fleet = Fleet { groups, links: vec![link], ..Fleet::default() }.handing_on(1.0);
        assert_eq!(fleet.serve(&months(&[2]), round_robin().as_mut()).n_unserved, n_unserved);
    }
}

#[test]
fn tokens_that_would_leave_the_frontend_after_the_clock_do_not_come() {
    // The engine gives them after one, two and three months; the frontend takes three months for each: the first is through after four, and no other by the end.
    let mut fleet = monthly(Spans::Closed);
    fleet.groups[0].engine.limits.frontend = Frontend::new(3e6 * MONTH_S, [1, 1]);
    let served = fleet.serve(&months(&[1; 3]), round_robin().as_mut());
    assert_eq!((ends(&served), served.n_unserved), (vec![Some(4.0), None, None], 2));
}
