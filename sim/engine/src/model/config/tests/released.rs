//! Models of the catalogue against the parameters of their checkpoints, and what a sequence of those with states keeps.

use crate::layer::{after_mixing, before_mixing};
use crate::memory::{kept_bytes_per_sequence, kv_bytes_per_token};
use crate::model::{FeedForward, Layer, Mixer, Model, embedded, of_checkpoint};
use crate::shard::Shard;
use crate::task::{Op, PassKind};

fn of(name: &str) -> Model {
    embedded(name).expect(name)
}

/// Tensors of the checkpoints that a catalogue of the hub counts (`parameters_raw` of `data/hf_models.json` in tektite-io/llmfit @ b6213551f889). What a
/// router's bias adds, a number for each expert of so many layers, is not counted here.
#[test]
fn models_have_the_parameters_of_their_checkpoints() {
    for (name, stored, biases) in [
        ("kimi-linear-48b-a3b", 49_122_681_728, 26 * 256),
        ("nemotron-nano-9b-v2", 8_888_227_328, 0),
        ("granite-4.0-h-micro", 3_191_396_096, 0),
        ("granite-4.0-h-tiny", 6_939_037_248, 0),
        ("lfm2-350m", 354_483_968, 0),
        ("lfm2-700m", 742_489_344, 0),
        ("lfm2-1.2b", 1_170_340_608, 0),
        ("lfm2-2.6b", 2_569_272_320, 0),
        ("lfm2-8b-a1b", 8_339_929_856, 0),
        ("olmo-3-7b", 7_298_011_136, 0),
        ("olmo-3-32b", 32_233_522_176, 0),
        ("exaone-4.0-32b", 32_003_216_384, 0),
        ("exaone-4.0-1.2b", 1_279_391_488, 0),
        ("dots.llm1", 142_774_381_696, 61 * 128),
        ("ernie-4.5-21b-a3b", 21_825_436_160, 0),
        ("seed-oss-36b", 36_151_104_512, 0),
        ("smollm3-3b", 3_075_098_624, 0),
        ("ling-lite", 16_801_974_272_u64, 0),
    ] {
        assert_eq!(of(name).n_parameters() + biases, stored, "{name}");
    }
}

#[test]
fn names_on_the_hub_are_known() {
    for (path, name) in [
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "kimi-linear-48b-a3b"),
        ("moonshotai/Kimi-Linear-48B-A3B-Base", "kimi-linear-48b-a3b"),
        ("ai21labs/AI21-Jamba-Mini-1.7", "jamba-v0.1"),
        ("ai21labs/AI21-Jamba-1.5-Mini", "jamba-v0.1"),
        ("ai21labs/AI21-Jamba-Large-1.7-FP8", "jamba-1.5-large"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron-nano-9b-v2"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2-FP8", "nemotron-nano-9b-v2"),
        ("nvidia/NVIDIA-Nemotron-Nano-12B-v2-Base", "nemotron-nano-12b-v2"),
        ("microsoft/Phi-4-mini-instruct", "phi-4-mini"),
        ("microsoft/Phi-4-mini-reasoning", "phi-4-mini"),
        ("microsoft/phi-4", "phi-4"),
        ("microsoft/Phi-4-reasoning-plus", "phi-4"),
        ("ibm-granite/granite-4.0-h-tiny", "granite-4.0-h-tiny"),
        ("ibm-granite/granite-4.0-h-small-FP8", "granite-4.0-h-small"),
        ("ibm-granite/granite-4.0-micro-base", "granite-4.0-micro"),
        ("ibm-granite/granite-4.0-h-micro", "granite-4.0-h-micro"),
        ("tiiuae/Falcon-H1-7B-Instruct", "falcon-h1-7b"),
        ("tiiuae/Falcon-H1-3B-Base", "falcon-h1-3b"),
        ("mistralai/Mistral-Large-3-675B-Instruct-2512", "mistral-large-3-675b"),
        ("LiquidAI/LFM2-8B-A1B", "lfm2-8b-a1b"),
        ("LiquidAI/LFM2.5-1.2B-Instruct", "lfm2-1.2b"),
        ("baidu/ERNIE-4.5-21B-A3B-PT", "ernie-4.5-21b-a3b"),
        ("baidu/ERNIE-4.5-300B-A47B-Paddle", "ernie-4.5-300b-a47b"),
        ("tencent/Hunyuan-A13B-Instruct", "hunyuan-a13b"),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", "seed-oss-36b"),
        ("stepfun-ai/step3", "step-3"),
        ("stepfun-ai/step3-fp8", "step-3"),
        ("inclusionAI/Ling-mini-2.0", "ling-mini-2.0"),
        ("inclusionAI/Ring-mini-2.0", "ling-mini-2.0"),
        ("inclusionAI/Ring-1T-FP8", "ling-1t"),
        ("inclusionAI/Ling-lite-1.5", "ling-lite"),
        ("rednote-hilab/dots.llm1.inst", "dots.llm1"),
        ("swiss-ai/Apertus-8B-Instruct-2509", "apertus-8b"),
        ("HuggingFaceTB/SmolLM3-3B", "smollm3-3b"),
        ("allenai/Olmo-3-7B-Think", "olmo-3-7b"),
        ("allenai/Olmo-3-1125-32B", "olmo-3-32b"),
        ("allenai/Olmo-3.1-32B-Instruct-SFT", "olmo-3-32b"),
        ("LGAI-EXAONE/EXAONE-4.0-32B-FP8", "exaone-4.0-32b"),
        ("LGAI-EXAONE/EXAONE-4.0-1.2B", "exaone-4.0-1.2b"),
        ("google/gemma-3n-E4B-it", "gemma-3n-e4b"),
        ("mistralai/Voxtral-Mini-3B-2507", "voxtral-mini-3b"),
        ("mistralai/Voxtral-Small-24B-2507", "mistral-small-24b"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "qwen3-omni-30b-a3b"),
        ("Qwen/Qwen3-VL-32B-Thinking-FP8", "qwen3-vl-32b"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3-vl-30b-a3b"),
    ] {
        assert_eq!(of_checkpoint(path).map(|model| model.name).as_deref(), Some(name), "{path}");
    }
    assert_eq!(of_checkpoint("microsoft/Phi-4-reasoning").expect("known").max_positions, 32_768);
}

