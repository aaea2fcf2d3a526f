//! What clients of a replica see at a held number of requests in flight, as a published benchmark would measure it: the request loop, corrected by what
//! it left over of published runs.
//!
//! A model that was run in a format on a card is played as its newest runs were started. Any other is played with the engine's defaults. It is corrected
//! by what all models of the engine have in common, and its interval is that of models which were left out. Units: seconds, tokens, GPUs.

use std::collections::BTreeMap;

use engine::Model;
use engine::formats::Formats;
use hw::{Format, Gpu};
use serve::engine_preset::Version;

use crate::learned::{Kind, Learned};
use crate::play::{Costs, Latency, predict};
use crate::reason::Reason;
use crate::setup;

/// Factor by which the interval widens on each side where a setting lies outside of those that were run.
const OUTSIDE_WIDENING: f64 = 1.3;

/// What is served, where, and how much of it at once.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// Engine.
    pub engine: &'a str,
    /// Architecture.
    pub model: &'a Model,
    /// Card.
    pub gpu: &'a Gpu,
    /// Number formats, where the model was not run in such a format.
    pub formats: Formats,
    /// GPUs of the replica, all of one node.
    pub gpus: u32,
    /// Groups that each hold attention whole and their own sequences; 1 is plain tensor parallelism.
    pub attention_groups: u32,
    /// Tokens of prompt and answer.
    pub lengths: [u32; 2],
    /// Requests in flight, held.
    pub in_flight: u32,
}

/// What clients see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Mean time to first token.
    pub ttft: Latency,
    /// Mean time per output token.
    pub tpot: Latency,
    /// Requests of full length that memory holds.
    pub sequences_held: u32,
    /// What lies outside of the runs, if anything.
    pub outside: Option<&'static str>,
}

/// Figures by key, and intervals by key.
pub type Figures = (BTreeMap<String, f64>, BTreeMap<String, [f64; 2]>);

impl Steady {
    /// What holds, in words.
    pub fn why(&self, asked: &Asked<'_>) -> String {
        let outside = self.outside.map_or_else(String::new, |what| format!("; {what} outside of the published runs"));
        format!("{} in flight of {} that memory holds{outside}", asked.in_flight, self.sequences_held)
    }

    /// Figures of so many replicas, each at this setting, and the intervals of those that have one, by their contract keys.
    pub fn figures(&self, asked: &Asked<'_>, n_replicas: u32) -> Figures {
        let (output, in_flight) = (f64::from(asked.lengths[1]), f64::from(asked.in_flight));
        let e2e_s = self.ttft.mean + (output - 1.0) * self.tpot.mean;
        let requests_per_s = f64::from(n_replicas) * in_flight / e2e_s;
        let figures = [
            ("ttft_s.mean", self.ttft.mean),
            ("tpot_s.mean", self.tpot.mean),
            ("e2e_s.mean", e2e_s),
            ("requests_per_s", requests_per_s),
            ("output_tokens_per_s", requests_per_s * output),
            ("output_tokens_per_s_per_gpu", requests_per_s * output / f64::from(n_replicas * asked.gpus)),
            ("output_tokens_per_s_per_user", 1.0 / self.tpot.mean),
            ("sequences_held", f64::from(self.sequences_held)),
        ];
        let [fast, slow] = self.tpot.interval;
        let intervals = [
            ("ttft_s.mean", self.ttft.interval),
            ("tpot_s.mean", self.tpot.interval),
            ("output_tokens_per_s_per_user", [1.0 / slow, 1.0 / fast]),
        ];
        (
            figures.map(|(key, value)| (key.to_owned(), value)).into(),
            intervals.map(|(key, ends)| (key.to_owned(), ends)).into(),
        )
    }
}

