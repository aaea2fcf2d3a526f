//! What an iteration of a run held on average, of all replicas and of those of each group.
//!
//! What a request decodes counts for the replica that ended it. Requests that were refused, and what was begun for clients who gave up, are left out.

use crate::fleet::{Fleet, Served};
use crate::records::End;
use crate::replica::Counts;
use crate::request::Requests;
use crate::speculation::Speculation;
use crate::step_cost::average::Average;

/// What requests hold together.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Requests.
    n: u64,
    /// Tokens that were decoded: all of an output but its first.
    decoded: f64,
    /// Keys that these attended to, each with those before it.
    keys: f64,
    /// Tokens of prompts.
    prompts: f64,
}

impl Held {
    fn and(self, other: &Self) -> Self {
        Self {
            n: self.n + other.n,
            decoded: self.decoded + other.decoded,
            keys: self.keys + other.keys,
            prompts: self.prompts + other.prompts,
        }
    }

    fn prompt_mean(&self) -> Option<f64> {
        (self.n > 0).then(|| self.prompts / hw::real(self.n))
    }

    /// The average iteration of replicas with these counts; `None` where they had none. A group that ends no request, as one that computes prompts for others,
    /// has prompts of a length that is `usual`.
    /// Verifications of drafts are counted where they are.
    fn average<'s>(
        &self,
        usual: &Self,
        speculation: Option<Speculation>,
        counts: impl Iterator<Item = &'s Counts> + Clone,
    ) -> Option<Average> {
        let sum = |of: fn(&Counts) -> u64| hw::real(counts.clone().map(of).sum());
        let (steps, verified) = (sum(|counts| counts.n_steps), sum(|counts| counts.n_verified));
        (steps > 0.0).then(|| Average {
            decode: if verified > 0.0 { verified } else { self.decoded } / steps,
            keys: if self.decoded > 0.0 { self.keys / self.decoded } else { 0.0 },
            prompt: sum(|counts| counts.prefill_tokens) / steps,
            prompt_whole: self.prompt_mean().or(usual.prompt_mean()).unwrap_or(0.0),
            adapted: sum(|counts| counts.adapter_tokens) / steps,
            adapters: sum(|counts| counts.adapters_read) / steps,
            speculation,
        })
    }
}

/// Over the iterations of all replicas, which draft alike; `None` where nothing was played.
pub fn of(requests: &Requests, fleet: &Fleet, served: &Served) -> Option<Average> {
    let all = all(&held(requests, served));
    let speculation = fleet.groups.iter().find_map(|group| group.engine.table.speculation());
    all.average(&all, speculation, served.counts.iter())
}

/// Over the iterations of the replicas of each group, in one pass over the requests; `None` for a group that had none.
pub fn of_groups(requests: &Requests, fleet: &Fleet, served: &Served) -> Vec<Option<Average>> {
    let held = held(requests, served);
    let all = all(&held);
    let of_group = |(group, held): (usize, &Held)| {
        let replicas = served.counts.iter().zip(&served.group_of).filter(move |(_, of)| **of as usize == group);
        let speculation = fleet.groups.get(group).and_then(|group| group.engine.table.speculation());
        held.average(&all, speculation, replicas.map(|(counts, _)| counts))
    };
    held.iter().enumerate().map(of_group).collect()
}

fn all(held: &[Held]) -> Held {
    held.iter().fold(Held::default(), Held::and)
}

/// What the requests hold that ended on each group.
fn held(requests: &Requests, served: &Served) -> Vec<Held> {
    let mut held = vec![Held::default(); served.group_of.iter().max().map_or(0, |last| *last as usize + 1)];
    for (request, record) in requests.list.iter().zip(&served.records.list) {
        let group = served.group_of.get(record.replica as usize).filter(|_| record.end() != End::TimedOut);
        let Some(held) = group.and_then(|group| held.get_mut(*group as usize)) else { continue };
        let more = f64::from(request.output - 1);
        held.n += 1;
        held.decoded += more;
        held.keys += more * (f64::from(request.prompt) + more / 2.0);
        held.prompts += f64::from(request.prompt);
    }
    held
}
