//! Programs of known projects, which take for adapters what no word of their commands says.
//!
//! Sources: haotian-liu/LLaVA @ 003466152 (`llava/train/train.py`), QwenLM/Qwen @ 00dceebba (`finetune.py`), deepspeedai/DeepSpeedExamples @ 45b4b7156
//! (`applications/DeepSpeed-Chat/dschat/utils/module/lora.py`), lm-sys/FastChat (`fastchat/train/train_lora.py`).

use input::diagnostic::Code;

use super::is_on;
use crate::flags::{Flag, Flags};
use crate::launch;

/// The switch of LLaVA's adapters, and of a projector that alone is trained.
const LLAVA: &str = "lora_enable";
const PROJECTOR: &str = "tune_mm_mlp_adapter";
/// The rank of DeepSpeed-Chat's adapters, and what trains nothing else.
const CHAT: &str = "lora_dim";
const ALONE: &str = "only_optimize_lora";

hw::words! {
    /// A program whose defaults are known.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Script: name {
        /// LLaVA: every linear layer of the language model.
        Llava = "LLaVA",
        /// Qwen's first models and those of 1.5: every linear layer.
        Qwen = "Qwen",
        /// DeepSpeed-Chat: every linear layer, with adapters of its own.
        Chat = "DeepSpeed-Chat",
        /// FastChat: queries and values.
        FastChat = "FastChat",
    }
}

impl Script {
    /// The program of a job, by words that it alone has, or by its file.
    pub(super) fn of(flags: &Flags<'_>, text: &str) -> Option<Self> {
        let value = |name: &str| flags.find(name).map_or_else(String::new, Flag::value).to_lowercase();
        let starts = |file: &str| {
            let mut words = launch::lines(text).flat_map(str::split_whitespace);
            words.any(|word| word == file || word.ends_with(&format!("/{file}")))
        };
        // Models that see images have adapters elsewhere.
        let is_qwen = value("model_name_or_path").contains("qwen") && !value("model_name_or_path").contains("-vl");
        if flags.find(LLAVA).is_some() || starts("llava/train/train_mem.py") {
            Some(Self::Llava)
        } else if flags.find(CHAT).is_some() || flags.find("zero_stage").is_some() && flags.find("data_split").is_some()
        {
            Some(Self::Chat)
        } else if starts("finetune.py") && is_qwen && flags.find("use_lora").is_some() {
            Some(Self::Qwen)
        } else {
            starts("fastchat/train/train_lora.py").then_some(Self::FastChat)
        }
    }

    /// Rank of adapters without a word.
    pub(super) const fn rank(self) -> u64 {
        match self {
            Self::Llava | Self::Qwen => 64,
            Self::Chat | Self::FastChat => 8,
        }
    }

    /// Whether adapters stand beside every product without a word.
    pub(super) const fn has_all(self) -> bool {
        !matches!(self, Self::FastChat)
    }

    /// Whether its adapters have PEFT's 32 bits and a dropout, which it asks for by itself.
    pub(super) const fn is_of_peft(self) -> bool {
        !matches!(self, Self::Chat)
    }

    /// Says what it trains beside adapters.
    pub(super) fn beside(self, flags: &mut Flags<'_>) {
        let chats = flags.find("model_name_or_path").is_some_and(|flag| flag.value().to_lowercase().contains("chat"));
        let (name, what) = match self {
            Self::Llava => (LLAVA, "LLaVA trains the projector of images in whole beside adapters"),
            Self::Qwen if !chats && !is_on(flags, "q_lora") => {
                ("use_lora", "Qwen's `finetune.py` trains both tables of a base model in whole beside adapters")
            }
            Self::Chat if !is_on(flags, ALONE) => {
                (CHAT, "DeepSpeed-Chat trains tables, norms and biases in whole beside adapters")
            }
            _ => return,
        };
        let help = "their gradients and states are not counted";
        let at = flags.at(name);
        flags.warn(Code::NotModelled, at, what, help);
    }
}

/// Refuses a job that trains a projector between an encoder of images and the model, and nothing of the model.
pub(super) fn projector(flags: &mut Flags<'_>) {
    if is_on(flags, PROJECTOR) {
        let what = format!("`{}` trains a projector of images alone, and nothing of the model", flags.shown(PROJECTOR));
        let help = "steps are modelled that train a model, or adapters beside its products";
        flags.refuse(Code::UnsupportedJob, flags.at(PROJECTOR), what, help);
    }
}
