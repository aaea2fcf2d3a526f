//! Megatron Bridge's published throughput with the recipe of each row.
//!
//! Source: NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b, docs/performance-summary.md and its archive (releases 25.09 to 26.08); recipes at the tag of
//! each row. The same setting is printed in several releases; rows are grouped by release.

use engine::Model;
use engine::dispatcher::Dispatcher;
use engine::formats::Formats;
use hw::Capability;
use hw::{Dtype, Format};
use train::layout::Zero;
use train::megatron_core::{EXPERT_OVERLAP, INTERLEAVED, USER_BUFFERS, steady_share};
use train::metrics::unexplained::Kernels;
use train::optimizer::{Optimizer, Rule};
use train::problem::{
    AdaptedProducts, Adapters, AttentionKernel, Execution, ExpertTraffic, Framework, GradientSync, Loss, Overlap,
};

use super::constants::{Constants, Graphs};
use super::releases::OwnRecipe;
use super::row::{Asked, Label, Measured, Other, Row, Run, Weighs};
use super::setting::{Degrees, Machine, StepSize, same_gpus};
use crate::reason::Reason;
use crate::table::Cells;

/// Columns without which nothing can be said.
pub(super) const NEEDED: [&str; 11] = [
    "row",
    "release",
    "task",
    "model",
    "gpu",
    "gpus",
    "precision",
    "global_batch_seqs",
    "micro_batch_seqs",
    "seq_tokens",
    "step_time_s",
];

/// Last layers of Nemotron 3 Super that runs in 4 bits keep in 16 (`nemotron_3_super_bf16_with_nvfp4_mixed`).
const WIDE_AT_END: u32 = 14;

/// First release whose Transformer Engine casts rows and rotated columns to 4 bits by one kernel: 2.14 in 26.04, 2.12 in 26.02
/// (NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b, docs/releases/software-versions.md; NVIDIA/TransformerEngine, pull request 2555).
const ROTATED_AT_ONCE: &str = "26.04";

/// Tokens of a packed document. Recipes of fine-tuning pack SQuAD (`default_squad_config`, `process_squad_example`), whose examples are about 200
/// tokens; weighted by their length, as attention is, they are longer.
const PACKED_TOKENS: u32 = 256;

/// First release that is no older than every table. SimuMax's of B200 have Transformer Engine 2.11, release 26.02 has 2.12, and 25.11 has 2.9
/// (docs/releases/software-versions.md).
const FIRST_WITH_TABLES: &str = "26.02";

/// First release from which on HybridEP sends tokens wherever the table names it: recipes of DeepSeek-V3 and scripts of Kimi K2 apply it at v0.3.1
/// (`apply_flex_dispatcher_backend`), all scripts at v0.4.0 (`set_workload_base_configs`).
const FLEX_BY_BACKEND: &str = "26.02.01";

/// A line of the table.
pub(super) fn row(cells: &mut Cells<'_>) -> Row {
    let degrees = Degrees::read(cells);
    let format = cells.word("precision").to_owned();
    let variant = [cells.word("release"), cells.word("variant"), cells.word("task")].join(" ");
    let label = Label { format, variant, set: "Bridge", ..super::setting::label(cells, &degrees) };
    let tokens = u64::from(cells.positive("seq_tokens"));
    let micro_batch = cells.positive("micro_batch_seqs");
    let batch = cells.positive("global_batch_seqs");
    let step_s = cells.positive_number("step_time_s");
    let printed = Printed { degrees, micro_batch, batch, tokens, n_documents: n_documents(cells) };
    // The recipe is what a script runs; the layout beside it was written by hand. Of seven given rows that differ so, the recipe's run is 7.8 % off in
    // the mean, the printed one 16.2 %.
    let own = OwnRecipe::of(cells).and_then(|own| printed.by_release(own).as_released(own, cells, &label).ok());
    let sound = same_gpus(cells, &degrees);
    let parts = printed;
    let asked = sound.and_then(|()| printed.asked(cells, &label)).map(|printed| {
        let is_held = train::memory::fits(&printed.problem).is_ok();
        let by_recipe = parts.by_recipe(cells.word("recipe_match"), is_held);
        let is_own = own.is_some();
        let first = own.or(by_recipe.and_then(|run| run.asked(cells, &label).ok()));
        let instead = (first.is_some() && is_held).then(|| Other { run: printed.clone(), weighs: Weighs::First });
        let run = first.unwrap_or(printed);
        let unpacked = Printed { n_documents: 1, ..parts }.asked(cells, &label).ok().filter(|_| parts.n_documents > 1);
        let instead = instead.or(unpacked.map(|run| Other { run, weighs: Weighs::First }));
        // A release's own recipe is of its tag.
        let other = if is_own { instead } else { other(cells, &run).or(instead) };
        Asked::from(Run { other: other.map(Box::new), ..run })
    });
    let dropped = if drops_tokens(cells) { "token drop" } else { "" };
    let size = StepSize { sequences: batch, micro_batch, tokens, gpus: cells.positive("gpus") };
    let compared = Some(super::setting::compared(&label, cells.word("task"), &size, dropped));
    Row { label, asked, measured: Measured { step_s, ..Measured::default() }, compared }
}

