//! How long a request is on the way from its client to an engine's queue: what is written, what a calibrated profile says, what is known of a named engine.

use hw::Seconds;
use serve::api_server::ApiServer;
use serve::engine_constants::EngineConstants;
use serve::fleet::start::Start;
use serve::replica::Role;

use super::{Serving, ServingChoice};
use input::reader::Section;

/// What `[engine]` says of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StartSection {
    /// Mean time to the queue of an engine without the tokenizer; that of the named engine where nobody wrote it.
    pub mean: Seconds,
    /// Whether somebody did.
    pub is_written: bool,
    /// Time of the tokenizer for each token of a prompt.
    pub tokenize: Seconds,
    /// Whether there are clients: a trainer hands its prompts over by itself.
    has_clients: bool,
}

/// Reads `start_ms` and `tokenize_us_per_token`, beside constants of an engine that hold where there are clients.
pub fn start(section: &mut Section<'_>, constants: &EngineConstants, has_clients: bool) -> StartSection {
    let usual = |time: Seconds| if has_clients { time.get() } else { 0.0 };
    let is_written = section.has("start_ms");
    let mean_ms = section.number("start_ms", usual(constants.usual_start) * 1e3, 0.0..=60_000.0);
    let tokenize_us = section.number("tokenize_us_per_token", usual(constants.tokenize) * 1e6, 0.0..=1e6);
    let [mean, tokenize] = [mean_ms / 1e3, tokenize_us / 1e6].map(Seconds::new);
    StartSection { mean, is_written, tokenize, has_clients }
}

impl Serving {
    /// Mean time to the queue of one engine: what is written comes before what a profile was calibrated to, and that before the named engine's.
    pub(super) fn start_of_engine(&self) -> Seconds {
        let asked = &self.engine.start;
        let calibrated = self.profile.as_ref().and_then(|profile| profile.calibrated.as_ref());
        let calibrated = calibrated.filter(|_| asked.has_clients && !asked.is_written);
        calibrated.map_or(asked.mean, |found| Seconds::new(found.start_s))
    }

    /// How long requests of a choice are on the way. Where prompts are computed apart, a request waits for the starts of as many engines as the named
    /// engine's router asks one after another, and API servers of those that compute prompts are counted: those of the replicas that serve this choice,
    /// which may be others than `[fleet]` has.
    pub fn start_of(&self, choice: &ServingChoice) -> Start {
        let groups = self.groups_of(choice);
        let is_split = groups.iter().any(|group| group.role == Role::Prefill);
        let n_starts = self.engine.preset.filter(|_| is_split).map_or(1, |preset| preset.split.n_starts);
        let mean = self.start_of_engine() * f64::from(n_starts);
        let at_door = groups.iter().filter(|group| group.role != Role::Decode);
        let servers = at_door.map(|group| self.frontend_of(choice, group).servers_of(self.replicas_of(choice, group)));
        let servers = self.engine.preset.map_or(0, |_| servers.sum());
        let server = self.engine.preset.map_or(ApiServer::NONE, |preset| preset.api_server);
        Start { mean, server, servers, tokenize: self.engine.start.tokenize, seed: self.head.seed }
    }
}
