//! The batching rule of a plan beside that of the server which is started from it: another one is told in a remark.

/// A remark where a plan batches by another rule than the server that is started.
pub(crate) fn other_rule(planned: &str, of_server: &str) -> Option<String> {
    // Chunked context of TensorRT-LLM is an option of it.
    let is_same = planned == of_server || planned == CHUNKS && of_server == "trtllm";
    (!is_same).then(|| {
        format!(
            "# Planned with the batching rule `{planned}`, which this server does not have: it batches by `{of_server}`, and its times are others.\n\
             # `policies.run = [\"{of_server}\"]` predicts it.\n"
        )
    })
}

/// The rule of a server that decodes first and cuts prompts by what is left of its tokens.
pub(crate) const CHUNKS: &str = "sarathi";

#[cfg(test)]
mod tests {
    use serve::replica::Role;

    use crate::exported::{deployed, replica, written};
    use crate::settings::Settings;

    /// A server batches by its own rule, whatever the plan has.
    #[test]
    fn a_rule_that_the_server_does_not_have_is_said() {
        for (target, own) in
            [("vllm", "vllm-v1"), ("sglang", "sglang"), ("trtllm", "trtllm"), ("kubernetes", "vllm-v1")]
        {
            for batcher in ["vllm-v0", "vllm-v1", "sarathi", "trtllm", "sglang"] {
                let deployment = deployed(vec![replica(("both", Role::Both), 2, 4, batcher)]);
                let Ok(script) = written(target, &[deployment], &Settings::new()) else { continue };
                let is_chunked = target == "trtllm" && batcher == "sarathi";
                let is_same = batcher == own || is_chunked || target == "kubernetes" && batcher == "sglang";
                let remark =
                    format!("batching rule `{batcher}`, which this server does not have: it batches by `{own}`");
                assert_eq!(script.contains(&remark), !is_same, "{target} {batcher}: {script}");
                assert_eq!(script.contains("enable_chunked_prefill: true"), is_chunked, "{script}");
            }
        }
    }
}
