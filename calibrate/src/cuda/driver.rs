//! The CUDA driver as this crate uses it: memory, streams, events, kernels compiled at run time. Libraries are loaded when a device is
//! opened, so the program builds and starts where there is no CUDA at all.
//!
//! Every call's return code is looked at. A library or symbol that is missing makes `cudarc` panic when it is first used; all that this
//! crate uses is looked for when a device is opened, and `guarded` turns what is left into one line.

#![expect(unsafe_code, reason = "calls the driver and the run-time compiler; each call says why it is sound")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, result, sys};
use cudarc::nvrtc;
use hw::Bytes;

use super::missing::Missing;
use super::{libraries, sources, symbols};
use crate::device::DeviceError;

/// Dynamic shared memory that every kernel may have.
const SHARED_PLAIN: u32 = 48 * 1024;

/// An address on the device.
pub type Address = u64;

/// Memory on the device that goes with its owner.
pub struct Buffer {
    /// Where it begins.
    pub at: Address,
    /// Bytes.
    pub len: usize,
    owner: Owner,
}

/// Whose memory it is, and whether the device still answers.
#[derive(Clone)]
struct Owner {
    context: Arc<CudaContext>,
    silent: Rc<Cell<bool>>,
}

impl Owner {
    /// Whether memory can be given back: freeing waits for the device, and would wait forever for a kernel that never ends.
    fn answers(&self) -> bool {
        !self.silent.get() && self.context.bind_to_thread().is_ok()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.owner.answers() {
            return;
        }
        // A device that is lost has lost its memory as well.
        // SAFETY: the address comes from the driver and is freed once.
        let _ = unsafe { result::free_sync(self.at) };
    }
}

/// Host memory that the device reads and writes by itself.
pub struct Pinned {
    /// Where it begins, for the host and, with unified addresses, for the device.
    pub at: *mut c_void,
    /// Bytes.
    pub len: usize,
    owner: Owner,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Copies may be under way, and this memory goes without waiting for them.
        if !self.owner.answers() || result::ctx::synchronize().is_err() {
            return;
        }
        // SAFETY: the address comes from the driver and is freed once.
        let _ = unsafe { result::free_host(self.at) };
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    /// An address.
    Pointer(Address),
    /// A 32-bit integer.
    Int(i32),
    /// A 64-bit integer.
    Long(i64),
    /// A 32-bit float.
    Float(f32),
}

impl Arg {
    /// Its bits at the low end of a word, as the driver reads them.
    fn word(self) -> u64 {
        match self {
            Self::Pointer(at) => at,
            Self::Int(n) => u64::from(n.cast_unsigned()),
            Self::Long(n) => n.cast_unsigned(),
            Self::Float(x) => u64::from(x.to_bits()),
        }
    }

    const fn len(self) -> usize {
        match self {
            Self::Pointer(_) | Self::Long(_) => 8,
            Self::Int(_) | Self::Float(_) => 4,
        }
    }
}

/// Blocks, threads of a block, and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub block: u32,
    /// Bytes.
    pub shared: u32,
}

/// A device with its kernels.
pub struct Driver {
    /// The device's context.
    pub context: Arc<CudaContext>,
    /// Compute capability, 90 for 9.0.
    pub capability: u32,
    /// CUDA version of the driver, 13000 for 13.0.
    pub version: i32,
    /// Bytes of its second-level cache.
    pub cache: usize,
    /// Bytes of shared memory that a block may ask for.
    pub shared: u32,
    silent: Rc<Cell<bool>>,
    functions: RefCell<BTreeMap<&'static str, Rc<Function>>>,
}

/// A kernel, and the bytes of its parameters where the driver tells them.
struct Function {
    handle: sys::CUfunction,
    parameters: Option<Vec<usize>>,
    /// Dynamic shared memory that it may have; more must be asked for once.
    shared: Cell<u32>,
}

/// Runs what may load a library; a missing library or symbol is an error and not a panic.
pub fn guarded<T>(device: &str, work: impl FnOnce() -> Result<T, DeviceError>) -> Result<T, DeviceError> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    std::panic::set_hook(hook);
    done.unwrap_or_else(|payload| {
        let said = payload.downcast_ref::<String>().cloned();
        let said = said.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let first = said.unwrap_or_default().lines().next().unwrap_or_default().to_owned();
        Err(DeviceError::Missing { device: device.to_owned(), why: first })
    })
}

/// Puts an event on a stream.
pub fn record(event: sys::CUevent, stream: sys::CUstream) -> Result<(), DeviceError> {
    // SAFETY: both live as long as the device.
    unsafe { result::event::record(event, stream) }.map_err(lost("event"))
}

