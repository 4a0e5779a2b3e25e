//! Any `libflagos_comm.so`, by the C functions of `include/flagos_comm.h`.

use super::{Call, Comm, Function, Library, Made, MadeAll, Setup};
use crate::perf::operation::Operation;
use flagos_comm::{Code, CommInfo, DataType, Error, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

type CommHandle = *mut c_void;

/// `flagosUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CId([u8; 256]);

/// `FLAGOS_CONFIG_UNDEF`.
const UNDEF: i32 = i32::MIN;

/// `flagosConfig_t` as the first header has it; libraries accept older structs.
#[repr(C)]
struct CConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    vendor_nonblocking: i32,
    init_timeout_ms: i64,
    collective_timeout_ms: i64,
    destroy_timeout_ms: i64,
    name: *const c_char,
    description: *const c_char,
    tiers: *const c_char,
    net_name: *const c_char,
    device: i32,
    vendor: [i32; 14],
    reserved: i32,
}

/// `flagosCommInfo_t`; what an older library does not know of it stays zero.
#[repr(C)]
struct CInfo {
    size: usize,
    tier: i32,
    stream_kind: i32,
    completion: i32,
    library_version: i32,
    vendor: [c_char; 32],
    library_path: [c_char; 1024],
    host_engine: [c_char; 32],
    host_engine_text: [c_char; 1024],
}

const _: () = assert!(size_of::<CConfig>() == 144 && size_of::<CInfo>() == 24 + 2 * (32 + 1024));

macro_rules! table {
    ($($field:ident: $symbol:literal ($($arg:ty),*) -> $ret:ty;)*) => {
        /// The functions that the tool calls.
        struct Table {
            $($field: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl Table {
            fn load(library: &libloading::Library, path: &Path) -> Result<Table> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the type is that of the header's declaration.
                    let $field = match unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) -> $ret>($symbol.as_bytes())
                    } {
                        Ok(symbol) => Some(*symbol),
                        Err(_) => {
                            missing.push($symbol);
                            None
                        }
                    };
                )*
                match ($($field,)*) {
                    ($(Some($field),)*) => Ok(Table { $($field,)* }),
                    _ => Err(Error::invalid_argument(format!(
                        "{} lacks {}: is it a libflagos_comm.so?",
                        path.display(),
                        missing.join(", ")
                    ))),
                }
            }
        }
    };
}

type Buf = *mut c_void;
type ConstBuf = *const c_void;
type Sizes = *const usize;

