//! What the host does around an iteration: it schedules before and turns tokens into text after, one after another or behind the device.
//!
//! Serial: `schedule + device + detokenize`. Asynchronous, as the Totally Asynchronous Generator of Qwen2.5-1M (arXiv:2501.15383,
//! section 4.4) and vLLM's asynchronous scheduling: three processes with queues between them, so the slowest sets the pace,
//! `max(schedule, device, detokenize)`; the next iteration starts before anyone knows that a sequence has ended, so each takes part in
//! one more, and its blocks come back after that. Units: ticks.

use hw::{Seconds, Tick};

/// How the host's work and the device's are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineLoop {
    /// One after another.
    #[default]
    Serial,
    /// At the same time, an iteration ahead.
    Asynchronous,
}

/// Host times of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// How they are joined with the device's.
    pub engine_loop: EngineLoop,
    /// Scheduling: per iteration.
    per_step: Tick,
    /// Scheduling: per sequence.
    per_sequence: Tick,
    /// Tokens to text: per sequence.
    detokenize: Tick,
    /// For which the device waits, however far the host is ahead.
    waiting: Tick,
    /// Launches of an iteration with chunks of prompts that is not captured as a graph.
    launches: Tick,
    /// Launches of an iteration that only decodes and is not captured.
    decode_launches: Tick,
    /// Copies of weights out of host memory, beside which the device computes.
    copies: Tick,
}

/// Host time of the launches of a layer that only decodes, in seconds. Eight billion parameters in 32 layers take 8.23 ms a token without graphs and 7.35
/// ms with them, with one sequence. So the host sets the pace. Source: sgl-project/sglang, pull request 1401 (FlashInfer). That other engines of PyTorch launch
/// as fast is an assumption. A model of 12 layers takes 4.8 ms under vLLM and SGLang without graphs, and 1.0 to 1.3 ms with them (deepspeedai/DeepSpeed, pull
/// request 8352), which no constant was chosen on.
const DECODE_LAUNCHES_S: f64 = 8.23e-3 / 32.0;
/// Kernels of such a layer: two norms with the additions in front of them, four products, rotary positions, a write into the cache, attention, an activation.
const LAUNCHES_OF_LAYER: f64 = 10.0;
/// The same of a layer with latent attention, a scan or experts: 27 layers take 6.22 ms with graphs and four times as long without them (same source).
const INTRICATE_DECODE_LAUNCHES_S: f64 = 4.0 * 6.22e-3 / 27.0;

/// Host time of the launches of some layers that only decode, plain ones and those that are launched in more kernels, with so many kernels besides.
pub(super) fn decode_launches([plain, intricate]: [f64; 2], more: f64) -> Seconds {
    let plain = plain + more / LAUNCHES_OF_LAYER;
    Seconds::new(plain * DECODE_LAUNCHES_S + intricate * INTRICATE_DECODE_LAUNCHES_S)
}

/// Kernels of a round of drafting and verifying that the host launches outside of graphs, one by one, while the device waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundLaunches {
    /// Behind a verification, up to the first pass of what drafts.
    pub accepted: u32,
    /// Behind that pass, up to the later ones.
    pub drafts: u32,
    /// The same for each of these.
    pub later_draft: u32,
    /// Up to the verification. The later passes run meanwhile.
    pub verification: u32,
}

impl RoundLaunches {
    /// None: graphs hold all, or the host works ahead.
    pub const NONE: Self = Self { accepted: 0, drafts: 0, later_draft: 0, verification: 0 };

    /// Host times of so many later passes: for which the device waits, and of what is launched while these run.
    pub(super) fn times(self, n_later: u32) -> [Tick; 2] {
        let of = |n: u32| Tick::from_seconds(Seconds::new(f64::from(n) * DECODE_LAUNCHES_S / LAUNCHES_OF_LAYER));
        [of(self.accepted + self.drafts + self.later_draft * n_later), of(self.verification)]
    }
}

impl Host {
    /// From durations: scheduling per iteration and per sequence, tokens to text per sequence.
    pub fn new(engine_loop: EngineLoop, per_step: Seconds, per_sequence: Seconds, detokenize: Seconds) -> Self {
        Self {
            engine_loop,
            per_step: Tick::from_seconds(per_step),
            per_sequence: Tick::from_seconds(per_sequence),
            detokenize: Tick::from_seconds(detokenize),
            waiting: Tick::ZERO,
            launches: Tick::ZERO,
            decode_launches: Tick::ZERO,
            copies: Tick::ZERO,
        }
    }

    /// The same with so much time for the launches of an iteration that is not captured as a graph: with chunks of prompts, and of one that only decodes.
    pub fn launching(self, [prompts, decode]: [Seconds; 2]) -> Self {
        Self { launches: Tick::from_seconds(prompts), decode_launches: Tick::from_seconds(decode), ..self }
    }

    /// The same where the device waits so long in every iteration.
    pub fn waited_for(self, waiting: Seconds) -> Self {
        Self { waiting: Tick::from_seconds(waiting), ..self }
    }

    /// The same where a pass through a stage takes at least so long, because it copies weights out of host memory meanwhile.
    pub fn copying(self, copies: Seconds) -> Self {
        Self { copies: Tick::from_seconds(copies), ..self }
    }

    /// Least ticks of an iteration's kernels that are launched one by one, those of chunks and those of tokens: the device waits where the host launches
    /// more slowly than it computes.
    pub fn launched(&self, chunks: bool, tokens: bool) -> Tick {
        let when = |is: bool, time: Tick| if is { time } else { Tick::ZERO };
        when(chunks, self.launches).max(when(tokens, self.decode_launches))
    }

    /// What is added to the device's time, and the least that an iteration takes: `n_batches` micro-batches of `n_sequences` each pass
    /// through the same processes one after another.
    pub fn added_and_least(&self, n_sequences: u64, n_batches: u64) -> (Tick, Tick) {
        let schedule = self.per_step + self.per_sequence * n_sequences;
        let detokenize = self.detokenize * n_sequences;
        let (added, least) = match self.engine_loop {
            EngineLoop::Serial => (schedule + detokenize, schedule + detokenize),
            EngineLoop::Asynchronous => (Tick::ZERO, schedule.max(detokenize)),
        };
        let added = added + self.waiting;
        (added, (least + self.waiting).max(self.copies + added) * n_batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that is ahead hides what it schedules, and nothing of what the device waits for.
    #[test]
    fn the_device_waits_however_far_the_host_is_ahead() {
        let ms = |ms: f64| Seconds::new(ms * 1e-3);
        let around = |engine_loop, waiting| {
            let host = Host::new(engine_loop, ms(2.0), ms(0.5), ms(0.25)).waited_for(ms(waiting));
            let (added, least) = host.added_and_least(4, 2);
            [added, least].map(|ticks| ticks.span().to_seconds())
        };
        assert_eq!(around(EngineLoop::Asynchronous, 0.0), [Seconds::ZERO, ms(8.0)]);
        assert_eq!(around(EngineLoop::Asynchronous, 1.0), [ms(1.0), ms(10.0)]);
        assert_eq!(around(EngineLoop::Serial, 0.0), [ms(5.0), ms(10.0)]);
        assert_eq!(around(EngineLoop::Serial, 1.0), [ms(6.0), ms(12.0)]);
    }
}
