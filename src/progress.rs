//! Progress on standard error, on a terminal only: a bar where the parts are counted, a line with the time where they are not.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// It is drawn at once and again and again, so that the time goes on while the first part is being done.
fn styled(bar: ProgressBar, is_hidden: bool, template: &str) -> ProgressBar {
    if is_hidden || crate::ask::is_kept() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = bar.with_style(ProgressStyle::with_template(template).expect("a fixed template"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A bar of so many parts, with the time that they took so far and an estimate of the end.
pub fn bar(is_hidden: bool, n: usize, parts: &str) -> ProgressBar {
    let template = format!("{{bar:30}} {{pos}}/{{len}} {parts} {{msg}}, {{elapsed}} so far, ends in about {{eta}}");
    styled(ProgressBar::new(n as u64), is_hidden, &template)
}

/// A line of what is being done and for how long.
pub fn line(is_hidden: bool, what: &str) -> ProgressBar {
    styled(ProgressBar::new_spinner(), is_hidden, "{spinner} {elapsed} {wide_msg}").with_message(what.to_owned())
}