/// Billions of all parameters and of those of a token, as model cards print them: a half of the last digit is rounded there. Cards count the tables among
/// the latter or not.
#[test]
fn models_have_the_parameters_that_their_cards_print() {
    for (name, all, active, digit) in [
        // arXiv:2408.12570, abstract, which does not round up.
        ("jamba-1.5-large", 398.0, 94.0, 1.2),
        ("jamba-v0.1", 52.0, 12.0, 1.0),
        ("kimi-linear-48b-a3b", 49.12, 3.0, 0.1),
        ("nemotron-nano-12b-v2", 12.31, 12.31, 0.01),
        ("granite-4.0-h-small", 32.0, 9.0, 1.0),
        ("granite-4.0-h-tiny", 7.0, 1.0, 1.0),
        ("granite-4.0-micro", 3.4, 3.4, 0.1),
        ("granite-4.0-h-1b", 1.5, 1.5, 0.1),
        ("falcon-h1-3b", 3.15, 3.15, 0.01),
        ("falcon-h1-7b", 7.59, 7.59, 0.01),
        ("phi-4-mini", 3.84, 3.84, 0.01),
        // 675 B with an encoder of images of 2.5 B, of which a token uses 41 B: 39 B of the text model.
        ("mistral-large-3-675b", 673.0, 39.0, 2.0),
        ("hunyuan-a13b", 80.0, 13.0, 1.0),
        // arXiv:2507.19427, table 1: 316 B of the text model.
        ("step-3", 316.0, 38.0, 1.0),
        ("dots.llm1", 142.0, 14.0, 2.0),
        ("apertus-8b", 8.05, 8.05, 0.01),
        ("apertus-70b", 70.6, 70.6, 0.1),
        ("lfm2-8b-a1b", 8.3, 1.5, 0.1),
        ("ling-mini-2.0", 16.0, 1.4, 0.9),
        // 999.705 B of its GGUF.
        ("ling-1t", 999.705, 50.0, 1.0),
        ("ernie-4.5-0.3b", 0.36, 0.36, 0.01),
        ("qwen3-omni-30b-a3b", 30.5, 3.3, 0.2),
        // Of 7.85 B, the encoders have 0.98 B, and the 15 layers that use another one's keys and values have 0.03 B of projections that nothing reads.
        ("gemma-3n-e4b", 6.84, 6.84, 0.02),
        // Of 4.68 B, what listens has 0.66 B.
        ("voxtral-mini-3b", 4.02, 4.02, 0.03),
    ] {
        let model = of(name);
        let [found, with, tables] =
            [model.n_parameters(), model.active_parameters(), model.embedding_parameters()].map(|n| hw::real(n) / 1e9);
        println!("{name}: {found:.3} of {all}, {:.3} to {with:.3} of {active}", with - tables);
        assert!((found - all).abs() <= digit / 2.0, "{name}: {found}");
        assert!((with - tables - digit / 2.0..=with + digit / 2.0).contains(&active), "{name}: {with} less {tables}");
    }
}

/// Bytes of keys and values of a token on a GPU of a tensor group, and of what a sequence keeps besides.
fn kept(name: &str, tp: u32) -> (u64, u64) {
    let model = of(name);
    (kv_bytes_per_token(&model, tp, 2), kept_bytes_per_sequence(&Shard::forward(&model, hw::Dtype::Bf16, tp), u64::MAX))
}

/// Bytes of a layer's state of Mamba-2: a number of each channel and state, and three tokens of what passes the convolution.
const fn mamba(width: u64, groups: u64, state: u64) -> u64 {
    2 * (width * state + 3 * (width + 2 * groups * state))
}

