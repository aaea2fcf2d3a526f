//! Replicas that come and go: losses, repairs and the autoscaler.
//!
//! Events of one tick are handled in the order in which they were made, and requests that wait at the router behind all of them: replicas that come at the
//! same moment share these. A stopped replica serves to the end what it has, and a started one
//! is first one that was to stop. Invariant: a replica takes requests while it is up, and is paid while it starts, is up or drains.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hw::{Seconds, Tick, TickSum};

use super::spell::Spell;
use super::{Run, Waiter};
use crate::fleet::dynamics::{Rule, Scaling, Wishes};
use crate::fleet::scaler::{GroupSeen, Watch};
use crate::fleet::{Changes, Fleet, PaidChange};
use crate::replica::{Lost, Order, Role};
use engine::random::{self, Stream};

/// What a replica is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum State {
    /// Not rented.
    Off,
    /// Loading.
    Starting,
    /// Serving.
    Up,
    /// Serving what it has until it is stopped.
    Draining,
    /// Serving what it has until it is lost.
    Noticed,
    /// Lost, and back at some time.
    Repair,
    /// Lost for good.
    Gone,
}

/// Losses in a row, with work under way and nothing gained, after which a replica is not waited for any more: what it has to do takes longer than it
/// lives. A replica that gains something in one life of a hundred is given up by mistake 4 times in 100,000.
const VAIN_MAX: u32 = 1000;

/// Losses of a replica since it gained something.
#[derive(Clone, Copy, Debug, Default)]
struct Vain {
    n: u32,
    /// What there was at the last loss.
    gained: u64,
}

/// The place of a replica.
struct Place {
    state: State,
    /// Counts changes of state: older events are void.
    epoch: u32,
    paid: Spell,
    /// Serving, be it only what it has.
    up: Spell,
    /// Draws its failures.
    stream: Option<Stream>,
    vain: Vain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The autoscaler of a group decides.
    Decide { group: usize },
    /// The planner of the fleet decides.
    Plan,
    /// A timetable says how many replicas a group has.
    Set { group: usize, replicas: u32 },
    /// A replica serves from now on, if nothing happened meanwhile.
    Up { replica: u32, epoch: u32 },
    /// A replica takes no more requests.
    Notice { replica: u32 },
    /// A replica is lost; back after so many ticks.
    Lose { replica: u32, back_after: Option<Tick> },
    /// A replica fails at random, if nothing happened meanwhile.
    Fail { replica: u32, epoch: u32 },
}

/// Everything that changes a fleet.
pub(in crate::fleet) struct Control {
    pub(in crate::fleet) is_active: bool,
    places: Vec<Place>,
    events: BinaryHeap<Reverse<(Tick, u64, Event)>>,
    n_events: u64,
    /// Requests for which there is no replica now.
    pub(in crate::fleet) backlog: VecDeque<Waiter>,
    /// Whether requests that wait for a replica may find another one than before.
    is_news: bool,
    /// By group: wishes, and requests in the system integrated up to the last decision with its tick.
    scalers: Vec<(Wishes, TickSum, Tick)>,
    /// What the planner of the fleet has not seen yet.
    watch: Watch,
    pub(in crate::fleet) changes: Changes,
    pub(in crate::fleet) paid_changes: Vec<PaidChange>,
}

