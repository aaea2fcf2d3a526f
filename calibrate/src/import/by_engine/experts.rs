//! Fused layers of experts by format: a law of physical terms, and a surface over it where that predicts unseen shapes better.
//!
//! What the tables do not say is which rows each expert has; `Routing` makes them as the tables' own generator does. An engine may have more
//! than one kernel for a format: one where no gate is, one where a part of the experts is on other GPUs; each is a curve of its own.
//!
//! Some launches of TensorRT-LLM ran with a tactic that was not tuned, four to ten times slower than the same launch with another draw of
//! rows. Rows beyond twice what the fastest of its siblings says (the same sizes, another distribution) are left out.

use std::collections::{BTreeMap, BTreeSet};

use engine::cost::experts::draws::RouterGroups;
use engine::cost::experts::{AXES, ExpertsCurve, ExpertsLaw, FusedExperts, Routing, Tactic};
use engine::cost::names;
use engine::cost::profile::Residuals;
use engine::cost::surface::Surface;
use hw::{Format, Gpu};

use super::{Part, Source};
use crate::fit::non_negative::{Robust, non_negative};
use crate::fit::surfaces::{self, Point};
use crate::import::{ImportError, Table};

/// Formats of the tables and ours. Blackwell multiplies MXFP4 weights by activations of 8 bits as well, which its engines choose.
const FORMATS: [(&[&str], Format); 6] = [
    (&["bfloat16"], Format::Bf16),
    (&["fp8"], Format::Fp8),
    (&["fp8_block"], Format::Fp8Block),
    (&["int4_wo"], Format::Int4),
    (&["w4a16_mxfp4", "w4a8_mxfp4_mxfp8"], Format::Mxfp4),
    (&["nvfp4"], Format::Nvfp4),
];
/// End of the names of kernels that stand in for a model's own, with another activation.
const APPROXIMATION: &str = "_situ_as_silu";
/// A kernel that was timed without its tuner: experts with one scale on Hopper read weights at a seventh of what the same library's kernel does with
/// scales of blocks. A server tunes it when it starts (`flashinfer_autotune` of vLLM's `kernel_warmup.py`), and before 0.16 Triton's ran.
const UNTUNED: &str = "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts";
/// A kernel that servers do not run on these layers: it was timed in 16 bits without a gate, and untuned. SGLang takes it where such a checkpoint has 8 or 4 bits,
/// and Triton's where it has 16 (`NemotronHForCausalLM` in `server_args.py`: `flashinfer_cutlass` with `modelopt` alone).
const UNSERVED: &str = "sglang_flashinfer_cutlass_moe";
/// Kernels that have a curve of their own beside a faster one of the same table. SGLang keeps Triton's for models that it has not listed for FlashInfer's. TensorRT-LLM
/// takes CUTLASS's where nobody asks for another one (`resolve_moe_backend` in its `model_config.py`).
const BESIDE: [(&str, &str); 2] =
    [("sglang_fused_moe_triton", names::TRITON_EXPERTS), ("moe_torch_flow_cutlass", names::CUTLASS_EXPERTS)];
/// Engine and version whose rows of a part of the experts are left out: the collector drew them among the experts of one GPU (ai-dynamo/aiconfigurator before
/// 39bf0f6c1, "project global MoE routing onto rank0 workload"). With one token they take what a share takes: 78 us over four GPUs and 210 over one, where eight experts
/// are visited. With 16,384 they take what all rows take: 57 ms over 128 experts, over 32 and over 16. No reading fits both.
const UNCLEAR_PARTS: (&str, &str) = ("sglang", "0.5.10");
/// Experts of the models without a gate: top 22 of 512, and these widths (Nemotron-H in collector/cases/models of the tables' repository).
const PLAIN_TOP_K: u64 = 22;
const PLAIN_WIDTHS: (u64, u64) = (2688, 1856);
/// The layer that SGLang and vLLM route by groups of experts: width, inner width, experts of a token and all (DeepSeek-V3; `sglang_moe_num_expert_group` of
/// collector/cases/models, `use_grouped_topk` of collector/vllm/collect_moe.py).
const GROUPED: [u64; 4] = [7168, 2048, 8, 256];
/// The formats in which they do; older collectors, which timed others, left the router out.
const GROUPED_FORMATS: [Format; 2] = [Format::Fp8Block, Format::Nvfp4];
/// Its groups. TensorRT-LLM's collector routes every model so where it times this kernel (`DeepseekV3Gate` of collector/trtllm/collect_moe.py).
const GROUPS: RouterGroups = RouterGroups { all: 8, of_token: 4 };
const GROUPED_KERNEL: &str = "moe_torch_flow_min_latency";
const ROW_KNOTS: [f64; 7] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 8192.0];
const VISITED_KNOTS: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 512.0];
const ELEMENT_KNOTS: [f64; 5] = [262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0, 67_108_864.0];
/// Rounds in which rows far off the law lose weight.
const ROBUST: Robust = Robust { rounds: 8, off: 0.1 };
/// How much slower than its fastest sibling a row may be, each over the law.
const SIBLINGS: f64 = 2.0;

