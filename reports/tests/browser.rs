//! A rendered report opens in a real browser; skipped with a line where Chromium is absent.

use std::process::{Command, Stdio};

use reports::{Picture, html};

#[path = "support/sample.rs"]
mod sample;

#[test]
fn a_browser_shows_headings_and_pictures() {
    let is_present = Command::new("chromium").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !is_present.is_ok_and(|status| status.success()) {
        println!("skipped: chromium absent");
        return;
    }
    let (graph, timeline) = sample::step(8, 20, true);
    let lengths = sample::lengths();
    let device_memory_bytes = sample::DEVICE_BYTES;
    let picture = Picture {
        policy: "skrull",
        step: None,
        graph: &graph,
        timeline: &timeline,
        lengths: &lengths,
        device_memory_bytes,
    };
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser");
    std::fs::create_dir_all(&folder).unwrap();
    let page = folder.join("report.html");
    std::fs::write(&page, html::render(&sample::run(), &[picture], &[])).unwrap();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in ["<h1>synthetic-32</h1>", "<h2>Answer</h2>", "<h2>skrull</h2>", "<table", "<figcaption>"] {
        assert!(dom.contains(part), "the page lacks {part}");
    }
    // Five pictures, two of them with a plot inside; the script ran to its end.
    assert_eq!(dom.matches("<svg").count(), 7);
    assert!(dom.contains("data-script=\"ran\""));
}
