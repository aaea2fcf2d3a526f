//! Measured kernels of serving on one GPU of a tensor group, over what an engine's shipped profile says of them.
//!
//! The format is that of NetX-lab/Frontier @ a4b22df82118, data/profiling/compute: attention of prompts and of decoding sequences (FlashInfer),
//! products and the small kernels between them, and fused experts (vLLM) with the load that was drawn. Nothing is fitted: the profile is that of vLLM for the same card. Units:
//! seconds.

use engine::cost::CostModel;
use engine::cost::decode::{DecodeShape, Reads};
use engine::cost::experts::{FusedExperts, Tactic};
use engine::task::{Document, Op, Pass};
use hw::{Dtype, Format};

use crate::operators::Predicted;
use crate::table::{Cells, Fault, Table, has_columns};

/// Columns that tell the three tables from every other, and without which nothing can be said.
const ATTENTION: [&str; 9] = [
    "gpu",
    "kind",
    "q_heads",
    "kv_heads",
    "head_dim",
    "tp_gpus",
    "batch_seqs",
    "new_tokens_per_seq",
    "cached_tokens_per_seq",
];
const LINEAR: [&str; 8] = ["gpu", "quantisation", "tp_gpus", "tokens", "hidden", "ffn", "q_heads", "attn_pre_proj_ms"];
const EXPERTS: [&str; 7] =
    ["gpu", "tokens", "experts_per_gpu", "routed_tokens_on_gpu", "topk", "expert_ffn", "grouped_gemm_ms"];

/// Cards with the multiprocessors and the memory of another one, and slower links.
const ALIKE: [(&str, &str); 2] = [("A800", "A100"), ("H800", "H100")];
/// Tokens up to which a launch is most of a kernel that was timed between events.
const FEW: u64 = 128;

/// Kernels of a line.
type Reader = fn(&mut Cells<'_>) -> Vec<Kernel>;

/// What ran.
#[derive(Clone, Debug)]
enum Ran {
    Op(Op),
    /// So many sequences that read so many keys together.
    Decode(DecodeShape, u64, u64),
    Experts(FusedExperts),
}

/// A kernel as it was measured.
#[derive(Clone, Debug)]
pub struct Kernel {
    line: u64,
    card: String,
    name: String,
    ran: Ran,
    measured_s: f64,
}

/// Kernels of a table; `None` where its header is of another one.
pub fn read(text: &str) -> Option<Result<Vec<Kernel>, Vec<Fault>>> {
    let tables: [(&[&str], Reader); 3] = [(&ATTENTION, attention), (&LINEAR, linear), (&EXPERTS, experts)];
    let (needed, of) = tables.into_iter().find(|(needed, _)| has_columns(text, needed))?;
    Some(Table::read(text, needed).and_then(|table| table.read_rows(of)).map(|rows| rows.concat()))
}

/// A kernel of a line, where its time is stated.
fn timed(cells: &mut Cells<'_>, column: &str, name: String, ran: Ran) -> Option<Kernel> {
    let measured_s = cells.positive_number(column)? / 1e3;
    Some(Kernel { line: cells.line, card: cells.word("gpu").to_owned(), name, ran, measured_s })
}

fn sizes<const N: usize>(cells: &mut Cells<'_>, columns: [&str; N]) -> [u64; N] {
    columns.map(|column| u64::from(cells.positive(column)))
}

fn few(tokens: u64) -> &'static str {
    if tokens <= FEW { ", few tokens" } else { "" }
}

fn attention(cells: &mut Cells<'_>) -> Vec<Kernel> {
    let [q_heads, kv_heads, head_dim, tp] = sizes(cells, ["q_heads", "kv_heads", "head_dim", "tp_gpus"]);
    let (n_heads, n_kv_heads) = (q_heads / tp, (kv_heads / tp).max(1));
    let count = |cells: &mut Cells<'_>, column: &str| u64::from(cells.count(column).unwrap_or(0));
    let batch = count(cells, "batch_seqs");
    let [new, cached] = ["new_tokens_per_seq", "cached_tokens_per_seq"].map(|column| count(cells, column));
    let [decoding, decoding_cached] = ["decode_seqs", "decode_cached_tokens"].map(|column| count(cells, column));
    let uneven: Vec<u64> = cells.numbers("seq_lens");
    let documents = match cells.word("kind") {
        "prefill+decode" => vec![Document::causal(count(cells, "total_new_tokens").saturating_sub(decoding))],
        _ if !uneven.is_empty() => uneven.iter().map(|&tokens| Document::causal(tokens)).collect(),
        _ => vec![Document::chunk(cached, new); usize::try_from(batch).expect("few")],
    };
    let queries = documents.iter().map(|document| document.queries).sum();
    let prompt = Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv: Dtype::Bf16, pass: Pass::Forward };
    let shape = DecodeShape { n_heads, n_kv_heads, head_dim, kv: Dtype::Bf16, reads: Reads::Heads };
    let (n, keys) = match decoding {
        0 => (batch, batch * (cached + 1)),
        n => (n, n * (decoding_cached + 1)),
    };
    let prompts = timed(cells, "prefill_ms", format!("attention of prompts{}", few(queries)), Ran::Op(prompt));
    let tokens = timed(cells, "decode_ms", "attention of tokens".to_owned(), Ran::Decode(shape, n, keys));
    prompts.into_iter().chain(tokens).collect()
}

