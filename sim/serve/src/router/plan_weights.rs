//! Groups by the shares of a plan, then a replica of the group (arXiv:2502.00722: type `w` goes to configuration `c` with probability `x_cw`).
//!
//! Groups take turns by their weights (`turns.rs`), so that each has its share; a draw would miss by the square root of the number of requests. A group's weight is its share times the part of its
//! replicas that can take the request: each that is left gets what was planned for it, and what the lost ones had goes to all groups by their
//! weights. Where no group has a weight all candidates are one group.
//!
//! Inside a group replicas take turns for every type: of those that are not busier than others, the one whose last request of the type is
//! longest ago. The least loaded alone would be wrong: loads count requests, and types that come in a pattern would each find their own replica
//! least loaded. Turns of `k` types let loads differ by up to `k - 1` requests, so a replica counts as busier beyond that. With one type
//! this is the least loaded replica. So while no request has ended each replica has its even share of every type, and when lengths differ
//! loads are even to within `k` requests.

use super::turns::Turns;
use crate::router::{Router, View};

/// The policy: turns of groups, and when every replica had its last turn, by row of the assignment and stage.
#[derive(Default)]
pub(super) struct PlanWeights {
    turns: Vec<Turns>,
    /// Number of the last request that each replica took; 0 for none.
    last: Vec<Vec<u64>>,
    n_routed: u64,
    /// Replicas of each group, whether or not they run.
    sizes: Vec<u32>,
}

impl PlanWeights {
    /// Counts the replicas of every group, where there are others than before.
    fn count(&mut self, view: &View<'_, '_>) {
        let n: u32 = self.sizes.iter().sum();
        if n as usize == view.group_of.len() {
            return;
        }
        self.sizes.clear();
        for &group in view.group_of {
            self.sizes.resize(self.sizes.len().max(group as usize + 1), 0);
            self.sizes[group as usize] += 1;
        }
    }

    /// The group whose turn it is; `None` where no group has a weight.
    fn group(&mut self, row: usize, at: usize, view: &View<'_, '_>) -> Option<u32> {
        let (of, sizes) = (|replica: &u32| view.group_of[*replica as usize], &self.sizes);
        // Replicas of a group are consecutive.
        let groups = view.candidates.chunk_by(|a, b| of(a) == of(b));
        let weights = groups.map(|left| {
            let (group, left) = (of(&left[0]), hw::real(left.len() as u64));
            (group, view.assignment.weight(row, group) * left / f64::from(sizes[group as usize]))
        });
        self.turns[at].next(weights)
    }

    /// The replica of a group whose turn it is.
    fn replica(&mut self, group: Option<u32>, at: usize, view: &View<'_, '_>) -> u32 {
        let last = &mut self.last[at];
        last.resize(last.len().max(view.replicas.len()), 0);
        let is_inside = |replica: u32| group.is_none_or(|group| view.group_of[replica as usize] == group);
        let serves = |row: &usize| group.is_none_or(|group| view.assignment.weight(*row, group) > 0.0);
        let n_types = (0..view.assignment.n_rows()).filter(serves).count();
        let slack = u32::try_from(n_types.saturating_sub(1)).expect("few types");
        let least = view.least_loaded(is_inside).expect("a group of a candidate has a candidate");
        let load_max = view.load(least).saturating_add(slack);
        let inside = view.candidates.iter().copied().filter(|&replica| is_inside(replica));
        let open = inside.filter(|&replica| view.load(replica) <= load_max);
        let chosen = open.min_by_key(|&replica| last[replica as usize]).expect("the least loaded is open");
        self.n_routed += 1;
        last[chosen as usize] = self.n_routed;
        chosen
    }
}

impl Router for PlanWeights {
    fn choose(&mut self, request: u32, view: &View<'_, '_>) -> u32 {
        let row = view.row(request);
        let at = 2 * row + view.stage();
        if self.turns.len() <= at {
            self.turns.resize_with(at + 1, Turns::default);
            self.last.resize(at + 1, Vec::new());
        }
        self.count(view);
        let group = self.group(row, at, view);
        self.replica(group, at, view)
    }
}

#[cfg(test)]
mod tests {
    use engine::random;
    use hw::{Seconds, Span, Time};

    use crate::arrivals::{Arrivals, lay};
    use crate::batcher;
    use crate::fleet::dynamics::Outage;
    use crate::fleet::{Fleet, Group, Served};
    use crate::replica::{Engine, Limits, Spans};
    use crate::request::{Request, Requests};
    use crate::step_cost::StepTable;

    /// One group of equal replicas, with requests of these types.
    fn fleet(n_replicas: u32, n_types: usize, types: Vec<u32>) -> Fleet {
        let limits = Limits { sequences_max: 4, tokens_max: 512, ..Limits::ROOMY };
        let table = StepTable::constant(Seconds::new(0.01));
        let batcher = batcher::named("vllm-v1").expect("listed");
        let engine = Engine { limits, table, batcher, spans: Spans::Closed };
        let mut fleet = Fleet::of(Group::new("all", engine, n_replicas));
        fleet.assignment.types = types;
        fleet.assignment.shares = vec![vec![1.0]; n_types];
        fleet
    }

