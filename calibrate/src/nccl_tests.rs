//! Output of nccl-tests → exchange curves and links of a profile.
//!
//! Text holds one or several tests, each after `# Collective test starting: all_reduce_perf`; a JSON report (`-J FILE`) holds one. Ranks and hosts are
//! those of the device list. Sizes are the program's, which for every test that is read are what `task::Collective` calls bytes. The time is that out of
//! place; the median where a size comes more than once. Messages are a link, other exchanges a curve of their ranks and hosts. Over several hosts the
//! bandwidth of a port is needed, so that a cluster with other ports is told apart, and as many ranks on each host. Source: NVIDIA/nccl-tests, src/util.cu, read at cfa8a9674b46.

use std::collections::{BTreeMap, BTreeSet};

use engine::cost::profile::{CollectiveCurve, Profile};
use serde_json::Value;

use crate::import::curve_through;
use crate::network::link;

/// Tests that are read, and what a profile calls them.
const TESTS: [(&str, &str); 5] = [
    ("all_reduce_perf", "all_reduce"),
    ("all_gather_perf", "all_gather"),
    ("reduce_scatter_perf", "reduce_scatter"),
    ("alltoall_perf", "all_to_all"),
    ("sendrecv_perf", "send_recv"),
];
/// What a message is called.
const MESSAGE: &str = "send_recv";
/// Sizes of a curve, at least.
const SIZES_MIN: usize = 4;
/// Rows that are kept of a file.
const ROWS_MAX: usize = 1_000_000;

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// A table whose test is not named.
    #[error(
        "a table of nccl-tests does not say which test it is of; keep the line `# Collective test starting: …`, or the command that started it"
    )]
    NoName,
    /// No table has enough sizes.
    #[error("no test has {SIZES_MIN} sizes or more{}", .left_out.iter().map(|why| format!("; {why}")).collect::<String>())]
    Empty {
        /// Tests that were left out, with the reason.
        left_out: Vec<String>,
    },
    /// Ranks are not told.
    #[error("`{test}` lists no devices, so its ranks are not known")]
    NoRanks {
        /// The test.
        test: String,
    },
    /// It is broken JSON.
    #[error("broken JSON: {0}")]
    Json(String),
}

/// One test.
#[derive(Clone, Debug, Default, PartialEq)]
struct Test {
    name: String,
    hosts: BTreeSet<String>,
    ranks: BTreeSet<u32>,
    /// Bytes and seconds.
    rows: Vec<(u64, f64)>,
}

/// Whether a text is output of nccl-tests.
pub fn is_output(text: &str) -> bool {
    let is_table = |line: &str| {
        let words: Vec<&str> = line.trim_start_matches('#').split_whitespace().collect();
        words.starts_with(&["size", "count", "type", "redop"])
    };
    let is_report =
        text.trim_start().starts_with('{') && text.contains("\"out_of_place\"") && text.contains("\"alg_bw\"");
    is_report || text.lines().take(100_000).any(is_table)
}

/// The profile with what was measured in place of its own exchanges of the same kind and ranks; what was left out, with the reason.
///
/// # Errors
/// What is wrong with the output.
pub fn measured(base: Profile, text: &str, port_gb_per_s: Option<f64>) -> Result<(Profile, Vec<String>), NcclError> {
    let tests = if text.trim_start().starts_with('{') { vec![of_json(text)?] } else { of_text(text)? };
    let (mut profile, mut left_out, mut n_taken) = (base, Vec::new(), 0);
    for test in tests.into_iter().filter(|test| !test.rows.is_empty()) {
        match add(&mut profile, &test, port_gb_per_s)? {
            Some(why) => left_out.push(why),
            None => n_taken += 1,
        }
    }
    if n_taken == 0 {
        return Err(NcclError::Empty { left_out });
    }
    Ok((profile, left_out))
}

