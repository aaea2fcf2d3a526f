//! SGLang: `python -m sglang.launch_server --model-path …` becomes a serving scenario. What options mean is that of `tables/sglang.tsv`.

mod graphs;

use std::sync::LazyLock;

use engine::dispatcher::DeepEpMode;
use input::diagnostic::Code;

use crate::Machine;
use crate::adapters;
use crate::client;
use crate::drafts::{Drafter, Drafts};
use crate::encoder;
use crate::environment::{self, Variable};
use crate::expert_kernel;
use crate::flags::{Flag, Flags, Table, with_whole_names};
use crate::host_weights;
use crate::launch::{self, Launch};
use crate::quantization::{format_of_keys, of_weights};
use crate::serving::Server;
use crate::shell::UNKNOWN;

/// Options of SGLang.
pub static FLAGS: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../tables/sglang.tsv")));

/// Names of the tensor degree.
const TENSOR: [&str; 3] = ["tp-size", "tp", "tensor-parallel-size"];

/// Which word of a command begins the server; an offline benchmark has it in its own command.
pub(crate) fn begins(words: &[String]) -> Option<usize> {
    let of_serve = words.windows(2).position(|pair| pair[0].rsplit('/').next() == Some("sglang") && pair[1] == "serve");
    let starts = |word: &String| MODULES.iter().any(|module| word.contains(module));
    let of_variable = || launch::by_variable::begins(words, &launch::by_variable::OF_SGLANG);
    of_serve.or_else(|| words.iter().position(starts)).or_else(|| client::of_sglang(words)).or_else(of_variable)
}

/// Modules that start servers; the second one starts a router in front of them, whose options begin with a word of its own.
pub(crate) const MODULES: [&str; 2] = ["sglang.launch_server", "sglang_router.launch_server"];

/// Its model; `sglang serve MODEL` has no option for it.
fn model(flags: &mut Flags, program: &[String]) -> Option<String> {
    flags.last_of(&["model-path", "model"]).and_then(|name| flags.text(name)).or_else(|| served(program))
}

fn served(program: &[String]) -> Option<String> {
    let at = program.iter().position(|word| word == "serve")?;
    program.get(at + 1).cloned()
}

/// Its options without those of a router, by their whole names.
fn given(flags: Vec<Flag>, launcher: &[Flag]) -> Vec<Flag> {
    let own = flags.into_iter().filter(|flag| !flag.name.starts_with("router-")).collect();
    launch::with_nodes(with_whole_names(own, &FLAGS), launcher)
}

/// What its options say, and the options.
pub(crate) fn server(launch: Launch, machine: &Machine) -> (Server, Flags<'static>) {
    let flags = graphs::with_json(given(launch.flags, &launch.launcher));
    let mut flags = Flags::new(flags, &FLAGS);
    flags.findings = launch.findings;
    let mut server = Server::new("sglang", "sglang");
    server.version(launch.version.as_ref());
    let model = model(&mut flags, &launch.program);
    server.named(&mut flags, machine, model);
    server.tp = Server::degree(&mut flags, &TENSOR).unwrap_or(1);
    server.pp = Server::degree(&mut flags, &["pp-size", "pp", "pipeline-parallel-size"]).unwrap_or(1);
    server.nodes = Server::degree(&mut flags, &["nnodes"]).filter(|nodes| *nodes > 1);
    server.started_by(&launch.launcher);
    let all = server.tp;
    let ranks = attention(&mut server, &mut flags);
    let dense = flags.count("moe-dense-tp-size", 1..=4096).unwrap_or(all);
    let cut = expert_cut(&flags, all);
    // A group of attention has a part of the tensor ranks.
    server.divides_heads(&mut flags, &TENSOR, machine);
    server.divides_blocks(&mut flags, &TENSOR, machine, ([dense, cut], "`--ep-size` as wide as `--tp-size`"));
    // Groups of attention share both limits.
    server.share_of_count(&mut flags, "max_sequences", "max-running-requests", ranks);
    server.count(&mut flags, "max_context", &["context-length"], 100_000_000);
    if flags.text("chunked-prefill-size").is_some_and(|size| size == "-1") {
        flags.not_modelled("chunked-prefill-size", "prompts are cut into chunks of the default size");
    } else {
        server.share_of_count(&mut flags, "max_tokens", "chunked-prefill-size", ranks);
    }
    // Without a pipeline SGLang cuts prompts as ever.
    if flags.is("enable-dynamic-chunking") && server.pp > 1 {
        server.key("chunk_sizes", "\"equal-time\"", "--enable-dynamic-chunking");
    }
    server.share(&mut flags, &["mem-fraction-static"]);
    server.count(&mut flags, "block_tokens", &["page-size"], 4096);
    if flags.is("disable-radix-cache") {
        server.key("prefix_cache", false, "--disable-radix-cache");
    }
    if let Some(rule) = flags.text("radix-eviction-policy") {
        if rule == "lru" || rule == "lfu" {
            server.key("eviction", format!("\"{rule}\""), "--radix-eviction-policy");
        } else {
            flags.not_modelled("radix-eviction-policy", "what was used longest ago leaves the cache first");
        }
    }
    graphs::read(&mut server, &mut flags);
    server.count(&mut flags, "recv_interval", &["scheduler-recv-interval"], 65_536);
    server.count(&mut flags, "stream_interval", &["stream-interval"], 100_000);
    server.count(&mut flags, "api_servers", &["tokenizer-worker-num"], 65_536);
    if flags.is("enable-priority-scheduling") {
        server.key("scheduling", "\"priority\"", "--enable-priority-scheduling");
    }
    encoder::of_sglang(&mut server, &flags);
    if flags.is("disable-overlap-schedule") {
        server.key("loop", "\"serial\"", "--disable-overlap-schedule");
    }
    reduces(&mut server, &flags);
    experts(&mut server, &mut flags);
    server.formats = [of_weights(&server, &mut flags, machine), format_of_keys(&mut flags)];
    server.adapters = adapters::of_sglang(&mut flags);
    server.host_weights(host_weights::of_sglang(&mut flags));
    drafts(&mut server, &mut flags);
    overlap_of_drafts(&mut server, &flags, &launch.environment);
    (server, flags)
}

