//! The shapes of a run: what each must show, and what it must never show.

use engine::{TaskGraph, Timeline};
use reports::{Picture, PolicyResult, RunResult, html, json, markdown, svg, table, trace};

#[path = "support/sample.rs"]
mod sample;

fn picture<'a>(policy: &'a str, step: &'a (TaskGraph, Timeline), lengths: &'a [u64]) -> Picture<'a> {
    let device_memory_bytes = sample::DEVICE_BYTES;
    Picture { policy, step: None, graph: &step.0, timeline: &step.1, lengths, device_memory_bytes }
}

fn with_nan() -> RunResult {
    let mut run = sample::run();
    run.results[0].metrics.insert("mfu_ratio".to_owned(), f64::NAN);
    run.results[0].interval.insert("iteration_time_s".to_owned(), [f64::NEG_INFINITY, 2.0]);
    run.results[0].planner.as_mut().expect("the sample has planner facts").gap_ratio = Some(f64::INFINITY);
    run.results[0].measured.planner_wall_s = f64::NAN;
    run.cost_model.outside_hull_ratio = f64::NAN;
    run.speedup_ratio.insert("skrull".to_owned(), f64::NAN);
    run
}

fn has_no_nan(text: &str) -> bool {
    !["NaN", "inf ", "inf×", "null", "Infinity"].iter().any(|word| text.contains(word))
}

#[test]
fn the_table_is_the_golden_one() {
    let expected = "\
synthetic-32 · seed 7 · speed-up relative to deepspeed

policy                    status        iteration  speed-up  tokens/s     MFU  imbalance  exposed  peak mem
deepspeed                 ok      1.842 ± 0.092 s     1.00×   228.0 k  16.3 %       1.84   22.1 %  41.0 GiB
longalign-sorted          ok      1.574 ± 0.079 s     1.17×   266.8 k  19.1 %       1.41   18.7 %  41.0 GiB
skrull-without-roll-back  oom                   -         -         -       -          -        -         -
  oom: rank 3 asks for 12.4 GiB for `activations` at 0.214 s and has 3.1 GiB left of 80.0 GiB
skrull                    ok      1.316 ± 0.066 s     1.40×   319.1 k  22.8 %       1.06    9.4 %  41.0 GiB

deepspeed: attention 41 %, matrix multiplication 22 %, waiting for slower ranks 19 %, exposed context exchange
  9 %
  heuristic plan in 1.000 ms; its own objective 1.250 s, no plan it may choose is below 1.000 s (gap 20.0 %)
longalign-sorted: attention 41 %, matrix multiplication 22 %, waiting for slower ranks 19 %, exposed context
  exchange 9 %
  heuristic plan in 1.000 ms; its own objective 1.250 s, no plan it may choose is below 1.000 s (gap 20.0 %)
skrull: attention 41 %, matrix multiplication 22 %, waiting for slower ranks 19 %, exposed context exchange 9
  %
  heuristic plan in 1.000 ms; its own objective 1.250 s, no plan it may choose is below 1.000 s (gap 20.0 %)

cost model: synthetic (weakest: datasheet); 12.5 % of busy time outside the measured hull (attention: document
  length)
free parameter: host time per kernel, fitted to nothing, for this picture only
";
    assert_eq!(table::render(&sample::run()), expected);
}

#[test]
fn no_line_of_the_table_is_wider_than_promised() {
    let mut run = sample::run();
    run.scenario = "word ".repeat(60);
    run.results[0].policy = "p".repeat(300);
    run.results[2].why = "w".repeat(500) + &" and more".repeat(50);
    run.results[0].metrics.values_mut().for_each(|value| *value = 1e300);
    run.results[1].metrics.values_mut().for_each(|value| *value = -1.234_567e-9);
    run.results[3].status = reports::Ended::Infeasible;
    for width in [80, 95, table::WIDTH_MAX] {
        for line in table::render_at(&run, width).lines() {
            assert!(line.chars().count() <= width, "{} columns: {line}", line.chars().count());
        }
    }
}

