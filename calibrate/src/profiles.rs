//! Profiles that are shipped with the program: `profiles/*.toml`, embedded by name.

use std::sync::OnceLock;

use engine::cost::names;
use engine::cost::profile::{CollectiveCurve, Profile};
use engine::shard::{AttentionKernel, Framework};
use hw::Format;

/// Serving engines whose profiles may be shipped.
pub const ENGINES: [&str; 3] = ["vllm", "sglang", "trtllm"];

const EMBEDDED: &[(&str, &str)] = &[
    ("a100-pcie-80g", include_str!("../../profiles/a100-pcie-80g.toml")),
    ("a100-sxm", include_str!("../../profiles/a100-sxm.toml")),
    ("a100-sxm-sglang", include_str!("../../profiles/a100-sxm-sglang.toml")),
    ("a100-sxm-trtllm", include_str!("../../profiles/a100-sxm-trtllm.toml")),
    ("a100-sxm-vllm", include_str!("../../profiles/a100-sxm-vllm.toml")),
    ("b200", include_str!("../../profiles/b200.toml")),
    ("b200-sglang", include_str!("../../profiles/b200-sglang.toml")),
    ("b200-trtllm", include_str!("../../profiles/b200-trtllm.toml")),
    ("b200-vllm", include_str!("../../profiles/b200-vllm.toml")),
    ("gb200-training", include_str!("../../profiles/gb200-training.toml")),
    ("gb300-training", include_str!("../../profiles/gb300-training.toml")),
    ("h100-sxm", include_str!("../../profiles/h100-sxm.toml")),
    ("h100-sxm-flash", include_str!("../../profiles/h100-sxm-flash.toml")),
    ("h100-sxm-sglang", include_str!("../../profiles/h100-sxm-sglang.toml")),
    ("h100-sxm-training", include_str!("../../profiles/h100-sxm-training.toml")),
    ("h100-sxm-trtllm", include_str!("../../profiles/h100-sxm-trtllm.toml")),
    ("h100-sxm-vllm", include_str!("../../profiles/h100-sxm-vllm.toml")),
    ("h200-sxm", include_str!("../../profiles/h200-sxm.toml")),
    ("h200-sxm-flash", include_str!("../../profiles/h200-sxm-flash.toml")),
    ("h200-sxm-sglang", include_str!("../../profiles/h200-sxm-sglang.toml")),
    ("h200-sxm-training", include_str!("../../profiles/h200-sxm-training.toml")),
    ("h200-sxm-trtllm", include_str!("../../profiles/h200-sxm-trtllm.toml")),
    ("h200-sxm-vllm", include_str!("../../profiles/h200-sxm-vllm.toml")),
    ("rtx-4090", include_str!("../../profiles/rtx-4090.toml")),
    ("rtx-pro-6000", include_str!("../../profiles/rtx-pro-6000.toml")),
];

/// Text of a shipped profile.
pub fn embedded(name: &str) -> Option<&'static str> {
    EMBEDDED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A shipped profile, read once.
///
/// # Panics
/// Never: a test holds that every shipped profile is one.
pub fn parsed(name: &str) -> Option<&'static Profile> {
    static PROFILES: [OnceLock<Profile>; EMBEDDED.len()] = [const { OnceLock::new() }; EMBEDDED.len()];
    let at = EMBEDDED.iter().position(|(known, _)| *known == name)?;
    Some(PROFILES[at].get_or_init(|| Profile::parse(EMBEDDED[at].1).expect("held by a test")))
}

/// Names of the shipped profiles.
pub fn names() -> Vec<&'static str> {
    EMBEDDED.iter().map(|(name, _)| *name).collect()
}

/// Shipped profile of a GPU of the catalogue, if there is one.
pub fn of_gpu(gpu: &str) -> Option<&'static str> {
    let of_no_engine = names().into_iter().filter(|name| !ENGINES.iter().any(|engine| name.ends_with(engine)));
    of_no_engine.into_iter().find(|name| is_of(name, gpu))
}

/// Shipped profile of a serving engine on a GPU of the catalogue, if there is one.
pub fn of_engine(gpu: &str, engine: &str) -> Option<&'static str> {
    let card = |name: &str| name.strip_suffix(engine).and_then(|name| name.strip_suffix('-')).map(str::to_owned);
    names().into_iter().find(|name| card(name).is_some_and(|card| is_of(&card, gpu)))
}

