//! Which devices there are, and how they are called.

use crate::cpu::Cpu;
use crate::cuda::Cuda;
use crate::device::{Device, DeviceError};

/// Opens a device by name: `cpu`, `cpu:THREADS`, `cuda:N`.
///
/// # Errors
/// When there is no such device here.
pub fn open(name: &str) -> Result<Box<dyn Device>, DeviceError> {
    let unknown = |why| DeviceError::Unknown { device: name.to_owned(), why };
    let (kind, index) = name.split_once(':').map_or((name, None), |(kind, index)| (kind, Some(index)));
    let number = index.map(str::parse::<usize>).transpose().map_err(|_| unknown("what follows `:` is not a number"))?;
    match kind {
        "cpu" => Ok(Box::new(Cpu::open(name, number)?)),
        "cuda" => Ok(Box::new(Cuda::open(name, number.unwrap_or(0))?)),
        _ => Err(unknown("there is no such kind")),
    }
}