#[test]
fn json_comes_back_as_it_was() {
    let mut run = sample::run();
    // Neither is exact in few digits; both must survive.
    run.results[0].metrics.insert("iteration_time_s".to_owned(), 0.1 + 0.2);
    run.results[0].metrics.insert("mfu_ratio".to_owned(), 5e-324);
    let text = json::render(&run).unwrap();
    let back = json::parse(&text).unwrap();
    assert_eq!(back, run);
    assert_eq!(json::render(&back).unwrap(), text);
}

#[test]
fn json_keys_have_the_order_of_the_contract() {
    let text = json::render(&sample::run()).unwrap();
    let keys = ["schema", "scenario", "seed", "version", "cost_model", "results", "baseline", "speedup_ratio"];
    let places: Vec<_> = keys.iter().map(|key| text.find(&format!("\n  \"{key}\"")).unwrap()).collect();
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn a_figure_that_is_not_finite_is_absent_everywhere() {
    let run = with_nan();
    let text = json::render(&run).unwrap();
    assert!(has_no_nan(&text), "{text}");
    let back = json::parse(&text).unwrap();
    assert!(!back.results[0].metrics.contains_key("mfu_ratio"));
    assert!(!back.speedup_ratio.contains_key("skrull"));
    assert!(!back.results[0].interval.contains_key("iteration_time_s"));
    assert_eq!(back.results[0].planner.as_ref().unwrap().gap_ratio, None);
    // The page's own script may speak of what is null.
    let page = html::render(&run, &[], &[]);
    let (page, _) = page.split_once("<script>").expect("a script at the end");
    for text in [table::render(&run), markdown::render(&run), page.to_owned()] {
        assert!(has_no_nan(&text), "{text}");
    }
}

#[test]
fn a_result_of_another_schema_is_refused() {
    let text = json::render(&sample::run()).unwrap().replace("skrull-sim/run/1", "skrull-sim/run/9");
    let message = json::parse(&text).unwrap_err().to_string();
    assert!(message.contains("skrull-sim/run/9") && message.contains("allowed"), "{message}");
}

#[test]
fn markdown_has_a_row_per_policy_and_escapes_cells() {
    let mut run = sample::run();
    run.results[0].policy = "a|b<i>".to_owned();
    let text = markdown::render(&run);
    assert_eq!(text.lines().filter(|line| line.starts_with("| ")).count(), 2 + run.results.len());
    assert!(text.contains("a\\|b&lt;i>") && !text.contains("<i>"), "{text}");
}

#[test]
fn the_trace_has_one_event_per_task_and_exact_times() {
    let step = sample::step(4, 3, true);
    let text = trace::render(&picture("quo\"te\n", &step, &[]));
    let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = parsed["traceEvents"].as_array().unwrap();
    let phase = |name: &str| events.iter().filter(|event| event["ph"] == name).count();
    assert_eq!(phase("X"), step.0.tasks.len());
    assert_eq!(phase("C"), step.1.memory.iter().map(Vec::len).sum::<usize>());
    assert_eq!(parsed["otherData"]["policy"], "quo\"te\n");
    // Rank 0's first forward takes 900,000 · 1 / 3 ns.
    assert!(text.contains("\"ph\":\"X\",\"ts\":0.000,\"dur\":300.000,\"pid\":0,\"tid\":0"), "{}", &text[..2000]);
}

#[test]
fn a_gantt_of_fifty_thousand_tasks_stays_small() {
    // 32 ranks · (312 rounds · 5 tasks + 2) = 49,984 tasks; 64 ranks the same again.
    for n_ranks in [32, 64, 256] {
        let step = sample::step(n_ranks, 312, true);
        assert!(step.0.tasks.len() >= 49_984);
        let text = svg::gantt(&picture("p", &step, &[]));
        assert!(text.len() < 400_000, "{} bytes for {n_ranks} ranks", text.len());
        assert!(text.contains("context exchange") && text.ends_with("</svg>\n"));
    }
}

#[test]
fn rank_bars_add_busy_and_exposed_to_the_step() {
    // Two ranks: compute [0, 60) and [0, 20); network [50, 80) and [20, 100); the step is 100 ns.
    use engine::task::{LaneId, Op, Role, Stream, Task};
    use hw::Time;
    let mut graph = TaskGraph::new(2);
    let op = graph.add_op(Op::Host { ns: 1 });
    let mut timeline = Timeline { memory: vec![Vec::new(); 2], ..Timeline::default() };
    for (rank, stream, start, end) in [
        (0, Stream::Compute, 0, 60),
        (1, Stream::Compute, 0, 20),
        (0, Stream::InterNode, 50, 80),
        (1, Stream::IntraNode, 20, 100),
    ] {
        let task = Task { op, lane: LaneId(rank), stream, role: Role::Forward, micro_batch: 0, meeting: None };
        graph.add_task(task, &[]);
        timeline.start.push(Time::from_ns(start));
        timeline.end.push(Time::from_ns(end));
    }
    let text = svg::rank_bars(&picture("p", &(graph, timeline), &[]));
    assert!(text.contains("rank 0: computing 60.0 %, exposed communication 20.0 %, idle 20.0 %"), "{text}");
    assert!(text.contains("rank 1: computing 20.0 %, exposed communication 80.0 %, idle 0.0 %"), "{text}");
}

#[test]
fn the_mean_counts_every_rank_of_a_lane() {
    use engine::task::{LaneId, Op, Role, Stream, Task};
    use hw::Time;
    // One rank computes the whole step, and a lane of three computes 20 % of it: (1 + 3 · 0.2) / 4 = 40 %. A worker of the host is no rank.
    let mut graph = TaskGraph::new(3);
    graph.lanes[1].multiplicity = 3;
    let (kernel, host) = (graph.add_op(Op::Elementwise { bytes: 1 }), graph.add_op(Op::Host { ns: 1 }));
    let mut timeline = Timeline { memory: vec![Vec::new(); 3], ..Timeline::default() };
    for (lane, op, role, end) in
        [(0, kernel, Role::Forward, 100), (1, kernel, Role::Forward, 20), (2, host, Role::Sampling, 100)]
    {
        let (lane, stream) = (LaneId(lane), Stream::Compute);
        graph.add_task(Task { op, lane, stream, role, micro_batch: 0, meeting: None }, &[]);
        timeline.start.push(Time::from_ns(0));
        timeline.end.push(Time::from_ns(end));
    }
    let step = (graph, timeline);
    let bars = svg::rank_bars(&picture("p", &step, &[]));
    assert!(bars.contains("mean computing, 40.0 %") && bars.contains("worker 0: computing 100.0 %"), "{bars}");
    assert!(svg::gantt(&picture("p", &step, &[])).contains(">worker 0</text>"));
}

#[test]
fn where_only_the_weakest_source_is_known_it_is_called_so() {
    let mut run = sample::run();
    let page = |run: &RunResult| html::render(run, &[], &[]);
    assert!(page(&run).contains("The weakest cost comes from a datasheet."));
    // A profile that was measured, durations of a scenario, and a roofline have one source.
    for (profile, source) in
        [("h100-sxm", "measured"), ("units", "given by the scenario"), ("roofline in closed form", "datasheet")]
    {
        (run.cost_model.profile, run.cost_model.source) = (profile.to_owned(), source.to_owned());
        assert!(table::render(&run).contains(&format!("cost model: {profile} ({source})")), "{source}");
    }
    let share = |source: &str, ratio| reports::CostShare { what: "gemm".to_owned(), source: source.to_owned(), ratio };
    run.cost_model.shares = vec![share("measured", 0.9), share("datasheet", 0.1)];
    assert!(!page(&run).contains("The weakest cost"));
}

#[test]
fn what_cannot_be_seen_outside_the_hull_is_not_said() {
    let mut run = sample::run();
    for ratio in [0.0, -1e-12, 0.0004, f64::NAN] {
        run.cost_model.outside_hull_ratio = ratio;
        let all = table::render(&run) + &html::render(&run, &[], &[]);
        assert!(!all.contains("measured hull") && !all.contains("outside what was measured"), "{ratio}");
    }
}

#[test]
fn rows_with_baselines_of_their_own_are_relative_to_words() {
    let run = RunResult { relative_to: "deepspeed at the same batch size".to_owned(), ..sample::run() };
    assert!(table::render(&run).contains("speed-up relative to deepspeed at the same batch size"));
    assert!(svg::speedup_bars(&run).contains("1× = deepspeed at the same batch size"));
    let back = json::parse(&json::render(&run).unwrap()).unwrap();
    assert_eq!(back, run);
    assert!(!json::render(&sample::run()).unwrap().contains("relative_to"));
}

#[test]
fn a_page_says_how_many_policies_its_curves_leave_out() {
    let curve = |policy: &str| reports::curves::Curves {
        policy: policy.to_owned(),
        latencies_s: [vec![0.1, 0.2], vec![0.1, 0.2], vec![0.1, 0.2]],
        ..reports::curves::Curves::default()
    };
    let row = |policy: &str, per_s: f64| PolicyResult {
        policy: policy.to_owned(),
        metrics: [("requests_per_s".to_owned(), per_s)].into(),
        ..PolicyResult::default()
    };
    let names: Vec<String> = (0..8).map(|at| format!("p{at}")).collect();
    let run = RunResult {
        kind: "serving".to_owned(),
        baseline: "p0".to_owned(),
        results: names.iter().enumerate().map(|(at, name)| row(name, hw::real(at as u64))).collect(),
        ..RunResult::default()
    };
    let curves: Vec<_> = names.iter().map(|name| curve(name)).collect();
    let page = html::render(&run, &[], &curves);
    assert!(page.contains("6 of 8 policies are drawn, the best and the baseline among them."));
    assert!(
        page.contains("data-name=\"p7\"") && page.contains("data-name=\"p0\"") && !page.contains("data-name=\"p6\"")
    );
    assert!(!page.contains("is what is paid") && !page.contains("are what is paid"), "nothing paid is drawn");
    assert!(!html::render(&run, &[], &curves[..6]).contains("policies are drawn"));
}

#[test]
fn the_caption_explains_the_column_that_stands_there() {
    let mut run = sample::run();
    let page = html::render(&run, &[], &[]);
    assert!(page.contains("Imbalance: work of the busiest data-parallel group") && !page.contains("Bubble:"));
    run.results[0].metrics.insert("bubble_ratio".to_owned(), 0.2);
    let page = html::render(&run, &[], &[]);
    assert!(page.contains("Bubble: share") && !page.contains("Imbalance: work"));
}

#[test]
fn equal_lengths_are_not_called_uneven() {
    let step = sample::step(2, 2, true);
    let page = |lengths: &[u64]| html::render(&sample::run(), &[picture("skrull", &step, lengths)], &[]);
    assert!(page(&[512; 4]).contains("4 sequences of 512 tokens each, 2,048 in all."));
    // Of ten sequences the longest one is a tenth: 91 of 100 tokens.
    assert!(page(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 91]).contains("The longest tenth of them hold 91.0 % of the tokens."));
}