/// Kernels of training under a framework on a GPU, lent where they are another one's: Blackwell cards take the B200's, others that nobody measured the H100's. On
/// Hopper this project measured them (`with_measured`). Elsewhere narrow products are those of TensorRT-LLM's tables of the same card. It multiplies 8 bits by
/// cuBLASLt (`cublas_scaled_mm`), as Transformer Engine and PyTorch do; SGLang and vLLM have kernels of their own, which take 1.15 times as long from 2,048 rows on. Exchanges are those of the library in the same tables, where training has none.
/// So is attention of narrow heads (`with_narrow_heads`).
///
/// # Panics
/// Never: a test holds that every shipped profile is one.
pub fn training(gpu: &hw::Gpu, framework: Framework, attention: AttentionKernel) -> Profile {
    let name = gpu.name.as_str();
    let neighbour = if BLACKWELL.contains(&name) { "b200" } else { "h100-sxm" };
    let own = of_gpu(name);
    let mut profile = parsed(own.unwrap_or(neighbour)).expect("listed").clone();
    with_measured(&mut profile, name, (framework, attention));
    if let Some(served) = parsed_of_engine(&profile.gpu, CUBLAS) {
        for (format, narrow) in NARROW.iter().filter_map(|format| served.operators.get_key_value(*format)) {
            profile.operators.entry(format.clone()).or_insert_with(|| narrow.clone());
        }
        if profile.collectives.is_empty() {
            profile.collectives.clone_from(&served.collectives);
        }
    }
    with_narrow_heads(&mut profile);
    if own.is_some() { profile } else { profile.lent_to(gpu) }
}

/// Card whose kernels of training this project measured (`calibrate/torch/operators.py`). An H200 is the same die, and lends from it what its own table lacks.
const HOPPER: &str = "h100-sxm";
/// What was measured: the libraries of training, and FlashAttention 2, which PyTorch's own modules run on Hopper.
const MEASURED: [&str; 2] = ["training", "flash"];

/// Products in 16 bits were measured one behind the other, and then power holds them: 701 TFLOP/s of the shapes whose kernels reach 796 in a recorded step of the
/// same card, where half of the time other kernels run. The card's own table was taken with cooler inputs, and is 5 % slower than that step and not 14 %.
const CHAINED: &str = "gemm";

/// Puts measured kernels of training in a profile. Nobody's framework keeps what the card's profile has, which also serves: its attention knows short prompts.
fn with_measured(profile: &mut Profile, card: &str, (framework, attention): (Framework, AttentionKernel)) {
    if framework == Framework::Formulas {
        return;
    }
    if hw::catalog::same_generation(&profile.gpu, HOPPER) {
        with_measured_on_hopper(profile, card, (framework, attention));
    } else if let Some(rack) = rack_with_die_of(card) {
        with_measured_attention(profile, card, rack);
    }
}

/// GPU of a rack with the die of a card. Its attention is in the tables of cuDNN's authors, and no other Blackwell card's.
fn rack_with_die_of(card: &str) -> Option<&'static str> {
    match card {
        "b200" | "gb200" => Some("gb200"),
        "b300" | "gb300" => Some("gb300"),
        _ => None,
    }
}

/// Puts attention as cuDNN's authors measured it in the place of B200's. B200 keeps its own, and takes what it lacks: narrow heads, and 8 bits.
fn with_measured_attention(profile: &mut Profile, card: &str, rack: &str) {
    let keeps = card == profile.gpu;
    for (name, operator) in parsed_of_engine(rack, MEASURED[0]).iter().flat_map(|measured| &measured.operators) {
        if !(keeps && profile.operators.contains_key(name)) {
            profile.operators.insert(name.clone(), operator.clone());
            profile.own.extend((card == rack).then(|| name.clone()));
        }
    }
}

/// Puts measured kernels of training in the place of those that an engine serves with: products of cuBLAS, and attention of cuDNN, which Transformer Engine runs. PyTorch's
/// modules have experts in one launch, and on Hopper attention of FlashAttention 2. It was written for Ampere, so its share of Hopper's peak says nothing of another
/// generation. Transformer Engine multiplies expert by expert.
fn with_measured_on_hopper(profile: &mut Profile, card: &str, (framework, attention): (Framework, AttentionKernel)) {
    let is_torch = framework.torch().is_some();
    let is_flash = is_torch || attention == AttentionKernel::FlashTwo;
    let n_measured = if is_flash && hw::catalog::same_generation(card, HOPPER) { 2 } else { 1 };
    for what in &MEASURED[..n_measured] {
        // What a card's own table has comes over what the other's lends it.
        let measured = [HOPPER, card].map(|card| parsed_of_engine(card, what));
        for (name, operator) in measured.iter().flatten().flat_map(|measured| &measured.operators) {
            if name != CHAINED && (is_torch || !name.starts_with(names::GROUPED_GEMM)) {
                profile.operators.insert(name.clone(), operator.clone());
            }
        }
    }
}

