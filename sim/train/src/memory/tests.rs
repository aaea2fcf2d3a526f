//! Model states by how they are shared.

use engine::memory::stage_parameters;

use super::*;
use crate::layout::Layout;
use crate::problem::{AdaptedProducts, Adapters};
use crate::workload::Workload;

fn problem(zero: Zero, dp: u32) -> Problem {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    Problem {
        model: engine::model::embedded("llama-3.1-8b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 1, 8),
        layout: Layout::data_and_context(dp, 1, zero, ContextExchange::Ring),
        workload: Workload { batch_size: 8, lengths: vec![8192; 8], source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        bucket_tokens: 8192,
        execution: Execution::default(),
        schedule: crate::schedule::named("1f1b").expect("listed"),
        reserved_memory: Bytes::ZERO,
        seed: 1,
    }
}

#[test]
fn two_layers_and_the_tables_are_whole() {
    let of = |zero, dp| {
        let problem = problem(zero, dp);
        let held = stages(&problem);
        let layer = stage_parameters(&problem.shard(), &Stage { n_dense: 1, ..Stage::default() }).0;
        let tables = crate::stage::outside_layers(&problem, &held[0]);
        [states(&problem, &held).in_use.as_f64(), 2.0 * layer, tables]
    };
    // Sixteen bits for a parameter and for a gradient. Embedding and head are as large.
    let [in_use, layers, tables] = of(Zero::Parameters, 8);
    assert!((in_use - 4.0 * layers - 3.0 * tables).abs() < 1e-4 * in_use);
    let [in_use, layers, tables] = of(Zero::Gradients, 8);
    assert!((in_use - 2.0 * layers - tables).abs() < 1e-4 * in_use);
    assert_eq!(of(Zero::OptimizerStates, 8)[0], 0.0);
    assert_eq!(of(Zero::Parameters, 1)[0], 0.0, "nothing is cut");
}

#[test]
fn pytorch_keeps_gathered_parameters_in_sixteen_bits_beside_its_shares() {
    let modules = engine::shard::TorchModules {
        compiled: false,
        fused_norms: true,
        casts: engine::shard::Casts::Off,
        in_pieces: false,
        repeats_keys: true,
    };
    let of = |zero| {
        let mut problem = problem(zero, 8);
        problem.execution.framework = engine::shard::Framework::Fsdp2(modules);
        let held = stages(&problem);
        let states = states(&problem, &held);
        assert_eq!(states.in_use, Bytes::ZERO);
        states.parameters.as_f64() / stage_parameters(&problem.shard(), &held[0]).0
    };
    let [all, kept, shared] = [Zero::Off, Zero::Gradients, Zero::Parameters].map(of);
    assert!((all - 4.0).abs() < 1e-6);
    assert!((kept - 2.0 - 4.0 / 8.0).abs() < 1e-6);
    assert!((shared - 4.0 / 8.0).abs() < 1e-6);
}

/// The problem with sequences of these lengths in one step, on a pipeline.
fn spread(lengths: &[u64], dp: u32, pp: u32) -> Problem {
    let mut problem = problem(Zero::OptimizerStates, dp);
    problem.model = engine::model::embedded("qwen2.5-0.5b").expect("embedded");
    problem.layout.pp = pp;
    problem.workload = Workload { batch_size: lengths.len(), lengths: lengths.to_vec(), source: "test".to_owned() };
    problem
}

#[test]
fn a_bucket_that_no_file_says_is_what_a_step_asks_for_within_memory() {
    // 3600 tokens over two replicas and the longest sequence; over two replicas of a pipeline of four ranks with four micro-batches for each.
    let lengths = [1000, 800, 600, 400, 300, 250, 150, 100];
    assert_eq!(usual_bucket(&spread(&lengths, 2, 1)), 1800 + 1000);
    assert_eq!(usual_bucket(&spread(&lengths, 2, 4)), 113 + 1000);
    // Two steps of four sequences: the longer one counts.
    let mut steps = spread(&lengths, 2, 1);
    steps.workload.batch_size = 4;
    assert_eq!(usual_bucket(&steps), 1400 + 1000);
    // A step that asks for more than memory holds, of equal sequences: whole ones, as many in every micro-batch of the 512 of a replica.
    let many = spread(&[8192; 4096], 8, 1);
    let whole = token_capacity(&many) / 8192;
    let most = (1..=whole).rev().find(|n| 512_u64.is_multiple_of(*n)).expect("one");
    assert_eq!(usual_bucket(&many), most * 8192);
    // What recompute frees is then filled with larger micro-batches.
    let mut again = many.clone();
    again.execution.recompute = crate::problem::Recompute::Full;
    assert!(usual_bucket(&again) > usual_bucket(&many));
}

#[test]
fn sequences_that_go_to_the_emptiest_replica_never_fill_the_bucket_of_a_step() {
    let mut draw = 1_u64;
    for _ in 0..200 {
        let mut lengths = Vec::new();
        for _ in 0..24 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            lengths.push(1 + (draw >> 33) % 4000);
        }
        let mut replicas = [0_u64; 4];
        for tokens in &lengths {
            *replicas.iter_mut().min().expect("four") += tokens;
        }
        assert!(replicas.iter().all(|held| *held <= usual_bucket(&spread(&lengths, 4, 1))), "{lengths:?}");
    }
}

/// What is said of such a job of Megatron Core on cards that have room for so many bytes.
fn refusal(dp: u32, room: f64, change: impl Fn(&mut Execution)) -> String {
    let mut problem = problem(Zero::Off, dp);
    problem.execution.framework = Framework::MegatronCore;
    problem.execution.gradient_dtype = Dtype::Fp32;
    change(&mut problem.execution);
    problem.cluster.gpu.memory = Bytes::from_f64(room) + all_outside(&problem);
    fits(&problem).expect_err("no room").to_string()
}

#[test]
fn states_of_fewer_bits_that_fit_are_named_with_what_they_take() {
    // Parameters of Llama 3.1 8B (its model card), with 2 bytes in bf16, 12 of Adam and its master copy, and 4 or 2 of gradients.
    const N: f64 = 8_030_261_248.0;
    let gib = |bytes: f64| format!("{:.1} GiB", bytes / hw::GIB);
    let gradients = format!("with `training.gradient_dtype = \"bf16\"` they take {} and fit", gib(16.0 * N));
    let alone = refusal(1, 17.0 * N, |_| ());
    assert!(alone.contains(&gib(18.0 * N)) && alone.contains(&gradients) && !alone.contains("zero"), "{alone}");
    let sharded = refusal(8, 17.0 * N, |_| ());
    assert!(sharded.contains(&format!("with `zero = 1` states fit, and {gradients}")), "{sharded}");
    // What does not fit is not named.
    let none = refusal(1, 15.0 * N, |_| ());
    assert!(none.ends_with("more GPUs, larger ones, or a larger `tp` or `pp` are needed"), "{none}");
    // Products of 32 layers in 8 bits: queries and output, keys and values, three of the feed-forward. Two copies of each stay on a card of Hopper.
    const PRODUCTS: f64 = 32.0 * (2.0 * 4096.0 * 4096.0 + 2.0 * 4096.0 * 1024.0 + 3.0 * 4096.0 * 14_336.0);
    let narrow = |execution: &mut Execution| {
        execution.formats = Some(engine::formats::Formats::weights(hw::Format::Fp8, Dtype::Bf16));
        execution.gradient_dtype = Dtype::Bf16;
    };
    let before = 16.0 * N + 2.0 * PRODUCTS;
    let weights = refusal(1, before - PRODUCTS, narrow);
    assert!(weights.contains(&gib(before)), "{weights}: {}", gib(before));
    let expected = format!("with `training.narrow_gather = true` they take {} and fit", gib(before - 2.0 * PRODUCTS));
    assert!(weights.contains(&expected), "{weights}: {expected}");
    // Both together, where neither is enough.
    let wide = |execution: &mut Execution| {
        narrow(execution);
        execution.gradient_dtype = Dtype::Fp32;
    };
    let both = refusal(1, 16.5 * N, wide);
    let expected = "with `training.gradient_dtype = \"bf16\"` and `training.narrow_gather = true` they take";
    assert!(both.contains(&format!("{expected} {}", gib(16.0 * N))), "{both}");
}

/// Transformer Engine keeps a copy by columns beside the rows where a card multiplies rows alone (`nvte_is_non_tn_fp8_gemm_supported`). Weights that are held in
/// the format of the products (`fp8_params` of NeMo, `--fp8-param-gather`) have nothing wide besides.
#[test]
fn frozen_weights_of_8_bits_take_a_byte_for_each_copy_that_products_read() {
    const N: f64 = 8_030_261_248.0;
    const PRODUCTS: f64 = 32.0 * (2.0 * 4096.0 * 4096.0 + 2.0 * 4096.0 * 1024.0 + 3.0 * 4096.0 * 14_336.0);
    let parameters = |card: &str, is_narrow: bool| {
        let mut problem = problem(Zero::Off, 1);
        problem.cluster.gpu = hw::catalog::gpu(card).expect("listed");
        let execution = &mut problem.execution;
        execution.framework = Framework::MegatronCore;
        execution.adapters = Some(Adapters::new(16, AdaptedProducts::QUERY_KEY_VALUE));
        if is_narrow {
            execution.formats = Some(engine::formats::Formats::weights(hw::Format::Fp8, Dtype::Bf16));
            execution.gathers_narrow = true;
        }
        let states = states(&problem, &crate::stage::stages(&problem));
        assert_eq!(states.copies, Bytes(0));
        hw::real(states.parameters.0)
    };
    // Adapters of rank 16 are a thousandth of it, and the same in both.
    let wide = parameters("h100-sxm", false);
    assert!((wide / (2.0 * N) - 1.0).abs() < 2e-3 && (parameters("b200", false) - wide).abs() < 1.0, "{wide}");
    assert!((parameters("h100-sxm", true) - wide).abs() < 1.0, "two copies of a byte each");
    assert!((wide - parameters("b200", true) - PRODUCTS).abs() < 1.0, "one byte less for each element");
}

/// A pair of matrices of rank r beside a square product of width h has 2rh parameters: 2 bytes each in bf16, 4 of gradients, and 12 of a copy in 32 bits and two
/// moments, which the distributed optimizer cuts. Frozen weights have neither.
#[test]
fn adapters_of_megatron_take_what_trained_parameters_take() {
    let of = |rank: Option<u64>, zero| {
        let mut problem = problem(zero, 8);
        problem.execution.framework = Framework::MegatronCore;
        problem.execution.adapters = rank.map(|rank| Adapters::new(rank, AdaptedProducts::OUTPUT));
        states(&problem, &stages(&problem))
    };
    let whole = of(None, Zero::Off);
    let gradient = whole.gradients.as_f64() / (whole.parameters.as_f64() / 2.0);
    let state = whole.optimizer.as_f64() / (whole.parameters.as_f64() / 2.0);
    for rank in [16, 64, 1024] {
        // 32 layers of 4096 columns over 4096.
        let pairs = hw::real(32 * rank * 2 * 4096);
        for (zero, cut) in [(Zero::Off, 1.0), (Zero::OptimizerStates, 8.0)] {
            let found = of(Some(rank), zero);
            let close =
                |found: Bytes, expected: f64| assert!((found.as_f64() - expected).abs() <= 2.0, "{found:?} {expected}");
            close(found.parameters, whole.parameters.as_f64() + 2.0 * pairs);
            close(found.optimizer, state * pairs / cut);
            close(found.gradients, gradient * pairs);
        }
    }
}
