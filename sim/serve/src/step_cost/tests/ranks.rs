//! Ranks of data-parallel attention go in step: what each does by itself takes as long as on the fullest one.

use super::*;

/// A deployment on eight ranks, with or without a head that drafts three tokens.
fn on_ranks(pipeline_degree: u32, drafts: bool, launched: bool) -> StepTable {
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 2, 8);
    let model = engine::model::embedded("mixtral-8x7b").expect("listed");
    let head = model.draft_head(DraftHead::Eagle);
    let host_per_layer = Seconds::new(if launched { 0.1 } else { 0.0 });
    let config = ReplicaConfig {
        expert_degree: 8,
        pipeline_degree,
        host_per_layer,
        host_per_expert_layer: host_per_layer,
        prompt_graph_tokens: 512,
        draft: drafts.then_some((&head, DraftKind::Head(DraftHead::Eagle))),
        ..ReplicaConfig::new(&model, &cluster, 1)
    };
    let table = StepTable::new(&config, (4096, 64), &Roofline::new(&cluster), Case::Expected);
    let speculation = Speculation { n_drafts: 3, tree: None, acceptance: 0.7, per_draft: Seconds::ZERO, seed: 1 };
    if drafts { table.speculating(&speculation) } else { table }
}

/// An iteration of so many prompts of so many tokens beside decoding sequences.
fn prompts(n: u32, new: u32, n_decode: u32) -> (StepLoad, Vec<Placed>) {
    let load =
        StepLoad { n_decode, n_chunk_tokens: n * new, n_chunks: n, n_sampled: n + n_decode, ..StepLoad::default() };
    (load, vec![Chunk { past: 0, new }.into(); n as usize])
}

#[test]
fn prompts_of_all_ranks_are_captured_where_those_of_each_rank_are() {
    for stages in [1, 2] {
        let table = on_ranks(stages, false, true);
        let step = |n: u32, new: u32| {
            let (load, chunks) = prompts(n, new, 0);
            table.round(&load, chunks.into_iter()).ticks.span().to_seconds().get()
        };
        // 32 layers of 0.1 s, where a graph holds 512 tokens.
        let launched = 32.0 * 0.1;
        for n in [1, 8] {
            assert!(step(n, 512) < launched / 2.0, "{n} prompts of 512 tokens, {stages} stages");
            assert!((step(n, 513) / launched - 1.0).abs() < 1e-9, "{n} prompts of 513 tokens, {stages} stages");
        }
        // Two on each rank.
        assert!(step(16, 256) < launched / 2.0 && step(16, 257) >= launched);
    }
}

#[test]
fn a_draft_model_reads_the_prompts_of_all_ranks_at_once() {
    let drafts = |table: &StepTable, n: u32, new: u32, n_decode: u32| {
        let (load, chunks) = prompts(n, new, n_decode);
        table.drafts_of(&load, &table.micro_batches(&load, chunks.into_iter()))
    };
    let table = on_ranks(1, true, false);
    let one = drafts(&table, 1, 1024, 0);
    assert!(one > Tick::ZERO);
    assert_eq!(drafts(&table, 8, 1024, 0), one);
    assert_eq!(drafts(&table, 16, 512, 0), one);
    assert_eq!(drafts(&table, 16, 1024, 0), drafts(&table, 1, 2048, 0));
    // Of each of two micro-batches the chunks are read once, however many decode beside them.
    let table = on_ranks(2, true, false);
    let beside = |n_decode: u32| drafts(&table, 8, 1024, n_decode) - drafts(&table, 0, 0, n_decode);
    assert_eq!([beside(0), beside(16)], [one; 2]);
}
