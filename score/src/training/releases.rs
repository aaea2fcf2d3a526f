//! What a release's own recipes say and its page or the table does not: layouts, dispatchers, output heads in 8 bits, fused experts, modules of graphs,
//! copies of sharded states, activations in host memory, and stages without a layer.
//!
//! Sources: NVIDIA-NeMo/Megatron-Bridge, `scripts/performance/configs/qwen/qwen3_workload_base_configs.py` at v0.3.1, the tag of release 26.02.01. Its page
//! still has the layouts of v0.3.0. `configs/gpt_oss/gpt_oss_workload_base_configs.py` at v0.4.0, v0.5.0 and v0.5.1; `gpt_oss_llm_pretrain.py` and
//! `configs/deepseek/deepseek_llm_pretrain.py` at v0.5.0 and v0.5.1; `perf_recipes` at v0.6.0. Fused experts
//! are `cutedsl_fused_grouped_mlp` of `configs/{gpt_oss,qwen,deepseek}` at v0.5.0 and v0.5.1, and `use_transformer_engine_op_fuser` at v0.6.0. All recipes of
//! these tags were read for it, those of cards and models without a row too. A script runs the recipe.

use engine::Model;
use engine::dispatcher::Dispatcher;
use hw::Dtype;
use train::Problem;

use super::setting::Degrees;
use crate::table::Cells;

/// A recipe of a release that its page does not print.
#[derive(Debug)]
pub(super) struct OwnRecipe {
    /// Release, model, card and format as the table writes them.
    row: [&'static str; 4],
    pp: u32,
    chunks: u32,
    ep: u32,
    /// How tokens travel to experts.
    pub(super) dispatcher: Dispatcher,
}

/// Both have no exchange behind a neighbour micro-batch (`moe_a2a_overlap = False`).
static OWN: [OwnRecipe; 2] = [
    OwnRecipe {
        row: ["26.02.01", "Qwen3_30B_a3B", "H100", "FP8-CS"],
        pp: 1,
        chunks: 1,
        ep: 16,
        dispatcher: Dispatcher::DeepEp,
    },
    OwnRecipe {
        row: ["26.02.01", "Qwen3_235B_a22B", "B300", "FP8-MX"],
        pp: 8,
        chunks: 1,
        ep: 8,
        dispatcher: Dispatcher::AllToAll,
    },
];

impl OwnRecipe {
    /// The recipe that a row's release has itself, where it is another one than printed.
    pub(super) fn of(cells: &Cells<'_>) -> Option<&'static Self> {
        let row = ["release", "model", "gpu", "precision"].map(|column| cells.word(column));
        OWN.iter().find(|own| own.row == row)
    }

    /// Its degrees on as many GPUs.
    pub(super) fn degrees(&self, printed: Degrees) -> Degrees {
        let dp = printed.dp * printed.pp / self.pp;
        Degrees { pp: self.pp, chunks: self.chunks, ep: self.ep, dp, ..printed }
    }
}

/// A recipe that names DeepEP or HybridEP, where the table does not say it.
struct Backend {
    release: &'static str,
    model: &'static str,
    cards: &'static [&'static str],
    /// Formats of the recipe; none for all.
    formats: &'static [&'static str],
}

const fn backend(
    release: &'static str,
    model: &'static str,
    cards: &'static [&'static str],
    formats: &'static [&'static str],
) -> Backend {
    Backend { release, model, cards, formats }
}

/// Recipes with a backend that the table does not have. Until 26.02 it has no dispatcher at all: the library's own recipes applied one
/// (`apply_flex_dispatcher_backend` in `recipes/qwen/qwen3_moe.py` and `recipes/deepseek/deepseek_v3.py`; backends of `workload_base_configs.py` at
/// v0.2.0, v0.2.2 and v0.3.0), HybridEP on GB200 and GB300 alone before v0.3.0. From 26.04 on it has the backend of the model's own default, as it was read
/// without a GPU.
static BACKENDS: [Backend; 9] = [
    backend("25.11", "DeepSeekV3", &["H100", "GB200", "GB300"], &[]),
    backend("25.11", "Qwen3_235B_a22B", &["GB200", "GB300"], &[]),
    backend("25.11", "Qwen3_30B_a3B", &["GB200", "GB300"], &[]),
    backend("26.02", "DeepSeekV3", &["H100", "B200", "B300", "GB200", "GB300"], &[]),
    backend("26.02", "Qwen3_235B_a22B", &["GB200", "GB300"], &[]),
    backend("26.02", "Qwen3_30B_a3B", &["H100", "B300", "GB200", "GB300"], &[]),
    backend("26.04", "GPT_OSS_120B", &["GB200"], &["BF16"]),
    backend("26.06", "GPT_OSS_120B", &["GB200"], &["FP8-MX"]),
    backend("26.06.01", "GPT_OSS_120B", &["GB200"], &["FP8-MX"]),
];