/// How tokens come to experts, which lie twice, and what computes them.
fn experts(server: &mut Server, flags: &mut Flags<'_>) {
    dispatcher(server, flags);
    redundant_experts(server, flags);
    server.expert_kernel(expert_kernel::of_sglang(flags));
}

/// Drafted tokens: one behind the other, or a tree.
fn drafts(server: &mut Server, flags: &mut Flags<'_>) {
    if !flags.is("speculative-algorithm") {
        return;
    }
    // Of the tokens that are verified at once one is no draft (`srt/arg_groups/speculative_hook.py`: steps and one more in a chain).
    let (verified, steps) = (drafted(flags, "num-draft-tokens", 512), drafted(flags, "num-steps", 64));
    let of_verified = verified.map(|n| n.saturating_sub(1).clamp(1, 64));
    let n = steps.or(of_verified).unwrap_or(4);
    let branches = drafted(flags, "eagle-topk", 64).filter(|branches| *branches > 1);
    let model = flags.text("speculative-draft-model-path").or_else(|| flags.text("speculative-draft-model"));
    let algorithm = flags.text("speculative-algorithm").unwrap_or_default();
    // Without a draft model EAGLE runs the model's own layer; `NEXTN` is another word for it (`srt/server_args.py`).
    let is_own = model.is_none() && algorithm.eq_ignore_ascii_case("eagle");
    let algorithm = if is_own { "NEXTN".to_owned() } else { algorithm };
    let tree = branches.map(|branches| [branches, verified.unwrap_or(n + 1)]);
    server.drafts = Some(Drafts { n, tree, by: Drafter::of("sglang", &algorithm, model) });
}

/// The variable that lets the host work beside a chain of drafts; trees and n-grams have no such loop (`srt/server_args.py`).
const OVERLAPS_DRAFTS: &str = "SGLANG_ENABLE_SPEC_V2";

fn overlap_of_drafts(server: &mut Server, flags: &Flags<'_>, variables: &[Variable]) {
    let is_chain = server.drafts.as_ref().is_some_and(|drafts| drafts.tree.is_none() && drafts.by != Drafter::Text);
    let is_known = environment::value(variables, OVERLAPS_DRAFTS).is_some_and(|value| !value.contains(UNKNOWN));
    if is_chain && is_known && !flags.is("disable-overlap-schedule") {
        let is_off = environment::is_off(variables, OVERLAPS_DRAFTS);
        server.key("loop", if is_off { "\"serial\"" } else { "\"async\"" }, OVERLAPS_DRAFTS);
    }
}

