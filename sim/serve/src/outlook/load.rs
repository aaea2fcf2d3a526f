//! What arrives, summed up: for replicas that do all with a request, or the part of it that their role has.

use hw::Time;

use super::Decoding;
use crate::replica::Role;
use crate::request::{Request, Requests};

/// What arrives, summed up.
#[derive(Clone, Debug)]
pub struct Load<'r> {
    pub(super) requests: &'r Requests,
    counted: Counted,
    /// Tokens of every prompt that are computed whatever is kept, in the order of the requests.
    pub(super) computed: Vec<u32>,
    /// The same in increasing order.
    pub(super) prompts: Vec<u32>,
    /// Tokens of whole sequences, in decreasing order.
    pub(super) sequences: Vec<u32>,
    pub(super) prompt_tokens: f64,
    pub(super) output_tokens: f64,
    pub(super) first_s: f64,
    pub(super) last_s: f64,
}

/// What is counted of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// What replicas do with them.
    pub role: Role,
    /// Whether engines keep prefixes that requests share: nothing of these is computed then.
    pub keeps_prefixes: bool,
    /// Whether they are sent when others have ended, so that nobody knows when.
    pub is_held: bool,
}

impl<'r> Load<'r> {
    /// Sums of requests; `None` where there are none, where clients leave, and where a turn waits for the one before it.
    pub fn of(requests: &'r Requests, counted: Counted) -> Option<Self> {
        let (first, last) = (requests.list.first()?, requests.list.last()?);
        if !requests.is_patient() || !requests.follows.is_empty() {
            return None;
        }
        let sent_s = |request: &Request| {
            if counted.is_held { 0.0 } else { (request.arrival - Time::ZERO).to_seconds().get() }
        };
        let computed = match (counted.role, counted.keeps_prefixes) {
            (Role::Decode | Role::Outputs, _) => vec![0; requests.len()],
            (Role::Both | Role::Prefill, true) => computed(requests),
            (Role::Both | Role::Prefill, false) => prompts(requests),
        };
        let mut load = Self {
            requests,
            counted,
            prompts: computed.clone(),
            prompt_tokens: computed.iter().map(|tokens| f64::from(*tokens)).sum(),
            computed,
            sequences: sequences(requests),
            output_tokens: requests.list.iter().map(|request| f64::from(request.output)).sum(),
            first_s: sent_s(first),
            last_s: sent_s(last),
        };
        load.prompts.sort_unstable();
        Some(load)
    }

    /// Requests.
    pub(super) fn n(&self) -> f64 {
        hw::real(self.requests.len() as u64)
    }

    /// Whether first tokens are computed here: with the prompt, or from the last token of a prompt that was computed elsewhere.
    pub(super) fn gives_first(&self) -> bool {
        self.counted.role != Role::Decode
    }

    /// First tokens of a request that are computed here.
    pub(super) fn firsts(&self) -> f64 {
        f64::from(u8::from(self.gives_first()))
    }

    /// Whether further tokens are computed here.
    pub(super) fn decodes(&self) -> bool {
        self.counted.role != Role::Prefill
    }

    /// Whether nobody knows when requests come.
    pub(super) const fn is_held(&self) -> bool {
        self.counted.is_held
    }

    /// Requests with the tokens of their prompts that are computed, and how each decodes on a replica.
    pub(super) fn each<'a>(
        &'a self,
        decoding: &'a [Decoding],
    ) -> impl Iterator<Item = (&'a Request, u32, &'a Decoding)> {
        let tokens = self.requests.list.iter().zip(&self.computed);
        tokens.zip(decoding).map(|((request, computed), decoding)| (request, *computed, decoding))
    }
}

/// Tokens of all prompts.
fn prompts(requests: &Requests) -> Vec<u32> {
    requests.list.iter().map(|request| request.prompt).collect()
}

/// Tokens of all prompts behind the prefixes that other requests have too. At least one is computed, for its logits.
pub(super) fn computed(requests: &Requests) -> Vec<u32> {
    let mut n_with = vec![0_u32; requests.n_prefix_ids as usize];
    for id in requests.list.iter().flat_map(|request| requests.prefix(request)) {
        n_with[*id as usize] += 1;
    }
    let of = |request: &Request| {
        let usable = (request.prompt - 1).checked_div(requests.prefix_tokens).unwrap_or(0);
        let ids = requests.prefix(request).iter().take(usable as usize);
        let shared = ids.take_while(|id| n_with[**id as usize] > 1).count();
        request.prompt - u32::try_from(shared).expect("fewer than 2^32 prefixes") * requests.prefix_tokens
    };
    requests.list.iter().map(of).collect()
}

/// Tokens of whole sequences, in decreasing order.
pub(super) fn sequences(requests: &Requests) -> Vec<u32> {
    let mut all: Vec<u32> = requests.list.iter().map(|request| request.prompt + request.output).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}
