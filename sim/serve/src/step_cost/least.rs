//! What iterations take at least, whoever is batched with whom: prices of tokens in closed form, for bounds on whole runs.

use hw::Tick;

use super::StepTable;

/// Pairs of prices that are looked at, between those that price prompts fully and those that price them not at all.
const PAIRS: u32 = 4;

/// What tokens cost at least. Prices hold for sums over iterations: a run with P tokens of prompts and D decoded tokens that attend to K keys keeps the
/// replica busy for at least `P · prompt + D · decoded + K · key`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Of a token of a prompt.
    pub prompt: f64,
    /// Of a sequence that decodes in an iteration: of its token, or of its drafts and their verification.
    pub decoded: f64,
    /// Of a key that a decoding sequence attends to.
    pub key: f64,
}

/// Least ticks of what a replica does.
#[derive(Clone, Debug, PartialEq)]
pub struct Least {
    /// Prices of which each holds by itself.
    pub prices: Vec<Prices>,
    /// Price of a token that is sampled: the head.
    pub sampled: f64,
    /// The shortest passage of a batch through all layers and the head.
    pub passage: f64,
    /// The shortest iteration in which a sequence decodes: a passage, and what is drafted before it.
    pub decoding: f64,
    /// A token of a long prompt by itself, through all stages.
    pub token: f64,
}

impl StepTable {
    /// Prices with so many sequences of the replica, over all ranks, and so many tokens of a batch; `None` where stages have times of their own, for which no price
    /// is known.
    ///
    /// The prices are points of a linear program's dual. A batch of `s` tokens takes `t(s)` and holds at most `min(S, s)` decoding sequences, so
    /// `prompt · (s − d) + decoded · d ≤ t(s)` for every batch that the limits allow. `prompt` goes from nothing to the best `t(s) / s`, and
    /// `decoded` is the largest that fits. With `R` ranks of data-parallel attention a prompt may be alone: `R · s` tokens share a round that takes
    /// `t(s)`, or `s − d` of prompts and `R · d` decoding ones share one of `(d · t(s) + (s − d) · lone(s)) / s`. In between the time is
    /// linear in the tokens, so both ends suffice. Where experts have GPUs of their own each side has prices of its own (`ping_pong/least.rs`).
    ///
    /// A verification of `k` drafts has `1 + k` such tokens for a sequence, which samples as many. Drafting adds what it takes at least for a sequence, and for
    /// a token of a prompt, which a draft model reads too. Where several batches share a round, drafting counts as nothing.
    ///
    /// # Panics
    /// When a limit is 0.
    pub fn least(&self, sequences_max: u32, tokens_max: u32) -> Option<Least> {
        assert!(sequences_max > 0 && tokens_max > 0, "a batch has a sequence and a token");
        if self.stages.is_some() || self.tokens.len() < 2 {
            return None;
        }
        // Where an engine's limit is that of prompts alone, decoding sequences may have more tokens.
        let decoding = self.lanes.largest(sequences_max).saturating_mul(self.tokens_per_sequence());
        let sizes = self.sizes(tokens_max.max(decoding));
        let drafts = self.least_drafts(sequences_max);
        let key = least_of((1..=sequences_max).map(|n| self.rate(n).as_f64()));
        let prices = match &self.apart {
            Some(apart) => apart.prices(decoding, tokens_max.max(decoding), key),
            None => self.prices(&sizes, decoding, key, [drafts.prompt_token, drafts.sequence]),
        };
        let head = self.head.iter().enumerate().skip(1);
        let sampled = least_of(head.map(|(n, ticks)| ticks.as_f64() / hw::real(n as u64))).max(0.0);
        let shortest = least_of(sizes.iter().map(|size| size.lone));
        let passage = shortest + self.head.get(1).map_or(0.0, |ticks| ticks.as_f64());
        Some(Least {
            prices,
            // A round computes a batch in each lane.
            sampled: if sampled.is_finite() { sampled / f64::from(self.lanes.n()) } else { 0.0 },
            passage,
            decoding: passage + drafts.iteration,
            token: least_of(sizes.iter().map(|size| size.lone / size.tokens)),
        })
    }

