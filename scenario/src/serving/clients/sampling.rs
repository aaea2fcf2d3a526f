//! `sampling = { temperature = 0.6, top_k = 20, top_p = 0.95 }` of `[trace]` or a stream: what requests ask of the sampler, in the names of OpenAI's
//! API and of vLLM. What a number says is whether the engine has a step to do; how large it is changes no time. What requests leave open a model's own file may say
//! (`generation.rs`).

use serve::sampler::{Beside, Drawing, Filter, Logprobs, Penalties, Sampler, Sampling};

use super::super::{Serving, ServingChoice, ServingGroup};
use super::generation::Generation;
use input::diagnostic::Code;
use input::reader::{Reader, Section};

/// Penalties, the value of each that changes nothing, and its least and most: those that engines take (`SamplingParams._verify_args` of
/// vllm/sampling_params.py). A factor is above 0.
const PENALTIES: [(&str, f64, [f64; 2]); 3] = [
    ("repetition_penalty", 1.0, [LEAST, 100.0]),
    ("presence_penalty", 0.0, [-2.0, 2.0]),
    ("frequency_penalty", 0.0, [-2.0, 2.0]),
];
/// Least of what has to be above 0.
const LEAST: f64 = 1e-6;
/// Most of the likeliest tokens whose probabilities are told; vLLM tells of 20 where `--max-logprobs` says no other number.
const LOGPROBS_MAX: u64 = 1000;

/// What a request asks for, after what its model's file says where it says nothing.
struct Asked {
    temperature: f64,
    has_top_k: bool,
    has_top_p: bool,
    penalties: Penalties,
    beside: Beside,
}

/// Reads the table of a stream; keys that it leaves open are those of the model's file.
pub fn read(section: &mut Section<'_>, of_model: Option<&Generation>) -> (Sampling, Beside) {
    let usual = |key: &str, neutral: f64| of_model.and_then(|found| found.number(key)).unwrap_or(neutral);
    match section.table("sampling") {
        Some(table) => of_table(table, usual).asked(),
        None if of_model.is_none_or(|found| !found.draws()) => (Sampling::Greedy, Beside::default()),
        None => {
            let penalties = PENALTIES.map(|(key, neutral, _)| usual(key, neutral) != neutral);
            let (has_top_k, has_top_p) = (usual("top_k", 0.0) > 0.0, usual("top_p", 1.0) < 1.0);
            let temperature = usual("temperature", 1.0);
            let beside = Beside { min_p: usual("min_p", 0.0) > 0.0, logprobs: Logprobs::None };
            Asked { temperature, has_top_k, has_top_p, penalties: of_flags(penalties), beside }.asked()
        }
    }
}

/// Reads a table, whose keys have a value where they are left open.
fn of_table(mut section: Section<'_>, usual: impl Fn(&str, f64) -> f64) -> Asked {
    let temperature = section.number("temperature", usual("temperature", 1.0), 0.0..=100.0);
    if temperature == 0.0 {
        section.idle(&["top_k", "top_p", "min_p"], "a `temperature` above 0, which draws at all");
    }
    let top_k = section.some_count("top_k", 0..=100_000_000).map_or_else(|| usual("top_k", 0.0), f64::from);
    let has_top_p = section.number("top_p", usual("top_p", 1.0), LEAST..=1.0) < 1.0;
    let penalties = PENALTIES
        .map(|(key, neutral, [least, most])| section.number(key, usual(key, neutral), least..=most) != neutral);
    let min_p = section.number("min_p", usual("min_p", 0.0), 0.0..=1.0) > 0.0;
    let logprobs = match section.some_count("logprobs", 0..=LOGPROBS_MAX) {
        None => Logprobs::None,
        Some(0) => Logprobs::OfToken,
        Some(_) => Logprobs::OfLikeliest,
    };
    section.finish();
    let beside = Beside { min_p, logprobs };
    Asked { temperature, has_top_k: top_k > 0.0, has_top_p, penalties: of_flags(penalties), beside }
}

