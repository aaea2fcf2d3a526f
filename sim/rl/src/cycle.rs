//! How the parts of a step follow one another: the time between two updates, once the first ones are over.
//!
//! Batch `b` is generated with weights that are at most `off_policy` updates behind those that it trains. So its generation begins when update
//! `b − 1 − off_policy` is done, and its training when it is generated and the update before it is done. With `g` for generation, `r` for
//! rewards, `t` for the trainer's part and `k` for `off_policy`, batches that are generated one after another give a step of `max(g, t, (g + r + t) / (k + 1))`.
//! Rewards take no GPU of either side, so they hold up their own batch alone. A test plays that batch by batch. Units: seconds.

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

    /// What keeps the engine: answers, and one change of weights where it goes on generating while the trainer trains.
    pub fn engine(&self, off_policy: u32) -> f64 {
        if off_policy > 0 { self.generation + self.weights } else { self.generation }
    }

    /// One part after another.
    pub const fn in_turn(&self) -> f64 {
        self.generation + self.after_generation() + self.switch
    }

    /// Time between two updates of GPUs of its own for the trainer, which takes weights so many updates behind.
    pub fn apart(&self, off_policy: u32) -> f64 {
        let (engine, trainer) = (self.engine(off_policy), self.trainer());
        engine.max(trainer).max((engine + self.after_generation()) / f64::from(off_policy + 1))
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
/// Every answer uses the weights that are newest when its batch begins, and the engine stops for each change. Two limits hold: a batch, its rewards and its trainer fit the
/// steps that its weights may be behind, and the engine gets no more batches than it can make. The second one stands alone once enough batches are under way.
/// So few are tried first, and a distance beyond that is not played.
pub fn streamed(parts: &Parts, off_policy: u32, crowd: Crowd<'_>) -> (f64, f64) {
    let (trainer, weights) = (parts.trainer(), parts.weights * f64::from(off_policy.min(1)));
    let after = weights + parts.after_generation();
    let is_in_time = |n: u32, step: f64, generation: f64| generation + after <= step * f64::from(n);
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
    let mut high = parts.apart(off_policy).max(low);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if is_in_time(n, middle, (crowd.generation)(n, middle)) { high = middle } else { low = middle }
    }
    (high, (crowd.generation)(n, high))
}

/// Halvings of what is searched: to a thousandth of it.
const HALVINGS: u32 = 10;

/// Batches that are played where they run beside one another, where two under way are enough: two and six that come at once, and six for every time
/// that is tried.
pub const STREAMED_BATCHES: u64 = 2 + 6 + 6 * (2 + HALVINGS as u64);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Plays batches one after another, and gives the mean time between late updates.
    fn played(parts: &Parts, off_policy: u32) -> f64 {
        let n = 400_usize;
        let (mut generated, mut updated) = (Vec::<f64>::new(), Vec::<f64>::new());
        for batch in 0..n {
            let released = batch.checked_sub(1 + off_policy as usize).map_or(0.0, |before| updated[before]);
            let free = generated.last().copied().unwrap_or(0.0);
            generated.push(released.max(free) + parts.engine(off_policy));
            let trained = updated.last().copied().unwrap_or(0.0);
            updated.push(trained.max(generated[batch] + parts.rewards) + parts.trainer());
        }
        (updated[n - 1] - updated[n / 2 - 1]) / hw::real((n / 2) as u64)
    }

    proptest! {
        #[test]
        fn the_closed_form_is_what_batches_show_one_by_one(
            generation in 1.0..100.0_f64,
            training in 1.0..100.0_f64,
            rewards in 0.0..200.0_f64,
            weights in 0.0..5.0_f64,
            off_policy in 0_u32..5,
        ) {
            let parts = Parts { generation, rewards, training, weights, ..Parts::default() };
            let (closed, shown) = (parts.apart(off_policy), played(&parts, off_policy));
            prop_assert!((closed / shown - 1.0).abs() < 0.01, "{closed} by the form, {shown} played");
        }
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
        assert_eq!(most.get(), 8, "33 s are eight steps");
    }
}
