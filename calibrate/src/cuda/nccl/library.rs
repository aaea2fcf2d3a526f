//! NCCL's functions, found by name in the library that this machine has. Packages carry it as `libnccl.so.2`, which the bindings of
//! `cudarc` do not look for; their types and numbers are used here all the same.

#![expect(unsafe_code, reason = "calls NCCL; each call says why it is sound")]

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{ncclDataType_t, ncclRedOp_t};
use libloading::Library;

use crate::cuda::libraries;
use crate::cuda::missing::Missing;
use crate::device::DeviceError;

/// A rank of a group that was started together.
pub type Comm = *mut c_void;

const BF16: c_int = ncclDataType_t::ncclBfloat16 as c_int;
const SUM: c_int = ncclRedOp_t::ncclSum as c_int;

type Reduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
type Gather = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
type Plain = unsafe extern "C" fn() -> c_int;

/// The library.
pub struct Nccl {
    all_reduce: Reduce,
    reduce_scatter: Reduce,
    all_gather: Gather,
    send: Send,
    receive: Receive,
    group_start: Plain,
    group_end: Plain,
    start: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int,
    words: unsafe extern "C" fn(c_int) -> *const c_char,
    version: c_int,
    /// The functions live as long as it does.
    _library: Library,
}

/// What a rank gives to an exchange or takes from it: bf16 values on its device, on its stream.
#[derive(Clone, Copy)]
pub struct Call {
    /// Rank.
    pub comm: Comm,
    /// Stream of the rank's device.
    pub stream: CUstream,
}

impl Nccl {
    /// Finds the library and all that is used of it.
    ///
    /// # Errors
    /// What is missing, in words.
    pub fn open() -> Result<Self, Missing> {
        let library = libraries::load(libraries::EXCHANGES)?;
        // SAFETY: the types are those of `nccl.h`, which have not changed since version 2.7.
        unsafe {
            let version_of: unsafe extern "C" fn(*mut c_int) -> c_int = find(&library, "ncclGetVersion")?;
            let mut version = 0;
            version_of(&mut version);
            Ok(Self {
                all_reduce: find(&library, "ncclAllReduce")?,
                reduce_scatter: find(&library, "ncclReduceScatter")?,
                all_gather: find(&library, "ncclAllGather")?,
                send: find(&library, "ncclSend")?,
                receive: find(&library, "ncclRecv")?,
                group_start: find(&library, "ncclGroupStart")?,
                group_end: find(&library, "ncclGroupEnd")?,
                start: find(&library, "ncclCommInitAll")?,
                words: find(&library, "ncclGetErrorString")?,
                version,
                _library: library,
            })
        }
    }

    /// Its version, for example 2.28.3.
    pub fn version(&self) -> String {
        format!("{}.{}.{}", self.version / 10_000, self.version / 100 % 100, self.version % 100)
    }

    /// Starts a group of devices: a rank for each, in their order.
    pub fn start(&self, devices: &[c_int]) -> Result<Vec<Comm>, DeviceError> {
        let mut comms: Vec<Comm> = vec![std::ptr::null_mut(); devices.len()];
        let n = c_int::try_from(devices.len()).unwrap_or(0);
        // SAFETY: both arrays have `n` entries.
        let status = unsafe { (self.start)(comms.as_mut_ptr(), n, devices.as_ptr()) };
        self.good("start", status).map(|()| comms)
    }

    /// Collects what `work` asks for and sends it at once: one thread must not wait for a rank that it has not told yet.
    pub fn group(&self, work: impl FnOnce() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        // SAFETY: it is closed below, whatever happens in between.
        self.good("group", unsafe { (self.group_start)() })?;
        let asked = work();
        // SAFETY: it was opened above.
        let ended = self.good("group", unsafe { (self.group_end)() });
        asked.and(ended)
    }

    /// Sums of `n` values of all ranks, for all.
    pub fn all_reduce(&self, call: Call, from: *const c_void, to: *mut c_void, n: usize) -> Result<(), DeviceError> {
        // SAFETY: callers give buffers of `n` values on the rank's device, and a stream of it.
        self.good("all-reduce", unsafe { (self.all_reduce)(from, to, n, BF16, SUM, call.comm, call.stream) })
    }

    /// Sums of all ranks, `n` of them for each.
    pub fn reduce_scatter(
        &self,
        call: Call,
        from: *const c_void,
        to: *mut c_void,
        n: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: callers give `n` values per rank and room for `n`, on the rank's device, and a stream of it.
        self.good("reduce-scatter", unsafe { (self.reduce_scatter)(from, to, n, BF16, SUM, call.comm, call.stream) })
    }

    /// `n` values of each rank, for all.
    pub fn all_gather(&self, call: Call, from: *const c_void, to: *mut c_void, n: usize) -> Result<(), DeviceError> {
        // SAFETY: callers give `n` values and room for `n` per rank, on the rank's device, and a stream of it.
        self.good("all-gather", unsafe { (self.all_gather)(from, to, n, BF16, call.comm, call.stream) })
    }

    /// `n` values to another rank.
    pub fn send(&self, call: Call, from: *const c_void, n: usize, to: usize) -> Result<(), DeviceError> {
        let to = c_int::try_from(to).unwrap_or(-1);
        // SAFETY: callers give `n` values on the rank's device, and a stream of it.
        self.good("send", unsafe { (self.send)(from, n, BF16, to, call.comm, call.stream) })
    }

    /// `n` values of another rank.
    pub fn receive(&self, call: Call, to: *mut c_void, n: usize, from: usize) -> Result<(), DeviceError> {
        let from = c_int::try_from(from).unwrap_or(-1);
        // SAFETY: callers give room for `n` values on the rank's device, and a stream of it.
        self.good("receive", unsafe { (self.receive)(to, n, BF16, from, call.comm, call.stream) })
    }

    fn good(&self, what: &str, status: c_int) -> Result<(), DeviceError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library answers with a text of its own, for every number.
        let text = unsafe { CStr::from_ptr((self.words)(status)) };
        Err(DeviceError::Lost(format!("NCCL, {what}: {} ({status})", text.to_string_lossy())))
    }
}

/// A function by name.
///
/// # Safety
/// `F` must be its type.
unsafe fn find<F: Copy>(library: &Library, name: &str) -> Result<F, Missing> {
    // SAFETY: the caller knows the type.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|_| Missing::Function { library: "NCCL", function: name.to_owned() })
}
