//! What equal replicas may do at best with their part of the requests.

use hw::{Seconds, Tick, Time};

use super::load::Load;
use super::{Decoding, Job, Replica, SLACK, below, decoding_s, on_time};
use crate::request::Request;
use crate::step_cost::least::{Least, Prices};

/// Replicas of one role.
pub(super) struct Phase<'l> {
    replica: &'l Replica<'l>,
    least: Least,
    n_replicas: f64,
    /// GPUs of all of them.
    pub n_gpus: f64,
    /// Fewest iterations of all replicas.
    steps_min: f64,
    /// Least time in which all replicas together have an iteration under way.
    busy_s: f64,
    /// The same where no batch attends to more keys than memory has room for.
    full_s: f64,
    /// First tokens may wait for a frontend, and come closer to the next ones.
    waits: bool,
}

impl<'l> Phase<'l> {
    /// So many replicas, of so many GPUs each, at prices; `held` are those within the room of memory.
    pub fn new(
        replica: &'l Replica<'l>,
        (least, held): (Least, &[Prices]),
        [n_replicas, gpus_each]: [u32; 2],
        steps_min: f64,
        waits: bool,
    ) -> Self {
        let n_replicas = f64::from(n_replicas);
        let n_gpus = n_replicas * f64::from(gpus_each);
        let mut phase = Self { replica, least, n_replicas, n_gpus, steps_min, busy_s: 0.0, full_s: 0.0, waits };
        phase.busy_s = phase.least_s(&phase.least.prices);
        phase.full_s = phase.least_s(held);
        phase
    }

    /// What arrives.
    pub const fn load(&self) -> &'l Load<'l> {
        &self.replica.load
    }

    /// The largest share of requests whose part may be done within `ttft` and, where `tpot` is given, within that for every further token. Both are
    /// deadlines for the work of a request, where it is known when it comes.
    pub fn met_ratio(&self, ttft: Seconds, tpot: Option<Seconds>) -> f64 {
        let load = self.load();
        let able =
            hw::real(load.each(&self.replica.decoding).filter(|request| self.may(*request, ttft, tpot)).count() as u64);
        if load.is_held() || (tpot.is_none() && !load.gives_first()) {
            return able / load.n();
        }
        let by = |prices: &Prices| {
            let each = load.each(&self.replica.decoding);
            let mut jobs: Vec<Job> = each.map(|request| self.job(request, prices, ttft, tpot)).collect();
            hw::real(on_time(&mut jobs) as u64)
        };
        self.least.prices.iter().map(by).fold(able, f64::min) / load.n()
    }

    /// Whether a request that is alone may be in time.
    fn may(
        &self,
        (request, computed, decoding): (&Request, u32, &Decoding),
        ttft: Seconds,
        tpot: Option<Seconds>,
    ) -> bool {
        let begins = !self.load().gives_first() || self.ttft_of(computed) <= ttft.get();
        let (waited_s, later_s) = (if self.waits { ttft.get() } else { 0.0 }, decoding.passes * self.iteration_s());
        begins && tpot.is_none_or(|tpot| later_s <= waited_s + f64::from(request.output - 1) * tpot.get())
    }

    /// A request as work for one machine that is as fast as all replicas.
    fn job(
        &self,
        (request, computed, decoding): (&Request, u32, &Decoding),
        prices: &Prices,
        ttft: Seconds,
        tpot: Option<Seconds>,
    ) -> Job {
        let load = self.load();
        let attention = self.replica.attention_of(computed) / self.replica.lanes();
        let sampled = load.firsts() * self.least.sampled;
        let first = (f64::from(computed) * prices.prompt + sampled) * Tick::SECONDS + attention;
        let since_first = (request.arrival - Time::ZERO).to_seconds().get() - load.first_s;
        let speed = self.n_replicas * (1.0 + SLACK);
        match tpot.filter(|_| load.decodes()) {
            None => Job { due_s: since_first + ttft.get(), work_s: first / speed },
            Some(tpot) => {
                let later_s = f64::from(request.output - 1) * tpot.get();
                let work_s = (first + self.decoding_s(decoding, prices)) / speed;
                Job { due_s: since_first + ttft.get() + later_s, work_s }
            }
        }
    }

