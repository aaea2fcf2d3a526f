//! Questions of capacity with known answers.

use engine::verdict::Refused;
use serve::request::Request;

use super::headroom::WIDTH;
use super::*;

fn quoted(name: &str, usd_per_gpu_hour: f64) -> Quoted {
    Quoted { name: name.to_owned(), usd_per_gpu_hour, quote: String::new() }
}

fn of(replicas: &[u64], quoted: Vec<Quoted>) -> Question {
    Question {
        candidates: uniform(replicas, &[Degree { tensor: 1, gpus_per_replica: 1 }], &quoted, 8),
        quoted,
        minimize: Minimize::UsdPerHour,
        target_ratio: 0.9,
        limits: vec![("ttft_s", 1.0)],
        peak: Peak { from_s: 0.0, to_s: 10.0, requests_per_s: 2.0, is_whole: true },
    }
}

fn question() -> Question {
    of(&[1, 2, 4], vec![quoted("a", 1.0), quoted("b", 3.0)])
}

/// A replica of `a` takes 1 load and one of `b` 2.5; above, attainment falls as capacity over load.
fn judge(asked: &[Asked<'_>]) -> Vec<Result<Served, Refused>> {
    asked.iter().map(serve).collect()
}

fn serve(asked: &Asked<'_>) -> Result<Served, Refused> {
    let Variation::Equal { quoted, n_replicas, .. } = asked.candidate.variation else { panic!("one group") };
    let n = hw::real(n_replicas);
    let met = (n * [1.0, 2.5][quoted] / (1.7 * asked.load)).min(1.0);
    let mut row = Served::default();
    row.metrics.insert("slo_attainment_ratio".to_owned(), met);
    row.metrics.insert("cost_usd_per_mtok".to_owned(), n);
    // Replicas of `b` draw a third more each, and the fourth of `a` draws twice what the others do together.
    let drawn = if quoted == 1 { 4.0 * n / 3.0 } else { n + if n > 2.0 { 2.0 * n } else { 0.0 } };
    row.metrics.insert("energy_wh".to_owned(), drawn);
    row.interval.insert("slo_attainment_ratio".to_owned(), [0.8 * met, met]);
    if quoted == 1 && n > 2.0 { Err(Refused::infeasible("too many")) } else { Ok(row) }
}

#[test]
fn the_cheapest_fleet_within_the_target_is_chosen_and_its_load_is_bracketed() {
    let capacity = answer(&question(), &judge);
    // Two of `a` carry 2 of 1.7 for 2 $/h; one of `b` for 3 $/h is the next.
    let chosen = &capacity.points[capacity.chosen.expect("one is enough")];
    assert_eq!((chosen.name.as_str(), chosen.usd_per_hour), ("2 x a", 2.0));
    assert_eq!(capacity.left_out, [("4 x b".to_owned(), "too many".to_owned())]);
    // At 0.8 of its attainment 2 x a fails, and so does all that meets at most 80 % there.
    assert!(capacity.safe.is_none());
    // 2 / (1.7 load) = 0.9 at a load of 1.307.
    let headroom = capacity.headroom.expect("a fleet is chosen");
    let (meets, fails) = (headroom.meets, headroom.fails.expect("more is too much"));
    let exact = 2.0 / (1.7 * 0.9);
    assert!(meets <= exact && exact <= fails && fails / meets <= 1.0 + WIDTH + 1e-9, "{meets} to {fails}");
}

#[test]
fn no_fleet_within_the_target_has_less_of_what_is_asked() {
    // Two of `a` for 2 $/h, two Wh; one of `b` for 3 $/h, 1.33 Wh. Nobody asked how many joules a token takes.
    let of = |minimize: Minimize| answer(&Question { minimize, ..question() }, &judge);
    for (minimize, name) in [
        (Minimize::UsdPerHour, "2 x a"),
        (Minimize::UsdPerMtok, "1 x b"),
        (Minimize::Replicas, "1 x b"),
        (Minimize::EnergyWh, "1 x b"),
    ] {
        let found = of(minimize);
        let chosen = &found.points[found.chosen.expect("some are enough")];
        assert_eq!(chosen.name, name, "{minimize:?}");
        let within = found.points.iter().filter(|point| point.attainment_ratio >= 0.9);
        assert!(within.clone().all(|point| point.minimized >= chosen.minimized), "{minimize:?}");
        let of_prices = found.sensitivity.iter().any(|row| row.change.starts_with("price"));
        assert_eq!(of_prices, matches!(minimize, Minimize::UsdPerHour | Minimize::UsdPerMtok), "{minimize:?}");
    }
    let unknown = of(Minimize::EnergyPerToken);
    assert!(unknown.points.is_empty() && unknown.left_out.iter().any(|(_, why)| why == NO_ENERGY), "{unknown:?}");
}

#[test]
fn other_prices_and_loads_may_change_the_choice() {
    let rows = answer(&question(), &judge).sensitivity;
    let of = |change: &str| rows.iter().find(|row| row.change == change).expect(change).cheapest.clone();
    assert_eq!(of("price of a +20 %"), "2 x a");
    assert_eq!(of("price of b -20 %"), "2 x a");
    // 2 / (1.7 x 1.2) = 0.98 still holds.
    assert_eq!(of("load +20 %"), "2 x a");
}

#[test]
fn a_fleet_that_is_far_dearer_is_named_where_no_near_one_carries_more_load() {
    // At 1.2 times the load two of `a` meet 2 / (1.7 x 1.2) = 98 % of all, and five are enough.
    let question = Question { target_ratio: 1.0, ..of(&[2, 5, 6], vec![quoted("a", 1.0)]) };
    let found = answer(&question, &judge);
    let row = |change: &str| found.sensitivity.iter().find(|row| row.change == change).expect(change);
    assert_eq!((row("load +20 %").cheapest.as_str(), row("load -20 %").cheapest.as_str()), ("5 x a", "2 x a"));
    let met = row("load +20 %").attainment_ratio.expect("the chosen fleet is served again");
    assert!((met - 2.0 / (1.7 * 1.2)).abs() < 1e-12, "{met}");
}

#[test]
fn a_load_at_which_no_request_counts_is_not_known_and_meets_nothing() {
    // Above some load every request comes within the warm-up.
    let until = |known: f64| {
        let judge = move |asked: &[Asked<'_>]| -> Vec<Result<Served, Refused>> {
            let mut rows = judge(asked);
            for (row, asked) in rows.iter_mut().zip(asked) {
                if let Ok(row) = row.as_mut()
                    && asked.load > known
                {
                    row.metrics.remove("slo_attainment_ratio");
                }
            }
            rows
        };
        answer(&of(&[4], vec![quoted("a", 1.0)]), &judge)
    };
    // 4 / (1.7 x 2) is enough at twice the load, and four times are not known.
    let headroom = until(2.5).headroom.expect("a fleet is chosen");
    assert_eq!((headroom.meets, headroom.fails, headroom.loads.len()), (2.0, None, 2));
    assert!(headroom.breaks.contains("4 times the load: no request counts"), "{}", headroom.breaks);
    let nothing = until(0.5);
    assert!(nothing.points.is_empty() && nothing.chosen.is_none(), "{nothing:?}");
    assert!(nothing.left_out[0].1.starts_with("no request counts"), "{nothing:?}");
}

#[test]
fn a_fleet_without_dollars_per_token_is_left_out_and_not_free() {
    let judge = |asked: &[Asked<'_>]| -> Vec<Result<Served, Refused>> {
        let mut rows = judge(asked);
        rows[0].as_mut().expect("one of `a` is served").metrics.remove("cost_usd_per_mtok");
        rows
    };
    let found = answer(&of(&[1, 4], vec![quoted("a", 1.0)]), &judge);
    assert_eq!(found.points.iter().map(|point| point.name.as_str()).collect::<Vec<_>>(), ["4 x a"]);
    assert!(found.left_out[0].1.contains("no dollars per token"), "{:?}", found.left_out);
}

#[test]
fn nodes_stay_as_they_are_and_a_larger_replica_has_several() {
    let a = [quoted("a", 1.0)];
    // Two stages of `tp` GPUs, three replicas.
    for (tp, per_node, nodes) in [(1, 8, 1), (1, 2, 3), (2, 2, 6), (2, 3, 6), (2, 8, 2), (4, 8, 3), (8, 8, 6)] {
        let degree = Degree { tensor: tp, gpus_per_replica: 2 * tp };
        let fleet = uniform(&[3], &[degree], &a, per_node).pop().expect("one");
        let Variation::Equal { gpus_per_node, n_nodes, .. } = fleet.variation else { panic!("equal replicas") };
        assert_eq!((gpus_per_node, n_nodes), (per_node, nodes), "tp {tp} on nodes of {per_node}");
        assert_eq!(fleet.parts[0].gpus_per_replica, 2 * tp);
    }
}

#[test]
fn nothing_is_chosen_where_nothing_suffices() {
    let question = of(&[1], vec![quoted("a", 1.0)]);
    let capacity = answer(&question, &judge);
    assert!(capacity.chosen.is_none() && capacity.headroom.is_none() && capacity.sensitivity.is_empty());
}

fn varied(name: &str, replicas: &[u64]) -> Varied {
    Varied { name: name.to_owned(), replicas: replicas.to_vec(), gpus_per_replica: 2 }
}

#[test]
fn mixed_fleets_are_all_combinations_and_paid_by_group() {
    let groups = [varied("base", &[0, 1]), varied("burst", &[0, 2, 3])];
    let candidates = mixed(&groups);
    let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name.as_str()).collect();
    assert_eq!(names, ["2 x burst", "3 x burst", "1 x base", "1 x base + 2 x burst", "1 x base + 3 x burst"]);
    let expected = [("base".to_owned(), 0), ("burst".to_owned(), 2)];
    assert_eq!(candidates[0].variation, Variation::Groups(expected.to_vec()));
    // A base replica takes 1 load, one of the bursts 0.5 but is there half of the time, and paid so. Two GPUs each at 1 and 2 dollars.
    let serve = |asked: &Asked<'_>| -> Result<Served, Refused> {
        let Variation::Groups(groups) = &asked.candidate.variation else { panic!("groups") };
        let [base, burst] = [hw::real(groups[0].1), hw::real(groups[1].1)];
        let mut row = Served::default();
        let mut add = |key: &str, value: f64| row.metrics.insert(key.to_owned(), value);
        add("makespan_s", 7200.0);
        add("slo_attainment_ratio", ((base + 0.5 * burst) / 2.0).min(1.0));
        add("cost_usd_per_mtok", base + burst);
        add("replica_hours", 2.0 * base + burst);
        add("group_replica_hours.base", 2.0 * base);
        add("group_replica_hours.burst", burst);
        Ok(row)
    };
    let judge = |asked: &[Asked<'_>]| asked.iter().map(serve).collect::<Vec<_>>();
    let quoted = vec![quoted("base", 1.0), quoted("burst", 2.0)];
    let question = Question { candidates, quoted, ..question() };
    let capacity = answer(&question, &judge);
    let usd = |name: &str| capacity.points.iter().find(|point| point.name == name).expect(name).usd_per_hour;
    assert_eq!([usd("1 x base"), usd("3 x burst"), usd("1 x base + 2 x burst")], [2.0, 6.0, 6.0]);
    let chosen = &capacity.points[capacity.chosen.expect("one suffices")];
    assert_eq!((chosen.name.as_str(), chosen.n_gpus), ("1 x base + 2 x burst", 6));
    let changes: Vec<&str> = capacity.sensitivity.iter().map(|row| row.change.as_str()).collect();
    assert_eq!(
        changes[..4],
        ["price of base +20 %", "price of base -20 %", "price of burst +20 %", "price of burst -20 %"]
    );
    // 2 of 6 dollars rise by a fifth: the price per token by a fifteenth.
    assert!((capacity.sensitivity[0].usd_per_mtok.expect("chosen") - 3.0 * (6.4 / 6.0)).abs() < 1e-12);
}