/// Documents that a sequence is packed of: attention ends at their borders. Pretraining has one.
fn n_documents(cells: &mut Cells<'_>) -> u32 {
    if cells.word("task") == "pretrain" { 1 } else { (cells.positive("seq_tokens") / PACKED_TOKENS).max(1) }
}

/// Whether tokens above a capacity are dropped. With a stash the factor is of the buffer of a rank; products take the rows that there are
/// (`moe_expert_rank_capacity_factor`).
fn drops_tokens(cells: &Cells<'_>) -> bool {
    !cells.word("moe_capacity_factor").is_empty() && !cells.flag("moe_paged_stash")
}

/// What is cut how, and in which pieces it runs.
#[derive(Clone, Copy)]
struct Printed {
    degrees: Degrees,
    micro_batch: u32,
    batch: u32,
    tokens: u64,
    /// Documents in a sequence.
    n_documents: u32,
}

impl Printed {
    /// With the micro-batch and the virtual stages of the recipe, where nothing else differs from it. Where no card holds the model states of the printed
    /// layout, it did not run: then degrees may differ too.
    fn by_recipe(self, word: &str, is_held: bool) -> Option<Self> {
        let mut run = self;
        let degrees = &mut run.degrees;
        for difference in word.strip_prefix("differs: ")?.split("; ") {
            let (name, recipe) = (difference.split(':').next()?, difference.rsplit(' ').next()?);
            match name {
                "mbs" => run.micro_batch = recipe.parse().ok()?,
                "vp" => degrees.chunks = recipe.parse().unwrap_or(1),
                "tp" if !is_held => degrees.tp = recipe.parse().ok()?,
                "pp" if !is_held => degrees.pp = recipe.parse().ok()?,
                "ep" if !is_held => degrees.ep = recipe.parse().ok()?,
                _ => return None,
            }
        }
        degrees.dp = self.degrees.n_gpus().checked_div(degrees.tp * degrees.pp * degrees.cp)?;
        (degrees.n_gpus() == self.degrees.n_gpus()).then_some(run)
    }

    /// With the layout of the release's own recipe.
    fn by_release(self, own: &OwnRecipe) -> Self {
        Self { degrees: own.degrees(self.degrees), ..self }
    }

    /// As the release's own recipe runs it: passes one after another.
    fn as_released(&self, own: &OwnRecipe, cells: &Cells<'_>, label: &Label) -> Result<Run, Reason> {
        let mut run = self.asked(cells, label)?;
        one_after_another(&mut run.problem.execution);
        run.problem.execution.experts.dispatcher = own.dispatcher;
        Ok(run)
    }

    fn asked(&self, cells: &Cells<'_>, label: &Label) -> Result<Run, Reason> {
        let mut problem = asked(cells, label, &self.degrees)?;
        let (batch, step) = (self.batch, self.micro_batch * self.degrees.dp);
        if !batch.is_multiple_of(step) {
            return Err(Reason::Degrees { what: format!("{batch} sequences in micro-batches of {step}") });
        }
        let n_micro_batches = batch / step;
        let steady = steady_share(self.degrees.pp, n_micro_batches);
        problem.execution.overlap.expert = problem.execution.overlap.expert.map(|share| share * steady);
        let n_documents = self.n_documents;
        let sizes = [self.micro_batch * n_documents, n_micro_batches];
        // Attention with sinks is in no table, nor are products of so odd widths as gpt-oss has.
        // Nor is attention to compressed tokens.
        let kernels = match Kernels::of(&problem) {
            Kernels::OfOtherAge if cells.word("release") >= FIRST_WITH_TABLES => Kernels::OfLikeAge,
            others => others,
        };
        Ok(Run { kernels, ..Run::usual(problem, sizes, self.tokens / u64::from(n_documents)) })
    }
}