/// States are in 16 bits unless the model code says otherwise.
#[test]
fn what_a_sequence_keeps_is_its_closed_form() {
    // Delta attention: 32 heads of 128 by 128 in 32 bits, and three tokens of queries, keys and values. Latent attention keeps 512 and 64 numbers.
    let delta = 32 * 128 * 128 * 4 + 3 * 3 * 4096 * 2;
    assert_eq!(kept("kimi-linear-48b-a3b", 1), (7 * 576 * 2, 20 * delta));
    assert_eq!(kept("kimi-linear-48b-a3b", 4), (7 * 576 * 2, 20 * delta / 4));
    // Mamba-1: sixteen numbers and three tokens of each of 16,384 channels in 63 layers of 72.
    assert_eq!(kept("jamba-1.5-large", 1), (9 * 2 * 8 * 128 * 2, 63 * 16_384 * (16 + 3) * 2));
    assert_eq!(kept("jamba-1.5-large", 8), (9 * 2 * 128 * 2, 63 * 16_384 / 8 * (16 + 3) * 2));
    // Mamba-2: 128 heads of 80 by 128, and three tokens of the heads and of what goes into eight groups and comes out of them.
    assert_eq!(kept("nemotron-nano-9b-v2", 1), (4 * 2 * 8 * 128 * 2, 27 * mamba(10_240, 8, 128)));
    assert_eq!(kept("nemotron-nano-12b-v2", 1), (6 * 2 * 8 * 128 * 2, 28 * mamba(10_240, 8, 128)));
    assert_eq!(kept("granite-4.0-h-tiny", 1), (4 * 2 * 4 * 128 * 2, 36 * mamba(3072, 1, 128)));
    assert_eq!(kept("granite-4.0-h-small", 1), (4 * 2 * 8 * 128 * 2, 36 * mamba(8192, 1, 128)));
    assert_eq!(kept("granite-4.0-micro", 1), (40 * 2 * 8 * 64 * 2, 0));
    // Both in every layer.
    assert_eq!(kept("falcon-h1-7b", 1), (44 * 2 * 2 * 128 * 2, 44 * mamba(3072, 1, 256)));
    // Convolutions keep two tokens.
    assert_eq!(kept("lfm2-1.2b", 1), (6 * 2 * 8 * 64 * 2, 10 * 2 * 2048 * 2));
    assert_eq!(kept("lfm2-8b-a1b", 1), (6 * 2 * 8 * 64 * 2, 18 * 2 * 2048 * 2));
    // Windows of 4096 in 24 of 32 layers, each with 32 heads of 128.
    assert_eq!(kept("olmo-3-7b", 1), (8 * 8192 * 2, 24 * 4096 * 8192 * 2));
    assert_eq!(kept("exaone-4.0-32b", 1), (16 * 2048 * 2, 48 * 4096 * 2048 * 2));
    assert_eq!(kept("mistral-large-3-675b", 8), (61 * 576 * 2, 0));
    assert_eq!(kept("phi-4-mini", 1), (32 * 2 * 8 * 128 * 2, 0));
    // One head of keys and values for all, on every GPU.
    assert_eq!(kept("step-3", 1), (61 * 2 * 256 * 2, 0));
    assert_eq!(kept("step-3", 8), kept("step-3", 1));
    assert_eq!(kept("hunyuan-a13b", 2), (32 * 2 * 4 * 128 * 2, 0));
}

/// Columns and inner dimensions of the products around what mixes a token of a layer, on one GPU of a tensor group.
fn products(model: &Model, mixer: Mixer, tp: u32) -> Vec<[u64; 2]> {
    let shard = Shard::forward(model, hw::Dtype::Bf16, tp);
    let alone = Layer { mixer, feed_forward: FeedForward::Off };
    let before = before_mixing(&shard, mixer, 1, PassKind::Forward);
    let after = after_mixing(&shard, alone, 1, PassKind::Forward, None);
    let of = |(op, _): &(Op, u32)| if let Op::Gemm { n, k, .. } = op { Some([*n, *k]) } else { None };
    before.iter().chain(&after).filter_map(of).collect()
}

/// A token is multiplied by every matrix of its layer once: what is left are convolutions, norms, and numbers of heads and channels.
#[test]
fn products_of_layers_are_their_matrices() {
    for name in [
        "kimi-linear-48b-a3b",
        "jamba-1.5-large",
        "nemotron-nano-9b-v2",
        "granite-4.0-h-tiny",
        "falcon-h1-7b",
        "lfm2-1.2b",
        "step-3",
        "ling-mini-2.0",
    ] {
        let model = of(name);
        let mixers = model.layers.kinds().into_iter().map(|kind| kind.mixer).filter(|mixer| *mixer != Mixer::Off);
        for mixer in mixers {
            let multiplied: u64 = products(&model, mixer, 1).iter().map(|[n, k]| n * k).sum();
            let all = model.mixer_parameters(Layer { mixer, feed_forward: FeedForward::Off });
            let share = hw::real(multiplied) / hw::real(all);
            assert!((0.993..=1.0).contains(&share), "{name}, {mixer:?}: {share}");
        }
    }
    // Step-3's queries are made of a vector that every GPU makes beside its only head of keys and values.
    let step = products(&of("step-3"), Mixer::Full, 8);
    assert_eq!(step, [[2048 + 2 * 256, 7168], [64 * 256 / 8, 2048], [7168, 64 * 256 / 8]]);
}
