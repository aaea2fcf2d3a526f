//! Profiles that are shipped with the program: `profiles/*.toml`, embedded by name.

mod lender;

use std::sync::OnceLock;

use engine::cost::names;
use engine::cost::profile::{CollectiveCurve, Profile, SCHEMA};
use engine::shard::{AttentionKernel, Framework};
use hw::{Format, Maker};

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

/// Whether curves of other cards stand in for a GPU's. All of them are of NVIDIA's libraries, so cards of another maker have their datasheet.
fn borrows(gpu: &str) -> bool {
    hw::catalog::maker(gpu) != Some(Maker::Amd)
}

/// A profile of a card of which nothing was measured: every operation is the datasheet's.
fn without_curves(gpu: &str) -> Profile {
    Profile {
        schema: SCHEMA.to_owned(),
        name: "roofline".to_owned(),
        gpu: gpu.to_owned(),
        source: "the datasheet".to_owned(),
        ..Profile::default()
    }
}

/// Kernels of training under a framework on a GPU, lent where they are another one's: by the nearest card of its generation, or by the H100 where none of it was measured. Cards of
/// other makers have none. On Hopper this project measured them (`with_measured`). Elsewhere narrow products are those of TensorRT-LLM's tables of the same card. It multiplies 8 bits by
/// cuBLASLt (`cublas_scaled_mm`), as Transformer Engine and PyTorch do; SGLang and vLLM have kernels of their own, which take 1.15 times as long from 2,048 rows on. Exchanges are those of the library in the same tables, where training has none.
/// So is attention of narrow heads (`with_narrow_heads`).
///
/// # Panics
/// Never: a test holds that every shipped profile is one.
pub fn training(gpu: &hw::Gpu, framework: Framework, attention: AttentionKernel) -> Profile {
    let name = gpu.name.as_str();
    if !borrows(name) {
        return without_curves(name);
    }
    let own = of_gpu(name);
    let lender = || lender::nearest(gpu, of_gpu).unwrap_or(HOPPER);
    let mut profile = parsed(own.unwrap_or_else(lender)).expect("listed").clone();
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
/// modules have experts in one launch, and on Hopper attention of FlashAttention 2 unless they name another kernel. It was written for Ampere, so its share of Hopper's peak says nothing of another
/// generation. Transformer Engine multiplies expert by expert.
fn with_measured_on_hopper(profile: &mut Profile, card: &str, (framework, attention): (Framework, AttentionKernel)) {
    let is_torch = framework.torch().is_some();
    let is_usual = attention == AttentionKernel::Flash;
    let is_flash = is_torch && is_usual || attention == AttentionKernel::FlashTwo;
    let n_measured = if is_flash && hw::catalog::same_generation(card, HOPPER) { 2 } else { 1 };
    let own = profile.gpu.clone();
    for what in &MEASURED[..n_measured] {
        // What the profile's own card has comes over what H100 lends it.
        let measured = [HOPPER, own.as_str()].map(|card| parsed_of_engine(card, what));
        for (name, operator) in measured.iter().flatten().flat_map(|measured| &measured.operators) {
            if name != CHAINED && (is_torch || !name.starts_with(names::GROUPED_GEMM)) {
                profile.operators.insert(name.clone(), operator.clone());
            }
        }
    }
    if is_torch && attention == AttentionKernel::FlashThree {
        as_flash_three(profile);
    }
}

/// cuDNN's kernels over those of FlashAttention 3: 129 against 126 TFLOP/s, and 108 each with a causal mask (Dao-AILab/flash-attention, issue 1310).
const CUDNN_OVER_FLASH_THREE: f64 = 129.0 / 126.0;

/// Makes the intervals of attention wider by what another kernel may differ.
fn as_flash_three(profile: &mut Profile) {
    let attention = profile.operators.iter_mut().filter(|(name, _)| name.starts_with("attention"));
    for (_, operator) in attention {
        operator.residuals.low /= CUDNN_OVER_FLASH_THREE;
        operator.residuals.high *= CUDNN_OVER_FLASH_THREE;
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

/// The card that lends its tables of an engine where nobody measured the GPU's generation.
const OF_NO_KIN: &str = "h200-sxm";

/// Shipped profile of a serving engine on a GPU, parsed once.
pub fn parsed_of_engine(gpu: &str, engine: &str) -> Option<&'static Profile> {
    parsed(of_engine(gpu, engine)?)
}

/// Tables of a GPU that serves. Those of the engine, where one is named and was measured there; else the GPU's own, where they tell how decoding
/// attends; else those of the engine on another card of the same maker, lent. Where no engine is named, vLLM's stand in for a GPU's own that know training alone: its
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
    if let Some(other) = parsed_of_engine(gpu, "trtllm").filter(|_| runs_its_plain_experts(engine, gpu)) {
        with_plain_experts(&mut profile, other);
    }
    profile
}

/// Whether an engine runs TensorRT-LLM's kernel for 8-bit experts without a gate: both take FlashInfer's CUTLASS, which is that kernel (`flashinfer_cutlass` of
/// NemotronH in sgl-project/sglang @ v0.5.8, `server_args.py`; `FlashInferExperts` of vLLM). On Hopper it is slow as long as nobody tunes it. vLLM does, and SGLang
/// does not (`_should_run_flashinfer_autotune`).
fn runs_its_plain_experts(engine: &str, gpu: &str) -> bool {
    engine == "vllm" || (engine == "sglang" && !hw::catalog::same_generation(gpu, HOPPER))
}

/// Gives 8-bit experts without a gate another engine's curve of them, where tables have none.
fn with_plain_experts(profile: &mut Profile, other: &Profile) {
    let whole = names::of_format("experts", Format::Fp8);
    let plain = whole.clone() + names::EXPERT_VARIANTS[1];
    if let Some(curve) = other.experts.get(&plain).filter(|_| !profile.experts.contains_key(&whole)) {
        profile.experts.entry(plain).or_insert_with(|| curve.clone());
    }
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
    let gpu = hw::catalog::gpu(gpu).filter(|gpu| borrows(&gpu.name))?;
    let kin = lender::nearest(&gpu, |card| of_engine(card, engine));
    let lender = kin.map_or_else(|| parsed_of_engine(OF_NO_KIN, engine), parsed)?;
    let mut profile = as_served(lender, &lender.gpu, engine);
    let has_new_units = BLACKWELL.contains(&gpu.name.as_str()) && kin.is_none();
    if has_new_units && engine == "trtllm" {
        with_narrow_experts(&mut profile);
    }
    if has_new_units && engine == "sglang" {
        with_latent_of(&mut profile, parsed_of_engine(&lender.gpu, "trtllm")?);
    }
    Some(profile.lent_to(&gpu))
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
mod tests;
