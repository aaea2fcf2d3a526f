//! Intervals of split runs that do not state how many workers they had: over all layouts that fit what is stated.
//!
//! Where configurations of the engine, model, card, format, lengths, load and workers' GPUs were published, they are the layouts. Else there is one worker of
//! each kind at least, and at most one for every request in flight: with more of them some would have nothing to do. Two corners of that range
//! are played: few of the one kind with many of the other. With one decode worker all sequences share its batches, as far as its memory holds them; with
//! as many as there are requests each has one.
//! The table says neither that a run had drafts nor how many were accepted. So a published configuration that drafts is played twice: with no draft accepted,
//! and with all of them. Drafting takes no time in either, so the second is a lower end.
//! An interval is from the least low end of the layouts to their largest high end. It has no mean: nobody knows which layout it was.

use std::collections::BTreeSet;

use crate::play::{Costs, predict};
use crate::recipe::split::{self, Split};
use crate::run::{Run, Worker, Workers};
use crate::setup::{self, Setup};

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
    let published = split::layouts_of(run);
    let are_published = !published.is_empty();
    let layouts: Vec<(Setup, u32)> = if are_published {
        let drafting = |split: &'static Split| {
            let setup = with_workers(run, split.n_workers(), Some(split));
            setup.map(|setup| (setup, split.drafts))
        };
        published.into_iter().filter_map(drafting).collect()
    } else {
        let plain = |workers| with_workers(run, workers, None).map(|setup| (setup, 0));
        corners(run.in_flight?).into_iter().filter_map(plain).collect()
    };
    let found = layouts.iter().map(|(setup, drafts)| over_drafts(setup, *drafts, (&run.engine, costs)));
    let [ttft, tpot] = found.reduce(joined)?;
    Some(Between { ttft, tpot, n_layouts: layouts.len(), are_published })
}

/// Both latencies of a setup: with none of so many drafts accepted, up to all of them.
fn over_drafts(setup: &Setup, n_drafts: u32, (engine, costs): (&str, &Costs<'_>)) -> [[f64; 2]; 2] {
    let none = predict(setup, engine, costs);
    let found = [none.ttft.interval, none.tpot.interval];
    if n_drafts == 0 {
        return found;
    }
    let all = predict(&setup.with_drafts(n_drafts), engine, costs);
    let tokens = f64::from(1 + n_drafts);
    joined(found, [all.ttft.interval, all.tpot.interval.map(|per_iteration| per_iteration / tokens)])
}

/// The least low end and the largest high end of each.
fn joined(one: [[f64; 2]; 2], other: [[f64; 2]; 2]) -> [[f64; 2]; 2] {
    [0, 1].map(|at| [one[at][0].min(other[at][0]), one[at][1].max(other[at][1])])
}

/// Fewest prefill workers with most decode workers, and the other way round. The first wait longest for prompts and decode in the smallest batches.
fn corners(in_flight: u32) -> BTreeSet<[u32; 2]> {
    let most = in_flight.clamp(1, WORKERS_MAX);
    [[1, most], [most, 1]].into()
}

/// The setup of a run with so many workers; `None` where it is not split or cannot be played.
fn with_workers(run: &Run, [n_prefill, n_decode]: [u32; 2], split: Option<&'static Split>) -> Option<Setup> {
    let Workers::Split { prefill, decode } = &run.workers else { return None };
    let prefill = Worker { n: Some(n_prefill), ..*prefill };
    let decode = Worker { n: Some(n_decode), ..*decode };
    setup::of_split(&Run { workers: Workers::Split { prefill, decode }, ..run.clone() }, split).ok()
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
                assert!(
                    crate::errors::holds(open.ttft, found.ttft.mean),
                    "{prefill} and {decode}: {open:?}, {found:?}"
                );
                assert!(
                    crate::errors::holds(open.tpot, found.tpot.mean),
                    "{prefill} and {decode}: {open:?}, {found:?}"
                );
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
        assert_eq!((found.all.n_rows, found.all.n_predicted), (5, 1));
        assert_eq!(found.runs[2].outcome, Err(Reason::WorkersNotStated));
        let expressed = found.expressed;
        assert_eq!((expressed.n_repeats, expressed.n_between, expressed.n_repeats_between), (1, 2, 1));
        // Nine thousand seconds to the first token are outside.
        assert_eq!(
            expressed.n_inside[0],
            usize::from(found.runs[2].between.is_some_and(|open| crate::errors::holds(open.ttft, 0.101)))
        );
        let without = score(&lines[..2]);
        assert_eq!(found.all.figures, without.all.figures);
    }

    #[test]
    fn a_configuration_that_drafts_reaches_down_to_all_drafts_accepted() {
        // tables/splits.tsv: SGLang, DeepSeek in fp4 on B200, 1024 + 1024, 16 in flight: five decode workers, without drafts and with two.
        let source = "db-dump/x; silicon_concurrency=16; measured=2026-02-07";
        let line = format!(
            "a,{source},sglang,0.5.8,deepseek-ai/DeepSeek-R1,b200_sxm,fp4,disagg,1024,1024,nvfp4,nvfp4,,,,,1,4,1,4,,,8,1,8,1,300,10\n"
        );
        let run = &runs(&[line])[0];
        let layouts = split::layouts_of(run);
        let named: Vec<_> = layouts.iter().map(|split| (split.n_workers(), split.drafts)).collect();
        assert_eq!(named, [([1, 5], 0), ([1, 5], 2)]);
        let setup = with_workers(run, [1, 5], Some(layouts[0])).expect("it can be played");
        let plain = predict(&setup, "sglang", &costs).tpot.interval;
        let open = between(run, &costs).expect("an interval");
        // Three tokens an iteration: an answer takes a third of the time, and its iterations read a little less.
        assert!(open.tpot[0] <= plain[0] / 3.0 && open.tpot[0] > 0.8 * plain[0] / 3.0, "{open:?}, {plain:?}");
        assert!((open.tpot[1] / plain[1] - 1.0).abs() < 0.05, "{open:?}, {plain:?}");
        assert_eq!(open.n_layouts, 2);
    }

    #[test]
    fn published_configurations_are_the_layouts_where_they_fit() {
        // tables/splits.tsv: SGLang, DeepSeek in fp4 on B200, 1024 + 1024, workers of four and eight GPUs, 128 in flight.
        let source = "db-dump/x; silicon_concurrency=128; measured=2026-02-07";
        let line = format!(
            "a,{source},sglang,0.5.8,deepseek-ai/DeepSeek-R1,b200_sxm,fp4,disagg,1024,1024,nvfp4,nvfp4,,,,,1,4,1,4,,,8,1,8,1,300,10\n"
        );
        let run = &runs(&[line])[0];
        let found = split::layouts_of(run);
        assert!(found.iter().any(|split| (split.n_workers(), split.drafts) == ([1, 5], 0)), "{found:?}");
    }
}
