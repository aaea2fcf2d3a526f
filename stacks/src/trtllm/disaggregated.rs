//! A fleet of TensorRT-LLM whose prompts and answers are computed apart: the YAML of `trtllm-serve disaggregated -c FILE`.
//!
//! Source: NVIDIA/TensorRT-LLM `tensorrt_llm/llmapi/disagg_utils.py` @ 0228a7122341 (`extract_disagg_cfg`): keys outside of both sections are of both, and
//! `num_instances` is how many `urls` there are.

use std::ops::Range;

use input::diagnostic::{Code, Finding};

use crate::flags::Flag;
use crate::launch::keys_as_flags;
use crate::yaml::{self, Entry};

/// Sections of servers, and what they do of a request.
const SECTIONS: [(&str, &str); 2] = [("context_servers", "prefill"), ("generation_servers", "decode")];

/// Keys of the server in front, which no other server has.
const OF_FRONT: [&str; 19] = [
    "hostname",
    "port",
    "max_retries",
    "perf_metrics_max_requests",
    "perf_metrics_output_dir",
    "return_perf_metrics",
    "otlp_config",
    "node_id",
    "allow_request_chat_template",
    "gen_strip_message_history",
    "gen_tokids_ctxbytes",
    "num_workers",
    "disagg_coordinator_url",
    "metadata_server",
    "disagg_cluster",
    "conditional_disagg_config",
    "schedule_style",
    "max_connections",
    "health_check_interval_secs",
];

/// Keys of the server in front that change when work is done, and what is taken in their place.
const NOT_MODELLED: [(&str, &str); 2] = [
    ("conditional_disagg_config", "all prompts are read by context servers"),
    ("schedule_style", "prompts are read before a generation server is chosen"),
];

/// Servers of one role.
#[derive(Clone, Debug, Default)]
pub(crate) struct Servers {
    /// `prefill` or `decode`.
    pub(crate) role: &'static str,
    /// How many there are.
    pub(crate) n: u64,
    /// Where they answer: the ends of their addresses.
    pub(crate) ports: Vec<String>,
    /// Their options.
    pub(crate) flags: Vec<Flag>,
    /// What chooses among them, where the file says it.
    pub(crate) router: Option<(String, Range<usize>)>,
}

/// A fleet of both roles.
#[derive(Clone, Debug, Default)]
pub(crate) struct Split {
    /// Context servers, then generation servers; a section that is missing has none.
    pub(crate) servers: Vec<Servers>,
    /// What is wrong with the file, and what of it is not modelled.
    pub(crate) findings: Vec<Finding>,
}

/// Whether a text is such a file.
pub(crate) fn is_one(text: &str) -> bool {
    let is_section = |line: &str| SECTIONS.iter().any(|(name, _)| line.trim_end() == format!("{name}:"));
    text.lines().any(is_section)
}

/// Whether words start the server in front, which computes nothing, or its workers by the same file.
pub(crate) fn is_front(words: &[String], serve: usize) -> bool {
    words.get(serve + 1).is_some_and(|word| ["disaggregated", "disaggregated_mpi_worker"].contains(&word.as_str()))
}

/// Reads the file.
pub(crate) fn read(text: &str) -> Result<Split, Finding> {
    let entries = yaml::unfolded(text)?;
    let mut split = Split::default();
    let is_of_section = |entry: &&Entry| SECTIONS.iter().any(|(name, _)| entry.path[0] == *name);
    let common: Vec<&Entry> = entries.iter().filter(|entry| !is_of_section(entry)).collect();
    for (key, why) in NOT_MODELLED {
        let found = common.iter().find(|entry| entry.path[0] == key && entry.value != "context_first");
        split.findings.extend(found.map(|entry| {
            let what = format!("`{key}` is not modelled");
            Finding::warning(Code::NotModelled, Some(entry.at.clone()), what).help(why)
        }));
    }
    for (name, role) in SECTIONS {
        let own: Vec<Entry> =
            entries.iter().filter(|entry| entry.path[0] == name && entry.path.len() > 1).map(Entry::inner).collect();
        if own.is_empty() {
            continue;
        }
        let common = common.iter().filter(|entry| !OF_FRONT.contains(&entry.path[0].as_str()));
        for entry in common.clone().filter(|entry| !entry.value.is_empty()) {
            let other = own.iter().find(|other| other.path == entry.path && other.value != entry.value);
            split.findings.extend(other.map(|other| contradicted(other, entry, name)));
        }
        let flags = keys_as_flags(common.copied().chain(own.iter().filter(|entry| is_option(entry))));
        let servers = Servers { role, flags, ..Servers::default() };
        split.servers.push(counted(servers, &own, name, &mut split.findings));
    }
    discovered(&entries, &mut split);
    Ok(split)
}

