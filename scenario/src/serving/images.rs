//! `images = { per_request = 1, width = 1024, height = 1024 }` of `[trace]` or a stream: images in prompts, and whether the model sees them.

use engine::encoder::Split;
use engine::model::{SIDE_MAX, VisionEncoder, embedded, embedded_names};
use serve::images::Images;
use serve::request::Requests;
use serve::trace::ImageParts;

use super::{CostLaw, Serving, ServingGroup};
use input::diagnostic::Code;
use input::reader::{Reader, Section};

/// Images of a request at most.
const PER_REQUEST_MAX: u64 = 1000;

/// Reads `images`; `recorded` are those that a trace names.
pub fn read(section: &mut Section<'_>, encoder: Option<&VisionEncoder>, recorded: &[ImageParts]) -> Option<Images> {
    let at = section.place("images").flatten().or_else(|| section.at());
    let n_recorded = recorded.iter().filter(|parts| parts.n > 0).count();
    let Some(mut table) = section.table("images") else {
        if n_recorded > 0 {
            let what = format!("{n_recorded} requests of the trace have images, which are left out");
            let help =
                "`images = { width = 1024, height = 1024 }` gives them a size, and `[model]` one with an encoder";
            section.warn(Code::WrongImages, at, what, help);
        }
        return None;
    };
    let is_given = ["width", "height", "tokens"].map(|key| table.has(key));
    let [width, height, tokens] = ["width", "height", "tokens"].map(|key| table.some_count(key, 1..=SIDE_MAX.into()));
    if n_recorded > 0 && table.has("per_request") {
        let at = table.place("per_request").flatten();
        table.refuse(
            Code::ExclusiveKeys,
            at,
            "the trace says how many images a request has",
            "leave `per_request` out",
        );
    }
    let per_request = (n_recorded == 0).then(|| table.small("per_request", Some(1), 1..=PER_REQUEST_MAX));
    if !matches!(is_given, [true, true, false] | [false, false, true]) {
        let what = "`images` has a `width` and a `height` in pixels, or `tokens`";
        table.refuse(Code::WrongImages, at.clone(), what, "for example `images = { width = 1024, height = 1024 }`");
    }
    table.finish();
    let Some(encoder) = encoder else {
        let seeing =
            embedded_names().into_iter().filter(|name| embedded(name).is_some_and(|model| model.vision.is_some()));
        let names = seeing.collect::<Vec<_>>().join(", ");
        let help = format!("name one of {names}, or a config.json with a `vision_config` that is known");
        section.refuse(Code::WrongImages, at, "images for a model without an encoder of images", help);
        return None;
    };
    let image = match (width, height, tokens) {
        (Some(width), Some(height), None) => encoder.image(width, height),
        (None, None, Some(tokens)) => encoder.image_of(tokens),
        _ => return None,
    };
    match image {
        Ok(image) => Some(Images { per_request, image }),
        Err(why) => {
            section.wrong(Code::WrongImages, at, format!("`images`: {why}"));
            None
        }
    }
}

/// What is laid, in words.
pub fn words(images: &Images) -> String {
    let n = images.per_request.map_or_else(|| "as many images as recorded".to_owned(), |n| format!("{n} images"));
    format!("{n} of {} tokens each", images.image.tokens)
}

/// Puts the images into the prompts; false where that is wrong.
pub fn lay(section: &mut Section<'_>, images: &Images, requests: &mut Requests, recorded: &[ImageParts]) -> bool {
    let Err(why) = images.lay(requests, recorded) else { return true };
    let at = section.place("images").flatten().or_else(|| section.at());
    section.refuse(
        Code::WrongImages,
        at,
        why.to_string(),
        "fewer or smaller images, or a size that fits what was recorded",
    );
    false
}

/// The encoder that a stream's model has.
pub fn encoder_of(stream: Option<&str>, model: Option<&engine::Model>) -> Option<VisionEncoder> {
    let named = stream.and_then(embedded);
    named.as_ref().or(model).and_then(|model| model.vision.as_deref().cloned())
}

/// Whoever serves images has the encoder that made their tokens, and costs that know it.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    let is_left_out = serving.engine.encoder_split == Split::Nothing;
    let is_split = |group: &ServingGroup| group.model.vision.is_some() && (is_left_out || group.tensor_degree > 1);
    let has_degrees = serving.choices.iter().any(|choice| choice.operation.tensor_degree.is_some());
    if let Some(at) = &serving.engine.encoder_at
        && !has_degrees
        && !serving.groups.iter().any(is_split)
    {
        let help = "it needs a model with an encoder of images and, but for \"none\", `tp` above 1";
        reader.warn(Code::NoEffect, at.clone(), "`engine.encoder_tp` changes nothing", help);
    }
    if serving.requests.images.is_empty() {
        return;
    }
    if is_left_out {
        let (at, what) = (serving.engine.encoder_at.clone().flatten(), "images for an engine that loads no encoder");
        return reader.refuse(Code::WrongImages, at, what, "leave `encoder_tp = \"none\"` out");
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