fn linear(cells: &mut Cells<'_>) -> Vec<Kernel> {
    let [tokens, hidden, ffn, tp] = sizes(cells, ["tokens", "hidden", "ffn", "tp_gpus"]);
    let [q_heads, kv_heads, vocab] = sizes(cells, ["q_heads", "kv_heads", "vocab"]);
    // All models of the table have heads of 128.
    let (queries, keys) = (128 * q_heads / tp, 128 * (kv_heads / tp).max(1));
    let word = cells.word("quantisation").to_owned();
    let format = if word == "fp8" { Format::Fp8 } else { Format::Bf16 };
    let product = |n: u64, k: u64, format: Format| Ran::Op(Op::Gemm { m: tokens, n, k, format });
    let moved = |elements: u64| Ran::Op(Op::Elementwise { bytes: 2 * tokens * elements });
    let kernels = [
        ("attn_pre_proj_ms", product(queries + 2 * keys, hidden, format)),
        ("attn_post_proj_ms", product(hidden, queries, format)),
        ("mlp_up_proj_ms", product(2 * ffn / tp, hidden, format)),
        ("mlp_down_proj_ms", product(hidden, ffn / tp, format)),
        ("lm_head_linear_ms", product(vocab / tp, hidden, Format::Bf16)),
        ("attn_rope_ms", moved(2 * (queries + keys))),
        ("mlp_act_ms", moved(3 * ffn / tp)),
    ];
    let mut found = Vec::new();
    for (column, ran) in kernels {
        let kind = match (&ran, format) {
            (Ran::Op(Op::Gemm { .. }), Format::Fp8) if column != "lm_head_linear_ms" => "products in 8 bits",
            (Ran::Op(Op::Gemm { .. }), _) => "products in 16 bits",
            _ => "small kernels",
        };
        found.extend(timed(cells, column, format!("{kind}{}", few(tokens)), ran));
    }
    found
}

fn experts(cells: &mut Cells<'_>) -> Vec<Kernel> {
    let [tokens, here, top_k, hidden, ffn, tp] =
        sizes(cells, ["tokens", "experts_per_gpu", "topk", "hidden", "expert_ffn", "tp_gpus"]);
    let all = u64::from(cells.positive("experts"));
    let drawn = cells.count("routed_tokens_on_gpu").map(u64::from);
    let routed = drawn.unwrap_or(tokens * top_k * here / all).max(1);
    let visited = match cells.positive_number("experts_used_fraction") {
        Some(share) => hw::whole(share * hw::real(here)),
        None => here,
    };
    let visited = visited.clamp(1, routed);
    let rows = (0..visited).map(|expert| routed / visited + u64::from(expert < routed % visited)).collect();
    let layer = FusedExperts {
        rows,
        tokens: tokens.min(routed),
        top_k,
        hidden,
        width: ffn / tp,
        gated: true,
        format: Format::Bf16,
        tactic: Tactic::Tuned,
    };
    timed(cells, "grouped_gemm_ms", format!("experts{}", few(tokens)), Ran::Experts(layer)).into_iter().collect()
}

/// Costs of an engine on a machine.
pub type Costs<'c> = dyn Fn(&hw::Cluster) -> Box<dyn CostModel> + Sync + 'c;

/// Every kernel beside what an engine's costs say of it; no prediction where the card is not in the catalogue, or nothing was fitted of it.
pub fn predict(kernels: &[Kernel], costs: &Costs<'_>) -> Vec<Predicted> {
    let mut known: Vec<(&str, Option<Box<dyn CostModel>>)> = Vec::new();
    let mut found = Vec::new();
    for kernel in kernels {
        let card = ALIKE.iter().find(|(word, _)| *word == kernel.card).map_or(kernel.card.as_str(), |(_, card)| card);
        if !known.iter().any(|(name, _)| *name == card) {
            known.push((card, crate::training::setting::one_card(card).map(|cluster| costs(&cluster))));
        }
        let cost = known.iter().find(|(name, _)| *name == card).and_then(|(_, cost)| cost.as_deref());
        found.push(Predicted {
            line: kernel.line,
            device: kernel.card.clone(),
            op: kernel.name.clone(),
            measured_s: kernel.measured_s,
            predicted_s: cost.and_then(|cost| time(&kernel.ran, cost)),
            reason: None,
        });
    }
    found
}

