//! DACP and GDS of Skrull (arXiv:2505.19609, section 4), shared by the policies that vary them.
//!
//! DACP places the sequences of one micro-batch: whole on one of N context ranks, or sharded over all of them.
//! GDS groups a batch into micro-batches that DACP can place. Units: tokens, and model operations of one layer forward.
//! Invariant of the strict roll-back: no rank holds more than C tokens, a shard counted as ⌈S/N⌉.

use engine::Model;
use hw::real;
use train::plan::{MicroBatch, Place, Placement, Step};
use train::{Plan, Problem};

use crate::train::pack;
use crate::train::policy::{PlanContext, PlanError};

/// How DACP makes room when nothing fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollBack {
    /// The shortest local sequence of the tightest rank is sharded, and every rank pays its shard.
    Strict,
    /// As printed: only the tightest rank's room and load are updated, so others can overflow.
    Paper,
    /// None, and no room check either: least load takes all. Plans can exceed C.
    Off,
}

impl RollBack {
    /// Reads the parameter `rollback`.
    pub fn of(context: &PlanContext<'_>) -> Self {
        match context.word("rollback", "strict") {
            "paper" => Self::Paper,
            "off" => Self::Off,
            _ => Self::Strict,
        }
    }
}

/// Which rank is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The one with the least load (Skrull).
    LeastLoad,
    /// The one with the most room (round-robin baseline: step (a) left out).
    MostRoom,
}

/// Model operations of one layer forward for a sequence: (20h² + 4h·h_kv)·S + 4h·S².
pub fn flops(model: &Model, tokens: u64) -> f64 {
    let (h, kv, s) = (real(model.hidden), real(model.kv_width()), real(tokens));
    (20.0 * h * h + 4.0 * h * kv) * s + 4.0 * h * s * s
}

/// Limits and rules of one placement.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Tokens per rank, C.
    pub capacity: u64,
    /// Context ranks, N.
    pub n_ranks: u32,
    /// Roll-back.
    pub roll_back: RollBack,
    /// Rank tried first.
    pub first: First,
}

struct Ranks<'a> {
    model: &'a Model,
    rules: Rules,
    room: Vec<i64>,
    load: Vec<f64>,
}

impl Ranks<'_> {
    fn shard(&self, tokens: u64) -> i64 {
        i64::try_from(tokens.div_ceil(u64::from(self.rules.n_ranks))).expect("lengths stay below 2^63")
    }

    fn least_load(&self) -> usize {
        (0..self.load.len()).min_by(|&a, &b| self.load[a].total_cmp(&self.load[b])).expect("at least one rank")
    }

    fn most_room(&self) -> usize {
        (0..self.room.len()).max_by_key(|&rank| (self.room[rank], std::cmp::Reverse(rank))).expect("at least one rank")
    }

    fn least_room(&self) -> usize {
        (0..self.room.len()).min_by_key(|&rank| (self.room[rank], rank)).expect("at least one rank")
    }

    fn put(&mut self, rank: usize, tokens: u64) {
        self.room[rank] -= i64::try_from(tokens).expect("lengths stay below 2^63");
        self.load[rank] += flops(self.model, tokens);
    }

    fn put_shard(&mut self, tokens: u64) {
        let (shard, share) = (self.shard(tokens), flops(self.model, tokens) / f64::from(self.rules.n_ranks));
        self.room.iter_mut().for_each(|room| *room -= shard);
        self.load.iter_mut().for_each(|load| *load += share);
    }

    fn fits(&self, rank: usize, tokens: u64) -> bool {
        self.room[rank] >= i64::try_from(tokens).expect("lengths stay below 2^63")
    }

    /// Moves a local sequence of `rank` to all ranks.
    fn roll_back(&mut self, rank: usize, tokens: u64) {
        let whole = flops(self.model, tokens);
        self.load[rank] -= whole;
        self.room[rank] += i64::try_from(tokens).expect("lengths stay below 2^63");
        if self.rules.roll_back == RollBack::Strict {
            self.put_shard(tokens);
        } else {
            self.room[rank] -= self.shard(tokens);
            self.load[rank] += whole / f64::from(self.rules.n_ranks);
        }
    }
}