#[test]
fn an_empty_step_draws_nothing_and_breaks_nothing() {
    let empty = (TaskGraph::new(0), Timeline::default());
    let picture = picture("nothing", &empty, &[]);
    assert_eq!(svg::gantt(&picture) + &svg::rank_bars(&picture) + &svg::memory_areas(&picture), "");
    let run = RunResult { results: vec![PolicyResult::default()], ..RunResult::default() };
    assert!(html::render(&run, &[picture], &[]).contains("No policy of this scenario has a result."));
    assert!(table::render(&RunResult::default()).contains("policy"));
}

#[test]
fn names_cannot_bring_markup_into_the_page() {
    let evil = "<script>alert(1)</script>\"'&";
    let mut run = sample::run();
    run.scenario = evil.to_owned();
    run.baseline = evil.to_owned();
    run.version = evil.to_owned();
    run.cost_model.profile = evil.to_owned();
    run.cost_model.free_parameters = vec![evil.to_owned()];
    run.cost_model.outside_hull = vec![evil.to_owned()];
    for result in &mut run.results {
        result.why = evil.to_owned();
        result.metrics.insert(evil.to_owned(), 1.0);
    }
    run.results[0].policy = evil.to_owned();
    run.speedup_ratio.insert(evil.to_owned(), 1.0);
    let step = sample::step(2, 2, true);
    let page = html::render(&run, &[picture(evil, &step, &sample::lengths())], &[]);
    // The page's own script is the only one.
    assert_eq!(page.matches("<script").count(), 1, "a name opened a tag");
    assert!(page.contains("&lt;script&gt;"));
}

