//! Answers of a batch: requests that come together, and the engine of serving that works them off. Units: seconds, tokens.
//!
//! Answers to one prompt share its blocks where the engine keeps prefixes.

use hw::{Seconds, Span, Time};
use serve::fleet::{Fleet, Rules, Served};
use serve::request::{Request, Requests};
use serve::router::RouterKind;

use crate::cycle::{self, Crowd, Parts};
use crate::rollouts::Rollouts;

/// What generating a batch shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Generated {
    /// From the first prompt to the last token.
    pub seconds: f64,
    /// Time until half of the answers are there: the median of their ends.
    pub half_s: f64,
    /// Share of the replicas' time in which they have no answer under way.
    pub idle_ratio: f64,
    /// Answers that no replica could hold.
    pub n_refused: u64,
}

/// Requests of batches that come every so often: prompt by prompt, with answers of these lengths.
pub fn requests(rollouts: &Rollouts, answers: &[u32], n_batches: u32, every: Seconds, block_tokens: u32) -> Requests {
    let n_blocks = rollouts.prompt / block_tokens.max(1);
    let mut requests = Requests { prefix_tokens: block_tokens, ..Requests::default() };
    for batch in 0..n_batches {
        engine::stop::pause();
        let arrival = Time::ZERO + Span::from_seconds(every * f64::from(batch));
        for prompt in answers.chunks(rollouts.n_answers.max(1) as usize) {
            let first = u32::try_from(requests.prefix_ids.len()).expect("fewer than 2^32 blocks");
            requests.prefix_ids.extend((0..n_blocks).map(|block| requests.n_prefix_ids + block));
            requests.n_prefix_ids += n_blocks;
            let of = |output: &u32| Request {
                prefix_first: first,
                prefix_count: n_blocks,
                ..Request::new(arrival, rollouts.prompt, *output)
            };
            requests.list.extend(prompt.iter().map(of));
        }
    }
    requests
}

/// Serves a batch alone.
pub fn alone(fleet: &Fleet, requests: &Requests, router: &RouterKind, seed: u64) -> Generated {
    let mut router = (router.make)(seed);
    let served = fleet.serve_by(requests, Rules::of(router.as_mut()));
    of_batch(fleet, &served, 0..requests.len(), 0.0)
}

/// Serves several batches that come every so often, and gives the longest of the later half.
pub fn beside(fleet: &Fleet, requests: &Requests, n_batches: u32, every_s: f64, router: &RouterKind, seed: u64) -> f64 {
    let mut router = (router.make)(seed);
    let served = fleet.serve_by(requests, Rules::of(router.as_mut()));
    let size = requests.len() / n_batches.max(1) as usize;
    let took = |batch: u32| {
        let first = batch as usize * size;
        of_batch(fleet, &served, first..first + size, every_s * f64::from(batch)).seconds
    };
    (n_batches / 2..n_batches).map(took).fold(0.0, f64::max)
}

/// Engines that batches share, one that comes every so often.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    /// What is generated.
    pub rollouts: &'a Rollouts,
    /// Tokens of every answer of a batch.
    pub answers: &'a [u32],
    /// Who generates.
    pub fleet: &'a Fleet,
    /// Which replica takes an answer.
    pub router: &'static RouterKind,
    /// Seed of the router.
    pub seed: u64,
    /// Tokens of a block of keys and values.
    pub block_tokens: u32,
}

/// Batches that are played beside one another, per batch that may be under way: the first ones begin at an idle engine.
const BATCHES_PER_PLACE: u32 = 3;

