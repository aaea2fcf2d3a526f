//! `[optimizer]`: the rule, what it keeps of a parameter, and what lies on the host.

use hw::Dtype;
use train::muon::{Muon, Qkv, TensorMode};
use train::optimizer::{OnHost, Optimizer, Rule};
use train::problem::{AdaptedProducts, Adapters};

use input::reader::Section;

/// Formats that Megatron-LM keeps states in (`--exp-avg-dtype` and its like).
const MOMENTS: [(&str, Dtype); 4] =
    [("fp32", Dtype::Fp32), ("bf16", Dtype::Bf16), ("fp16", Dtype::Fp16), ("fp8", Dtype::Fp8)];
/// Formats of the master copy (`--main-params-dtype`).
const MASTERS: [(&str, Dtype); 2] = [("fp32", Dtype::Fp32), ("fp16", Dtype::Fp16)];
/// What is updated; `true` where adapters alone are.
const TRAINED: [(&str, bool); 2] = [("all", false), ("adapters", true)];

/// Keys about the states of the model's own weights.
const OF_WEIGHTS: [&str; 9] = [
    "rule",
    "master",
    "first_moment",
    "second_moment",
    "muon_iterations",
    "muon_tensor",
    "muon_qkv",
    "offload_ratio",
    "host_memory_gb_per_s",
];

/// Rank of adapters where a scenario does not say so (Megatron Bridge, `LoRA.dim`).
const RANK: u64 = 32;

/// An optimizer, and the adapters that it updates alone.
pub fn optimizer(mut section: Section<'_>) -> (Optimizer, Option<Adapters>) {
    let base = Optimizer::ADAM;
    let trains_adapters = section.one_of("trains", false, &TRAINED);
    if trains_adapters {
        section.idle(&OF_WEIGHTS, "`trains = \"all\"`: states of adapters are not counted");
    } else {
        section.idle(&["adapter_rank", "adapters_beside"], "`trains = \"adapters\"`");
    }
    let rule = section.one_of("rule", base.rule, &Rule::WORDS);
    let master = section.one_of("master", base.master, &MASTERS);
    let first = section.one_of("first_moment", base.moments[0], &MOMENTS);
    if rule != Rule::Muon && !trains_adapters {
        section.idle(&["muon_iterations", "muon_tensor", "muon_qkv"], "`rule = \"muon\"`");
    }
    let muon = muon(&mut section);
    let second = section.one_of("second_moment", base.moments[1], &MOMENTS);
    let rank = section.count("adapter_rank", Some(RANK), 1..=100_000).0;
    let beside = section.one_of("adapters_beside", AdaptedProducts::All, &AdaptedProducts::WORDS);
    let on_host = on_host(&mut section);
    section.finish();
    let adapters = trains_adapters.then_some(Adapters { rank, beside });
    (Optimizer { rule, muon, master, moments: [first, second], on_host, foreach: false }, adapters)
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
