//! Combinations of flags that Megatron-LM refuses, by a table of what it asserts, and rules of numbers.

use std::sync::LazyLock;

use crate::flags::{Flags, rows, words};
use crate::shell::UNKNOWN;

/// A flag, `needs` or `excludes`, other flags, where it is asserted, what is asserted.
static RULES: LazyLock<Vec<[&str; 5]>> = LazyLock::new(|| rows(include_str!("../../tables/megatron-rules.tsv")));

/// Whether a flag is given as a rule asks for it; `None` where only a shell knows.
fn holds(flags: &Flags<'_>, other: &str) -> Option<bool> {
    if let Some(name) = other.strip_prefix('!') {
        return Some(!flags.is(name));
    }
    let name = bare(other);
    let (sign, bound) = other[name.len()..].split_at_checked(1).unwrap_or_default();
    let Some(flag) = flags.find(name).filter(|_| flags.is(name)) else { return Some(false) };
    let value = flag.value();
    if !sign.is_empty() && value.contains(UNKNOWN) {
        return None;
    }
    let number = value.parse::<u64>().ok().zip(bound.parse::<u64>().ok());
    Some(match sign {
        "=" => words(&value).any(|own| own == bound),
        ">" => number.is_some_and(|(number, bound)| number > bound),
        _ => true,
    })
}

/// The name of a flag of a rule.
fn bare(other: &str) -> &str {
    other.split(['=', '>']).next().unwrap_or(other)
}

/// A flag of a rule as it is written.
fn shown(other: &str) -> String {
    match other.strip_prefix('!') {
        Some(name) => format!("no `--{name}`"),
        None => format!("`--{}`", other.replace('=', " ").replace('>', " above ")),
    }
}

/// What Megatron-LM refuses: the flag, what is wrong with it, and what is asserted.
pub(super) struct Refusal {
    name: &'static str,
    pub(super) what: String,
    help: String,
}

/// Pipeline ranks, virtual stages of each, micro-batches of a replica, and sequences of a round of them on all replicas.
#[derive(Clone, Copy)]
pub(super) struct Rounds {
    pub(super) pp: u64,
    pub(super) chunks: u64,
    pub(super) n_micro_batches: u64,
    pub(super) whole: u64,
}

/// Errors at the flags that are refused.
pub(super) fn refuse(flags: &mut Flags<'_>, refusals: Vec<Refusal>) {
    refusals.into_iter().for_each(|Refusal { name, what, help }| flags.wrong(name, what, help));
}

/// What is refused of flags alone: `is_script` where Megatron-LM's own reader of flags runs, and not its model alone.
pub(super) fn all(flags: &Flags<'_>, is_script: bool) -> Vec<Refusal> {
    let positions = positions(flags).filter(|_| is_script);
    combinations(flags, is_script).into_iter().chain(positions).collect()
}

/// Sequences that are longer than there are positions. A length that the command line states is no flag of the script.
fn positions(flags: &Flags<'_>) -> Option<Refusal> {
    const MOST: &str = "max-position-embeddings";
    let number = |name: &str| flags.find(name).filter(|flag| !flag.at.is_empty())?.value().parse::<u64>().ok();
    let (most, tokens) = (number(MOST)?, number("seq-length").or_else(|| number("encoder-seq-length"))?);
    (tokens > most).then(|| Refusal {
        name: MOST,
        what: format!("`--{MOST} {most}` is below the {tokens} tokens of `--seq-length`"),
        help: "Megatron-LM asserts: max_position_embeddings must be greater than or equal to seq_length".to_owned(),
    })
}

/// What the table refuses: `is_script` where Megatron-LM's own reader of flags runs, and not its model alone.
fn combinations(flags: &Flags<'_>, is_script: bool) -> Vec<Refusal> {
    let is_asked = |[name, _, _, place, _]: &&[&'static str; 5]| {
        holds(flags, name) == Some(true) && (*place != "script" || is_script)
    };
    let refusal = |[name, kind, others, _, asserted]: &[&'static str; 5]| {
        let found: Vec<Option<bool>> = others.split(' ').map(|other| holds(flags, other)).collect();
        let (is_refused, verb) = match *kind {
            "needs" => (found.iter().all(|held| *held == Some(false)), "needs"),
            _ => (found.contains(&Some(true)), "does not go with"),
        };
        let all: Vec<String> = others.split(' ').map(shown).collect();
        let what = format!("{} {verb} {}", shown(name), all.join(" or "));
        is_refused.then(|| Refusal { name: bare(name), what, help: format!("Megatron-LM asserts: {asserted}") })
    };
    RULES.iter().filter(is_asked).filter_map(refusal).collect()
}

/// Exchanges of experts that run behind computation of stages that are not virtual.
pub(super) fn stages(flags: &Flags<'_>, rounds: Rounds) -> Option<Refusal> {
    const OVERLAP: &str = "overlap-moe-expert-parallel-comm";
    let is_refused = flags.is(OVERLAP) && rounds.pp > 1 && rounds.chunks == 1;
    is_refused.then(|| Refusal {
        name: OVERLAP,
        what: format!("`--{OVERLAP}` needs virtual stages beside `--pipeline-model-parallel-size {}`", rounds.pp),
        help: "Megatron-LM asserts that `virtual_pipeline_model_parallel_size` is specified: \
               give `--num-virtual-stages-per-pipeline-rank`"
            .to_owned(),
    })
}

/// Virtual stages without a pipeline, or with one of two ranks whose messages are not behind computation.
pub(super) fn interleaved(flags: &Flags<'_>, rounds: Rounds) -> Option<Refusal> {
    const NAMES: [&str; 3] = [
        "num-layers-per-virtual-pipeline-stage",
        "num-virtual-stages-per-pipeline-rank",
        "pipeline-model-parallel-layout",
    ];
    let least = if flags.is("no-overlap-p2p-communication") { 3 } else { 2 };
    let name = NAMES.into_iter().find(|name| flags.is(name))?;
    (rounds.chunks > 1 && rounds.pp < least).then(|| Refusal {
        name,
        what: format!("`--{name}` gives {} virtual stages to a rank, and {} pipeline ranks", rounds.chunks, rounds.pp),
        help: format!("Megatron-LM asserts: with the interleaved schedule there are at least {least} pipeline ranks"),
    })
}

/// Micro-batches that virtual stages do not take in groups of so many: `forward_backward_pipelining_with_interleaving` of
/// `megatron/core/pipeline_parallel/schedules.py` @ d98e8a64ddf3.
pub(super) fn groups(rounds: Rounds, group: Option<u64>) -> Option<Refusal> {
    const BATCH: &str = "global-batch-size";
    let Rounds { pp, chunks, n_micro_batches, whole } = rounds;
    let group = group.unwrap_or(pp).max(1);
    let rest = n_micro_batches % group;
    if pp < 2 || chunks < 2 || group <= n_micro_batches && (rest == 0 || rest >= pp) {
        return None;
    }
    let (name, why) = if group == pp {
        ("--pipeline-model-parallel-size", "a multiple of the pipeline degree")
    } else {
        let why = "groups that are full but for one of at least the pipeline degree";
        ("--microbatch-group-size-per-virtual-pipeline-stage", why)
    };
    let near = ((n_micro_batches + group / 2) / group).max(1) * group * whole;
    Some(Refusal {
        name: BATCH,
        what: format!(
            "`--{BATCH}` gives {n_micro_batches} micro-batches a replica, which virtual stages with `{name} {group}` do not take"
        ),
        help: format!("Megatron-LM wants {why}: nearest is `--{BATCH} {near}`"),
    })
}