/// Penalties in the order of `PENALTIES`.
const fn of_flags([repetition, presence, frequency]: [bool; 3]) -> Penalties {
    Penalties { repetition, presence, frequency }
}

impl Asked {
    /// What is drawn, and what is asked for besides.
    fn asked(self) -> (Sampling, Beside) {
        (self.sampling(), self.beside)
    }

    fn sampling(&self) -> Sampling {
        let filter = match (self.has_top_k, self.has_top_p) {
            (false, false) => None,
            (true, false) => Some(Filter::TopK),
            (false, true) => Some(Filter::TopP),
            (true, true) => Some(Filter::Both),
        };
        match (self.temperature == 0.0, self.penalties) {
            (true, Penalties::NONE) => Sampling::Greedy,
            (true, penalties) => Sampling::Punished(penalties),
            (false, penalties) => Sampling::Random { filter, penalties },
        }
    }
}

impl Serving {
    /// What the model's own file says of the draw, where there is one.
    pub fn drawn_in_words(&self) -> Option<String> {
        self.streams.first()?.drawn_as.clone()
    }

    /// How tokens are drawn by an engine whose requests ask for these: it does to a batch what one of them asks for.
    fn drawing(&self, asked: impl Iterator<Item = (Sampling, Beside)>) -> Drawing {
        let sampler = self.engine.preset.map_or(Sampler::Uncounted, |preset| preset.sampler);
        let none = (Sampling::Greedy, Beside::default());
        let (sampling, beside) = asked.fold(none, |all, one| (all.0.with(one.0), all.1.with(one.1)));
        Drawing { sampler, sampling, beside }
    }

    /// The same by a group under a choice: other streams, and those that ask for another model, change nothing.
    pub fn drawing_of(&self, choice: &ServingChoice, group: &ServingGroup) -> Drawing {
        let served = self.streams.iter().filter(|stream| choice.takes(stream));
        let is_own = |model: &(String, _)| model.0 == group.model.name;
        let own = served.filter(|stream| stream.model.as_ref().is_none_or(is_own));
        self.drawing(own.map(|stream| stream.clients.sampling))
    }
}

