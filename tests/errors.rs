//! Every file of `scenarios/bad/` is refused with the message that its snapshot holds.

use input::diagnostic;
use scenario::{self, Overrides};
use skrull_sim::kinds;

#[test]
fn every_bad_scenario_is_refused_with_its_message() {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for path in super::files(&super::root().join("scenarios/bad"), "toml") {
            let checked = super::check(&path);
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            assert!(checked.scenario.is_none(), "{name} was accepted");
            insta::assert_snapshot!(name, diagnostic::render(&checked.source, &checked.findings));
        }
    });
}

/// Whoever checks several files at once knows which one is meant.
#[test]
fn every_finding_names_its_file() {
    let of_bad = super::files(&super::root().join("scenarios/bad"), "toml").into_iter().map(|path| super::check(&path));
    let empty = diagnostic::Source { path: "empty.toml".to_owned(), text: String::new() };
    let set = ["nonsense".to_owned(), "cluster.gpus=7".to_owned()].to_vec();
    let empty = kinds::check(empty, super::root(), &Overrides { set, ..Overrides::default() });
    for checked in of_bad.chain([empty]) {
        let place = format!("--> {}", checked.source.path);
        for finding in &checked.findings {
            let text = diagnostic::render(&checked.source, std::slice::from_ref(finding));
            assert!(text.contains(&place), "{text}");
        }
    }
}

#[test]
fn keys_that_change_nothing_are_told_once_the_errors_are_mended() {
    let path = super::root().join("scenarios/bad/no-effect.toml");
    let wrong = std::fs::read_to_string(&path).expect("a file");
    let check = |text: String| {
        kinds::check(diagnostic::Source { path: "mended.toml".to_owned(), text }, super::root(), &Overrides::default())
    };
    let refused = check(wrong.clone());
    assert!(refused.findings.iter().all(|finding| finding.severity == diagnostic::Severity::Error));
    let mended = check(wrong.replace("basline", "baseline"));
    assert!(mended.scenario.is_some() && mended.findings.iter().all(|one| one.code == diagnostic::Code::NoEffect));
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        insta::assert_snapshot!("no-effect-mended", diagnostic::render(&mended.source, &mended.findings));
    });
}

#[test]
fn the_command_line_is_checked_like_the_file() {
    let (source, folder) = scenario::find("quickstart").expect("shipped");
    let set = ["training.batch_sise=3".to_owned(), "parallel.cp=5".to_owned(), "nonsense".to_owned()];
    let checked = kinds::check(source, &folder, &Overrides { set: set.to_vec(), ..Overrides::default() });
    let text = diagnostic::render(&checked.source, &checked.findings);
    assert!(text.contains("unknown key `training.batch_sise`"), "{text}");
    assert!(text.contains("cp 5"), "{text}");
    assert!(text.contains("`--set nonsense` has no `=`"), "{text}");
}

#[test]
fn another_source_of_lengths_on_the_command_line_stands_for_that_of_the_file() {
    let checked = super::checked("quickstart", &["workload.tokens=4096"]);
    let lengths = super::training(checked).problem.workload.lengths;
    assert!(lengths.iter().all(|length| *length == 4096));
}

#[test]
fn exit_codes_are_those_of_the_contract() {
    let run = |args: &[&str]| {
        let out = std::env::temp_dir().join(format!("skrull-sim-{}", std::process::id()));
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
            .args(args)
            .args(["--out", out.to_str().expect("a plain path")])
            .output()
            .expect("the binary starts");
        std::fs::remove_dir_all(&out).ok();
        output.status.code()
    };
    assert_eq!(run(&["run", "quickstart", "--quiet"]), Some(0));
    assert_eq!(run(&["run", "quickstrat"]), Some(2));
    assert_eq!(run(&["run", "--no-such-flag"]), Some(2));
    assert_eq!(run(&["run", "quickstart", "--quiet", "--strict-hull"]), Some(2));
    let infeasible = ["run", "quickstart", "--quiet", "--set", "training.bucket_tokens=10"];
    assert_eq!(run(&infeasible), Some(1));
}

/// A size and a share of layers at once, or neither: one finding with both forms. No key of them is called unknown or without effect beside it.
#[test]
fn a_size_and_a_share_of_layers_in_host_memory_are_one_finding() {
    for given in [
        "{ gib = 20, layers = 1, of = 4 }",
        "{ gib = 20, layers = 1, ahead = 2, way = 'copied' }",
        "{ part = 'experts' }",
    ] {
        let (source, folder) = scenario::find("serving/host-weights").expect("shipped");
        let set = vec![format!("engine.host_weights={given}")];
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        assert!(checked.scenario.is_none(), "{given}");
        let [found] = &checked.findings[..] else { panic!("{given}: {:#?}", checked.findings) };
        let help = found.help.as_deref().unwrap_or(&found.label);
        assert_eq!(found.code, diagnostic::Code::WrongOperation, "{given}");
        assert!(help.contains("gib = 20") && help.contains("layers = 1"), "{given}: {found:?}");
    }
}