/// Model, card, and first release whose recipe multiplies by the output head in 8 bits with a scale per block (`fp8_output_proj`).
static NARROW_HEADS: [[&str; 3]; 5] = [
    ["GPT_OSS_120B", "GB200", "26.06"],
    ["GPT_OSS_120B", "GB300", "26.06"],
    ["DeepSeekV3", "GB200", "26.06"],
    ["DeepSeekV3", "GB300", "26.06"],
    ["DeepSeekV3", "B300", "26.06.01"],
];

/// The same of recipes that fuse the products of experts (`cutedsl_fused_grouped_mlp`).
static FUSED_EXPERTS: [[&str; 3]; 17] = [
    ["GPT_OSS_120B", "GB200", "26.06"],
    ["GPT_OSS_120B", "GB300", "26.06"],
    ["Qwen3_30B_a3B", "GB200", "26.06"],
    ["Qwen3_30B_a3B", "GB300", "26.06"],
    ["Qwen3_30B_a3B", "B300", "26.06"],
    ["Qwen3_30B_a3B", "B200", "26.06.01"],
    ["Qwen3_235B_a22B", "GB200", "26.06"],
    ["Qwen3_235B_a22B", "GB300", "26.06"],
    ["Qwen3_235B_a22B", "B300", "26.06.01"],
    ["Qwen3_235B_a22B", "B200", "26.06.01"],
    ["DeepSeekV3", "GB200", "26.06"],
    ["DeepSeekV3", "GB300", "26.06"],
    ["DeepSeekV3", "B300", "26.06.01"],
    ["DeepSeekV4_Flash", "GB200", "26.08"],
    ["DeepSeekV4_Flash", "GB300", "26.08"],
    ["Nemotron_3_Ultra", "GB200", "26.08"],
    ["Nemotron_3_Ultra", "GB300", "26.08"],
];

/// Modules that graphs of a hybrid replay where the table has none: recipes of v0.6.0 set them by a function of their own (`set_cuda_graph_modules`;
/// `perf_recipes/nemotronh`). On H100 routers are left to the host, and in 8 bits attention too.
const GRAPHS_OF_HYBRIDS: [&str; 4] = ["attn", "mamba", "moe_router", "moe_preprocess"];

/// GPUs of a rack that one copy of sharded states lies on (`_GB300_NVLINK_DOMAIN_GPUS`, `num_distributed_optimizer_instances`; `nemotronh/common.py` at
/// v0.6.0).
const GPUS_OF_A_COPY: u32 = 64;

/// Models whose embedding and loss each stand in for a layer where stages are cut (`account_for_{embedding,loss}_in_pipeline_split` of their recipes at all
/// tags; `get_num_layers_to_build` of Megatron-Core).
const ENDS_AS_LAYERS: [&str; 2] = ["LLAMA3.1_405B", "Qwen3_235B_a22B"];

/// Whether a row's recipe names DeepEP or HybridEP, where the table could not know.
pub(super) fn names_backend(cells: &Cells<'_>) -> bool {
    let [release, model, card, format] = ["release", "model", "gpu", "precision"].map(|column| cells.word(column));
    BACKENDS.iter().any(|recipe| {
        let has_format = recipe.formats.is_empty() || recipe.formats.contains(&format);
        [recipe.release, recipe.model] == [release, model] && recipe.cards.contains(&card) && has_format
    })
}

/// Whether a row's output head runs in 8 bits.
pub(super) fn has_narrow_head(cells: &Cells<'_>) -> bool {
    is_since(cells, &NARROW_HEADS)
}

/// Whether a row's products of experts are fused.
pub(super) fn fuses_experts(cells: &Cells<'_>) -> bool {
    is_since(cells, &FUSED_EXPERTS)
}

/// Whether a row with scales per block is of a recipe of a table, or of a later release of it.
fn is_since(cells: &Cells<'_>, recipes: &[[&str; 3]]) -> bool {
    let [model, gpu, release] = ["model", "gpu", "release"].map(|column| cells.word(column));
    let is_its = |[of_model, of_card, first]: &[&str; 3]| *of_model == model && *of_card == gpu && release >= *first;
    cells.word("precision") == "FP8-MX" && recipes.iter().any(is_its)
}

/// Modules that the graphs of a row replay.
pub(super) fn graph_modules<'a>(cells: &'a Cells<'_>) -> Vec<&'a str> {
    let named = cells.word("cuda_graph_scope");
    let is_lost = named.is_empty() && cells.word("cuda_graph_impl") == "transformer_engine";
    if !is_lost || !cells.word("model").starts_with("Nemotron") {
        return named.split('+').collect();
    }
    let modules = match (cells.word("gpu"), cells.word("precision")) {
        ("H100", "FP8-CS") => &GRAPHS_OF_HYBRIDS[1..2],
        ("H100", _) => &GRAPHS_OF_HYBRIDS[..2],
        _ => &GRAPHS_OF_HYBRIDS[..],
    };
    modules.to_vec()
}

