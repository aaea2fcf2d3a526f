//! Users of `[trace]` who wait for their answers: `think_s`, `ramp_s` and `[trace.sessions]`.

use hw::Seconds;
use serve::fleet::held::Users;
use serve::request::Requests;
use serve::sessions::{self, Sessions};

use input::reader::{Section, small};

/// Longest pause and ramp, seconds.
const PAUSE_S_MAX: f64 = 86_400.0;

/// What the section says of its users.
pub struct AskedUsers {
    /// Who sends; `None` where nobody waits.
    pub users: Option<Users>,
    /// How requests become sessions.
    pub sessions: Option<Sessions>,
    think: Seconds,
}

/// Reads the keys; `held` is the number of users where it is held.
pub fn read(section: &mut Section<'_>, held: Option<u64>, block_tokens: u32) -> AskedUsers {
    let sessions = section.table("sessions").map(|table| sessions_of(table, block_tokens));
    if held.is_none() {
        section.idle(&["ramp_s"], "users whose number is held: `arrivals = \"held\"` with `concurrency`");
    }
    if held.is_none() && sessions.is_none() {
        section.idle(&["think_s"], "users who wait for answers: `arrivals = \"held\"`, or `[trace.sessions]`");
    }
    let think = Seconds::new(section.number("think_s", 0.0, 0.0..=PAUSE_S_MAX));
    let ramp = Seconds::new(section.number("ramp_s", 0.0, 0.0..=PAUSE_S_MAX));
    let users = match held {
        Some(n) => Some(Users::Held { n: small(n), ramp }),
        None => sessions.map(|_| Users::OfSessions),
    };
    AskedUsers { users, sessions, think }
}

/// `[trace.sessions]`.
fn sessions_of(mut section: Section<'_>, block_tokens: u32) -> Sessions {
    let turns = section.needed("turns", 1.0..=10_000.0, "the mean number of turns of a session, for example 5");
    let system = section.small("system_tokens", Some(0), 0..=1_000_000);
    let context_max = section.small("max_context", Some(131_072), 2..=100_000_000);
    section.finish();
    Sessions { turns, system, context_max, block_tokens }
}

impl AskedUsers {
    /// Whether a number of requests in flight is all that is said.
    pub fn held(&self) -> Option<u64> {
        match self.users {
            Some(Users::Held { n, ramp }) if self.sessions.is_none() && [ramp, self.think] == [Seconds::ZERO; 2] => {
                Some(n.into())
            }
            _ => None,
        }
    }

    /// The requests with the pauses before them.
    pub fn pause(&self, mut requests: Requests, seed: u64) -> Requests {
        if self.users.is_some() && self.think > Seconds::ZERO {
            sessions::lay_pauses(&mut requests, self.think, seed);
        }
        requests
    }
}