    /// The same prices, and those that hold where memory has room for so many keys at once.
    ///
    /// A batch with all of them takes `fixed`, a part of the shortest passage, for each of `keys_max` keys. So of every batch `fixed` may be charged to its keys,
    /// `fixed / keys_max` for each, and the rest to its tokens. Where stages compute batches side by side, or experts have GPUs of their own, memory is not priced.
    pub fn least_held(&self, sequences_max: u32, tokens_max: u32, keys_max: f64) -> Option<Vec<Prices>> {
        let Least { mut prices, .. } = self.least(sequences_max, tokens_max)?;
        if self.lanes.stages > 1 || self.apart.is_some() || !keys_max.is_finite() || keys_max <= 0.0 {
            return Some(prices);
        }
        let decoding = self.lanes.largest(sequences_max).saturating_mul(self.tokens_per_sequence());
        let drafts = self.least_drafts(sequences_max);
        let key = least_of((1..=sequences_max).map(|n| self.rate(n).as_f64()));
        let sizes = self.sizes(tokens_max.max(decoding));
        let shortest = least_of(sizes.iter().flat_map(|size| [size.lone, size.even]));
        for part in 1..=PAIRS {
            let fixed = shortest * f64::from(part) / f64::from(PAIRS);
            let rest: Vec<Size> = sizes.iter().map(|size| size.without(fixed)).collect();
            prices.extend(self.prices(&rest, decoding, key + fixed / keys_max, [drafts.prompt_token, drafts.sequence]));
        }
        Some(prices)
    }

    /// Prices where a replica's GPUs do all alike. Drafting adds so much to a token of a prompt and to a sequence.
    fn prices(&self, sizes: &[Size], decoding: u32, key: f64, drafts: [f64; 2]) -> Vec<Prices> {
        let lanes = f64::from(self.lanes.n());
        let verified = f64::from(self.tokens_per_sequence()) / lanes;
        let found = prices(sizes, f64::from(decoding), f64::from(self.lanes.ranks));
        let of_replica = |[prompt, decoded]: [f64; 2]| Prices {
            prompt: prompt / lanes + drafts[0],
            decoded: decoded * verified + drafts[1],
            key,
        };
        found.into_iter().map(of_replica).collect()
    }

    /// Tokens of the largest batch that the table has.
    pub fn largest_batch(&self) -> f64 {
        hw::real(self.tokens.len() as u64 - 1)
    }

    /// Ticks of batches of every size up to so many tokens.
    fn sizes(&self, most: u32) -> Vec<Size> {
        let both = self.tokens.iter().zip(self.lone()).enumerate().skip(1).take(most as usize);
        let size = |(size, (even, lone)): (usize, (&Tick, &Tick))| Size {
            tokens: hw::real(size as u64),
            even: even.as_f64(),
            lone: lone.as_f64(),
        };
        both.map(size).collect()
    }
}

/// Ticks of batches of a size.
pub(super) struct Size {
    pub(super) tokens: f64,
    /// As many in every rank of attention.
    pub(super) even: f64,
    /// No others.
    pub(super) lone: f64,
}

impl Size {
    /// The same where so many ticks are charged elsewhere.
    fn without(&self, ticks: f64) -> Self {
        Self { tokens: self.tokens, even: self.even - ticks, lone: self.lone - ticks }
    }

    /// The largest price of a decoded token beside so many tokens of prompts at this price, with at most so many decoded ones in a lane.
    fn decoded(&self, prompt: f64, most: f64, ranks: f64) -> f64 {
        let n = self.tokens.min(most);
        let rest = self.tokens - n;
        let beside_lone = (self.even * n + self.lone * rest) / self.tokens - prompt * rest / ranks;
        (self.even - prompt * rest).min(beside_lone) / n
    }
}

/// Prices of a token of a prompt and of one that is decoded, in batches of these sizes with at most so many decoded ones in each of so many ranks.
pub(super) fn prices(sizes: &[Size], most: f64, ranks: f64) -> Vec<[f64; 2]> {
    let token = least_of(sizes.iter().map(|size| size.lone / size.tokens));
    let in_batch = least_of(sizes.iter().map(|size| size.even / size.tokens)).min(token * ranks);
    let pair = |index: u32| {
        let prompt = in_batch * f64::from(index) / f64::from(PAIRS);
        [prompt, least_of(sizes.iter().map(|size| size.decoded(prompt, most, ranks))).max(prompt)]
    };
    (0..=PAIRS).map(pair).collect()
}

