//! Reports in a real browser: six kinds, three widths, both themes and print; skipped with a line where Chromium is absent.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A scenario of every kind that has a report of its own shape, short ones.
const SCENARIOS: [&str; 6] = [
    "quickstart",
    "serving/closed-loop",
    "cloud/milp-example",
    "multi-task/example",
    "compiler/llama-1b-codealpaca",
    "graph/legion-siton",
];
/// A phone, a tablet, a desk.
const WIDTHS: [u32; 3] = [390, 800, 1280];
/// What a copy of the page tells besides its own content.
const PROBE: &str = "<script>document.documentElement.dataset.wide=document.documentElement.scrollWidth>innerWidth;\
    document.documentElement.dataset.sorts=document.querySelectorAll('th button').length;</script></body>";
const CATCH: &str = "<script>onerror=m=>{document.documentElement.dataset.error=m}</script></head>";

fn chromium() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let found = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    })
}

/// Folder of a scenario's report.
fn reported(scenario: &str, jobs: &str) -> PathBuf {
    let name = format!("report-{jobs}-{}", scenario.replace('/', "-"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let done = Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
        .args(["run", scenario, "--quiet", "--jobs", jobs, "--out"])
        .arg(&folder)
        .output()
        .expect("the program starts");
    assert!(done.status.success(), "{scenario}: {}", String::from_utf8_lossy(&done.stderr));
    folder
}

/// Runs the browser with these arguments on a page and returns what it printed.
fn browse(browser: &str, folder: &Path, page: &str, args: &[String]) -> String {
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", folder.join("browser").display()))
        .args(args)
        .arg(format!("file://{}", folder.join(page).display()))
        .output()
        .expect("the browser starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The page as the browser has it after its scripts, at a width.
fn laid_out(browser: &str, folder: &Path, width: u32) -> String {
    browse(browser, folder, "probe.html", &[format!("--window-size={width},900"), "--dump-dom".to_owned()])
}

fn picture(browser: &str, folder: &Path, width: u32, is_dark: bool) -> Vec<u8> {
    let theme = u8::from(!is_dark);
    let file = folder.join(format!("{width}-{theme}.png"));
    let args = [
        format!("--window-size={width},1400"),
        format!("--blink-settings=preferredColorScheme={theme}"),
        format!("--screenshot={}", file.display()),
    ];
    browse(browser, folder, "report.html", &args);
    std::fs::read(file).expect("the browser wrote a picture")
}

fn holds(scenario: &str, dom: &str, width: u32) {
    let at = format!("{scenario} at {width} pixels");
    assert!(dom.contains("data-script=\"ran\""), "{at}: the script did not end");
    assert!(!dom.contains("data-error"), "{at}: the script failed");
    assert!(dom.contains("data-wide=\"false\""), "{at}: wider than the window");
    assert!(!dom.contains("data-sorts=\"0\""), "{at}: no table can be sorted");
    for part in ["id=\"answer\"", "id=\"asked\"", "id=\"sources\"", "id=\"measured\"", "<nav", "Copy as CSV", "Command"]
    {
        assert!(dom.contains(part), "{at}: the page lacks {part}");
    }
}

#[test]
fn reports_fit_every_window_and_their_script_runs() {
    let Some(browser) = chromium() else {
        println!("skipped: no Chromium on this machine, so no report was looked at");
        return;
    };
    for scenario in SCENARIOS {
        let folder = reported(scenario, "2");
        let page = std::fs::read_to_string(folder.join("report.html")).expect("a report");
        let probe = page.replace("</head>", CATCH).replace("</body>", PROBE);
        std::fs::write(folder.join("probe.html"), probe).expect("a copy");
        for width in WIDTHS {
            holds(scenario, &laid_out(browser, &folder, width), width);
        }
    }
}

#[test]
fn reports_have_two_themes_and_print_on_few_pages() {
    let Some(browser) = chromium() else {
        println!("skipped: no Chromium on this machine, so no report was printed");
        return;
    };
    for scenario in ["quickstart", "serving/closed-loop"] {
        let folder = reported(scenario, "1");
        assert_ne!(picture(browser, &folder, 800, false), picture(browser, &folder, 800, true), "{scenario}");
        let file = folder.join("report.pdf");
        let args = ["--no-pdf-header-footer".to_owned(), format!("--print-to-pdf={}", file.display())];
        browse(browser, &folder, "report.html", &args);
        let printed = std::fs::read(file).expect("the browser printed");
        let text = String::from_utf8_lossy(&printed);
        let n_pages = text.matches("/Type /Page\n").count() + text.matches("/Type /Page/").count();
        assert!((1..=3).contains(&n_pages), "{scenario}: {n_pages} pages");
    }
}

/// A page without its one marked place.
fn without_measured(folder: &Path) -> String {
    let page = std::fs::read_to_string(folder.join("report.html")).expect("a report");
    let (before, rest) = page.split_once("<!-- measured -->").expect("the place begins");
    let (_, after) = rest.split_once("<!-- /measured -->").expect("the place ends");
    format!("{before}{after}")
}

#[test]
fn a_report_has_the_same_bytes_on_any_number_of_threads() {
    for scenario in SCENARIOS {
        let (one, four) = (reported(scenario, "1"), reported(scenario, "4"));
        assert!(without_measured(&one) == without_measured(&four), "{scenario}");
    }
}

#[test]
fn a_trace_has_no_slice_without_length_and_says_what_it_works_on() {
    let folder = reported("quickstart", "3");
    let text = std::fs::read_to_string(folder.join("trace-skrull.json")).expect("a trace");
    let trace: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let slices: Vec<&serde_json::Value> =
        trace["traceEvents"].as_array().expect("events").iter().filter(|event| event["ph"] == "X").collect();
    assert!(slices.iter().all(|slice| slice["dur"].as_f64().is_some_and(|long| long > 0.0)));
    assert!(slices.iter().all(|slice| slice["args"]["operation"].is_string()));
    for key in ["tokens", "bytes", "micro_batch"] {
        assert!(slices.iter().any(|slice| slice["args"][key].is_u64()), "{key}");
    }
}

#[test]
fn every_step_of_a_straggler_trace_is_its_own() {
    let folder = reported("resilience/malleus-trace", "2");
    let read = |step: usize| std::fs::read(folder.join(format!("trace-malleus-step-{step}.json"))).expect("a trace");
    // Step 0 is healthy; a GPU slows down in step 1, and more in step 5.
    assert!(read(0) != read(1) && read(1) != read(5));
}

#[test]
fn a_result_alone_can_be_run_again_and_a_plan_is_scored() {
    let folder = reported("quickstart", "5");
    let text = std::fs::read_to_string(folder.join("result.json")).expect("a result");
    let result = reports::json::parse(&text).expect("a result");
    assert!(result.origin.text.contains("kind = \"training\"") && !result.measured.date.is_empty());
    assert_eq!(result.results[0].chosen["dp"], 4);
    assert_eq!(result.results[0].chosen["schedule"], "1f1b");
    let program = |args: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_skrull-sim")).args(args).output().expect("the program starts");
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        done.stdout
    };
    let out = folder.display().to_string();
    program(&["plan", "quickstart", "--policy", "skrull", "--out", &out]);
    let scored = program(&["run", &format!("{out}/plan.json"), "--format", "json", "--out", &format!("{out}/plan")]);
    let scored = reports::json::parse(&String::from_utf8_lossy(&scored)).expect("a result");
    let again = program(&["run", &format!("{out}/result.json"), "--format", "json", "--out", &format!("{out}/again")]);
    let again = reports::json::parse(&String::from_utf8_lossy(&again)).expect("a result");
    assert_eq!(
        (&again.origin.text, &again.origin.set, again.seed),
        (&result.origin.text, &result.origin.set, result.seed)
    );
    let figures = |run: &reports::RunResult| run.results.iter().map(|row| row.metrics.clone()).collect::<Vec<_>>();
    assert_eq!(figures(&again), figures(&result));
    let of_policy = result.results.iter().find(|row| row.policy == "skrull").expect("it ran");
    assert_eq!(scored.results[0].metrics, of_policy.metrics, "a plan is worth what its policy was");
}