/// Layers that predict further tokens where no recipe sets them: as many as the model's own configuration has (`num_nextn_predict_layers`;
/// `deepseek_v4_bridge.py` at v0.6.0).
pub(super) fn predicting_layers(cells: &Cells<'_>) -> u64 {
    u64::from(cells.word("model") == "DeepSeekV4_Flash")
}

/// Copies of sharded states on so many GPUs: sharded inside of a rack, and copied from rack to rack.
pub(super) fn copies(cells: &Cells<'_>, n_gpus: u32) -> u32 {
    if cells.word("model") == "Nemotron_3_Ultra" { (n_gpus / GPUS_OF_A_COPY).max(1) } else { 1 }
}

/// Share of activations that a recipe with sharded states sends to the host module by module (`fine_grained_activation_offloading`): what experts'
/// first products give in Nemotron 3 Ultra (`fused_group_mlp`), and inputs and outputs of attention in DeepSeek-V3 (`core_attn`, `attn_proj`).
pub(super) fn streamed_share(cells: &Cells<'_>, problem: &Problem) -> f64 {
    let model = &problem.model;
    let per_token = match cells.word("model") {
        "Nemotron_3_Ultra" => experts_inside(model),
        "DeepSeekV3" if cells.word("gpu") == "GB300" => around_attention(model),
        _ => return 0.0,
    };
    let kept: u64 = train::stage::stages(problem)
        .iter()
        .map(|stage| train::memory::activation_bytes_per_token(problem, stage))
        .sum();
    let streamed = per_token * Dtype::Bf16.bytes() / u64::from(problem.layout.tp);
    (hw::real(streamed) / hw::real(kept.max(1))).min(1.0)
}

/// Elements of a token between both products of its experts, in all layers.
fn experts_inside(model: &Model) -> u64 {
    let products = if model.gated { 2 } else { 1 };
    model.experts.map_or(0, |experts| model.n_expert_layers() * experts.top_k * experts.intermediate * products)
}

/// Elements of a token's queries, keys, values and outputs of latent attention, in all layers.
fn around_attention(model: &Model) -> u64 {
    let width = |latent: engine::model::LatentAttention| 2 * (latent.nope_dim + latent.rope_dim + latent.value_dim);
    model.n_layers * model.n_heads * model.latent.map_or(0, width)
}

