//! Memory of adapters beside wide and packed weights, against measured peaks.
//!
//! Source: AnswerDotAI/fsdp_qlora @ 23fafdfb4af4, `benchmarks_03_2024.md`: two RTX 3090 under FSDP, peaks that PyTorch's allocator reserved, GiB. `train.py` of that
//! time: bitsandbytes without quantised scales, parameters in bf16 alone, adapters of rank 64 with dropout beside queries, keys, values and the feed-forward,
//! layers computed again. Rows with states on the host are left out.

use engine::cost::roofline::Roofline;
use engine::shard::{AdaptedProducts, Adapters, Casts, Framework, TorchModules};
use hw::{Bytes, Dtype};

use crate::layout::{ContextExchange, Layout, Zero};
use crate::optimizer::{Optimizer, UpdateKernels};
use crate::plan::{MicroBatch, Place, Placement, Plan, Step};
use crate::problem::{Execution, Frozen, Loss, Problem, Recompute};
use crate::workload::Workload;

const N_RANKS: u32 = 2;
/// Bytes per logit that Hugging Face's models hold beside the loss: they return logits in 32 bits (`CausalLMOutputWithPast`).
const RETURNED: u64 = 4;

/// A row: model, packed weights or wide ones, whether ranks hold shares, sequences of a rank, their tokens, GiB.
type Row = (&'static str, Frozen, Zero, u32, u64, f64);

const ROWS: [Row; 10] = [
    ("llama-2-7b", Frozen::Nf4, Zero::Parameters, 1, 512, 4.98),
    ("llama-2-7b", Frozen::Nf4, Zero::Parameters, 1, 2048, 5.21),
    ("llama-2-7b", Frozen::Nf4, Zero::Parameters, 4, 2048, 11.22),
    ("llama-2-7b", Frozen::Nf4, Zero::Parameters, 10, 2048, 20.97),
    ("llama-2-7b", Frozen::Nf4, Zero::Off, 8, 2048, 20.94),
    ("llama-2-7b", Frozen::Same, Zero::Parameters, 1, 2048, 10.22),
    ("llama-2-7b", Frozen::Same, Zero::Parameters, 4, 2048, 16.14),
    ("llama-2-7b", Frozen::Same, Zero::Parameters, 6, 2048, 21.35),
    ("llama-2-7b", Frozen::Same, Zero::Off, 4, 2048, 22.04),
    ("yi-34b", Frozen::Nf4, Zero::Parameters, 2, 2048, 23.05),
];

fn problem((name, frozen, zero, n_sequences, tokens, _): Row) -> Problem {
    let gpu = hw::catalog::gpu("rtx-3090").expect("listed");
    let modules =
        TorchModules { compiled: false, fused_norms: false, casts: Casts::Off, in_pieces: false, repeats_keys: true };
    let [query, key, value] = [AdaptedProducts::QUERY, AdaptedProducts::KEY, AdaptedProducts::VALUE];
    let beside = AdaptedProducts::FEED_FORWARD.with(query).with(key).with(value);
    let n = (n_sequences * N_RANKS) as usize;
    Problem {
        model: engine::model::embedded(name).expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 1, N_RANKS),
        layout: Layout::data_and_context(N_RANKS, 1, zero, ContextExchange::Ring),
        schedule: crate::schedule::named("1f1b").expect("listed"),
        workload: Workload { lengths: vec![tokens; n], batch_size: n, source: "test".to_owned() },
        dtype: Dtype::Bf16,
        execution: Execution {
            framework: Framework::Fsdp2(modules),
            adapters: Some(Adapters { drops: true, frozen, ..Adapters::new(64, beside) }),
            optimizer: Optimizer { master: None, moments: [Dtype::Bf16; 2], ..Optimizer::ADAM },
            recompute: Recompute::Full,
            ..Execution::default()
        },
        bucket_tokens: 1 << 20,
        reserved_memory: Bytes::ZERO,
        seed: 0,
    }
}

/// Most that a rank holds in a step with one micro-batch, GiB.
fn peak(problem: &Problem, (_, _, _, n_sequences, tokens, _): Row) -> f64 {
    let of_rank = |rank: u32| {
        let place = Place::Local(0);
        let of = |sequence| Placement { sequence: rank * n_sequences + sequence, from: 0, tokens, place };
        vec![MicroBatch { sequences: (0..n_sequences).map(of).collect(), ..MicroBatch::default() }]
    };
    let step = Step::of_groups((0..N_RANKS).map(of_rank).collect());
    let plan = Plan::new("test", problem, vec![step]);
    assert_eq!(crate::check::check(problem, &plan), Ok(()));
    let graph = crate::lower::training::lower(problem, &plan, 0);
    let (cost, topology) = (Roofline::new(&problem.cluster), hw::topology::Topology::of(&problem.cluster));
    let case = engine::play::Case::Expected;
    let machine =
        engine::play::Machine { cost: &cost, topology: &topology, memory_bytes: u64::MAX, case, speed_changes: &[] };
    match engine::simulate(&graph, &machine) {
        engine::Outcome::Done(timeline) => hw::real(timeline.peak_memory_bytes(0)) / hw::GIB,
        other => panic!("{other:?}"),
    }
}

