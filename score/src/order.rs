//! Whether settings come out in the order in which they were measured: Kendall's tau, and what the predicted best gives away.

/// How well an order is predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Order {
    /// Settings.
    pub n: usize,
    /// Kendall's tau-b; `None` where one side has no order.
    pub tau: Option<f64>,
    /// Share of the best measured value that the setting gives away which is predicted best.
    pub regret: f64,
}

/// Order of pairs of predicted and measured values, more being better; `None` below two.
pub fn of(pairs: &[[f64; 2]]) -> Option<Order> {
    if pairs.len() < 2 {
        return None;
    }
    let best = pairs.iter().map(|[_, measured]| *measured).fold(0.0, f64::max);
    let mut chosen = pairs[0];
    for pair in pairs {
        if pair[0] > chosen[0] {
            chosen = *pair;
        }
    }
    Some(Order { n: pairs.len(), tau: tau(pairs), regret: 1.0 - chosen[1] / best })
}

/// Kendall's tau-b (M. G. Kendall, Biometrika 33, 1945): concordant less discordant pairs, over the geometric mean of the pairs that are not
/// tied on either side.
pub fn tau(pairs: &[[f64; 2]]) -> Option<f64> {
    Agreement::of(pairs, 1.0).tau()
}

/// How often two settings stand in the same order on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Pairs of settings.
    pub n: u64,
    /// Concordant less discordant ones.
    net: i64,
    /// Those that are not tied as predicted, and as measured.
    untied: [u64; 2],
}

impl Agreement {
    /// Of predicted and measured values; a pair counts where the measured ones lie at least a factor apart.
    pub fn of(values: &[[f64; 2]], apart: f64) -> Self {
        let mut found = Self::default();
        for (index, first) in values.iter().enumerate() {
            for second in &values[index + 1..] {
                if first[1].max(second[1]) >= apart * first[1].min(second[1]) {
                    found.add([sign(first[0], second[0]), sign(first[1], second[1])]);
                }
            }
        }
        found
    }

    fn add(&mut self, signs: [i64; 2]) {
        self.n += 1;
        self.net += signs[0] * signs[1];
        for (count, sign) in self.untied.iter_mut().zip(signs) {
            *count += sign.unsigned_abs();
        }
    }

    /// Pairs of both.
    pub fn plus(self, other: Self) -> Self {
        let untied = [0, 1].map(|side| self.untied[side] + other.untied[side]);
        Self { n: self.n + other.n, net: self.net + other.net, untied }
    }

    /// Kendall's tau-b over these pairs; `None` where one side has no order.
    pub fn tau(&self) -> Option<f64> {
        let scale = (hw::real(self.untied[0]) * hw::real(self.untied[1])).sqrt();
        let net = hw::real(self.net.unsigned_abs());
        (scale > 0.0).then(|| if self.net < 0 { -net / scale } else { net / scale })
    }
}

fn sign(first: f64, second: f64) -> i64 {
    match first.total_cmp(&second) {
        std::cmp::Ordering::Less => 1,
        std::cmp::Ordering::Equal => 0,
        std::cmp::Ordering::Greater => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tau-a by counting inversions of a permutation, one adjacent swap at a time: each swap undoes one discordant pair.
    fn by_swaps(mut ranks: Vec<u32>) -> f64 {
        let n = ranks.len();
        let mut swaps = 0.0;
        for _ in 0..n {
            for index in 1..n {
                if ranks[index - 1] > ranks[index] {
                    ranks.swap(index - 1, index);
                    swaps += 1.0;
                }
            }
        }
        let all = hw::real((n * (n - 1) / 2) as u64);
        1.0 - 2.0 * swaps / all
    }

    #[test]
    fn tau_is_that_of_adjacent_swaps() {
        let mut stream = engine::random::stream(5, "permutations");
        for n in 2..30_u32 {
            let mut ranks: Vec<u32> = (0..n).collect();
            stream.shuffle(&mut ranks);
            let pairs: Vec<[f64; 2]> =
                (0..).zip(&ranks).map(|(at, rank): (u32, &u32)| [at.into(), (*rank).into()]).collect();
            let found = tau(&pairs).expect("an order");
            assert!((found - by_swaps(ranks)).abs() < 1e-12, "{n}: {found}");
        }
    }

    #[test]
    fn ties_count_as_in_tau_b() {
        // scipy.stats.kendalltau([1, 2, 2, 3], [1, 3, 2, 3]): four pairs agree, none disagree, five of six untied on each side: 4/5.
        let found = tau(&[[1.0, 1.0], [2.0, 3.0], [2.0, 2.0], [3.0, 3.0]]).expect("an order");
        assert!((found - 0.8).abs() < 1e-12, "{found}");
        assert_eq!(tau(&[[1.0, 1.0], [1.0, 2.0]]), None);
    }

    #[test]
    fn pairs_that_lie_too_close_do_not_count() {
        // 10 and 10.5 stand the wrong way round and lie 5 % apart; both other pairs are right.
        let values = [[2.0, 10.0], [1.0, 10.5], [3.0, 20.0]];
        let [all, far] = [1.0, 1.1].map(|apart| Agreement::of(&values, apart));
        assert_eq!((all.n, far.n, far.tau()), (3, 2, Some(1.0)));
        assert!((all.tau().expect("an order") - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(Agreement::of(&values, 3.0).tau(), None);
        assert!((all.plus(far).tau().expect("an order") - 0.6).abs() < 1e-12);
    }

    #[test]
    fn regret_is_what_the_predicted_best_gives_away() {
        let order = of(&[[1.0, 10.0], [3.0, 8.0], [2.0, 5.0]]).expect("an order");
        assert!((order.regret - 0.2).abs() < 1e-12);
        assert_eq!(of(&[[1.0, 1.0]]), None);
    }
}
