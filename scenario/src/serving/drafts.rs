//! `speculation`: how tokens are drafted, and who drafts them.

use std::sync::Arc;

use engine::Model;
use engine::model::DraftHead;
use hw::Seconds;
use serve::speculation::{DRAFTS_MAX, DraftKind, Speculation, TREE_MAX, Tree, acceptance_of};

use super::ServingGroup;
use input::diagnostic::Code;
use input::reader::Section;

/// Word of `draft_model` for the served model's own prediction.
pub(super) const OWN: &str = "mtp";

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
    /// The model that drafts on a group, and what it is to the one that is served.
    pub(super) fn drafting<'m>(&'m self, group: &'m ServingGroup) -> Option<(&'m Model, DraftKind)> {
        match self {
            Self::LookUp => None,
            Self::Model(model) => Some((model, DraftKind::Model)),
            Self::Own => group.drafters.predicting.as_ref().map(|model| (model, DraftKind::Own)),
            Self::Head(head) => Some((&group.drafters.heads[*head as usize], DraftKind::Head(*head))),
        }
    }

    /// The drafter of a word of `draft_model` that is no model's name.
    fn of_word(word: &str) -> Option<Self> {
        let head = DraftHead::ALL.into_iter().find(|head| head.name() == word).map(Self::Head);
        head.or_else(|| (word == OWN).then_some(Self::Own))
    }
}

impl Drafts {
    /// Whether a model or a head drafts tokens one behind the other.
    pub(super) fn is_chain(&self) -> bool {
        self.speculation.tree.is_none() && self.by != Drafter::LookUp
    }

    /// What was assumed and not measured, as sentences.
    pub(super) fn free_parameters(&self, name: &str) -> Vec<String> {
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

/// Who drafts: another model, a head of the served one, its own prediction, or the text itself.
fn drafter(section: &mut Section<'_>) -> Drafter {
    let words = || DraftHead::ALL.map(DraftHead::name).into_iter().chain([OWN]);
    section.offers("draft_model", || crate::model::names().into_iter().chain(words()));
    let Some((name, at)) = section.text("draft_model") else { return Drafter::LookUp };
    if let Some(drafter) = Drafter::of_word(&name) {
        return drafter;
    }
    match crate::model::of_name(&name, at) {
        Ok(model) => Drafter::Model(model),
        Err(finding) => {
            section.find(finding);
            Drafter::LookUp
        }
    }
}

/// Probability that a draft is accepted: as it is given, or as the mean length of what is accepted says.
fn acceptance(section: &mut Section<'_>, n_drafts: u32) -> f64 {
    section.alternatives(&["acceptance", "acceptance_length"]);
    let at = section.place("acceptance_length");
    let both = at.clone().filter(|_| section.place("acceptance").is_some());
    let probability = section.some_number("acceptance", 0.0..=1.0);
    let length = section.some_number("acceptance_length", 1.0..=f64::from(1 + DRAFTS_MAX));
    if let Some(at) = both {
        section.wrong(Code::ExclusiveKeys, at, "`acceptance` and `acceptance_length` exclude each other");
    }
    if probability.is_none() && length.is_none() && n_drafts > 0 {
        let help = "probability that a draft is accepted, 0 to 1: it depends on the models and the text. \
                    `acceptance_length` may stand for it: the tokens that a verification gives";
        section.missing("acceptance", help);
    }
    let longest = f64::from(1 + n_drafts);
    if let Some(length) = length.filter(|length| *length > longest && n_drafts > 0) {
        let what = format!("`acceptance_length` = {length} is more than {n_drafts} drafts and one more token give");
        section.refuse(Code::OutOfRange, at.flatten(), what, format!("at most {longest}, or more `draft_tokens`"));
    }
    length.map_or(probability.unwrap_or(0.0), |length| acceptance_of(length.min(longest), n_drafts))
}

/// Branches of a tree of drafts, and how much of it is verified; `None` for one draft behind the other, all of them verified.
fn tree(section: &mut Section<'_>, n_drafts: u32) -> Option<Tree> {
    let at = section.place("verified_tokens");
    let branches = section.small("draft_branches", Some(1), 1..=u64::from(TREE_MAX));
    let verified = section.some_count("verified_tokens", 2..=u64::from(TREE_MAX)).unwrap_or(n_drafts + 1);
    let most = Tree::drafted(n_drafts, branches);
    if verified > most {
        let what = format!("`verified_tokens` = {verified} is more than the {most} of {n_drafts} drafts");
        let help = format!("at most {most}, or more `draft_tokens` or `draft_branches`");
        section.refuse(Code::OutOfRange, at.flatten(), what, help);
    }
    let is_chain = branches == 1 && verified == n_drafts + 1;
    (!is_chain).then_some(Tree { branches, verified })
}

/// Reads `speculation = { draft_tokens = 4, acceptance = 0.7, draft_model = "llama-3.2-1b" }`; none with `draft_tokens = 0`.
pub(super) fn drafts(mut section: Section<'_>) -> Option<Drafts> {
    let n_drafts = section.small("draft_tokens", None, 0..=u64::from(DRAFTS_MAX));
    if n_drafts == 0 {
        let rest = [
            "draft_model",
            "acceptance",
            "acceptance_length",
            "draft_us_per_token",
            "draft_branches",
            "verified_tokens",
        ];
        section.idle(&rest, "`draft_tokens` above 0");
    }
    let acceptance = acceptance(&mut section, n_drafts);
    let by = drafter(&mut section);
    let per_draft = Seconds::new(section.number("draft_us_per_token", 0.0, 0.0..=1e6) / 1e6);
    let tree = tree(&mut section, n_drafts);
    section.finish();
    let speculation = Speculation { n_drafts, tree, acceptance, per_draft, seed: 0 };
    (n_drafts > 0).then_some(Drafts { speculation, by })
}
