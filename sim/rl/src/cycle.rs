//! How the parts of a step follow one another: the time between two updates, once the first ones are over.
//!
//! Batch `b` is generated with weights that are at most `off_policy` updates behind those that it trains. So its generation begins when update
//! `b − 1 − off_policy` is done, and its training when it is generated, rewarded and the update before it is done. With `g` for generation, `r` for
//! rewards, `t` for the trainer's part, `w` for the new weights in it and `k` for `off_policy`, no step of batches that are generated one after another is below
//! `max(g + w, t, (g + r + t) / (k + 1))`. Rewards take no GPU of either side, so they hold up their own batch alone. An engine stops while weights change, whatever it
//! generates then: a batch may meet no change, or several where batches bunch up behind slow rewards. So batches are played one by one. Units: seconds.

use engine::play::Case;

/// Ends of the costs, in the order of all figures of a step.
pub const CASES: [Case; 3] = [Case::Low, Case::Expected, Case::High];

hw::words! {
    /// Which GPUs generate and which train.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Placement: word {
        /// The same ones, in turns.
        Colocated = "colocated",
        /// Two groups.
        Split = "split",
    }
}

hw::words! {
    /// When the engine takes a batch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Batches: word {
        /// When all answers of the one before are there.
        InTurn = "in_turn",
        /// As soon as its weights may be used: answers of several batches run beside one another.
        Streamed = "streamed",
    }
}

/// What a batch takes, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Answers, from the first prompt to the last token.
    pub generation: f64,
    /// Rewards, where their time is stated.
    pub rewards: f64,
    /// Log probabilities of all answers.
    pub log_probabilities: f64,
    /// Optimizer steps.
    pub training: f64,
    /// New weights on their way to the engine, which waits for them.
    pub weights: f64,
    /// States of the trainer on their way to the host and back, where it shares its GPUs.
    pub switch: f64,
}

impl Parts {
    /// What the trainer's GPUs do for a batch, the weights that they send included.
    pub const fn trainer(&self) -> f64 {
        self.log_probabilities + self.training + self.weights
    }

    /// From the answers of a batch to the end of its update: its rewards, and the trainer.
    pub const fn after_generation(&self) -> f64 {
        self.rewards + self.trainer()
    }

    /// One part after another.
    pub const fn in_turn(&self) -> f64 {
        self.generation + self.after_generation() + self.switch
    }

    /// What two updates are apart at least where the trainer has GPUs of its own and takes answers of weights so many updates behind: either side does all of its
    /// work and neither works while weights change, and a batch passes both before as many updates as it may be behind.
    pub fn least_apart(&self, off_policy: u32) -> f64 {
        let through = self.generation + self.after_generation();
        (self.generation + self.weights).max(self.trainer()).max(through / f64::from(off_policy + 1))
    }

    /// Time between two updates there.
    pub fn apart(&self, off_policy: u32) -> f64 {
        let least = self.least_apart(off_policy);
        // Without a change that an engine meets nothing stops it.
        if off_policy == 0 || self.weights == 0.0 {
            return least;
        }
        // No engine needs batches that are further behind than two times what one of them passes.
        let passes = self.generation + self.after_generation() + self.weights;
        let needed = hw::whole((2.0 * passes / self.generation.max(self.trainer())).ceil());
        let behind = usize::try_from(needed.min(u64::from(off_policy))).expect("it came as u32");
        let played = self.played(behind + 1);
        // Sums of a step that is the least are rounded, and a larger distance rounds otherwise.
        if played - least < AT_ONCE { least } else { played }
    }

