//! What is used of the CUDA libraries, by name: looked for when a device is opened, so that a library that is too old is said in one
//! line and not found out in the middle of a calibration.

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
    "cuEventElapsedTime_v2",
    "cuEventDestroy_v2",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncGetParamInfo",
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

/// The first that is missing, in words. The libraries themselves must be there.
pub fn check() -> Result<(), String> {
    #[expect(unsafe_code, reason = "looks for functions by name")]
    // SAFETY: the libraries were found; nothing is called, so the type that is looked up as does not matter.
    let missing = unsafe {
        let driver = DRIVER.iter().find(|name| driver::sys::culib().get::<usize>(name.as_bytes()).is_err());
        let compiler = COMPILER.iter().find(|name| nvrtc::sys::culib().get::<usize>(name.as_bytes()).is_err());
        let products = PRODUCTS.iter().find(|name| cublaslt::sys::culib().get::<usize>(name.as_bytes()).is_err());
        [("the CUDA driver", driver), ("NVRTC", compiler), ("cuBLASLt", products)]
    };
    let found = missing.into_iter().find_map(|(library, name)| Some((library, name?)));
    found.map_or(Ok(()), |(library, name)| Err(format!("{library} is too old or too new: it has no `{name}`")))
}