/// A measured layer.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    terms: [f64; 6],
    point: [f64; 3],
    seconds: f64,
    /// Matrices and how many experts are here: whole ones are held out.
    shape: u64,
    /// All sizes but the distribution.
    siblings: [u64; 7],
    /// The distribution.
    spread: String,
    kernel: String,
    gated: bool,
    elsewhere: bool,
}

/// A layer that was timed by itself, for tables of other origins.
pub struct Timed {
    /// The layer.
    pub layer: FusedExperts,
    /// Its time.
    pub seconds: f64,
    /// Rows with one number are held out together.
    pub group: u64,
}

/// The curve of layers whose rows are known, by one kernel; `None` with too few of them.
pub fn of_layers(layers: &[Timed], gpu: &Gpu) -> Option<ExpertsCurve> {
    let row = |(index, timed): (usize, &Timed)| Row {
        terms: timed.layer.terms(gpu),
        point: timed.layer.point(),
        seconds: timed.seconds,
        shape: timed.group,
        siblings: [index as u64; 7],
        spread: String::new(),
        kernel: String::new(),
        gated: timed.layer.gated,
        elsewhere: timed.layer.has_experts_elsewhere(),
    };
    let rows: Vec<Row> = layers.iter().enumerate().map(row).collect();
    fitted(&rows).map(|(curve, _)| curve)
}

/// All fused layers of an engine.
pub(super) fn all(source: &Source<'_>) -> Result<Part, ImportError> {
    let mut part = Part::default();
    let Some((table, path)) = source.table("moe", source.engine, "moe_perf.csv.gz")? else { return Ok(part) };
    for (words, format) in FORMATS {
        let mut rows = Vec::new();
        for word in words {
            rows.extend(self::rows(source, &table, (word, format))?);
        }
        let mut by_variant: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (kernel, variant) in variants(&rows) {
            by_variant.entry(variant).or_default().push(kernel);
        }
        for (variant, kernels) in by_variant {
            let (kernel, of_kernel) = of_variant(&rows, &kernels);
            let Some((mut curve, n_left_out)) = fitted(&of_kernel) else { continue };
            curve.kernel = Some(kernel.clone());
            let name = names::of_format("experts", format) + variant;
            let name = part.told(&path, name, Some(&kernel), (&left_out(n_left_out), &curve.residuals));
            part.profile.experts.push((name, curve));
            for (other, end) in
                BESIDE.iter().filter(|(other, _)| *other != kernel && kernels.iter().any(|k| k == other))
            {
                part.add_experts(&path, format, (end, other), &rows);
            }
        }
    }
    Ok(part)
}

impl Part {
    /// Adds the curve of one kernel of several.
    fn add_experts(&mut self, path: &str, format: Format, (end, kernel): (&str, &str), rows: &[Row]) {
        let own: Vec<Row> = rows.iter().filter(|row| row.kernel == kernel).cloned().collect();
        let Some((mut curve, n_left_out)) = fitted(&own) else { return };
        curve.kernel = Some(kernel.to_owned());
        let name = names::of_format("experts", format) + end;
        let name = self.told(path, name, curve.kernel.as_ref(), (&left_out(n_left_out), &curve.residuals));
        self.profile.experts.push((name, curve));
    }
}

/// What a report says of rows that were left out.
fn left_out(n: usize) -> String {
    if n > 0 { format!("{n} rows ran with an untuned tactic") } else { String::new() }
}

