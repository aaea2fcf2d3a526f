//! What played iterations leave unexplained of a latency: the interval of every predicted one is at least so wide.
//!
//! The widths are 5 % and 95 % quantiles of measured over predicted means of the given published runs on H100 and H200 (`docs/accuracy-serving.md`). Other quantiles
//! of a latency have the widths of its mean, and a rate that the fleet sets has those of further tokens.

use std::collections::BTreeMap;

use hw::{Seconds, power};

use super::energy::LIMIT;
use super::saturation::RateSetBy;
use super::{Latencies, Slo, counted, meets};
use crate::fleet::Served;
use crate::request::Requests;

/// Of the time to the first token.
const TTFT: [f64; 2] = [0.6, 3.0];
/// Of the time of further tokens.
const TPOT: [f64; 2] = [0.85, 1.35];
/// What no cost explains of a run's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unexplained {
    /// Who sets the rate of requests.
    pub rate_set_by: RateSetBy,
    /// Share of requests that meet the limits with every latency at its high end, and at its low end.
    pub met_ratio: [f64; 2],
}

impl Unexplained {
    /// Of the requests that count of a run.
    pub fn of(requests: &Requests, served: &Served, slo: &Slo, warm_up: Seconds, rate_set_by: RateSetBy) -> Self {
        let (mut n, mut n_met) = (0_u64, [0_u64; 2]);
        for latencies in counted(requests, served, warm_up) {
            n += 1;
            for (end, met) in [1, 0].into_iter().zip(&mut n_met) {
                *met += u64::from(latencies.as_ref().is_some_and(|latencies| meets(slo, &stretched(latencies, end))));
            }
        }
        Self { rate_set_by, met_ratio: n_met.map(|met| hw::real(met) / hw::real(n.max(1))) }
    }

    /// Ends of a metric, at least so far from what is expected.
    pub fn around(&self, key: &str, expected: &BTreeMap<String, f64>, [low, high]: [f64; 2]) -> [f64; 2] {
        if key == "slo_attainment_ratio" {
            return [low.min(self.met_ratio[0]), high.max(self.met_ratio[1])];
        }
        if key == "goodput_requests_per_s" {
            let ends = self.within_limits(expected);
            return [low.min(ends[0]), high.max(ends[1])];
        }
        around(key, expected, [low, high], self.rate_set_by)
    }

    /// Requests per second within the limits at both ends: those that meet them there, at the rate at which requests end there.
    fn within_limits(&self, expected: &BTreeMap<String, f64>) -> [f64; 2] {
        const RATE: &str = "requests_per_s";
        let per_s = expected.get(RATE).copied().unwrap_or(0.0);
        let rates = around(RATE, expected, [per_s; 2], self.rate_set_by);
        [0, 1].map(|end| rates[end] * self.met_ratio[end])
    }
}

/// Latencies of a request at one end.
fn stretched(latencies: &Latencies, end: usize) -> Latencies {
    let first = latencies.ttft_s * TTFT[end];
    let later = (latencies.e2e_s - latencies.ttft_s) * TPOT[end];
    let tpot_s = latencies.tpot_s.map(|tpot| tpot * TPOT[end]);
    Latencies { ttft_s: first, tpot_s, e2e_s: first + later, ..*latencies }
}

/// Ends of a metric, at least so far from what is expected. What is neither a latency nor a rate that the fleet sets keeps the ends of the costs.
pub fn around(key: &str, expected: &BTreeMap<String, f64>, [low, high]: [f64; 2], rate_set_by: RateSetBy) -> [f64; 2] {
    let at = |key: &str| expected.get(key).copied().unwrap_or(0.0);
    let (name, part) = key.split_once('.').unwrap_or((key, ""));
    let least = match (name, rate_set_by) {
        ("ttft_s" | "tool_ttft_s", _) => TTFT.map(|factor| at(key) * factor),
        ("tpot_s", _) => TPOT.map(|factor| at(key) * factor),
        // The first token and then the others, each at its end.
        ("e2e_s", _) => {
            let first = at(&format!("ttft_s.{part}")).min(at(key));
            [0, 1].map(|end| first * TTFT[end] + (at(key) - first) * TPOT[end])
        }
        // A fleet that always has work gives tokens as fast as it makes them.
        ("requests_per_s" | "output_tokens_per_s" | "output_tokens_per_s_per_gpu", RateSetBy::Fleet) => {
            let [fast, slow] = TPOT;
            [at(key) / slow, at(key) / fast]
        }
        ("cost_usd" | "cost_usd_per_mtok", RateSetBy::Fleet) => TPOT.map(|factor| at(key) * factor),
        ("energy_wh" | "gpu_power_w" | "energy_j_per_output_token", _) => {
            power::ends(at("gpu_power_w"), at(LIMIT), at(power::BORROWED)).map(|factor| at(key) * factor)
        }
        _ => [low, high],
    };
    [low.min(least[0]), high.max(least[1])]
}