/// Names an engine whose sampler is not known.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    let drawing = serving.drawing(serving.streams.iter().map(|stream| stream.clients.sampling));
    let asks = drawing.sampling != Sampling::Greedy || drawing.beside.logprobs != Logprobs::None;
    if drawing.beside.min_p && drawing.sampler != Sampler::Uncounted && !drawing.sampler.prices_min_p() {
        let what = "`min_p` takes no time: SGLang makes probabilities anew for it, by kernels that nobody timed";
        reader.warn(Code::NoEffect, None, what, "leave it out");
    }
    if asks && drawing.sampler == Sampler::Uncounted {
        let whose = serving.engine.preset.map_or("an engine without a name", |preset| preset.name);
        let what = format!("`sampling` changes nothing: the sampler of {whose} is not modelled");
        let help = "leave it out: tokens are the largest logits'; or name vLLM or SGLang";
        reader.warn(Code::NoEffect, None, what, help);
    }
    if drawing.sampling.penalties().repetition && drawing.sampler == (Sampler::Reserved { punishes_repetition: false })
    {
        let what =
            "`repetition_penalty` changes nothing: SGLang up to 0.5.9 takes it from requests, and no kernel reads it";
        reader.warn(Code::NoEffect, None, what, "leave it out, or name a later `engine.version`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use input::diagnostic::Finding;

    #[test]
    fn requests_stand_over_the_file_of_a_model_and_a_temperature_of_zero_draws_nothing() {
        let file = Generation::of_text(r#"{ "temperature": 0.6, "top_p": 0.95, "repetition_penalty": 1.05 }"#);
        let file = file.expect("JSON");
        let of = |lines: &str, of_model: Option<&Generation>| {
            let text = format!("[trace]\n{lines}\n");
            let mut findings: Vec<Finding> = Vec::new();
            let mut reader = Reader::new(toml_span::parse(&text).expect("TOML"), &mut findings);
            read(&mut reader.section("trace"), of_model).0
        };
        let drawn = |filter, penalties| Sampling::Random { filter, penalties };
        let repetition = Penalties { repetition: true, ..Penalties::NONE };
        let presence = Penalties { presence: true, ..Penalties::NONE };
        assert_eq!(of("", None), Sampling::Greedy);
        assert_eq!(of("", Some(&file)), drawn(Some(Filter::TopP), repetition));
        let asked = "sampling = { top_k = 20, repetition_penalty = 1.0 }";
        assert_eq!(of(asked, Some(&file)), drawn(Some(Filter::Both), Penalties::NONE));
        assert_eq!(of("sampling = { temperature = 0 }", Some(&file)), Sampling::Punished(repetition));
        assert_eq!(of("sampling = { temperature = 0, repetition_penalty = 1.0 }", Some(&file)), Sampling::Greedy);
        let punished = of("sampling = { temperature = 0, presence_penalty = 0.5 }", None);
        assert_eq!(punished, Sampling::Punished(presence));
        assert_eq!(of("sampling = { temperature = 0.8 }", None), drawn(None, Penalties::NONE));
    }

    #[test]
    fn probabilities_that_are_told_and_a_least_one_are_asked_for_beside_the_draw() {
        let of = |lines: &str| {
            let text = format!("[trace]\nsampling = {{ {lines} }}\n");
            let mut findings: Vec<Finding> = Vec::new();
            let mut reader = Reader::new(toml_span::parse(&text).expect("TOML"), &mut findings);
            let (_, beside) = read(&mut reader.section("trace"), None);
            (beside.min_p, beside.logprobs, findings.len())
        };
        assert_eq!(of("top_k = 20"), (false, Logprobs::None, 0));
        assert_eq!(of("min_p = 0.05, logprobs = 0"), (true, Logprobs::OfToken, 0));
        assert_eq!(of("temperature = 0, logprobs = 5"), (false, Logprobs::OfLikeliest, 0));
        // Nothing is drawn, so nothing is left out of it.
        assert_eq!(of("temperature = 0, min_p = 0.05").2, 1);
        assert_eq!([of("min_p = 1.5").2, of("logprobs = -1").2], [1, 1]);
        let file = Generation::of_text(r#"{ "min_p": 0.1 }"#).expect("JSON");
        let mut findings: Vec<Finding> = Vec::new();
        let mut reader = Reader::new(toml_span::parse("[trace]\n").expect("TOML"), &mut findings);
        assert!(read(&mut reader.section("trace"), Some(&file)).1.min_p);
    }

    #[test]
    fn penalties_lie_in_the_ranges_of_engines() {
        let codes = |key: &str, value: f64| {
            let text = format!("[trace]\nsampling = {{ {key} = {value:?} }}\n");
            let mut findings: Vec<Finding> = Vec::new();
            let mut reader = Reader::new(toml_span::parse(&text).expect("TOML"), &mut findings);
            read(&mut reader.section("trace"), None);
            findings.iter().map(|found| found.code).collect::<Vec<Code>>()
        };
        for (key, good, wrong) in [
            ("repetition_penalty", [0.5, 1.3], [0.0, -1.0]),
            ("presence_penalty", [-2.0, 2.0], [-2.1, 2.1]),
            ("frequency_penalty", [-2.0, 2.0], [-3.0, 3.0]),
            ("top_p", [0.01, 1.0], [0.0, 1.1]),
        ] {
            assert_eq!(good.map(|value| codes(key, value).len()), [0, 0], "{key}");
            assert_eq!(wrong.map(|value| codes(key, value)), [[Code::OutOfRange], [Code::OutOfRange]], "{key}");
        }
    }
}