fn rows(source: &Source<'_>, table: &Table, (word, format): (&str, Format)) -> Result<Vec<Row>, ImportError> {
    let (formats, spread) = (table.words("moe_dtype")?, table.words("distribution")?);
    let (kernels, versions) = (table.words("kernel_source")?, table.words("version")?);
    let columns =
        ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "latency"];
    let columns = table.columns(columns)?;
    let mut found = Vec::new();
    let mut drawn: BTreeMap<Batch<'_>, Option<Vec<u64>>> = BTreeMap::new();
    for row in (0..formats.len()).filter(|&row| formats[row] == word && columns[7][row] > 0.0) {
        let sizes = [0, 1, 2, 3, 4, 5, 6].map(|column: usize| hw::whole(columns[column][row]));
        let [tokens, hidden, inter, top_k, n_experts, tp, ep] = sizes;
        let Some(routing) = routing(&spread[row]).filter(|_| is_timed(&kernels[row])) else { continue };
        let is_grouped = is_grouped((source.engine, &kernels[row], format), sizes);
        let version = (source.engine, versions[row].as_str());
        let batch = [tokens, top_k, n_experts, ep];
        if batch[1] > batch[2] || (version == UNCLEAR_PARTS && ep > 1) {
            continue;
        }
        let computed = drawn.entry((batch, spread[row].as_str(), is_grouped)).or_insert_with(|| {
            if is_grouped {
                routing.grouped_rows(GROUPS, batch)
            } else {
                Some(routing.rows(tokens, top_k, n_experts, ep))
            }
        });
        let Some(rows) = computed.clone() else { continue };
        let gated = top_k != PLAIN_TOP_K && (hidden, inter) != PLAIN_WIDTHS;
        let width = inter / tp;
        // Since then 4-bit integers are those of Kimi-K2.5 alone, in groups of 32 (`module_config` of collector/cases/base_ops/moe.yaml).
        let format = if format == Format::Int4 && version != UNCLEAR_PARTS { Format::Int4By32 } else { format };
        let layer = FusedExperts { rows, tokens, top_k, hidden, width, gated, format, tactic: Tactic::Tuned };
        found.push(Row {
            terms: layer.terms(&source.cluster().gpu),
            point: layer.point(),
            seconds: columns[7][row] / 1e3,
            shape: hidden * 1_000_003 + width * 1009 + (n_experts / ep) * 31,
            siblings: sizes,
            spread: spread[row].clone(),
            kernel: if word.contains("w4a8") { format!("{}, {word}", kernels[row]) } else { kernels[row].clone() },
            gated,
            elsewhere: batch[3] > 1,
        });
    }
    Ok(found)
}

/// Whether rows of a kernel are those of a server.
fn is_timed(kernel: &str) -> bool {
    !kernel.ends_with(APPROXIMATION) && ![UNTUNED, UNSERVED].contains(&kernel)
}

/// Whether a router with groups lies between the experts that a table's distribution gives a token and the kernel.
fn is_grouped((engine, kernel, format): (&str, &str, Format), sizes: [u64; 7]) -> bool {
    let is_deepseek = engine != "trtllm" && sizes[1..5] == GROUPED && GROUPED_FORMATS.contains(&format);
    is_deepseek || kernel == GROUPED_KERNEL
}

/// A batch over experts, the distribution of its rows, and whether a router with groups lies before them.
type Batch<'t> = ([u64; 4], &'t str, bool);

/// Distribution of a table; `None` for one that is not known.
fn routing(word: &str) -> Option<Routing> {
    match word {
        "balanced" => Some(Routing::Even),
        other => other.strip_prefix("power_law_")?.parse().ok().map(Routing::PowerLaw),
    }
}

/// Kernels of a format with the end of their name: what tells a kernel from that which serves the plain case.
fn variants(rows: &[Row]) -> Vec<(String, &'static str)> {
    let kernels: BTreeSet<&str> = rows.iter().map(|row| row.kernel.as_str()).collect();
    let always = |kernel: &str, is: fn(&Row) -> bool| rows.iter().filter(|row| row.kernel == kernel).all(is);
    let of = |kernel: &&str| {
        let (plain, elsewhere) = (always(kernel, |row| !row.gated), always(kernel, |row| row.elsewhere));
        let variant = match (kernels.len() > 1 && plain, kernels.len() > 1 && elsewhere) {
            (false, false) => names::EXPERT_VARIANTS[0],
            (true, false) => names::EXPERT_VARIANTS[1],
            (false, true) => names::EXPERT_VARIANTS[2],
            (true, true) => names::EXPERT_VARIANTS[3],
        };
        ((*kernel).to_owned(), variant)
    };
    kernels.iter().map(of).collect()
}