/// A failure of the driver.
pub fn lost(what: &str) -> impl Fn(result::DriverError) -> DeviceError + '_ {
    move |error| DeviceError::Lost(format!("{what}: {error}"))
}

impl Driver {
    /// Opens the device of this number.
    ///
    /// # Errors
    /// When there is no driver, no such device, or no run-time compiler.
    pub fn open(name: &str, ordinal: usize) -> Result<Rc<Self>, DeviceError> {
        let missing = |why: String| DeviceError::Missing { device: name.to_owned(), why };
        let lacking = |why: Missing| missing(why.to_string());
        for library in [libraries::DRIVER, libraries::COMPILER, libraries::PRODUCTS] {
            libraries::keep(library).map_err(lacking)?;
        }
        symbols::check().map_err(lacking)?;
        let count = result::init().and_then(|()| CudaContext::device_count());
        let count = count.map_err(|error| missing(format!("the driver does not start: {error}")))?;
        let version = matching().map_err(lacking)?;
        if ordinal >= usize::try_from(count).unwrap_or(0) {
            return Err(missing(format!("this machine has {count} CUDA devices")));
        }
        let context = CudaContext::new(ordinal).map_err(|error| missing(error.to_string()))?;
        let (major, minor) = context.compute_capability().map_err(|error| missing(error.to_string()))?;
        let capability = u32::try_from(major * 10 + minor).unwrap_or(0);
        if capability < 80 {
            return Err(missing(format!("compute capability {major}.{minor}, the kernels need 8.0 or newer")));
        }
        let cache = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).unwrap_or(0);
        let cache = usize::try_from(cache).unwrap_or(0);
        let shared = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared = context.attribute(shared).ok().and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(SHARED_PLAIN);
        let (silent, functions) = (Rc::default(), RefCell::default());
        Ok(Rc::new(Self { context, capability, version, cache, shared, silent, functions }))
    }

    /// Another GPU of this machine, which falls silent together with this one: memory, streams and copies, but no kernels.
    pub fn beside(&self, ordinal: usize) -> Result<Rc<Self>, DeviceError> {
        let context = CudaContext::new(ordinal).map_err(lost("another GPU"))?;
        let Self { capability, version, cache, shared, .. } = *self;
        let (silent, functions) = (Rc::clone(&self.silent), RefCell::default());
        Ok(Rc::new(Self { context, capability, version, cache, shared, silent, functions }))
    }

    /// Makes its context that of this thread, after others were opened.
    pub fn bind(&self) -> Result<(), DeviceError> {
        self.context.bind_to_thread().map_err(lost("context"))
    }

    /// Gives up on a device that does not answer: from now on nothing waits for it, and nothing is given back to it.
    fn give_up(&self) {
        self.silent.set(true);
        // Releasing the context would wait as well; the end of the process takes it.
        std::mem::forget(Arc::clone(&self.context));
    }

    fn owner(&self) -> Owner {
        Owner { context: Arc::clone(&self.context), silent: Rc::clone(&self.silent) }
    }

    /// Free and total memory.
    pub fn memory(&self) -> Result<(Bytes, Bytes), DeviceError> {
        let (free, total) = self.context.mem_get_info().map_err(lost("memory"))?;
        Ok((Bytes(free as u64), Bytes(total as u64)))
    }

    /// Takes memory for an operand of an operation.
    pub fn allocate(&self, len: usize, tensor: &'static str, op: &str) -> Result<Buffer, DeviceError> {
        // SAFETY: a context is current on this thread.
        let taken = unsafe { result::malloc_sync(len.max(1)) };
        match taken {
            Ok(at) => Ok(Buffer { at, len, owner: self.owner() }),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(DeviceError::OutOfMemory {
                tensor,
                op: op.to_owned(),
                needed: Bytes(len as u64),
                free: self.memory()?.0,
            }),
            Err(error) => Err(lost("allocation")(error)),
        }
    }

    /// Takes pinned host memory.
    pub fn pinned(&self, len: usize, op: &str) -> Result<Pinned, DeviceError> {
        // 1 is portable, 2 is mapped into the device.
        // SAFETY: a context is current on this thread.
        match unsafe { result::malloc_host(len.max(1), 3) } {
            Ok(at) => Ok(Pinned { at, len, owner: self.owner() }),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(DeviceError::OutOfMemory {
                tensor: "pinned host memory",
                op: op.to_owned(),
                needed: Bytes(len as u64),
                free: Bytes(0),
            }),
            Err(error) => Err(lost("pinned host memory")(error)),
        }
    }

    /// Copies values to new memory.
    pub fn upload<T: Copy>(&self, values: &[T], tensor: &'static str, op: &str) -> Result<Buffer, DeviceError> {
        let buffer = self.allocate(size_of_val(values), tensor, op)?;
        self.write(buffer.at, values)?;
        Ok(buffer)
    }

    /// Copies values to memory, and waits.
    pub fn write<T: Copy>(&self, at: Address, values: &[T]) -> Result<(), DeviceError> {
        // SAFETY: callers give addresses of buffers that hold the values.
        unsafe { result::memcpy_htod_sync(at, values) }.map_err(lost("copy to the device"))?;
        // The call may return when the values are staged and not yet there, and other streams do not wait for this one.
        self.synchronize()
    }

    /// Waits for everything and copies values back.
    pub fn read<T: Copy + Default>(&self, at: Address, n: usize) -> Result<Vec<T>, DeviceError> {
        // The copy itself waits for the default stream only.
        self.synchronize()?;
        let mut values = vec![T::default(); n];
        // SAFETY: callers give addresses of buffers that hold so many values.
        unsafe { result::memcpy_dtoh_sync(&mut values, at) }.map_err(lost("copy from the device"))?;
        Ok(values)
    }

    /// Copies within the device behind what a stream has.
    pub fn copy(&self, to: Address, from: Address, len: usize, stream: sys::CUstream) -> Result<(), DeviceError> {
        // SAFETY: callers give addresses of buffers of this length.
        unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len, stream) }.result().map_err(lost("copy"))
    }

    /// Copies from host memory behind what a stream has.
    pub fn copy_in(&self, to: Address, from: &Pinned, len: usize, stream: sys::CUstream) -> Result<(), DeviceError> {
        // SAFETY: callers give the address of a buffer of this length; of the host's no more than there is.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.at, len.min(from.len), stream) }.result().map_err(lost("copy"))
    }

    /// Copies to host memory behind what a stream has.
    pub fn copy_out(&self, to: &Pinned, from: Address, len: usize, stream: sys::CUstream) -> Result<(), DeviceError> {
        // SAFETY: callers give the address of a buffer of this length; of the host's no more than there is.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.at, from, len.min(to.len), stream) }.result().map_err(lost("copy"))
    }

    /// Fills memory with a byte behind what a stream has.
    pub fn fill(&self, at: Address, byte: u8, len: usize, stream: sys::CUstream) -> Result<(), DeviceError> {
        // SAFETY: callers give addresses of buffers of this length.
        unsafe { result::memset_d8_async(at, byte, len, stream) }.map_err(lost("memset"))
    }

    /// A new stream that does not wait for the default one.
    pub fn stream(&self) -> Result<sys::CUstream, DeviceError> {
        result::stream::create(result::stream::StreamKind::NonBlocking).map_err(lost("stream"))
    }

    /// A new event that takes times.
    pub fn event(&self) -> Result<sys::CUevent, DeviceError> {
        result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(lost("event"))
    }

    /// Waits for a stream, but not longer than this.
    pub fn watch(&self, stream: sys::CUstream, what: &str, limit: Duration) -> Result<(), DeviceError> {
        let end = self.event()?;
        record(end, stream)?;
        let watched = self.reach(end, what, Instant::now(), limit);
        if watched.is_ok() {
            // SAFETY: it has happened and is destroyed once.
            unsafe { result::event::destroy(end) }.map_err(lost(what))?;
        }
        watched
    }

    /// Waits for an event, but not longer than this since `begun`. A device that does not answer is given up.
    pub fn reach(&self, event: sys::CUevent, what: &str, begun: Instant, limit: Duration) -> Result<(), DeviceError> {
        loop {
            // SAFETY: it was recorded.
            match unsafe { result::event::query(event) } {
                Ok(()) => return Ok(()),
                Err(error) if error.0 != sys::CUresult::CUDA_ERROR_NOT_READY => return Err(lost(what)(error)),
                Err(_) if begun.elapsed() > limit => {
                    self.give_up();
                    return Err(DeviceError::Hung { op: what.to_owned(), after: limit });
                }
                Err(_) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// Waits for everything.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.synchronize().map_err(lost("synchronize"))
    }

    /// A kernel by name, compiled for this device when it is first asked for.
    fn function(&self, name: &'static str) -> Result<Rc<Function>, DeviceError> {
        if let Some(function) = self.functions.borrow().get(name) {
            return Ok(Rc::clone(function));
        }
        let (file, source) = sources::of_kernel(name);
        let image = compile(file, &source, self.capability)?;
        // SAFETY: the image comes from the compiler and the driver copies it.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(lost(file))?;
        for kernel in sources::kernels_of(file) {
            let c_name = CString::new(*kernel).expect("names of kernels have no zero bytes");
            // SAFETY: the module was just loaded and is never unloaded.
            let handle = unsafe { result::module::get_function(module, c_name) }.map_err(lost(kernel))?;
            let function = Function { handle, parameters: parameters(handle), shared: Cell::new(SHARED_PLAIN) };
            self.functions.borrow_mut().insert(kernel, Rc::new(function));
        }
        Ok(Rc::clone(&self.functions.borrow()[name]))
    }

    /// Launches a kernel behind what a stream has.
    pub fn launch(
        &self,
        name: &'static str,
        shape: Shape,
        args: &[Arg],
        stream: sys::CUstream,
    ) -> Result<(), DeviceError> {
        let function = self.function(name)?;
        let mut given = args.iter().map(|arg| arg.len());
        if let Some(parameters) = function.parameters.as_ref().filter(|known| !given.by_ref().eq(known.iter().copied()))
        {
            return Err(DeviceError::Lost(format!("{name} takes parameters of {parameters:?} bytes, not {args:?}")));
        }
        let mut words: Vec<u64> = args.iter().map(|arg| arg.word()).collect();
        let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        // SAFETY: arguments have the number and sizes that the driver knows; the driver copies them before it returns.
        unsafe {
            if shape.shared > function.shared.get() {
                let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                let bytes = i32::try_from(shape.shared).expect("shared memory is small");
                result::function::set_function_attribute(function.handle, attribute, bytes).map_err(lost(name))?;
                function.shared.set(shape.shared);
            }
            let block = (shape.block, 1, 1);
            result::launch_kernel(function.handle, shape.grid, block, shape.shared, stream, &mut pointers)
        }
        .map_err(lost(name))
    }
}

/// Version of the driver, 13000 for 13.0; or that the run-time compiler makes code that it cannot load.
fn matching() -> Result<i32, Missing> {
    let (mut driver, mut major, mut minor) = (0, 0, 0);
    // SAFETY: the pointers are to integers of our own.
    unsafe {
        sys::cuDriverGetVersion(&mut driver).result().map_err(Missing::DriverVersion)?;
        nvrtc::sys::nvrtcVersion(&mut major, &mut minor).result().map_err(Missing::CompilerVersion)?;
    }
    if major > driver / 1000 {
        let driver = format!("{}.{}", driver / 1000, driver % 1000 / 10);
        return Err(Missing::OldDriver { compiler: format!("{major}.{minor}"), driver });
    }
    Ok(driver)
}

/// Bytes of a kernel's parameters; `None` where the driver is too old to tell.
fn parameters(function: sys::CUfunction) -> Option<Vec<usize>> {
    if !symbols::has_parameters() {
        return None;
    }
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function was just found; the pointers are to numbers of our own.
        let asked = unsafe { sys::cuFuncGetParamInfo(function, sizes.len(), &mut offset, &mut size) };
        // Beyond the last one the index is an invalid value.
        if asked != sys::CUresult::CUDA_SUCCESS {
            return Some(sizes);
        }
        sizes.push(size);
    }
}

