//! vLLM 0.11.0 parses the template of a chat again for every request, one after another.
//!
//! Source: `resolve_chat_template_kwargs` of vllm/entrypoints/chat_utils.py, 0.11.0; 0.10.2 does not, and 0.11.1 keeps what it parsed. Prompts of gpt-oss are rendered
//! without one. Jinja 3.1 takes 17 ms of a core for Qwen3's 4,200 characters, and gpustack's runs of Qwen3-14B with a thousand chats at once look like 14 ms
//! (gpustack/gpustack, docs/performance-lab/qwen3-14b/h100.md).

use input::diagnostic::{Code, Finding};

use super::Server;

/// A warning where a server of that release is sent chats.
pub(crate) fn told(server: &Server) -> Option<Finding> {
    let is_release = server.keys.iter().any(|(key, value, _)| *key == "version" && value.contains("0.11.0"));
    let has_template = server.model.as_ref().is_some_and(|model| !model.contains("gpt-oss"));
    let is_chat = server.load.client.as_ref().is_some_and(|client| client.is_chat);
    let parses = server.engine == "vllm" && is_release && has_template && is_chat;
    let what = "vLLM 0.11.0 parses the chat template for every request, which is not counted: 10 to 20 ms each, one after another";
    let help = "later releases keep what they parsed, and completions have no template";
    parses.then(|| Finding::warning(Code::NotModelled, None, what).help(help))
}