/// Of the kernels of a variant the one that is the fastest for most of the layers that were timed, with its rows: which of them runs is an option of the
/// engine, or its tuner's choice.
fn of_variant(rows: &[Row], kernels: &[String]) -> (String, Vec<Row>) {
    let mut fastest: BTreeMap<([u64; 7], &str), &Row> = BTreeMap::new();
    for row in rows.iter().filter(|row| kernels.contains(&row.kernel)) {
        let best = fastest.entry((row.siblings, &row.spread)).or_insert(row);
        *best = if row.seconds < best.seconds { row } else { best };
    }
    let n_fastest = |kernel: &&String| fastest.values().filter(|row| row.kernel == **kernel).count();
    let kernel = kernels.iter().max_by_key(n_fastest).cloned().unwrap_or_default();
    let own = rows.iter().filter(|row| row.kernel == kernel).cloned().collect();
    (kernel, own)
}

/// The curve of a kernel, and how many rows were left out; `None` with fewer rows than a law can be told from.
fn fitted(rows: &[Row]) -> Option<(ExpertsCurve, usize)> {
    if rows.len() < 50 {
        return None;
    }
    let tuned = tuned(rows);
    let (seen, held) = surfaces::split(&tuned, |row| row.shape);
    let alone = law(&seen);
    let both = (alone, Some(surface(&seen, &alone)));
    let judge = |(law, surface): &(ExpertsLaw, Option<Surface>)| {
        surfaces::errors(&held, seen.len(), |row| row.seconds / seconds(law, surface.as_ref(), row))
    };
    let (without, with) = (judge(&(alone, None)), judge(&both));
    let sum = |found: &Residuals| found.median_error + found.p90_error;
    // Sums that are alike within a hundredth turn with a few rows: the median says more.
    let is_tie = (sum(&with) / sum(&without) - 1.0).abs() < 0.01;
    let is_better = if is_tie { with.median_error < without.median_error } else { sum(&with) < sum(&without) };
    let all: Vec<&Row> = tuned.iter().collect();
    let law = law(&all);
    let surface = is_better.then(|| surface(&all, &law));
    let residuals = if is_better { with } else { without };
    Some((ExpertsCurve { residuals, kernel: None, law, surface }, rows.len() - tuned.len()))
}

/// Rows without those whose siblings say that they ran with an untuned tactic.
fn tuned(rows: &[Row]) -> Vec<Row> {
    let law = law(&rows.iter().collect::<Vec<&Row>>());
    let ratio = |row: &Row| row.seconds / seconds(&law, None, row);
    let mut fastest: BTreeMap<[u64; 7], f64> = BTreeMap::new();
    for row in rows {
        let least = fastest.entry(row.siblings).or_insert(f64::INFINITY);
        *least = least.min(ratio(row));
    }
    rows.iter().filter(|row| ratio(row) <= SIBLINGS * fastest[&row.siblings]).cloned().collect()
}

fn seconds(law: &ExpertsLaw, surface: Option<&Surface>, row: &Row) -> f64 {
    law.seconds(row.terms) * surface.map_or(1.0, |surface| surface.factor(&row.point).0)
}

/// Coefficients that are never negative, in relative error.
fn law(rows: &[&Row]) -> ExpertsLaw {
    // Where no table has experts elsewhere, both terms of traffic are one, and nothing says that a kernel pays for rows of other GPUs.
    let is_here = rows.iter().all(|row| !row.elsewhere);
    // Microseconds for the start, so that all coefficients are of one size.
    let scale = |row: &&Row| {
        let mut terms = row.terms;
        terms[0] = 1e-6;
        if is_here {
            terms[5] = 0.0;
        }
        terms.map(|term| term / row.seconds).to_vec()
    };
    let scaled: Vec<Vec<f64>> = rows.iter().map(scale).collect();
    let found = non_negative(&scaled, &vec![1.0; scaled.len()], ROBUST);
    let [start, rest @ ..] = found.as_slice() else { return ExpertsLaw::default() };
    let mut coefficients = [surfaces::rounded(start * 1e-6), 0.0, 0.0, 0.0, 0.0, 0.0];
    for (coefficient, found) in coefficients[1..].iter_mut().zip(rest) {
        *coefficient = surfaces::rounded(*found);
    }
    ExpertsLaw::of(coefficients)
}