/// Machine code of a source for a compute capability.
fn compile(file: &str, source: &str, capability: u32) -> Result<Vec<u8>, DeviceError> {
    let wrong = |why: String| DeviceError::Lost(format!("kernel source {file} does not compile: {why}"));
    let text = CString::new(source).map_err(|error| wrong(error.to_string()))?;
    let name = CString::new(file).map_err(|error| wrong(error.to_string()))?;
    let program = nvrtc::result::create_program(&text, Some(&name)).map_err(|error| wrong(error.to_string()))?;
    let options = [format!("--gpu-architecture=sm_{capability}"), "--std=c++17".to_owned()];
    // SAFETY: the program was just made; sizes are asked for before buffers are filled; it is destroyed once.
    unsafe {
        if let Err(error) = nvrtc::result::compile_program(program, &options) {
            let log = nvrtc::result::get_program_log(program).unwrap_or_default();
            let bytes: Vec<u8> = log.into_iter().map(|c| c.cast_unsigned()).take_while(|byte| *byte != 0).collect();
            return Err(wrong(format!("{error}\n{}", String::from_utf8_lossy(&bytes))));
        }
        let mut size = 0;
        nvrtc::sys::nvrtcGetCUBINSize(program, &mut size).result().map_err(|error| wrong(error.to_string()))?;
        let mut image = vec![0_u8; size];
        let filled = nvrtc::sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast());
        filled.result().map_err(|error| wrong(error.to_string()))?;
        nvrtc::result::destroy_program(program).map_err(|error| wrong(error.to_string()))?;
        Ok(image)
    }
}
