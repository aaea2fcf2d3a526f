//! `[rollouts]`: prompts and answers of a step, and how a step is made of its parts.

use std::path::Path;

use engine::random;
use rl::cycle::{Batches, Placement};
use rl::orchestrator::Orchestrator;
use rl::reference::Reference;
use rl::rollouts::Rollouts;
use rl::step::Rules;

use crate::training::workload;
use input::diagnostic::Code;
use input::reader::{Section, items, small, unknown};

/// Tokens that answers to one prompt share at a time, where the engine keeps prefixes.
pub const BLOCK_TOKENS: u32 = 16;
/// Answers of a step at most.
const ANSWERS_MAX: u64 = 1_000_000;
/// Tokens of an answer at most.
const TOKENS_MAX: u64 = 10_000_000;
/// Updates that weights may be behind at most, and nodes that train.
const COUNT_MAX: f64 = 100_000.0;

/// What the section says.
#[derive(Clone, Debug)]
pub struct Given {
    /// What is generated in a step.
    pub rollouts: Rollouts,
    /// Tokens of every answer.
    pub answers: Vec<u32>,
    /// How a step is made of its parts.
    pub rules: Rules,
    /// How GPUs may be shared out, in order.
    pub places: Vec<Places>,
}

/// Nodes of the trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Each side has all of its own.
    Own,
    /// So many of the shared machine.
    Stated(u32),
    /// Those of the shared machine with which a step is shortest.
    Searched,
}

impl Nodes {
    /// In words for a name.
    fn word(self) -> Option<String> {
        match self {
            Self::Own => None,
            Self::Stated(n) => Some(format!("{n}-train")),
            Self::Searched => Some("searched".to_owned()),
        }
    }
}

/// Who works on which GPUs, and how far weights may be behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Which GPUs generate and which train.
    pub placement: Placement,
    /// Nodes that train.
    pub train_nodes: Nodes,
    /// Updates that the weights of a batch may be behind.
    pub off_policy: u32,
}

impl Places {
    /// What it differs in from others, in words for a name.
    pub fn words(&self, all: &[Self]) -> Vec<String> {
        let mut words = Vec::new();
        if all.iter().any(|other| other.placement != self.placement) {
            words.push(self.placement.word().to_owned());
        }
        let alike = all.iter().filter(|other| other.placement == self.placement);
        let [other_nodes, other_distance] = alike.fold([false; 2], |[nodes, distance], other| {
            [nodes || other.train_nodes != self.train_nodes, distance || other.off_policy != self.off_policy]
        });
        words.extend(self.train_nodes.word().filter(|_| other_nodes));
        words.extend(other_distance.then(|| format!("{}-off", self.off_policy)));
        words
    }
}

/// Reads the section.
pub fn read(mut section: Section<'_>, folder: &Path, seed: u64) -> Option<Given> {
    let n_prompts = section.small("prompts", None, 1..=ANSWERS_MAX);
    let n_answers = section.small("answers", None, 1..=ANSWERS_MAX);
    let prompt = section.small("prompt_tokens", None, 1..=TOKENS_MAX);
    let (rules, places) = rules(&mut section);
    let rollouts = Rollouts { n_prompts, n_answers, prompt, mean: 1.0, most: 1 };
    if u64::from(rollouts.n()) > ANSWERS_MAX {
        let what = format!("{n_prompts} prompts with {n_answers} answers each are more than {ANSWERS_MAX} answers");
        section.refuse_all(Code::TakesTooLong, what, "lower `rollouts.prompts` or `rollouts.answers`");
        section.rest();
        section.finish();
        return None;
    }
    // Where lengths are wrong, what stands beside them is looked at all the same.
    let of_one = || (rollouts, vec![1; rollouts.n() as usize]);
    let (rollouts, answers) = lengths(&mut section, rollouts, folder, seed).unwrap_or_else(of_one);
    section.finish();
    Some(Given { rollouts, answers, rules, places })
}

/// Lengths of all answers: drawn from a mean and a limit, or from those of a file.
fn lengths(section: &mut Section<'_>, rollouts: Rollouts, folder: &Path, seed: u64) -> Option<(Rollouts, Vec<u32>)> {
    let given = section.alternatives(&["answer_tokens", "file"]);
    match given[..] {
        ["answer_tokens"] => {
            let (mean, at) = section.count("answer_tokens", None, 1..=TOKENS_MAX);
            let most = section.count("max_answer_tokens", None, 1..=TOKENS_MAX).0;
            if mean > most {
                let what = format!("`rollouts.answer_tokens` = {mean} is above `max_answer_tokens` = {most}");
                section.refuse(Code::OutOfRange, at, what, "it is the mean; no answer is longer than the limit");
                return None;
            }
            let rollouts = Rollouts { mean: hw::real(mean), most: small(most), ..rollouts };
            Some((rollouts, rollouts.draw(seed)))
        }
        ["file"] => {
            section.idle(&["max_answer_tokens"], "`answer_tokens`, whose limit it is");
            of_file(section, rollouts, folder, seed)
        }
        [] => {
            let help = "the mean tokens of an answer, with `max_answer_tokens`; or `file`, one length per line";
            section.missing("answer_tokens", help);
            None
        }
        _ => {
            let what = "`answer_tokens` and `file` of rollouts exclude each other";
            section.refuse(Code::ExclusiveKeys, section.at(), what, "keep the one that is meant");
            section.rest();
            None
        }
    }
}

