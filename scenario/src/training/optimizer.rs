//! `[optimizer]`: the rule, what it keeps of a parameter, and what lies on the host.

use hw::Dtype;
use train::optimizer::{OnHost, Optimizer, Rule};

use input::reader::Section;

/// Formats that Megatron-LM keeps states in (`--exp-avg-dtype` and its like).
const MOMENTS: [(&str, Dtype); 4] =
    [("fp32", Dtype::Fp32), ("bf16", Dtype::Bf16), ("fp16", Dtype::Fp16), ("fp8", Dtype::Fp8)];
/// Formats of the master copy (`--main-params-dtype`).
const MASTERS: [(&str, Dtype); 2] = [("fp32", Dtype::Fp32), ("fp16", Dtype::Fp16)];
/// What is updated; `true` where adapters alone are.
const TRAINED: [(&str, bool); 2] = [("all", false), ("adapters", true)];

/// An optimizer, and whether it updates adapters alone.
pub fn optimizer(mut section: Section<'_>) -> (Optimizer, bool) {
    let base = Optimizer::ADAM;
    let rule = section.one_of("rule", base.rule, &Rule::WORDS);
    let master = section.one_of("master", base.master, &MASTERS);
    let first = section.one_of("first_moment", base.moments[0], &MOMENTS);
    if rule == Rule::Muon {
        section.idle(&["second_moment"], "`rule = \"adam\"`: Muon keeps one moment of a matrix");
    }
    let second = section.one_of("second_moment", base.moments[1], &MOMENTS);
    let trains_adapters = section.one_of("trains", false, &TRAINED);
    let on_host = on_host(&mut section);
    section.finish();
    (Optimizer { rule, master, moments: [first, second], on_host }, trains_adapters)
}

fn on_host(section: &mut Section<'_>) -> Option<OnHost> {
    let share = section.number("offload_ratio", 0.0, 0.0..=1.0);
    if share == 0.0 {
        section.idle(&["host_memory_gb_per_s"], "states on the host, which `offload_ratio` puts there");
    } else if !section.has("host_memory_gb_per_s") {
        let help = "what the host's memory moves for each GPU; a server with 400 GB/s (STREAM) and eight GPUs has 50";
        section.missing("host_memory_gb_per_s", help);
    }
    let bandwidth = section.number("host_memory_gb_per_s", 50.0, 0.1..=10_000.0);
    (share > 0.0).then_some(OnHost { share, bytes_per_second: bandwidth * 1e9 })
}
