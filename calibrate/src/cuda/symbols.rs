//! What is used of the CUDA libraries, by name: looked for when a device is opened, so that a library that is too old is said in one
//! line and not found out in the middle of a calibration.

use super::missing::Missing;
use std::sync::OnceLock;

use cudarc::driver::sys::{CUevent, CUresult};
use cudarc::{cublaslt, driver, nvrtc};

/// Functions of the driver.
const DRIVER: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Functions of the run-time compiler.
const COMPILER: &[&str] = &[
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcDestroyProgram",
    "nvrtcVersion",
];

/// Functions of the library of products.
const PRODUCTS: &[&str] = &[
    "cublasLtCreate",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmul",
];

/// Milliseconds between two events.
pub type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// The driver's clock of events: since CUDA 12.8 it has another name, for what it answers to events that have not happened.
pub fn elapsed() -> Option<Elapsed> {
    static FOUND: OnceLock<Option<Elapsed>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let names = ["cuEventElapsedTime_v2", "cuEventElapsedTime"];
        #[expect(unsafe_code, reason = "looks for a function by name")]
        // SAFETY: both have this type.
        names.iter().find_map(|name| unsafe { driver::sys::culib().get::<Elapsed>(name.as_bytes()) }.ok().map(|it| *it))
    })
}

/// Whether the driver tells the parameters of a kernel, as it does since CUDA 12.4.
pub fn has_parameters() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    #[expect(unsafe_code, reason = "looks for a function by name")]
    // SAFETY: nothing is called, so the type that is looked up as does not matter.
    *FOUND.get_or_init(|| unsafe { driver::sys::culib().get::<usize>(b"cuFuncGetParamInfo") }.is_ok())
}

/// The first that is missing, in words. The libraries themselves must be there.
pub fn check() -> Result<(), Missing> {
    #[expect(unsafe_code, reason = "looks for functions by name")]
    // SAFETY: the libraries were found; nothing is called, so the type that is looked up as does not matter.
    let missing = unsafe {
        let driver = DRIVER.iter().find(|name| driver::sys::culib().get::<usize>(name.as_bytes()).is_err());
        let compiler = COMPILER.iter().find(|name| nvrtc::sys::culib().get::<usize>(name.as_bytes()).is_err());
        let products = PRODUCTS.iter().find(|name| cublaslt::sys::culib().get::<usize>(name.as_bytes()).is_err());
        let clock = if elapsed().is_none() { Some(&"cuEventElapsedTime") } else { None };
        [("the CUDA driver", driver.or(clock)), ("NVRTC", compiler), ("cuBLASLt", products)]
    };
    let found = missing.into_iter().find_map(|(library, name)| Some((library, name?)));
    found.map_or(Ok(()), |(library, name)| Err(Missing::Function { library, function: (*name).to_owned() }))
}
