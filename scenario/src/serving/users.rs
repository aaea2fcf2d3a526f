//! Users of `[trace]` who wait for their answers: `think_s`, `ramp_s` and `[trace.sessions]`.

use hw::Seconds;
use serve::fleet::held::Users;
use serve::request::Requests;
use serve::sessions::{self, Sessions, Tools};

use super::{Serving, ServingChoice};
use input::diagnostic::{Code, Finding};
use input::reader::{Place, Section, small};

/// Longest pause and ramp, seconds.
const PAUSE_S_MAX: f64 = 86_400.0;

/// What the section says of its users.
pub struct AskedUsers {
    /// Who sends; `None` where nobody waits.
    pub users: Option<Users>,
    /// How requests become sessions.
    pub sessions: Option<Sessions>,
    think: Seconds,
    /// Tools of agents, and where they stand.
    tools: Option<(Tools, Place)>,
    /// Whether pauses are recorded.
    is_recorded: bool,
}

/// Reads the keys; `held` is the number of users where it is held. `is_recorded`: a trace has sessions with the pauses between their turns.
pub fn read(section: &mut Section<'_>, held: Option<u64>, block_tokens: u32, is_recorded: bool) -> AskedUsers {
    let (sessions, tools) = section.table("sessions").map(|table| sessions_of(table, block_tokens)).unzip();
    let has_turns = sessions.is_some() || is_recorded;
    if held.is_none() {
        let needs = "users whose number is held: `arrivals = \"held\"` with `concurrency`";
        section.idle(&["ramp_s", "warm_up_requests"], needs);
    } else if has_turns {
        section.idle(
            &["warm_up_requests"],
            "requests without turns; `slo.warm_up_s` leaves out the beginning of sessions",
        );
    }
    if is_recorded {
        section.idle(&["think_s"], "a trace without `session_id`: pauses are as recorded");
    } else if held.is_none() && sessions.is_none() {
        section.idle(&["think_s"], "users who wait for answers: `arrivals = \"held\"`, or `[trace.sessions]`");
    }
    let think = Seconds::new(section.number("think_s", 0.0, 0.0..=PAUSE_S_MAX));
    let ramp = Seconds::new(section.number("ramp_s", 0.0, 0.0..=PAUSE_S_MAX));
    let warm_up = section.small("warm_up_requests", Some(0), 0..=1_000_000);
    let users = match held {
        Some(n) => Some(Users::Held { n: small(n), ramp, warm_up: if has_turns { 0 } else { warm_up } }),
        None => (sessions.is_some() || is_recorded).then_some(Users::OfSessions),
    };
    AskedUsers { users, sessions, think, tools: tools.flatten(), is_recorded }
}

/// `[trace.sessions]`.
fn sessions_of(mut section: Section<'_>, block_tokens: u32) -> (Sessions, Option<(Tools, Place)>) {
    let turns = section.needed("turns", 1.0..=10_000.0, "the mean number of turns of a session, for example 5");
    let system = section.small("system_tokens", Some(0), 0..=1_000_000);
    let context_max = section.small("max_context", Some(131_072), 2..=100_000_000);
    let at = section.place("tools").flatten();
    let tools = section.table("tools").and_then(tools_of).map(|tools| (tools, at));
    section.finish();
    (Sessions { turns, system, context_max, block_tokens }, tools)
}

/// `tools = { share = 0.7, mean_s = 4.0, cv = 1.0 }`; none of share 0.
fn tools_of(mut section: Section<'_>) -> Option<Tools> {
    let share = section.needed("share", 0.0..=1.0, "share of the turns that a tool follows, for example 0.7");
    if share == 0.0 {
        section.idle(&["mean_s", "cv"], "some `share`");
    }
    let mean_s = section.number("mean_s", 0.0, 0.0..=PAUSE_S_MAX);
    if share > 0.0 {
        section.missing("mean_s", "mean time of a tool, for example 4");
    }
    let cv = section.number("cv", 1.0, 0.0..=100.0);
    section.finish();
    (share > 0.0).then(|| Tools { share, mean: Seconds::new(mean_s), cv })
}

impl AskedUsers {
    /// Whether a number of requests in flight is all that is said.
    pub fn held(&self) -> Option<u64> {
        match self.users {
            Some(Users::Held { n, ramp, warm_up: 0 })
                if self.sessions.is_none() && [ramp, self.think] == [Seconds::ZERO; 2] =>
            {
                Some(n.into())
            }
            _ => None,
        }
    }

    /// Refuses a warm-up behind which no request is left that counts.
    pub fn check_warm_up(&self, section: &mut Section<'_>, requests: &Requests) {
        let Some(Users::Held { warm_up, .. }) = self.users else { return };
        if warm_up > 0 && warm_up as usize >= requests.len() {
            let what =
                format!("`trace.warm_up_requests` = {warm_up} leaves none of {} requests to count", requests.len());
            let at = section.place("warm_up_requests").flatten();
            section.refuse(
                Code::OutOfRange,
                at,
                &what,
                "`requests` counts those of the warm-up too: more of them, or a shorter warm-up",
            );
        }
    }

    /// The requests with the pauses before them; those of a trace stay as they are.
    pub fn pause(&self, section: &mut Section<'_>, mut requests: Requests, seed: u64) -> Requests {
        if self.users.is_some() && self.think > Seconds::ZERO && !self.is_recorded {
            sessions::lay_pauses(&mut requests, self.think, seed);
        }
        if let Some((tools, at)) = &self.tools {
            tools.lay(&mut requests, seed);
            if !requests.after_tool.contains(&true) {
                let what = "`trace.sessions.tools` changes nothing: no tool runs";
                let help = "a tool runs between two turns of a session: it needs more `turns`, `requests` or `share`";
                section.find(Finding::warning(Code::NoEffect, at.clone(), what).help(help));
            }
        }
        requests
    }
}

impl Serving {
    /// Users of a choice's streams; `None` where requests arrive by themselves. Beside sessions that arrive at a rate, a request of another stream is a
    /// session of one turn. A number of users who are held is alone, or was refused. It is the choice's own where that has one.
    pub fn users_of(&self, choice: &ServingChoice) -> Option<Users> {
        let users = self.streams.iter().filter(|stream| choice.takes(stream)).find_map(|stream| stream.users)?;
        Some(choice.concurrency.map_or(users, |n| users.of_so_many(n.get())))
    }

    /// From when on requests count: behind the time that is left out, and behind the warm-up of users.
    pub fn counted_from(&self, choice: &ServingChoice, requests: &Requests) -> Seconds {
        let begun = self.users_of(choice).map_or(Seconds::ZERO, |users| users.begun(requests));
        Seconds::new(self.warm_up.get().max(begun.get()))
    }

    /// The same before anything is served; `None` where some requests do not count and users send theirs when others have ended.
    pub fn known_from(&self, choice: &ServingChoice) -> Option<Seconds> {
        match self.users_of(choice) {
            Some(users) if self.warm_up > Seconds::ZERO || users.warm_up() > 0 => None,
            _ => Some(self.warm_up),
        }
    }
}
