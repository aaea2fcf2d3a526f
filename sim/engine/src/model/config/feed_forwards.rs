//! Widths of feed-forwards and experts.

use super::reader::Reader;
use super::searched;
use super::types::{Family, Type};
use crate::model::Experts;

/// A type, its keys, and its defaults.
type Mixture = (&'static str, [&'static str; 2], [Option<u64>; 3]);

/// Types that all have experts. The keys of their files for experts and for those that a token visits; and what the class takes where a file does not say so: both,
/// and the width of an expert. Without a number the class has none, or one that makes no mixture. `configuration_<type>.py` of huggingface/transformers.
const MIXTURES: [Mixture; 25] = [
    ("deepseek_v2", ["n_routed_experts", PER_TOKEN], [Some(64), None, Some(1407)]),
    ("deepseek_v3", ["n_routed_experts", PER_TOKEN], [Some(256), Some(8), Some(2048)]),
    ("deepseek_v32", ["n_routed_experts", PER_TOKEN], NOTHING),
    ("dots1", ["n_routed_experts", PER_TOKEN], NOTHING),
    ("ernie4_5_moe", ["moe_num_experts", "moe_k"], [Some(64), Some(6), Some(1536)]),
    ("exaone_moe", ["num_experts", PER_TOKEN], NOTHING),
    ("glm4_moe", ["n_routed_experts", PER_TOKEN], [Some(128), Some(8), Some(1408)]),
    ("gpt_oss", ["num_local_experts", PER_TOKEN], [Some(128), Some(4), None]),
    ("granitemoe", ["num_local_experts", PER_TOKEN], [Some(8), Some(2), None]),
    ("hunyuan_v1_moe", ["num_experts", "moe_topk"], NOTHING),
    ("jamba", ["num_experts", PER_TOKEN], [Some(16), Some(2), None]),
    ("kimi_k2", ["n_routed_experts", PER_TOKEN], NOTHING),
    ("kimi_linear", ["num_experts", "num_experts_per_token"], NOTHING),
    ("lfm2_moe", ["num_experts", PER_TOKEN], NOTHING),
    ("llama4", ["num_local_experts", PER_TOKEN], [Some(16), Some(1), None]),
    ("llama4_text", ["num_local_experts", PER_TOKEN], [Some(16), Some(1), None]),
    ("minimax", ["num_local_experts", PER_TOKEN], [Some(8), Some(2), None]),
    ("minimax_m2", ["num_local_experts", PER_TOKEN], [Some(256), Some(8), None]),
    ("mixtral", ["num_local_experts", PER_TOKEN], [Some(8), Some(2), None]),
    ("olmoe", ["num_experts", PER_TOKEN], [Some(64), Some(8), None]),
    ("phimoe", ["num_local_experts", PER_TOKEN], [Some(16), Some(2), None]),
    ("qwen2_moe", ["num_experts", PER_TOKEN], [Some(60), Some(4), Some(1408)]),
    ("qwen3_moe", ["num_experts", PER_TOKEN], [Some(128), Some(8), Some(768)]),
    ("qwen3_next", ["num_experts", PER_TOKEN], [Some(512), Some(10), Some(512)]),
    ("qwen3_vl_moe_text", ["num_experts", PER_TOKEN], NOTHING),
];
const NOTHING: [Option<u64>; 3] = [None; 3];
const PER_TOKEN: &str = "num_experts_per_tok";

