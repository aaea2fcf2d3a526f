//! `[optimizer]`: the rule, what it keeps of a parameter, and what lies on the host.

use hw::Dtype;
use train::muon::{Muon, Qkv, TensorMode};
use train::optimizer::{OnHost, Optimizer, Rule, UpdateKernels};
use train::problem::{AdaptedProducts, Adapters, Framework, Frozen};

use super::training::Training;
use input::diagnostic::Code;
use input::reader::{Place, Section, place_of, unknown};
use toml_span::value::ValueInner;

/// Formats that Megatron-LM keeps states in (`--exp-avg-dtype` and its like), and that of bitsandbytes and torchao.
const MOMENTS: [(&str, Dtype); 5] =
    [("fp32", Dtype::Fp32), ("bf16", Dtype::Bf16), ("fp16", Dtype::Fp16), ("fp8", Dtype::Fp8), ("int8", Dtype::Int8)];
/// Formats of the master copy (`--main-params-dtype`), or none: parameters in 16 bits are updated themselves (torchtune `dtype: bf16`, torchtitan
/// `training.dtype = "bfloat16"`).
const MASTERS: [(&str, Option<Dtype>); 3] = [("fp32", Some(Dtype::Fp32)), ("fp16", Some(Dtype::Fp16)), ("none", None)];
/// What is updated; `true` where adapters alone are.
const TRAINED: [(&str, bool); 2] = [("all", false), ("adapters", true)];

/// Formats of adapters; `true` where they lie in 32 bits beside activations in 16.
const ADAPTERS: [(&str, bool); 2] = [("same", false), ("fp32", true)];

/// Keys about the states of adapters as well.
const MOMENT_KEYS: [&str; 2] = ["first_moment", "second_moment"];
/// Keys about adapters.
const OF_ADAPTERS: [&str; 5] = ["adapter_rank", "adapters_beside", "adapter_dtype", "adapter_dropout", "frozen"];
/// Keys about the states of the model's own weights.
const OF_WEIGHTS: [&str; 7] =
    ["rule", "muon_iterations", "muon_tensor", "muon_qkv", "offload_ratio", "host_memory_gb_per_s", "kernels"];

/// Rank of adapters where a scenario does not say so (Megatron Bridge, `LoRA.dim`).
const RANK: u64 = 32;

/// Refuses updates of parameters in 16 bits where nobody makes them.
fn master(section: &mut Section<'_>, training: &Training) -> Option<Dtype> {
    let at = section.place("master").unwrap_or_else(|| section.at());
    let master = section.one_of("master", Optimizer::ADAM.master, &MASTERS);
    let what = "`optimizer.master = \"none\"`: parameters in 16 bits are updated themselves";
    if master.is_some() {
    } else if matches!(training.execution.framework, Framework::MegatronCore | Framework::DeepSpeed(_)) {
        let help = "Megatron-Core and DeepSpeed keep a master copy: allowed are fp32 and fp16; `framework = \"pytorch\"` has none";
        section.refuse(Code::WrongOperation, at, what, help);
    } else if training.dtype == Dtype::Fp16 {
        let help = "fp16 is too coarse for updates, and nobody trains so: `training.dtype = \"bf16\"`";
        section.refuse(Code::WrongOperation, at, what, help);
    }
    master
}

/// Gives a step its optimizer, and the adapters that it updates alone; beside them weights may be `packed` in the checkpoint.
pub fn optimizer(mut section: Section<'_>, training: &mut Training, packed: Option<Frozen>) {
    let base = Optimizer::ADAM;
    let trains_adapters = section.one_of("trains", false, &TRAINED);
    if let Some(packed) = packed.filter(|_| !trains_adapters) {
        let what =
            format!("the checkpoint's weights are packed (`{}`), and nothing trains such weights", packed.word());
        let help = "`optimizer.trains = \"adapters\"` trains adapters beside them; a file without `quantization_config` is in 16 bits";
        section.refuse(Code::WrongOperation, section.at(), what, help);
    }
    let is_torch = training.execution.framework.torch().is_some();
    if !trains_adapters {
        section.idle(&OF_ADAPTERS, "`trains = \"adapters\"`");
    } else {
        section.idle(&OF_WEIGHTS, "`trains = \"all\"`: the model's own weights have no states");
        if is_torch {
            section.idle(&["master"], "`trains = \"all\"`: PyTorch's adapters are updated themselves");
        }
    }
    let rule = section.one_of("rule", base.rule, &Rule::WORDS);
    let master = master(&mut section, training);
    if rule != Rule::Muon && !trains_adapters {
        section.idle(&["muon_iterations", "muon_tensor", "muon_qkv"], "`rule = \"muon\"`");
    }
    if !is_torch {
        section.idle(&["kernels"], "`framework = \"pytorch\"`: others update in one kernel");
    }
    let kernels = section.one_of("kernels", UpdateKernels::Fused, &UpdateKernels::WORDS);
    let muon = muon(&mut section);
    let adapters = adapters(&mut section, training, (trains_adapters, packed));
    // Moments have the format of the parameter that is updated (`torch.zeros_like`).
    let usual = match adapters.filter(|_| is_torch) {
        Some(adapters) if adapters.is_wide => base.moments,
        Some(_) => [training.dtype; 2],
        None => master.map_or([training.dtype; 2], |_| base.moments),
    };
    let places = MOMENT_KEYS.map(|key| section.place(key).flatten());
    let moments = [0, 1].map(|index| section.one_of(MOMENT_KEYS[index], usual[index], &MOMENTS));
    if let Some(index) = moments.iter().position(|moment| *moment == Dtype::Int8) {
        integers(&mut section, training, kernels, (MOMENT_KEYS[index], places[index].clone()));
    }
    let on_host = on_host(&mut section);
    let optimizer = Optimizer { rule, muon, master, moments, on_host, kernels };
    let is_megatron = training.execution.framework == Framework::MegatronCore;
    if is_megatron && !trains_adapters && rule == Rule::Muon && !optimizer.is_plain() {
        let what = "`optimizer.rule = \"muon\"` with states in fewer bits or on the host has no optimizer here";
        let help = "Megatron-Core keeps those of Adam alone so (`--use-precision-aware-optimizer`): leave formats and `offload_ratio` out";
        section.refuse(Code::WrongOperation, section.at(), what, help);
    }
    section.finish();
    training.execution.adapters = adapters;
    training.execution.optimizer = optimizer;
}

