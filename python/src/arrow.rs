//! Frames over the Arrow C interface: a stream with one batch, whose buffers other libraries read where they lie.
//!
//! Source: "The Arrow C data interface" and "The Arrow C stream interface", ABI structs as published; "The Arrow PyCapsule interface".
//! Invariant: what a struct points to lives in its `private_data` until its `release` is called, and `release` is called once.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList};
use reports::columns::{Cells, Column};

const NULLABLE: i64 = 2;

/// A table by columns. Any library that knows the Arrow PyCapsule interface takes it as it is.
#[pyclass(frozen, module = "skrull_sim")]
pub struct Frame {
    columns: Arc<Vec<Column>>,
    buffers: Arc<Vec<Buffers>>,
}

/// A column as Arrow has it.
enum Buffers {
    Numbers { valid: Vec<u8>, values: Vec<f64>, nulls: i64 },
    Texts { valid: Vec<u8>, offsets: Vec<i64>, bytes: Vec<u8>, nulls: i64 },
}

/// A bit for each cell that is there, and how many are not.
fn valid<T>(cells: &[Option<T>]) -> (Vec<u8>, i64) {
    let mut bits = vec![0_u8; cells.len().div_ceil(8)];
    for (index, _) in cells.iter().enumerate().filter(|(_, cell)| cell.is_some()) {
        bits[index / 8] |= 1 << (index % 8);
    }
    (bits, cells.iter().filter(|cell| cell.is_none()).count() as i64)
}

impl Buffers {
    fn of(column: &Column) -> Self {
        match &column.cells {
            Cells::Numbers(cells) => {
                let (valid, nulls) = valid(cells);
                Self::Numbers { valid, values: cells.iter().map(|cell| cell.unwrap_or(0.0)).collect(), nulls }
            }
            Cells::Texts(cells) => {
                let (valid, nulls) = valid(cells);
                let (mut offsets, mut bytes) = (vec![0_i64], Vec::new());
                for cell in cells {
                    bytes.extend(cell.as_deref().unwrap_or("").as_bytes());
                    offsets.push(bytes.len() as i64);
                }
                Self::Texts { valid, offsets, bytes, nulls }
            }
        }
    }
}

impl Frame {
    /// A frame of columns.
    pub fn of(columns: Vec<Column>) -> Self {
        let buffers = columns.iter().map(Buffers::of).collect();
        Self { columns: Arc::new(columns), buffers: Arc::new(buffers) }
    }

    fn n_rows(&self) -> usize {
        self.columns.first().map_or(0, Column::n_rows)
    }
}

#[pymethods]
impl Frame {
    /// A stream with one batch of all rows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets a producer answer with its own schema.
        drop(requested_schema);
        let state =
            Box::new(State { columns: Arc::clone(&self.columns), buffers: Arc::clone(&self.buffers), is_done: false });
        let stream = ArrowArrayStream {
            get_schema: Some(get_schema),
            get_next: Some(get_next),
            get_last_error: Some(get_last_error),
            release: Some(release_stream),
            private_data: Box::into_raw(state).cast(),
        };
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// Names of the columns, with units.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.n_rows()
    }

    fn __repr__(&self) -> String {
        format!("<skrull_sim.Frame: {} rows of {}>", self.n_rows(), self.columns().join(", "))
    }

    /// Lists by the names of columns.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        for column in self.columns.iter() {
            let list = match &column.cells {
                Cells::Numbers(cells) => PyList::new(py, cells)?,
                Cells::Texts(cells) => PyList::new(py, cells)?,
            };
            found.set_item(&column.name, list)?;
        }
        Ok(found)
    }

    /// The bytes of a Parquet file.
    fn to_parquet(&self) -> Vec<u8> {
        reports::parquet::render(&self.columns)
    }
}

#[repr(C)]
struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

#[repr(C)]
struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

#[repr(C)]
struct ArrowArrayStream {
    get_schema: Option<unsafe extern "C" fn(*mut Self, *mut ArrowSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut Self, *mut ArrowArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut Self) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut Self)>,
    private_data: *mut c_void,
}

// SAFETY: the struct owns its state, which holds nothing but shared columns that nobody changes.
unsafe impl Send for ArrowArrayStream {}

impl Drop for ArrowArrayStream {
    /// A consumer that took the stream has set `release` to null; nobody did otherwise.
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: `release` is there, so the stream was not taken.
            unsafe { release(self) }
        }
    }
}

struct State {
    columns: Arc<Vec<Column>>,
    buffers: Arc<Vec<Buffers>>,
    is_done: bool,
}