impl Control {
    pub(in crate::fleet) fn new(fleet: &Fleet, group_of: &[u32]) -> Self {
        let place = |(index, group): (usize, &u32)| {
            let scaling = fleet.groups.get(*group as usize).and_then(|group| group.scaling.as_ref());
            let nth = || group_of[..index].iter().rev().take_while(|other| *other == group).count();
            let is_up = scaling.is_none_or(|of| nth() < of.replicas_first.max(1) as usize);
            let stream =
                |failures: crate::fleet::dynamics::Failures| random::stream(failures.seed, &format!("replica {index}"));
            Place {
                state: if is_up { State::Up } else { State::Off },
                epoch: 0,
                paid: Spell::from_start(is_up),
                up: Spell::from_start(is_up),
                stream: fleet.failures_of(group_of[index]).map(stream),
                vain: Vain::default(),
            }
        };
        let is_active = fleet.is_dynamic();
        let mut control = Self {
            is_active,
            places: group_of.iter().enumerate().map(place).collect(),
            events: BinaryHeap::new(),
            n_events: 0,
            backlog: VecDeque::new(),
            is_news: false,
            scalers: fleet.groups.iter().map(|_| (Wishes::default(), TickSum::default(), Tick::ZERO)).collect(),
            watch: Watch::default(),
            changes: Changes::default(),
            paid_changes: Vec::new(),
        };
        if is_active {
            control.first_events(fleet, group_of);
        }
        let is_up = |(place, _): &(&Place, u32)| place.paid.is_so();
        let first = |(_, replica)| PaidChange { tick: Tick::ZERO, replica, is_paid: true };
        control.paid_changes = control.places.iter().zip(0..).filter(is_up).map(first).collect();
        control
    }

    fn first_events(&mut self, fleet: &Fleet, group_of: &[u32]) {
        for outage in &fleet.outages {
            let replica = fleet.first_of(outage.group) + outage.replica;
            let at = Tick::from(outage.at);
            self.at(at, Event::Notice { replica });
            let back_after = outage.back_after.map(Tick::from_seconds_in_ns);
            self.at(at + Tick::from_seconds_in_ns(outage.notice), Event::Lose { replica, back_after });
        }
        for (group, scaling) in
            fleet.groups.iter().enumerate().filter_map(|(at, group)| Some((at, group.scaling.as_ref()?)))
        {
            match &scaling.rule {
                Rule::Concurrency(rule) => self.at(Tick::from_seconds_in_ns(rule.interval), Event::Decide { group }),
                Rule::Timetable(rows) => {
                    let set = |&(at, replicas): &(hw::Time, u32)| (Tick::from(at), Event::Set { group, replicas });
                    rows.iter().map(set).for_each(|(at, event)| self.at(at, event));
                }
                Rule::Planned { .. } => {}
            }
        }
        if let Some(interval) = fleet.planned_every() {
            self.at(Tick::from_seconds_in_ns(interval), Event::Plan);
        }
        for replica in 0..u32::try_from(group_of.len()).expect("fewer than 2^32 replicas") {
            self.await_failure(fleet, group_of, replica, Tick::ZERO);
        }
    }

    /// What comes beyond the clock comes never, and leaves everything else as it is.
    fn at(&mut self, tick: Tick, event: Event) {
        if tick == Tick::NEVER {
            return;
        }
        self.events.push(Reverse((tick, self.n_events, event)));
        self.n_events += 1;
    }

    pub(in crate::fleet) fn next(&self) -> Option<Tick> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    /// Whether a replica that is to be lost is back at some time, as its next loss says.
    fn is_lost_for_a_while(&self, replica: u32) -> bool {
        let loss = |Reverse((at, n, event)): &Reverse<(Tick, u64, Event)>| match event {
            Event::Lose { replica: of, back_after } if *of == replica => Some((*at, *n, back_after.is_some())),
            _ => None,
        };
        self.events.iter().filter_map(loss).min().is_some_and(|(.., comes_back)| comes_back)
    }

    /// Whether a row of a group's timetable is yet to come. Each wants a replica at least.
    fn is_set_again(&self, at: usize) -> bool {
        self.events.iter().any(|Reverse((.., event))| matches!(event, Event::Set { group, .. } if *group == at))
    }

    /// What a replica or a station is doing.
    pub(in crate::fleet) fn state(&self, place: usize) -> State {
        self.places[place].state
    }

    /// Nothing changes any more.
    pub(in crate::fleet) fn end(&mut self) {
        self.events.clear();
    }

    /// Draws when a replica that is up fails.
    fn await_failure(&mut self, fleet: &Fleet, group_of: &[u32], replica: u32, now: Tick) {
        let Some(failures) = fleet.failures_of(group_of[replica as usize]) else { return };
        let place = &mut self.places[replica as usize];
        let (State::Up, Some(stream)) = (place.state, &mut place.stream) else { return };
        let at = now + exponential(stream, failures.mtbf);
        let epoch = place.epoch;
        self.at(at, Event::Fail { replica, epoch });
    }