/// Adds a test to a profile; the reason where it is left out.
fn add(profile: &mut Profile, test: &Test, port_gb_per_s: Option<f64>) -> Result<Option<String>, NcclError> {
    let Some((_, kind)) = TESTS.iter().find(|(name, _)| *name == test.name) else {
        return Ok(Some(format!("{}: a profile has no such exchange", test.name)));
    };
    let n_ranks = u32::try_from(test.ranks.len()).unwrap_or(u32::MAX);
    if n_ranks < 2 {
        return Err(NcclError::NoRanks { test: test.name.clone() });
    }
    let mut by_size: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (bytes, seconds) in &test.rows {
        by_size.entry(*bytes).or_default().push(*seconds);
    }
    let points: BTreeMap<u64, f64> =
        by_size.into_iter().map(|(bytes, times)| (bytes, hw::quantile::median(&times))).collect();
    if points.len() < SIZES_MIN {
        return Ok(Some(format!(
            "{} of {n_ranks} ranks: {} sizes, at least {SIZES_MIN} are needed",
            test.name,
            points.len()
        )));
    }
    let crosses_nodes = test.hosts.len() > 1;
    if crosses_nodes && port_gb_per_s.is_none() {
        return Ok(Some(format!("{} over {} hosts: `--port-gb-per-s` is needed", test.name, test.hosts.len())));
    }
    let port_gb_per_s = port_gb_per_s.filter(|_| crosses_nodes);
    if *kind == MESSAGE {
        let points: Vec<(f64, f64)> = points.into_iter().map(|(bytes, seconds)| (hw::real(bytes), seconds)).collect();
        profile.links.retain(|link| link.crosses_nodes != crosses_nodes);
        profile.links.push(link(&points, crosses_nodes, port_gb_per_s));
        return Ok(None);
    }
    let n_nodes = u32::try_from(test.hosts.len()).unwrap_or(u32::MAX).max(1);
    if n_ranks % n_nodes != 0 {
        return Ok(Some(format!("{}: {n_ranks} ranks over {n_nodes} hosts, not as many on each", test.name)));
    }
    profile
        .collectives
        .retain(|curve| (curve.kind.as_str(), curve.n_ranks, curve.n_nodes) != (*kind, n_ranks, n_nodes));
    let curve = curve_through((*kind).to_owned(), n_ranks.into(), points);
    profile.collectives.push(CollectiveCurve { n_nodes, port_gb_per_s, ..curve });
    Ok(None)
}

/// Tests of a text. Lines of mpirun and of other ranks stand between them and are passed over.
fn of_text(text: &str) -> Result<Vec<Test>, NcclError> {
    let mut tests: Vec<Test> = Vec::new();
    let mut named = None;
    let mut n_rows = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let begins = line.contains("Collective test starting") || words.get(1) == Some(&"nThread");
        if let Some(name) = test_of(&words) {
            named = Some(name.to_owned());
        }
        let is_new = tests.last().is_none_or(|test| !test.ranks.is_empty() || !test.rows.is_empty());
        if begins && is_new {
            tests.push(Test::default());
        }
        let Some(test) = tests.last_mut() else { continue };
        if let (true, Some(name)) = (test.rows.is_empty(), &named) {
            test.name.clone_from(name);
        }
        if let ["#", "Rank", rank, .., "device", _, _] | ["#", "Rank", rank, ..] = words[..] {
            test.ranks.extend(rank.parse::<u32>().ok());
            let host = words.iter().position(|word| *word == "on").and_then(|at| words.get(at + 1));
            test.hosts.extend(host.map(|host| (*host).to_owned()));
        } else if let Some(row) = row(&words).filter(|_| n_rows < ROWS_MAX) {
            test.rows.push(row);
            n_rows += 1;
        }
    }
    if tests.iter().any(|test| test.name.is_empty() && !test.rows.is_empty()) {
        return Err(NcclError::NoName);
    }
    Ok(tests)
}

/// The name of a test among some words: the line that says it, or the command.
fn test_of<'w>(words: &[&'w str]) -> Option<&'w str> {
    words.iter().copied().find_map(program)
}

