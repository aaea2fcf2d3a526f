//! Texts in place that a script writes into files: `cat >FILE <<END`, `cat <<END >FILE`, `tee FILE <<END`, and `echo -e "…" >FILE` in one line.

use std::borrow::Cow;
use std::ops::Range;

use crate::launch::{self, Launch};
use crate::shell::{UNKNOWN, commands};

/// A text that a script writes into a file.
pub(crate) struct Written<'t> {
    /// As it stands in the script; of `echo` with its lines cut.
    body: Cow<'t, str>,
    /// Where it stands.
    at: Range<usize>,
    /// Whether a quote around its mark keeps the shell from it.
    is_quoted: bool,
}

impl<'t> Written<'t> {
    /// What a script writes into a file of this name.
    pub(crate) fn of(text: &'t str, name: &str) -> Option<Self> {
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            start += line.len();
            if let Some((body, is_quoted)) = echoed(line, name, text) {
                return Some(Self { body: Cow::Owned(body), at: start - line.len()..start, is_quoted });
            }
            let Some((targets, mark)) = targets_and_mark(line) else { continue };
            if !targets.iter().any(|target| is_named(target, name, text)) {
                continue;
            }
            let end = mark.trim_matches(QUOTES);
            let body = text.get(start..)?;
            let n: usize = body.split_inclusive('\n').take_while(|line| line.trim() != end).map(str::len).sum();
            let is_quoted = mark.contains(QUOTES);
            return Some(Self { body: Cow::Borrowed(body.get(..n)?), at: start..start + n, is_quoted });
        }
        None
    }

    /// Its keys as options. A line into which the shell puts values has no place of its own: the text's place stands for it.
    pub(crate) fn options(&self, script: &str) -> Option<Launch> {
        if self.is_plain() && matches!(self.body, Cow::Borrowed(_)) {
            let mut options = launch::of_unfolded_yaml(&self.body).ok()?;
            options
                .flags
                .iter_mut()
                .for_each(|flag| flag.at = flag.at.start + self.at.start..flag.at.end + self.at.start);
            return Some(options);
        }
        launch::of_unfolded_yaml(&self.filled(script)?).ok().map(|options| options.moved_to(&self.at))
    }

    /// Whether the shell puts nothing into it.
    fn is_plain(&self) -> bool {
        self.is_quoted || !self.body.contains(['$', '`'])
    }

    /// The text with what the shell puts into it.
    pub(crate) fn filled(&self, script: &str) -> Option<String> {
        if self.is_plain() {
            Some(self.body.clone().into_owned())
        } else {
            value(&self.body.replace('"', "\\\""), script)
        }
    }
}

/// Quotes of a shell.
const QUOTES: [char; 2] = ['\'', '"'];

/// What `echo -e "…" >FILE` writes into a file of this name, and whether the shell is kept from it.
fn echoed(line: &str, name: &str, script: &str) -> Option<(String, bool)> {
    let rest = line.trim().strip_prefix("echo ")?.trim_start();
    let rest = rest.strip_prefix("-e ").unwrap_or(rest).trim_start();
    let quote = rest.chars().next().filter(|letter| QUOTES.contains(letter))?;
    let end = rest.rfind(quote).filter(|end| *end > 0)?;
    let is_target = targets(&rest[end + 1..]).into_iter().any(|target| is_named(target, name, script));
    is_target.then(|| (rest[1..end].replace("\\n", "\n"), quote == '\''))
}

/// Files that a line with a text in place may write, and the mark that ends the text.
fn targets_and_mark(line: &str) -> Option<(Vec<&str>, &str)> {
    let (before, behind) = line.split_once("<<").filter(|(_, behind)| !behind.starts_with('<'))?;
    let behind = behind.trim_start_matches('-').trim_start();
    let mark = behind.split([' ', '\t', '\n', '>', '|', ';']).next().filter(|mark| !mark.is_empty())?;
    let rest = &behind[mark.len()..];
    let targets: Vec<&str> = [before, rest].into_iter().flat_map(targets).collect();
    Some((targets, mark))
}

/// Files behind `>` and behind `tee`.
fn targets(part: &str) -> Vec<&str> {
    let of_sign = part.split('>').skip(1).filter_map(|behind| behind.split_whitespace().next());
    let of_tee =
        part.split_once("tee ").and_then(|(_, behind)| behind.split_whitespace().find(|word| !word.starts_with('-')));
    of_sign.chain(of_tee).collect()
}

/// Whether a word of a script is the name of a file, which may stand in a variable.
fn is_named(target: &str, name: &str, script: &str) -> bool {
    if !target.contains('$') {
        return target.trim_matches(QUOTES).trim_start_matches("./") == name.trim_start_matches("./");
    }
    let is_unknown = name.chars().all(|letter| letter == UNKNOWN);
    !is_unknown && value(target.trim_matches('"'), script).is_some_and(|value| value == name)
}