impl Shared<'_> {
    /// The step where engines take so many times as long, and how long a batch takes there. An engine that is slower by a factor and gets its batches later by the
    /// same factor does the same, later by that factor.
    pub fn step(&self, parts: &Parts, off_policy: u32, slowness: f64) -> (f64, f64) {
        let generation = |n: u32, every_s: f64| slowness * self.generation_s(n, every_s / slowness);
        let further = |n: u32| slowness * self.further_s(n);
        cycle::streamed(parts, off_policy, Crowd { generation: &generation, further: &further })
    }

    fn batches(&self, n_batches: u32, every_s: f64) -> Requests {
        requests(self.rollouts, self.answers, n_batches, Seconds::new(every_s), self.block_tokens)
    }

    /// How long the answers of a batch take when one comes every so many seconds, with so many under way at most.
    fn generation_s(&self, n_under_way: u32, every_s: f64) -> f64 {
        let n_batches = n_under_way * BATCHES_PER_PLACE;
        let requests = self.batches(n_batches, every_s);
        beside(self.fleet, &requests, n_batches, every_s, self.router, self.seed)
    }

    /// Seconds that a further batch adds to so many that come at once. Few and many batches end with the same last answers, so that these add nothing.
    fn further_s(&self, n_under_way: u32) -> f64 {
        let n = [n_under_way, n_under_way * BATCHES_PER_PLACE];
        let [few_s, many_s] = n.map(|n| alone(self.fleet, &self.batches(n, 0.0), self.router, self.seed).seconds);
        (many_s - few_s) / f64::from(n[1] - n[0])
    }
}

fn of_batch(fleet: &Fleet, served: &Served, batch: std::ops::Range<usize>, came_s: f64) -> Generated {
    let mut last = vec![0.0_f64; fleet.n_replicas() as usize];
    let mut ends = Vec::with_capacity(batch.len());
    for record in &served.records.list[batch] {
        let Some(end) = record.finished() else { continue };
        let end = (end - Time::ZERO).to_seconds().get() - came_s;
        ends.push(end);
        if let Some(of_replica) = last.get_mut(record.replica as usize) {
            *of_replica = of_replica.max(end);
        }
    }
    ends.sort_by(f64::total_cmp);
    let seconds = ends.last().copied().unwrap_or(0.0);
    let busy = last.iter().sum::<f64>() / hw::real(last.len() as u64);
    Generated {
        seconds,
        half_s: hw::quantile::median(&ends),
        idle_ratio: if seconds > 0.0 { 1.0 - busy / seconds } else { 0.0 },
        n_refused: served.n_refused,
    }
}

#[cfg(test)]
mod tests {
    use serve::batcher;
    use serve::fleet::Group;
    use serve::replica::{Engine, Limits, Spans};
    use serve::router;
    use serve::step_cost::StepTable;

    use super::*;

    const ROLLOUTS: Rollouts = Rollouts { n_prompts: 2, n_answers: 2, prompt: 32, mean: 10.0, most: 20 };

    /// Replicas whose iterations take 10 ms and 1 ms a token.
    fn fleet(n_replicas: u32, shares_prefixes: bool) -> Fleet {
        let limits = Limits {
            sequences_max: 64,
            tokens_max: 4096,
            context_max: 10_000,
            kv_blocks: 10_000,
            shares_prefixes,
            ..Limits::ROOMY
        };
        let table = StepTable::linear(Seconds::new(1e-2), Seconds::new(1e-3), Seconds::ZERO);
        let batcher = batcher::named("vllm-v1").expect("listed");
        Fleet::of(Group::new("all", Engine { limits, table, batcher, spans: Spans::Closed }, n_replicas))
    }

    fn generated(fleet: &Fleet, answers: &[u32]) -> Generated {
        let requests = requests(&ROLLOUTS, answers, 1, Seconds::ZERO, 16);
        alone(fleet, &requests, router::named("round-robin").expect("listed"), 0)
    }

    #[test]
    fn a_batch_takes_its_prompts_and_as_many_iterations_as_its_longest_answer_has_tokens() {
        // The first prompt begins as it comes, 10 + 32 ms. The other three are computed beside its second token, 10 + 97 ms. Then eight iterations have four
        // sequences, one has three, and five have the last two.
        let found = generated(&fleet(1, false), &[10, 15, 10, 15]);
        let expected = 0.042 + 0.107 + 8.0 * 0.014 + 0.013 + 5.0 * 0.012;
        assert!((found.seconds - expected).abs() < 1e-6, "{} s, {expected} s by hand", found.seconds);
        // The second of four ends after nine iterations beside each other, the third one in order with the last. The median lies between both.
        let second = 0.042 + 0.107 + 8.0 * 0.014 + 0.013;
        assert!((found.half_s - f64::midpoint(second, expected)).abs() < 1e-6, "{}", found.half_s);
        assert_eq!(found.idle_ratio, 0.0);
    }