table! {
    version: "flagosGetVersion"(*mut c_int) -> c_int;
    unique_id: "flagosGetUniqueId"(*mut CId) -> c_int;
    init_rank: "flagosCommInitRankConfig"(*mut CommHandle, c_int, *const CId, c_int, *const CConfig) -> c_int;
    init_all: "flagosCommInitAll"(*mut CommHandle, c_int, *const c_int) -> c_int;
    destroy: "flagosCommDestroy"(CommHandle) -> c_int;
    info: "flagosCommGetInfo"(CommHandle, *mut CInfo) -> c_int;
    last_error: "flagosGetLastError"(CommHandle) -> *const c_char;
    all_reduce: "flagosAllReduce"(ConstBuf, Buf, usize, c_int, c_int, CommHandle, Buf) -> c_int;
    broadcast: "flagosBroadcast"(ConstBuf, Buf, usize, c_int, c_int, CommHandle, Buf) -> c_int;
    reduce: "flagosReduce"(ConstBuf, Buf, usize, c_int, c_int, c_int, CommHandle, Buf) -> c_int;
    all_gather: "flagosAllGather"(ConstBuf, Buf, usize, c_int, CommHandle, Buf) -> c_int;
    reduce_scatter: "flagosReduceScatter"(ConstBuf, Buf, usize, c_int, c_int, CommHandle, Buf) -> c_int;
    gather: "flagosGather"(ConstBuf, Buf, usize, c_int, c_int, CommHandle, Buf) -> c_int;
    scatter: "flagosScatter"(ConstBuf, Buf, usize, c_int, c_int, CommHandle, Buf) -> c_int;
    all_to_all: "flagosAlltoAll"(ConstBuf, Buf, usize, c_int, CommHandle, Buf) -> c_int;
    all_to_allv: "flagosAlltoAllv"(ConstBuf, Sizes, Sizes, Buf, Sizes, Sizes, c_int, CommHandle, Buf) -> c_int;
    send: "flagosSend"(ConstBuf, usize, c_int, c_int, CommHandle, Buf) -> c_int;
    recv: "flagosRecv"(Buf, usize, c_int, c_int, CommHandle, Buf) -> c_int;
    barrier: "flagosBarrier"(CommHandle, Buf) -> c_int;
    group_start: "flagosGroupStart"() -> c_int;
    group_end: "flagosGroupEnd"() -> c_int;
    redop_create: "flagosRedOpCreatePreMulSum"(*mut c_int, ConstBuf, c_int, c_int, CommHandle) -> c_int;
    redop_destroy: "flagosRedOpDestroy"(c_int, CommHandle) -> c_int;
    mem_alloc: "flagosMemAlloc"(*mut Buf, usize) -> c_int;
    mem_free: "flagosMemFree"(Buf) -> c_int;
    device_count: "flagosGetDeviceCount"(*mut c_int) -> c_int;
    set_device: "flagosSetDevice"(c_int) -> c_int;
    stream_create: "flagosStreamCreate"(*mut Buf) -> c_int;
    stream_destroy: "flagosStreamDestroy"(Buf) -> c_int;
    stream_synchronize: "flagosStreamSynchronize"(Buf) -> c_int;
    memcpy_async: "flagosMemcpyAsync"(Buf, ConstBuf, usize, c_int, Buf) -> c_int;
}

struct Inner {
    table: Table,
    path: PathBuf,
    /// Keeps the functions mapped.
    _library: libloading::Library,
}

/// A library that was opened by its path.
#[derive(Clone)]
pub struct Dynamic(Arc<Inner>);

impl Dynamic {
    /// Opens the file and looks up every function.
    ///
    /// # Errors
    /// The loader's words, or the functions that are missing.
    pub fn open(path: &Path) -> Result<Dynamic> {
        let path = path.canonicalize().map_err(|error| {
            Error::invalid_argument(format!("--lib {}: {error}", path.display()))
        })?;
        // SAFETY: the caller asked to run this library; its initialisers are the usual ones.
        let library = unsafe {
            libloading::os::unix::Library::open(
                Some(&path),
                libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_LOCAL,
            )
        }
        .map_err(|error| Error::invalid_argument(format!("--lib: {error}")))?
        .into();
        let table = Table::load(&library, &path)?;
        Ok(Dynamic(Arc::new(Inner {
            table,
            path,
            _library: library,
        })))
    }

    fn table(&self) -> &Table {
        &self.0.table
    }

    fn comm(&self, handle: CommHandle) -> Box<dyn Comm> {
        Box::new(DynamicComm {
            library: self.clone(),
            handle,
        })
    }

