//! `compare` as a CI job uses it: exit codes, JUnit, the same bytes on any number of threads.

use std::process::{Command, Output};

fn compare(args: &[&str]) -> Output {
    let small = ["--set", "training.batch_size=256", "--set", "training.steps=1", "--seeds", "3"];
    Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
        .arg("compare")
        .args(args)
        .args(if args.iter().any(|arg| arg.ends_with(".json")) { &small[..0] } else { &small[..] })
        .current_dir(super::root())
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn a_gate_that_holds_passes_and_one_that_does_not_fails_with_its_figure() {
    let path = std::env::temp_dir().join(format!("skrull-sim-junit-{}.xml", std::process::id()));
    let junit = path.to_string_lossy().into_owned();
    let good = compare(&["quickstart", "--gate", "skrull:iteration_time_s<=0.9", "--junit", &junit]);
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stderr));
    let xml = std::fs::read_to_string(&path).expect("written");
    assert!(xml.contains("tests=\"1\" failures=\"0\""), "{xml}");
    let bad = compare(&["quickstart", "--gate", "iteration_time_s<=0.1x", "--junit", &junit]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(text(&bad.stderr).contains("of the baseline's"), "{}", text(&bad.stderr));
    let xml = std::fs::read_to_string(&path).expect("written");
    assert!(xml.contains("tests=\"2\" failures=\"2\""), "{xml}");
    std::fs::remove_file(path).expect("the file is there");
}

#[test]
fn wrong_gates_policies_and_files_are_input_errors() {
    for (args, part) in [
        (&["quickstart", "--gate", "iteration_time_s<1"][..], "no `<=` or `>=`"),
        (&["quickstart", "--gate", "iteration_tme_s<=1"], "did you mean `iteration_time_s`?"),
        (&["quickstart", "--gate", "iteration_time_s<=2"], "may be an amount or a ratio; write `2x`"),
        (&["quickstart", "--gate", "iteration_time_s<=2GiB"], "`iteration_time_s` has another unit"),
        (&["quickstart", "--gate", "skrul:mfu_ratio>=1"], "did you mean `skrull`?"),
        (&["quickstart", "--baseline", "deepsped"], "did you mean `deepspeed`?"),
        (&["Cargo.json", "other.json"], "cannot read `Cargo.json`"),
        (&["quickstart", "x.json"], "not both"),
        (&["x.json"], "nothing to be compared with"),
        (&["quickstart", "--seed", "1.5"], "whole numbers from 0"),
        (&["quickstart", "--seed", "-1"], "whole numbers from 0"),
        (&["quickstart", "--vary", "workload.lengths"], "expected section.key=value,value"),
        (&["quickstart", "--vary", "workload.lengths=wikipedia,wikpedia"], "did you mean `wikipedia`?"),
        (&["quickstart", "--set", "seed=5"], "`seed=5` would change nothing"),
        (&["quickstart", "--vary", "seed=1,2"], "`seed=1,2` would change nothing"),
        (&["a.json", "b.json", "--seeds", "3", "--set", "training.steps=1"], "`--seeds`, `--set` would change nothing"),
        (&["a.json", "b.json", "--maximize", "tokens_per_usd"], "`--maximize` would change nothing"),
        (&["a.json", "b.json", "--gate", "x<=2x", "--confidence", "0.9"], "`--confidence` would change nothing"),
        (&["quickstart", "--confidence", "0.9"], "--gate <GATE>"),
    ] {
        let found = compare(args);
        assert_eq!(found.status.code(), Some(2), "{args:?}");
        assert!(text(&found.stderr).contains(part), "{args:?}: {}", text(&found.stderr));
    }
}

#[test]
fn the_same_bytes_come_out_on_any_number_of_threads() {
    let of = |jobs| compare(&["quickstart", "skrull/case-study", "--format", "json", "--jobs", jobs]).stdout;
    assert_eq!(text(&of("1")), text(&of("8")));
}

#[test]
fn varied_keys_stand_side_by_side_in_one_comparison() {
    let found = compare(&[
        "quickstart",
        "--vary",
        "workload.lengths=wikipedia,chatqa2-long-sft",
        "--vary",
        "parallel.zero=1,2",
    ]);
    assert_eq!(found.status.code(), Some(0), "{}", text(&found.stderr));
    let table = text(&found.stdout);
    for lengths in ["wikipedia", "chatqa2-long-sft"] {
        for zero in [1, 2] {
            let label = format!("quickstart [workload.lengths={lengths}, parallel.zero={zero}]");
            assert_eq!(table.matches(&label).count(), 1, "a block for {label}:\n{table}");
        }
    }
}

#[test]
fn a_scenario_of_another_kind_is_compared_by_the_figure_that_counts_there() {
    let path = std::env::temp_dir().join(format!("skrull-sim-serving-{}.xml", std::process::id()));
    let junit = path.to_string_lossy().into_owned();
    let args = ["serving/azure-conv", "--set", "trace.requests=400", "--seeds", "3", "--format", "markdown"];
    let gates = ["--gate", "vllm-v1:goodput_requests_per_s>=0.9", "--gate", "ttft_s.mean<=100s", "--junit", &junit];
    let of = |more: &[&str]| {
        let found = Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
            .arg("compare")
            .args(args)
            .args(more)
            .current_dir(super::root())
            .output()
            .expect("the program starts");
        (found.status.code(), text(&found.stdout), text(&found.stderr))
    };
    let (code, table, errors) = of(&gates);
    assert_eq!(code, Some(0), "{errors}");
    assert!(table.contains("| goodput/s | ratio to baseline |") && table.contains("above 1 is better"), "{table}");
    let xml = std::fs::read_to_string(&path).expect("written");
    std::fs::remove_file(path).expect("the file is there");
    assert!(xml.contains("tests=\"4\" failures=\"0\""), "{xml}");
    let (code, _, errors) = of(&["--baseline", "vlm-v1"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("did you mean `vllm-v1`?"), "{errors}");
    let (code, _, errors) = of(&["--gate", "vllm-v1:ttft_s.mean<=0.01x"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("of the baseline's"), "{errors}");
}