#[test]
fn the_page_loads_nothing() {
    let step = sample::step(4, 4, true);
    let page = html::render(&sample::run(), &[picture("skrull", &step, &sample::lengths())], &[]);
    // The name of a format, not a place.
    let page = page.replace("\"http://www.w3.org/2000/svg\"", "");
    for word in ["http://", "https://", "src=", "@import", "url(", "<link", "fetch(", "XMLHttpRequest", "import("] {
        assert!(!page.contains(word), "the page has `{word}`");
    }
    // Links lead to places of the page.
    assert_eq!(page.matches("href=\"").count(), page.matches("href=\"#").count());
}

#[test]
fn the_page_has_a_section_and_the_pictures_for_each_policy() {
    let step = sample::step(4, 4, true);
    let page = html::render(&sample::run(), &[picture("skrull", &step, &sample::lengths())], &[]);
    for result in &sample::run().results {
        assert!(page.contains(&format!("<h2>{}</h2>", result.policy)), "{}", result.policy);
    }
    // Speed-ups, lengths, Gantt, rank bars, memory; two of them have a plot inside.
    assert_eq!(page.matches("<svg xmlns").count(), 5);
    assert_eq!(page.matches("class=\"plot\"").count(), 2);
    assert_eq!(page.matches("<figcaption>").count(), 5);
    assert_eq!(page.matches("role=\"img\" aria-label=").count(), 5);
    assert!(
        page.contains("<strong>skrull</strong> is fastest: 1.316 s (1.250 s to 1.375 s) per step, 1.40× deepspeed.")
    );
    assert!(page.contains("12.5 % of the busy time lies outside what was measured (attention: document length)."));
}

