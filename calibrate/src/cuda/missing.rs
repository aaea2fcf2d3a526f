//! Why a GPU of this machine, or an exchange between several, cannot be used.

use std::path::PathBuf;

use crate::device::DeviceError;

/// What is missing.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// No folder has the library.
    #[error(
        "{what} was not found: no {names} by the loader or in {n_folders} folders of CUDA and Python; LD_LIBRARY_PATH may name its folder"
    )]
    Library { what: &'static str, names: String, n_folders: usize },
    /// A library is there and does not load.
    #[error("{} does not load: {why}", .path.display())]
    Broken { path: PathBuf, why: libloading::Error },
    /// A library is of another version.
    #[error("{library} is too old or too new: it has no `{function}`")]
    Function { library: &'static str, function: String },
    /// The driver does not say its version.
    #[error("no version of the driver: {0}")]
    DriverVersion(cudarc::driver::DriverError),
    /// The run-time compiler does not say its version.
    #[error("no version: {0}")]
    CompilerVersion(cudarc::nvrtc::result::NvrtcError),
    /// The run-time compiler is newer than the driver.
    #[error("NVRTC {compiler} makes code for newer drivers than this one (CUDA {driver})")]
    OldDriver { compiler: String, driver: String },
    /// The driver does not count its devices.
    #[error("{0}")]
    Count(cudarc::driver::DriverError),
    /// A device of a group cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