/// What the law leaves.
fn surface(rows: &[&Row], law: &ExpertsLaw) -> Surface {
    let point =
        |row: &&Row| Point { at: row.point.to_vec(), log: (row.seconds / law.seconds(row.terms)).ln(), weight: 1.0 };
    let points: Vec<Point> = rows.iter().map(point).collect();
    let knots: [&[f64]; 3] = [&ROW_KNOTS, &VISITED_KNOTS, &ELEMENT_KNOTS];
    let axes = surfaces::axes(&AXES, &knots, points.iter().map(|point| point.at.as_slice()));
    surfaces::through(&points, axes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_law_is_found_again_from_layers_that_follow_it() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let truth =
            ExpertsLaw { start_s: 30e-6, weights: 1.1, products: 1.4, here: 0.8, everywhere: 1.5, padding: 0.5 };
        let mut rows = Vec::new();
        for (index, tokens) in [1_u64, 4, 16, 64, 256, 1024, 4096, 16_384].into_iter().enumerate() {
            for (hidden, width, ep) in
                [(2048, 768, 1), (4096, 1536, 1), (4096, 1536, 4), (7168, 2048, 8), (7168, 256, 1)]
            {
                for exponent in [1.01, 1.2] {
                    let loads = Routing::PowerLaw(exponent).rows(tokens, 8, 128, ep);
                    let format = Format::Bf16;
                    let layer = FusedExperts {
                        rows: loads,
                        tokens,
                        top_k: 8,
                        hidden,
                        width,
                        gated: true,
                        format,
                        tactic: Tactic::Tuned,
                    };
                    let terms = layer.terms(&gpu);
                    let seconds = truth.seconds(terms);
                    let slow = if rows.len() % 17 == 5 { 5.0 } else { 1.0 };
                    rows.push(Row {
                        terms,
                        point: layer.point(),
                        seconds: seconds * slow,
                        shape: hidden + width * 31 + ep,
                        siblings: [index as u64, hidden, width, 8, 128, 1, ep],
                        spread: exponent.to_string(),
                        kernel: "one".to_owned(),
                        gated: true,
                        elsewhere: ep > 1,
                    });
                }
            }
        }
        let (curve, n_left_out) = fitted(&rows).expect("enough rows");
        assert_eq!(n_left_out, 5, "every seventeenth of eighty");
        assert!(curve.residuals.p90_error < 0.03, "{:?}", curve.residuals);
        assert!((curve.law.weights / 1.1 - 1.0).abs() < 0.05, "{:?}", curve.law);
        assert_eq!(variants(&rows), [("one".to_owned(), "")]);
    }

    #[test]
    fn a_router_with_groups_stands_before_deepseek_and_one_kernel_of_all_models() {
        let of = |engine: &str, kernel: &str, format: Format, width: u64| {
            is_grouped((engine, kernel, format), [64, width, 2048, 8, 256, 1, 8])
        };
        assert!(of("sglang", "sglang_fused_moe_triton", Format::Fp8Block, 7168));
        assert!(of("vllm", "any", Format::Nvfp4, 7168));
        assert!(!of("sglang", "sglang_fused_moe_triton", Format::Fp8Block, 6144), "GLM-5 has one group");
        assert!(!of("sglang", "sglang_fused_moe_triton", Format::Bf16, 7168), "an older collector");
        assert!(!of("trtllm", "moe_torch_flow_cutlass", Format::Nvfp4, 7168));
        assert!(of("trtllm", "moe_torch_flow_min_latency", Format::Nvfp4, 6144));
    }

    #[test]
    fn of_several_kernels_the_one_that_is_the_fastest_for_most_layers_holds() {
        let row = |kernel: &str, layer: u64, seconds: f64| Row {
            terms: [1.0; 6],
            point: [1.0; 3],
            seconds,
            shape: layer,
            siblings: [layer; 7],
            spread: String::new(),
            kernel: kernel.to_owned(),
            gated: true,
            elsewhere: false,
        };
        let rows = [row("a", 1, 2.0), row("a", 2, 2.0), row("a", 3, 1.0), row("b", 1, 1.0), row("b", 2, 1.0)];
        let (kernel, own) = of_variant(&rows, &["a".to_owned(), "b".to_owned()]);
        assert_eq!((kernel.as_str(), own.len()), ("b", 2));
    }
}
