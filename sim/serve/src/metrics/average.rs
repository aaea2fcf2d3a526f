//! What an iteration of a run held on average.

use crate::fleet::Served;
use crate::records::{End, Record};
use crate::request::Requests;
use crate::step_cost::average::Average;

/// Over the iterations of all replicas; `None` where nothing was played.
pub fn of(requests: &Requests, served: &Served) -> Option<Average> {
    among(requests, served, |_| true)
}

/// Over the iterations of the replicas of one group, by its position.
pub fn of_group(requests: &Requests, served: &Served, group: u32) -> Option<Average> {
    among(requests, served, |replica| served.group_of.get(replica) == Some(&group))
}

/// Over the iterations of some replicas. What a request decodes counts for the replica that ended it.
fn among(requests: &Requests, served: &Served, is_one: impl Fn(usize) -> bool) -> Option<Average> {
    let counts = || served.counts.iter().enumerate().filter(|(replica, _)| is_one(*replica)).map(|(_, counts)| counts);
    let n_steps: u64 = counts().map(|counts| counts.n_steps).sum();
    let computed: u64 = counts().map(|counts| counts.prefill_tokens).sum();
    let (mut decoded, mut keys, mut prompts) = (0.0, 0.0, 0.0);
    // What was begun for clients who gave up is left out.
    let counts_here = |record: &Record| record.end() != End::TimedOut && is_one(record.replica as usize);
    for (request, _) in requests.list.iter().zip(&served.records.list).filter(|(_, record)| counts_here(record)) {
        let more = f64::from(request.output - 1);
        decoded += more;
        keys += more * (f64::from(request.prompt) + more / 2.0);
        prompts += f64::from(request.prompt);
    }
    let steps = hw::real(n_steps);
    (n_steps > 0).then(|| Average {
        decode: decoded / steps,
        keys: if decoded > 0.0 { keys / decoded } else { 0.0 },
        prompt: hw::real(computed) / steps,
        prompt_whole: prompts / hw::real(requests.len() as u64),
        adapted: hw::real(counts().map(|counts| counts.adapter_tokens).sum()) / steps,
        adapters: hw::real(counts().map(|counts| counts.adapters_read).sum()) / steps,
    })
}