/// The name of a test's program that a word is the path of.
fn program(word: &str) -> Option<&str> {
    let name = word.rsplit('/').next().unwrap_or(word).trim_matches(['"', '\'', ',']);
    (name.ends_with("_perf") && name.len() > "_perf".len()).then_some(name)
}

/// A row of a table: size, count, type, reduction, root, and the time out of place, microseconds.
fn row(words: &[&str]) -> Option<(u64, f64)> {
    let [bytes, count, _, _, root, time, ..] = words else { return None };
    let (bytes, _, _) = (bytes.parse::<u64>().ok()?, count.parse::<u64>().ok()?, root.parse::<i64>().ok()?);
    sound(bytes, time.parse().ok()?)
}

fn sound(bytes: u64, us: f64) -> Option<(u64, f64)> {
    (bytes > 0 && us.is_finite() && us > 0.0 && us < 1e9).then_some((bytes, us / 1e6))
}

/// The test of a report.
fn of_json(text: &str) -> Result<Test, NcclError> {
    let root: Value = serde_json::from_str(text).map_err(|error| NcclError::Json(error.to_string()))?;
    let name = name_in(&root).ok_or(NcclError::NoName)?;
    let config = &root["config"];
    let mut test = Test { name, ..Test::default() };
    for device in config["devices"].as_array().into_iter().flatten() {
        test.hosts.extend(device["hostname"].as_str().map(str::to_owned));
        test.ranks.extend(device["rank"].as_u64().and_then(|rank| u32::try_from(rank).ok()));
    }
    // Without MPI the report lists the first device alone.
    let of_process = config["nthreads"].as_u64().unwrap_or(1).saturating_mul(config["ngpus"].as_u64().unwrap_or(1));
    if test.ranks.len() < 2 {
        test.ranks.extend(0..u32::try_from(of_process.min(1024)).unwrap_or(0));
    }
    for result in root["results"].as_array().into_iter().flatten().take(ROWS_MAX) {
        let time = ["out_of_place", "in_place"].into_iter().find_map(|place| result[place]["time"].as_f64());
        test.rows.extend(result["size"].as_u64().zip(time).and_then(|(bytes, us)| sound(bytes, us)));
    }
    Ok(test)
}