/// What a row may have run instead: passes one after another where the recipe is of another tag, and unfused attention with sinks where its authors say that
/// the release is slower. All others fuse it: Transformer Engine from 2.8 on with cuDNN 9.13.1 (`fused_attn.cpp` at v2.9), and release 25.11 has both
/// (docs/releases/software-versions.md).
fn other(cells: &Cells<'_>, asked: &Run) -> Option<Other> {
    let mut run = asked.clone();
    let execution = &mut run.problem.execution;
    let is_of_another_tag = cells.word("recipe_match") == "exact_in_other_tag" && cells.flag("moe_a2a_overlap");
    let may_be_unfused = cells.word("flags").contains("gpt-oss-note");
    if is_of_another_tag {
        one_after_another(execution);
    }
    if may_be_unfused {
        execution.attention = AttentionKernel::Unfused;
    }
    (is_of_another_tag || may_be_unfused).then_some(Other { run, weighs: Weighs::Both })
}

/// Without the forward of a neighbour micro-batch beside a backward.
fn one_after_another(execution: &mut Execution) {
    (execution.overlap.expert, execution.overlap.delayed_weights) = (None, false);
    execution.launches.each = execution.launches.each * (1.0 / INTERLEAVED);
}

fn asked(cells: &Cells<'_>, label: &Label, degrees: &Degrees) -> Result<train::Problem, Reason> {
    let machine = Machine::of(&label.card, degrees.n_gpus())?;
    let n_predicting = cells.count("mtp_layers").map_or_else(|| super::releases::predicting_layers(cells), u64::from);
    let model = model(&label.model)?.with_predicting(n_predicting);
    let mut execution = execution(cells, label, machine.capability())?;
    execution.wide_layers = wide_layers(cells, &model);
    execution.offload = offloaded(cells, &model);
    execution.adapters = (cells.word("task") == "lora").then_some(ADAPTERS);
    execution.layers = match cells.word("pipeline_layout") {
        "" => super::releases::layers_beside_ends(cells, &model, degrees),
        text => super::setting::stage_layers(text, degrees, &model)?,
    };
    let mut problem = machine.problem(model, degrees, execution)?;
    let (waits, launches) = Constants::of(&problem.cluster.gpu.name).host(graphs(cells));
    (problem.execution.host_overhead_per_layer, problem.execution.launches) = (waits, launches);
    if cells.flag("moe_a2a_overlap") {
        problem.execution.launches = launches.interleaved();
    }
    if cells.flag("fsdp") {
        problem.layout.zero = Zero::Parameters;
        problem.layout.replicate = super::releases::copies(cells, degrees.n_gpus());
        problem.execution.offload += super::releases::streamed_share(cells, &problem);
    }
    Ok(problem)
}

/// What graphs replay by a recipe.
fn graphs(cells: &Cells<'_>) -> Graphs {
    Graphs::of_options(cells.word("cuda_graph_impl"), &super::releases::graph_modules(cells))
}

/// Share of activations in host memory: those of so many layers (`cpu_offloading_num_layers`).
fn offloaded(cells: &Cells<'_>, model: &Model) -> f64 {
    let n = u64::from(cells.count("cpu_offload_layers").unwrap_or(0));
    hw::real(n.min(model.n_layers)) / hw::real(model.n_layers)
}

fn execution(cells: &Cells<'_>, label: &Label, card: Capability) -> Result<Execution, Reason> {
    let is_hidden = cells.flag("grad_reduce_overlap");
    let gradients = if cells.word("main_grads_dtype") == "bf16" || !cells.flag("grad_reduce_fp32") {
        Dtype::Bf16
    } else {
        Dtype::Fp32
    };
    let capacity = cells.positive_number("moe_capacity_factor").filter(|_| drops_tokens(cells));
    Ok(Execution {
        recompute: super::setting::recompute(cells, '+')?,
        optimizer: optimizer(cells)?,
        framework: Framework::MegatronCore,
        loss: loss(label),
        formats: Some(formats(cells, &label.format)?),
        rotates_apart: cells.word("release") < ROTATED_AT_ONCE,
        gathers_narrow: cells.flag("fp8_param_gather") || cells.flag("fp4_param_gather"),
        gradient_sync: if is_hidden { GradientSync::Overlapped } else { GradientSync::AtEnd },
        gradient_dtype: gradients,
        overlap: Overlap {
            tensor: if cells.flag("tp_comm_overlap") { USER_BUFFERS } else { 0.0 },
            expert: cells.flag("moe_a2a_overlap").then_some(EXPERT_OVERLAP),
            delayed_weights: cells.flag("delay_wgrad"),
            stage: cells.flag("p2p_overlap"),
            parameter_gather: cells.flag("param_gather_overlap"),
            ..Overlap::NONE
        },
        experts: ExpertTraffic {
            capacity,
            dispatcher: dispatcher(cells, card),
            fused: super::releases::fuses_experts(cells),
            ..ExpertTraffic::EVEN
        },
        ..Execution::default()
    })
}