pub(super) fn least_of(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use hw::Seconds;
    use proptest::prelude::*;

    use super::super::lanes::Lanes;
    use super::super::{Chunk, StepLoad};
    use super::*;

    fn table() -> StepTable {
        StepTable::linear(Seconds::new(4e-3), Seconds::new(1e-5), Seconds::new(1e-8))
    }

    #[test]
    fn prices_of_a_linear_table_are_its_own() {
        // 4 ms and 10 us a token: with 8 sequences and 1,000 tokens a decoded token costs at least (4 ms + 80 us) / 8 in batches of its own,
        // and the best token of a full batch 4 ms / 1,000 + 10 us.
        let found = table().least(8, 1000).expect("plain");
        let ms = |ticks: f64| ticks * hw::Tick::SECONDS * 1e3;
        assert!((ms(found.prices[0].decoded) - 4.08 / 8.0).abs() < 1e-6 && found.prices[0].prompt == 0.0);
        let full = found.prices[PAIRS as usize];
        assert!((ms(full.prompt) - 0.014).abs() < 1e-6 && (ms(full.decoded) - 0.014).abs() < 1e-6, "{full:?}");
        assert!((ms(full.key) - 1e-5).abs() < 1e-6 && (ms(found.passage) - 4.01).abs() < 1e-5);
    }

    /// Eight ranks; a batch takes so many tenths of its time where it is alone.
    fn of_ranks(tenths: u64) -> StepTable {
        let mut table = table();
        table.lanes = Lanes { stages: 1, ranks: 8 };
        table.alone = table.tokens.iter().map(|ticks| *ticks * tenths / 10).collect();
        table
    }

    proptest! {
        #[test]
        fn no_round_of_ranks_is_cheaper_than_its_tokens(
            n_decode in 0_u32..65, tenths in 2_u64..11, new in prop::collection::vec(1_u32..900, 0..12),
        ) {
            prop_assume!(n_decode > 0 || !new.is_empty());
            let table = of_ranks(tenths);
            let found = table.least(64, 1 << 16).expect("plain");
            let (n_chunk_tokens, n_chunks) = (new.iter().sum(), u32::try_from(new.len()).expect("few"));
            let load = StepLoad { n_decode, n_chunk_tokens, n_chunks, n_sampled: n_decode + n_chunks, ..StepLoad::default() };
            let ticks = table.step(&load, new.iter().map(|&new| Chunk { past: 0, new })).as_f64();
            for Prices { prompt, decoded, .. } in &found.prices {
                let least = prompt * f64::from(n_chunk_tokens) + decoded * f64::from(n_decode);
                prop_assert!(least <= ticks + 4.0, "{least} above {ticks}");
            }
            prop_assert!(found.passage <= ticks + 4.0);
            if let [alone] = new[..] {
                prop_assert!(found.token * f64::from(alone) <= ticks + 4.0);
                prop_assert!(table.least_tokens(alone).as_f64() <= ticks + 4.0);
            }
        }

        #[test]
        fn no_batch_that_memory_holds_is_cheaper_than_its_tokens_and_keys(
            decode in 0_u32..9, chunk in 0_u32..900, context in 0_u64..=20_000, keys_max in 20_000_u32..100_000,
        ) {
            prop_assume!(decode + chunk > 0);
            let table = table();
            let context = if decode > 0 { context } else { 0 };
            let load = StepLoad {
                n_decode: decode.min(8), context, n_chunk_tokens: chunk, n_chunks: u32::from(chunk > 0), n_sampled: decode,
                ..StepLoad::default()
            };
            let chunks = (chunk > 0).then_some(Chunk { past: 0, new: chunk });
            let ticks = table.step(&load, chunks.into_iter()).as_f64();
            for Prices { prompt, decoded, key } in table.least_held(8, 1000, f64::from(keys_max)).expect("plain") {
                let least = prompt * f64::from(chunk) + decoded * f64::from(load.n_decode) + key * hw::real(context);
                prop_assert!(least <= ticks + 4.0, "{least} above {ticks}");
            }
        }

        #[test]
        fn no_batch_is_cheaper_than_its_tokens(decode in 0_u32..9, chunk in 0_u32..900, context in 0_u64..100_000) {
            prop_assume!(decode + chunk > 0);
            let table = table();
            let found = table.least(8, 1000).expect("plain");
            let context = if decode > 0 { context } else { 0 };
            let n_chunks = u32::from(chunk > 0);
            let load = StepLoad { n_decode: decode.min(8), context, n_chunk_tokens: chunk, n_chunks, n_sampled: decode, ..StepLoad::default() };
            let chunks = (chunk > 0).then_some(Chunk { past: 0, new: chunk });
            let ticks = table.step(&load, chunks.into_iter()).as_f64();
            for Prices { prompt, decoded, key } in &found.prices {
                let least = prompt * f64::from(chunk) + decoded * f64::from(load.n_decode) + key * hw::real(context);
                // Whole ticks on the one side.
                prop_assert!(least <= ticks + 4.0, "{least} above {ticks}");
            }
        }
    }
}
