//! Sessions: requests of one user that follow each other, each with everything before it in its prompt.
//!
//! A turn's prompt is the system prompt, every earlier prompt and output of the session, and new tokens. An output is what the client reads of it,
//! where clients have enough before the end. The next turn is sent a pause after
//! the last token of the one before: the user reads and writes, or a tool runs. So the moments of turns are an outcome (`fleet/held.rs`), and
//! a prefix cache finds what a session said before. All sessions share the system prompt. Units: tokens, seconds.

use engine::random;
use hw::{Seconds, Span, Time};

use crate::arrivals;
use crate::request::{Placed, Request, Requests, TOKENS_MAX};

/// Fewest tokens that one prefix identity stands for; an engine with smaller blocks shares several at once.
const PREFIX_TOKENS_MIN: u32 = 16;

/// Tokens that one prefix identity of a session stands for, where the engine's blocks have so many.
pub(crate) const fn prefix_tokens(block_tokens: u32) -> u32 {
    let block_tokens = if block_tokens == 0 { 1 } else { block_tokens };
    PREFIX_TOKENS_MIN.next_multiple_of(block_tokens)
}

/// How requests become sessions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sessions {
    /// Mean number of turns of a session; at least one. A session of one more turn is always as likely (geometric).
    pub turns: f64,
    /// Tokens of the system prompt, before the first turn.
    pub system: u32,
    /// A session ends before a prompt and its output would be longer.
    pub context_max: u32,
    /// Tokens of the engine's blocks, which are shared whole.
    pub block_tokens: u32,
}

/// Tools that an agent calls between two turns of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tools {
    /// Share of the answers with a further turn that a tool follows.
    pub share: f64,
    /// Mean time of a tool.
    pub mean: Seconds,
    /// Coefficient of variation of that time, a Gamma draw; 0 is always the mean.
    pub cv: f64,
}

/// Mean pause of a user between an answer and the next request; every pause is an exponential draw.
pub fn lay_pauses(requests: &mut Requests, mean: Seconds, seed: u64) {
    let mut draws = random::stream(seed, "pauses of users");
    let pause = |_: &Request| Span::from_seconds(Seconds::new(mean.get() * draws.exponential()));
    requests.pauses = requests.list.iter().map(pause).collect();
}

impl Tools {
    /// Lets tools run in the place of pauses of users: before further turns of sessions, by their share.
    pub fn lay(&self, requests: &mut Requests, seed: u64) {
        let mut draws = random::stream(seed, "tools of agents");
        requests.pauses.resize(requests.len(), Span::ZERO);
        requests.after_tool = vec![false; requests.len()];
        for at in 0..requests.len() {
            if requests.is_turn(at) && draws.unit() < self.share {
                requests.after_tool[at] = true;
                let time = if self.cv > 0.0 {
                    arrivals::gamma_of(&mut draws, self.mean.get(), self.cv)
                } else {
                    self.mean.get()
                };
                requests.pauses[at] = Span::from_seconds(Seconds::new(time));
            }
        }
    }
}

/// First requests of sessions, which arrive by themselves.
pub fn begins(turns: &Requests) -> Requests {
    let is_first = |at: &usize| !turns.is_turn(*at);
    Requests { list: (0..turns.len()).filter(is_first).map(|at| turns.list[at]).collect(), ..Requests::default() }
}

/// Every turn counts from the arrival of its session.
///
/// # Panics
/// When a session has no beginning.
pub fn arrive(mut turns: Requests, begins: &Requests) -> Requests {
    let mut next = begins.list.iter();
    let mut arrival = Time::ZERO;
    for at in 0..turns.len() {
        if !turns.is_turn(at) {
            arrival = next.next().expect("every session begins").arrival;
        }
        turns.list[at].arrival = arrival;
    }
    turns
}