/// Draws among the lengths of a file.
fn of_file(section: &mut Section<'_>, rollouts: Rollouts, folder: &Path, seed: u64) -> Option<(Rollouts, Vec<u32>)> {
    let (known, path) = workload::file(section, folder, None)?;
    if known.iter().any(|tokens| *tokens > TOKENS_MAX) {
        let help = format!("allowed are whole numbers from 1 to {TOKENS_MAX}, one per line");
        section.refuse_all(
            Code::WrongLengths,
            format!("`{path}` holds something that is no length of an answer"),
            help,
        );
        return None;
    }
    let mut stream = random::stream(seed, "answers of a file");
    let n = known.len() as u64;
    let mut draw = || small(known[usize::try_from(stream.below(n)).expect("an index below the length")]);
    let answers: Vec<u32> = (0..rollouts.n()).map(|_| draw()).collect();
    Some((rollouts.of_answers(&answers), answers))
}

/// How a step is made of its parts, and how GPUs may be shared out.
fn rules(section: &mut Section<'_>) -> (Rules, Vec<Places>) {
    let placements = placements(section);
    let [is_colocated, is_split] =
        [Placement::Colocated, Placement::Split].map(|placement| placements.contains(&placement));
    if !is_split {
        let needs = "`placement = \"split\"`: on the same GPUs generation and training take turns";
        section.idle(&["off_policy", "batches", "train_nodes"], needs);
    }
    if !is_colocated {
        let needs = "`placement = \"colocated\"`: a trainer with GPUs of its own keeps its states there";
        section.idle(&["offload"], needs);
    }
    let behind = counts(section, "off_policy", 0).unwrap_or_else(|| vec![1]);
    let nodes = train_nodes(section);
    let n_forwards = section.small("forward_passes", Some(2), 0..=10);
    if n_forwards < 2 {
        section.idle(&["reference"], "`forward_passes = 2`, of which one is the reference's");
    }
    let rules = Rules {
        placement: placements[0],
        off_policy: 0,
        batches: section.one_of("batches", Batches::InTurn, &Batches::WORDS),
        n_forwards,
        rewards_s: section.some_number("rewards_s", 0.0..=1e6),
        orchestrator: section.one_of("orchestrator", Orchestrator::NemoRl, &Orchestrator::WORDS),
        sends_states: section.flag("offload", true),
        weights_gb_per_s: section.some_number("weights_gb_per_s", 1e-3..=1e6),
        reference: section.one_of("reference", Reference::Host, &Reference::WORDS),
    };
    let mut places = Vec::new();
    for placement in placements {
        if placement == Placement::Colocated {
            places.push(Places { placement, train_nodes: Nodes::Own, off_policy: 0 });
            continue;
        }
        for train_nodes in &nodes {
            places.extend(behind.iter().map(|n| Places { placement, train_nodes: *train_nodes, off_policy: *n }));
        }
    }
    (rules, places)
}

/// `train_nodes`: a number, a list of them, or `search`.
fn train_nodes(section: &mut Section<'_>) -> Vec<Nodes> {
    if section.is_text("train_nodes") {
        section.offers("train_nodes", || ["search"]);
        if let Some((word, at)) = section.text("train_nodes").filter(|(word, _)| word != "search") {
            let what = format!("`{}` is `{word}`", section.full("train_nodes"));
            let finding = unknown(Code::UnknownWord, what, &word, ["search"], at);
            section.find(finding.help("allowed are a whole number of nodes, a list of them, and `search`"));
        }
        return vec![Nodes::Searched];
    }
    let stated = counts(section, "train_nodes", 1);
    stated.map_or_else(|| vec![Nodes::Own], |list| list.into_iter().map(Nodes::Stated).collect())
}

/// `placement`: a word, or a list of them.
fn placements(section: &mut Section<'_>) -> Vec<Placement> {
    if !section.has("placement") || section.is_text("placement") {
        return vec![section.one_of("placement", Placement::Colocated, &Placement::WORDS)];
    }
    let words = Placement::WORDS.map(|(word, _)| word);
    let help = format!("allowed is one of {}, or a list of them", words.join(", "));
    let taken = section.take("placement");
    let found = taken.as_ref().and_then(|(value, _)| items(value, |item| Placement::named(item.as_str()?)));
    match found.filter(|list| !list.is_empty()) {
        Some(mut list) => {
            list.dedup();
            list
        }
        None => {
            let at = taken.and_then(|(_, at)| at);
            section.refuse(Code::UnknownWord, at, "`rollouts.placement` is no placement", help);
            vec![Placement::Colocated]
        }
    }
}

/// A whole number, or a list of them; `None` without the key.
fn counts(section: &mut Section<'_>, key: &'static str, least: u32) -> Option<Vec<u32>> {
    let at = match section.numbers(key, f64::from(least)..=COUNT_MAX)? {
        Ok(list) if list.iter().all(|n| n.fract() == 0.0) => {
            return Some(list.into_iter().map(|n| small(hw::whole(n))).collect());
        }
        Ok(_) => None,
        Err(at) => at,
    };
    let help = format!("allowed is a whole number from {least} to {COUNT_MAX}, or a list of them");
    section.refuse(Code::OutOfRange, at, format!("`rollouts.{key}` is no such number"), help);
    None
}
