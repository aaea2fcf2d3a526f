//! Gates of a comparison as JUnit XML, which CI systems show.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::quantity::escape;

/// One thing that was held against a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Scenario.
    pub suite: String,
    /// Policy and gate.
    pub name: String,
    /// Why it failed; nothing when it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Renders cases, grouped by suite in their order.
pub fn render(cases: &[Case]) -> String {
    let mut suites: Vec<&str> = Vec::new();
    for case in cases {
        if !suites.contains(&case.suite.as_str()) {
            suites.push(&case.suite);
        }
    }
    let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n".to_owned();
    for suite in suites {
        let of_suite: Vec<&Case> = cases.iter().filter(|case| case.suite == suite).collect();
        let n_failed = of_suite.iter().filter(|case| case.failure.is_some()).count();
        let name = escape(suite);
        let _ = writeln!(out, "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{n_failed}\">", of_suite.len());
        for case in of_suite {
            let (class, name) = (escape(suite), escape(&case.name));
            let _ = match &case.failure {
                None => writeln!(out, "    <testcase classname=\"{class}\" name=\"{name}\"/>"),
                Some(why) => writeln!(
                    out,
                    "    <testcase classname=\"{class}\" name=\"{name}\"><failure message=\"{}\"/></testcase>",
                    escape(why)
                ),
            };
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_and_text_is_escaped() {
        let case = |name: &str, failure: Option<&str>| Case {
            suite: "a & b".to_owned(),
            name: name.to_owned(),
            failure: failure.map(str::to_owned),
        };
        let found = render(&[case("skrull: step<=1", None), case("x", Some("1.3 > 1"))]);
        assert_eq!(
            found,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"a &amp; b\" tests=\"2\" failures=\"1\">\n    \
             <testcase classname=\"a &amp; b\" name=\"skrull: step&lt;=1\"/>\n    \
             <testcase classname=\"a &amp; b\" name=\"x\"><failure message=\"1.3 &gt; 1\"/></testcase>\n  </testsuite>\n</testsuites>\n"
        );
    }
}
