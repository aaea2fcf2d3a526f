//! Images in the prompts of requests: where their tokens stand, and how many there are.
//!
//! Images stand behind the text, each between its marks (`random-mm` of vLLM's benchmark puts them so). Units: tokens.

use engine::model::Image;

use crate::request::{Placed, Request, Requests, TOKENS_MAX};
use crate::trace::ImageParts;

/// Images of all requests at most: a place in memory for each.
pub const IMAGES_MAX: u64 = 20_000_000;

/// Images of a stream's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images {
    /// In every request; `None` where a trace says how many.
    pub per_request: Option<u32>,
    /// What they are to the encoder.
    pub image: Image,
}

/// Why images cannot be laid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NotLaid {
    /// More than are kept.
    #[error("{n} images, allowed are {IMAGES_MAX}")]
    Many { n: u64 },
    /// Prompts that have fewer tokens than their images, or too many with them.
    #[error(
        "{n} prompts have fewer recorded tokens than their images of {tokens} tokens, or more than {TOKENS_MAX} in all"
    )]
    Prompts { n: u64, tokens: u32 },
}

impl Images {
    /// Tokens of so many, with the marks around them.
    fn tokens(&self, n: u32) -> u64 {
        u64::from(n) * u64::from(self.image.tokens + self.image.marks)
    }

    /// Tokens that every prompt has more; 0 where a trace says how many images it has.
    pub fn more(&self) -> u32 {
        u32::try_from(self.tokens(self.per_request.unwrap_or(0))).unwrap_or(u32::MAX)
    }

    /// Puts the images behind the text of every prompt. A prompt whose tokens were recorded has them already.
    ///
    /// # Errors
    /// Where there are too many, or prompts have no room for them.
    pub fn lay(&self, requests: &mut Requests, recorded: &[ImageParts]) -> Result<(), NotLaid> {
        let of = |index: usize| match self.per_request {
            Some(n) => ImageParts { n, is_counted: false },
            None => recorded.get(index).copied().unwrap_or_default(),
        };
        let n: u64 = (0..requests.len()).map(|index| u64::from(of(index).n)).sum();
        if n > IMAGES_MAX {
            return Err(NotLaid::Many { n });
        }
        let mut n_wrong = 0;
        let mut placed = Vec::new();
        for (index, request) in requests.list.iter_mut().enumerate() {
            n_wrong += u64::from(!self.place(request, of(index), &mut placed));
        }
        requests.images = placed;
        if n_wrong == 0 { Ok(()) } else { Err(NotLaid::Prompts { n: n_wrong, tokens: self.image.tokens }) }
    }

    /// Puts so many images into a prompt; false where they do not fit.
    fn place(&self, request: &mut Request, parts: ImageParts, placed: &mut Vec<Placed>) -> bool {
        let (own, prompt) = (self.tokens(parts.n), u64::from(request.prompt));
        let text = if parts.is_counted { prompt.checked_sub(own) } else { Some(prompt) };
        let Some(text) = text.filter(|text| *text > 0 && text + own <= TOKENS_MAX.into()) else { return false };
        let small = |n: u64| u32::try_from(n).expect("at most the most tokens");
        request.prompt = small(text + own);
        (request.image_first, request.image_count) = (small(placed.len() as u64), parts.n);
        let before = |index: u32| small(text + self.tokens(index)) + self.image.marks / 2;
        placed.extend((0..parts.n).map(|index| Placed { at: before(index), image: self.image }));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hw::Time;

    const IMAGE: Image = Image { tokens: 100, marks: 2, patches: 400, tiles: 1 };

    fn prompts(tokens: &[u32]) -> Requests {
        Requests::of(tokens.iter().map(|tokens| Request::new(Time::ZERO, *tokens, 1)).collect())
    }

    #[test]
    fn images_come_on_top_of_text_and_stand_behind_it() {
        let mut requests = prompts(&[10, 20]);
        let images = Images { per_request: Some(2), image: IMAGE };
        images.lay(&mut requests, &[]).expect("room");
        assert_eq!((requests.list[0].prompt, requests.list[1].prompt, images.more()), (214, 224, 204));
        let at =
            |index: usize| requests.images_of(&requests.list[index]).iter().map(|placed| placed.at).collect::<Vec<_>>();
        assert_eq!((at(0), at(1)), (vec![11, 113], vec![21, 123]));
    }

    #[test]
    fn recorded_tokens_hold_recorded_images() {
        let parts = |n, is_counted| ImageParts { n, is_counted };
        let images = Images { per_request: None, image: IMAGE };
        let mut requests = prompts(&[300, 20, 30]);
        images.lay(&mut requests, &[parts(2, true), parts(1, false)]).expect("room");
        assert_eq!(requests.list.iter().map(|request| request.prompt).collect::<Vec<_>>(), [300, 122, 30]);
        assert_eq!(requests.images[0].at, 300 - 204 + 1);
        let wrong = images.lay(&mut prompts(&[204]), &[parts(2, true)]);
        assert_eq!(wrong, Err(NotLaid::Prompts { n: 1, tokens: 100 }));
        let many = Images { per_request: Some(1000), image: IMAGE }.lay(&mut prompts(&[1; 20_001]), &[]);
        assert_eq!(many, Err(NotLaid::Many { n: 20_001_000 }));
    }
}