    fn set(&mut self, replica: u32, state: State, now: Tick) {
        let place = &mut self.places[replica as usize];
        (place.state, place.epoch) = (state, place.epoch + 1);
        let is_paid = matches!(state, State::Starting | State::Up | State::Draining | State::Noticed);
        if place.paid.is_so() != is_paid {
            self.paid_changes.push(PaidChange { tick: now, replica, is_paid });
        }
        place.paid.set(is_paid, now);
        place.up.set(is_paid && state != State::Starting, now);
    }

    /// Ticks for which every replica is paid until the end.
    pub(in crate::fleet) fn paid_until(&self, end: Tick) -> Vec<Tick> {
        self.places.iter().map(|place| place.paid.until(end)).collect()
    }

    /// Ticks in which every replica serves until the end.
    pub(in crate::fleet) fn up_until(&self, end: Tick) -> Vec<Tick> {
        self.places.iter().map(|place| place.up.until(end)).collect()
    }
}

/// Ticks until what happens once per `mean`, drawn.
fn exponential(stream: &mut Stream, mean: Seconds) -> Tick {
    Tick::from_seconds_in_ns(Seconds::new(stream.exponential() * mean.get()))
}

impl Run<'_, '_> {
    /// Finds which replicas take requests.
    pub(in crate::fleet) fn find_candidates(&mut self) {
        for (stage, candidates) in self.candidates.iter_mut().enumerate() {
            candidates.clear();
            for (index, replica) in self.replicas.iter().enumerate() {
                let is_of_stage = (replica.role() == Role::Decode) == (stage == 1);
                if is_of_stage && self.control.places[index].state == State::Up {
                    candidates.push(u32::try_from(index).expect("fewer than 2^32 replicas"));
                }
            }
        }
        self.servers.find(&self.candidates[0]);
        self.count_lenders();
        self.find_ways();
    }

    /// Whether a replica takes new requests.
    pub(in crate::fleet) fn is_up(&self, replica: u32) -> bool {
        self.is_in(replica, &[State::Up])
    }

    /// Whether a replica serves, be it only what it has.
    pub(in crate::fleet) fn is_serving(&self, replica: u32) -> bool {
        self.is_in(replica, &[State::Up, State::Draining, State::Noticed])
    }

    /// Whether a replica serves or will again.
    pub(in crate::fleet) fn comes_back(&self, replica: u32) -> bool {
        match self.control.state(replica as usize) {
            State::Starting | State::Up | State::Repair => true,
            State::Off | State::Draining => self.is_rented_again(replica),
            State::Noticed => self.is_rented_again(replica) || self.control.is_lost_for_a_while(replica),
            State::Gone => false,
        }
    }

    /// Whether its group rents replicas as load changes, and another machine in the place of one that is lost.
    fn is_scaled(&self, replica: u32) -> bool {
        let group = self.fleet.groups.get(self.group_of[replica as usize] as usize);
        group.is_some_and(|group| group.scaling.is_some())
    }

    /// Whether its group may rent another machine in its place. Rules do by the load, and a timetable at its next row.
    fn is_rented_again(&self, replica: u32) -> bool {
        let at = self.group_of[replica as usize] as usize;
        let scaling = self.fleet.groups.get(at).and_then(|group| group.scaling.as_ref());
        scaling.is_some_and(|of| !matches!(of.rule, Rule::Timetable(_)) || self.control.is_set_again(at))
    }

    /// Whether a replica that could hold a request, in a stage, may come.
    pub(in crate::fleet) fn may_come(&self, request: u32, stage: usize) -> bool {
        let may = |role: Role| {
            self.replicas.iter().zip(0..).any(|(replica, index)| {
                let holds = || replica.can_hold_with(request, self.lendable_to(index, false));
                self.comes_back(index) && replica.role() == role && holds()
            })
        };
        let takes_all = || may(Role::Both) || may(Role::Outputs);
        if stage == 1 { may(Role::Decode) } else { takes_all() || (may(Role::Prefill) && may(Role::Decode)) }
    }