/// A page without its one marked place.
fn without_measured(page: &str) -> String {
    let (before, rest) = page.split_once("<!-- measured -->").expect("the place begins");
    let (_, after) = rest.split_once("<!-- /measured -->").expect("the place ends");
    format!("{before}{after}")
}

#[test]
fn what_is_measured_stands_in_one_place() {
    let page = |wall_s: f64, date: &str| {
        let mut run = sample::run();
        run.measured.date = date.to_owned();
        for row in &mut run.results {
            row.measured = reports::Measured { planner_wall_s: wall_s, simulate_wall_s: 2.0 * wall_s };
        }
        html::render(&run, &[], &[])
    };
    let (one, other) = (page(0.5, "2026-11-22"), page(0.25, "2026-11-23"));
    assert_ne!(one, other);
    assert_eq!(without_measured(&one), without_measured(&other));
}

#[test]
fn owners_of_memory_add_up_to_the_total() {
    let step = sample::step(2, 3, true);
    let picture = picture("p", &step, &[]);
    let drawn = svg::memory_areas(&picture);
    assert!(drawn.contains("data-stack") && drawn.contains("data-zoom"), "{drawn}");
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    let page = || {
        let step = sample::step(8, 20, true);
        html::render(&sample::run(), &[picture("skrull", &step, &sample::lengths())], &[])
    };
    assert_eq!(page(), page());
}
