//! Times on the device: events on streams, and what lies between two of them.

use std::time::Instant;

use cudarc::driver::{result, sys};

use super::driver::{Driver, lost, record};
use super::symbols;
use crate::device::DeviceError;
use crate::sample::WATCHDOG;

/// Two events around something.
pub struct Timer {
    begin: sys::CUevent,
    end: sys::CUevent,
}

impl Timer {
    /// Makes both.
    pub fn new(driver: &Driver) -> Result<Self, DeviceError> {
        Ok(Self { begin: driver.event()?, end: driver.event()? })
    }

    /// Puts the first one on a stream.
    pub fn begin(&self, stream: sys::CUstream) -> Result<(), DeviceError> {
        record(self.begin, stream)
    }

    /// Puts the second one on a stream.
    pub fn stop(&self, stream: sys::CUstream) -> Result<(), DeviceError> {
        record(self.end, stream)
    }

    /// Milliseconds between both, after they have happened.
    pub fn ms(&self) -> Result<f32, DeviceError> {
        elapsed(self.begin, self.end)
    }

    /// Milliseconds since `begin`, after waiting for the end.
    pub fn end(&self, driver: &Driver, stream: sys::CUstream) -> Result<f32, DeviceError> {
        self.stop(stream)?;
        driver.reach(self.end, "a product", Instant::now(), WATCHDOG)?;
        self.ms()
    }

    /// Lets a stream wait for the first event.
    pub fn follow(&self, stream: sys::CUstream) -> Result<(), DeviceError> {
        wait(stream, self.begin)
    }
}

/// Lets a stream wait for an event.
pub fn wait(stream: sys::CUstream, event: sys::CUevent) -> Result<(), DeviceError> {
    #[expect(unsafe_code, reason = "a stream and an event of our own")]
    // SAFETY: both live as long as the device, and the event was recorded.
    let waited = unsafe { result::stream::wait_event(stream, event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) };
    waited.map_err(lost("wait"))
}

impl Drop for Timer {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "events of our own")]
        // SAFETY: each is destroyed once.
        unsafe {
            // A device that is lost has lost its events as well.
            let _ = result::event::destroy(self.begin);
            let _ = result::event::destroy(self.end);
        }
    }
}

/// Milliseconds between two events that have happened.
pub fn elapsed(from: sys::CUevent, to: sys::CUevent) -> Result<f32, DeviceError> {
    let clock = symbols::elapsed().ok_or_else(|| DeviceError::Lost("the driver has no clock".to_owned()))?;
    let mut ms = 0.0;
    #[expect(unsafe_code, reason = "two recorded events of our own")]
    // SAFETY: both were recorded and have happened.
    unsafe { clock(&mut ms, from, to) }.result().map_err(lost("event"))?;
    Ok(ms)
}
