//! The least that GPUs draw for given requests: what holds the model, and what the work adds.
//!
//! A card draws a part of its limit all the time, and more in proportion to how busy its memory and its products are (`hw::power`). Figures of energy take the work of
//! the average iteration as often as there are iterations (`metrics/energy.rs`). How many there are is not known beforehand. Fewer of them read weights less often, and
//! no batch is larger than its limits. More of them have fewer tokens each. With `n` iterations over `D` decoded tokens and `P` tokens of prompts the work is `n · f(D/n, P/n)`, where `f` never falls
//! as an iteration has more tokens. So `n · f` is at least `a · f(D/b, P/b)` for every `n` from `a` to `b`, and the least over a grid of `n` holds for all.
//! Nothing is assumed about how experts are visited. Left out, so that the bound holds: prompts that are computed twice, adapters, images.
//! Units: seconds of one GPU of every replica, together; joules over the limit of the card in watts.

use hw::Power;

use super::Load;
use crate::speculation::Speculation;
use crate::step_cost::ReplicaConfig;
use crate::step_cost::average::Average;
use engine::cost::busy::Part;

/// Ratio of neighbouring numbers of iterations.
const RATIO: f64 = 1.0 + 1.0 / 16.0;

/// What requests are together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    /// Iterations of decoding sequences, over all of them.
    pub passes: f64,
    /// Tokens of prompts that are computed.
    pub prompt_tokens: f64,
    /// How tokens are drafted, where they are.
    pub speculation: Option<Speculation>,
    /// Fewest iterations within the largest limits.
    pub steps_min: f64,
}

/// Work by the number of iterations.
#[derive(Debug)]
pub(super) struct Work {
    /// Numbers of iterations, ascending, with the work of an iteration where there are so many: seconds at the limit of the card.
    of_steps: Vec<(f64, f64)>,
}

impl Work {
    /// Of requests on a replica of a card that draws so much.
    pub fn of(config: &ReplicaConfig<'_>, power: &Power, load: &Load<'_>, totals: Totals) -> Self {
        let more = |output: u32| f64::from(output - 1);
        let list = &load.requests.list;
        let decoded: f64 = list.iter().map(|request| more(request.output)).sum();
        // As in the average of a run: half of an answer lies before each of its tokens.
        let keys = |prompt: u32, output: u32| more(output) * (f64::from(prompt) + more(output) / 2.0);
        let keys: f64 = list.iter().map(|request| keys(request.prompt, request.output)).sum();
        let whole = list.iter().map(|request| f64::from(request.prompt)).sum::<f64>() / load.n();
        let average = |steps: f64| Average {
            decode: totals.passes / steps,
            keys: if decoded > 0.0 { keys / decoded } else { 0.0 },
            prompt: totals.prompt_tokens / steps,
            prompt_whole: whole,
            adapted: 0.0,
            adapters: 0.0,
            speculation: totals.speculation,
        };
        let of_step = |steps: f64| {
            let [memory, products] = [Part::Memory, Part::Products].map(|part| average(steps).busy(config, part).get());
            (steps, power.draw.memory * memory + power.draw.products * products)
        };
        // Beyond this an iteration has a token in each lane, and no less.
        let most = totals.passes.max(totals.prompt_tokens).max(1.0);
        let mut steps = totals.steps_min.clamp(1.0, most);
        let mut of_steps = vec![of_step(steps)];
        while steps < most {
            steps *= RATIO;
            of_steps.push(of_step(steps));
        }
        Self { of_steps }
    }

    /// The least work of at least so many iterations.
    pub fn least(&self, steps_min: f64) -> f64 {
        let mut from = 0.0_f64;
        let mut least = f64::INFINITY;
        for &(steps, work) in &self.of_steps {
            if steps >= steps_min {
                least = least.min(from.max(steps_min) * work);
            }
            from = steps;
        }
        // As many iterations as there are tokens, and more, have this each.
        let last = self.of_steps.last().map_or(0.0, |(steps, work)| steps.max(steps_min) * work);
        least.min(last)
    }
}
