//! What clients of each stream of requests see, where several are served together.
//!
//! Keys are `stream_<figure>.<stream>`, with the definitions of `metrics.rs`. Units: seconds, requests.

use std::collections::BTreeMap;

use hw::{Seconds, Time};

use super::{Slo, latencies, meets, spread};
use crate::fleet::Served;
use crate::records::End;
use crate::request::Requests;

/// Adds the figures of every stream that has requests after the warm-up.
pub fn add(
    into: &mut BTreeMap<String, f64>,
    names: &[&str],
    requests: &Requests,
    served: &Served,
    slo: &Slo,
    warm_up: Seconds,
) {
    for (stream, name) in (0..).zip(names) {
        for (figure, value) in of(stream, requests, served, slo, warm_up) {
            into.insert(format!("stream_{}.{name}", figure.replace('.', "_")), value);
        }
    }
}

fn of(stream: u32, requests: &Requests, served: &Served, slo: &Slo, warm_up: Seconds) -> BTreeMap<String, f64> {
    let start = Time::ZERO + hw::Span::from_seconds(warm_up);
    let (mut ttft, mut tpot, mut n, mut n_met) = (Vec::new(), Vec::new(), 0_u64, 0_u64);
    let (mut n_timed_out, mut n_cancelled) = (0_u64, 0_u64);
    for (index, found) in latencies(requests, served).enumerate() {
        if requests.stream_of(index) != stream {
            continue;
        }
        // As of all streams together: how requests end is counted from the start, latencies behind the warm-up.
        let end = served.records.list[index].end();
        n_timed_out += u64::from(end == End::TimedOut);
        n_cancelled += u64::from(end == End::Cancelled);
        if end == End::Cancelled || requests.list[index].arrival < start {
            continue;
        }
        n += 1;
        let Some(found) = found else { continue };
        n_met += u64::from(meets(slo, &found));
        ttft.push(found.ttft_s);
        tpot.extend(found.tpot_s);
    }
    let mut figures = BTreeMap::new();
    spread(&mut figures, "ttft_s", ttft);
    spread(&mut figures, "tpot_s", tpot);
    if slo.is_given() && n > 0 {
        figures.insert("slo_attainment_ratio".to_owned(), hw::real(n_met) / hw::real(n));
    }
    if !requests.is_patient() {
        figures.insert("n_timed_out".to_owned(), hw::real(n_timed_out));
        figures.insert("n_cancelled".to_owned(), hw::real(n_cancelled));
    }
    figures
}