/// Places the sequences of one micro-batch, given as (id, tokens); `None` when they do not fit.
pub fn dacp(model: &Model, sequences: &[(u32, u64)], rules: Rules) -> Option<Vec<Placement>> {
    let mut order = sequences.to_vec();
    order.sort_by_key(|&(id, tokens)| (tokens, id));
    let n = rules.n_ranks as usize;
    let capacity = i64::try_from(rules.capacity).expect("capacities stay below 2^63");
    let mut ranks = Ranks { model, rules, room: vec![capacity; n], load: vec![0.0; n] };
    let mut placed: Vec<Placement> = Vec::with_capacity(order.len());
    for (sequence, tokens) in order {
        engine::stop::pause();
        let place = place(&mut ranks, &mut placed, tokens)?;
        placed.push(Placement { sequence, from: 0, tokens, place });
    }
    let whole = rules.roll_back != RollBack::Strict || ranks.room.iter().all(|room| *room >= 0);
    whole.then_some(placed)
}

fn local(rank: usize) -> Place {
    Place::Local(u32::try_from(rank).expect("ranks fit u32"))
}

fn place(ranks: &mut Ranks<'_>, placed: &mut [Placement], tokens: u64) -> Option<Place> {
    if ranks.rules.roll_back == RollBack::Off {
        let rank = if ranks.rules.first == First::LeastLoad { ranks.least_load() } else { ranks.most_room() };
        ranks.put(rank, tokens);
        return Some(local(rank));
    }
    loop {
        let candidates = match ranks.rules.first {
            First::LeastLoad => [ranks.least_load(), ranks.most_room()],
            First::MostRoom => [ranks.most_room(); 2],
        };
        if let Some(rank) = candidates.into_iter().find(|&rank| ranks.fits(rank, tokens)) {
            ranks.put(rank, tokens);
            return Some(local(rank));
        }
        let tightest = ranks.least_room();
        if ranks.room[tightest] >= ranks.shard(tokens) {
            ranks.put_shard(tokens);
            return Some(Place::Sharded);
        }
        // Sequences were placed in ascending order, so the first local one is the shortest.
        let shortest = placed.iter_mut().find(|placement| placement.place == local(tightest))?;
        shortest.place = Place::Sharded;
        let moved = shortest.tokens;
        ranks.roll_back(tightest, moved);
    }
}

/// Groups the sequences of one data-parallel rank into micro-batches and places each.
///
/// # Errors
/// When even one sequence per micro-batch does not fit.
pub fn gds(problem: &Problem, sequences: &[(u32, u64)], rules: Rules) -> Result<Vec<MicroBatch>, PlanError> {
    let mut order = sequences.to_vec();
    order.sort_by_key(|&(id, tokens)| (tokens, id));
    let capacity = rules.capacity * u64::from(rules.n_ranks);
    let total: u64 = order.iter().map(|(_, tokens)| tokens).sum();
    let fewest = usize::try_from(total.div_ceil(capacity)).expect("micro-batches fit usize").max(1);
    for m in fewest..=order.len().max(1) + 1 {
        let groups = (0..m).map(|first| order.iter().copied().skip(first).step_by(m).collect::<Vec<_>>());
        let placed: Option<Vec<MicroBatch>> = groups
            .filter(|group| !group.is_empty())
            .map(|group| {
                let tokens: u64 = group.iter().map(|(_, tokens)| tokens).sum();
                // Several stay below the capacity, as in the paper's algorithm; one that fills it wholly is cut over all ranks.
                let fits = tokens < capacity + u64::from(group.len() == 1) || rules.roll_back == RollBack::Off;
                let sequences = if fits { dacp(&problem.model, &group, rules)? } else { return None };
                Some(MicroBatch { sequences, ..MicroBatch::default() })
            })
            .collect();
        if let Some(micro_batches) = placed {
            return Ok(micro_batches);
        }
    }
    let longest = order.last().map_or(0, |(_, tokens)| *tokens);
    Err(PlanError::Infeasible(format!(
        "no grouping fits: the longest sequence has {longest} tokens, a micro-batch takes {capacity} \
         ({} per rank on {} ranks)",
        rules.capacity, rules.n_ranks
    )))
}

