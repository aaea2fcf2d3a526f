//! Files that were changed at random are read or refused in words: no panic, and no text that grows without bound.

use proptest::prelude::*;

use crate::{Machine, Stack, import, recognise};

/// A file of every format, with whatever its reader knows.
const FILES: [(Stack, &str); 5] = [
    (
        Stack::Megatron,
        "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=8\nN=$((2*${M:-4}+1)) # why\nL=(--num-layers 12 \\\n --hidden-size 768)\nL+=(--num-attention-heads 12)\n\
         if [ -z \"$1\" ]; then X=2; else X='3'; fi\ncat <<EOF >x\n--seq-length 4\nEOF\ntorchrun --nproc_per_node=8 pretrain_gpt.py ${L[@]} --seq-length 512 \\\n\
         --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*2|(tt|)*4t|tL' --moe-layer-freq '([0]*3+[1]*9)' --num-experts 8 \"$@\" `date` $(nproc) 2>&1 | tee log &\n",
    ),
    (
        Stack::Megatron,
        "ENV_VARS:\n  A: 1\nMODEL_ARGS:\n  --num-layers: 12 # why\n  --hidden-size: 512\n  --num-attention-heads: 8\n  --seq-length: 1024\n  --bf16: true\n\
         \u{20} --cuda-graph-modules: [attn mlp]\n  --data-path: ${DATA}/x\n  --moe-layer-freq: ([0]*1+[1]*11)\nTEST_TYPE: regular\n",
    ),
    (
        Stack::Vllm,
        "MODEL=llama-3-8b\nvllm serve $MODEL -tp 2 --max-num-seqs=64 --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 3}' --kv-cache-dtype fp8\n",
    ),
    (
        Stack::Sglang,
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 2 --enable-dp-attention --mem-fraction-static 0.85\n",
    ),
    (
        Stack::Trtllm,
        "model: Qwen/Qwen3-32B\ntensor_parallel_size: 2\nkv_cache_config:\n  free_gpu_memory_fraction: 0.8\n  enable_block_reuse: false\nlist:\n  - a: 1\n    b: [1, 2]\n  - c\n",
    ),
];

/// Pieces that readers look for, and numbers at the ends of what they hold.
const PIECES: [&str; 26] = [
    "$",
    "${",
    "}",
    "$((",
    "))",
    "(",
    ")",
    "\"",
    "'",
    "`",
    "\\",
    "\n",
    ";",
    "<<",
    ">",
    "#",
    ":-",
    "[@]",
    "--",
    "=",
    "|",
    "*99999999999",
    "-1",
    "18446744073709551616",
    "\u{fffc}",
    "\t- - : ",
];

fn machine() -> Machine {
    Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::default() }
}

/// A file with some pieces put in, some parts left out and some said twice.
fn changed(text: &str, changes: &[(usize, usize, u8)]) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for &(at, what, how) in changes {
        let at = at % (letters.len() + 1);
        let end = (at + what % 40).min(letters.len());
        match how % 3 {
            0 => drop(letters.splice(at..at, PIECES[what % PIECES.len()].chars())),
            1 => drop(letters.drain(at..end)),
            _ => {
                let again: Vec<char> = letters[at..end].to_vec();
                drop(letters.splice(at..at, again));
            }
        }
    }
    letters.into_iter().collect()
}

#[test]
fn the_files_are_read_as_what_they_are() {
    for (stack, text) in FILES {
        assert_eq!(recognise(text), Some(stack), "{text}");
        assert!(import(stack, text, &machine()).scenario.contains("[cluster]"), "{text}");
    }
}

/// Changed files that one run tries, of every format; the environment asks for more.
fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]
    #[test]
    fn no_change_of_a_file_stops_its_reader(which in 0..FILES.len(), changes in prop::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 1..12)) {
        let (stack, text) = FILES[which];
        let text = changed(text, &changes);
        let _ = recognise(&text);
        let imported = import(stack, &text, &machine());
        prop_assert!(imported.scenario.len() < 1 << 21);
        for finding in imported.findings {
            if let Some(at) = finding.at {
                prop_assert!(at.start <= at.end && at.end <= text.len() && text.is_char_boundary(at.start) && text.is_char_boundary(at.end), "{:?} of {text:?}", at);
            }
        }
    }
}
