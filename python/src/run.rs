//! Runs and verbs.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use input::diagnostic::Source;
use pyo3::prelude::*;
use reports::columns::{self, Column};
use scenario::Overrides;
use skrull_sim::cli::Cli;
use skrull_sim::kinds::{self, Frames, Kind};
use skrull_sim::{ask, commands};

use crate::arrow::Frame;
use crate::errors;
use crate::working::work;

/// Where a scenario comes from: its text with the folder of its files, or else a path or a shipped name.
pub struct Asked {
    pub name: String,
    pub text: Option<String>,
    pub overrides: Overrides,
}

impl Asked {
    pub fn read(self) -> PyResult<Arc<dyn Kind>> {
        let (source, folder) = match self.text {
            Some(text) => (Source { path: self.name, text }, PathBuf::new()),
            None => scenario::find(&self.name).map_err(|why| errors::wrong(why.to_string()))?,
        };
        let found = ask::scenario(source, &folder, &self.overrides).map_err(|found| errors::refused(&found))?;
        Ok(found.into())
    }
}

/// What came of a scenario.
#[pyclass(frozen, module = "skrull_sim")]
pub struct Run {
    scenario: Arc<dyn Kind>,
    run: kinds::Run,
    /// Warnings, as the command line tells them.
    #[pyo3(get)]
    warnings: String,
}

/// Runs a scenario.
#[pyfunction]
#[pyo3(signature = (name, text, set, seed))]
pub fn run(py: Python<'_>, name: String, text: Option<String>, set: Vec<String>, seed: Option<u64>) -> PyResult<Run> {
    let asked = Asked { name, text, overrides: Overrides { set, seed, ..Overrides::default() } };
    let (found, printed) = work(py, move || {
        ask::kept(|| {
            let scenario = asked.read()?;
            let run = scenario.draw(&|_| {});
            PyResult::Ok((scenario, run))
        })
    })?;
    let (scenario, run) = found?;
    Ok(Run { scenario, run, warnings: printed.told })
}

/// Runs a verb as the command line does, and returns what it printed and told.
#[pyfunction]
pub fn perform(py: Python<'_>, arguments: Vec<String>) -> PyResult<(String, String)> {
    let all = std::iter::once("skrull-sim".to_owned()).chain(arguments);
    let cli = Cli::try_parse_from(all).map_err(|error| errors::wrong(error.to_string()))?;
    let (done, printed) = work(py, move || ask::kept(|| commands::perform(cli)))?;
    done.map_err(errors::failed)?;
    Ok((printed.text, printed.told))
}

#[pymethods]
impl Run {
    /// The bytes of `result.json`.
    fn json(&self) -> PyResult<String> {
        reports::json::render(&self.run.result).map_err(|error| errors::wrong(error.to_string()))
    }

    /// The report as a page.
    fn html(&self) -> String {
        reports::html::render(&self.run.result, &self.run.pictures(), &self.run.curves)
    }

    /// The table of the command line.
    fn table(&self) -> String {
        reports::table::render_at(&self.run.result, 160)
    }

    /// A row for each policy.
    fn results(&self) -> Frame {
        Frame::of(columns::of_results(&self.run.result))
    }

    /// A row for each task of the drawn steps.
    fn timeline(&self) -> Frame {
        Frame::of(columns::of_tasks(&self.run.pictures()))
    }

    /// A row for each change of memory of the drawn steps.
    fn memory(&self) -> Frame {
        Frame::of(columns::of_memory(&self.run.pictures()))
    }

    /// Lengths of the sequences of the drawn steps.
    fn lengths(&self) -> Frame {
        let lengths = self.run.lengths.iter().map(|tokens| Some(*tokens as f64));
        Frame::of(vec![Column::numbers("tokens", lengths)])
    }

    /// A row for each request of every policy that serves.
    fn requests(&self, py: Python<'_>) -> PyResult<Frame> {
        self.served(py, |frames| frames.requests)
    }

    /// How the fleet stood over time.
    fn series(&self, py: Python<'_>) -> PyResult<Frame> {
        self.served(py, |frames| frames.series)
    }
}

impl Run {
    fn served(&self, py: Python<'_>, part: fn(Frames) -> reports::frame::Frame) -> PyResult<Frame> {
        let scenario = Arc::clone(&self.scenario);
        let columns = work(py, move || {
            let names = scenario.choices();
            let frames = names.into_iter().filter_map(|name| Some((name, part(scenario.served(name)?))));
            columns::of_frames(&frames.collect::<Vec<_>>())
        })?;
        Ok(Frame::of(columns))
    }
}
