//! Exceptions: wrong input with its findings as JSON, and defects of the program.

use input::diagnostic::{Finding, Severity, Source};
use pyo3::prelude::*;
use serde_json::{Value, json};
use skrull_sim::ask::WrongInput;
use skrull_sim::commands::Failure;

pyo3::create_exception!(
    _native,
    RefusedError,
    pyo3::exceptions::PyValueError,
    "(exit code, message, findings as JSON)"
);
pyo3::create_exception!(_native, DefectError, pyo3::exceptions::PyRuntimeError, "A defect of skrull-sim.");

/// Wrong input as an exception.
pub fn refused(wrong: &WrongInput) -> PyErr {
    let all: Vec<Value> = wrong.findings.iter().map(|found| finding(&wrong.source, found)).collect();
    RefusedError::new_err((2_u8, wrong.message(), Value::from(all).to_string()))
}

/// A verb that failed as an exception.
pub fn failed(failure: Failure) -> PyErr {
    if let Failure::Findings(found) = &failure {
        return refused(found);
    }
    let (code, message) = failure.told();
    RefusedError::new_err((code, message, "[]".to_owned()))
}

/// A sentence without a place.
pub fn wrong(message: String) -> PyErr {
    RefusedError::new_err((2_u8, message, "[]".to_owned()))
}

fn finding(source: &Source, finding: &Finding) -> Value {
    let before = finding.at.as_ref().and_then(|at| source.text.get(..at.start));
    let line = before.map(|text| text.matches('\n').count() + 1);
    let column = before.map(|text| text.chars().rev().take_while(|letter| *letter != '\n').count() + 1);
    json!({
        "code": finding.code.to_string(),
        "severity": if finding.severity == Severity::Error { "error" } else { "warning" },
        "what": finding.what,
        "line": line,
        "column": column,
        // A finding names its key first, in backticks.
        "key": finding.what.split('`').nth(1),
        "label": finding.label,
        "help": finding.help,
    })
}