/// Refuses moments in integers where no optimizer has them.
fn integers(section: &mut Section<'_>, training: &Training, kernels: UpdateKernels, (key, at): (&str, Place)) {
    let help = if training.execution.framework == Framework::MegatronCore {
        "Megatron-Core keeps moments in fp32, bf16, fp16 or fp8; those in 8 bits with scales are bitsandbytes' and torchao's"
    } else if kernels == UpdateKernels::Foreach {
        "`kernels = \"foreach\"` is PyTorch's own AdamW, which has no such moments: leave `kernels` out"
    } else {
        return;
    };
    let what = format!("`optimizer.{key} = \"int8\"` has no optimizer here");
    section.refuse(Code::WrongOperation, at, what, help);
}

/// Adapters, where they alone are trained.
fn adapters(
    section: &mut Section<'_>,
    training: &Training,
    (are_trained, packed): (bool, Option<Frozen>),
) -> Option<Adapters> {
    let rank = section.count("adapter_rank", Some(RANK), 1..=100_000).0;
    let beside = beside(section);
    let is_torch = training.execution.framework.torch().is_some();
    if are_trained && !is_torch {
        section.idle(&["adapter_dtype", "adapter_dropout"], "`framework = \"pytorch\"`, whose adapters are PEFT's");
    }
    let is_wide = section.one_of("adapter_dtype", false, &ADAPTERS);
    let drops = section.flag("adapter_dropout", false);
    let at = section.place("frozen").unwrap_or_else(|| section.at());
    let given = section.one_of("frozen", packed.unwrap_or(Frozen::Same), &Frozen::WORDS);
    let frozen = packed.unwrap_or(given);
    if are_trained && frozen != given {
        let what = format!("`optimizer.frozen = \"{}\"` changes nothing", given.word());
        let help =
            format!("the checkpoint's own `quantization_config` packs them (`{}`), and comes first", frozen.word());
        section.warn(Code::NoEffect, at.clone(), what, help);
    }
    if are_trained && frozen.is_packed() && !is_torch {
        let what = format!("`optimizer.frozen = \"{}\"` has no kernels here", frozen.word());
        let help = "bitsandbytes and torchao pack modules of PyTorch: `training.framework = \"pytorch\"`";
        section.refuse(Code::WrongOperation, at, what, help);
    }
    are_trained.then_some(Adapters { is_wide, drops, frozen, ..Adapters::new(rank, beside) })
}

/// Products that have an adapter: a word, or a list of modules as `target_modules` of PEFT has them.
fn beside(section: &mut Section<'_>) -> AdaptedProducts {
    if !section.has("adapters_beside") || section.is_text("adapters_beside") {
        return section.one_of("adapters_beside", AdaptedProducts::ALL, &AdaptedProducts::WORDS);
    }
    let Some((value, at)) = section.take("adapters_beside") else { return AdaptedProducts::ALL };
    let names = AdaptedProducts::MODULES.map(|(name, _)| name);
    let ValueInner::Array(items) = value else {
        let help = format!("a word, or a list of {}", names.join(", "));
        section.refuse(Code::WrongType, at, "`adapters_beside` is neither a word nor a list", help);
        return AdaptedProducts::ALL;
    };
    let mut found = AdaptedProducts::NONE;
    for item in &items {
        match AdaptedProducts::MODULES.iter().find(|(name, _)| item.as_str() == Some(name)) {
            Some((_, product)) => found = found.with(*product),
            None => {
                let word = item.as_str().unwrap_or("something that is no word");
                let what = format!("`adapters_beside` holds `{word}`, which is no module");
                section.find(unknown(Code::UnknownWord, what, word, names, place_of(item)));
            }
        }
    }
    if items.is_empty() {
        section.refuse(Code::OutOfRange, at, "`adapters_beside` is empty", format!("allowed are {}", names.join(", ")));
    }
    found
}

fn muon(section: &mut Section<'_>) -> Muon {
    let base = Muon::DEFAULT;
    let (n_iterations, _) = section.count("muon_iterations", Some(u64::from(base.n_iterations)), 1..=100);
    Muon {
        n_iterations: u32::try_from(n_iterations).expect("at most a hundred"),
        tensor: section.one_of("muon_tensor", base.tensor, &TensorMode::WORDS),
        qkv: section.one_of("muon_qkv", base.qkv, &Qkv::WORDS),
    }
}

fn on_host(section: &mut Section<'_>) -> Option<OnHost> {
    let share = section.number("offload_ratio", 0.0, 0.0..=1.0);
    if share == 0.0 {
        section.idle(&["host_memory_gb_per_s"], "states on the host, which `offload_ratio` puts there");
    } else if !section.has("host_memory_gb_per_s") {
        let help = "what the host's memory moves for each GPU; a server with 400 GB/s (STREAM) and eight GPUs has 50";
        section.missing("host_memory_gb_per_s", help);
    }
    let bandwidth = section.some_number("host_memory_gb_per_s", 0.1..=10_000.0)?;
    (share > 0.0).then_some(OnHost { share, bytes_per_second: bandwidth * 1e9 })
}