#[test]
fn peaks_under_fsdp_and_in_copies_are_within_an_eighth_of_those_that_were_measured() {
    let of = |row: Row| {
        let (.., n_sequences, tokens, measured) = row;
        let problem = problem(row);
        let returned = hw::real(u64::from(n_sequences) * tokens * problem.model.vocab * RETURNED) / hw::GIB;
        (peak(&problem, row) + returned) / measured
    };
    let found = ROWS.map(of);
    assert!(found.iter().all(|ratio| (ratio - 1.0).abs() < 0.125), "{found:?}");
    let mean = found.iter().sum::<f64>() / hw::real(ROWS.len() as u64);
    assert!((mean - 1.0).abs() < 0.03, "{mean} of {found:?}");
}

/// pytorch/torchtune @ 0031bfb080bd, `README.md`: Llama 3.1 8B on an RTX 4090, compiled, two packed sequences of 2,048 tokens, peak memory in GiB.
/// `llama3_1/8B_{lora,qlora}_single_device.yaml`: rank 8 beside all products, parameters in bf16 alone. Its loss takes logits in eight chunks.
#[test]
fn a_compiled_step_on_one_card_is_near_what_torchtune_prints() {
    let of = |frozen, measured: f64| {
        let row = ("llama-3.1-8b", frozen, Zero::Off, 2, 2048, measured);
        let mut problem = problem(row);
        let modules = TorchModules {
            compiled: true,
            fused_norms: false,
            casts: Casts::Off,
            in_pieces: false,
            repeats_keys: true,
        };
        problem.execution.framework = Framework::Fsdp2(modules);
        problem.execution.loss = Loss::Chunked;
        problem.execution.adapters = Some(Adapters { frozen, ..Adapters::new(8, AdaptedProducts::ALL) });
        peak(&problem, row) / measured
    };
    let found = [(Frozen::Nf4Double, 7.4), (Frozen::Same, 16.2)].map(|(frozen, measured)| of(frozen, measured));
    assert!(found.iter().all(|ratio| (0.95..1.15).contains(ratio)), "{found:?}");
}

/// The same table: all of Llama 3.1 8B is trained with 37.4 GiB. `llama3_1/8B_full_single_device.yaml` keeps moments in 8 bits and updates each parameter in backward. At
/// its end all gradients are there otherwise: 15 GiB, where the largest is 1 GiB.
#[test]
fn gradients_that_go_with_their_update_leave_room_for_a_whole_model() {
    let row = ("llama-3.1-8b", Frozen::Same, Zero::Off, 2, 2048, 37.4);
    let of = |kernels| {
        let mut problem = problem(row);
        let modules =
            TorchModules { compiled: true, fused_norms: true, casts: Casts::Off, in_pieces: false, repeats_keys: true };
        problem.execution = Execution {
            framework: Framework::Fsdp2(modules),
            loss: Loss::Chunked,
            adapters: None,
            gradient_dtype: Dtype::Bf16,
            optimizer: Optimizer { master: None, moments: [Dtype::Int8; 2], kernels, ..Optimizer::ADAM },
            ..problem.execution
        };
        peak(&problem, row)
    };
    let [in_backward, at_end] = [UpdateKernels::InBackward, UpdateKernels::Fused].map(of);
    assert!((0.85..1.05).contains(&(in_backward / 37.4)), "{in_backward}");
    assert!((13.0..15.0).contains(&(at_end - in_backward)), "{in_backward} and {at_end}");
}

/// QLoRA (arXiv:2305.14314, abstract): a model of 65 billion parameters is trained on one card of 48 GB. Rank 64 beside all products, sequences of 512; adapters
/// in 16 bits with moments in 32, which are paged (`qlora.py` of artidoro/qlora).
#[test]
fn the_papers_largest_model_fits_its_card_and_not_in_sixteen_bits() {
    let of = |frozen| {
        let row = ("llama-2-70b", frozen, Zero::Off, 1, 512, 0.0);
        let mut problem = problem(row);
        // LLaMA 65B has as many heads for keys as for queries, and a narrower feed-forward.
        (problem.model.n_kv_heads, problem.model.intermediate) = (64, 22_016);
        assert!((hw::real(problem.model.n_parameters()) / 65.3e9 - 1.0).abs() < 0.01);
        let beside = Adapters { drops: true, frozen, ..Adapters::new(64, AdaptedProducts::ALL) };
        problem.execution.adapters = Some(beside);
        problem.execution.optimizer = Optimizer { master: None, ..Optimizer::ADAM };
        peak(&problem, row)
    };
    let card = hw::catalog::gpu("a6000").expect("listed").memory.as_f64() / hw::GIB;
    let [packed, wide] = [Frozen::Nf4Double, Frozen::Same].map(of);
    assert!(packed < card && wide > 2.0 * card, "{packed} and {wide} beside {card}");
}