impl Sessions {
    /// Requests in their order as turns of sessions: what a request's prompt was is new in its turn.
    ///
    /// # Panics
    /// When requests share prefixes already.
    pub fn lay(&self, turns: &Requests, seed: u64) -> Requests {
        assert!(turns.prefix_ids.is_empty(), "what requests share is known already");
        let mut draws = random::stream(seed, "turns of sessions");
        let prefix_tokens = prefix_tokens(self.block_tokens);
        let n_prefix_ids = self.system / prefix_tokens;
        let mut laid = Requests { prefix_tokens, n_prefix_ids, asked: turns.asked.clone(), ..Requests::default() };
        let mut session = Session::new(self.system, prefix_tokens);
        for (at, turn) in turns.list.iter().enumerate() {
            let is_over = session.n_turns > 0 && draws.unit() * self.turns < 1.0;
            let whole = Request { output: turns.asked_of(at), ..*turn };
            if is_over || session.tokens_with(&whole) > u64::from(self.context_max) {
                session = Session::new(self.system, prefix_tokens);
            }
            laid.follows.push(session.n_turns > 0);
            session.say(turn, turns.images_of(turn), &mut laid);
        }
        laid
    }
}

/// A session under way.
pub(crate) struct Session {
    n_turns: u32,
    /// Tokens so far, outputs included.
    tokens: u64,
    /// Identities of its full blocks so far.
    ids: Vec<u32>,
    /// Images of its prompts so far.
    images: Vec<Placed>,
}

impl Session {
    /// Nothing was said yet behind the system prompt.
    pub(crate) fn new(system: u32, prefix_tokens: u32) -> Self {
        Self { n_turns: 0, tokens: system.into(), ids: (0..system / prefix_tokens).collect(), images: Vec::new() }
    }

    /// Tokens behind the answer to a turn.
    fn tokens_with(&self, turn: &Request) -> u64 {
        self.tokens + u64::from(turn.prompt) + u64::from(turn.output)
    }