    /// Handles changes that are due.
    pub(in crate::fleet) fn change(&mut self, now: Tick) {
        while let Some(Reverse((at, _, event))) = self.control.events.peek().copied() {
            if at > now {
                break;
            }
            self.control.events.pop();
            let is_of = |replica: u32, epoch: u32| self.control.places[replica as usize].epoch == epoch;
            match event {
                Event::Decide { group } => self.decide(group, now),
                Event::Plan => self.plan(now),
                Event::Set { group, replicas } => self.resize(group, replicas, now),
                Event::Up { replica, epoch } if is_of(replica, epoch) => self.come_up(replica, now),
                Event::Notice { replica } if self.is_in(replica, &[State::Up, State::Starting, State::Draining]) => {
                    self.control.set(replica, State::Noticed, now);
                    self.find_candidates();
                }
                Event::Lose { replica, back_after } => self.lose(replica, back_after, now),
                Event::Fail { replica, epoch } if is_of(replica, epoch) => {
                    let failures = self.fleet.failures_of(self.group_of[replica as usize]);
                    let stream = self.control.places[replica as usize].stream.as_mut();
                    let repair = failures.zip(stream).map(|(failures, stream)| exponential(stream, failures.mttr));
                    self.lose(replica, repair, now);
                }
                Event::Up { .. } | Event::Notice { .. } | Event::Fail { .. } => {}
            }
        }
        self.try_again(now);
    }

    fn is_in(&self, replica: u32, states: &[State]) -> bool {
        states.contains(&self.control.places[replica as usize].state)
    }

    fn come_up(&mut self, replica: u32, now: Tick) {
        self.control.set(replica, State::Up, now);
        self.control.await_failure(self.fleet, &self.group_of, replica, now);
        self.find_candidates();
        self.control.is_news = true;
    }

    fn drain(&mut self, replica: u32, now: Tick) {
        self.control.set(replica, State::Draining, now);
        self.find_candidates();
        self.rest(replica, now);
    }

    /// A replica that was to stop and has nothing left is stopped.
    pub(in crate::fleet) fn rest(&mut self, replica: u32, now: Tick) {
        if self.is_scaled(replica)
            && self.is_in(replica, &[State::Draining])
            && self.replicas[replica as usize].is_idle()
        {
            self.control.set(replica, State::Off, now);
        }
    }

    fn lose(&mut self, replica: u32, back_after: Option<Tick>, now: Tick) {
        if !self.is_in(replica, &[State::Up, State::Starting, State::Draining, State::Noticed]) {
            return;
        }
        self.control.changes.n_outages += 1;
        let is_in_vain = self.is_lost_in_vain(replica, now);
        let back_after = back_after.filter(|_| !is_in_vain);
        let state = match (back_after, self.is_scaled(replica)) {
            (Some(_), _) => State::Repair,
            // Another machine can be rented in its place, if that one would gain something.
            (None, true) if !is_in_vain => State::Off,
            (None, _) => State::Gone,
        };
        self.control.set(replica, state, now);
        if let Some(after) = back_after {
            let epoch = self.control.places[replica as usize].epoch;
            self.control.at(now + after, Event::Up { replica, epoch });
        }
        self.find_candidates();
        self.control.is_news = true;
        if self.stations.is_some() {
            return self.lose_station(replica, now);
        }
        self.servers.lose(replica, now);
        let lost = self.lose_memory(replica, now);
        self.ends.set(replica, crate::fleet::ends::IDLE);
        self.send_back(lost, now);
    }