/// A text between double quotes, with what the variables of a script are at its end.
fn value(text: &str, script: &str) -> Option<String> {
    let commands = commands(&format!("{script}\n: \"{text}\"\n")).ok()?;
    Some(commands.last()?.get(1)?.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_in_braces_are_those_of_deeper_lines_and_nothing_is_null() {
        let of = |yaml: &str| {
            let text =
                format!("cat >o.yaml <<END\n{yaml}\nEND\ntrtllm-serve Qwen/Qwen3-8B --extra_llm_api_options o.yaml\n");
            crate::example::import_text(&text, &crate::example::on("h100-sxm"))
        };
        for (braces, lines) in [
            (
                "kv_cache_config: {free_gpu_memory_fraction: 0.5, dtype: fp8}",
                "kv_cache_config:\n  free_gpu_memory_fraction: 0.5\n  dtype: fp8",
            ),
            ("cuda_graph_config: {max_batch_size: 8}", "cuda_graph_config:\n  max_batch_size: 8"),
            ("cuda_graph_config: ~", "cuda_graph_config: null"),
            ("cuda_graph_config:", "cuda_graph_config: null"),
            ("{cuda_graph_config: {max_batch_size: 8}}", "cuda_graph_config:\n  max_batch_size: 8"),
        ] {
            let [one, other] = [of(braces), of(lines)];
            assert_eq!(one.scenario, other.scenario, "{braces}: {:?}", one.findings);
        }
        assert!(of("cuda_graph_config: ~").scenario.contains("graph_max = 0"));
        assert!(of("kv_cache_config: {free_gpu_memory_fraction: 0.5}").scenario.contains("memory_ratio = 0.5"));
    }

    #[test]
    fn a_text_is_written_in_several_ways() {
        for line in [
            "cat >o.yaml <<END",
            "cat << 'END' > o.yaml",
            "cat <<END >o.yaml",
            "cat > \"$CFG\" << END",
            "cat << END > ${DIR}/../o.yaml",
            "tee o.yaml << END",
            "tee o.yaml >/dev/null <<-END",
            "cat <<END | sudo tee \"$CFG\" >/dev/null",
        ] {
            let script = format!("DIR=x\nCFG=o.yaml\n{line}\na: 1\n  b: 2\nEND\nrun\n");
            let name = if line.contains("..") { "x/../o.yaml" } else { "o.yaml" };
            let written = Written::of(&script, name).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(written.body, "a: 1\n  b: 2\n", "{line}");
            assert_eq!(&script[written.at], written.body, "{line}");
        }
        for line in ["cat >other.yaml <<END", "cat <<END", "run o.yaml <<END", "cat <<< \"o.yaml\""] {
            let script = format!("{line}\na: 1\nEND\n");
            assert!(Written::of(&script, "o.yaml").is_none(), "{line}");
        }
    }

    #[test]
    fn lines_of_an_echo_are_a_text() {
        let script = "echo -e \"a: 1\\nb:\\n  c: True\" > o.yaml\nrun\n";
        let options = Written::of(script, "o.yaml").and_then(|written| written.options(script)).expect("options");
        let names: Vec<(&str, String)> = options.flags.iter().map(|flag| (flag.name.as_str(), flag.value())).collect();
        assert_eq!(names, [("a", "1".to_owned()), ("b", String::new()), ("b.c", "true".to_owned())]);
        assert!(Written::of(script, "./o.yaml").is_some());
        assert!(Written::of("echo \"a: 1\" > other.yaml\n", "o.yaml").is_none());
    }

    #[test]
    fn a_shell_puts_values_into_a_text_whose_mark_has_no_quotes() {
        let values = |mark: &str| {
            let script = format!("N=4\ncat >o.yaml <<{mark}\na: $N\nb: \"${{M:-x}}\"\nc: $((N * 2))\nEND\n");
            let written = Written::of(&script, "o.yaml").expect("a text");
            let options = written.options(&script).expect("YAML");
            options.flags.iter().map(|flag| flag.value()).collect::<Vec<_>>()
        };
        assert_eq!(values("END"), ["4", "x", "8"]);
        assert_eq!(values("'END'")[0], "$N");
    }

    /// NVIDIA's pages write lists in lines of their own, at the indentation of their key or deeper.
    #[test]
    fn words_of_a_list_stand_behind_its_key() {
        for indentation in ["  ", "    "] {
            let list: String = ["1", "128", "384"].iter().map(|n| format!("{indentation}- {n}\n")).collect();
            let script = format!(
                "cat >o.yaml <<'END'\ncuda_graph_config:\n  batch_sizes:\n{list}enable_attention_dp: true\nEND\n"
            );
            let options = Written::of(&script, "o.yaml").and_then(|written| written.options(&script)).expect("options");
            let all: Vec<(&str, String)> =
                options.flags.iter().map(|flag| (flag.name.as_str(), flag.value())).collect();
            let expected = [
                ("cuda-graph-config", String::new()),
                ("cuda-graph-config.batch-sizes", "1 128 384".to_owned()),
                ("enable-attention-dp", "true".to_owned()),
            ];
            assert_eq!(all, expected, "{script}");
        }
    }

    #[test]
    fn batches_that_nobody_joins_are_refused_with_the_reason() {
        for (key, is_refused) in [
            ("scheduler_config:\n  capacity_scheduler_policy: STATIC_BATCH", true),
            ("scheduler_config: {capacity_scheduler_policy: MAX_UTILIZATION}", false),
            ("batching_type: STATIC", true),
            ("batching_type: INFLIGHT", false),
        ] {
            let text = format!("model: Qwen/Qwen3-8B\nkv_cache_config: {{dtype: fp8}}\n{key}\n");
            let found = crate::example::import_text(&text, &crate::example::on("h100-sxm"));
            let said = crate::example::said(&found);
            let is_told = said.iter().any(|what| what.contains("batches that nobody joins"));
            assert_eq!(is_told, is_refused, "{key}: {said:?}");
            assert_eq!(said.len(), 1 + usize::from(is_refused), "{key}: {said:?}");
        }
    }
}
