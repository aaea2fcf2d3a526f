//! The event loop of serving.
//!
//! An event is the end of an iteration, or of a span of iterations, at one replica, or of a batch at a station; between events nothing
//! changes but by an arrival.
//! Where fleets are split or change, other events come beside: prompts that go on to a decode replica, transfers, control. Order: time, then
//! arrivals, then ends by the replica's index, then other events; so equal inputs give equal outputs on any machine, and a
//! boundary inside a span sees the same as the end of a single step.

mod clients;
mod control;
mod lending;
mod servers;
mod spell;
mod split;
pub(super) mod stations;

use clients::Clients;
use control::Control;
use lending::Lending;
use servers::Servers;
use split::Split;
use stations::Stations;

use super::ends::{Ends, IDLE};
use super::scaler::Scaler;
use super::start::OnTheWay;
use super::{Fleet, Keeps, Moved, Served};
use crate::kv::remote::Store;
use crate::records::Records;
use crate::replica::batcher::Batcher;
use crate::replica::{Engine, Replica, Role, TokenLog};
use crate::request::Requests;
use crate::router::{Router, View};
use crate::samples::{GivenTokens, Samples};
use crate::token_gaps;
use hw::Tick;

/// A request on its way to a replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) request: u32,
    /// Output tokens so far, where it has been on a replica that was lost.
    pub(super) again: Option<u32>,
}

/// A simulation under way.
pub(super) struct Run<'a, 'r> {
    pub(super) requests: &'a Requests,
    pub(super) fleet: &'r Fleet,
    pub(super) replicas: Vec<Replica<'a>>,
    pub(super) group_of: Vec<u32>,
    /// Replicas that take requests which arrive, and those that take requests from prefill replicas; ascending.
    pub(super) candidates: [Vec<u32>; 2],
    /// API servers of the first of these, and of those that were lost.
    pub(super) servers: Servers,
    router: &'r mut dyn Router,
    /// Who plans the groups that wait for a planner.
    pub(super) scaler: Option<&'r mut dyn Scaler>,
    pub(super) records: Records,
    pub(super) ends: Ends,
    pub(super) split: Split,
    pub(super) control: Control,
    clients: Clients,
    pub(super) lending: Lending<'r>,
    /// Replicas of a part of the layers, in place of `replicas`.
    pub(super) stations: Option<Stations<'r>>,
    /// Next event that is no end; `IDLE` where fleets neither are split nor change.
    side: Tick,
    /// Whether something that was begun ends after the clock does.
    pub(super) is_past_clock: bool,
    /// Whether every request has ended.
    is_over: bool,
}