/// What a lender has: kernels of its libraries of training by the name of a card, or the profile of that name.
///
/// # Panics
/// Without such a profile.
pub fn of_lender(name: &str) -> Profile {
    let card = of_gpu(name).and_then(|_| hw::catalog::gpu(name));
    let Some(gpu) = card else { return parsed(name).expect("shipped").clone() };
    training(&gpu, Framework::MegatronCore, AttentionKernel::Flash)
}

/// The engine whose tables have products by the library of training.
const CUBLAS: &str = "trtllm";
/// Products in 8 bits with one scale per tensor, and in 4 bits.
const NARROW: [&str; 2] = ["gemm-fp8", "gemm-nvfp4"];

/// The engine whose tables have attention of narrow heads. At 128 its forward is the nearest to that of training on B200: 0.27 ms of 4,096 tokens and 64 heads,
/// where TensorRT-LLM's takes 0.33 ms and half of SimuMax's 128 heads 0.25 ms.
const NARROW_HEADS: &str = "vllm";
/// Attention of heads 64 wide, where training has none but wider ones.
fn with_narrow_heads(profile: &mut Profile) {
    let [wide, narrow] = ["attention-128", "attention-64"];
    if profile.operators.contains_key(narrow) || !profile.operators.contains_key(wide) {
        return;
    }
    let served = parsed_of_engine(&profile.gpu, NARROW_HEADS);
    if let Some(forward) = served.and_then(|served| served.operators.get(narrow)) {
        profile.operators.insert(narrow.to_owned(), forward.clone());
    }
}

/// The card that is nearest to another one in the shape of its efficiency. B300 and the GPUs of racks are B200 with other memory and links.
fn neighbour(card: &str) -> &'static str {
    match card {
        "h200-sxm" => "h100-sxm",
        "b300" | "gb200" | "gb300" => "b200",
        _ => "h200-sxm",
    }
}

/// Shipped profile of a serving engine on a GPU, parsed once.
pub fn parsed_of_engine(gpu: &str, engine: &str) -> Option<&'static Profile> {
    parsed(of_engine(gpu, engine)?)
}

/// Tables of a GPU that serves. Those of the engine, where one is named and was measured there; else the GPU's own, where they tell how decoding
/// attends; else those of the engine on the neighbour, lent. Where no engine is named, vLLM's stand in for a GPU's own that know training alone: its
/// products have thousands of rows, and beyond them they say nothing of a batch that decodes. Nothing is left but the GPU's own, or nothing.
pub fn of_serving(gpu: &str, engine: Option<&str>) -> Option<Profile> {
    let own = of_gpu(gpu).and_then(parsed);
    let decodes = |profile: &&Profile| profile.decode_attention.is_some() || !profile.decode.is_empty();
    let Some(engine) = engine else {
        return own.filter(decodes).or_else(|| parsed_of_engine(gpu, "vllm")).or(own).cloned();
    };
    let measured = parsed_of_engine(gpu, engine).or(own.filter(decodes)).map(|found| as_served(found, gpu, engine));
    measured.or_else(|| of_neighbour(gpu, engine)).or_else(|| own.cloned())
}

/// Tables of an engine with the kernels that it runs where they timed others.
fn as_served(profile: &Profile, gpu: &str, engine: &str) -> Profile {
    let mut profile = with_fused_reduces(profile, gpu, engine);
    if engine == "sglang" && hw::catalog::same_generation(gpu, HOPPER) {
        with_triton_kernels(&mut profile, gpu);
    }
    profile
}

/// Gives whole groups of experts with MXFP4 weights the curve of vLLM. Its kernel is that of `triton_kernels`, which SGLang takes for them as well
/// (`moe_runner_backend = "triton_kernel"` with one expert rank; sgl-project/sglang, `server_args.py`). SGLang's tables have another one, which makes weights wide
/// and reads 16 bits of each. It stays for experts of which a part is on other GPUs.
fn with_triton_kernels(profile: &mut Profile, gpu: &str) {
    let name = names::of_format("experts", Format::Mxfp4);
    let lent = parsed_of_engine(gpu, "vllm").and_then(|vllm| vllm.experts.get(&name));
    if let (Some(lent), Some(wide)) = (lent, profile.experts.get(&name).cloned()) {
        profile.experts.insert(name.clone(), lent.clone());
        profile.experts.insert(name + names::EXPERT_VARIANTS[2], wide);
    }
}

