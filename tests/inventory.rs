//! `[inventory]`: no plan hangs on the order of its lines, where what counts by machine or by type is listed in that order too.

use input::diagnostic::{Source, render};
use scenario::Overrides;
use serde_json::Value;
use skrull_sim::kinds::{self, Kind};

/// A line of the inventory with what else is listed for its machines: layers of each, and requests in flight of its type.
type Line = (&'static str, &'static [[u32; 2]], u32);

const ORDERS: [[usize; 3]; 3] = [[0, 1, 2], [2, 1, 0], [1, 2, 0]];

fn read(text: &str) -> Box<dyn Kind> {
    let source = Source { path: "lines.toml".into(), text: text.to_owned() };
    let checked = kinds::check(source, std::path::Path::new("."), &Overrides::default());
    checked.scenario.unwrap_or_else(|| panic!("{text}\n{}", render(&checked.source, &checked.findings)))
}

/// What every policy decides, and what comes of it.
fn answers(text: &str) -> Vec<(String, Value, String)> {
    let job = read(text);
    let result = job.run(&|_| {});
    let of = |row: &reports::PolicyResult| {
        assert!(row.status.is_ok(), "{}: {}", row.policy, row.why);
        let plan = job.plan(&row.policy).expect("it decides").expect("a plan").json;
        (row.policy.clone(), plan["deployments"].clone(), format!("{:?} {}", row.metrics, row.why))
    };
    result.results.iter().map(of).collect()
}

fn same_in_every_order(text: &dyn Fn(&[usize]) -> String) {
    let first = answers(&text(&ORDERS[0]));
    for order in &ORDERS[1..] {
        for (known, found) in first.iter().zip(answers(&text(order))) {
            assert_eq!(*known, found, "{order:?}");
        }
    }
}

fn throughput(model: &str, lines: &[Line], more: &str) -> String {
    let rows: String = lines
        .iter()
        .map(|(gpu, ranges, _)| format!("[[inventory.gpus]]\ngpu = '{gpu}'\ncount = {}\n", ranges.len()))
        .collect();
    format!(
        "kind = 'deployment'\n[model]\nname = '{model}'\n[inventory]\nlink_gb_per_s = 1.25\n{rows}[requests]\nlengths = 'azure-conv'\n\
         requests = 120\nprompt_max = 2048\noutput_max = 512\n[load]\nduration_s = 30\nwarm_up_s = 5\n[objective]\nis = 'throughput'\n{more}"
    )
}

/// One A100, three L4 and three T4, with a layout that is written out.
const POOL: [Line; 3] = [
    ("a100-sxm-40g", &[[42, 60]], 10),
    ("l4", &[[18, 26], [26, 34], [34, 42]], 8),
    ("t4", &[[0, 6], [6, 12], [12, 18]], 6),
];

#[test]
fn no_order_of_lines_changes_where_layers_lie() {
    same_in_every_order(&|order| {
        let lines: Vec<Line> = order.iter().map(|&at| POOL[at]).collect();
        let ranges: Vec<[u32; 2]> = lines.iter().flat_map(|line| line.1).copied().collect();
        let more = format!(
            "[policies]\nrun = ['helix', 'played', 'written']\n[[policies.variant]]\nname = 'written'\npolicy = 'helix'\n\
             ranges = {ranges:?}\n"
        );
        throughput("llama-30b", &lines, &more)
    });
    // Every type holds the smaller model by itself.
    same_in_every_order(&|order| {
        let lines: Vec<Line> = order.iter().map(|&at| POOL[at]).collect();
        let in_flight: Vec<u32> = lines.iter().map(|line| line.2).collect();
        let more = format!(
            "[policies]\nrun = ['petals', 'swarm', 'apart']\n[[policies.variant]]\nname = 'apart'\npolicy = 'separate'\n\
             in_flight = {in_flight:?}\n"
        );
        throughput("llama-3-8b", &lines, &more)
    });
}

/// `played` looks at every layout from both ends of the model, so no mirror of its own is better.
#[test]
fn what_is_played_serves_no_less_than_its_mirror_and_than_its_flow_from_the_other_end() {
    let run = "[policies]\nrun = ['helix', 'played']\n";
    let job = read(&throughput("llama-30b", &POOL, run));
    let result = job.run(&|_| {});
    let rate = |row: &reports::PolicyResult| row.metrics["decode_tokens_per_s"];
    let played = rate(&result.results[1]);
    for policy in ["helix", "played"] {
        let plan = job.plan(policy).expect("it decides").expect("a plan").json;
        let mut ranges = [[0; 2]; 7];
        for replica in plan["deployments"][0]["replicas"].as_array().expect("a list") {
            let stage = &replica["stages"][0];
            let at = |value: &Value| usize::try_from(value.as_u64().expect("a number")).expect("few");
            ranges[at(&stage["machine"])] = [60 - at(&stage["layers"]["end"]), 60 - at(&stage["layers"]["first"])];
        }
        let ranges: Vec<&[usize]> = ranges.iter().map(|range| if range[1] > 0 { &range[..] } else { &[] }).collect();
        let mirror = "run = ['mirror']\n[[policies.variant]]\nname = 'mirror'\npolicy = 'helix'\n";
        let mirror =
            read(&throughput("llama-30b", &POOL, &format!("[policies]\n{mirror}ranges = {ranges:?}\n"))).run(&|_| {});
        assert!(rate(&mirror.results[0]) <= played, "{policy}: {:?} over {played}", mirror.results[0].metrics);
    }
    assert!(rate(&result.results[0]) <= played);
}

#[test]
fn no_order_of_lines_changes_what_serves_within_limits() {
    let rows = [("a40", 2, 1), ("rtx-4090", 3, 4), ("l40s", 1, 1)];
    same_in_every_order(&|order| {
        let lines: String = order
            .iter()
            .map(|&at| rows[at])
            .map(|(gpu, n, most)| {
                format!(
                    "[[inventory.gpus]]\ngpu = '{gpu}'\ncount = {n}\nusd_per_hour = 0.5\ngpus_per_machine = {most}\n"
                )
            })
            .collect();
        // Machines of the lines before that of the 4090, and before that of the L40S.
        let before = |row: usize| -> usize {
            order.iter().take_while(|at| **at != row).map(|&at| if at == 0 { 2 } else { 1 }).sum()
        };
        format!(
            "kind = 'deployment'\n[model]\nname = 'llama-3-8b'\n[inventory]\nlink_gb_per_s = 0.3\nlatency_ms = 5\n{lines}[requests]\n\
             lengths = 'azure-code'\nprompt_max = 2048\noutput_max = 300\nrequests = 20\n[objective]\nis = 'goodput'\n\
             reference_machine = {}\nplanned_requests_per_s = 8\n[search]\nsteps = 2\nrestarts = 1\n[policies]\n\
             run = ['colocated', 'thunderserve', 'loses']\n[[policies.variant]]\nname = 'loses'\npolicy = 'thunderserve-flip'\n\
             lose_gpu_of_machine = {}\n",
            before(2),
            before(1)
        )
    });
}
