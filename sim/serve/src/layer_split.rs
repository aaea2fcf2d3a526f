//! How an engine cuts a model's layers into the stages of a pipeline where these do not share them evenly: data, with sources. Units: layers.

use engine::stage;

/// Which stages have one layer more than others, or all that are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerSplit {
    /// Those in the middle, away from embedding and head: where no engine is named.
    #[default]
    Middle,
    /// The later ones, without the last. vllm-project/vllm, `get_pp_indices` in vllm/distributed/utils.py (#13839, 0.8.0 on).
    BeforeLast,
    /// The last has all that are left. sgl-project/sglang, `get_pp_indices` in python/sglang/srt/distributed/utils.py up to 0.5.5 (issue #9798).
    AllOnLast,
    /// The last ones. The same, from 0.5.6 on (#13977).
    LastOnes,
    /// The first ones. NVIDIA/TensorRT-LLM, `pp_layers` in tensorrt_llm/mapping.py: `torch.tensor_split`.
    FirstOnes,
}

impl LayerSplit {
    /// Layers of every stage.
    pub fn counts(self, n_layers: u32, n_stages: u32) -> Vec<u32> {
        let (base, rest) = (n_layers / n_stages, n_layers % n_stages);
        let with_one_more = match self {
            Self::Middle => return stage::even(n_layers, n_stages),
            Self::BeforeLast => n_stages.saturating_sub(1 + rest)..n_stages - 1,
            Self::AllOnLast => 0..0,
            Self::LastOnes => n_stages - rest..n_stages,
            Self::FirstOnes => 0..rest,
        };
        let mut counts: Vec<u32> =
            (0..n_stages).map(|stage| base + u32::from(with_one_more.contains(&stage))).collect();
        if self == Self::AllOnLast {
            counts[n_stages as usize - 1] += rest;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [LayerSplit; 5] = [
        LayerSplit::Middle,
        LayerSplit::BeforeLast,
        LayerSplit::AllOnLast,
        LayerSplit::LastOnes,
        LayerSplit::FirstOnes,
    ];

    /// What the pull requests that brought each rule in print of DeepSeek-R1 and of others, and vLLM's test of it (tests/distributed/test_pipeline_partition.py).
    #[test]
    fn engines_cut_layers_as_they_print() {
        assert_eq!(LayerSplit::BeforeLast.counts(61, 8), [7, 7, 8, 8, 8, 8, 8, 7]);
        assert_eq!(LayerSplit::BeforeLast.counts(94, 4), [23, 24, 24, 23]);
        assert_eq!(LayerSplit::BeforeLast.counts(32, 5), [6, 6, 7, 7, 6]);
        assert_eq!(LayerSplit::BeforeLast.counts(5, 3), [2, 2, 1]);
        assert_eq!(LayerSplit::AllOnLast.counts(61, 8), [7, 7, 7, 7, 7, 7, 7, 12]);
        assert_eq!(LayerSplit::LastOnes.counts(61, 8), [7, 7, 7, 8, 8, 8, 8, 8]);
        assert_eq!(LayerSplit::FirstOnes.counts(61, 8), [8, 8, 8, 8, 8, 7, 7, 7]);
    }

    #[test]
    fn every_rule_keeps_all_layers_and_cuts_evenly_what_comes_out_even() {
        for rule in ALL {
            for n_stages in 1..9 {
                for n_layers in n_stages..40 {
                    let counts = rule.counts(n_layers, n_stages);
                    assert_eq!((counts.len(), counts.iter().sum::<u32>()), (n_stages as usize, n_layers), "{rule:?}");
                    let is_even = counts.iter().all(|n| *n == n_layers / n_stages);
                    assert!(n_layers % n_stages > 0 || is_even, "{rule:?}: {counts:?}");
                }
            }
        }
    }
}