/// What the files and the class of a type of mixtures have.
#[derive(Clone, Copy)]
struct OfClass {
    /// Its keys for experts, and for those that a token visits.
    keys: [&'static str; 2],
    /// What stands for keys that are left out: experts, those that a token visits, the width of one.
    defaults: [Option<u64>; 3],
}

/// `None` for types that may have no experts.
fn of_class(reader: &mut Reader<'_>) -> Option<OfClass> {
    let kind = reader.word_or_none("model_type").unwrap_or("");
    let (_, keys, defaults) = MIXTURES.iter().find(|(known, ..)| *known == kind)?;
    Some(OfClass { keys: *keys, defaults: *defaults })
}

/// Width of the dense feed-forward, and the experts.
pub(super) fn feed_forwards(of: Type, hidden: u64, reader: &mut Reader<'_>) -> (u64, Option<Experts>) {
    let family = of.family;
    if family == Family::Searched {
        let _ = reader.value("intermediate_size");
        return (searched::width(hidden, reader), None);
    }
    let of_class = of_class(reader);
    let n_routed = n_routed(family, of_class, reader);
    let width = width(n_routed.and(of_class), reader);
    let dense = match family {
        Family::Gpt2 | Family::Bloom | Family::Falcon => {
            reader.optional(&["n_inner", "ffn_dim", "ffn_hidden_size"]).unwrap_or(4 * hidden)
        }
        Family::Mpt => hidden * reader.optional(&["expansion_ratio"]).unwrap_or(4),
        Family::Granite if n_routed.is_none() => reader.required(&["shared_intermediate_size"]),
        Family::Llama4 | Family::Cohere2 => {
            reader.required(&["intermediate_size_mlp", "prefix_dense_intermediate_size", "intermediate_size"])
        }
        Family::MiniMaxM3 => reader.required(&["dense_intermediate_size", "intermediate_size"]),
        Family::Longcat => reader.required(&["ffn_hidden_size", "intermediate_size"]),
        Family::Gemma3n => reader.uniform(&["intermediate_size"]).unwrap_or(8 * hidden),
        Family::Lfm2 => lfm2_width(n_routed.is_some(), reader),
        // Both factors together (Qwen/Qwen-7B, `modeling_qwen.py`: `ff_dim_in = config.intermediate_size // 2`).
        Family::FirstQwen => reader.required(&["intermediate_size"]) / 2,
        // Models whose layers all have experts may leave it out.
        _ if n_routed.is_some() && width.is_some() => reader.optional(&["intermediate_size"]).or(width).unwrap_or(1),
        _ => reader.required(&["intermediate_size"]),
    };
    let Some(n_routed) = n_routed else { return (dense, None) };
    let intermediate = match family {
        Family::Llama4 | Family::Cohere2 => reader.required(&["intermediate_size"]),
        Family::MiniMaxM3 => width.unwrap_or_else(|| reader.required(&["intermediate_size"])),
        _ => width.unwrap_or(dense),
    };
    let (top_k, n_zero) = visited(family, n_routed, of_class, reader);
    let (n_groups, groups_of_token) = router_groups(n_routed, top_k, reader);
    let shared_intermediate = shared(family, [hidden, dense, intermediate], reader);
    let is_qwen = matches!(family, Family::Qwen | Family::Qwen3Next | Family::Qwen4);
    let has_gate = is_qwen && by_width(reader) > 0;
    let experts = Experts {
        n_zero,
        shared_intermediate,
        shared_gate: has_gate,
        normed: matches!(family, Family::Gemma4 | Family::Gemma4Unified),
        latent: reader.optional(&["moe_latent_size", "routed_expert_hidden_size"]),
        biased: family == Family::GptOss,
        clamped: family == Family::GptOss,
        fp32_router: family == Family::MiniMax,
        n_groups,
        groups_of_token,
        balanced: is_balanced(of, reader),
        ..Experts::plain(n_routed, top_k, intermediate)
    };
    (dense, Some(experts))
}

/// Width of an expert, where it has one of its own.
fn width(of_class: Option<OfClass>, reader: &mut Reader<'_>) -> Option<u64> {
    let keys = ["moe_intermediate_size", "expert_ffn_hidden_size"];
    let stated = reader.uniform(&keys);
    match (stated, of_class.and_then(|of| of.defaults[2])) {
        (None, Some(default)) => Some(reader.or_default(&keys, Some(default))),
        _ => stated,
    }
}

/// Width of LFM2's feed-forward: two thirds of what its files say, up to a multiple, unless they say otherwise.
fn lfm2_width(has_experts: bool, reader: &mut Reader<'_>) -> u64 {
    let stated = reader.required(&["block_ff_dim", "intermediate_size"]);
    if has_experts || !reader.flag("block_auto_adjust_ff_dim", true) {
        return stated;
    }
    let multiple = reader.optional(&["block_multiple_of"]).unwrap_or(256);
    let factor = reader.positive("block_ffn_dim_multiplier").unwrap_or(1.0);
    hw::whole((factor * hw::real(2 * stated / 3)).floor()).next_multiple_of(multiple)
}

/// Intermediate width of all experts together that every token visits.
fn shared(family: Family, [hidden, dense, intermediate]: [u64; 3], reader: &mut Reader<'_>) -> u64 {
    let n_shared = ["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"].map(|key| reader.count(key));
    let n_shared = n_shared.into_iter().max().unwrap_or(0);
    let each = reader.optional(&["moe_shared_expert_intermediate_size"]).unwrap_or(intermediate);
    let by_width = by_width(reader);
    match family {
        Family::Llama4 => intermediate,
        // Their second half of a layer, and the feed-forward beside experts, are for every token.
        Family::Longcat | Family::Gemma4 | Family::Gemma4Unified => dense,
        // `modeling_arctic.py`: a feed-forward as wide as the model, beside attention and the experts of a layer.
        Family::Arctic if reader.flag("use_residual", true) => hidden,
        // vLLM, `hunyuan_v1.py`: a file may say that no token has a feed-forward beside the experts.
        Family::Hunyuan => {
            let n = reader.uniform(&["num_shared_expert"]).unwrap_or(1);
            if reader.flag("use_mixed_mlp_moe", true) { n * dense } else { 0 }
        }
        Family::Step | Family::Step3 => {
            reader.optional(&["share_expert_dim", "share_expert_dims"]).unwrap_or(n_shared * each)
        }
        Family::MiniMaxM3 if by_width > 0 => by_width,
        _ => n_shared * each + by_width,
    }
}

/// Width of shared experts, where a file states it.
fn by_width(reader: &mut Reader<'_>) -> u64 {
    reader.count("shared_expert_intermediate_size").max(reader.count("shared_intermediate_size"))
}

/// Routed experts; none where their number is 0.
fn n_routed(family: Family, of_class: Option<OfClass>, reader: &mut Reader<'_>) -> Option<u64> {
    // A file of Gemma 4 may have a number and no experts.
    if matches!(family, Family::Gemma4 | Family::Gemma4Unified) && !reader.flag("enable_moe_block", false) {
        let _ = ["num_experts", "top_k_experts", "moe_intermediate_size"].map(|key| reader.value(key));
        return None;
    }
    let keys = ["n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"];
    let is_stated = keys.into_iter().any(|key| reader.has(key));
    match of_class.filter(|_| !is_stated) {
        Some(of) => Some(reader.or_default(&[&of.keys[..1], &keys].concat(), of.defaults[0])),
        None => keys.map(|key| reader.count(key)).into_iter().find(|n| *n > 0),
    }
}

/// Experts that a token visits, and those among which it chooses besides and that compute nothing. Of these it chooses as many as chance gives, so the
/// mean of the others is what it visits.
fn visited(family: Family, n_routed: u64, of_class: Option<OfClass>, reader: &mut Reader<'_>) -> (u64, u64) {
    let (own, usual) = of_class.map_or((PER_TOKEN, None), |of| (of.keys[1], of.defaults[1]));
    let keys =
        ["num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk", "top_k_experts"];
    let chosen = reader.uniform(&keys).or_else(|| reader.optional(&["moe_top_k"]));
    let chosen = chosen.unwrap_or_else(|| reader.or_default(&[own], usual));
    let n_zero = if family == Family::Longcat { reader.count("zero_expert_num") } else { 0 };
    if n_zero == 0 {
        return (chosen, 0);
    }
    (hw::whole((hw::real(chosen * n_routed) / hw::real(n_routed + n_zero)).round()).max(1), n_zero)
}

/// Groups of experts that a router chooses among, and as many as a token chooses: all of them where a file does not say.
fn router_groups(n_routed: u64, top_k: u64, reader: &mut Reader<'_>) -> (u64, u64) {
    let all = reader.optional(&["n_group", "num_expert_group"]).unwrap_or(1);
    if !n_routed.is_multiple_of(all) {
        reader.find("n_group", &all, &format!("numbers that divide the {n_routed} experts"));
        return (1, 1);
    }
    let chosen = reader.optional(&["topk_group"]).unwrap_or(all);
    if chosen > all || chosen * (n_routed / all) < top_k.min(n_routed) {
        let allowed = format!("numbers up to the {all} of `n_group` whose groups have the {top_k} experts of a token");
        reader.find("topk_group", &chosen, &allowed);
        return (all, all);
    }
    (all, chosen)
}

/// How a router chooses experts: `DeepseekV2Gate` and `DeepseekV3Gate` in `modeling_deepseek.py` beside deepseek-ai's checkpoints.
const METHODS: [&str; 3] = ["greedy", "group_limited_greedy", "noaux_tc"];

/// Whether the router was trained with a bias for every expert that balances their load: where a file says so, or where all of its type were.
fn is_balanced(of: Type, reader: &mut Reader<'_>) -> bool {
    let method = reader.word("topk_method");
    if let Some(other) = method.filter(|method| !METHODS.contains(method)) {
        reader.find("topk_method", &format!("`{other}`"), &METHODS.join(", "));
    }
    let keys = ["use_routing_bias", "use_expert_bias", "use_moe_router_bias", "moe_router_enable_expert_bias"];
    let key = keys.into_iter().find(|key| reader.has(key)).unwrap_or(keys[0]);
    method.map_or_else(|| reader.flag(key, of.balanced), |method| method == "noaux_tc")
}