/// Plans every step: sequences to data-parallel ranks by operations (longest first), then `gds`, or for `arrival`
/// batching next-fit in arrival order and `dacp`.
///
/// # Errors
/// As `gds`.
pub fn plan(problem: &Problem, context: &PlanContext<'_>, first: First) -> Result<Vec<Step>, PlanError> {
    let rules =
        Rules { capacity: problem.bucket_tokens, n_ranks: problem.layout.cp, roll_back: RollBack::of(context), first };
    let by_arrival = context.word("batching", "gds") == "arrival";
    (0..problem.workload.n_steps())
        .map(|step_index| {
            let sequences: Vec<(u32, u64)> = problem.workload.step(step_index).collect();
            let weights: Vec<f64> = sequences.iter().map(|&(_, tokens)| flops(&problem.model, tokens)).collect();
            let mut bins = pack::longest_first(&weights, problem.layout.dp as usize);
            bins.iter_mut().for_each(|bin| bin.sort_unstable());
            let groups: Result<Vec<_>, PlanError> = bins
                .iter()
                .map(|bin| {
                    let mine: Vec<(u32, u64)> = bin.iter().map(|&index| sequences[index]).collect();
                    if by_arrival { arrival(problem, &mine, rules) } else { gds(problem, &mine, rules) }
                })
                .collect();
            Ok(Step::of_groups(groups?))
        })
        .collect()
}

fn arrival(problem: &Problem, sequences: &[(u32, u64)], rules: Rules) -> Result<Vec<MicroBatch>, PlanError> {
    let sizes: Vec<u64> = sequences.iter().map(|(_, tokens)| *tokens).collect();
    let capacity = rules.capacity * u64::from(rules.n_ranks) - 1;
    let mut micro_batches = Vec::new();
    for bin in pack::next_fit(&sizes, capacity) {
        let group: Vec<(u32, u64)> = bin.iter().map(|&index| sequences[index]).collect();
        match dacp(&problem.model, &group, rules) {
            Some(sequences) => micro_batches.push(MicroBatch { sequences, ..MicroBatch::default() }),
            None => micro_batches.extend(gds(problem, &group, rules)?),
        }
    }
    Ok(micro_batches)
}

/// Start-up of a gather of keys and values, seconds: fit to the paper's all-gather table, 43.9 µs.
const EXCHANGE_START_S: f64 = 43.9e-6;
/// Time per byte of the same fit, 6.86 µs per MB.
const EXCHANGE_S_PER_BYTE: f64 = 6.86e-12;
/// Keys and values, two bytes each.
const EXCHANGE_BYTES_PER_TOKEN_AND_WIDTH: f64 = 4.0;

/// Terms of Skrull's cost model in seconds of one layer forward.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    peak_flops_per_s: f64,
    exchange_s_per_token: f64,
}

impl Terms {
    /// Terms of a problem: compute at the device's peak (the ratio of plans does not depend on it).
    pub fn of(problem: &Problem) -> Self {
        let width = real(problem.model.kv_width());
        Self {
            peak_flops_per_s: problem.cluster.gpu.peak(problem.dtype).get(),
            exchange_s_per_token: EXCHANGE_BYTES_PER_TOKEN_AND_WIDTH * width * EXCHANGE_S_PER_BYTE,
        }
    }

    /// T_comp of a whole sequence.
    pub fn compute_s(&self, model: &Model, tokens: u64) -> f64 {
        flops(model, tokens) / self.peak_flops_per_s
    }

    /// Start-up of the exchange, paid once per micro-batch with any sharded sequence.
    pub const fn exchange_start_s(&self) -> f64 {
        EXCHANGE_START_S
    }

    /// Time of the exchange per sharded token.
    pub const fn exchange_s_per_token(&self) -> f64 {
        self.exchange_s_per_token
    }

    /// T_DACP of a micro-batch: max over ranks of max(T_comm, T_comp(local)) + T_comp(sharded).
    pub fn micro_batch_s(&self, model: &Model, n_ranks: u32, placements: &[Placement]) -> f64 {
        let mut local = vec![0.0_f64; n_ranks as usize];
        let (mut sharded, mut tokens) = (0.0, 0.0);
        for placement in placements {
            let seconds = self.compute_s(model, placement.tokens);
            match placement.place {
                Place::Local(rank) => local[rank as usize] += seconds,
                // DACP itself makes no smaller rings.
                Place::Sharded | Place::Ring { .. } => {
                    sharded += seconds / f64::from(n_ranks);
                    tokens += real(placement.tokens);
                }
            }
        }
        let exchange = if tokens > 0.0 { EXCHANGE_START_S + self.exchange_s_per_token * tokens } else { 0.0 };
        local.into_iter().fold(exchange, f64::max) + sharded
    }
}

