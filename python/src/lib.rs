//! The native part of the package `skrull_sim`: runs, verbs and plans, without a terminal.
//!
//! Every call works in a thread of its own while the interpreter goes on: Ctrl-C is heard, and a panic is an exception.

mod arrow;
mod errors;
mod play;
mod rules;
mod run;
mod working;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("RefusedError", module.py().get_type::<errors::RefusedError>())?;
    module.add("DefectError", module.py().get_type::<errors::DefectError>())?;
    module.add_class::<arrow::Frame>()?;
    module.add_class::<run::Run>()?;
    module.add_function(wrap_pyfunction!(run::run, module)?)?;
    module.add_function(wrap_pyfunction!(run::perform, module)?)?;
    module.add_function(wrap_pyfunction!(play::batches, module)?)?;
    module.add_function(wrap_pyfunction!(play::play, module)?)?;
    module.add_class::<rules::Request>()?;
    module.add_class::<rules::Replica>()?;
    module.add_class::<rules::Prompt>()?;
    module.add_class::<rules::Iteration>()?;
    module.add_class::<rules::Group>()?;
    module.add_class::<rules::Interval>()?;
    module.add_function(wrap_pyfunction!(rules::serve_by, module)?)?;
    Ok(())
}