    /// Least time that decoding takes, at these prices.
    fn decoding_s(&self, decoding: &Decoding, prices: &Prices) -> f64 {
        let sampled = self.least.sampled * f64::from(self.replica.table.tokens_per_sequence());
        decoding_s(prices, sampled, decoding)
    }

    /// Requests per second that the replicas serve at most, however many wait.
    pub fn requests_per_s(&self) -> f64 {
        self.load().n() * self.n_replicas / self.full_s
    }

    /// Least time that all work takes on one replica, at the best of these prices.
    fn least_s(&self, prices: &[Prices]) -> f64 {
        let (load, replica) = (self.load(), self.replica);
        let sampled = load.n() * load.firsts() * self.least.sampled;
        let first = |price: f64| (load.prompt_tokens * price + sampled) * Tick::SECONDS;
        let work = |prices: &Prices| first(prices.prompt) + self.decoding_s(&replica.all_decoding, prices);
        let most = prices.iter().map(work).fold(0.0, f64::max);
        (most + replica.attention_s / replica.lanes()) / (1.0 + SLACK)
    }

    /// When the last request ends at best: all work is done, and the last one to arrive has passed.
    pub fn end_s(&self) -> f64 {
        let load = self.load();
        let busy_until = load.first_s + self.busy_s / self.n_replicas;
        let passage = if load.gives_first() { self.passage_s() } else { 0.0 };
        busy_until.max(load.last_s + passage)
    }

    /// What all requests take at least where each is alone: a passage for its first token, an iteration for what follows.
    pub fn passages_s(&self) -> f64 {
        let load = self.load();
        load.n() * load.firsts() * self.passage_s() + self.replica.all_decoding.passes * self.iteration_s()
    }

    /// A passage through all layers, which every first token needs.
    fn passage_s(&self) -> f64 {
        self.least.passage * Tick::SECONDS / (1.0 + SLACK)
    }

    /// The shortest iteration in which a sequence decodes.
    fn iteration_s(&self) -> f64 {
        self.least.decoding * Tick::SECONDS / (1.0 + SLACK)
    }

    /// What all GPUs draw at least until then: what they draw as they wait, and what work adds. A GPU that is busy draws no more than its limit.
    pub fn joules(&self, end_s: f64) -> Option<f64> {
        let power = self.replica.power.as_ref()?;
        let waiting = power.idle_watts() * self.n_gpus * end_s;
        let work = power.limit_watts * self.replica.work(power, self.steps_min) / (1.0 + SLACK);
        let room = (power.limit_watts - power.idle_watts()) * self.busy_s;
        Some(waiting + work.min(room) * self.n_gpus / self.n_replicas)
    }

    /// Least time per token after the first one: that of the request which is slower than so large a share of all, or the mean. `None` where nothing is
    /// decoded.
    pub fn tpot_s(&self, share: Option<f64>) -> Option<f64> {
        let paces = &self.replica.paces;
        let n = hw::real(paces.len() as u64);
        let pace = match share {
            None => paces.iter().sum::<f64>() / n,
            Some(share) => *paces.get(below(share, paces.len())?)?,
        };
        (n > 0.0).then(|| pace * self.iteration_s())
    }

    /// Least time to the first token of the prompt that is longer than so large a share of all; nothing where others give it.
    pub fn ttft_s(&self, share: f64) -> f64 {
        let prompts = &self.load().prompts;
        let prompt = prompts[below(share, prompts.len()).expect("some requests")];
        if self.load().gives_first() { self.ttft_of(prompt) } else { 0.0 }
    }

    /// The same of a prompt of which so much is computed.
    fn ttft_of(&self, prompt: u32) -> f64 {
        let linear = f64::from(prompt) * self.least.token * Tick::SECONDS;
        let whole = linear + self.replica.attention_of(prompt);
        (whole / self.replica.stages / (1.0 + SLACK)).max(self.passage_s())
    }
}
