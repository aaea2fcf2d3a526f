//! Lengths between two ends, as a scenario says them.

use std::path::Path;

use super::{Asked, With, trace};
use input::diagnostic::Finding;
use input::reader::Reader;

/// What a trace asks for, and what is said of it.
fn read(lines: &str, seed: u64) -> (Option<Asked>, Vec<Finding>) {
    let text = format!("[trace]\n{lines}\n");
    let mut findings = Vec::new();
    let mut reader = Reader::new(toml_span::parse(&text).expect("TOML"), &mut findings);
    let asked = trace(
        reader.section("trace"),
        Path::new("."),
        With { seed, block_tokens: 16, model: None, generation: None, answers: None },
    );
    (asked, findings)
}

const ENDS: &str = "prompt_tokens = [10, 20]\noutput_tokens = [1, 3]\nrequests = 200\nconcurrency = 4";

#[test]
fn lengths_lie_between_their_ends_and_follow_the_seed() {
    let (asked, findings) = read(ENDS, 1);
    assert!(findings.is_empty(), "{findings:?}");
    let asked = asked.expect("requests");
    assert_eq!(asked.source, "200 requests of 10 to 20 + 1 to 3 tokens, 4 of them in flight");
    assert!(asked.requests.list.iter().all(|one| (10..=20).contains(&one.prompt) && (1..=3).contains(&one.output)));
    assert_eq!(asked.streams[0].lengths, None, "they are not alike");
    assert_ne!(read(ENDS, 2).0.expect("requests").requests, asked.requests);
    // One that is drawn beside one that is not; equal ends are alike, as a number is.
    let half = read(&ENDS.replace("[1, 3]", "7"), 1).0.expect("requests");
    assert!(
        half.requests
            .list
            .iter()
            .zip(&asked.requests.list)
            .all(|(one, two)| one.prompt == two.prompt && one.output == 7)
    );
    let alike = read(&ENDS.replace("[10, 20]", "[15, 15]").replace("[1, 3]", "7"), 1).0.expect("requests");
    assert_eq!(
        (alike.streams[0].lengths, alike.source.as_str()),
        (Some((15, 7)), "200 requests of 15 + 7 tokens, 4 of them in flight")
    );
}

#[test]
fn ends_that_are_none_and_ends_beside_other_lengths_are_refused() {
    for (lines, what) in [
        (ENDS.replace("[10, 20]", "[20, 10]"), "`trace.prompt_tokens` is no pair of ends"),
        (ENDS.replace("[1, 3]", "[0, 3]"), "`trace.output_tokens` is no pair of ends"),
        (
            format!("lengths = \"azure-conv\"\n{ENDS}"),
            "`trace.lengths`, `trace.file` and `trace.prompt_tokens` exclude each other",
        ),
    ] {
        let (_, findings) = read(&lines, 1);
        assert_eq!(findings.iter().map(|finding| finding.what.as_str()).collect::<Vec<_>>(), [what], "{lines}");
        assert!(findings[0].at.is_some(), "{lines}");
    }
}

#[test]
fn more_seeds_draw_other_lengths() {
    let (asked, findings) =
        read(&format!("{ENDS}\nseeds = 3").replace("concurrency = 4", "arrivals = \"together\""), 1);
    assert!(findings.is_empty(), "{findings:?}");
    let asked = asked.expect("requests");
    assert!(asked.draws.len() == 2 && asked.draws.iter().all(|draw| *draw != asked.requests));
}

/// Another kind of arrivals, as `--set` lays one over a file, leaves what the file says without effect; no key of it is unknown.
#[test]
fn keys_of_another_kind_of_arrivals_change_nothing_and_are_known() {
    let some = "prompt_tokens = 10\noutput_tokens = 5\nrequests = 20";
    for (arrivals, keys) in [
        ("arrivals = \"together\"\nrate_per_s = 5", vec!["rate_per_s"]),
        ("arrivals = \"together\"\nconcurrency = 4", vec!["concurrency"]),
        ("concurrency = 4\nrate_per_s = 5\nload = 2.0", vec!["rate_per_s", "load"]),
        ("arrivals = \"poisson\"\nrate_per_s = 5\nconcurrency = 4\nat_s = 3", vec!["concurrency", "at_s"]),
        ("arrivals = \"held\"\nconcurrency = 4\nschedule = [{ from_s = 0, rate_per_s = 2 }]", vec!["schedule"]),
    ] {
        let (asked, findings) = read(&format!("{some}\n{arrivals}"), 1);
        let said: Vec<&str> = findings.iter().map(|finding| finding.what.as_str()).collect();
        let expected: Vec<String> = keys.iter().map(|key| format!("`trace.{key}` changes nothing")).collect();
        assert_eq!(said, expected, "{arrivals}");
        let asked = asked.expect("requests").requests;
        let kind = arrivals.lines().next().unwrap_or_default();
        let bare = if kind.contains("poisson") { "rate_per_s = 5" } else { kind };
        let bare = if kind.contains("held") { "concurrency = 4" } else { bare };
        assert_eq!(asked, read(&format!("{some}\n{bare}"), 1).0.expect("requests").requests, "{arrivals}");
    }
}

/// A turn repeats what was said before it. Of an answer whose client had enough that is what the client read.
#[test]
fn turns_repeat_what_clients_read_of_an_answer() {
    let lines = "prompt_tokens = [10, 20]\noutput_tokens = [1, 300]\nrequests = 200\nconcurrency = 4\ncancel_ratio = 0.5\n\
                 [trace.sessions]\nturns = 5\nsystem_tokens = 40";
    let (asked, findings) = read(lines, 1);
    assert!(findings.is_empty(), "{findings:?}");
    let requests = asked.expect("requests").requests;
    assert!((80..120).contains(&(0..200).filter(|at| requests.is_cancelled(*at)).count()));
    let mut said = 0;
    for (at, request) in requests.list.iter().enumerate() {
        let before = if requests.is_turn(at) { said } else { 40 };
        assert!((before + 10..=before + 20).contains(&request.prompt), "{before}: {request:?}");
        said = request.prompt + request.output;
    }
}
