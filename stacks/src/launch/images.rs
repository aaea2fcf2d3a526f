//! Images of containers: which of them starts a server, and which engine's version its tag says.

use crate::flags::named;
use crate::shell::UNKNOWN;

/// Images whose tags are versions of their engines: `vllm/vllm-openai:v0.9.2`, `lmsysorg/sglang:v0.5.5-cu129`. Those of others that are built on them have
/// versions of their own.
const VERSIONED: [&str; 2] = ["vllm/vllm-openai", "lmsysorg/sglang"];

/// How the images begin whose command is vLLM's server, whoever builds them.
const OF_VLLM: &str = "vllm-openai";

/// Options that vLLM's server has, and none of the programs that run containers.
pub(crate) const OPTIONS: [&str; 9] = [
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "max-model-len",
    "max-num-seqs",
    "max-num-batched-tokens",
    "gpu-memory-utilization",
    "kv-cache-dtype",
    "enforce-eager",
];

/// Options of `docker run` and `podman run` without a value (docker/cli, `cli/command/container/run.go`).
const SWITCHES: [&str; 14] =
    ["d", "detach", "i", "interactive", "t", "tty", "it", "ti", "dit", "rm", "init", "privileged", "read-only", "P"];

/// The version that the first image among some words says; none for a tag such as `latest`.
pub(super) fn version(words: &[String]) -> Option<String> {
    let tag = words.iter().find_map(|word| {
        let (name, tag) = word.rsplit_once(':')?;
        VERSIONED.iter().any(|own| is_image(name, own)).then(|| tag.trim_start_matches('v'))
    })?;
    let is_of_number = |letter: char| letter.is_ascii_digit() || letter == '.';
    let end = tag.find(|letter| !is_of_number(letter)).unwrap_or(tag.len());
    let number = tag[..end].trim_end_matches('.');
    number.contains('.').then(|| number.to_owned())
}

/// Whether a name is that of an image, from any registry or as the usual of a variable.
fn is_image(name: &str, image: &str) -> bool {
    let before = name.strip_suffix(image);
    before.is_some_and(|before| before.is_empty() || before.ends_with('/') || before.ends_with(":-"))
}

/// Whether a word is the image of a vLLM, or one that only a shell knows.
pub(crate) fn is_one(word: &str) -> bool {
    is_of_vllm(word) || is_open(word)
}

fn is_of_vllm(word: &str) -> bool {
    word.rsplit('/').next().is_some_and(|last| last.starts_with(OF_VLLM))
}

/// Whether only a shell knows which image a word is.
pub(super) fn is_open(word: &str) -> bool {
    let last = word.rsplit('/').next().and_then(|last| last.split(':').next()).unwrap_or_default();
    last.starts_with('$') || !last.is_empty() && last.chars().all(|letter| letter == UNKNOWN)
}

/// The image of vLLM's server in a command that runs a container: what follows are its options. One that only a shell knows is such an image where
/// options follow that vLLM alone has.
pub(crate) fn of_vllm(words: &[String]) -> Option<usize> {
    let run = words.iter().position(|word| word == "run")?;
    let behind = || words.iter().enumerate().skip(run + 1);
    let known = behind().find(|(_, word)| is_of_vllm(word)).map(|(at, _)| at);
    known.or_else(|| {
        let (at, _) = behind().find(|(at, word)| is_open(word) && !is_value(&words[at - 1]))?;
        let is_option = |word: &String| {
            word.starts_with("--") && OPTIONS.contains(&named(word.split('=').next().unwrap_or(word)).as_str())
        };
        words[at..].iter().any(is_option).then_some(at)
    })
}

/// Whether an option takes the word behind it.
fn is_value(before: &str) -> bool {
    before.starts_with('-') && !before.contains('=') && !SWITCHES.contains(&before.trim_start_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(|word| word.replace("$X", &UNKNOWN.to_string())).collect()
    }

    #[test]
    fn tags_of_other_builders_are_no_versions() {
        for (image, expected) in [
            ("vllm/vllm-openai:v0.9.2", Some("0.9.2")),
            ("registry.example/vllm/vllm-openai:v0.10.0-x86_64", Some("0.10.0")),
            ("lmsysorg/sglang:v0.5.5-cu129", Some("0.5.5")),
            ("${IMAGE:-vllm/vllm-openai:v0.11.0}", Some("0.11.0")),
            ("vllm/vllm-openai:latest", None),
            ("lmcache/vllm-openai:v0.3.9post2", None),
            ("somebody/sglang:v1.2.3", None),
            ("my-vllm/vllm-openai:v1.2.3", None),
            ("vllm-openai:v0.9.2", None),
        ] {
            assert_eq!(version(&words(image)).as_deref(), expected, "{image}");
        }
    }

    #[test]
    fn images_that_start_vllm_are_found() {
        for (command, expected) in [
            ("docker run --gpus all lmcache/vllm-openai:v0.3.9 m --tensor-parallel-size 2", Some(4)),
            ("docker run --rm $X m --tensor-parallel-size 2", Some(3)),
            ("docker run -it --name $X $X/$X:$X $X --max-num-seqs=32", Some(5)),
            ("docker run -v $X:/x --name $X tgi --max-num-seqs 32", None),
            ("docker run $X --model-id m --num-shard 4", None),
            ("srun $X --tensor-parallel-size 4", None),
        ] {
            assert_eq!(of_vllm(&words(command)), expected, "{command}");
        }
    }
}
