//! What the releases of torchtitan do otherwise: told by the folder of a configuration file, or by options that one of them had.
//! Source: commits of pytorch/torchtitan, each with its day.

use engine::model::of_checkpoint;

use crate::Machine;
use crate::flags::{Flag, Flags, words};
use crate::job::Job;

/// Spans of releases that a job's configuration file tells, by the folder in which it lies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// `train_configs/`, before 82afc842e of 2025-02-21.
    First,
    /// `torchtitan/models/llama/`, before e4e48349c of 2025-04-07.
    Second,
    /// `torchtitan/models/llama3/` and its like, before 9810191bb of 2026-02-23.
    Third,
    /// Without such a file.
    Untold,
}

impl Release {
    pub(super) fn of(flags: &Flags<'_>) -> Self {
        let path = ["job.config-file", "config"].into_iter().find_map(|name| flags.find(name)).map(Flag::value);
        match path {
            Some(path) if !path.ends_with(".toml") => Self::Untold,
            Some(path) if path.contains("models/llama/") => Self::Second,
            Some(path) if path.contains("models/") => Self::Third,
            Some(path) if path.contains("train_configs/") => Self::First,
            _ => Self::Untold,
        }
    }
}

/// Whether keys and values are copied for every query head: in releases before ff0829c10 of 2026-01-27, which have files or options of their own.
pub(super) fn repeated_keys(flags: &Flags<'_>, job: &mut Job, machine: &Machine) {
    const OF_BEFORE: [&str; 2] = ["training.compile", "training.batch-size"];
    let is_before = Release::of(flags) != Release::Untold || OF_BEFORE.iter().any(|name| flags.find(name).is_some());
    let model = machine.model.as_ref().or(job.model.as_ref()).and_then(|asked| of_checkpoint(asked));
    if is_before && model.is_some_and(|model| model.n_kv_heads < model.n_heads) {
        job.key(
            ("training", "repeat_kv"),
            true,
            "releases before 2026-01-27 copy keys and values for every query head",
        );
    }
}

/// The loss is compiled with the modules or alone, as the parts that are compiled say. With `--training.compile` it is compiled from bbb1b616e of 2025-04-02 on. Of a
/// vocabulary that is cut over tensor ranks a loss that is compiled alone is not told apart.
pub(super) fn loss(flags: &mut Flags<'_>, job: &mut Job, is_compiled: bool) {
    let is_old = flags.is("training.compile");
    let is_before = is_old && matches!(Release::of(flags), Release::First | Release::Second);
    let is_named = flags.text("compile.components").is_none_or(|parts| words(&parts).any(|part| part == "loss"));
    let remark = if is_old {
        "--training.compile, which leaves the loss unfused in releases before 2025-04-02"
    } else {
        "--compile.components"
    };
    if is_compiled && (is_before || !is_named) {
        job.word(("training", "loss"), "unfused", remark);
    } else if job.degrees[0] == 1 && (if is_compiled { is_old } else { is_named }) {
        job.word(("training", "loss"), "native", remark);
    }
}

#[cfg(test)]
mod tests {
    use crate::example::on;
    use crate::{Imported, Stack, import};

    fn found(text: &str) -> Imported {
        import(Stack::Torchtitan, text, &on("h100-sxm"))
    }

    /// Folders of configuration files moved, and options changed what they mean.
    #[test]
    fn releases_are_told_by_the_folders_of_their_files() {
        let base = |folder: &str, more: &str| {
            format!(
                "NGPU=8 CONFIG_FILE=\"{folder}train_configs/llama3_8b.toml\" ./run_train.sh --training.compile {more}\n"
            )
        };
        let [unfused, compiled] = ["loss = \"unfused\"", "loss = \"native\""];
        let lists = "kernels = \"foreach\"";
        for (folder, more, has, has_not) in [
            ("./", "", [unfused, lists], [compiled, compiled]),
            ("./", "--optimizer.fused", [unfused, unfused], [compiled, lists]),
            ("./torchtitan/models/llama/", "", [unfused, unfused], [compiled, lists]),
            ("./torchtitan/models/llama3/", "", [compiled, compiled], [unfused, lists]),
        ] {
            let scenario = found(&base(folder, more)).scenario;
            let is_right =
                has.iter().all(|part| scenario.contains(part)) && !has_not.iter().any(|part| scenario.contains(part));
            assert!(is_right, "{folder} {more}: {scenario}");
            assert!(scenario.contains("repeat_kv = true"), "{scenario}");
        }
        let run = "torchrun --nnodes=1 --nproc_per_node=8 -m torchtitan.train --config llama3_8b ";
        let now = found(&format!("{run}--compile.enable\n")).scenario;
        assert!(!now.contains("repeat_kv") && !now.contains(unfused), "{now}");
        let untold = found(&format!("{run}--training.compile\n")).scenario;
        assert!(untold.contains(compiled) && untold.contains("before 2025-04-02"), "{untold}");
    }
}