/// What a norm takes inside of an all-reduce of vLLM, seconds: as long as by itself in a captured graph. Tables time the all-reduce alone
/// (`AllReduceFusionOp.NONE` in their collector). With a norm vLLM takes 10 us on two H100 with 512 KiB, where the table says 4.5 (vllm-project/vllm #22086). SGLang
/// saves 4.8 us by it on eight B200, as the tables say without such a time (sgl-project/sglang #7621).
const NORM_S: f64 = 2.6e-6;

/// A profile with all-reduces that compute norms: FlashInfer has TensorRT-LLM's kernel of them (`trtllm_allreduce_fusion`). vLLM keeps its own above sizes
/// that were tuned so that the faster one runs (`FI_ALLREDUCE_FUSION_MAX_SIZE_MB` in vllm/config/compilation.py).
fn with_fused_reduces(profile: &Profile, gpu: &str, engine: &str) -> Profile {
    let mut profile = profile.clone();
    let kernels = parsed_of_engine(gpu, "trtllm").map_or(&[][..], |found| &found.collectives);
    for curve in kernels.iter().filter(|curve| curve.kind == names::CUSTOM_ALL_REDUCE) {
        let mut fused = CollectiveCurve { kind: names::FUSED_ALL_REDUCE.to_owned(), ..curve.clone() };
        let own = profile.collectives.iter().find(|own| is_same_exchange(own, curve));
        for (fused, own) in
            fused.seconds.iter_mut().zip(own.filter(|_| engine == "vllm").map_or(&[][..], |own| &own.seconds))
        {
            *fused = fused.min(*own) + NORM_S;
        }
        profile.collectives.push(fused);
    }
    profile
}

/// Whether two curves are of one exchange over the same sizes.
fn is_same_exchange(a: &CollectiveCurve, b: &CollectiveCurve) -> bool {
    a.kind == b.kind && (a.n_ranks, a.n_nodes) == (b.n_ranks, b.n_nodes) && a.bytes == b.bytes
}

/// Tables of an engine on the neighbour of a GPU, lent.
pub fn of_neighbour(gpu: &str, engine: &str) -> Option<Profile> {
    let lender = neighbour(gpu);
    let mut profile = as_served(parsed_of_engine(lender, engine)?, lender, engine);
    let has_new_units = BLACKWELL.contains(&gpu) && !BLACKWELL.contains(&lender);
    if has_new_units && engine == "trtllm" {
        with_narrow_experts(&mut profile);
    }
    if has_new_units && engine == "sglang" {
        with_latent_of(&mut profile, parsed_of_engine(lender, "trtllm")?);
    }
    Some(profile.lent_to(&hw::catalog::gpu(gpu)?))
}

/// Cards on which SGLang attends to latent vectors by TensorRT-LLM's kernels (`trtllm_mla`; sgl-project/sglang, server_args.py: the default of
/// DeepSeek on devices of compute capability 10).
const BLACKWELL: [&str; 4] = ["b200", "b300", "gb200", "gb300"];

/// Gives experts with MXFP4 weights the curve of 8-bit ones. TensorRT-LLM runs them through Triton on a card without 4-bit units, where they are made wide. Blackwell
/// multiplies them as they are by 8-bit activations (`w4a8_mxfp4_mxfp8` in the tables of B200). Its units scale blocks by themselves, so the curve is that of one scale
/// per tensor: Hopper scales blocks beside its units.
fn with_narrow_experts(profile: &mut Profile) {
    let narrow = profile.experts.get(&names::of_format("experts", Format::Fp8)).cloned();
    if let Some(curve) = narrow {
        profile.experts.insert(names::of_format("experts", Format::Mxfp4), curve);
    }
}

/// Takes the curves of latent attention from another engine.
fn with_latent_of(profile: &mut Profile, other: &Profile) {
    let is_latent = |name: &str| name.contains("-mla");
    profile.operators.retain(|name, _| !is_latent(name));
    profile.decode.retain(|name, _| !is_latent(name));
    let operators = other.operators.iter().filter(|(name, _)| is_latent(name));
    profile.operators.extend(operators.map(|(name, operator)| (name.clone(), operator.clone())));
    let decode = other.decode.iter().filter(|(name, _)| is_latent(name));
    profile.decode.extend(decode.map(|(name, curve)| (name.clone(), curve.clone())));
}

