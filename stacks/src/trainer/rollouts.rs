//! Jobs that train on answers of their own (GRPO and its like): how long such a sequence is, and which parts of their step are not the update.
//!
//! Sources: huggingface/trl (`trainer/grpo_config.py`; releases up to 0.25 cut prompts), modelscope/ms-swift @ 3602360a5 (`arguments/rlhf_args.py`,
//! `docs/source_en/Instruction/Command-line-parameters.md`: `max_length` is that of a prompt there).

use input::diagnostic::Code;

use super::{Dialect, MOST, is_on};
use crate::flags::Flags;
use crate::launch;

/// Tokens of a prompt and of an answer at most.
const PROMPT: &str = "max_prompt_length";
const ANSWER: &str = "max_completion_length";
/// Words that only jobs with answers of their own have.
const SIGNS: [&str; 2] = ["num_generations", "reward_funcs"];
/// What ms-swift trains by, and its words for answers of its own.
const KIND: &str = "rlhf_type";
const KINDS: [&str; 3] = ["grpo", "ppo", "gkd"];
/// The strength of a reference, which preferences have.
const BETA: &str = "beta";
/// Programs that train on pairs of answers, or on marks of them.
const OF_PAIRS: [&str; 8] =
    ["dpo.py", "orpo.py", "kto.py", "cpo.py", "reward_modeling.py", "run_dpo.py", "run_orpo.py", "online_dpo.py"];

/// Whether a word gives a part of a sequence, or says that there are parts.
pub(super) fn is_part(name: &str) -> bool {
    [PROMPT, ANSWER, KIND].contains(&name)
}

/// The word that asks for answers of the job's own.
fn sign(flags: &mut Flags<'_>, dialect: Dialect) -> Option<&'static str> {
    if dialect == Dialect::Swift {
        return flags.text(KIND).filter(|kind| KINDS.contains(&kind.as_str())).map(|_| KIND);
    }
    if !matches!(dialect, Dialect::Trl | Dialect::Trainer) {
        return None;
    }
    let given = SIGNS.into_iter().find(|name| flags.find(name).is_some());
    let of_server = given.or_else(|| is_on(flags, "use_vllm").then_some("use_vllm"));
    // Pairs of answers have a length of both together beside it.
    let is_whole = ["max_length", "max_seq_length"].into_iter().any(|name| flags.find(name).is_some());
    of_server.or_else(|| Some(ANSWER).filter(|name| !is_whole && flags.find(name).is_some()))
}

/// Tokens of a prompt and its answer, where the job has answers of its own and says the rest.
pub(super) fn lengths(flags: &mut Flags<'_>, dialect: Dialect, whole: Option<&str>) -> Option<[u64; 2]> {
    sign(flags, dialect)?;
    let is_swift = dialect == Dialect::Swift;
    let [of_prompt, of_answer] = if is_swift { [None, Some(512)] } else { [Some(512), Some(256)] };
    let prompt = if is_swift { whole } else { Some(PROMPT) };
    let mut count = |name: Option<&str>| {
        let given = name.filter(|name| flags.find(name).is_some());
        given.and_then(|name| flags.count(name, 1..=MOST))
    };
    let found = [count(prompt).or(of_prompt)?, count(Some(ANSWER)).or(of_answer)?];
    Some(found)
}

/// Says how long a sequence is taken to be.
pub(super) fn said(flags: &mut Flags<'_>, [prompt, answer]: [u64; 2], dialect: Dialect) {
    let tokens = prompt + answer;
    let unsaid = [(PROMPT, "prompts"), (ANSWER, "answers")];
    let is_missing = |name: &str| flags.find(name).is_none() && (name == ANSWER || dialect != Dialect::Swift);
    let missing: Vec<&str> = unsaid.into_iter().filter(|(name, _)| is_missing(name)).map(|(_, what)| what).collect();
    let usual = match missing.as_slice() {
        [] => String::new(),
        some => format!("; the number of {} is {}'s default", some.join(" and "), dialect.name()),
    };
    let what = format!(
        "all sequences are taken to be as long as a prompt and its answer may be, {prompt} + {answer} = {tokens} tokens{usual}"
    );
    let at = flags.at(ANSWER).or_else(|| flags.at(PROMPT));
    let help = "give lengths of your own: `--set workload.tokens=…`, or a scenario with `[workload]`";
    flags.warn(Code::MissingFlag, at, what, help);
}

/// Says which parts of a step are left out: answers and rewards, or pairs and a reference.
pub(super) fn left_out(flags: &mut Flags<'_>, text: &str, dialect: Dialect) {
    if let Some(name) = sign(flags, dialect) {
        let what = "the step is the update alone: answers, rewards and log probabilities beside it are not modelled";
        let help = "a scenario of `kind = \"rl\"` has them (docs/rl.md)";
        return flags.warn(Code::NotModelled, flags.at(name), what, help);
    }
    let of_kind = Some(KIND).filter(|name| dialect == Dialect::Swift && flags.find(name).is_some());
    let of_beta = Some(BETA).filter(|name| flags.find(name).is_some());
    if of_kind.or(of_beta).is_none() && !starts_pairs(text) {
        return;
    }
    let at = of_kind.or(of_beta).and_then(|name| flags.at(name));
    let what = "the step is that of supervised training: pairs of answers and a reference are not modelled";
    flags.warn(Code::NotModelled, at, what, "time and memory come out smaller than they are");
}

/// Whether a script starts a program for pairs of answers.
fn starts_pairs(text: &str) -> bool {
    let mut words = launch::lines(text).flat_map(str::split_whitespace);
    words.any(|word| OF_PAIRS.contains(&word.rsplit('/').next().unwrap_or_default()))
        || text.contains("trl dpo")
        || text.contains("trl kto")
}
