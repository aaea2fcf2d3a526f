//! Servers whose program stands in a variable: `$VLLM serve …`. Where the script says its value it is followed as in any word. Else only a shell knows the
//! program, and it is that of the engine whose options follow.

use input::diagnostic::{Code, Finding};

use super::{images, is_unknown};
use crate::flags::named;
use crate::shell::Word;

/// Options that SGLang's server has, and vLLM's has not.
pub(crate) const OF_SGLANG: [&str; 6] =
    ["model-path", "tp-size", "mem-fraction-static", "context-length", "chunked-prefill-size", "max-running-requests"];
/// The verb of both.
const VERB: &str = "serve";

/// Which word of a command is a program that only a shell knows, in front of the verb and of one of some options.
pub(crate) fn begins(words: &[String], options: &[&str]) -> Option<usize> {
    let at = words.windows(2).position(is_program)?;
    words[at..].iter().any(|word| is_option(word, options)).then_some(at)
}

fn is_program(pair: &[String]) -> bool {
    is_unknown(&pair[0]) && pair[1] == VERB
}

fn is_option(word: &str, options: &[&str]) -> bool {
    word.starts_with("--") && options.contains(&named(word.split('=').next().unwrap_or(word)).as_str())
}

/// Which word of a command is such a program, whatever options follow: in front of the verb, or of an option that names a model.
pub(crate) fn any(words: &[String]) -> Option<usize> {
    let starts =
        |pair: &[String]| is_program(pair) || is_unknown(&pair[0]) && is_option(&pair[1], &["model", "model-path"]);
    words.windows(2).position(starts)
}

/// The name of a variable whose value is put in at a byte.
fn variable(text: &str, at: usize) -> Option<&str> {
    let rest = text.get(at..)?.strip_prefix('$')?.trim_start_matches('{');
    let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| !name.is_empty())
}

/// A warning about a program or an image that only a shell knows.
pub(super) fn told(text: &str, words: &[Word], texts: &[String], start: usize) -> Option<Finding> {
    if !images::is_open(&texts[start]) {
        return None;
    }
    let is_program = texts.get(start..start + 2).is_some_and(is_program);
    let at = words[start].at();
    let (what, help) = if is_program {
        let name = variable(text, at.start).map_or_else(|| "the program".to_owned(), |name| format!("`${name}`"));
        let what =
            format!("{name} is known only when the script runs: it is taken for the engine that has these options");
        (what, "set the variable in the script: `VLLM=vllm`, `SGLANG=sglang`")
    } else {
        let what = "the image is known only when the script runs: by its options it is one of vLLM";
        (what.to_owned(), "write the image into the script, or give `--set engine.version=…`")
    };
    Some(Finding::warning(Code::UnknownValue, Some(at), what).help(help))
}

#[cfg(test)]
mod tests {
    use input::diagnostic::Code;

    use crate::elsewhere::of_text;
    use crate::example::{codes, has_parts, import_text, on, said};

    const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

    #[test]
    fn a_program_that_the_script_sets_is_followed() {
        for (set, program) in [
            ("VLLM=/opt/venv/bin/vllm", "$VLLM"),
            ("VLLM_BIN=\"vllm\"", "\"${VLLM_BIN}\""),
            ("", "\"${VLLM_BIN:-vllm}\""),
            ("V=vllm; W=$V", "exec $W"),
        ] {
            let text = format!("{set}\n{program} serve {MODEL} --tensor-parallel-size 2\n");
            let found = import_text(&text, &on("h100-sxm"));
            has_parts(&found, &["name = \"llama-3.1-8b\"", "name = \"vllm\"", "tp = 2"]);
            assert_eq!(codes(&found), [Code::MissingFlag], "{text}: {:?}", found.findings);
        }
        let text = format!("S=sglang\n$S serve --model-path {MODEL} --tp 2\n");
        has_parts(&import_text(&text, &on("h100-sxm")), &["name = \"sglang\"", "tp = 2"]);
    }

    #[test]
    fn a_program_that_only_a_shell_knows_is_that_of_its_options_and_told() {
        for (text, engine) in [
            (format!("$VLLM serve {MODEL} --tensor-parallel-size 2\n"), "vllm"),
            (format!("VLLM=$(which vllm)\n\"$VLLM\" serve {MODEL} --tensor-parallel-size=2\n"), "vllm"),
            (format!("$S serve --model-path {MODEL} --tp-size 2\n"), "sglang"),
        ] {
            let found = import_text(&text, &on("h100-sxm"));
            has_parts(&found, &["name = \"llama-3.1-8b\"", &format!("name = \"{engine}\""), "tp = 2"]);
            let told = said(&found).iter().filter(|what| what.contains("is taken for the engine")).count();
            assert_eq!((told, codes(&found).len()), (1, 2), "{text}: {:?}", found.findings);
        }
    }

    #[test]
    fn a_program_of_which_nothing_is_known_is_named() {
        for text in [format!("$VLLM serve {MODEL}\n"), format!("$CMD --model-path {MODEL} --tp 2\n")] {
            assert_eq!(crate::recognise(&text), None, "{text}");
            assert!(of_text(&text).is_some_and(|what| what.contains("by a variable")), "{text}: {:?}", of_text(&text));
        }
        assert_eq!(of_text("echo $A serves\n"), None);
    }
}