/// Whether a profile's card is a GPU, or the GPU is a variant of it with another memory.
fn is_of(card: &str, gpu: &str) -> bool {
    gpu == card || gpu.strip_prefix(card).is_some_and(|rest| rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::cost::profiled::Profiled;
    use engine::cost::{CostModel, Source};
    use engine::shard::{Casts, TorchModules};
    use engine::task::{Collective, Document, Op, Pass};
    use hw::Dtype;

    /// Exchanges of a card by an engine's tables, with so much of a link inside a node.
    fn exchange_s(card: &str, engine: &str, gb_per_s: Option<f64>, op: &Op) -> f64 {
        let gpu = hw::catalog::gpu(card).expect("listed");
        let mut cluster = hw::catalog::cluster(&gpu, 1, 8);
        if let Some(rate) = gb_per_s {
            cluster.gpu.intra_node_bandwidth = hw::BytesPerSecond::new(rate * 1e9);
        }
        let profile = of_serving(card, Some(engine)).expect("every card has or borrows tables");
        let costs = Profiled::new(&profile, &cluster);
        costs.engine(op).unwrap_or_else(|| costs.estimate(op)).time.get()
    }

    #[test]
    fn a_faster_link_never_lengthens_an_exchange() {
        for card in hw::catalog::gpu_names().into_iter().filter(|card| *card != "cpu") {
            let usual = hw::catalog::gpu(card).expect("listed").intra_node_bandwidth.get() / 1e9;
            let mut rates: Vec<f64> =
                vec![8.0, 32.0, 40.0, 64.0, 100.0, 300.0, 450.0, 600.0, 900.0, usual * 0.999, usual];
            rates.sort_by(f64::total_cmp);
            for engine in ["vllm", "sglang", "trtllm"] {
                for kind in [Collective::AllReduce, Collective::AllToAll, Collective::AllGather, Collective::SendRecv] {
                    for (n_ranks, power) in [(2, 12), (2, 20), (4, 24), (8, 16), (8, 28)] {
                        let shape = hw::GroupShape { n_ranks, n_nodes: 1 };
                        let op = Op::Collective { kind, bytes: 1 << power, shape };
                        let times: Vec<f64> =
                            rates.iter().map(|rate| exchange_s(card, engine, Some(*rate), &op)).collect();
                        let falls = times.windows(2).all(|pair| pair[1] <= pair[0] * 1.000_000_1);
                        assert!(falls, "{card}, {engine}, {op:?}: {rates:?} GB/s take {times:?} s");
                    }
                }
            }
        }
    }

    #[test]
    fn experts_in_four_bits_run_on_hopper_by_the_kernel_that_servers_take() {
        for card in ["h100-sxm", "h200-sxm"] {
            let [sglang, vllm] = ["sglang", "vllm"].map(|engine| of_serving(card, Some(engine)).expect("shipped"));
            assert_eq!(sglang.experts["experts-mxfp4"], vllm.experts["experts-mxfp4"], "{card}");
            let own = &parsed_of_engine(card, "sglang").expect("shipped").experts["experts-mxfp4"];
            assert_eq!(&sglang.experts["experts-mxfp4-elsewhere"], own, "{card}");
        }
        let own = &parsed_of_engine("b200", "sglang").expect("shipped").experts["experts-mxfp4"];
        assert_eq!(&of_serving("b200", Some("sglang")).expect("shipped").experts["experts-mxfp4"], own);
    }

    #[test]
    fn a_card_on_pcie_borrows_no_curve_of_nvlink() {
        // 64 MiB between two cards at three quarters of 32 GB/s: 2.8 ms; over NVLink they would take a tenth of it.
        let shape = hw::GroupShape { n_ranks: 2, n_nodes: 1 };
        let op = Op::Collective { kind: Collective::AllReduce, bytes: 1 << 26, shape };
        let found = exchange_s("a100-pcie-80g", "vllm", None, &op);
        assert!(found > 2.7e-3, "{found} s");
    }

    #[test]
    fn every_shipped_profile_parses_and_keeps_its_promise_on_unseen_rows() {
        for name in names() {
            let profile = Profile::parse(embedded(name).expect("listed")).expect(name);
            assert_eq!(profile.name, name);
            for (operator, fitted) in &profile.operators {
                let error = fitted.residuals.median_error;
                // Experts differ in more than three axes tell, one card's attention mixes head counts of three models, few shapes were
                // measured of the widest heads, and vLLM's latent attention is what is left of a block.
                // Of training on one card there are a few shapes each of experts and latent attention, and products that differ by a fifth at
                // neighbouring shapes.
                let most = match operator.as_str() {
                    operator if operator.starts_with("grouped-gemm-") => 0.30,
                    "attention-mla" if name == "b200" => 0.20,
                    "gemm" if name == "b200" => 0.10,
                    "grouped-gemm" => 0.20,
                    // Five rows a curve, of which the shortest sequence is held out: it lies beyond those that are seen.
                    _ if name.starts_with("gb") => 0.30,
                    // What is left of a block that was launched kernel by kernel, of two models; on this card few rows are above the host's time.
                    "attention-selected-fp8" if name == "b200-sglang" => 0.31,
                    "attention-selected" | "attention-selected-fp8" => 0.22,
                    "scan-delta" => 0.12,
                    "attention-512" | "attention-mla" | "attention-mla-fp8" => 0.12,
                    // Triton's kernel, which the makers of models with such heads do not use there.
                    "attention-192" | "attention-192-fp8" if name == "b200-sglang" => 0.14,
                    _ => 0.08,
                };
                assert!(error < most, "{name} {operator}: median error {error} on unseen rows");
            }
        }
    }

    #[test]
    fn gpus_find_their_profile() {
        assert_eq!(of_gpu("a100-sxm-80g"), Some("a100-sxm"));
        assert_eq!(of_gpu("h100-sxm"), Some("h100-sxm"));
        assert_eq!(of_gpu("rtx-4090"), Some("rtx-4090"));
        assert_eq!(of_gpu("l4"), None);
        assert_eq!(of_engine("a100-sxm-80g", "vllm"), Some("a100-sxm-vllm"));
        assert_eq!(of_engine("h200-sxm", "trtllm"), Some("h200-sxm-trtllm"));
        assert_eq!((of_engine("h200-sxm", "other"), of_engine("l4", "vllm")), (None, None));
        assert_eq!((of_gpu("b200"), of_engine("b200", "vllm")), (Some("b200"), Some("b200-vllm")));
        // B200's own table is of training.
        let serving = |gpu: &str| of_serving(gpu, None).map(|profile| profile.name);
        assert_eq!(
            ["h200-sxm", "b200", "rtx-4090"].map(serving),
            ["h200-sxm", "b200-vllm", "rtx-4090"].map(|name| Some(name.to_owned()))
        );
    }

    #[test]
    fn cards_without_tables_are_lent_those_of_their_family_first() {
        let lender = |gpu: &str| of_serving(gpu, Some("sglang")).expect("lent").lent_by;
        assert_eq!((lender("b300").as_deref(), lender("b200")), (Some("b200"), None));
        for gpu in ["gb200", "gb300"] {
            assert_eq!(lender(gpu).as_deref(), Some("b200"), "{gpu}");
        }
        assert_eq!(lender("l4").as_deref(), Some("h200-sxm"));
        // Left out, B200 takes H200's, and latent attention is TensorRT-LLM's there as well.
        let left_out = of_neighbour("b200", "sglang").expect("lent");
        assert_eq!(left_out.lent_by.as_deref(), Some("h200-sxm"));
        let latent = parsed_of_engine("h200-sxm", "trtllm").expect("shipped").decode["decode-mla"].kernel.clone();
        assert_eq!(left_out.decode["decode-mla"].kernel, latent);
    }

    #[test]
    fn blackwell_attends_as_the_authors_of_cudnn_measured() {
        // Two sequences of 4,096 and of 8,192 tokens: what `profiles/published/cudnn` has, forward and backward. A query sees itself among its last 128 tokens.
        let windowed = |tokens: u64| Document { pairs: 128 * tokens - 128 * 127 / 2, ..Document::causal(tokens) };
        let grouped = ([64, 8, 128], Dtype::Bf16, Document::causal as fn(u64) -> Document);
        let latent = ([128, 128, 192], Dtype::Bf16, grouped.2);
        let narrow = ([128, 128, 192], Dtype::Fp8, grouped.2);
        let seen = ([128, 128, 64], Dtype::Bf16, windowed as fn(u64) -> Document);
        let measured = [
            ("gb200", grouped, [[0.391, 1.198], [1.397, 4.127]]),
            ("gb300", grouped, [[0.323, 1.101], [1.185, 3.832]]),
            ("gb200", latent, [[0.977, 3.383], [3.470, 11.984]]),
            ("gb300", latent, [[0.864, 3.127], [3.013, 11.074]]),
            ("gb200", narrow, [[0.714, 2.620], [2.478, 9.567]]),
            ("gb200", seen, [[0.210, 0.465], [0.414, 0.911]]),
        ];
        for (card, ([n_heads, n_kv_heads, head_dim], kv, document), measured) in measured {
            for (tokens, measured) in [4096, 8192].into_iter().zip(measured) {
                for (pass, measured) in [Pass::Forward, Pass::Backward].into_iter().zip(measured) {
                    let op =
                        Op::Attention { documents: vec![document(tokens); 2], n_heads, n_kv_heads, head_dim, kv, pass };
                    let found = ms(card, Framework::MegatronCore, &op);
                    assert!((found / measured - 1.0).abs() < 0.12, "{card} {op:?}: {found} and not {measured}");
                }
            }
        }
    }

    #[test]
    fn attention_is_a_card_s_own_where_that_card_was_measured() {
        let sources = |card: &str| {
            let gpu = hw::catalog::gpu(card).expect("listed");
            let costs = Profiled::new(&training(&gpu, Framework::MegatronCore), &hw::catalog::cluster(&gpu, 1, 4));
            let documents = vec![Document::causal(4096); 2];
            let attention = [Pass::Forward, Pass::Backward].map(|pass| {
                let documents = documents.clone();
                Op::Attention { documents, n_heads: 64, n_kv_heads: 8, head_dim: 128, kv: Dtype::Bf16, pass }
            });
            let product = Op::Gemm { m: 4096, n: 4096, k: 4096, format: Format::Bf16 };
            [&attention[0], &attention[1], &product].map(|op| costs.estimate(op).source)
        };
        let [own, near] = [engine::cost::Source::Measured, engine::cost::Source::WithinGeneration];
        assert_eq!(sources("gb200"), [own, own, near]);
        assert_eq!(sources("gb300"), [own, own, near]);
        assert_eq!(sources("b300"), [near; 3]);
        assert_eq!(sources("b200"), [own; 3]);
    }

    #[test]
    fn cards_outside_of_racks_attend_as_those_with_their_die() {
        let of = |card: &str, head_dim, pass| {
            let gpu = hw::catalog::gpu(card).expect("listed");
            let documents = vec![Document::causal(4096); 4];
            let op = Op::Attention { documents, n_heads: 64, n_kv_heads: 8, head_dim, kv: Dtype::Bf16, pass };
            ms(card, Framework::MegatronCore, &op) * gpu.peak_bf16.get()
        };
        for pass in [Pass::Forward, Pass::Backward] {
            for (card, rack, head_dim) in [("b300", "gb300", 128), ("b300", "gb300", 64), ("b200", "gb200", 64)] {
                let ratio = of(card, head_dim, pass) / of(rack, head_dim, pass);
                assert!((ratio - 1.0).abs() < 0.01, "{card} {head_dim} {pass:?}: {ratio}");
            }
            // B200 has a table of its own at 128.
            assert!((of("b200", 128, pass) / of("gb200", 128, pass) - 1.0).abs() > 0.05, "{pass:?}");
        }
    }

    /// An operation of training on a card under a framework, milliseconds.
    fn ms(card: &str, framework: Framework, op: &Op) -> f64 {
        let gpu = hw::catalog::gpu(card).expect("listed");
        Profiled::new(&training(&gpu, framework), &hw::catalog::cluster(&gpu, 1, 8)).estimate(op).time.get() * 1e3
    }

    #[test]
    fn hopper_trains_with_the_kernels_of_its_framework() {
        let torch =
            Framework::Fsdp2(TorchModules { compiled: true, casts: Casts::Off, in_pieces: false, fused_norms: true });
        // 8,192 tokens, 32 heads over 8: what `operators.csv` and `operators-flash.csv` of both cards have.
        let measured =
            [(Framework::MegatronCore, [[0.888, 0.901], [2.662, 2.601]]), (torch, [[1.755, 1.767], [4.906, 4.813]])];
        for (framework, measured) in measured {
            for (pass, measured) in [Pass::Forward, Pass::Backward].into_iter().zip(measured) {
                let documents = vec![Document::causal(8192)];
                let op = Op::Attention { documents, n_heads: 32, n_kv_heads: 8, head_dim: 128, kv: Dtype::Bf16, pass };
                for (card, measured) in ["h100-sxm", "h200-sxm"].into_iter().zip(measured) {
                    let found = ms(card, framework, &op);
                    assert!((found / measured - 1.0).abs() < 0.03, "{card} {framework:?} {pass:?}: {found}");
                }
                let of_a100 = [Framework::MegatronCore, torch].map(|framework| ms("a100-sxm-80g", framework, &op));
                assert!((of_a100[0] - of_a100[1]).abs() < 1e-12, "{of_a100:?}");
            }
        }
        // TensorRT-LLM's table has the quantisation of the input in it: it says 143 us.
        let narrow = ms("h100-sxm", torch, &Op::Gemm { m: 8192, n: 576, k: 7168, format: Format::Fp8 });
        assert!((narrow / 0.0468 - 1.0).abs() < 0.1, "{narrow}");
        // Transformer Engine multiplies expert by expert; PyTorch's modules multiply all in one launch, which 128 small ones gain by.
        let experts = Op::GroupedGemm {
            rows: vec![512; 128],
            n: 1536,
            k: 2048,
            format: Format::Bf16,
            kind: engine::task::PassKind::Forward,
        };
        let [one_by_one, together] =
            [Framework::MegatronCore, torch].map(|framework| ms("h100-sxm", framework, &experts));
        assert!((together / 0.673 - 1.0).abs() < 0.1 && one_by_one > together, "{one_by_one} {together}");
    }

    #[test]
    fn nodes_are_never_faster_than_one_island_of_as_many_gpus_by_shipped_profiles() {
        let kinds = [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce, Collective::AllToAll];
        for card in ["h100-sxm", "h200-sxm", "b200", "gb200", "gb300", "a100-sxm-80g"] {
            let gpu = hw::catalog::gpu(card).expect("listed");
            for profile in [of_serving(card, Some("vllm")), Some(training(&gpu, Framework::MegatronCore))] {
                let profile = profile.expect("shipped or lent");
                for (n_nodes, per_node) in [(2, 4), (2, 8), (4, 4), (16, 4), (8, 8)] {
                    let mut cluster = hw::catalog::cluster(&gpu, n_nodes, per_node);
                    let all: Vec<hw::Rank> = (0..cluster.n_gpus()).map(hw::Rank).collect();
                    for (kind, power) in kinds.into_iter().flat_map(|kind| (8..31).map(move |power| (kind, power))) {
                        let [one, many] = [n_nodes * per_node, per_node].map(|island| {
                            cluster.nvlink_island = island;
                            let (bytes, shape) = (1 << power, cluster.shape_of(&all));
                            Profiled::new(&profile, &cluster).estimate(&Op::Collective { kind, bytes, shape }).time
                        });
                        let what = format!("{card} {} {kind:?} 2^{power} on {n_nodes} of {per_node}", profile.name);
                        assert!(one <= many, "{what}: {} {}", one.get(), many.get());
                    }
                }
            }
        }
    }

    #[test]
    fn training_takes_narrow_products_and_exchanges_of_the_card_or_of_its_generation() {
        let product = Op::Gemm { m: 8192, n: 8192, k: 8192, format: Format::Fp8 };
        let four_bits = Op::Gemm { m: 8192, n: 8192, k: 8192, format: Format::Nvfp4 };
        let gather = |n_ranks| {
            let shape = hw::GroupShape { n_ranks, n_nodes: 1 };
            Op::Collective { kind: Collective::AllGather, bytes: 64 << 20, shape }
        };
        let estimate = |card: &str, op: &Op| {
            let gpu = hw::catalog::gpu(card).expect("listed");
            Profiled::new(&training(&gpu, Framework::MegatronCore), &hw::catalog::cluster(&gpu, 1, 8)).estimate(op)
        };
        for op in [&product, &four_bits, &gather(8)] {
            let sources = ["b200", "b300", "gb200", "gb300"].map(|card| estimate(card, op).source);
            let lent = Source::WithinGeneration;
            assert_eq!(sources, [Source::Measured, lent, lent, lent], "{op:?}");
        }
        assert_eq!(estimate("h100-sxm", &product).source, Source::Measured);
        assert_eq!(estimate("a100-sxm-80g", &product).source, Source::Borrowed, "it has 16 bits alone");
        // Two ranks move 32 MiB each and eight 56 MiB, which would be 0.57 at one share of the link.
        let [two, eight] = [2, 8].map(|n_ranks| estimate("gb200", &gather(n_ranks)).time.get());
        assert!((0.62..0.8).contains(&(two / eight)), "{two} {eight}");
    }
}