/// Norms inside of all-reduces. The flag that forbids them wins, as in SGLang.
fn reduces(server: &mut Server, flags: &Flags<'_>) {
    if flags.is("enforce-disable-flashinfer-allreduce-fusion") {
        server.key("all_reduce", "\"separate\"", "--enforce-disable-flashinfer-allreduce-fusion");
    } else if flags.is("enable-flashinfer-allreduce-fusion") {
        server.key("all_reduce", "\"fused\"", "--enable-flashinfer-allreduce-fusion");
    }
}

/// What sends tokens to experts: DeepEP in one of its modes. Without groups of attention every GPU has all tokens.
fn dispatcher(server: &mut Server, flags: &mut Flags<'_>) {
    let name = if flags.is("enable-deepep-moe") { "enable-deepep-moe" } else { "moe-a2a-backend" };
    let sends = server.dp > 1 && server.ep.is_some();
    let found = exchange(flags);
    match found {
        None => {}
        Some("deepep") if sends => {
            let mode = match flags.text("deepep-mode").as_deref() {
                Some("normal") => DeepEpMode::Normal,
                Some("low_latency") => DeepEpMode::LowLatency,
                _ => DeepEpMode::Auto,
            };
            server.key("dispatcher", format!("\"{}\"", mode.word()), &format!("--{name}"));
        }
        Some("deepep") => {
            flags.not_modelled(name, "without `--enable-dp-attention` every GPU has all tokens, and none is sent")
        }
        Some(_) => {
            let why = "experts are spread over the tensor group; kernels of their exchange are those of the profile";
            flags.not_modelled(name, why);
        }
    }
    if flags.is(OVERLAP) && sends && found == Some("deepep") {
        server.key("two_batch_overlap", true, "--enable-two-batch-overlap");
    } else if flags.is(OVERLAP) {
        flags.not_modelled(OVERLAP, "only what DeepEP sends travels beside computation");
    }
}

/// The switch of batches in two halves.
const OVERLAP: &str = "enable-two-batch-overlap";

/// `--enable-eplb --ep-num-redundant-experts 32`; without a number none lies twice.
fn redundant_experts(server: &mut Server, flags: &mut Flags<'_>) {
    let redundant = flags.count("ep-num-redundant-experts", 0..=65_536);
    let is_balanced = flags.is("enable-eplb");
    let has_place = flags.text("init-expert-location").is_some_and(|place| place != "trivial");
    if redundant.is_some_and(|n| n > 0) && !is_balanced && !has_place {
        let why = "without `--enable-eplb` or `--init-expert-location` nobody balances them";
        flags.not_modelled("ep-num-redundant-experts", why);
    } else if redundant.is_some() || is_balanced {
        server.key("redundant_experts", redundant.unwrap_or(0), "--ep-num-redundant-experts");
    }
}

/// A number of speculation.
fn drafted(flags: &mut Flags<'_>, name: &str, most: u64) -> Option<u64> {
    flags.count(&format!("speculative-{name}"), 1..=most)
}

/// Ways in which tokens travel to experts that spread these over the whole tensor group, whatever degree is asked for (`_A2A_EP_SPANNING_BACKENDS` in
/// `srt/arg_groups/overrides.py`).
const SPREADING: [&str; 10] = [
    "ascend_fuseep",
    "deepep",
    "deepep_v2",
    "flashinfer",
    "flashinfer_megamoe",
    "megamoe",
    "mooncake",
    "mori",
    "nixl",
    "pplx",
];

