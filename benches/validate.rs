//! Predicted against executed on this machine's CPU: the figures of `docs/validation.md`, to be run on an idle machine.
//!
//! `cargo bench --bench validate` takes about five minutes. A median operator error below 10 %, a mean step error below 8 % and a
//! Kendall's tau of at least 0.8 over plans that differ by 5 % or more are aimed at.

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let out = std::env::temp_dir().join("skrull-sim-bench-validate");
    let _ = std::fs::remove_dir_all(&out);
    let status = Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
        .args(["validate", "validate/cpu-small", "--device", "cpu:1", "--budget", "60s", "--refit", "--runs", "5"])
        .args(["--gate", "operator_error<=0.10", "--gate", "step_error<=0.08", "--gate", "tau>=0.8", "--out"])
        .arg(&out)
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