/// Time of a batch of answers over what is expected, at the low end, as expected and at the high end: at least what further tokens leave open. Given are its
/// seconds there.
pub fn slowness([low, expected, high]: [f64; 3]) -> [f64; 3] {
    let [low, high] = [low, high].map(|end| if expected > 0.0 { end / expected } else { 1.0 });
    [low.min(TPOT[0]), 1.0, high.max(TPOT[1])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_within_its_limits_may_miss_them_as_its_latencies_may() {
        let latencies = Latencies { queue_s: 0.0, ttft_s: 0.5, tpot_s: Some(0.02), e2e_s: 2.5 };
        let met = |slo: Slo| [1, 0].map(|end| meets(&slo, &stretched(&latencies, end)));
        let within = |key: &str, limit: f64| {
            let limit = Some(Seconds::new(limit));
            met(Slo { ttft: limit, tpot: limit, e2e: limit }.only(key))
        };
        // Its first token comes after 0.3 to 1.5 s, others after 17 to 27 ms each, and the last after 0.3 + 1.7 to 1.5 + 2.7 s.
        for (key, expected, sure, never) in
            [("ttft_s", 1.0, 1.51, 0.29), ("tpot_s", 0.02, 0.0271, 0.0169), ("e2e_s", 3.0, 4.21, 1.99)]
        {
            assert_eq!(within(key, expected), [false, true], "{key}");
            assert_eq!([within(key, sure), within(key, never)], [[true; 2], [false; 2]], "{key}");
        }
    }

    #[test]
    fn a_batch_is_as_slow_as_its_costs_say_or_its_tokens_leave_open() {
        assert_eq!(slowness([8.0, 10.0, 12.0]), [0.8, 1.0, 1.35]);
        assert_eq!(slowness([0.0; 3]), [0.85, 1.0, 1.35]);
    }

    #[test]
    fn a_latency_has_the_widths_of_its_parts_and_nothing_else_is_wider() {
        let of = [("ttft_s.mean", 1.0), ("tpot_s.mean", 0.02), ("e2e_s.mean", 3.0), ("requests_per_s", 5.0)];
        let expected = of.map(|(key, value)| (key.to_owned(), value)).into();
        let ends = |key: &str, ends: [f64; 2]| around(key, &expected, ends, RateSetBy::Arrivals);
        assert_eq!(ends("ttft_s.mean", [0.9, 1.1]), [0.6, 3.0]);
        assert_eq!(ends("ttft_s.mean", [0.5, 3.5]), [0.5, 3.5]);
        for (key, of_costs, expected) in [
            ("tpot_s.mean", [0.02, 0.02], [0.017, 0.027]),
            ("e2e_s.mean", [2.9, 3.1], [0.6 + 2.0 * 0.85, 3.0 + 2.0 * 1.35]),
        ] {
            let found = ends(key, of_costs);
            assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-12), "{found:?}");
        }
        assert_eq!(ends("requests_per_s", [4.9, 5.1]), [4.9, 5.1]);
        assert_eq!(ends("absent", [1.0, 2.0]), [1.0, 2.0]);
        // A fleet that sets the rate gives 5 / 1.35 to 5 / 0.85 requests.
        let [low, high] = around("requests_per_s", &expected, [4.9, 5.1], RateSetBy::Fleet);
        assert!((low - 5.0 / 1.35).abs() < 1e-12 && (high - 5.0 / 0.85).abs() < 1e-12, "{low} {high}");
    }

    #[test]
    fn requests_within_limits_are_those_that_may_meet_them() {
        let expected =
            BTreeMap::from([("requests_per_s", 10.0), ("goodput_requests_per_s", 8.0)].map(|(k, v)| (k.to_owned(), v)));
        let of = |rate_set_by| {
            let open = Unexplained { rate_set_by, met_ratio: [0.5, 1.0] };
            open.around("goodput_requests_per_s", &expected, [7.0, 9.0])
        };
        assert_eq!(of(RateSetBy::Arrivals), [5.0, 10.0]);
        // A fleet that sets the rate serves 10 / 1.35 to 10 / 0.85 requests.
        let [low, high] = of(RateSetBy::Fleet);
        assert!((low - 5.0 / 1.35).abs() < 1e-12 && (high - 10.0 / 0.85).abs() < 1e-12, "{low} {high}");
    }

    #[test]
    fn figures_that_are_multiples_of_each_other_have_intervals_of_one_width() {
        let of = [
            ("output_tokens_per_s", 400.0),
            ("output_tokens_per_s_per_gpu", 50.0),
            ("cost_usd", 8.0),
            ("cost_usd_per_mtok", 2.0),
        ];
        let expected: BTreeMap<_, _> = of.map(|(key, value)| (key.to_owned(), value)).into();
        for rate_set_by in [RateSetBy::Arrivals, RateSetBy::Fleet] {
            for (one, other, times) in
                [("output_tokens_per_s", "output_tokens_per_s_per_gpu", 8.0), ("cost_usd", "cost_usd_per_mtok", 4.0)]
            {
                let narrow = |key: &str| around(key, &expected, [expected[key]; 2], rate_set_by);
                let [wide, small] = [narrow(one), narrow(other)];
                assert!((0..2).all(|end| (wide[end] / small[end] - times).abs() < 1e-12), "{wide:?} {small:?}");
            }
        }
    }
}
