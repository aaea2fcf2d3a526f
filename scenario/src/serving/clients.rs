//! Clients of `[trace]`: how long they wait, how many have enough before the end, whose requests come first, and how their tokens are drawn.

pub(super) mod generation;
mod sampling;

use hw::{Seconds, Span};
use serve::adapters::Popularity;
use serve::kv::lending::Borrow;
use serve::metrics::Slo;
use serve::replica::Order;
use serve::request::{Patience, Requests};
use serve::sampler::{Beside, Sampling};

use super::{Serving, adapters};
use generation::Generation;
use input::diagnostic::Code;
use input::reader::{Reader, Section};

/// Longest wait, seconds.
const WAIT_S_MAX: f64 = 1e6;

/// What a stream says of its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clients {
    patience: Patience,
    cancel_ratio: f64,
    priority: Option<u32>,
    /// Adapters that they ask for.
    pub adapters: Option<Popularity>,
    /// What they ask of the sampler, and what besides.
    pub sampling: (Sampling, Beside),
}

/// Reads the keys; how tokens are drawn may also be said by the model's own file.
pub fn read(section: &mut Section<'_>, of_model: Option<&Generation>) -> Clients {
    let at = section.place("first_token_timeout_s").flatten();
    let first_s = section.some_number("first_token_timeout_s", 1e-6..=WAIT_S_MAX);
    let whole_s = section.some_number("timeout_s", 1e-6..=WAIT_S_MAX);
    if let (Some(first), Some(whole)) = (first_s, whole_s)
        && first >= whole
    {
        let what =
            format!("`first_token_timeout_s` = {first} changes nothing: clients leave after `timeout_s` = {whole}");
        section.warn(Code::NoEffect, at, what, "make it shorter, or leave it out");
    }
    let span = |seconds: Option<f64>| Some(Span::from_seconds(Seconds::new(seconds?)));
    let cancel_ratio = section.number("cancel_ratio", 0.0, 0.0..=1.0);
    let priority = section.some_count("priority", 0..=1_000_000);
    let adapters = section.table("adapters").map(adapters::popularity);
    let sampling = sampling::read(section, of_model);
    let patience = Patience { first_token: span(first_s), whole: span(whole_s) };
    Clients { patience, cancel_ratio, priority, adapters, sampling }
}

impl Clients {
    /// Lets some clients have enough before the end. Of sessions it comes first: a turn repeats what its client read.
    pub fn cancel(&self, requests: &mut Requests, seed: u64) {
        if self.cancel_ratio > 0.0 && requests.asked.is_empty() {
            requests.cancel(self.cancel_ratio, seed);
        }
    }

    /// The requests of a stream, as its clients ask for them.
    pub fn lay(&self, mut requests: Requests, seed: u64) -> Requests {
        if self.patience.ends() {
            requests.patience = vec![self.patience];
        }
        self.cancel(&mut requests, seed);
        requests.priorities = self.priority.into_iter().collect();
        match self.adapters {
            None => requests,
            Some(popularity) => popularity.lay(requests, seed),
        }
    }
}

/// Priorities and the order of engines belong together, and clients who leave are known to whoever plays their requests.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    sampling::check(reader, serving);
    let priorities = &serving.requests.priorities;
    let has_classes = priorities.windows(2).any(|pair| pair[0] != pair[1]);
    let asks = |order: Order| serving.choices.iter().any(|choice| choice.limits.order == order);
    let mut idle = |what: &str, help: &str| reader.warn(Code::NoEffect, None, what, help);
    if !priorities.is_empty() && !asks(Order::Priority) {
        idle("`priority` changes nothing", "it needs `scheduling = \"priority\"` in `[engine]` or in a variant");
    }
    if asks(Order::Priority) && !has_classes {
        idle("`scheduling = \"priority\"` changes nothing", "it needs `[[trace.stream]]` of different `priority`");
    }
    let is_planned = serving.groups.iter().any(|group| group.scaling.as_ref().is_some_and(|of| of.planned.is_some()));
    if is_planned && !serving.requests.is_patient() {
        let what = "clients who leave, and a rule of `scaling` whose bound serves everybody";
        let help =
            "leave out `timeout_s`, `first_token_timeout_s` and `cancel_ratio`, or write `rule = \"concurrency\"`";
        reader.refuse(Code::WrongOperation, None, what, help);
    }
    for choice in serving.choices.iter().filter(|choice| choice.kv.borrow != Borrow::Never) {
        let what = match choice.limits.order {
            Order::Priority => "an order by priority",
            Order::Arrival if serving.requests.has_deadlines() => "clients who time out",
            Order::Arrival => continue,
        };
        let what = format!("`{}`: memory that is lent beside {what}", choice.name);
        let help = "a loan is made for whoever came first and waits for it: `borrow = \"never\"`, or serve in order of arrival to clients who wait";
        reader.refuse(Code::WrongOperation, None, what, help);
    }
}

/// Limits, in seconds, from which on milliseconds are what was meant.
const MILLISECONDS: [(&str, f64); 2] = [("ttft_s", 100.0), ("tpot_s", 5.0)];

/// `[slo]`: limits of latency, and what comes too soon to count.
pub fn slo(mut section: Section<'_>) -> (Slo, Seconds) {
    let places = MILLISECONDS.map(|(key, _)| section.place(key).flatten());
    let mut limit = |key| section.some_number(key, 1e-6..=1e6).map(Seconds::new);
    let slo = Slo { ttft: limit("ttft_s"), tpot: limit("tpot_s"), e2e: limit("e2e_s") };
    for (((key, most), at), limit) in MILLISECONDS.into_iter().zip(places).zip([slo.ttft, slo.tpot]) {
        if let Some(seconds) = limit.map(Seconds::get).filter(|seconds| *seconds >= most) {
            let what = format!("`{}` = {seconds} is a limit of {seconds} seconds", section.full(key));
            section.warn(Code::OtherUnit, at, what, "it counts seconds, and not milliseconds");
        }
    }
    let warm_up = Seconds::new(section.number("warm_up_s", 0.0, 0.0..=1e6));
    section.finish();
    (slo, warm_up)
}