    fn serve(fleet: &Fleet, requests: &Requests, router: &str) -> Served {
        fleet.serve(requests, (crate::router::named(router).expect("listed").make)(0).as_mut())
    }

    /// A pattern of types whose length shares a factor with the number of replicas must not lock them to each other.
    #[test]
    fn replicas_have_an_even_share_of_every_type_in_any_pattern() {
        for (pattern, n_replicas) in [
            (&[0, 1][..], 2),
            (&[0, 1], 4),
            (&[0, 0, 0, 1], 2),
            (&[0, 1, 2, 1], 4),
            (&[0, 1, 2], 3),
            (&[2, 0, 1, 0, 1, 0], 3),
            (&[0, 1, 2], 2),
        ] {
            let types: Vec<u32> = pattern.iter().copied().cycle().take(600 * pattern.len()).collect();
            let n_types = pattern.iter().max().map_or(0, |most| *most as usize + 1);
            let requests = Requests::of(types.iter().map(|kind| Request::new(Time::ZERO, 1, 1 + 40 * kind)).collect());
            let served = serve(&fleet(n_replicas, n_types, types.clone()), &requests, "plan-weights");
            let mut counts = vec![vec![0_u32; n_replicas as usize]; n_types];
            for (record, kind) in served.records.list.iter().zip(&types) {
                counts[*kind as usize][record.replica as usize] += 1;
            }
            for row in counts {
                let (least, most) = (row.iter().min().expect("one"), row.iter().max().expect("one"));
                assert!(most - least <= 1, "{pattern:?} on {n_replicas}: {row:?}");
            }
        }
    }

    /// Each replica that is left gets what was planned for it, and no group takes the share of its lost ones alone.
    #[test]
    fn a_group_that_lost_replicas_has_what_is_left_of_its_share() {
        let n = 700;
        let at = |n: u32| Time::ZERO + Span::from_seconds(Seconds::new(1.0 + 0.05 * f64::from(n)));
        let requests = Requests::of((0..n).map(|n| Request::new(at(n), 1, 1)).collect());
        for n_lost in 0..=4 {
            let mut fleet = fleet(1, 1, vec![0; 700]);
            fleet.groups.push(Group { name: "four".to_owned(), n_replicas: 4, ..fleet.groups[0].clone() });
            fleet.assignment.shares = vec![vec![0.5, 0.5]];
            let lost = |replica| Outage { group: 1, replica, at: Time::ZERO, notice: Seconds::ZERO, back_after: None };
            fleet.outages = (0..n_lost).map(lost).collect();
            let served = serve(&fleet, &requests, "plan-weights");
            let on_first = served.records.list.iter().filter(|record| record.replica == 0).count();
            let (found, left) = (hw::real(on_first as u64), f64::from(4 - n_lost) / 4.0);
            let expected = f64::from(n) * 0.5 / (0.5 + 0.5 * left);
            assert!((found - expected).abs() <= 1.0, "{n_lost} lost: {found} of {n}, {expected} expected");
        }
    }

    /// Lengths within a type differ a hundredfold: turns alone would leave some replicas far behind.
    #[test]
    fn arrivals_over_time_are_balanced_as_by_the_least_loaded() {
        let mut stream = random::stream(1, "lengths");
        let types: Vec<u32> = (0..20_000).map(|n| n % 2).collect();
        let mut draw = |kind: u32| if stream.below(10) == 0 { 200 } else { 2 + 8 * kind };
        let mut requests = Requests::of(types.iter().map(|kind| Request::new(Time::ZERO, 1, draw(*kind))).collect());
        // A request takes 26 iterations of 10 ms in the mean, and 16 are served at once: 61 a second at most.
        lay(&mut requests, Arrivals::Poisson { per_s: 52.0 }, 1);
        let mean_s = |n_types: usize, router: &str| {
            let served = serve(&fleet(4, n_types, types.clone()), &requests, router);
            let ends = served.records.list.iter().zip(&requests.list);
            let took = ends.map(|(record, request)| record.finished().expect("served") - request.arrival);
            took.map(|took| took.to_seconds().get()).sum::<f64>() / 20_000.0
        };
        let least_s = mean_s(2, "least-loaded");
        let turns_s = mean_s(2, "round-robin");
        assert!(turns_s > 1.15 * least_s, "turns alone are worse: {turns_s}, {least_s}");
        for n_types in [1, 2] {
            let found_s = mean_s(n_types, "plan-weights");
            assert!((found_s / least_s - 1.0).abs() < 0.05, "{n_types} types: {found_s}, {least_s}");
        }
    }
}
