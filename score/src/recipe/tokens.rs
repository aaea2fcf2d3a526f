//! How many tokens a server computes for each that its client asked for: more than one where both split text in different ways.
//!
//! The client of InferenceX makes a prompt of as many tokens as it is to have, and sends their text. It runs in the container of the server. SGLang 0.5.10
//! brought transformers 5, which splits text of DeepSeek by spaces as Llama's tokenizer does, not by bytes as the model's own file says. SGLang repairs
//! that for itself, and its client did not: "a 7000-token prompt on the client becomes ~35000 tokens on the server"
//! (SemiAnalysisAI/InferenceX @ ef01c2205, pull request 937). The repair reached models by name with 5fe6d56ee on 2026-05-15 (pull request 1381).
//! Rebuilt with transformers 5.3.0 and an earlier tokenizer of the same makers and kind (100,000 words and not 128,000) it is 4.2 times.

use serve::engine_preset::Version;

use super::is_within;
use crate::client::Client;
use crate::run::Run;

/// First version of SGLang whose container has transformers 5.
const SINCE: Version = Version(0, 5, 10);
/// Days on which client and server do not split text alike: any before the last, on which they do again.
const DAYS: [&str; 2] = ["", "2026-05-15"];
/// Tokens of the server for each of the client's.
const RATIO: u32 = 5;

/// Tokens of the server for each of the client's in a run; of one without a day nothing is known.
pub fn per_asked(run: &Run, client: &Client) -> u32 {
    let has_client = client.name == "inferencex" && !run.is_split() && run.engine == "sglang";
    let is_new = run.engine_version() >= SINCE && is_within(DAYS, &run.measured);
    if has_client && is_new && run.model.contains("DeepSeek") { RATIO } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client;

    fn ratio(version: &str, model: &str, day: &str) -> u32 {
        let measured = if day.is_empty() { String::new() } else { format!("measured={day}T00:00:00.000Z") };
        let run = crate::run::of_line(&format!(
            "a,db-dump/x; silicon_concurrency=4; {measured},sglang,{version},{model},b300_sxm,fp8,agg,1024,1024,fp8_block,fp8_block,4,8,500,20"
        ));
        per_asked(&run, client::of(&run.source, &run.measured))
    }

    #[test]
    fn one_release_and_one_maker_have_longer_prompts() {
        assert_eq!(ratio("0.5.10.post1", "deepseek-ai/DeepSeek-V3", "2026-04-17"), 5);
        assert_eq!(ratio("0.5.9", "deepseek-ai/DeepSeek-V3", "2026-03-25"), 1);
        assert_eq!(ratio("0.5.10.post1", "Qwen/Qwen3.5-397B-A17B", "2026-04-17"), 1);
        assert_eq!(ratio("0.5.10.post1", "deepseek-ai/DeepSeek-V3", "2026-05-20"), 1);
        assert_eq!(ratio("0.5.10.post1", "deepseek-ai/DeepSeek-V3", ""), 1);
    }
}
