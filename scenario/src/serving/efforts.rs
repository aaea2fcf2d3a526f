//! How long comparisons of many ways may take.

use planner::effort::compared;

use super::Serving;
use crate::effort;
use input::reader::Reader;

/// Tells how long comparisons of many ways may take.
pub(super) fn tell(reader: &mut Reader<'_>, serving: &Serving) {
    let n_requests = serving.requests.len() as u64;
    let fleets = serving.capacity.iter().map(|capacity| (capacity.question.candidates.len(), None, "fleets"));
    let lists = serving.best.iter().chain(&serving.tune);
    let settings = lists.map(|best| (serving.ways_of(best).count(), best.at.clone(), "settings"));
    for (n, at, ways) in fleets.chain(settings) {
        let n = n as u64;
        let what = format!("{n} {ways} of {n_requests} requests");
        let help = format!("list fewer {ways}, lower `trace.requests`");
        if let Some(finding) = effort::told(compared(n, n_requests), (at, &what, &help)) {
            reader.find(finding);
        }
    }
}