    /// Mean time between two updates with so many batches under way at most, played batch by batch from idle GPUs on. The first half is left out.
    fn played(&self, n_under_way: usize) -> f64 {
        let n = (ROUNDS * n_under_way).min(BATCHES_MAX.max(4 * n_under_way));
        let (mut free, mut updated) = (0.0, Vec::<f64>::with_capacity(n));
        // The first change of weights that may still meet an answer.
        let mut next = 0;
        for batch in 0..n {
            let released = batch.checked_sub(n_under_way).map_or(0.0, |before| updated[before]);
            let begin = released.max(free);
            while updated.get(next).is_some_and(|end| *end <= begin) {
                next += 1;
            }
            free = self.generated(begin, &updated[next..]);
            let trained = updated.last().copied().unwrap_or(0.0);
            updated.push(trained.max(free + self.rewards) + self.trainer());
        }
        let half = n / 2;
        (updated[n - 1] - updated[half - 1]) / hw::real((n - half) as u64)
    }

    /// When answers that begin so are there, where weights change until these moments.
    fn generated(&self, begin: f64, changed: &[f64]) -> f64 {
        let (mut now, mut left) = (begin, self.generation);
        for end in changed {
            let stops = (end - self.weights).max(now);
            // Answers that are there as the change begins meet none, whatever their sums are rounded to.
            if stops + AT_ONCE >= now + left {
                break;
            }
            left -= stops - now;
            now = *end;
        }
        now + left
    }

    /// Time between two updates.
    pub fn step(&self, placement: Placement, off_policy: u32) -> f64 {
        match placement {
            Placement::Colocated => self.in_turn(),
            Placement::Split => self.apart(off_policy),
        }
    }
}

/// Engines that several batches share.
#[derive(Clone, Copy)]
pub struct Crowd<'a> {
    /// How long the answers of a batch take when one comes every so many seconds, with so many batches under way at most. It falls with that time.
    pub generation: &'a dyn Fn(u32, f64) -> f64,
    /// Seconds that a further batch adds where answers always wait, with so many batches under way.
    pub further: &'a dyn Fn(u32) -> f64,
}

/// Least time between two updates where batches run beside one another in the engine, and the generation of a batch then.
///
/// Every answer uses the weights that are newest when its batch begins, and the engine stops for each change, one a step. Two limits hold: a batch with the changes that it
/// meets, its rewards and its trainer fit the steps that its weights may be behind, and the engine gets no more batches than it can make. The second one stands alone
/// once enough batches are under way. So few are tried first, and a distance beyond that is not played. Batches begin evenly: that they bunch up behind slow rewards, and so
/// meet more changes, is not in it.
pub fn streamed(parts: &Parts, off_policy: u32, crowd: Crowd<'_>) -> (f64, f64) {
    let (trainer, weights) = (parts.trainer(), parts.weights * f64::from(off_policy.min(1)));
    let is_in_time = |n: u32, step: f64, generation: f64| {
        // A batch begins behind a change. Of each step it has what the next one leaves.
        let n_met = if weights > 0.0 { (generation / (step - weights)).ceil() - 1.0 } else { 0.0 };
        generation + n_met * weights + parts.after_generation() <= step * f64::from(n)
    };
    let most = off_policy + 1;
    let (mut n, mut low) = (most.min(2), trainer);
    loop {
        low = low.max((crowd.further)(n) + weights);
        let generation = (crowd.generation)(n, low);
        if is_in_time(n, low, generation) {
            return (low, generation);
        }
        if n == most {
            break;
        }
        n = n.saturating_mul(2).min(most);
    }
    // Batches alone in the engine, each between two changes.
    let mut high = low.max(parts.least_apart(off_policy));
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if is_in_time(n, middle, (crowd.generation)(n, middle)) { high = middle } else { low = middle }
    }
    (high, (crowd.generation)(n, high))
}

/// Times that all batches under way pass while they are played.
const ROUNDS: usize = 1024;

/// Batches that are played at most, where not so many are under way.
const BATCHES_MAX: usize = 1 << 20;

/// Moments that are no further apart are one, seconds.
const AT_ONCE: f64 = 1e-6;

/// Halvings of what is searched: to a thousandth of it.
const HALVINGS: u32 = 10;