/// How tokens travel to experts: by name, or by switches of their own. Waterfill is a part of DeepEP, or of MegaMoE where that is named.
fn exchange(flags: &Flags<'_>) -> Option<&'static str> {
    let named = flags.find("moe-a2a-backend").map(Flag::value).unwrap_or_default();
    let found = SPREADING.into_iter().find(|known| *known == named);
    let is_deepep = flags.is("enable-deepep-moe") || flags.is("enable-waterfill");
    if is_deepep && found != Some("megamoe") { Some("deepep") } else { found }
}

/// Whether DeepEP runs with kernels that no graph holds (`handle_a2a_moe` in `srt/arg_groups/moe_hook.py`).
fn is_without_graphs(flags: &Flags<'_>) -> bool {
    let is_normal = flags.find("deepep-mode").is_some_and(|flag| flag.value() == "normal");
    is_normal && exchange(flags) == Some("deepep")
}

/// The degree of experts: as wide as the tensor group where their exchange spreads them over it, or where a switch of older releases asks for it.
fn expert_degree(server: &Server, flags: &mut Flags<'_>) -> Option<u64> {
    let asked = Server::degree(flags, &EP);
    let is_spread = exchange(flags).is_some() || flags.is("enable-ep-moe");
    if is_spread && server.has_experts() != Some(false) { Some(server.tp) } else { asked }
}

/// GPUs of the tensor group that share each expert.
fn expert_cut(flags: &Flags<'_>, all: u64) -> u64 {
    if exchange(flags).is_some() || flags.is("enable-ep-moe") {
        return 1;
    }
    let asked = flags.last_of(&EP).and_then(|name| flags.find(name)?.value().parse::<u64>().ok());
    (all / asked.unwrap_or(1).max(1)).max(1)
}

/// Names of the degree of experts.
const EP: [&str; 3] = ["ep-size", "ep", "expert-parallel-size"];

/// Names of the number of replicas, or of groups of attention beside `--enable-dp-attention`.
const DATA: [&str; 3] = ["dp-size", "dp", "data-parallel-size"];

/// Names of the groups of attention.
const GROUPS: [&str; 2] = ["attn-dp-size", "attention-data-parallel-size"];

/// Groups of attention in the tensor group, and replicas beside each other: `--attn-dp-size`, or `--dp-size` with `--enable-dp-attention` as it was called
/// before. Gives the number of groups.
fn attention(server: &mut Server, flags: &mut Flags<'_>) -> u64 {
    let dp = Server::degree(flags, &DATA).unwrap_or(1);
    let ep = expert_degree(server, flags);
    let own = Server::degree(flags, &GROUPS).unwrap_or(1);
    let is_switched = own == 1 && flags.is("enable-dp-attention");
    let (names, groups) = if is_switched { (&DATA[..], dp) } else { (&GROUPS[..], own) };
    let name = flags.last_of(names).unwrap_or(names[0]);
    if groups == 1 {
        (server.dp, server.ep) = (dp, ep);
        server.hybrid_experts(flags, &EP);
        return 1;
    }
    if !server.tp.is_multiple_of(groups) {
        let what = format!("{groups} groups of attention do not divide {} tensor ranks", server.tp);
        flags.wrong(name, what, "allowed are divisors of the tensor degree".to_owned());
    }
    if server.has_experts() == Some(false) {
        let what =
            format!("groups of attention (`{}`) are not modelled for a model without experts", flags.shown(name));
        let help = "its feed-forwards are cut over all ranks there; leave out `--enable-dp-attention`, and `--dp-size` starts replicas";
        flags.refuse(Code::NotModelled, flags.at(name), what, help);
        return groups;
    }
    // Without a degree of their own, experts stay cut over the tensor group.
    if ep != Some(server.tp) {
        server.cut_experts(flags, name, "give `--ep-size` as wide as `--tp-size`");
    }
    server.ep = Some(server.tp);
    (server.tp, server.dp) = ((server.tp / groups).max(1), groups);
    groups
}

#[cfg(test)]
mod tests {
    use crate::example::{import_text, on};

    #[test]
    fn groups_of_attention_of_a_dense_model_are_named_by_their_flag() {
        let text = "python -m sglang.launch_server --model-path llama-3-8b --tp 4 --enable-dp-attention --dp 4";
        let found = import_text(text, &on("h200-sxm")).findings;
        assert!(found.iter().any(|one| one.what.contains("`--dp`")), "{found:?}");
    }

    #[test]
    fn a_variable_lets_the_host_work_beside_a_chain_of_drafts() {
        let server = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8";
        let machine = on("h200-sxm");
        for (before, drafts, expected) in [
            ("SGLANG_ENABLE_SPEC_V2=1 ", "--speculative-algorithm NEXTN --speculative-num-steps 3", Some("async")),
            ("SGLANG_ENABLE_SPEC_V2=0 ", "--speculative-algorithm NEXTN --speculative-num-steps 3", Some("serial")),
            ("", "--speculative-algorithm NEXTN --speculative-num-steps 3", None),
            ("SGLANG_ENABLE_SPEC_V2=1 ", "--speculative-algorithm NGRAM", None),
            ("SGLANG_ENABLE_SPEC_V2=1 ", "", None),
        ] {
            let text = format!("{before}{server} {drafts}\n");
            let found = import_text(&text, &machine).scenario;
            let has = |word: &str| found.contains(&format!("loop = \"{word}\""));
            assert_eq!(["async", "serial"].into_iter().find(|word| has(word)), expected, "{text}{found}");
        }
    }
}
