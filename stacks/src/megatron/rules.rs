//! Combinations of flags that Megatron-LM refuses, by a table of what it asserts, and two rules of stages.

use std::sync::LazyLock;

use super::is_wrong;
use super::parallel::Degrees;
use crate::flags::{Flags, rows, words};
use crate::shell::UNKNOWN;

/// A flag, `needs` or `excludes`, other flags, where it is asserted, what is asserted.
static RULES: LazyLock<Vec<[&str; 5]>> = LazyLock::new(|| rows(include_str!("../../tables/megatron-rules.tsv")));

/// Whether a flag is given as a rule asks for it; `None` where only a shell knows.
fn holds(flags: &Flags<'_>, other: &str) -> Option<bool> {
    let (name, word, above) = match (other.split_once('='), other.split_once('>')) {
        (Some((name, word)), _) => (name, Some(word), None),
        (_, Some((name, number))) => (name, None, number.parse::<u64>().ok()),
        _ => (other, None, None),
    };
    let Some(flag) = flags.find(name).filter(|_| flags.is(name)) else { return Some(false) };
    let value = flag.value();
    if (word.is_some() || above.is_some()) && value.contains(UNKNOWN) {
        return None;
    }
    let is_word = word.is_none_or(|word| words(&value).any(|own| own == word));
    let is_above = above.is_none_or(|least| value.parse::<u64>().is_ok_and(|number| number > least));
    Some(is_word && is_above)
}

/// A flag of a rule as it is written.
fn shown(other: &str) -> String {
    format!("`--{}`", other.replace('=', " ").replace('>', " above "))
}

/// Refuses what the table does: `is_script` where Megatron-LM's own reader of flags runs, and not its model alone.
pub(super) fn combinations(flags: &mut Flags<'_>, is_script: bool) {
    for [name, kind, others, place, asserted] in RULES.iter() {
        if !flags.is(name) || *place == "script" && !is_script {
            continue;
        }
        let found: Vec<Option<bool>> = others.split(' ').map(|other| holds(flags, other)).collect();
        let (is_refused, verb) = match *kind {
            "needs" => (found.iter().all(|held| *held == Some(false)), "needs"),
            _ => (found.contains(&Some(true)), "does not go with"),
        };
        if is_refused {
            let all: Vec<String> = others.split(' ').map(shown).collect();
            let what = format!("`--{name}` {verb} {}", all.join(" or "));
            flags.wrong(name, what, format!("Megatron-LM asserts: {asserted}"));
        }
    }
}

/// Refuses micro-batches and stages that Megatron Core does not run; `whole` is the sequences of a round of micro-batches on all replicas.
pub(super) fn stages(flags: &mut Flags<'_>, degrees: &Degrees, n_micro_batches: u64, whole: u64) {
    const OVERLAP: &str = "overlap-moe-expert-parallel-comm";
    const BATCH: &str = "global-batch-size";
    const GROUP: &str = "microbatch-group-size-per-virtual-pipeline-stage";
    let pp = u64::from(degrees.pp);
    if flags.is(OVERLAP) && pp > 1 && degrees.chunks == 1 {
        let what = format!("`--{OVERLAP}` needs virtual stages beside `--pipeline-model-parallel-size {pp}`");
        let help = "Megatron-LM asserts that `virtual_pipeline_model_parallel_size` is specified: give `--num-virtual-stages-per-pipeline-rank`";
        flags.wrong(OVERLAP, what, help.to_owned());
    }
    if pp < 2 || degrees.chunks < 2 || is_wrong(&flags.findings) {
        return;
    }
    // `forward_backward_pipelining_with_interleaving` of `megatron/core/pipeline_parallel/schedules.py` @ d98e8a64ddf3.
    let group = flags.count(GROUP, pp..=100_000).unwrap_or(pp);
    let rest = n_micro_batches % group;
    if group <= n_micro_batches && (rest == 0 || rest >= pp) {
        return;
    }
    let (name, why) = if group == pp {
        ("--pipeline-model-parallel-size", "a multiple of the pipeline degree")
    } else {
        (
            "--microbatch-group-size-per-virtual-pipeline-stage",
            "groups that are full but for one of at least the pipeline degree",
        )
    };
    let what = format!(
        "`--{BATCH}` gives {n_micro_batches} micro-batches a replica, which virtual stages with `{name} {group}` do not take"
    );
    let near = (n_micro_batches + group / 2) / group * group;
    let help = format!("Megatron-LM wants {why}: nearest is `--{BATCH} {}`", near.max(group) * whole);
    flags.wrong(BATCH, what, help);
}