    /// Whether a replica that comes back would be lost again before it gains anything; counts the loss. Gains are tokens, or prompts that are handed on;
    /// a request that ends anywhere counts too.
    fn is_lost_in_vain(&mut self, replica: u32, now: Tick) -> bool {
        if self.stations.is_some() || self.replicas[replica as usize].is_idle() {
            return false;
        }
        let of = &self.replicas[replica as usize];
        let own = if of.role() == Role::Prefill { self.split.moved.n } else { of.tokens_until(now) };
        let gained = own + self.n_ended();
        let vain = &mut self.control.places[replica as usize].vain;
        let n = if vain.gained == gained { vain.n + 1 } else { 1 };
        *vain = Vain { n, gained };
        if n == VAIN_MAX {
            self.control.changes.n_given_up += 1;
        }
        n >= VAIN_MAX
    }

    /// Sequences whose keys and values are lost where they come from are not waited for any more.
    pub(in crate::fleet) fn give_up_moves(&mut self, requests: &[u32], now: Tick) {
        for &request in requests {
            if let Some(of) = self.split.moves.remove(&request) {
                self.split.transfers.cancel(request, now);
                let end = self.replicas[of.to as usize].forget(request, now, &mut self.records);
                self.reset(of.to, end);
                self.collect(of.to, now);
            }
        }
    }

    /// Requests of a lost replica wait for another one.
    pub(in crate::fleet) fn send_back(&mut self, lost: Lost, now: Tick) {
        self.split.drop_handed(&lost.sending);
        self.give_up_moves(&lost.sending, now);
        for moving in lost.unsent {
            let of = self.split.moves.remove(&moving.request).expect("a sequence that was sent here");
            self.split.transfers.cancel(moving.request, now);
            self.split.held.push((crate::replica::Moving { at: now, ..moving }, of.from));
        }
        for (request, generated) in lost.again.into_iter().rev() {
            self.control.changes.n_retried += 1;
            self.records.lose(request, now);
            self.control.backlog.push_front(Waiter { request, again: Some(generated) });
        }
        self.control.is_news = true;
    }

    /// After all changes of a moment: requests that wait for a replica find one, wait on, or are refused where none may come any more. By priority, the
    /// lowest number goes first here too.
    pub(in crate::fleet) fn try_again(&mut self, now: Tick) {
        if !std::mem::take(&mut self.control.is_news) {
            return;
        }
        self.admit_to_stations(now);
        let mut backlog = std::mem::take(&mut self.control.backlog);
        if let Some(replica) = self.replicas.iter().find(|replica| replica.limits().order == Order::Priority) {
            backlog.make_contiguous().sort_by_key(|waiter| replica.class_of(waiter.request));
        }
        for waiter in backlog {
            self.dispatch(waiter, now);
        }
        for (moving, from) in std::mem::take(&mut self.split.held) {
            self.onward(moving, from, now);
        }
    }

    /// The autoscaler of a group.
    fn decide(&mut self, group: usize, now: Tick) {
        let of = &self.fleet.groups[group];
        let Some(Rule::Concurrency(rule)) = of.scaling.as_ref().map(|scaling| &scaling.rule) else { return };
        let wish = rule.wanted(self.in_system(group, now)).min(of.n_replicas);
        let current = self.current(group);
        let decided = self.control.scalers[group].0.decide(rule.window, wish, current);
        self.resize(group, decided, now);
        self.control.at(now + Tick::from_seconds_in_ns(rule.interval).max(Tick::ONE), Event::Decide { group });
    }

    /// Mean number of requests at a group since the last time that somebody asked, with those that wait for a replica now.
    fn in_system(&mut self, group: usize, now: Tick) -> f64 {
        let all = self.of_group(group);
        let ticks_now: TickSum = all.map(|replica| self.replicas[replica as usize].request_ticks(now)).sum();
        let (_, before, since) = &mut self.control.scalers[group];
        let mean = (ticks_now - *before).as_f64() / (now - *since).max(Tick::ONE).as_f64();
        (*before, *since) = (ticks_now, now);
        let is_decode = self.fleet.groups[group].role == Role::Decode;
        let waiting = if is_decode { self.split.held.len() } else { self.control.backlog.len() };
        mean + hw::real(waiting as u64)
    }

