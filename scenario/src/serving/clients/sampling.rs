//! `sampling = { temperature = 0.6, top_k = 20, top_p = 0.95 }` of `[trace]` or a stream: what requests ask of the sampler, in the names of OpenAI's
//! API and of vLLM. What a number says is whether the engine has a step to do; how large it is changes no time.

use serve::sampler::{Drawing, Filter, Sampler, Sampling};

use super::super::Serving;
use input::diagnostic::Code;
use input::reader::{Reader, Section};

/// Reads the table.
pub fn read(mut section: Section<'_>) -> Sampling {
    let temperature = section.number("temperature", 1.0, 0.0..=100.0);
    if temperature == 0.0 {
        section.idle(&["top_k", "top_p"], "a `temperature` above 0, which draws at all");
    }
    let has_top_k = section.some_count("top_k", 0..=100_000_000).is_some_and(|k| k > 0);
    let has_top_p = section.number("top_p", 1.0, 0.0..=1.0) < 1.0;
    let has_penalties = [("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)]
        .map(|(key, neutral)| section.number(key, neutral, -100.0..=100.0) != neutral)
        .contains(&true);
    section.finish();
    let filter = match (has_top_k, has_top_p) {
        (false, false) => None,
        (true, false) => Some(Filter::TopK),
        (false, true) => Some(Filter::TopP),
        (true, true) => Some(Filter::Both),
    };
    match (temperature == 0.0, has_penalties) {
        (true, false) => Sampling::Greedy,
        (true, true) => Sampling::Random { filter: None, has_penalties },
        (false, _) => Sampling::Random { filter, has_penalties },
    }
}

impl Serving {
    /// How tokens are drawn: an engine does to a batch what one of its requests asks for.
    pub fn drawing(&self) -> Drawing {
        let asked = self.streams.iter().map(|stream| stream.clients.sampling);
        let sampler = self.engine.preset.map_or(Sampler::Uncounted, |preset| preset.sampler);
        Drawing { sampler, sampling: asked.fold(Sampling::Greedy, Sampling::with) }
    }
}

/// Names an engine whose sampler is not known.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    let drawing = serving.drawing();
    if drawing.sampling != Sampling::Greedy && drawing.sampler == Sampler::Uncounted {
        let whose = serving.engine.preset.map_or("an engine without a name", |preset| preset.name);
        let what = format!("`sampling` changes nothing: the sampler of {whose} is not modelled");
        let help = "leave it out: tokens are the largest logits'; or name vLLM or SGLang";
        reader.warn(Code::NoEffect, None, what, help);
    }
}
