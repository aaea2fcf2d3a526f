//! A dataset of prompts that a client goes through again and again, as benchmark clients do with the ones that they have made up.
//!
//! Every pass has each prompt once, in an order of its own, as AIPerf goes through them (`ShuffleSampler`, ai-dynamo/aiperf pull request 395). What comes again may
//! be cached. Units: tokens.

use engine::random;

use crate::request::Requests;

/// Different prompts, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// How many.
    pub prompts: u32,
}

impl Dataset {
    /// Gives the prompts to requests that share nothing. The prompts are as long as those of the first requests. Whole blocks of so many tokens are
    /// shared, but for the last token, which is computed every time.
    ///
    /// # Panics
    /// When blocks have no tokens, or there are 2^32 of them.
    pub fn lay(self, requests: &mut Requests, block_tokens: u32, seed: u64) {
        let n = requests.len().min(self.prompts.max(1) as usize);
        let tokens: Vec<u32> = requests.list[..n].iter().map(|request| request.prompt).collect();
        let blocks = tokens.iter().map(|tokens| tokens.saturating_sub(1) / block_tokens);
        let mut ends: Vec<u32> = Vec::with_capacity(n);
        for blocks in blocks {
            ends.push(ends.last().unwrap_or(&0) + blocks);
        }
        (requests.prefix_tokens, requests.n_prefix_ids) = (block_tokens, ends.last().copied().unwrap_or(0));
        requests.prefix_ids.clear();
        let mut stream = random::stream(seed, "passes through a dataset");
        let mut pass: Vec<usize> = Vec::new();
        for request in &mut requests.list {
            if pass.is_empty() {
                pass.extend(0..n);
                stream.shuffle(&mut pass);
            }
            let prompt = pass.pop().expect("a pass has every prompt");
            request.prompt = tokens[prompt];
            request.prefix_first = u32::try_from(requests.prefix_ids.len()).expect("fewer than 2^32 blocks");
            request.prefix_count = request.prompt.saturating_sub(1) / block_tokens;
            requests.prefix_ids.extend(ends[prompt] - request.prefix_count..ends[prompt]);
        }
    }
}

#[cfg(test)]
mod tests {
    use hw::Time;

    use super::*;
    use crate::request::Request;

    #[test]
    fn every_pass_has_each_prompt_once_and_prompts_share_no_block() {
        let list = (0..10_u32).map(|n| Request::new(Time::ZERO, 33 + n, 5)).collect();
        let mut requests = Requests::of(list);
        Dataset { prompts: 4 }.lay(&mut requests, 16, 7);
        let (mut lengths, first): (Vec<u32>, Vec<u32>) = {
            let tokens = |of: &[Request]| of.iter().map(|request| request.prompt).collect();
            (tokens(&requests.list[..4]), tokens(&requests.list[4..8]))
        };
        assert_ne!(lengths, first, "24 orders, and this seed draws two different ones");
        lengths.sort_unstable();
        assert_eq!(lengths, [33, 34, 35, 36]);
        // 33 tokens are two whole blocks and the token that is always computed.
        assert!(requests.list.iter().all(|request| request.prefix_count == 2));
        for one in &requests.list {
            for other in &requests.list {
                let is_same = one.prompt == other.prompt;
                assert_eq!(requests.prefix(one) == requests.prefix(other), is_same);
                assert_eq!(requests.prefix(one).iter().any(|id| requests.prefix(other).contains(id)), is_same);
            }
        }
        assert!(requests.prefix_ids.iter().all(|id| *id < requests.n_prefix_ids));
    }

    #[test]
    fn a_dataset_with_a_prompt_for_every_request_shares_nothing() {
        let mut requests = Requests::of(vec![Request::new(Time::ZERO, 64, 5); 6]);
        Dataset { prompts: 100 }.lay(&mut requests, 16, 0);
        // Of 64 tokens 63 may be cached: three whole blocks.
        assert!(requests.list.iter().all(|request| request.prefix_count == 3));
        let mut ids = requests.prefix_ids.clone();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 18);
    }
}
