//! `[rollouts]`: prompts and answers of a step, and how a step is made of its parts.

use std::path::Path;

use engine::random;
use rl::cycle::{Batches, Placement};
use rl::rollouts::Rollouts;
use rl::step::Rules;
use train::workload::distribution;

use input::diagnostic::Code;
use input::reader::{Section, small};
use input::text_file;

/// Tokens that answers to one prompt share at a time, where the engine keeps prefixes.
pub const BLOCK_TOKENS: u32 = 16;
/// Answers of a step at most.
const ANSWERS_MAX: u64 = 1_000_000;
/// Tokens of an answer at most.
const TOKENS_MAX: u64 = 10_000_000;
/// Updates that weights may be behind at most.
const BEHIND_MAX: f64 = 64.0;

/// What the section says.
#[derive(Clone, Debug)]
pub struct Given {
    /// What is generated in a step.
    pub rollouts: Rollouts,
    /// Tokens of every answer.
    pub answers: Vec<u32>,
    /// How a step is made of its parts.
    pub rules: Rules,
    /// Updates that weights may be behind, one for each way.
    pub off_policy: Vec<u32>,
}

/// Reads the section.
pub fn read(mut section: Section<'_>, folder: &Path, seed: u64) -> Option<Given> {
    let n_prompts = section.small("prompts", None, 1..=ANSWERS_MAX);
    let n_answers = section.small("answers", None, 1..=ANSWERS_MAX);
    let prompt = section.small("prompt_tokens", None, 1..=TOKENS_MAX);
    let (rules, off_policy) = rules(&mut section);
    let n = u64::from(n_prompts) * u64::from(n_answers);
    if n > ANSWERS_MAX {
        let what = format!("{n_prompts} prompts with {n_answers} answers each are more than {ANSWERS_MAX} answers");
        section.refuse_all(Code::TakesTooLong, what, "lower `rollouts.prompts` or `rollouts.answers`");
        section.rest();
        section.finish();
        return None;
    }
    let rollouts = Rollouts { n_prompts, n_answers, prompt, mean: 1.0, most: 1 };
    let found = lengths(&mut section, rollouts, folder, seed);
    section.finish();
    let (rollouts, answers) = found?;
    Some(Given { rollouts, answers, rules, off_policy })
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
    let (path, at) = section.text("file")?;
    let text = match text_file::read(&folder.join(&path)) {
        Ok(text) => text,
        Err(error) => {
            section.wrong(Code::UnreadableFile, at, format!("cannot read `{path}`: {error}"));
            return None;
        }
    };
    let known = distribution::parse_lengths(&text).ok().filter(|all| all.iter().all(|n| *n <= TOKENS_MAX));
    let Some(known) = known.filter(|all| !all.is_empty()) else {
        let help = format!("allowed are whole numbers from 1 to {TOKENS_MAX}, one per line");
        section.refuse(Code::WrongLengths, at, format!("`{path}` holds something that is no length of an answer"), help);
        return None;
    };
    let mut stream = random::stream(seed, "answers of a file");
    let n = known.len() as u64;
    let mut draw = || small(known[usize::try_from(stream.below(n)).expect("an index below the length")]);
    let answers: Vec<u32> = (0..rollouts.n()).map(|_| draw()).collect();
    let total: u64 = answers.iter().map(|answer| u64::from(*answer)).sum();
    let mean = hw::real(total) / f64::from(rollouts.n());
    let most = answers.iter().copied().max().unwrap_or(1);
    Some((Rollouts { mean, most, ..rollouts }, answers))
}

/// How a step is made of its parts, and the distances of weights that are compared.
fn rules(section: &mut Section<'_>) -> (Rules, Vec<u32>) {
    let placement = section.one_of("placement", Placement::Colocated, &Placement::WORDS);
    let is_colocated = placement == Placement::Colocated;
    let apart = "`placement = \"split\"`: on the same GPUs generation and training take turns";
    if is_colocated {
        section.idle(&["off_policy", "batches"], apart);
    } else {
        section.idle(&["offload"], "`placement = \"colocated\"`: a trainer with GPUs of its own keeps its states there");
    }
    let off_policy = section.numbers("off_policy", 0.0..=BEHIND_MAX);
    let behind = match off_policy {
        _ if is_colocated => vec![0],
        None => vec![1],
        Some(Ok(list)) if list.iter().all(|n| n.fract() == 0.0) => {
            list.into_iter().map(|n| small(hw::whole(n))).collect()
        }
        Some(Ok(_)) => refused(section, None),
        Some(Err(at)) => refused(section, at),
    };
    let batches = section.one_of("batches", Batches::InTurn, &Batches::WORDS);
    let n_forwards = section.small("forward_passes", Some(2), 0..=10);
    let rewards_s = section.number("rewards_s", 0.0, 0.0..=1e6);
    let sends_states = section.flag("offload", is_colocated);
    let weights_bytes_per_s = section.some_number("weights_gb_per_s", 1e-3..=1e6).map(|rate| rate * 1e9);
    let rules = Rules { placement, off_policy: 0, batches, n_forwards, rewards_s, sends_states, weights_bytes_per_s };
    (rules, behind)
}

fn refused(section: &mut Section<'_>, at: input::reader::Place) -> Vec<u32> {
    let help = format!("allowed is a whole number from 0 to {BEHIND_MAX}, or a list of them");
    section.refuse(Code::OutOfRange, at, "`rollouts.off_policy` is no number of updates", help);
    vec![0]
}