    fn check(&self, comm: CommHandle, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: returns NULL or a text that lives until this thread's next call.
        let text = unsafe {
            let text = (self.table().last_error)(comm);
            if text.is_null() {
                String::new()
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        Err(match Code::from_raw(code) {
            Some(code) => Error::new(code, text),
            None => Error::internal(format!("unknown result {code}: {text}")),
        })
    }
}

/// Runs one function of the table and turns its result code into a `Result`.
macro_rules! call {
    ($library:expr, $comm:expr, $function:ident($($arg:expr),*)) => {{
        // SAFETY: the arguments are those of the header's declaration; out-pointers are locals,
        // and buffers are the promise of whoever calls the enclosing function.
        let code = unsafe { ($library.table().$function)($($arg),*) };
        $library.check($comm, code)
    }};
}

const NONE: CommHandle = std::ptr::null_mut();

/// The C struct of a setup, and the text that it points to.
fn config(setup: &Setup) -> Result<(Option<CString>, CConfig)> {
    let tiers = setup
        .tiers
        .as_ref()
        .map(|tiers| CString::new(tiers.as_str()))
        .transpose()
        .map_err(|_| Error::invalid_argument("--tiers contains a zero byte"))?;
    let timeout = i64::try_from(setup.timeout.as_millis()).unwrap_or(i64::MAX);
    let config = CConfig {
        size: size_of::<CConfig>(),
        magic: 0xf1a6_05c0,
        version: 100,
        blocking: UNDEF,
        vendor_nonblocking: UNDEF,
        init_timeout_ms: timeout,
        collective_timeout_ms: timeout,
        destroy_timeout_ms: i64::from(UNDEF),
        name: c"perf".as_ptr(),
        description: std::ptr::null(),
        tiers: tiers.as_ref().map_or(std::ptr::null(), |t| t.as_ptr()),
        net_name: std::ptr::null(),
        device: setup.device.unwrap_or(UNDEF),
        vendor: [UNDEF; 14],
        reserved: UNDEF,
    };
    Ok((tiers, config))
}

impl Library for Dynamic {
    fn origin(&self) -> String {
        self.0.path.display().to_string()
    }

    fn version_code(&self) -> i32 {
        let mut version = 0;
        let _ = call!(self, NONE, version(&mut version));
        version
    }

    fn unique_id(&self) -> Result<[u8; 256]> {
        let mut id = CId([0; 256]);
        call!(self, NONE, unique_id(&mut id))?;
        Ok(id.0)
    }

    fn init_rank(&self, ranks: usize, id: &[u8; 256], rank: usize, setup: &Setup) -> Made {
        let (_tiers, config) = config(setup)?;
        let mut handle = NONE;
        let (ranks, rank) = (ranks as c_int, rank as c_int);
        call!(
            self,
            NONE,
            init_rank(&mut handle, ranks, &CId(*id), rank, &config)
        )?;
        Ok(self.comm(handle))
    }

    fn init_all(&self, ranks: usize, devices: Option<&[i32]>, setup: &Setup) -> MadeAll {
        let mut handles = vec![NONE; ranks];
        if setup.tiers.is_none() {
            let devices = devices.map_or(std::ptr::null(), <[i32]>::as_ptr);
            call!(
                self,
                NONE,
                init_all(handles.as_mut_ptr(), ranks as c_int, devices)
            )?;
        } else {
            // flagosCommInitAll takes no options; the same by a group does.
            let id = CId(self.unique_id()?);
            let (_tiers, mut config) = config(setup)?;
            self.group_start()?;
            for (rank, handle) in handles.iter_mut().enumerate() {
                config.device = devices.map_or(UNDEF, |devices| devices[rank]);
                let (all, rank) = (ranks as c_int, rank as c_int);
                call!(self, NONE, init_rank(handle, all, &id, rank, &config))?;
            }
            self.group_end()?;
        }
        Ok(handles
            .into_iter()
            .map(|handle| self.comm(handle))
            .collect())
    }

    fn device_count(&self) -> Result<i32> {
        let mut count = 0;
        call!(self, NONE, device_count(&mut count))?;
        Ok(count)
    }

    fn set_device(&self, device: i32) -> Result<()> {
        call!(self, NONE, set_device(device))
    }

    fn stream_create(&self) -> Result<*mut c_void> {
        let mut stream = std::ptr::null_mut();
        call!(self, NONE, stream_create(&mut stream))?;
        Ok(stream)
    }

    fn stream_destroy(&self, stream: *mut c_void) -> Result<()> {
        call!(self, NONE, stream_destroy(stream))
    }

    fn stream_synchronize(&self, stream: *mut c_void) -> Result<()> {
        call!(self, NONE, stream_synchronize(stream))
    }

    fn mem_alloc(&self, bytes: usize) -> Result<*mut c_void> {
        let mut pointer = std::ptr::null_mut();
        call!(self, NONE, mem_alloc(&mut pointer, bytes))?;
        Ok(pointer)
    }

    fn mem_free(&self, pointer: *mut c_void) -> Result<()> {
        call!(self, NONE, mem_free(pointer))
    }

    unsafe fn copy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<()> {
        call!(self, NONE, memcpy_async(to, from, bytes, 3, stream))
    }

    fn group_start(&self) -> Result<()> {
        call!(self, NONE, group_start())
    }

    fn group_end(&self) -> Result<()> {
        call!(self, NONE, group_end())
    }
}

struct DynamicComm {
    library: Dynamic,
    handle: CommHandle,
}

fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes
        .iter()
        .map(|c| *c as u8)
        .take_while(|c| *c != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Comm for DynamicComm {
    fn info(&self) -> Result<CommInfo> {
        let mut info = CInfo {
            size: size_of::<CInfo>(),
            tier: 0,
            stream_kind: 0,
            completion: 0,
            library_version: 0,
            vendor: [0; 32],
            library_path: [0; 1024],
            host_engine: [0; 32],
            host_engine_text: [0; 1024],
        };
        call!(self.library, self.handle, info(self.handle, &mut info))?;
        Ok(CommInfo {
            tier: info.tier,
            vendor: text(&info.vendor),
            library_path: text(&info.library_path),
            library_version: info.library_version,
            host_engine: text(&info.host_engine),
            host_engine_text: text(&info.host_engine_text),
            stream_kind: info.stream_kind,
            completion: info.completion,
        })
    }

    unsafe fn call(&self, call: &Call<'_>) -> Result<()> {
        let (l, c) = (&self.library, self.handle);
        let Call {
            send,
            recv,
            count,
            redop: op,
            stream,
            ..
        } = *call;
        let (dtype, root) = (call.dtype as c_int, call.root as c_int);
        match call.function {
            Function::Send => call!(l, c, send(send, count, dtype, root, c, stream)),
            Function::Recv => call!(l, c, recv(recv, count, dtype, root, c, stream)),
            Function::Collective(operation) => match operation {
                Operation::AllReduce => {
                    call!(l, c, all_reduce(send, recv, count, dtype, op, c, stream))
                }
                Operation::AllGather => {
                    call!(l, c, all_gather(send, recv, count, dtype, c, stream))
                }
                Operation::ReduceScatter => {
                    call!(
                        l,
                        c,
                        reduce_scatter(send, recv, count, dtype, op, c, stream)
                    )
                }
                Operation::Broadcast => {
                    call!(l, c, broadcast(send, recv, count, dtype, root, c, stream))
                }
                Operation::Reduce => {
                    call!(l, c, reduce(send, recv, count, dtype, op, root, c, stream))
                }
                Operation::Gather => {
                    call!(l, c, gather(send, recv, count, dtype, root, c, stream))
                }
                Operation::Scatter => {
                    call!(l, c, scatter(send, recv, count, dtype, root, c, stream))
                }
                Operation::AllToAll => call!(l, c, all_to_all(send, recv, count, dtype, c, stream)),
                Operation::AllToAllv => {
                    let Some((from, to)) = call.layouts else {
                        return Err(Error::internal("AlltoAllv without layouts"));
                    };
                    let (sc, sd) = (from.counts.as_ptr(), from.displs.as_ptr());
                    let (rc, rd) = (to.counts.as_ptr(), to.displs.as_ptr());
                    call!(
                        l,
                        c,
                        all_to_allv(send, sc, sd, recv, rc, rd, dtype, c, stream)
                    )
                }
                Operation::Barrier => call!(l, c, barrier(c, stream)),
                Operation::SendRecv => Err(Error::internal("sendrecv is two calls")),
            },
        }
    }

    fn pre_mul_sum(&self, scalar: &[u8; 8], dtype: DataType) -> Result<i32> {
        let mut redop = 0;
        let scalar = scalar.as_ptr().cast();
        call!(
            self.library,
            self.handle,
            redop_create(&mut redop, scalar, dtype as c_int, 1, self.handle)
        )?;
        Ok(redop)
    }

    fn redop_destroy(&self, redop: i32) -> Result<()> {
        call!(self.library, self.handle, redop_destroy(redop, self.handle))
    }

    fn destroy(self: Box<Self>) -> Result<()> {
        call!(self.library, NONE, destroy(self.handle))
    }
}