#[test]
fn the_busiest_window_has_most_arrivals() {
    let at = |s: u64| Request::new(Time::from_ns(s * 1_000_000_000), 1, 1);
    let requests = Requests::of([0, 10, 20, 21, 22, 23, 40].map(at).to_vec());
    let peak = Peak::busiest(&requests, 5.0);
    assert_eq!((peak.from_s, peak.to_s, peak.requests_per_s, peak.is_whole), (20.0, 25.0, 0.8, false));
    assert!(Peak::busiest(&requests, 40.0).is_whole);
}

/// Everybody is in time, and a replica serves one request of the two per second.
fn too_slow(asked: &[Asked<'_>]) -> Vec<Result<Served, Refused>> {
    let one = |asked: &Asked<'_>| {
        let Variation::Equal { n_replicas, .. } = asked.candidate.variation else { panic!("one group") };
        let mut row = serve(asked)?;
        row.metrics.insert("slo_attainment_ratio".to_owned(), 1.0);
        row.metrics.insert("e2e_s.mean".to_owned(), 6.0);
        row.overload = Overload::of(2.0 * asked.load, hw::real(n_replicas));
        Ok(row)
    };
    asked.iter().map(one).collect()
}

#[test]
fn a_fleet_that_full_batches_cannot_keep_up_is_not_chosen_although_few_requests_are_in_time() {
    let question = of(&[1, 2, 4], vec![quoted("a", 1.0)]);
    let found = answer(&question, &too_slow);
    assert_eq!(found.points[found.chosen.expect("two keep up")].name, "2 x a");
    let one = found.points.iter().find(|point| point.name == "1 x a").expect("it was served");
    assert!(one.overload.is_some() && !one.is_on_front && one.attainment_ratio >= 1.0);
    // Two a second is all that two replicas serve.
    let headroom = found.headroom.expect("a fleet is chosen");
    assert!(headroom.meets >= 1.0 && headroom.meets <= 1.02, "{}", headroom.meets);
    assert!(headroom.breaks.contains("the load itself: 2.0"), "{}", headroom.breaks);
    // Ten seconds are less than five times six: 2 x 5 x 6 requests would show it.
    let said = found.too_short.expect("ten seconds are short");
    assert!(
        said.contains("come for 10 s, and one of them takes 6 s") && said.contains("`trace.requests = 60`"),
        "{said}"
    );
    // At a fifth more, four replicas are needed.
    let more = found.sensitivity.iter().find(|row| row.change == "load +20 %").expect("asked");
    assert_eq!(more.cheapest, "4 x a");
}