/// Layers of each stage where embedding and loss stand in for one each; empty where they do not, or where stages are no equal ones with them.
pub(super) fn layers_beside_ends(cells: &Cells<'_>, model: &Model, degrees: &Degrees) -> Vec<u32> {
    let (n_stages, n_places) = (u64::from(degrees.pp * degrees.chunks), model.n_layers + 2);
    if n_stages < 2 || !n_places.is_multiple_of(n_stages) || !ENDS_AS_LAYERS.contains(&cells.word("model")) {
        return Vec::new();
    }
    train::stage::beside_ends(n_places, n_stages, [1, 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "recipe_tag,tokens_per_s_per_gpu_best,row,release,task,model,gpu,gpus,precision,global_batch_seqs,micro_batch_seqs,seq_tokens,step_time_s,\
                        tp_gpus,pp_stages,vp_chunks,ep_gpus,dp_replicas,fsdp,cuda_graph_impl,mtp_layers";

    /// What a line of Bridge's table asks to be played.
    fn asked(line: &str) -> Problem {
        let rows = super::super::tables::read(&format!("{HEAD}\n{line}\n"), &|_| None)
            .expect("Bridge's table")
            .expect("a row");
        let asked = rows.into_iter().next().expect("a row").asked.expect("a layout");
        let super::super::row::Asked::Layout(run) = asked else { panic!("a layout") };
        run.problem
    }

    #[test]
    fn a_cell_of_bridge_that_cannot_be_read_is_no_cell_that_is_empty() {
        let line = "v0.3.0,,1,26.02,pretrain,Qwen3_30B_a3B,GB200,8,FP8-MX,512,4,4096,1,1,1,1,8,8,0,none,";
        let faults = |column: &str, cell: &str| {
            let rows = super::super::tables::read(&format!("{HEAD},{column}\n{line},{cell}\n"), &|_| None);
            rows.expect("Bridge's table").err().map(|faults| faults[0].words())
        };
        for (column, cell, wrong) in [
            ("moe_a2a_overlap", "true", "maybe"),
            ("cpu_offload_layers", "2", "ten"),
            ("moe_capacity_factor", "1.5", "abc"),
            ("delay_wgrad", "0", "2"),
        ] {
            assert_eq!(faults(column, cell), None, "{column} {cell}");
            assert_eq!(faults(column, ""), None, "{column}");
            let found = faults(column, wrong).expect("a fault");
            assert!(found.starts_with(&format!("line 2, column `{column}`: `{wrong}` is")), "{found}");
        }
    }

    #[test]
    fn early_recipes_send_tokens_once_to_a_node_and_what_sends_is_not_hidden() {
        let asked = |release: &str, card: &str| {
            let line =
                format!("v0.3.0,,1,{release},pretrain,Qwen3_30B_a3B,{card},8,FP8-MX,512,4,4096,1,1,1,1,8,8,0,none,");
            let mut problem = asked(&line);
            problem.execution.overlap.expert = Some(1.0);
            (problem.execution.experts.dispatcher.is_once_per_node(), problem.hidden_expert_exchange())
        };
        assert_eq!(asked("26.02", "GB200"), (true, 1.0 - 32.0 / 148.0));
        assert!(asked("25.11", "GB200").0);
        // No backend is named for B200, and nothing is known of what NCCL takes.
        assert_eq!(asked("26.02", "B200"), (false, 1.0));
    }

    #[test]
    fn embedding_and_loss_may_stand_on_stages_without_a_layer() {
        // Llama 3.1 405B has 126 layers on 16 ranks of eight stages.
        let problem = asked("v0.6.0,,1,26.08,pretrain,LLAMA3.1_405B,GB200,128,FP8-MX,128,1,8192,1,4,16,8,1,2,0,none,");
        let layers = &problem.execution.layers;
        assert_eq!((layers.len(), layers.iter().sum::<u32>()), (128, 126));
        assert_eq!((layers[0], layers[1], layers[127]), (0, 1, 0));
        // Qwen3 235B has 94 on eight ranks of three: four places on each stage.
        let problem =
            asked("v0.6.0,,1,26.08,pretrain,Qwen3_235B_a22B,GB200,256,FP8-MX,8192,1,4096,1,1,8,3,32,32,0,none,");
        let layers = &problem.execution.layers;
        assert_eq!((layers[0], layers[1], layers[23]), (3, 4, 3));
        // Llama 3 70B does not count them.
        let problem = asked("v0.6.0,,1,26.08,pretrain,LLAMA3_70B,GB200,64,FP8-MX,128,1,8192,1,2,4,5,1,8,0,none,");
        assert!(problem.execution.layers.is_empty());
    }

    #[test]
    fn sharded_states_of_a_model_are_copied_from_rack_to_rack_and_activations_go_to_the_host() {
        let problem =
            asked("v0.6.0,,1,26.08,pretrain,Nemotron_3_Ultra,GB300,256,FP8-MX,256,1,8192,1,1,1,1,64,256,1,none,2");
        assert_eq!((problem.layout.replicate, problem.layout.n_shards(), problem.layout.n_expert_shards()), (4, 64, 1));
        assert!(problem.execution.experts.fused);
        // 48 layers and two that predict, 22 experts of 5120 elements in 16 bits: 11 MB of a token.
        let kept: u64 = train::stage::stages(&problem)
            .iter()
            .map(|stage| train::memory::activation_bytes_per_token(&problem, stage))
            .sum();
        let streamed = problem.execution.offload * hw::real(kept);
        assert!((streamed / (50.0 * 22.0 * 5120.0 * 2.0) - 1.0).abs() < 1e-9, "{streamed}");
        let whole = asked("v0.6.0,,1,26.08,pretrain,LLAMA3_70B,GB300,64,FP8-CS,128,2,8192,1,1,1,1,1,64,1,none,");
        assert_eq!((whole.layout.replicate, whole.execution.offload), (1, 0.0));
    }

    #[test]
    fn graphs_of_hybrids_have_the_modules_of_their_recipe() {
        let graphs = |card, format| {
            let line = format!(
                "v0.6.0,,1,26.08,pretrain,Nemotron_3_Nano,{card},8,{format},512,2,8192,1,1,1,1,8,8,0,transformer_engine,"
            );
            asked(&line).execution.launches.captured
        };
        let (blackwell, hopper) = (graphs("GB200", "FP8-MX"), [graphs("H100", "BF16"), graphs("H100", "FP8-CS")]);
        assert!(blackwell.attention && blackwell.router);
        assert!(hopper[0].attention && !hopper[0].router && !hopper[1].attention);
    }

    #[test]
    fn a_recipe_keeps_the_number_of_gpus() {
        let printed = Degrees { tp: 1, pp: 2, cp: 1, ep: 8, dp: 8, chunks: 12, expert_tp: 1 };
        let own = OWN[0].degrees(printed);
        assert_eq!((own.pp, own.chunks, own.ep, own.dp), (1, 1, 16, 16));
        assert_eq!(own.n_gpus(), printed.n_gpus());
    }
}