/// Whether a key of a section is an option of its servers, and not of the server in front.
fn is_option(entry: &Entry) -> bool {
    !["num_instances", "urls", "router"].contains(&entry.path[0].as_str())
}

fn contradicted(own: &Entry, outer: &Entry, section: &str) -> Finding {
    let key = own.path.join(".");
    let what = format!("`{key}: {}` of `{section}` stands outside of it as `{}`", own.value, outer.value);
    Finding::error(Code::WrongFlag, Some(own.at.clone()), what)
        .help("TensorRT-LLM takes no other value there: write it in the sections alone")
}

/// Servers with how many there are: `num_instances`, which is the number of `urls` where they stand.
fn counted(mut servers: Servers, own: &[Entry], section: &str, findings: &mut Vec<Finding>) -> Servers {
    let urls: Vec<String> = own.iter().filter(|entry| entry.path[0] == "urls").flat_map(yaml::listed).collect();
    servers.ports = urls.iter().filter_map(|url| Some(url.rsplit_once(':')?.1.to_owned())).collect();
    let asked = own.iter().find(|entry| entry.path == ["num_instances"]);
    let n_urls = urls.len() as u64;
    servers.n = match asked {
        None => 1,
        Some(entry) => entry.value.parse().ok().filter(|n: &u64| (1..=100_000).contains(n)).unwrap_or_else(|| {
            let what = format!("`{section}.num_instances: {}` is no number of servers", entry.value);
            let help = "allowed are whole numbers from 1 to 100000";
            findings.push(Finding::error(Code::WrongFlag, Some(entry.at.clone()), what).help(help));
            1
        }),
    };
    if n_urls > 0 && n_urls != servers.n {
        let at = asked.or(own.iter().find(|entry| entry.path[0] == "urls")).map(|entry| entry.at.clone());
        let what = format!("`{section}` has {} servers and {n_urls} `urls`", servers.n);
        findings.push(
            Finding::error(Code::WrongFlag, at, what)
                .help("`num_instances` is the number of `urls`; without it there is one"),
        );
    }
    let router = own.iter().find(|entry| entry.path == ["router", "type"]);
    servers.router = router.map(|entry| (entry.value.clone(), entry.at.clone()));
    servers
}

/// Servers that announce themselves (`disagg_cluster`): as many as there are at least.
fn discovered(entries: &[Entry], split: &mut Split) {
    let Some(cluster) = entries.iter().find(|entry| entry.path[0] == "disagg_cluster") else { return };
    let least = |name: &str| {
        let path = ["disagg_cluster", "minimal_instances", name];
        entries
            .iter()
            .find(|entry| entry.path == path)
            .and_then(|entry| entry.value.parse::<u64>().ok())
            .unwrap_or(1)
            .max(1)
    };
    for (name, role) in SECTIONS {
        match split.servers.iter_mut().find(|servers| servers.role == role) {
            Some(servers) => servers.n = least(name),
            None => split.servers.push(Servers { role, n: least(name), ..Servers::default() }),
        }
    }
    let what = "servers of `disagg_cluster` come and go: as many are taken as there are at least";
    let help = "give `replicas` in each `[[fleet.group]]`";
    split.findings.push(Finding::warning(Code::NotModelled, Some(cluster.at.clone()), what).help(help));
}
