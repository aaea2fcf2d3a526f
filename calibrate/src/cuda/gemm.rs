//! Matrix products by cuBLASLt: for every shape the fastest of the library's first suggestions, found once by timing them.
//!
//! The library is column-major, so C = A · B in rows is asked for as Cᵀ = Bᵀ · Aᵀ. fp8 wants its left operand on its side.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::rc::Rc;

use cudarc::cublaslt::{result, sys};
use hw::Format;

use super::driver::{Address, Buffer, Driver};
use crate::device::DeviceError;

/// Suggestions that are timed.
const SUGGESTIONS: usize = 6;
/// Scratch that the library may use; what it asks for on Hopper.
const WORKSPACE: usize = 32 << 20;

/// Rows, columns, inner dimension and format of a product.
pub type Size = (u64, u64, u64, Format);

/// A shape made ready.
#[derive(Clone, Copy)]
struct Plan {
    descriptor: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// Operands and result of a product.
#[derive(Clone, Copy)]
pub struct Operands {
    /// m × k.
    pub left: Address,
    /// k × n; for fp8 n × k.
    pub right: Address,
    /// m × n.
    pub out: Address,
}

/// The library and the shapes it knows.
pub struct Gemm {
    handle: sys::cublasLtHandle_t,
    workspace: Buffer,
    plans: BTreeMap<Size, Plan>,
    driver: Rc<Driver>,
}

fn wrong(what: &str) -> impl Fn(result::CublasError) -> DeviceError + '_ {
    move |error| DeviceError::Lost(format!("cuBLASLt, {what}: {error:?}"))
}

impl Gemm {
    /// Opens the library.
    pub fn open(driver: &Rc<Driver>) -> Result<Self, DeviceError> {
        let handle = result::create_handle().map_err(wrong("start"))?;
        let workspace = driver.allocate(WORKSPACE, "workspace", "gemm")?;
        Ok(Self { handle, workspace, plans: BTreeMap::new(), driver: Rc::clone(driver) })
    }

