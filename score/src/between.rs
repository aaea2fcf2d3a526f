//! Intervals of split runs that do not state how many workers they had: over all layouts that fit what is stated.
//!
//! Where configurations of the engine, model, card, format, lengths, load and workers' GPUs were published, they are the layouts. Else there is one worker of
//! each kind at least, and at most one for every request in flight: with more of them some would have nothing to do. Two corners of that range
//! are played: few of the one kind with many of the other. With one decode worker all sequences share its batches, as far as its memory holds them; with
//! as many as there are requests each has one.
//! An interval is from the least low end of the layouts to their largest high end. It has no mean: nobody knows which layout it was.

use std::collections::BTreeSet;

use crate::play::{Costs, predict};
use crate::recipe::split;
use crate::run::{Run, Worker, Workers};
use crate::setup;

/// Most workers of a kind. The largest published configuration has 40.
const WORKERS_MAX: u32 = 64;

/// What a run may have taken, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between {
    /// Time to first token.
    pub ttft: [f64; 2],
    /// Time per output token.
    pub tpot: [f64; 2],
    /// Layouts that were played.
    pub n_layouts: usize,
    /// Whether they were published.
    pub are_published: bool,
}

/// The interval of a run over all its layouts; `None` where none of them can be played.
pub fn between(run: &Run, costs: &Costs<'_>) -> Option<Between> {
    let published = split::workers_of(run);
    let are_published = !published.is_empty();
    let layouts = if are_published { published } else { corners(run.in_flight?) };
    let mut found: Option<Between> = None;
    for workers in layouts {
        let laid = with_workers(run, workers)?;
        let Ok(setup) = setup::of(&laid) else { continue };
        let predicted = predict(&setup, &laid.engine, costs);
        let [ttft, tpot] = [predicted.ttft.interval, predicted.tpot.interval];
        let all = found.map_or(Between { ttft, tpot, n_layouts: 1, are_published }, |before| Between {
            ttft: joined(before.ttft, ttft),
            tpot: joined(before.tpot, tpot),
            n_layouts: before.n_layouts + 1,
            are_published,
        });
        found = Some(all);
    }
    found
}

fn joined(one: [f64; 2], other: [f64; 2]) -> [f64; 2] {
    [one[0].min(other[0]), one[1].max(other[1])]
}

/// Fewest prefill workers with most decode workers, and the other way round. The first wait longest for prompts and decode in the smallest batches.
fn corners(in_flight: u32) -> BTreeSet<[u32; 2]> {
    let most = in_flight.clamp(1, WORKERS_MAX);
    [[1, most], [most, 1]].into()
}

/// The run with so many workers; `None` where it is not split.
fn with_workers(run: &Run, [n_prefill, n_decode]: [u32; 2]) -> Option<Run> {
    let Workers::Split { prefill, decode } = &run.workers else { return None };
    let prefill = Worker { n: Some(n_prefill), ..*prefill };
    let decode = Worker { n: Some(n_decode), ..*decode };
    Some(Run { workers: Workers::Split { prefill, decode }, ..run.clone() })
}

#[cfg(test)]
mod tests {
    use engine::cost::CostModel;
    use engine::cost::roofline::Roofline;
    use hw::Cluster;

    use super::*;
    use crate::reason::Reason;
    use crate::recipe::split::tests::HEADER;
    use crate::select::Selection;
    use crate::summary::{self, Score};

    /// A split run of Qwen3-32B with so many workers of both kinds.
    fn line(in_flight: u32, [prefill, decode]: [&str; 2], ttft_ms: u32) -> String {
        format!(
            "a,db-dump/x; silicon_concurrency={in_flight}; measured=2026-02-07,vllm,0.19.0,Qwen/Qwen3-32B,h100_sxm,bfloat16,disagg,1024,128,\
             ,,,,,{prefill},2,1,1,1,,{decode},2,1,1,1,{ttft_ms},20\n"
        )
    }

    fn costs(cluster: &Cluster, _: &str) -> Box<dyn CostModel> {
        Box::new(Roofline::new(cluster))
    }

    fn runs(lines: &[String]) -> Vec<Run> {
        crate::run::read(&format!("{HEADER}{}", lines.concat())).expect("a table")
    }

    fn score(lines: &[String]) -> Score {
        summary::score(runs(lines), &Selection::parse("").expect("no conditions"), &costs, &|| {})
    }

    #[test]
    fn an_interval_holds_what_is_predicted_of_every_number_of_workers() {
        let open = between(&runs(&[line(6, ["", ""], 100)])[0], &costs).expect("an interval");
        assert_eq!((open.n_layouts, open.are_published), (2, false));
        for prefill in 1..=6 {
            for decode in 1..=6 {
                let stated = line(6, [&prefill.to_string(), &decode.to_string()], 100);
                let found = predict(&setup::of(&runs(&[stated])[0]).expect("a setup"), "vllm", &costs);
                assert!(summary::holds(open.ttft, found.ttft.mean), "{prefill} and {decode}: {open:?}, {found:?}");
                assert!(summary::holds(open.tpot, found.tpot.mean), "{prefill} and {decode}: {open:?}, {found:?}");
            }
        }
        // With one request in flight the numbers change nothing.
        let alone = between(&runs(&[line(1, ["", ""], 100)])[0], &costs).expect("an interval");
        let stated = &runs(&[line(1, ["1", "1"], 100)])[0];
        let found = predict(&setup::of(stated).expect("a setup"), "vllm", &costs);
        assert_eq!((alone.ttft, alone.tpot, alone.n_layouts), (found.ttft.interval, found.tpot.interval, 1));
    }

    #[test]
    fn intervals_count_apart_and_repeated_lines_as_expressed() {
        let lines = [
            line(4, ["1", "1"], 100),
            line(4, ["1", "1"], 100),
            line(4, ["", ""], 101),
            line(4, ["", ""], 101),
            line(4, ["", ""], 9_000_000),
        ];
        let found = score(&lines);
        assert_eq!((found.all.n_runs, found.all.n_predicted), (5, 1));
        assert_eq!(found.runs[2].outcome, Err(Reason::WorkersNotStated));
        let expressed = found.expressed;
        assert_eq!((expressed.n_repeats, expressed.n_between, expressed.n_repeats_between), (1, 2, 1));
        // Nine thousand seconds to the first token are outside.
        assert_eq!(
            expressed.n_inside[0],
            usize::from(found.runs[2].between.is_some_and(|open| summary::holds(open.ttft, 0.101)))
        );
        let without = score(&lines[..2]);
        assert_eq!((found.all.ttft, found.all.tpot), (without.all.ttft, without.all.tpot));
    }

    #[test]
    fn published_configurations_are_the_layouts_where_they_fit() {
        // tables/splits.tsv: SGLang, DeepSeek in fp4 on B200, 1024 + 1024, workers of four and eight GPUs, 128 in flight.
        let source = "db-dump/x; silicon_concurrency=128; measured=2026-02-07";
        let line = format!(
            "a,{source},sglang,0.5.8,deepseek-ai/DeepSeek-R1,b200_sxm,fp4,disagg,1024,1024,nvfp4,nvfp4,,,,,1,4,1,4,,,8,1,8,1,300,10\n"
        );
        assert_eq!(split::workers_of(&runs(&[line])[0]), [[1, 5]].into());
    }
}