/// What sends tokens. A column that says otherwise was read without a GPU: the scripts ask the card first, and HybridEP runs on
/// all of them. A backend of DeepEP may be the model's own default, which no script applies.
fn dispatcher(cells: &Cells<'_>, card: Capability) -> Dispatcher {
    let backend = cells.word("moe_flex_backend");
    let is_applied = cells.word("release") >= FLEX_BY_BACKEND && backend == "hybridep";
    match cells.word("moe_dispatcher") {
        _ if super::releases::names_backend(cells) => Dispatcher::flex(card),
        _ if is_applied => Dispatcher::HybridEp,
        kind => super::setting::dispatcher(kind, backend, card),
    }
}

/// Adapters of the recipes: Llama 3 70B beside queries, keys and values (`lora_target_modules`), of rank 16 (`recipes/llama/h100/llama3.py`).
const ADAPTERS: Adapters = Adapters::new(16, AdaptedProducts::QUERY_KEY_VALUE);

/// Kernels of the loss: all benchmarks take Transformer Engine's, those of Nemotron the compiled ones (`perf_recipes/_common.py`,
/// `nemotronh/common.py` @ 067f987df03b), as those of DeepSeek-V4 (`gb200/deepseek_v4.py`).
fn loss(label: &Label) -> Loss {
    let is_compiled = label.model.starts_with("Nemotron") || label.model.starts_with("DeepSeekV4");
    if is_compiled { Loss::Compiled } else { Loss::InPlace }
}

/// States of the optimizer. What a row does not state is 32 bits wide, as Megatron-Core's are.
fn optimizer(cells: &Cells<'_>) -> Result<Optimizer, Reason> {
    let rule = match cells.word("optimizer") {
        "" | "adam" => Rule::Adam,
        "muon" | "dist_muon" => Rule::Muon,
        word => return Err(Reason::Option { what: format!("optimizer {word}") }),
    };
    let is_narrow = cells.flag("precision_aware_optimizer");
    let moment = |column: &str| if is_narrow && cells.word(column) == "bf16" { Dtype::Bf16 } else { Dtype::Fp32 };
    Ok(Optimizer { rule, moments: [moment("exp_avg_dtype"), moment("exp_avg_sq_dtype")], ..Optimizer::ADAM })
}

/// Whether a run in 4 bits keeps its last layers wider.
fn keeps_ends_wide(cells: &Cells<'_>) -> bool {
    cells.word("precision") == "NVFP4" && cells.flag("first_last_layers_bf16")
}

/// Layers at the end of a hybrid that stay in 16 bits: attention and experts of every further token (`keep_mtp_spec_in_bf16`), and the last ones of runs
/// in 4 bits (`num_layers_at_end_in_bf16`).
fn wide_layers(cells: &Cells<'_>, model: &Model) -> u32 {
    if model.state_space.is_none() {
        return 0;
    }
    let n_predicting = u32::try_from(model.n_predicting).expect("few layers predict");
    super::models::LAYERS_PER_FURTHER_TOKEN * n_predicting + if keeps_ends_wide(cells) { WIDE_AT_END } else { 0 }
}