/// Batches that are played where they run beside one another, where two under way are enough: two and six that come at once, and six for every time
/// that is tried.
pub const STREAMED_BATCHES: u64 = 2 + 6 + 6 * (2 + HALVINGS as u64);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the trainer does, with what is left of it.
    #[derive(Clone, Copy, PartialEq)]
    enum Trainer {
        Waits,
        Trains(f64),
        Sends(f64),
    }

    /// Goes from event to event, and gives the mean time between late updates. An engine that generates stands still while weights change.
    fn by_events(parts: &Parts, off_policy: u32, n: usize) -> f64 {
        let (mut now, mut updated) = (0.0, Vec::new());
        let (mut rewarded, mut engine, mut trainer) = (Vec::<f64>::new(), None::<f64>, Trainer::Waits);
        while updated.len() < n {
            if engine.is_none() && rewarded.len() <= updated.len() + off_policy as usize {
                engine = Some(parts.generation);
            }
            let is_there = rewarded.get(updated.len()).filter(|_| trainer == Trainer::Waits);
            if is_there.is_some_and(|at| *at <= now) {
                trainer = Trainer::Trains(parts.trainer() - parts.weights);
            }
            let stands = matches!(trainer, Trainer::Sends(_));
            let of_trainer = match trainer {
                Trainer::Waits => is_there.map_or(f64::INFINITY, |at| at - now),
                Trainer::Trains(left) | Trainer::Sends(left) => left,
            };
            let of_engine = engine.filter(|_| !stands).unwrap_or(f64::INFINITY);
            let took = of_trainer.min(of_engine);
            now += took;
            if !stands {
                engine = engine.map(|left| left - took);
            }
            if engine.is_some_and(|left| left <= 1e-6) {
                engine = None;
                rewarded.push(now + parts.rewards);
            }
            trainer = match trainer {
                Trainer::Trains(left) if left <= took + 1e-12 => Trainer::Sends(parts.weights),
                Trainer::Trains(left) => Trainer::Trains(left - took),
                Trainer::Sends(left) if left <= took + 1e-12 => {
                    updated.push(now);
                    Trainer::Waits
                }
                Trainer::Sends(left) => Trainer::Sends(left - took),
                Trainer::Waits => Trainer::Waits,
            };
        }
        (updated[n - 1] - updated[n / 2 - 1]) / hw::real((n - n / 2) as u64)
    }

    proptest! {
        #[test]
        fn a_step_is_what_events_show_one_by_one(
            [generation, training] in [1.0..100.0_f64, 1.0..100.0],
            rewards in 0.0..200.0_f64,
            weights in 0.0..40.0_f64,
            off_policy in 0_u32..5,
        ) {
            let parts = Parts { generation, rewards, training, weights, ..Parts::default() };
            let n = 1024 * (off_policy as usize + 1);
            let (step, shown) = (parts.apart(off_policy), by_events(&parts, off_policy, n));
            prop_assert!((step / shown - 1.0).abs() < 0.01, "{step}, {shown} shown");
            prop_assert!(step >= parts.least_apart(off_policy));
        }
    }

    /// Where both sides keep the pace of the slower one, each generation meets one change of weights.
    #[test]
    fn quick_rewards_leave_the_closed_form() {
        for (generation, training, weights) in [(40.0, 20.0, 2.0), (20.0, 40.0, 2.0), (30.0, 28.0, 10.0)] {
            let parts = Parts { generation, training, weights, ..Parts::default() };
            for off_policy in [1, 2, 8, 100_000] {
                let expected = (generation + weights).max(training + weights);
                assert_eq!(parts.apart(off_policy), expected, "{generation} {training} {off_policy}");
            }
        }
    }

    /// Batches that are generated side by side in time are rewarded side by side, and updated one after another while the engine generates again.
    #[test]
    fn batches_that_bunch_up_meet_every_change_that_runs_beside_them() {
        let parts = Parts { generation: 6.0, rewards: 20.0, training: 3.0, weights: 8.0, ..Parts::default() };
        let shown = [1, 2, 3, 4].map(|off_policy| by_events(&parts, off_policy, 4000));
        let found = [1, 2, 3, 4].map(|off_policy| parts.apart(off_policy));
        assert!(
            found.iter().zip(shown).all(|(found, shown)| (found / shown - 1.0).abs() < 1e-3),
            "{found:?} {shown:?}"
        );
        // Each of three under way would take 15.05 s with one change. They meet more.
        let parts = Parts { generation: 6.439, rewards: 20.0, training: 2.663, weights: 8.03, ..Parts::default() };
        let step = parts.apart(2);
        assert!((step / by_events(&parts, 2, 3000) - 1.0).abs() < 1e-3 && (step - 17.73).abs() < 0.01, "{step}");
    }

    #[test]
    fn on_policy_parts_add_up_and_one_step_behind_the_longer_one_counts() {
        let parts =
            Parts { generation: 40.0, rewards: 1.0, log_probabilities: 9.0, training: 20.0, weights: 2.0, switch: 3.0 };
        assert_eq!(parts.step(Placement::Colocated, 0), 75.0);
        assert_eq!(parts.step(Placement::Split, 0), 72.0);
        // 40 + 2 beside 31.
        assert_eq!(parts.step(Placement::Split, 1), 42.0);
    }

    #[test]
    fn slow_rewards_are_hidden_by_batches_that_are_further_behind() {
        let parts = Parts { generation: 40.0, rewards: 100.0, training: 20.0, ..Parts::default() };
        // 160 s from the first prompt to the update, over the batches that are under way; then the engine.
        assert_eq!([0, 1, 3, 7].map(|k| parts.step(Placement::Split, k)), [160.0, 80.0, 40.0, 40.0]);
        let crowd = Crowd { generation: &|_, _| 40.0, further: &|_| 10.0 };
        // An engine that several batches share is held by nothing before the trainer.
        assert!((streamed(&parts, 3, crowd).0 - 40.0).abs() < 0.05);
        assert_eq!(streamed(&parts, 7, crowd).0, 20.0);
    }

    #[test]
    fn batches_beside_one_another_take_the_step_that_their_throughput_allows() {
        // A batch alone takes 10 s. Of several, the engine gives one every 4 s.
        let generation = |_: u32, step: f64| if step >= 10.0 { 10.0 } else { 10.0 + (10.0 - step) * 2.0 };
        let crowd = Crowd { generation: &generation, further: &|_| 4.0 };
        let parts = Parts { generation: 10.0, training: 2.0, ..Parts::default() };
        // With k = 2: (30 − 2 s + 2) / 3 = s, so s = 6.4, where 10 s would be the step of batches in turn.
        let (step, took) = streamed(&parts, 2, crowd);
        assert!((step - 6.4).abs() < 0.02, "{step}");
        assert!((took - (10.0 + (10.0 - step) * 2.0)).abs() < 1e-9);
        // Far behind, it is what the engine gives.
        assert_eq!(streamed(&parts, 100, crowd).0, 4.0);
        // A trainer that is slower than everything sets the pace.
        let slow = Parts { training: 50.0, ..parts };
        assert_eq!(streamed(&slow, 2, crowd).0, 50.0);
    }

    #[test]
    fn a_distance_beyond_what_the_engine_needs_is_not_played() {
        let most = std::cell::Cell::new(0);
        let generation = |n: u32, _: f64| {
            most.set(most.get().max(n));
            30.0
        };
        let parts = Parts { generation: 10.0, training: 2.0, weights: 0.5, ..Parts::default() };
        // The engine stops half a second for each of its batches of 4 s.
        assert_eq!(streamed(&parts, 100_000, Crowd { generation: &generation, further: &|_| 4.0 }).0, 4.5);
        assert_eq!(most.get(), 8, "36 s with seven changes are eight steps");
    }
}