    /// Adds the next turn with its own images.
    pub(crate) fn say(&mut self, turn: &Request, images: &[Placed], laid: &mut Requests) {
        let before = u32::try_from(self.tokens).unwrap_or(TOKENS_MAX);
        self.images.extend(images.iter().map(|placed| Placed { at: before.saturating_add(placed.at), ..*placed }));
        let prompt = (self.tokens + u64::from(turn.prompt)).min(TOKENS_MAX.into());
        self.tokens = self.tokens_with(turn);
        self.n_turns += 1;
        while (self.ids.len() as u64 + 1) * u64::from(laid.prefix_tokens) <= self.tokens {
            self.ids.push(laid.n_prefix_ids);
            laid.n_prefix_ids += 1;
        }
        let small = |n: usize| u32::try_from(n).expect("fewer than 2^32 identities");
        laid.list.push(Request {
            prompt: u32::try_from(prompt).expect("at most the most tokens"),
            prefix_first: small(laid.prefix_ids.len()),
            prefix_count: small(self.ids.len()),
            image_first: small(laid.images.len()),
            image_count: small(self.images.len()),
            ..*turn
        });
        laid.images.extend(&self.images);
        laid.prefix_ids.extend(&self.ids);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First request of every session.
    fn begins(all: &Requests) -> Vec<usize> {
        (0..all.len()).filter(|&at| !all.is_turn(at)).collect()
    }

    fn laid(turns: f64, system: u32, context_max: u32) -> Requests {
        let turn = Request::new(Time::ZERO, 100, 30);
        Sessions { turns, system, context_max, block_tokens: 16 }.lay(&Requests::of(vec![turn; 1000]), 7)
    }

    #[test]
    fn a_turn_has_everything_before_it_in_its_prompt() {
        let all = laid(1e9, 50, 1_000_000);
        assert_eq!(begins(&all), [0], "a session that never ends");
        let prompts: Vec<u32> = all.list[..3].iter().map(|request| request.prompt).collect();
        assert_eq!(prompts, [50 + 100, 50 + 130 + 100, 50 + 260 + 100]);
        // 50 tokens are three full blocks of 16. Behind the first answer there are 180 tokens: eleven.
        let ids = |at: usize| all.prefix(&all.list[at]);
        assert_eq!((ids(0).len(), &ids(0)[..3]), (11, &[0, 1, 2][..]));
        assert!(ids(1).starts_with(ids(0)) && ids(2).starts_with(ids(1)), "what was said is shared");
        assert_eq!(ids(1).len(), (50 + 260) / 16);
    }

    /// Clients ask for 30 tokens and read 17: the next prompt has these. A session ends where what is asked for would not fit.
    #[test]
    fn a_turn_has_what_the_client_read_of_an_answer() {
        let turns = Requests { asked: vec![30; 3], ..Requests::of(vec![Request::new(Time::ZERO, 100, 17); 3]) };
        let prompts = |context_max: u32| {
            let all = Sessions { turns: 1e9, system: 0, context_max, block_tokens: 16 }.lay(&turns, 7);
            assert_eq!(all.asked, turns.asked);
            all.list.iter().map(|request| request.prompt).collect::<Vec<u32>>()
        };
        assert_eq!(prompts(1_000_000), [100, 217, 334]);
        assert_eq!((prompts(247), prompts(246)), (vec![100, 217, 100], vec![100, 100, 100]));
    }

    #[test]
    fn sessions_share_the_system_prompt_and_nothing_else() {
        let all = laid(4.0, 64, 1_000_000);
        let begins = begins(&all);
        let n = begins.len();
        assert!((230..270).contains(&n), "a thousand turns are about 250 sessions of four: {n}");
        let of = |session: usize| all.prefix(&all.list[begins[session]]);
        let shared = of(0).iter().filter(|id| of(1).contains(id)).count();
        assert_eq!(shared, 4);
    }

    /// Means and deviations over 20,000 turns: 0.6 of them behind a tool of 4 s, and nobody else's pause is touched.
    #[test]
    fn tools_run_in_the_place_of_their_share_of_pauses() {
        let turn = Request::new(Time::ZERO, 10, 3);
        let plain = Sessions { turns: 1e9, system: 0, context_max: 1_000_000_000, block_tokens: 16 };
        let mut requests = plain.lay(&Requests::of(vec![turn; 2_000]), 7);
        lay_pauses(&mut requests, Seconds::new(9.0), 7);
        let users = requests.pauses.clone();
        for cv in [0.0, 1.0, 2.0] {
            requests.pauses.clone_from(&users);
            Tools { share: 0.6, mean: Seconds::new(4.0), cv }.lay(&mut requests, 7);
            assert!(!requests.is_after_tool(0), "nothing lies before the first turn");
            let of = |at: usize| requests.pause(at).to_seconds().get();
            let tools: Vec<f64> = (0..requests.len()).filter(|at| requests.is_after_tool(*at)).map(of).collect();
            let n = hw::real(tools.len() as u64);
            assert!((n / 2_000.0 - 0.6).abs() < 0.03, "{n} tools");
            let mean = tools.iter().sum::<f64>() / n;
            let variance = tools.iter().map(|time| (time - mean) * (time - mean)).sum::<f64>() / n;
            assert!((mean / 4.0 - 1.0).abs() < 0.1 + 0.05 * cv, "cv {cv}: {mean} s");
            assert!((libm::sqrt(variance) / mean - cv).abs() < 0.15 * cv.max(1e-9), "cv {cv}: {variance}");
            let kept = |at: &usize| requests.is_after_tool(*at) || requests.pauses[*at] == users[*at];
            assert!((0..requests.len()).all(|at| kept(&at)));
        }
    }

    #[test]
    fn a_session_ends_before_its_context_is_full() {
        let all = laid(1e9, 0, 400);
        // Three turns of 130 tokens fit 400.
        assert_eq!(&begins(&all)[..3], [0, 3, 6]);
        assert!(all.list.iter().all(|request| request.prompt + request.output <= 400));
    }
}