/// Runs in 4 bits that keep some layers wider keep attention and projections around experts so: 8 bits stand for their mixture (Nemotron 3 Super,
/// arXiv:2604.12374).
fn formats(cells: &Cells<'_>, word: &str) -> Result<Formats, Reason> {
    let format = match word {
        "BF16" => Format::Bf16,
        "FP8-CS" => Format::Fp8,
        "FP8-MX" => Format::Mxfp8,
        "NVFP4" => Format::Nvfp4,
        _ => return Err(Reason::Format { word: word.to_owned() }),
    };
    let formats = Formats::weights(format, Dtype::Bf16);
    let head = if super::releases::has_narrow_head(cells) { format } else { formats.head };
    let kv = if cells.flag("fp8_attention") { Dtype::Fp8 } else { formats.kv };
    let formats = Formats { head, kv, ..formats };
    Ok(if keeps_ends_wide(cells) {
        Formats { attention: Format::Mxfp8, dense: Format::Mxfp8, ..formats }
    } else {
        formats
    })
}

fn model(word: &str) -> Result<Model, Reason> {
    let name = match word {
        "LLAMA3_8B" => "llama-3.1-8b",
        "LLAMA3_70B" => "llama-3.1-70b",
        "LLAMA3.1_405B" => "llama-3.1-405b",
        "DeepSeekV3" => "deepseek-v3",
        "DeepSeekV4_Flash" => "deepseek-v4-flash",
        "GPT_OSS_120B" => "gpt-oss-120b",
        "Qwen3_30B_a3B" => "qwen3-30b-a3b",
        "Qwen3_235B_a22B" => "qwen3-235b-a22b",
        "Kimi_K2" => "kimi-k2",
        "Nemotron_3_Nano" | "Nemotron_3_5_Lightning" => "nemotron-3-nano-30b-a3b",
        "Nemotron_3_Super" => "nemotron-3-super-120b-a12b",
        "Nemotron_3_Ultra" => "nemotron-3-ultra-550b-a55b",
        _ => return Err(Reason::Model { word: word.to_owned() }),
    };
    engine::model::embedded(name).ok_or_else(|| Reason::Model { word: word.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::super::setting;
    use super::*;

    #[test]
    fn layout_strings_of_recipes_are_read() {
        // DeepSeek-V3: 61 layers and one that predicts, on sixteen stages, and on 32 (eight ranks of four).
        let deepseek = model("DeepSeekV3").expect("a model").with_predicting(1);
        let degrees = |pp, chunks| Degrees { tp: 1, pp, cp: 1, ep: 1, dp: 1, chunks, expert_tp: 1 };
        let stage_layers = |text: &str, pp, chunks| setting::stage_layers(text, &degrees(pp, chunks), &deepseek);
        let text = "Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*1mL";
        let sixteen = stage_layers(text, 16, 1).expect("a layout");
        assert_eq!((sixteen.len(), sixteen.iter().sum::<u32>()), (16, 62));
        assert_eq!((sixteen[0], sixteen[15]), (4, 2));
        let many = stage_layers("Et|(tt|)*30mL", 8, 4).expect("a layout");
        assert_eq!((many.len(), many.iter().sum::<u32>()), (32, 62));
        assert_eq!((many[0], many[1], many[31]), (1, 2, 1));
        assert_eq!(stage_layers("", 2, 1), Ok(Vec::new()));
        // Without a head, with too few stages, and with too few layers.
        for (text, pp) in [("Et|t", 2), (text, 8), ("Et*4|t*4|L", 3)] {
            assert_eq!(stage_layers(text, pp, 1).expect_err("a reason").name(), "degrees", "{text}");
        }
    }

    #[test]
    fn degrees_are_the_recipe_s_where_the_printed_ones_cannot_be_held() {
        let degrees = Degrees { tp: 1, pp: 1, cp: 1, ep: 1, dp: 64, chunks: 1, expert_tp: 1 };
        let printed = Printed { degrees, micro_batch: 2, batch: 256, tokens: 8192, n_documents: 1 };
        let word = "differs: pp:1 row, recipe 4; vp:None row, recipe 5; mbs:2 row, recipe 1";
        let run = printed.by_recipe(word, false).expect("a recipe");
        assert_eq!((run.degrees.words(), run.micro_batch), ("pp4 vp5 dp16".to_owned(), 1));
        // A layout that can be held did run, as may one with another batch.
        assert!(printed.by_recipe(word, true).is_none());
        assert!(printed.by_recipe("differs: pp:1 row, recipe 4; gbs:256 row, recipe 128", false).is_none());
        assert!(printed.by_recipe("differs: pp:1 row, recipe 3", false).is_none());
        let smaller = printed.by_recipe("differs: mbs:2 row, recipe 1", true).expect("a recipe");
        assert_eq!((smaller.degrees.dp, smaller.micro_batch), (64, 1));
    }
}