impl Asked<'_> {
    /// Tokens of prompt and answer, requests in flight and GPUs.
    const fn sizes(&self) -> [u32; 4] {
        let [prompt, output] = self.lengths;
        [prompt, output, self.in_flight, self.gpus]
    }

    /// What nobody has run: the engine's newest version, loaded as InferenceX would.
    fn unseen(&self) -> Kind {
        Kind {
            engine: self.engine.to_owned(),
            version: String::new(),
            model: self.model.name.clone(),
            card: self.gpu.name.clone(),
            format: word(self.formats).unwrap_or_default().to_owned(),
            products: [String::new(), String::new()],
            client: "inferencex".to_owned(),
            date: String::new(),
            settings: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// That so few of its requests find room.
    fn without_room(&self, held: u32) -> String {
        let ([prompt, output], Self { gpus, gpu, in_flight, .. }) = (self.lengths, self);
        format!(
            "{in_flight} requests of {prompt} + {output} tokens are in flight, and memory of {gpus} `{}` holds {held}; more GPUs or fewer requests would \
             fit, and published runs tell no such wait",
            gpu.name
        )
    }

    /// What of it lies outside of the settings of a kind.
    fn outside(&self, kind: &Kind) -> Option<&'static str> {
        let asked = self.sizes();
        let names = ["prompt tokens", "output tokens", "concurrency", "GPUs"];
        let is_beyond = |side: usize| {
            let seen = || kind.settings.iter().map(|setting| setting[side]);
            seen().all(|seen| seen < asked[side]) || seen().all(|seen| seen > asked[side])
        };
        (0..asked.len()).find(|side| is_beyond(*side)).map(|side| names[side])
    }
}

/// Format of published runs that stands for those of a replica; `None` where none does.
pub fn word(formats: Formats) -> Option<&'static str> {
    match formats.experts {
        Format::Bf16 | Format::Fp16 => Some("bf16"),
        Format::Fp8 | Format::Fp8Block | Format::Mxfp8 => Some("fp8"),
        Format::Mxfp4 | Format::Nvfp4 => Some("fp4"),
        Format::Int4 | Format::Int4By32 => Some("int4"),
        _ => None,
    }
}

impl Learned {
    /// The newest runs of a model in its format on its card, those first that have such settings.
    fn kind(&self, asked: &Asked<'_>) -> Option<&Kind> {
        let word = word(asked.formats)?;
        let is_its = |kind: &&Kind| {
            let is_named = kind.engine == asked.engine && kind.card == asked.gpu.name && kind.format == word;
            is_named && engine::model::of_checkpoint(&kind.model).is_some_and(|model| model.has_layers_of(asked.model))
        };
        self.kind.iter().filter(is_its).max_by_key(|kind| {
            let is_inside = asked.outside(kind).is_none();
            (is_inside, Version::parse(&kind.version), kind.date.clone())
        })
    }

    /// What clients see.
    ///
    /// # Errors
    /// Why nothing can be played.
    pub fn steady(&self, asked: &Asked<'_>, costs: &Costs<'_>) -> Result<Steady, Reason> {
        let known = self.engine.iter().find(|engine| engine.name == asked.engine).ok_or(Reason::Engine)?;
        let kind = self.kind(asked);
        let run = kind.unwrap_or(&asked.unseen()).run(asked.sizes(), asked.attention_groups);
        let setup = setup::of_model(&run, asked.model.clone(), kind.is_none().then_some(asked.formats))?;
        let held = setup.sequences_held();
        if held < asked.in_flight {
            return Err(Reason::Memory { what: asked.without_room(held) });
        }
        let played = predict(&setup, asked.engine, costs);
        let factors = self.factors(&run);
        let outside = kind.map_or(Some("this model in this format on this card"), |kind| asked.outside(kind));
        let widening = if kind.is_some() && outside.is_some() { OUTSIDE_WIDENING } else { 1.0 };
        let spreads = if kind.is_some() { known.settings } else { known.models };
        let latency = |side: usize, played: Latency| {
            let mean = played.mean * factors[side];
            let interval = [mean * spreads[side].low / widening, mean * spreads[side].high * widening];
            Latency { mean, interval }
        };
        let (ttft, tpot) = (latency(0, played.ttft), latency(1, played.tpot));
        Ok(Steady { ttft, tpot, sequences_held: held, outside })
    }
}
