//! What the name of a configuration says of it, where the file is not there.

/// What lies in the memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hosted {
    /// Nothing.
    Nothing,
    /// Gradients and states of the optimizer (`offload_optimizer`).
    States,
    /// Shares of parameters (`offload_param`).
    Parameters,
    /// Both.
    All,
}

/// What a name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// Stage of ZeRO.
    pub(crate) stage: u64,
    /// What lies on the host.
    pub(crate) hosted: Hosted,
}

/// Files that programs come with, whose words say more than their names: hiyouga/LLaMA-Factory (`examples/deepspeed`) and axolotl-ai-cloud/axolotl
/// (`deepspeed_configs`).
const FILES: [(&str, Hosted); 5] = [
    ("ds_z2_offload_config.json", Hosted::States),
    ("ds_z3_offload_config.json", Hosted::All),
    ("zero2_torch_compile.json", Hosted::States),
    ("zero3_bf16_cpuoffload_all.json", Hosted::All),
    ("zero3_bf16_cpuoffload_params.json", Hosted::Parameters),
];

impl Hosted {
    /// Whether states of the optimizer are there.
    pub(crate) fn has_states(self) -> bool {
        matches!(self, Self::States | Self::All)
    }

    /// Whether shares of parameters are there.
    pub(crate) fn has_parameters(self) -> bool {
        matches!(self, Self::Parameters | Self::All)
    }

    /// The same behind the stage, in words.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::States => " with the optimizer on the host",
            Self::Parameters => " with parameters on the host",
            Self::All => " with optimizer and parameters on the host",
        }
    }
}

impl Named {
    /// What a file's name says, without its folders; `None` where it says no stage.
    pub(crate) fn of(file: &str) -> Option<Self> {
        let lower = file.to_lowercase();
        let digit = ["zero", "stage", "z"].into_iter().find_map(|mark| {
            let rest = lower.split_once(mark)?.1.trim_start_matches(['_', '-']);
            rest.chars().next()?.to_digit(10)
        });
        let stage = digit.filter(|stage| *stage <= 3)?;
        // Of other files that offload something the optimizer is taken.
        let other = if lower.contains("offload") { Hosted::States } else { Hosted::Nothing };
        let hosted = FILES.iter().find(|(name, _)| *name == lower).map_or(other, |(_, hosted)| *hosted);
        Some(Self { stage: stage.into(), hosted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_programs_are_known_by_name() {
        // As the files say it (`offload_optimizer`, `offload_param`).
        for (file, stage, hosted) in [
            ("ds_z3.json", 3, Hosted::Nothing),
            ("ds_z2_config.json", 2, Hosted::Nothing),
            ("ds_z2_offload_config.json", 2, Hosted::States),
            ("ds_z3_offload_config.json", 3, Hosted::All),
            ("zero1.json", 1, Hosted::Nothing),
            ("zero2_torch_compile.json", 2, Hosted::States),
            ("zero3_bf16.json", 3, Hosted::Nothing),
            ("zero3_bf16_cpuoffload_all.json", 3, Hosted::All),
            ("zero3_bf16_cpuoffload_params.json", 3, Hosted::Parameters),
            ("stage-3-offload.json", 3, Hosted::States),
        ] {
            assert_eq!(Named::of(file), Some(Named { stage, hosted }), "{file}");
        }
        assert_eq!(Named::of("offload.json"), None);
    }
}
