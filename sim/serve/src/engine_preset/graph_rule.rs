//! Which batches engines capture as CUDA graphs, and what they do with one of another size: data, with sources. Units: sequences.

use crate::step_cost::graphs::GraphFit;

/// Which batches an engine captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphRule {
    /// 1, 2, 4, every eighth up to 256, every sixteenth beyond.
    Vllm,
    /// 1, 2, 4, 8, 12, every eighth up to 256, every sixteenth up to 512, every 32nd beyond.
    Sglang,
    /// 1, 2, 4, every eighth up to 128, then powers of two, and the largest: `_generate_cuda_graph_batch_sizes` of tensorrt_llm/llmapi/llm_args.py with
    /// `enable_padding`, which `trtllm-bench` asks for (tensorrt_llm/bench/benchmark/utils/general.py).
    Trtllm,
    /// 1 to 32, 64, 128, then powers of two, and the largest: the same without `enable_padding`, as is its default. A batch of another size runs without a
    /// graph.
    TrtllmExact,
    /// Every size: nothing is padded.
    Each,
}

impl GraphRule {
    /// The rule of the same engine where batches of other sizes are padded, and where they are not; `None` where it has no such choice. Without padding SGLang
    /// captures every size (`_generate_cuda_graph_batch_sizes` in server_args.py).
    pub const fn padding(self, pads: bool) -> Option<Self> {
        match (self, pads) {
            (Self::Vllm, false) => None,
            (Self::Vllm, true) => Some(Self::Vllm),
            (Self::Sglang | Self::Each, true) => Some(Self::Sglang),
            (Self::Sglang | Self::Each, false) => Some(Self::Each),
            (Self::Trtllm | Self::TrtllmExact, true) => Some(Self::Trtllm),
            (Self::Trtllm | Self::TrtllmExact, false) => Some(Self::TrtllmExact),
        }
    }

    /// What a batch does whose size is not captured.
    pub const fn fit(self) -> GraphFit {
        match self {
            Self::Vllm | Self::Sglang | Self::Trtllm => GraphFit::Padded,
            Self::TrtllmExact | Self::Each => GraphFit::Exact,
        }
    }

    /// Largest batch that is captured where so many sequences and tokens run at once. vLLM holds mixed batches as well, and takes twice the sequences, or what is
    /// written (`_set_cudagraph_sizes`). The others capture batches that only decode (SGLang: `get_batch_sizes_to_capture`; TensorRT-LLM:
    /// `_filter_cuda_graph_batch_sizes`).
    pub fn most(self, (sequences_max, tokens_max): (u32, u32), is_written: bool) -> u32 {
        match self {
            Self::Vllm if is_written => tokens_max,
            Self::Vllm => sequences_max.saturating_mul(2).min(tokens_max),
            Self::Trtllm | Self::TrtllmExact => sequences_max.min(tokens_max),
            Self::Sglang | Self::Each => sequences_max,
        }
    }

    /// Captured batches where so large ones are asked for and so large ones run, and the largest that runs in a graph. SGLang captures a batch of all places
    /// besides (`get_batch_sizes_to_capture`).
    pub fn captured(self, asked: u32, most: u32) -> (Vec<u32>, u32) {
        let largest = asked.min(most);
        let mut sizes = self.sizes(if self == Self::TrtllmExact { asked } else { largest });
        sizes.retain(|size| *size <= most);
        let last = sizes.last().copied().unwrap_or(0);
        (sizes, if matches!(self, Self::Sglang | Self::Each) { largest } else { last })
    }

    /// The same of a list that is given. Where it goes beyond what runs, SGLang and TensorRT-LLM with padding capture the largest that does.
    pub fn captured_of(self, list: &[u32], most: u32) -> (Vec<u32>, u32) {
        let adds_largest = matches!(self, Self::Sglang | Self::Trtllm) && list.iter().any(|size| *size > most);
        let mut sizes: Vec<u32> = list.iter().copied().filter(|size| *size <= most).collect();
        sizes.extend(adds_largest.then_some(most));
        sizes.sort_unstable();
        sizes.dedup();
        let last = sizes.last().copied().unwrap_or(0);
        (sizes, last)
    }

    /// Captured batches of at most so many sequences, ascending.
    pub fn sizes(self, largest: u32) -> Vec<u32> {
        let mut sizes: Vec<u32> = match self {
            Self::Each => Vec::new(),
            Self::Vllm => stepped(&[1, 2, 4], &[(8, 256, 8), (256, largest + 1, 16)]),
            Self::Sglang => stepped(&[1, 2, 4, 8, 12], &[(16, 257, 8), (272, 512, 16), (512, largest + 1, 32)]),
            Self::Trtllm => doubled(stepped(&[1, 2, 4], &[(8, 129, 8)]), largest),
            Self::TrtllmExact => doubled(stepped(&[64, 128], &[(1, 33, 1)]), largest),
        };
        sizes.retain(|size| *size <= largest);
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// Some sizes, and ranges of a start, an end that is left out and a step.
fn stepped(first: &[u32], ranges: &[(u32, u32, usize)]) -> Vec<u32> {
    let mut sizes = first.to_vec();
    for (start, end, step) in ranges {
        sizes.extend((*start..*end).step_by(*step));
    }
    sizes
}

/// Some sizes, powers of two from 256 on, and the largest.
fn doubled(mut sizes: Vec<u32>, largest: u32) -> Vec<u32> {
    sizes.extend((8..31).map(|power| 1_u32 << power).take_while(|size| *size < largest));
    sizes.push(largest);
    sizes
}
