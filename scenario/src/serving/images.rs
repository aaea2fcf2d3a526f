//! `images = { per_request = 1, width = 1024, height = 1024 }` of `[trace]` or a stream: images in prompts, and whether the model sees them.

use engine::model::{Image, SIDE_MAX, VisionEncoder, embedded, embedded_names};
use serve::request::{Placed, Request, Requests, TOKENS_MAX};
use serve::trace::ImageParts;

use super::{CostLaw, Serving};
use input::diagnostic::{Code, Finding};
use input::reader::{Reader, Section, small};

/// Images of a request at most.
const PER_REQUEST_MAX: u64 = 1000;
/// Images of all requests at most: a place in memory for each.
const IMAGES_MAX: u64 = 20_000_000;

/// Images of a stream's requests.
#[derive(Clone, Copy, Debug)]
pub struct Images {
    /// In every request; `None` where a trace says how many.
    per_request: Option<u32>,
    image: Image,
}

/// Reads `images`; `recorded` are those that a trace names.
pub fn read(section: &mut Section<'_>, encoder: Option<&VisionEncoder>, recorded: &[ImageParts]) -> Option<Images> {
    let at = section.place("images").flatten().or_else(|| section.at());
    let n_recorded = recorded.iter().filter(|parts| parts.n > 0).count();
    let Some(mut table) = section.table("images") else {
        if n_recorded > 0 {
            let what = format!("{n_recorded} requests of the trace have images, which are left out");
            let help =
                "`images = { width = 1024, height = 1024 }` gives them a size, and `[model]` one with an encoder";
            section.find(Finding::warning(Code::WrongImages, at, what).help(help));
        }
        return None;
    };
    let [width, height, tokens] = ["width", "height", "tokens"].map(|key| table.some_count(key, 1..=SIDE_MAX.into()));
    let per_request = if n_recorded > 0 && table.has("per_request") {
        let at = table.place("per_request").flatten();
        table.refuse(
            Code::ExclusiveKeys,
            at,
            "the trace says how many images a request has",
            "leave `per_request` out",
        );
        None
    } else if n_recorded > 0 {
        None
    } else {
        Some(table.small("per_request", Some(1), 1..=PER_REQUEST_MAX))
    };
    let asked = match (width, height, tokens) {
        (None, None, Some(tokens)) => Some((tokens, None)),
        (Some(width), Some(height), None) => Some((width, Some(height))),
        _ => {
            let what = "`images` has a `width` and a `height` in pixels, or `tokens`";
            table.refuse(Code::WrongImages, at.clone(), what, "for example `images = { width = 1024, height = 1024 }`");
            None
        }
    };
    table.finish();
    let Some(encoder) = encoder else {
        let seeing =
            embedded_names().into_iter().filter(|name| embedded(name).is_some_and(|model| model.vision.is_some()));
        let names = seeing.collect::<Vec<_>>().join(", ");
        let help = format!("name one of {names}, or a config.json with a `vision_config` that is known");
        section.refuse(Code::WrongImages, at, "images for a model without an encoder of images", help);
        return None;
    };
    let (first, second) = asked?;
    let image = second.map_or_else(|| encoder.image_of(first), |height| encoder.image(first, height));
    match image {
        Ok(image) => Some(Images { per_request, image }),
        Err(why) => {
            section.wrong(Code::WrongImages, at, format!("`images`: {why}"));
            None
        }
    }
}

impl Images {
    /// Tokens of so many, with the marks around them.
    fn tokens(&self, n: u32) -> u64 {
        u64::from(n) * u64::from(self.image.tokens + self.image.marks)
    }

    /// Tokens that every prompt has more; 0 where a trace says how many images it has.
    pub fn more(&self) -> u32 {
        small(self.tokens(self.per_request.unwrap_or(0)))
    }

    /// In words.
    pub fn words(&self) -> String {
        let n = self.per_request.map_or_else(|| "as many images as recorded".to_owned(), |n| format!("{n} images"));
        format!("{n} of {} tokens each", self.image.tokens)
    }

