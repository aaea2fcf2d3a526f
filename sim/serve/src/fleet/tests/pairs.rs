//! Laws of the whole loop over drawn fleets, whose mechanisms meet in pairs and more: no figure is known beforehand, and what a change does to it is.
//!
//! Each draw is a small fleet and a short run: engines with stages, ranks, drafts, caches, tiers, adapters, images and frontends; replicas that split their work, fail or
//! follow the load; users who wait, leave or come first.

mod books;
mod drawn;
mod laws;
mod neutral;

use std::panic::{AssertUnwindSafe, catch_unwind};

use hw::{Seconds, Span, Time};

use super::named;
use crate::fleet::held::Users;
use crate::fleet::{Fleet, Rules, Served};
use crate::records::Record;
use crate::replica::Spans;
use crate::request::{Request, Requests};
use drawn::drawn;

/// A fleet with its load.
#[derive(Clone)]
struct Drawn {
    /// What was drawn, for whoever reads that a law failed.
    words: Vec<String>,
    fleet: Fleet,
    requests: Requests,
    users: Option<Users>,
    router: &'static str,
}

impl Drawn {
    /// Serves it; the requests come back with the moments at which they were sent.
    fn serve(&self) -> (Requests, Served) {
        let mut router = named(self.router);
        let rules = Rules::of(router.as_mut());
        match self.users {
            Some(users) => self.fleet.serve_held(&self.requests, rules, users),
            None => (self.requests.clone(), self.fleet.serve_by(&self.requests, rules)),
        }
    }

    /// The same with some change.
    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut other = self.clone();
        change(&mut other);
        other
    }

    /// The same, played iteration by iteration.
    fn stepwise(&self) -> Self {
        self.with(|other| other.fleet.groups.iter_mut().for_each(|group| group.engine.spans = Spans::Stepwise))
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|found| found.starts_with(word))
    }
}

/// Draws of a law.
const DRAWS: std::ops::Range<u64> = 0..250;

/// Holds a law over all draws: it says what is wrong of one, or nothing where it does not apply.
fn hold(law: &str, of: impl Fn(&Drawn) -> Option<Result<(), String>>) {
    let (mut n, mut wrong) = (0, Vec::new());
    for number in DRAWS {
        let found = catch_unwind(AssertUnwindSafe(|| {
            let drawn = drawn(number, 1);
            (of(&drawn), drawn.words.join(", "))
        }));
        match found {
            Ok((None, _)) => {}
            Ok((Some(Ok(())), _)) => n += 1,
            Ok((Some(Err(what)), words)) => wrong.push(format!("{words}: {what}")),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                wrong.push(format!("{}: panicked: {}", drawn(number, 1).words.join(", "), text.unwrap_or_default()));
            }
        }
    }
    println!("{law}: {n} draws hold it");
    wrong.iter().take(8).for_each(|wrong| println!("  {wrong}"));
    assert!(wrong.is_empty(), "{law}: {} of {} draws do not hold it, {wrong:.1?}", wrong.len(), wrong.len() + n);
    assert!(n > 5, "{law}: it applies to {n} draws alone");
}

/// Moments of a request.
fn moments(record: &Record) -> [Option<Time>; 3] {
    [record.scheduled(), record.first_token(), record.ended()]
}

/// The first moment of either that the other has not; the start where they differ otherwise.
fn first_difference(one: &Record, other: &Record) -> Option<Time> {
    let differ = moments(one).into_iter().zip(moments(other)).filter(|(one, other)| one != other);
    let first = differ.flat_map(|(one, other)| [one, other]).flatten().min();
    (one != other).then(|| first.unwrap_or(Time::ZERO))
}

/// Says where two runs differ first.
fn same(one: &[Record], other: &[Record]) -> Result<(), String> {
    ensure(one.len() == other.len(), || format!("{} and {} requests", one.len(), other.len()))?;
    let pairs = one.iter().zip(other).enumerate();
    let differ = pairs.filter_map(|(index, (one, other))| Some((first_difference(one, other)?, index, one, other)));
    let first = differ.min_by_key(|(at, index, ..)| (*at, *index));
    first.map_or(Ok(()), |(at, index, one, other)| Err(format!("at {at:?} request {index} {one:?} and {other:?}")))
}

/// Lines of two values in which they differ.
fn lines(one: &impl std::fmt::Debug, other: &impl std::fmt::Debug) -> String {
    let (one, other) = (format!("{one:#?}"), format!("{other:#?}"));
    let differ = one.lines().zip(other.lines()).enumerate().filter(|(_, (one, other))| one != other);
    differ.take(6).map(|(at, (one, other))| format!("line {at}: {one} and {other}; ")).collect()
}

/// Says where a run with some change differs.
fn unchanged(drawn: &Drawn, change: impl FnOnce(&mut Drawn)) -> Result<(), String> {
    same(&drawn.serve().1.records.list, &drawn.with(change).serve().1.records.list)
}

fn is_dynamic(drawn: &Drawn) -> bool {
    drawn.fleet.is_dynamic()
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn both<'a>(
    requests: &'a Requests,
    served: &'a Served,
    keeps: impl Fn(&Record) -> bool + 'a,
) -> impl Iterator<Item = (&'a Request, &'a Record)> {
    requests.list.iter().zip(&served.records.list).filter(move |(_, record)| keeps(record))
}

/// A moment behind the end of every run.
fn much_later() -> Time {
    Time::ZERO + Span::from_seconds(Seconds::new(1e5))
}

/// Requests so far apart that each is alone.
fn far_apart(drawn: &Drawn) -> Drawn {
    drawn.with(|other| {
        for (index, request) in (0_u64..).zip(&mut other.requests.list) {
            request.arrival = Time::ZERO + Span::from_seconds(Seconds::new(10.0) * hw::real(index));
        }
        (other.requests.follows, other.requests.pauses, other.users) = (Vec::new(), Vec::new(), None);
        other.requests.patience.clear();
    })
}