/// Skrull's objective of a plan: sum over steps of the slowest data-parallel rank's micro-batch times, seconds of one layer
/// forward.
pub fn objective(problem: &Problem, plan: &Plan) -> f64 {
    let terms = Terms::of(problem);
    let group = |micro_batches: &Vec<MicroBatch>| -> f64 {
        let times =
            micro_batches.iter().map(|mb| terms.micro_batch_s(&problem.model, problem.layout.cp, &mb.sequences));
        times.sum()
    };
    plan.steps.iter().map(|step| step.groups.iter().map(group).fold(0.0, f64::max)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::policies::tests::problem;

    fn rules(capacity: u64, n_ranks: u32, roll_back: RollBack) -> Rules {
        Rules { capacity, n_ranks, roll_back, first: First::LeastLoad }
    }

    #[test]
    fn quadratic_and_linear_work_meet_at_five_hidden_plus_kv_width() {
        // 4hS² = (20h² + 4h·h_kv)·S at S = 5h + h_kv; 4608 for h 896 and h_kv 128, 18,432 for 3584 and 512.
        for (name, crossover) in [("qwen2.5-0.5b", 4608_u64), ("qwen2.5-7b", 18_432)] {
            let model = engine::model::embedded(name).expect("embedded");
            let quadratic = 4.0 * real(model.hidden) * real(crossover) * real(crossover);
            assert_eq!(flops(&model, crossover), 2.0 * quadratic, "{name}");
        }
        let model = engine::model::embedded("qwen2.5-0.5b").expect("embedded");
        let ratio = flops(&model, 32_768) / flops(&model, 4096);
        assert_eq!((ratio * 10.0).round(), 344.0);
    }

    #[test]
    fn short_sequences_stay_local_and_long_ones_are_sharded() {
        // C 10 on two ranks: 3 to rank 0, 4 to rank 1; 12 fits neither, a shard of 6 fits both.
        let model = engine::model::embedded("qwen2.5-0.5b").expect("embedded");
        let placed = dacp(&model, &[(0, 12), (1, 3), (2, 4)], rules(10, 2, RollBack::Strict)).expect("fits");
        let places: Vec<_> = placed.iter().map(|p| (p.sequence, p.place)).collect();
        assert_eq!(places, [(1, Place::Local(0)), (2, Place::Local(1)), (0, Place::Sharded)]);
    }

    #[test]
    fn strict_roll_back_pays_on_every_rank_and_the_printed_one_does_not() {
        // C 10, two ranks: 7 to rank 0 (room 3), 8 to rank 1 (room 2), then 5: nothing fits (shard 3 > 2), so rank 1's 8 is
        // sharded: strict room is 3-4 < 0 on rank 0. The printed one sees rank 1 with room 6 and puts 5 there.
        let model = engine::model::embedded("qwen2.5-0.5b").expect("embedded");
        let sequences = [(0, 7), (1, 8), (2, 9)];
        let printed = dacp(&model, &sequences, rules(10, 2, RollBack::Paper)).expect("the printed rule accepts");
        let micro_batch = MicroBatch { sequences: printed, ..MicroBatch::default() };
        assert!((0..2).any(|rank| micro_batch.tokens_on(rank, 2) > 10), "{micro_batch:?}");
        assert!(dacp(&model, &sequences, rules(10, 2, RollBack::Strict)).is_none());
    }

    #[test]
    fn one_sequence_may_fill_a_micro_batch_and_two_may_not() {
        let problem = problem(vec![4000], 1, 1, 4, 1000);
        for (lengths, n) in [
            (&[4000][..], Some(1)),
            (&[4000, 4000], Some(2)),
            (&[2000, 1999], Some(1)),
            (&[2000, 2000], Some(2)),
            (&[4001], None),
        ] {
            let sequences: Vec<(u32, u64)> = (0..).zip(lengths.iter().copied()).collect();
            let found = gds(&problem, &sequences, rules(1000, 4, RollBack::Strict)).ok();
            assert_eq!(found.map(|groups| groups.len()), n, "{lengths:?}");
        }
    }

    #[test]
    fn grouping_pairs_short_with_long_and_stays_below_the_capacity() {
        let lengths = vec![10, 20, 30, 40, 50, 60];
        let problem = problem(lengths, 6, 1, 2, 60);
        let sequences: Vec<_> = problem.workload.step(0).collect();
        let groups = gds(&problem, &sequences, rules(60, 2, RollBack::Strict)).expect("fits");
        // 210 tokens over 120: two groups, 10+30+50 and 20+40+60 = 120, which is not below 120, so three.
        assert_eq!(groups.len(), 3);
        assert!(groups.iter().all(|group| group.tokens() < 120));
        assert_eq!(groups[0].sequences.iter().map(|p| p.sequence).collect::<Vec<_>>(), [0, 3]);
    }
}
