//! Beginnings that prompts share, as system prompts do: each request draws one, and has it where its prompt is longer.
//!
//! Units: tokens. A beginning is one prefix identity, so it is kept or computed as a whole.

use engine::random;

use crate::request::Requests;

/// How many beginnings there are, and how long each is; none where either is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beginnings {
    /// Beginnings.
    pub n: u32,
    /// Tokens of each.
    pub tokens: u32,
}

impl Beginnings {
    /// Gives every request that shares nothing yet one of them.
    pub fn lay(self, requests: &mut Requests, seed: u64) {
        if self.n == 0 || self.tokens == 0 {
            return;
        }
        let mut stream = random::stream(seed, "beginnings");
        (requests.n_prefix_ids, requests.prefix_tokens) = (self.n, self.tokens);
        requests.prefix_ids.clear();
        for request in &mut requests.list {
            let drawn = u32::try_from(stream.below(u64::from(self.n))).expect("below a u32");
            request.prefix_first = u32::try_from(requests.prefix_ids.len()).expect("fewer than 2^32 requests");
            request.prefix_count = u32::from(request.prompt > self.tokens);
            if request.prefix_count > 0 {
                requests.prefix_ids.push(drawn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hw::Time;

    use super::*;
    use crate::request::Request;

    #[test]
    fn prompts_that_are_longer_share_a_beginning_in_equal_parts() {
        let long = |n: u32| Request::new(Time::from_ns(n.into()), 600, 5);
        let mut list: Vec<Request> = (0..4000).map(long).collect();
        list.push(Request::new(Time::from_ns(9000), 512, 5));
        let mut requests = Requests::of(list);
        Beginnings { n: 4, tokens: 512 }.lay(&mut requests, 1);
        let count = |id: u32| requests.list[..4000].iter().filter(|r| requests.prefix(r) == [id]).count();
        // 1,000 each on average, with a deviation of sqrt(4,000 · 1/4 · 3/4) = 27.
        assert!((0..4).all(|id| count(id).abs_diff(1000) < 110), "{:?}", [0, 1, 2, 3].map(count));
        assert_eq!((0..4).map(count).sum::<usize>(), 4000);
        assert!(requests.prefix(&requests.list[4000]).is_empty(), "at least one token is computed");
    }
}
