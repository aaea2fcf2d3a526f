//! Drafted tokens in servers' words.

use engine::model::DraftHead;
use serde_json::Value;

/// Drafts of a table as servers are told of them.
struct Told<'v> {
    n: u64,
    /// The model that drafts, `mtp` for the served model's own layer; nobody in particular looks them up.
    by: Option<&'v str>,
    /// Branches and verified tokens.
    tree: [u64; 2],
}

impl<'v> Told<'v> {
    /// `None` where a server has no words: heads lie in files that a scenario does not name.
    fn of(value: &'v Value) -> Option<Self> {
        let n = value.get("draft_tokens")?.as_u64()?;
        let count = |key: &str, usual: u64| value.get(key).and_then(Value::as_u64).unwrap_or(usual);
        let by = value.get("draft_model").and_then(Value::as_str);
        let tree = [count("draft_branches", 1), count("verified_tokens", n + 1)];
        (n == 0 || !is_head(value)).then_some(Self { n, by, tree })
    }

    /// The same where a server has no words for trees.
    fn chain(value: &'v Value) -> Option<Self> {
        Self::of(value).filter(|told| told.n == 0 || told.tree == [1, told.n + 1])
    }
}

/// Whether a head that was trained for the model drafts.
fn is_head(value: &Value) -> bool {
    let by = value.get("draft_model").and_then(Value::as_str);
    DraftHead::ALL.iter().any(|head| by == Some(head.name()))
}

/// Whether SGLang's loop waits for the host beside such drafts: those of the text and trees (`srt/server_args.py`).
pub(crate) fn are_awaited(value: &Value) -> bool {
    Told::of(value).is_some_and(|told| told.n > 0 && (told.by.is_none() || told.tree != [1, told.n + 1]))
}

/// Why a server has no words, as the end of a sentence.
pub(crate) fn why_unsaid(value: &Value) -> &'static str {
    if is_head(value) {
        " (servers are told the file of a head, which a plan does not name; `mtp` and models of the catalogue can be told)"
    } else {
        " (SGLang alone has words for trees of drafts)"
    }
}

pub(crate) fn vllm(value: &Value) -> Option<Vec<String>> {
    let config = match Told::chain(value)? {
        Told { n: 0, .. } => return Some(Vec::new()),
        Told { n, by: Some("mtp"), .. } => serde_json::json!({ "method": "mtp", "num_speculative_tokens": n }),
        Told { n, by: Some(model), .. } => {
            serde_json::json!({ "method": "draft_model", "model": model, "num_speculative_tokens": n })
        }
        Told { n, by: None, .. } => serde_json::json!({ "method": "ngram", "num_speculative_tokens": n }),
    };
    Some(vec![format!("--speculative-config '{config}'")])
}

pub(crate) fn sglang(value: &Value) -> Option<Vec<String>> {
    let Told { n, by, tree: [branches, verified] } = Told::of(value)?;
    if n == 0 {
        return Some(Vec::new());
    }
    let depth = format!("--speculative-num-steps {n} --speculative-eagle-topk {branches}");
    let mut words = match by {
        Some("mtp") => vec!["--speculative-algorithm NEXTN".to_owned(), depth],
        Some(model) => {
            let path = format!("--speculative-draft-model-path {model}");
            vec!["--speculative-algorithm STANDALONE".to_owned(), path, depth]
        }
        // One draft after another: SGLang refuses trees beside pages of several tokens.
        None => {
            vec!["--speculative-algorithm NGRAM".to_owned(), format!("--speculative-ngram-max-bfs-breadth {branches}")]
        }
    };
    // Of what is verified at once, one token is no draft.
    words.push(format!("--speculative-num-draft-tokens {verified}"));
    Some(words)
}

pub(crate) fn trtllm(value: &Value) -> Option<Vec<String>> {
    let Told { n, by, .. } = Told::chain(value)?;
    let mut lines = match by {
        _ if n == 0 => return Some(Vec::new()),
        Some("mtp") => vec!["decoding_type: MTP".to_owned(), format!("num_nextn_predict_layers: {n}")],
        Some(model) => {
            let path = format!("speculative_model_dir: {model}");
            vec!["decoding_type: Draft_Target".to_owned(), format!("max_draft_len: {n}"), path]
        }
        None => vec!["decoding_type: NGram".to_owned(), format!("max_draft_len: {n}")],
    };
    lines.iter_mut().for_each(|line| line.insert_str(0, "speculative_config."));
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_goes_to_the_server_that_has_words_for_it_and_a_head_to_none() {
        let tree =
            serde_json::json!({ "draft_tokens": 3, "draft_model": "mtp", "draft_branches": 4, "verified_tokens": 8 });
        let words = sglang(&tree).expect("words").join(" ");
        assert!(words.contains("--speculative-eagle-topk 4") && words.contains("num-draft-tokens 8"), "{words}");
        assert_eq!((vllm(&tree), trtllm(&tree)), (None, None));
        let head = serde_json::json!({ "draft_tokens": 3, "draft_model": "eagle3" });
        assert_eq!((vllm(&head), sglang(&head), trtllm(&head)), (None, None, None));
        assert!(why_unsaid(&head).contains("the file of a head") && why_unsaid(&tree).contains("trees"));
    }
}
