//! Arguments of a launch script: what `$3` or `${10}` stands for is known only where the script is started.

use input::diagnostic::{Code, Finding};

use crate::shell::is_of_function;

/// Says of values that nobody knows which argument of the script they are, and how the file gives them; each is said once.
pub(crate) fn said(text: &str, findings: &mut Vec<Finding>) {
    let mut kept: Vec<Finding> = Vec::with_capacity(findings.len());
    for finding in findings.drain(..) {
        let is_same =
            |other: &Finding| other.code == finding.code && other.what == finding.what && other.at == finding.at;
        if finding.code != Code::UnknownValue || !kept.iter().any(is_same) {
            kept.push(finding);
        }
    }
    kept.iter_mut().filter(|finding| finding.code == Code::UnknownValue).for_each(|finding| explain(text, finding));
    *findings = kept;
}

fn explain(text: &str, finding: &mut Finding) {
    let Some(at) = finding.at.as_ref().map(|at| at.start) else { return };
    let Some((word, number)) = text.get(at..).and_then(argument) else { return };
    let whose = if is_of_function(text, at) { "a function" } else { "the script" };
    finding.what += &format!(": `{word}` is argument {number} of {whose}");
    let usual = finding.help.take().unwrap_or_default();
    finding.help = Some(format!("put its value in the place of `{word}`; else {usual}"));
}

/// `$3` or `${10}` at the beginning of a text, and its number. `$10` is `$1` with a zero behind it.
fn argument(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix('$')?;
    let number = match rest.strip_prefix('{') {
        Some(inside) => inside.split(['}', ':', '-']).next()?,
        None => rest.get(..1)?,
    };
    let is_number = !number.is_empty() && number.bytes().all(|letter| letter.is_ascii_digit()) && number != "0";
    let end = if rest.starts_with('{') { text.find('}')? + 1 } else { 2 };
    is_number.then_some((text.get(..end)?, number))
}

#[cfg(test)]
mod tests {
    use crate::example::on;
    use crate::{Stack, import};

    use super::*;

    #[test]
    fn arguments_of_a_script_are_named_once_with_what_to_write() {
        let script = "TP=${10}\nMBS=$8\ntorchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 8 --hidden-size 1024 \\\n\
                      --num-attention-heads 16 --seq-length 4096 --vocab-size 32000 --bf16 --global-batch-size 64 --micro-batch-size $MBS \\\n\
                      --tensor-model-parallel-size $TP\n";
        let findings = import(Stack::Megatron, script, &on("h100-sxm")).findings;
        for (flag, word, number) in [("tensor-model-parallel-size", "${10}", "10"), ("micro-batch-size", "$8", "8")] {
            let of_flag: Vec<&Finding> = findings.iter().filter(|finding| finding.what.contains(flag)).collect();
            let [found] = of_flag[..] else { panic!("{flag}: {of_flag:?}") };
            assert!(found.what.ends_with(&format!(": `{word}` is argument {number} of the script")), "{found:?}");
            assert!(
                found
                    .help
                    .as_deref()
                    .is_some_and(|help| help.starts_with(&format!("put its value in the place of `{word}`")))
            );
        }
    }

    /// Nothing calls the first function; the second one moves its arguments.
    #[test]
    fn arguments_of_functions_are_not_called_those_of_the_script() {
        for script in [
            "f() {\n  N=$1\n  vllm serve Qwen/Qwen3-8B --max-num-seqs $N\n}\n",
            "f() {\n  shift\n  N=$1\n  vllm serve Qwen/Qwen3-8B --max-num-seqs $N\n}\nf 1 2\n",
        ] {
            let machine = crate::Machine { gpu: Some("h100-sxm".to_owned()), ..crate::Machine::default() };
            let findings = import(Stack::Vllm, script, &machine).findings;
            let found = findings.iter().find(|finding| finding.code == Code::UnknownValue).expect("unknown");
            assert!(found.what.ends_with(": `$1` is argument 1 of a function"), "{found:?}");
        }
    }

    #[test]
    fn only_numbers_are_arguments() {
        assert_eq!(argument("$10 "), Some(("$1", "1")));
        assert_eq!(argument("${12:-4}x"), Some(("${12:-4}", "12")));
        for text in ["$N", "${N}", "$0", "${", "$", "3", "$@"] {
            assert_eq!(argument(text), None, "{text}");
        }
    }
}