    /// Every group as a planner sees it.
    fn groups_seen(&mut self, now: Tick) -> Vec<GroupSeen> {
        let mut seen = Vec::new();
        for group in 0..self.fleet.groups.len() {
            let is_up = |replica: &u32| self.is_in(*replica, &[State::Up]);
            let up = u32::try_from(self.of_group(group).filter(is_up).count()).expect("fewer than 2^32 replicas");
            // The mean of a group that scales by itself is its own rule's, which looks at other times.
            let scaling = self.fleet.groups[group].scaling.as_ref().map(|scaling| &scaling.rule);
            let is_own = matches!(scaling, Some(Rule::Concurrency(_)));
            let in_system = if is_own { 0.0 } else { self.in_system(group, now) };
            let current = self.current(group);
            seen.push(GroupSeen { up, current, in_system });
        }
        seen
    }

    /// The planner of the fleet.
    fn plan(&mut self, now: Tick) {
        let (Some(scaler), Some(interval)) = (self.scaler.take(), self.fleet.planned_every()) else { return };
        let groups = self.groups_seen(now);
        let wishes = scaler.decide(&self.control.watch.look(self.requests, &self.records, now, groups));
        self.scaler = Some(scaler);
        for (group, wish) in wishes.into_iter().enumerate().take(self.fleet.groups.len()) {
            let rule = self.fleet.groups[group].scaling.as_ref().map(|scaling| &scaling.rule);
            if matches!(rule, Some(Rule::Planned { .. })) {
                self.resize(group, wish, now);
            }
        }
        self.control.at(now + Tick::from_seconds_in_ns(interval).max(Tick::ONE), Event::Plan);
    }

    /// Replicas of a group.
    fn of_group(&self, group: usize) -> std::ops::Range<u32> {
        let first = self.fleet.first_of(group);
        first..first + self.fleet.groups[group].n_replicas
    }

    /// Replicas of a group that serve or will.
    fn current(&self, group: usize) -> u32 {
        let serves = |replica: &u32| self.is_in(*replica, &[State::Up, State::Starting]);
        u32::try_from(self.of_group(group).filter(serves).count()).expect("fewer than 2^32 replicas")
    }

    /// Starts or stops replicas until a group has so many, within its limits.
    fn resize(&mut self, group: usize, wish: u32, now: Tick) {
        let of = &self.fleet.groups[group];
        let Some(scaling) = &of.scaling else { return };
        let (current, wanted) = (self.current(group), scaling.within(wish, of.n_replicas));
        for _ in current..wanted {
            self.start_one(self.of_group(group), scaling, now);
        }
        for _ in wanted..current {
            self.stop_one(self.of_group(group), now);
        }
    }

    /// Starts a replica, first one that was to stop.
    fn start_one(&mut self, mut all: std::ops::Range<u32>, scaling: &Scaling, now: Tick) {
        if let Some(replica) = all.clone().find(|replica| self.is_in(*replica, &[State::Draining])) {
            self.control.changes.n_started += 1;
            return self.come_up(replica, now);
        }
        if let Some(replica) = all.find(|replica| self.is_in(*replica, &[State::Off])) {
            self.control.changes.n_started += 1;
            self.control.set(replica, State::Starting, now);
            let epoch = self.control.places[replica as usize].epoch;
            self.control.at(now + Tick::from_seconds_in_ns(scaling.start_up), Event::Up { replica, epoch });
        }
    }

    /// Stops the replica with the least to do, the latest among equals; one that is still loading first.
    fn stop_one(&mut self, all: std::ops::Range<u32>, now: Tick) {
        if let Some(replica) = all.clone().rev().find(|replica| self.is_in(*replica, &[State::Starting])) {
            self.control.changes.n_stopped += 1;
            return self.control.set(replica, State::Off, now);
        }
        let up = all.rev().filter(|replica| self.is_in(*replica, &[State::Up]));
        if let Some(replica) = up.min_by_key(|replica| self.replicas[*replica as usize].outstanding()) {
            self.control.changes.n_stopped += 1;
            self.drain(replica, now);
        }
    }
}