    /// Puts the images behind the text of every prompt. A prompt whose tokens were recorded has them already.
    pub fn lay(&self, section: &mut Section<'_>, requests: &mut Requests, recorded: &[ImageParts]) -> bool {
        let at = section.place("images").flatten().or_else(|| section.at());
        let of = |index: usize| match self.per_request {
            Some(n) => ImageParts { n, is_counted: false },
            None => recorded.get(index).copied().unwrap_or_default(),
        };
        let n_images: u64 = (0..requests.len()).map(|index| u64::from(of(index).n)).sum();
        if n_images > IMAGES_MAX {
            let what = format!("{n_images} images, allowed are {IMAGES_MAX}");
            section.refuse(Code::WrongImages, at, what, "lower `trace.requests` or `per_request`");
            return false;
        }
        let mut n_wrong = 0;
        let mut placed = Vec::new();
        for (index, request) in requests.list.iter_mut().enumerate() {
            n_wrong += u64::from(!self.place(request, of(index), &mut placed));
        }
        requests.images = placed;
        if n_wrong > 0 {
            let what = format!(
                "{n_wrong} prompts have fewer recorded tokens than images of {} tokens, or more than {TOKENS_MAX} in all",
                self.image.tokens
            );
            section.refuse(Code::WrongImages, at, what, "smaller images, or a size that fits what was recorded");
        }
        n_wrong == 0
    }

    /// Puts so many images into a prompt; false where they do not fit.
    fn place(&self, request: &mut Request, parts: ImageParts, placed: &mut Vec<Placed>) -> bool {
        let (own, prompt) = (self.tokens(parts.n), u64::from(request.prompt));
        let text = if parts.is_counted { prompt.checked_sub(own) } else { Some(prompt) };
        let Some(text) = text.filter(|text| *text > 0 && text + own <= TOKENS_MAX.into()) else { return false };
        request.prompt = small(text + own);
        (request.image_first, request.image_count) = (small(placed.len() as u64), parts.n);
        let before = |index: u32| small(text + self.tokens(index)) + self.image.marks / 2;
        placed.extend((0..parts.n).map(|index| Placed { at: before(index), image: self.image }));
        true
    }
}

/// The encoder that a stream's model has.
pub fn encoder_of(stream: Option<&str>, model: Option<&engine::Model>) -> Option<VisionEncoder> {
    let named = stream.and_then(embedded);
    named.as_ref().or(model).and_then(|model| model.vision.as_deref().cloned())
}

/// Whoever serves images has the encoder that made their tokens, and costs that know it.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    if let Some((_, at)) = reader.peek_in("engine", "encoder_tp")
        && serving.groups.iter().all(|group| group.model.vision.is_none() || group.tensor_degree == 1)
        && serving.choices.iter().all(|choice| choice.operation.tensor_degree.is_none_or(|tensor| tensor == 1))
    {
        let help = "it needs a model with an encoder of images and `tp` above 1";
        reader.find(Finding::warning(Code::NoEffect, at, "`engine.encoder_tp` changes nothing").help(help));
    }
    if serving.requests.images.is_empty() {
        return;
    }
    if !matches!(serving.law, CostLaw::Operations) {
        let what = "images beside a law of costs that knows no encoder";
        reader.refuse(Code::WrongImages, None, what, "leave `cost.law` and laws of stages out");
    }
    for stream in serving.streams.iter().filter(|stream| stream.has_images && stream.model.is_none()) {
        if let Some(group) = serving.groups.iter().find(|group| group.model.vision != serving.model.vision) {
            let what = format!(
                "images have the tokens of `{}`, and group `{}` serves `{}`",
                serving.model.name, group.name, group.model.name
            );
            let help = "write `model` in each `[[trace.stream]]`, or serve one model";
            let of_stream = if stream.name.is_empty() { String::new() } else { format!("stream `{}`: ", stream.name) };
            reader.refuse(Code::WrongImages, None, format!("{of_stream}{what}"), help);
            return;
        }
    }
}