    #[test]
    fn answers_to_one_prompt_share_its_blocks_where_the_engine_keeps_prefixes() {
        let seconds = |shares| generated(&fleet(1, shares), &[10; 4]).seconds;
        // Two of four prompts are cached but for the last block, of which at least a token is computed.
        let saved = seconds(false) - seconds(true);
        assert!((0.0..=0.064).contains(&saved), "{saved}");
        let batch = requests(&ROLLOUTS, &[10; 4], 2, Seconds::new(1.0), 16);
        // Prompts of two batches are others: two prompts of two blocks in each.
        assert_eq!((batch.n_prefix_ids, batch.len()), (8, 8));
        assert_eq!(batch.list[0].prefix_first, batch.list[1].prefix_first);
        assert_ne!(batch.prefix_ids[0], batch.prefix_ids[4]);
    }

    #[test]
    fn replicas_without_answers_wait_for_the_last_one() {
        // Round robin gives the short answers to one replica and the long ones to the other.
        let found = generated(&fleet(2, false), &[10, 20, 10, 20]);
        // Each has one prompt, then the other one beside a token, then both until the first one ends.
        let of = |tokens: f64| 0.042 + 0.043 + (tokens - 2.0) * 0.012 + 0.011;
        let (short, long) = (of(10.0), of(20.0));
        assert!((found.seconds - long).abs() < 1e-6);
        assert!((found.idle_ratio - (1.0 - (short + long) / 2.0 / long)).abs() < 1e-6, "{}", found.idle_ratio);
    }

    #[test]
    fn batches_that_come_faster_than_they_are_done_take_longer() {
        let fleet = fleet(1, false);
        let answers = [20; 4];
        let took = |every_s: f64| {
            let requests = requests(&ROLLOUTS, &answers, 6, Seconds::new(every_s), 16);
            beside(&fleet, &requests, 6, every_s, router::named("round-robin").expect("listed"), 0)
        };
        let alone = generated(&fleet, &answers).seconds;
        assert!((took(10.0) / alone - 1.0).abs() < 1e-9);
        assert!(took(alone / 2.0) > alone);
    }

    #[test]
    fn no_step_is_shorter_than_the_engine_can_give_batches_and_none_grows_with_the_distance() {
        let router = router::named("round-robin").expect("listed");
        let answers = [3, 5, 8, 12, 20, 40, 9, 14];
        let rollouts = Rollouts { n_prompts: 4, ..ROLLOUTS };
        for sequences_max in [1, 3, 8, 20] {
            let mut fleet = fleet(1, false);
            fleet.groups[0].engine.limits.sequences_max = sequences_max;
            // Hundreds of batches wait: those between the quarters have no idle engine before them and no emptier one behind.
            let (mut router_of, all) = ((router.make)(0), requests(&rollouts, &answers, 400, Seconds::ZERO, 16));
            let served = fleet.serve_by(&all, Rules::of(router_of.as_mut()));
            let ends = served.records.list.iter().filter_map(|record| record.finished());
            let mut ends: Vec<f64> = ends.map(|end| (end - Time::ZERO).to_seconds().get()).collect();
            ends.sort_by(f64::total_cmp);
            let given_s = (ends[300 * answers.len()] - ends[100 * answers.len()]) / 200.0;
            let (rollouts, answers, fleet) = (&rollouts, &answers[..], &fleet);
            let shared = Shared { rollouts, answers, fleet, router, seed: 0, block_tokens: 16 };
            let alone = generated(fleet, answers).seconds;
            let parts = Parts { generation: alone, training: 0.01, ..Parts::default() };
            let mut before = parts.in_turn();
            for off_policy in [1, 2, 3, 4, 8, 16, 64] {
                let (step, _) = shared.step(&parts, off_policy, 1.0);
                // Which answers meet in the engine differs a little from batch to batch.
                assert!(step >= 0.99 * given_s, "{sequences_max}, {off_policy}: {step} s, {given_s} s given");
                assert!(step <= 1.005 * before, "{sequences_max}, {off_policy}: {step} s after {before} s");
                before = step;
            }
            assert!(before <= 1.02 * given_s, "{sequences_max}: {before} s far behind, {given_s} s given");
        }
    }
}