/// What a schema points to.
struct SchemaData {
    _format: CString,
    _name: CString,
    children: Vec<*mut ArrowSchema>,
}

/// What an array points to.
struct ArrayData {
    _owner: Arc<Vec<Buffers>>,
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
}

fn schema(format: &str, name: &str, mut children: Vec<*mut ArrowSchema>) -> ArrowSchema {
    let text = |text: &str| CString::new(text.replace('\0', "")).expect("no byte is zero");
    let (format, name) = (text(format), text(name));
    let pointers = (format.as_ptr(), name.as_ptr(), children.as_mut_ptr(), children.len() as i64);
    let data = Box::new(SchemaData { _format: format, _name: name, children });
    ArrowSchema {
        format: pointers.0,
        name: pointers.1,
        metadata: ptr::null(),
        flags: NULLABLE,
        n_children: pointers.3,
        children: pointers.2,
        dictionary: ptr::null_mut(),
        release: Some(release_schema),
        private_data: Box::into_raw(data).cast(),
    }
}

fn array(length: usize, nulls: i64, owner: &Arc<Vec<Buffers>>, mut data: ArrayData) -> ArrowArray {
    data._owner = Arc::clone(owner);
    let mut data = Box::new(data);
    ArrowArray {
        length: length as i64,
        null_count: nulls,
        offset: 0,
        n_buffers: data.buffers.len() as i64,
        n_children: data.children.len() as i64,
        buffers: data.buffers.as_mut_ptr(),
        children: data.children.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_array),
        private_data: Box::into_raw(data).cast(),
    }
}

unsafe extern "C" fn get_schema(stream: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: the consumer passes a stream that is not released, and room for a schema.
    unsafe {
        let state = &*(*stream).private_data.cast::<State>();
        let child = |column: &Column| {
            let format = if matches!(column.cells, Cells::Numbers(_)) { "g" } else { "U" };
            Box::into_raw(Box::new(schema(format, &column.name, Vec::new())))
        };
        ptr::write(out, schema("+s", "", state.columns.iter().map(child).collect()));
    }
    0
}

unsafe extern "C" fn get_next(stream: *mut ArrowArrayStream, out: *mut ArrowArray) -> c_int {
    // SAFETY: the consumer passes a stream that is not released, and room for an array.
    unsafe {
        let state = &mut *(*stream).private_data.cast::<State>();
        if state.is_done {
            // An array that is released ends the stream.
            ptr::write_bytes(out, 0, 1);
            return 0;
        }
        state.is_done = true;
        let owner = &state.buffers;
        let length = state.columns.first().map_or(0, Column::n_rows);
        let children = owner.iter().map(|buffers| Box::into_raw(Box::new(child(buffers, length, owner)))).collect();
        let data = ArrayData { _owner: Arc::clone(owner), buffers: vec![ptr::null()], children };
        ptr::write(out, array(length, 0, owner, data));
    }
    0
}

fn child(of: &Buffers, length: usize, owner: &Arc<Vec<Buffers>>) -> ArrowArray {
    let (buffers, nulls): (Vec<*const c_void>, i64) = match of {
        Buffers::Numbers { valid, values, nulls } => (vec![valid.as_ptr().cast(), values.as_ptr().cast()], *nulls),
        Buffers::Texts { valid, offsets, bytes, nulls } => {
            (vec![valid.as_ptr().cast(), offsets.as_ptr().cast(), bytes.as_ptr().cast()], *nulls)
        }
    };
    array(length, nulls, owner, ArrayData { _owner: Arc::clone(owner), buffers, children: Vec::new() })
}

unsafe extern "C" fn get_last_error(_stream: *mut ArrowArrayStream) -> *const c_char {
    ptr::null()
}

unsafe extern "C" fn release_stream(stream: *mut ArrowArrayStream) {
    // SAFETY: `private_data` came from a box, and a struct is released once.
    unsafe {
        drop(Box::from_raw((*stream).private_data.cast::<State>()));
        (*stream).release = None;
    }
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: `private_data` and children came from boxes; a child that a consumer took has no `release` any more.
    unsafe {
        let data = Box::from_raw((*schema).private_data.cast::<SchemaData>());
        for child in &data.children {
            if let Some(release) = (**child).release {
                release(*child);
            }
            drop(Box::from_raw(*child));
        }
        (*schema).release = None;
    }
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: as for schemas; buffers belong to the shared columns, which this lets go.
    unsafe {
        let data = Box::from_raw((*array).private_data.cast::<ArrayData>());
        for child in &data.children {
            if let Some(release) = (**child).release {
                release(*child);
            }
            drop(Box::from_raw(*child));
        }
        (*array).release = None;
    }
}
