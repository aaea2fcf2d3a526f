//! What a script asks of its batch system (`#SBATCH --nodes=4`), and the variables by which that tells the script what it got (`$SLURM_NNODES`).
//!
//! Source: SchedMD's manual of `sbatch`, "INPUT" and "OUTPUT ENVIRONMENT VARIABLES".

use std::ops::Range;

/// Names of one letter that have a number right behind them: `-N4`.
const OF_ONE_LETTER: [&str; 3] = ["N", "n", "G"];
/// Variables of Slurm, and the options that give them.
const VARIABLES: [(&str, &[&str]); 8] = [
    ("SLURM_NNODES", &["nodes", "N"]),
    ("SLURM_JOB_NUM_NODES", &["nodes", "N"]),
    ("SLURM_NTASKS", &["ntasks", "n"]),
    ("SLURM_NPROCS", &["ntasks", "n"]),
    ("SLURM_NTASKS_PER_NODE", &["ntasks-per-node"]),
    ("SLURM_GPUS_PER_NODE", &["gpus-per-node"]),
    ("SLURM_GPUS_ON_NODE", &["gpus-per-node", "gres"]),
    ("SLURM_GPUS", &["gpus", "G"]),
];

/// An option of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Its name without lines in front.
    pub(crate) name: String,
    /// What it is given.
    pub(crate) value: Option<String>,
    /// Bytes of its line.
    pub(crate) at: Range<usize>,
}

/// Options of a script, in order.
pub(crate) fn options(text: &str) -> Vec<Asked> {
    let mut found = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let at = start..start + line.trim_end().len();
        start += line.len();
        let Some(options) = line.trim().strip_prefix("#SBATCH") else { continue };
        let mut words = options.split_whitespace().take_while(|word| !word.starts_with('#')).peekable();
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                continue;
            }
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            let (name, glued) = apart(&name.trim_start_matches('-').replace('_', "-"));
            let value = value.map(str::to_owned).or(glued);
            let value = value.or_else(|| words.next_if(|next| !next.starts_with('-')).map(str::to_owned));
            let value = value.map(|value| value.trim_matches(['"', '\'']).to_owned());
            found.push(Asked { name, value, at: at.clone() });
        }
    }
    found
}

/// A name of one letter and the number that is glued to it.
pub(crate) fn apart(name: &str) -> (String, Option<String>) {
    let cut = OF_ONE_LETTER.iter().find_map(|letter| {
        let number = name.strip_prefix(letter)?;
        number.starts_with(|first: char| first.is_ascii_digit()).then(|| ((*letter).to_owned(), number.to_owned()))
    });
    cut.map_or_else(|| (name.to_owned(), None), |(letter, number)| (letter, Some(number)))
}

/// Variables whose numbers the lines say, each with the bytes of its line. A range of nodes is no number.
pub(crate) fn variables(text: &str) -> Vec<(&'static str, u32, Range<usize>)> {
    let asked = options(text);
    let number = |names: &[&str]| {
        let last = asked.iter().rev().find(|one| names.contains(&one.name.as_str()))?;
        Some((number_of(last)?, last.at.clone()))
    };
    let known = VARIABLES.into_iter().filter_map(|(name, names)| number(names).map(|(n, at)| (name, n, at)));
    let mut known: Vec<_> = known.collect();
    // Tasks of a node say those of all nodes, where nothing else does.
    let all = number(&["nodes", "N"]).zip(number(&["ntasks-per-node"]));
    if let Some(((nodes, _), (tasks, at))) = all.filter(|_| number(&["ntasks", "n"]).is_none()) {
        known.extend(["SLURM_NTASKS", "SLURM_NPROCS"].map(|name| (name, nodes.saturating_mul(tasks), at.clone())));
    }
    known
}

/// The number of an option; that of GPUs may have their type in front.
fn number_of(asked: &Asked) -> Option<u32> {
    let value = asked.value.as_deref()?;
    let value = if asked.name == "gres" { value.split(',').find(|part| part.starts_with("gpu:"))? } else { value };
    value.rsplit(':').next()?.parse().ok().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_system_tells_what_it_was_asked_for() {
        let of = |text: &str, name: &str| variables(text).into_iter().find(|one| one.0 == name).map(|one| one.1);
        let script = "#SBATCH --nodes=32\n#SBATCH --ntasks-per-node 4 # four\n#SBATCH --gpus-per-node=a100:8\n#SBATCH --mem=46\n";
        for (name, expected) in [
            ("SLURM_NNODES", Some(32)),
            ("SLURM_JOB_NUM_NODES", Some(32)),
            ("SLURM_NTASKS", Some(128)),
            ("SLURM_NTASKS_PER_NODE", Some(4)),
            ("SLURM_GPUS_PER_NODE", Some(8)),
            ("SLURM_GPUS_ON_NODE", Some(8)),
            ("SLURM_GPUS", None),
        ] {
            assert_eq!(of(script, name), expected, "{name}");
        }
        assert_eq!(of("#SBATCH -N2 -n 16 --gres=gpu:h100:4", "SLURM_NTASKS"), Some(16));
        assert_eq!(of("#SBATCH -N2 -n 16 --gres=gpu:h100:4", "SLURM_GPUS_ON_NODE"), Some(4));
        for range in ["#SBATCH --nodes=2-4", "#SBATCH --nodes=$N", "# SBATCH --nodes=4", "srun --nodes=4"] {
            assert_eq!(of(range, "SLURM_NNODES"), None, "{range}");
        }
        let text = "#!/bin/bash\n#SBATCH --nodes=4\n";
        assert_eq!(&text[variables(text)[0].2.clone()], "#SBATCH --nodes=4");
    }
}