/// The first text in a report that names a test: its arguments, or what stands beside a row.
fn name_in(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => test_of(&text.split_whitespace().collect::<Vec<&str>>()).map(str::to_owned),
        Value::Array(list) => list.iter().find_map(name_in),
        Value::Object(fields) => fields.values().find_map(name_in),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::Provenance;

    fn base() -> Profile {
        let text = |text: &str| text.to_owned();
        Provenance { name: text("x"), gpu: text("h100-sxm"), source: text("x"), date: text("2026-11-22") }.profile()
    }

    /// A test of `n` ranks, the last of them on another host where `crosses`, at sizes from 1 KiB on: 10 us and 100 GB/s.
    fn output(test: &str, n: u32, crosses: bool) -> String {
        let mut text = format!(
            "mpirun -np {n} ./build/{test} -b 1K\n# nccl-tests version 2.17.6\n# nThread 1 nGpus 1 minBytes 1024\n# Using devices\n"
        );
        for rank in 0..n {
            let host = if crosses && rank + 1 == n { "node-b" } else { "node-a" };
            text += &format!(
                "#  Rank {rank:2} Group  0 Pid {rank} on {host} device  0 [0000:0f:00] NVIDIA H100 80GB HBM3\n"
            );
        }
        text += "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time\n#        (B)    (elements)\n";
        for power in 10..24 {
            let bytes = 1_u64 << power;
            let us = 10.0 + hw::real(bytes) / 100e3;
            text += &format!("  {bytes}  {}  float  sum  -1  {us:.3}  0.0  0.0  0  1.0  0.0  0.0  0\n", bytes / 4);
        }
        text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 300.1\n"
    }

    #[test]
    fn every_test_of_a_text_is_a_curve_of_its_ranks() {
        let text = output("all_reduce_perf", 8, false) + &output("alltoall_perf", 4, false);
        assert!(is_output(&text) && !is_output("--num-layers 12\n"));
        let (profile, left_out) = measured(base(), &text, None).expect("two tests");
        let found: Vec<(&str, u32, usize)> =
            profile.collectives.iter().map(|curve| (curve.kind.as_str(), curve.n_ranks, curve.bytes.len())).collect();
        assert_eq!((found, left_out), (vec![("all_reduce", 8, 14), ("all_to_all", 4, 14)], Vec::new()));
        // 1 MiB: 10 us + 1,048,576 bytes at 100 GB/s.
        let at = profile.collectives[0].bytes.iter().position(|bytes| (*bytes - 1_048_576.0).abs() < 1.0);
        assert!((profile.collectives[0].seconds[at.expect("measured")] - 20.486e-6).abs() < 1e-8);
        let again = Profile::parse(&profile.to_toml()).expect("a profile");
        assert_eq!(again, profile);
    }

    #[test]
    fn over_several_hosts_messages_are_links_and_exchanges_curves_of_their_ports() {
        let text = output("sendrecv_perf", 2, true) + &output("all_gather_perf", 2, true);
        let (profile, left_out) = measured(base(), &text, Some(50.0)).expect("a link");
        let link = &profile.links[0];
        assert!(
            link.crosses_nodes
                && (link.gb_per_s / 100.0 - 1.0).abs() < 0.02
                && (link.alpha_s / 1e-5 - 1.0).abs() < 0.05
        );
        let curve = &profile.collectives[0];
        assert_eq!((curve.n_ranks, curve.n_nodes, curve.port_gb_per_s), (2, 2, Some(50.0)));
        assert_eq!((Profile::parse(&profile.to_toml()), left_out), (Ok(profile), Vec::new()));
        let uneven = measured(base(), &output("all_gather_perf", 3, true), Some(50.0));
        let words = |found: Result<(Profile, Vec<String>), NcclError>| found.expect_err("nothing is left").to_string();
        assert!(words(uneven).contains("3 ranks over 2 hosts, not as many on each"));
        let no_port = measured(base(), &output("all_gather_perf", 2, true), None);
        assert!(words(no_port).contains("`--port-gb-per-s` is needed"));
    }

    #[test]
    fn a_report_says_the_same_as_its_text() {
        let rows: Vec<String> = (10..24)
            .map(|power| {
                let bytes = 1_u64 << power;
                let us = 10.0 + hw::real(bytes) / 100e3;
                format!(r#"{{"size": {bytes}, "count": 1, "out_of_place": {{"time": {us:.3}, "alg_bw": 0.1}}, "in_place": null}}"#)
            })
            .collect();
        let devices: Vec<String> = (0..8).map(|rank| format!(r#"{{"rank": {rank}, "hostname": "a"}}"#)).collect();
        let text = format!(
            r#"{{"args": ["./build/all_reduce_perf", "-b"], "config": {{"devices": [{}]}}, "results": [{}]}}"#,
            devices.join(","),
            rows.join(",")
        );
        assert!(is_output(&text));
        let of_report = measured(base(), &text, None).expect("a report").0;
        assert_eq!(of_report, measured(base(), &output("all_reduce_perf", 8, false), None).expect("a text").0);
    }

    #[test]
    fn a_table_without_a_name_or_ranks_is_refused() {
        let text = output("all_reduce_perf", 8, false);
        assert_eq!(measured(base(), &text.replace("./build/all_reduce_perf", ""), None), Err(NcclError::NoName));
        let no_ranks: String =
            text.lines().filter(|line| !line.contains("Rank")).map(|line| format!("{line}\n")).collect();
        assert!(matches!(measured(base(), &no_ranks, None), Err(NcclError::NoRanks { .. })));
    }
}
