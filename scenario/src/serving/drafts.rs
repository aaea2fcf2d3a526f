//! `speculation`: how tokens are drafted, and who drafts them (`serve::drafter`).

use engine::model::DraftHead;
use hw::Seconds;
use serve::drafter::{Drafter, Drafts, OWN};
use serve::speculation::{DRAFTS_MAX, Speculation, TREE_MAX, Tree, acceptance_of};

use input::diagnostic::Code;
use input::reader::Section;

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

/// Reads `speculation` of a section over what holds without it: a table, or so many drafts by whoever drafts already.
pub fn speculation(section: &mut Section<'_>, base: Option<&Drafts>) -> Option<Drafts> {
    if section.is_number("speculation") {
        return of_length(section, base);
    }
    section.table("speculation").map_or_else(|| base.cloned(), drafts)
}

/// Reads `speculation = 3`: so many drafts in place of as many as there are already; none with 0.
fn of_length(section: &mut Section<'_>, base: Option<&Drafts>) -> Option<Drafts> {
    let at = section.place("speculation").flatten();
    let n_drafts = section.small("speculation", Some(0), 0..=u64::from(DRAFTS_MAX));
    let what = match base {
        _ if n_drafts == 0 => return None,
        None => "and nothing says who drafts and how many are accepted",
        Some(drafts) if drafts.speculation.tree.is_some() && drafts.speculation.n_drafts != n_drafts => {
            "and those of `[engine]` are a tree: another depth is another tree"
        }
        Some(drafts) => {
            let speculation = Speculation { n_drafts, ..drafts.speculation };
            return Some(Drafts { speculation, by: drafts.by.clone() });
        }
    };
    let what = format!("`{}` = {n_drafts} is a number of drafts, {what}", section.full("speculation"));
    let help = "write `speculation = { draft_tokens, acceptance, draft_model }` in `[engine]`, or such a table here";
    section.refuse(Code::MissingKey, at, what, help);
    None
}

/// Reads `speculation = { draft_tokens = 4, acceptance = 0.7, draft_model = "llama-3.2-1b" }`; none with `draft_tokens = 0`.
fn drafts(mut section: Section<'_>) -> Option<Drafts> {
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
