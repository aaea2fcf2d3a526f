//! The report opens in a real browser, where one is installed.

use std::process::Command;

#[test]
fn the_report_shows_its_headings_and_pictures_in_chromium() {
    if Command::new("chromium").arg("--version").output().is_err() {
        eprintln!("skipped: chromium absent");
        return;
    }
    let dir = std::env::temp_dir().join(format!("skrull-sim-browser-{}", std::process::id()));
    let status = Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
        .args(["run", "quickstart", "--quiet", "--out"])
        .arg(&dir)
        .status()
        .expect("the binary starts");
    assert!(status.success());
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("file://{}", dir.join("report.html").display()))
        .output()
        .expect("chromium starts");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    std::fs::remove_dir_all(&dir).ok();
    for part in ["<h2>Result</h2>", "<h2>What dominates the step</h2>", "Gantt of skrull", "<h2>skrull</h2>"] {
        assert!(dom.contains(part), "`{part}` is not on the page");
    }
}