/// Gives all replicas with a store the same one.
fn share_store(replicas: &mut [Replica<'_>]) {
    let mut shared: Option<Store> = None;
    for replica in replicas {
        let Some(remote) = replica.limits().remote else { continue };
        let store = shared.as_ref().map_or_else(|| Store::new(remote), |store| store.seen_by(remote));
        shared.get_or_insert_with(|| store.clone());
        replica.pool = replica.pool.clone().with_remote(Some(store));
    }
}

impl<'a, 'r> Run<'a, 'r> {
    pub(super) fn new(
        requests: &'a Requests,
        engines: &[&'a Engine],
        group_of: Vec<u32>,
        fleet: &'r Fleet,
        router: &'r mut dyn Router,
    ) -> Self {
        assert!(!group_of.is_empty(), "a fleet has a replica");
        let role = |group: u32| fleet.groups.get(group as usize).map_or(Role::Both, |group| group.role);
        let model = |group: u32| fleet.groups.get(group as usize).map_or(0, |group| group.model);
        let new = |(engine, group): (&&'a Engine, &u32)| {
            let replica = Replica::new(engine, requests).with_role(role(*group)).with_model(model(*group));
            replica.with_first_token(fleet.first_token)
        };
        let mut replicas: Vec<Replica<'a>> = engines.iter().zip(&group_of).map(new).collect();
        share_store(&mut replicas);
        if fleet.keeps != Keeps::Records {
            replicas.iter_mut().for_each(Replica::watch_tokens);
        }
        let replicas = lending::equip(replicas, fleet, (engines, &group_of));
        let servers = Servers::new(fleet, &replicas);
        let mut run = Self {
            requests,
            fleet,
            candidates: [Vec::new(), Vec::new()],
            servers,
            router,
            scaler: None,
            records: Records::new(requests),
            ends: Ends::new(group_of.len()),
            split: Split::new(fleet, &group_of),
            control: Control::new(fleet, &group_of),
            clients: Clients::new(requests),
            lending: Lending::new(fleet, &group_of),
            stations: None,
            replicas,
            group_of,
            side: IDLE,
            is_past_clock: false,
            is_over: false,
        };
        run.find_candidates();
        run.find_side();
        run
    }

    /// The same with a batching policy in place of the engines' own.
    pub(super) fn batched_by(mut self, batcher: Option<&'a dyn Batcher>) -> Self {
        if let Some(batcher) = batcher {
            self.replicas = self.replicas.into_iter().map(|replica| replica.with_batcher(batcher)).collect();
        }
        self
    }

    /// The same with a planner of the fleet.
    pub(super) fn planned_by(self, scaler: Option<&'r mut dyn Scaler>) -> Self {
        Self { scaler, ..self }
    }

    /// The same over stations.
    pub(super) fn over(self, stations: Stations<'r>) -> Self {
        let mut run = Self { stations: Some(stations), ..self };
        run.find_side();
        run
    }

    /// Serves everything.
    pub(super) fn play(mut self) -> Served {
        let mut on_the_way = OnTheWay::new(self.fleet.start);
        let is_instant = self.fleet.start.is_instant();
        for (index, request) in self.requests.list.iter().enumerate() {
            let sent = Tick::from(request.arrival);
            let index = u32::try_from(index).expect("fewer than 2^32 requests");
            if is_instant {
                self.run_until(sent);
                self.arrive(index, sent, sent);
            } else {
                self.let_in(&mut on_the_way, sent);
                on_the_way.send((index, request.prompt), sent, self.open_servers());
            }
        }
        self.let_in(&mut on_the_way, IDLE);
        while self.side != IDLE && !self.is_past_clock && self.n_ended() < self.requests.len() as u64 {
            self.next_event(IDLE);
        }
        self.end()
    }

    /// Requests that are in the queue by a tick arrive, each at its own. A fleet that changes has changed by then.
    fn let_in(&mut self, on_the_way: &mut OnTheWay, by: Tick) {
        loop {
            let next = on_the_way.next();
            let is_due = next <= by && next != IDLE;
            if !is_due && (by == IDLE || !self.control.is_active) {
                // Whoever would be there behind the end of the clock is not served.
                self.is_past_clock |= by == IDLE && !on_the_way.is_empty();
                return;
            }
            if self.run_until_loss(next.min(by)) {
                self.send_again(on_the_way);
                continue;
            }
            let arrived = if is_due { on_the_way.take(next) } else { None };
            let Some((now, request)) = arrived else { return };
            let sent = Tick::from(self.requests.list[request as usize].arrival);
            self.arrive(request, sent, now);
        }
    }

    /// Requests that ended or were refused.
    pub(super) const fn n_ended(&self) -> u64 {
        self.records.n_ended() + self.records.n_refused()
    }

    /// Tick of the next event; `IDLE` where nothing goes on.
    pub(super) fn next_tick(&self) -> Tick {
        self.ends.earliest().0.min(self.side)
    }

    /// Ends what is under way when no request is left.
    pub(super) fn end(mut self) -> Served {
        // Nobody is left who would see a change; what is under way ends.
        self.control.end();
        self.lending.end();
        self.clients.end();
        self.find_side();
        self.run_until(IDLE);
        self.served()
    }

    /// Handles every event before a tick.
    pub(super) fn run_until(&mut self, tick: Tick) {
        while self.next_event(tick) {}
    }

    /// Handles the next event, if it comes before a tick.
    pub(super) fn next_event(&mut self, tick: Tick) -> bool {
        engine::stop::pause();
        let (at, replica) = self.ends.earliest();
        if at.min(self.side) >= tick {
            return false;
        }
        if at <= self.side && self.stations.is_some() {
            self.batch_ends(replica, at);
            self.find_side();
        } else if at <= self.side {
            let next = self.replicas[replica as usize].advance(&mut self.records);
            self.ends.set(replica, IDLE);
            self.reset(replica, next);
            if self.has_sides() {
                self.collect(replica, at);
                self.rest(replica, at);
                self.find_side();
            }
        } else {
            let now = self.side;
            self.hand_on(now);
            self.transfer(now);
            self.pass_on(now);
            self.change(now);
            self.lend(now);
            self.give_up(now);
            self.find_side();
        }
        self.look_for_end();
        true
    }

    /// Tells replicas when the last request has ended: what they still have under way counts until then.
    fn look_for_end(&mut self) {
        if !self.is_over && self.n_ended() == self.requests.len() as u64 {
            self.is_over = true;
            let end = self.records.end_ticks();
            self.replicas.iter_mut().for_each(|replica| replica.run_ends(end));
        }
    }

    const fn has_sides(&self) -> bool {
        self.split.is_active || self.control.is_active || self.lending.is_active || self.clients.is_active
    }

    fn find_side(&mut self) {
        let stations = self.stations.as_ref().and_then(Stations::next);
        let next = [self.split.next(), self.control.next(), self.lending.next(), self.clients.next(), stations];
        let next = next.into_iter().flatten().min();
        self.is_past_clock |= next == Some(Tick::NEVER);
        self.side = next.unwrap_or(IDLE);
    }

    /// Notes the end of what a replica has under way, if that is new.
    pub(super) fn reset(&mut self, replica: u32, end: Option<Tick>) {
        if let Some(end) = end {
            self.is_past_clock |= end == Tick::NEVER;
            self.ends.set(replica, end);
        }
    }

    /// Sends a request to a replica; keeps it at the router where one may come that can hold it, and refuses it where none can.
    pub(super) fn dispatch(&mut self, waiter: Waiter, now: Tick) {
        let Waiter { request, again } = waiter;
        // One that comes back from a lost replica may be nobody's by now.
        if self.records.expire(request, now) {
            return;
        }
        let Some(chosen) = self.choose(request, None, now) else {
            if self.may_come(request, 0) {
                self.control.backlog.push_back(waiter);
            } else {
                self.records.refuse(request, now);
            }
            return;
        };
        self.records.route(request, chosen);
        let replica = &mut self.replicas[chosen as usize];
        let end = match again {
            None => replica.enqueue(request, now, &mut self.records),
            Some(generated) => replica.enqueue_again(request, generated, now, &mut self.records),
        };
        self.reset(chosen, end);
        if self.has_sides() {
            self.settle(chosen, now);
            self.find_side();
        }
    }

    /// The router's choice, or the least loaded replica that can hold the request where the chosen one cannot.
    pub(super) fn choose(&mut self, request: u32, from: Option<u32>, now: Tick) -> Option<u32> {
        if self.router.looks_into_caches() {
            // Requests arrive before iterations end at the same tick, and go on behind these.
            let until = if from.is_some() { now + Tick::ONE } else { now };
            self.replicas.iter_mut().for_each(|replica| replica.evict_until(until));
        }
        let all = &self.candidates[usize::from(from.is_some())];
        let of_model: Vec<u32>;
        let candidates = if self.requests.models.is_empty() {
            all
        } else {
            of_model = all.iter().copied().filter(|replica| self.replicas[*replica as usize].serves(request)).collect();
            &of_model
        };
        if candidates.is_empty() {
            return None;
        }
        let (replicas, group_of, assignment) = (&self.replicas, &self.group_of, &self.fleet.assignment);
        let model = self.requests.model_of(request as usize);
        let view = View { replicas, candidates, group_of, assignment, from, model };
        let chosen = self.router.choose(request, &view);
        let decoders = &self.candidates[1];
        let can_hold = |replica: u32| {
            let replica = &replicas[replica as usize];
            let has_decoder = || decoders.iter().any(|other| replicas[*other as usize].can_hold(request));
            replica.can_hold(request) && (replica.role() != Role::Prefill || has_decoder())
        };
        if can_hold(chosen) { Some(chosen) } else { view.least_loaded(can_hold) }
    }

    /// Holds that everyone was served.
    fn check_end(&self) {
        for replica in &self.replicas {
            assert!(replica.outstanding() == 0, "everyone is served in the end");
            debug_assert!(replica.pool.is_conserved());
            debug_assert!(replica.pool.held() == 0);
        }
        assert!(self.control.backlog.is_empty() && self.split.is_empty(), "nobody is left on the way");
    }

    fn served(self) -> Served {
        let n_unserved = self.requests.len() as u64 - self.n_ended();
        if !self.is_past_clock || n_unserved == 0 {
            self.check_end();
        }
        let end = self.records.end_ticks();
        let logs: Vec<&TokenLog> = self.replicas.iter().filter_map(Replica::token_log).collect();
        let mut given_tokens = match self.fleet.keeps {
            Keeps::Records => None,
            Keeps::Tokens { samples } => Some(GivenTokens::none(Samples::over(end.time(), samples))),
        };
        let token_gaps = given_tokens
            .as_mut()
            .map_or_else(Vec::new, |given| token_gaps::of_logs(self.requests, &self.records, &logs, given));
        Served {
            paid_ticks: self.control.paid_until(end),
            up_ticks: self.control.up_until(end),
            paid_changes: self.control.paid_changes,
            counts: self.replicas.iter().map(|replica| replica.counts).collect(),
            blocks: self.replicas.iter().map(|replica| (replica.pool.peak(), replica.pool.total())).collect(),
            group_of: self.group_of,
            n_refused: self.records.n_refused(),
            n_unserved,
            records: self.records,
            moved: Moved { link_ticks: self.split.transfers.busiest(), ..self.split.moved },
            changes: self.control.changes,
            loaned: self.lending.loaned,
            token_gaps,
            half_left: None,
            given_tokens,
        }
    }
}
