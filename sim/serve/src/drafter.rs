//! Who drafts tokens for a model: the text, a model of its own, a layer of the served model, or a head that was trained for it.
//!
//! A reader of scenarios names it; engines of fleets and of rented replicas have it alike. Units: tokens.

use std::sync::Arc;

use engine::Model;
use engine::model::DraftHead;
use hw::Seconds;

use crate::speculation::{DraftKind, Speculation};

/// Word of `draft_model` for the served model's own prediction.
pub const OWN: &str = "mtp";

/// How tokens are drafted.
#[derive(Clone, Debug, PartialEq)]
pub struct Drafts {
    /// Drafts, their acceptance and their cost.
    pub speculation: Speculation,
    /// Who drafts.
    pub by: Drafter,
}

/// Who drafts tokens.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there is one per way of serving")]
pub enum Drafter {
    /// Nobody in particular: look-up, or heads whose time is given.
    LookUp,
    /// A model of its own.
    Model(Model),
    /// The served model's own layer that predicts tokens further on.
    Own,
    /// A head that was trained for the served model.
    Head(DraftHead),
}

/// What drafts for a model and is no model of its own. Groups are copied for every fleet that a search tries, so copies share it.
#[derive(Debug)]
pub struct OwnDrafters {
    /// The model's own layer that predicts tokens further on, where it has one.
    pub predicting: Option<Model>,
    /// Heads that draft for it, by kind.
    heads: [Model; DraftHead::ALL.len()],
}

impl OwnDrafters {
    /// Those of a model.
    pub fn of(model: &Model) -> Arc<Self> {
        Arc::new(Self { predicting: model.predicting(), heads: DraftHead::ALL.map(|head| model.draft_head(head)) })
    }
}

impl Drafter {
    /// The model that drafts for one that has such drafters of its own, and what it is to it.
    pub fn drafting<'m>(&'m self, drafters: &'m OwnDrafters) -> Option<(&'m Model, DraftKind)> {
        match self {
            Self::LookUp => None,
            Self::Model(model) => Some((model, DraftKind::Model)),
            Self::Own => drafters.predicting.as_ref().map(|model| (model, DraftKind::Own)),
            Self::Head(head) => Some((&drafters.heads[*head as usize], DraftKind::Head(*head))),
        }
    }

    /// The drafter of a word of `draft_model` that is no model's name.
    pub fn of_word(word: &str) -> Option<Self> {
        let head = DraftHead::ALL.into_iter().find(|head| head.name() == word).map(Self::Head);
        head.or_else(|| (word == OWN).then_some(Self::Own))
    }
}

impl Drafts {
    /// Whether a model or a head drafts tokens one behind the other.
    pub fn is_chain(&self) -> bool {
        self.speculation.tree.is_none() && self.by != Drafter::LookUp
    }

    /// What is wrong with it on tensor groups of a model, and what to do.
    pub fn misfits(&self, model: &Model, drafters: &OwnDrafters, tensor_degree: u32) -> Vec<(String, &'static str)> {
        let mut found = Vec::new();
        if let Some((draft, _)) = self.by.drafting(drafters)
            && !draft.n_heads.is_multiple_of(u64::from(tensor_degree))
        {
            let what = format!("`tp` = {tensor_degree} does not divide the {} heads of the draft model", draft.n_heads);
            found.push((what, "the draft model runs on the same GPUs"));
        }
        if let Drafter::Model(draft) = &self.by
            && !model.shares_vocabulary(draft)
        {
            let [own, other] = [draft.vocab, model.vocab];
            let what = format!("the draft model `{}` has {own} tokens, and `{}` has {other}", draft.name, model.name);
            found.push((what, "a draft model of the same family: engines compare tokens one by one"));
        }
        if self.by == Drafter::Own && drafters.predicting.is_none() {
            let what = format!(
                "`draft_model = \"{OWN}\"`, and no layer of `{}` is known that predicts tokens further on",
                model.name
            );
            found.push((
                what,
                "a model whose config.json has `num_nextn_predict_layers`, or a `draft_model` of its own",
            ));
        }
        found
    }

    /// What was assumed and not measured, as sentences.
    pub fn free_parameters(&self, name: &str) -> Vec<String> {
        // A probability that follows from a length has more digits than anybody wrote.
        let acceptance = (self.speculation.acceptance * 1e4).round() / 1e4;
        let mut found = vec![format!("`{name}.speculation.acceptance` = {acceptance}: assumed, not measured")];
        if self.by == Drafter::LookUp && self.speculation.per_draft == Seconds::ZERO {
            found.push(format!(
                "`{name}.speculation` drafts for free: neither `draft_model` nor `draft_us_per_token` says what drafts cost"
            ));
        }
        found
    }
}