fn time(ran: &Ran, cost: &dyn CostModel) -> Option<f64> {
    match ran {
        Ran::Op(op) => Some(cost.estimate(op).time.get()),
        Ran::Decode(shape, n, keys) => {
            let time = cost.decode(shape)?.alone(*n);
            Some(time.fixed_s + time.per_key_s * hw::real(*keys))
        }
        Ran::Experts(layer) => Some(cost.experts(layer)?.time.get()),
    }
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;

    use super::*;

    const PROMPTS: &str = "gpu,kind,q_heads,kv_heads,head_dim,tp_gpus,batch_seqs,new_tokens_per_seq,cached_tokens_per_seq,seq_lens,\
                           decode_seqs,decode_cached_tokens,total_new_tokens,prefill_ms,decode_ms";

    fn kernels(text: &str) -> Vec<Kernel> {
        read(text).expect("a table of kernels").expect("no fault")
    }

    fn prompt(kernel: &Kernel) -> &[Document] {
        let Ran::Op(Op::Attention { documents, .. }) = &kernel.ran else { panic!("{kernel:?}") };
        documents
    }

    #[test]
    fn a_line_of_attention_is_a_prompt_or_decoding_sequences_or_both() {
        let found = kernels(&format!(
            "{PROMPTS}\nA800,prefill,32,4,128,8,2,300,100,,,,600,1,\nA800,prefill,32,4,128,8,2,0,0,10 30,,,40,1,\n\
             A800,decode,32,4,128,8,3,1,99,,,,3,,1\nA800,prefill+decode,32,4,128,8,2,0,0,,1,1024,513,2,1\n"
        ));
        assert_eq!(prompt(&found[0]), [Document::chunk(100, 300); 2]);
        assert_eq!(prompt(&found[1]), [Document::causal(10), Document::causal(30)]);
        let Ran::Decode(shape, n, keys) = found[2].ran else { panic!("sequences") };
        assert_eq!((shape.n_heads, shape.n_kv_heads, n, keys), (4, 1, 3, 300));
        assert_eq!(prompt(&found[3]), [Document::causal(512)]);
        assert!(matches!(found[4].ran, Ran::Decode(_, 1, 1025)));
        assert_eq!(found.iter().map(|kernel| kernel.line).collect::<Vec<_>>(), [2, 3, 4, 5, 5]);
    }

    #[test]
    fn products_and_experts_are_those_of_one_gpu() {
        let head = "gpu,quantisation,tp_gpus,tokens,hidden,ffn,q_heads,kv_heads,vocab,attn_pre_proj_ms,mlp_up_proj_ms,mlp_act_ms";
        let found = kernels(&format!("{head}\nH800,fp8,4,256,1024,4096,16,8,1000,1,1,1\n"));
        let Ran::Op(op) = &found[0].ran else { panic!("a product") };
        assert_eq!(*op, Op::Gemm { m: 256, n: 128 * (4 + 2 * 2), k: 1024, format: Format::Fp8 });
        let Ran::Op(op) = &found[2].ran else { panic!("an activation") };
        assert_eq!(*op, Op::Elementwise { bytes: 2 * 256 * 3 * 1024 });
        let head = "gpu,tokens,experts,experts_per_gpu,routed_tokens_on_gpu,experts_used_fraction,topk,hidden,expert_ffn,tp_gpus,grouped_gemm_ms";
        let found = kernels(&format!("{head}\nA800,1000,16,4,10,0.75,2,64,128,2,1\nA100,8,16,4,,,2,64,128,1,1\n"));
        let rows = |kernel: &Kernel| match &kernel.ran {
            Ran::Experts(layer) => (layer.rows.clone(), layer.width),
            _ => panic!("{kernel:?}"),
        };
        assert_eq!(rows(&found[0]), (vec![4, 3, 3], 64));
        assert_eq!(rows(&found[1]), (vec![1; 4], 128));
    }

    #[test]
    fn a_card_that_differs_in_its_links_alone_has_the_times_of_the_other() {
        let line = |card: &str| format!("{card},prefill,32,32,128,1,1,4096,0,,,,4096,1,\n");
        let found = kernels(&format!("{PROMPTS}\n{}{}{}", line("A800"), line("A100"), line("Z80")));
        let predicted = predict(&found, &|cluster| Box::new(Roofline::new(cluster)));
        assert!(predicted[0].predicted_s.is_some_and(|time| time > 0.0));
        assert_eq!(predicted[0].predicted_s, predicted[1].predicted_s);
        assert_eq!(predicted[2].predicted_s, None);
        assert!(read("row,model\n1,2\n").is_none());
    }
}
