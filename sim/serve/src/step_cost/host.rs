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
    /// Launches of an iteration that is not captured as a graph.
    launches: Tick,
}

impl Host {
    /// From durations: scheduling per iteration and per sequence, tokens to text per sequence.
    pub fn new(engine_loop: EngineLoop, per_step: Seconds, per_sequence: Seconds, detokenize: Seconds) -> Self {
        Self {
            engine_loop,
            per_step: Tick::from_seconds(per_step),
            per_sequence: Tick::from_seconds(per_sequence),
            detokenize: Tick::from_seconds(detokenize),
            launches: Tick::ZERO,
        }
    }

    /// The same with so much time for the launches of an iteration that is not captured as a graph.
    pub fn launching(self, time: Seconds) -> Self {
        Self { launches: Tick::from_seconds(time), ..self }
    }

    /// Ticks of an iteration's kernels beside chunks of prompts: the device waits where the host launches more slowly than it computes.
    pub fn launched(&self, device: Tick) -> Tick {
        device.max(self.launches)
    }

    /// What is added to the device's time, and the least that an iteration takes: `n_batches` micro-batches of `n_sequences` each pass
    /// through the same processes one after another.
    pub fn added_and_least(&self, n_sequences: u64, n_batches: u64) -> (Tick, Tick) {
        let schedule = self.per_step + self.per_sequence * n_sequences;
        let detokenize = self.detokenize * n_sequences;
        match self.engine_loop {
            EngineLoop::Serial => (schedule + detokenize, (schedule + detokenize) * n_batches),
            EngineLoop::Asynchronous => (Tick::ZERO, schedule.max(detokenize) * n_batches),
        }
    }
}