    /// Makes a shape ready on operands that may be overwritten.
    pub fn prepare(&mut self, size: Size, on: Operands, stream: Stream) -> Result<(), DeviceError> {
        if self.plans.contains_key(&size) {
            return Ok(());
        }
        let (descriptor, layouts) = describe(size)?;
        let mut best: Option<(f32, Plan)> = None;
        for algorithm in self.suggestions(descriptor, layouts)? {
            let plan = Plan { descriptor, layouts, algorithm };
            let Some(seconds) = self.time(&plan, on, stream)? else { continue };
            if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
                best = Some((seconds, plan));
            }
        }
        if best.is_none() {
            // A device that is lost refuses everything as well.
            self.driver.synchronize()?;
        }
        let (m, n, k, format) = size;
        let none = || DeviceError::Lost(format!("cuBLASLt has no kernel for {m} × {n} × {k} {format:?}"));
        self.plans.insert(size, best.ok_or_else(none)?.1);
        Ok(())
    }

    /// Puts a product behind what a stream has.
    pub fn launch(&self, size: Size, on: Operands, stream: Stream) -> Result<(), DeviceError> {
        let plan =
            self.plans.get(&size).ok_or_else(|| DeviceError::Lost("a product that was not reserved".to_owned()))?;
        self.run(plan, on, stream)
    }

    fn run(&self, plan: &Plan, on: Operands, stream: Stream) -> Result<(), DeviceError> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        let pointer = |at: Address| at as *mut c_void;
        let scalar = |value: &f32| std::ptr::from_ref(value).cast::<c_void>();
        let [a, b, c] = plan.layouts;
        #[expect(unsafe_code, reason = "a product of the library")]
        // SAFETY: operands hold what the layouts say, which `footprint` counts; descriptors live as long as the program.
        unsafe {
            result::matmul(
                self.handle,
                plan.descriptor,
                scalar(&one),
                scalar(&zero),
                pointer(on.right),
                a,
                pointer(on.left),
                b,
                pointer(on.out),
                c,
                pointer(on.out),
                c,
                &plan.algorithm,
                pointer(self.workspace.at),
                self.workspace.len,
                stream.cast(),
            )
        }
        .map_err(wrong("product"))
    }

    /// Milliseconds of the second of two runs; `None` where the library refuses what it suggested.
    fn time(&self, plan: &Plan, on: Operands, stream: Stream) -> Result<Option<f32>, DeviceError> {
        if self.run(plan, on, stream).is_err() {
            return Ok(None);
        }
        let timer = super::clock::Timer::new(&self.driver)?;
        timer.begin(stream)?;
        self.run(plan, on, stream)?;
        timer.end(&self.driver, stream).map(Some)
    }

    fn suggestions(
        &self,
        descriptor: sys::cublasLtMatmulDesc_t,
        [a, b, c]: [sys::cublasLtMatrixLayout_t; 3],
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, DeviceError> {
        let preference = result::create_matmul_pref().map_err(wrong("preference"))?;
        #[expect(unsafe_code, reason = "asks the library for kernels")]
        // SAFETY: descriptors were just made; the array holds as many results as are asked for, plain data that zeros are valid for.
        unsafe {
            let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let bytes = std::ptr::from_ref(&self.workspace.len).cast::<c_void>();
            result::set_matmul_pref_attribute(preference, attribute, bytes, size_of::<usize>())
                .map_err(wrong("preference"))?;
            let mut found: [sys::cublasLtMatmulHeuristicResult_t; SUGGESTIONS] = std::mem::zeroed();
            let mut n = 0;
            let wanted = i32::try_from(SUGGESTIONS).expect("few");
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                descriptor,
                a,
                b,
                c,
                c,
                preference,
                wanted,
                found.as_mut_ptr(),
                &mut n,
            );
            result::destroy_matmul_pref(preference).map_err(wrong("preference"))?;
            // That there is no kernel is an answer, too.
            if asked == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
                return Ok(Vec::new());
            }
            asked.result().map_err(wrong("suggestions"))?;
            let given = found.into_iter().take(usize::try_from(n).unwrap_or(0));
            let good = given.filter(|one| one.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
            Ok(good.map(|one| one.algo).collect())
        }
    }
}

/// A stream of the driver.
pub type Stream = cudarc::driver::sys::CUstream;

/// What a shape is to the library: Cᵀ (n × m) = Bᵀ · Aᵀ.
fn describe(
    (m, n, k, format): Size,
) -> Result<(sys::cublasLtMatmulDesc_t, [sys::cublasLtMatrixLayout_t; 3]), DeviceError> {
    use sys::cudaDataType_t::{CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_32F};
    let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
    let descriptor = result::create_matmul_desc(compute, CUDA_R_32F).map_err(wrong("descriptor"))?;
    let of = |kind, rows: u64, columns: u64| {
        let ld = i64::try_from(rows).unwrap_or(i64::MAX);
        result::create_matrix_layout(kind, rows, columns, ld).map_err(wrong("layout"))
    };
    let (kind, right) = match format {
        Format::Fp8 => {
            // `CUBLAS_OP_T` of the library; its bindings have no name for it.
            let transposed = 1_i32;
            let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
            #[expect(unsafe_code, reason = "sets an attribute of a descriptor")]
            // SAFETY: the descriptor was just made; the attribute is a 32-bit integer.
            unsafe {
                let value = std::ptr::from_ref(&transposed).cast::<c_void>();
                result::set_matmul_desc_attribute(descriptor, attribute, value, size_of::<i32>())
            }
            .map_err(wrong("descriptor"))?;
            (CUDA_R_8F_E4M3, of(CUDA_R_8F_E4M3, k, n)?)
        }
        _ => (CUDA_R_16BF, of(CUDA_R_16BF, n, k)?),
    };
    Ok((descriptor, [right, of(kind, k, m)?, of(CUDA_R_16BF, n, m)?]))
}
