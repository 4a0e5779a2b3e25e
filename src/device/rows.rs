//! The drivers' rows: names and numbers.
#![forbid(unsafe_code)]

use crate::vendor::Root;

/// Numbers of a runtime's enumerations. Those of CUDA and of those who copied it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// The result that means "not yet".
    pub(crate) not_ready: i32,
    /// Results of asking for the current device that mean "there is none".
    pub(crate) unbound: &'static [i32],
    /// Result of asking about a stream while another one captures implicitly.
    pub(crate) capture_implicit: i32,
    /// The flag of a stream that doesn't synchronise with the null stream.
    pub(crate) stream_non_blocking: u32,
    /// The flag of an event without time.
    pub(crate) event_no_timing: u32,
    /// The flag of managed memory that every stream may touch.
    pub(crate) managed_global: u32,
    /// Copy kinds: host to host, host to device, device to host, device to device, find out.
    pub(crate) copy: [i32; 5],
    /// Memory types: unregistered, host, device, managed.
    pub(crate) memory: [i32; 4],
    /// The capture mode in which this thread's calls don't end another thread's capture.
    pub(crate) capture_relaxed: i32,
}

/// A runtime library. Those of CUDA's shape have its function names with another prefix.
#[derive(Debug)]
pub(crate) struct DriverRow {
    /// Its name for people.
    pub(crate) title: &'static str,
    /// What every function's name starts with.
    pub(crate) prefix: &'static str,
    /// Functions whose name is not the prefix and CUDA's suffix: suffix, full name.
    pub(crate) renames: &'static [(&'static str, &'static str)],
    /// File names, newest first.
    pub(crate) sonames: &'static [&'static str],
    /// Folders below `site-packages` in which wheels put it.
    pub(crate) wheels: &'static [&'static str],
    /// Further folders.
    pub(crate) roots: &'static [Root],
    /// Its numbers.
    pub(crate) numbers: Numbers,
    /// Whether a failed call leaves an error behind that a later, unrelated check would find.
    pub(crate) leaves_last_error: bool,
    /// The driver below the runtime, if programs may use it without the runtime.
    pub(crate) low: Option<&'static LowRow>,
}

/// The driver below a runtime: one per process, also where programs have their own runtime.
#[derive(Debug)]
pub(crate) struct LowRow {
    /// Its name for people.
    pub(crate) title: &'static str,
    /// What every function's name starts with.
    pub(crate) prefix: &'static str,
    /// The function that has the role of the runtime's function with this suffix.
    pub(crate) renames: &'static [(&'static str, &'static str)],
    /// File names.
    pub(crate) sonames: &'static [&'static str],
    /// Its numbers.
    pub(crate) numbers: Numbers,
}

const CUDA_NUMBERS: Numbers = Numbers {
    not_ready: 600,
    unbound: &[],
    capture_implicit: 906,
    stream_non_blocking: 1,
    event_no_timing: 2,
    managed_global: 1,
    copy: [0, 1, 2, 3, 4],
    memory: [0, 1, 2, 3],
    capture_relaxed: 2,
};

/// CUDA's runtime.
pub(crate) static CUDA: DriverRow = DriverRow {
    title: "CUDA runtime",
    prefix: "cuda",
    renames: &[],
    sonames: &[
        "libcudart.so.13",
        "libcudart.so.12",
        "libcudart.so.11.0",
        "libcudart.so",
    ],
    wheels: &["nvidia/cu13/lib", "nvidia/cuda_runtime/lib"],
    roots: &[
        Root::Env("CUDA_HOME", "lib64"),
        Root::Env("CUDA_PATH", "lib64"),
        Root::Env("CONDA_PREFIX", "lib"),
        Root::Folder("/usr/local/cuda/lib64"),
        #[cfg(target_arch = "x86_64")]
        Root::Folder("/usr/lib/x86_64-linux-gnu"),
        #[cfg(target_arch = "aarch64")]
        Root::Folder("/usr/lib/aarch64-linux-gnu"),
        Root::Folder("/usr/lib64"),
    ],
    numbers: CUDA_NUMBERS,
    leaves_last_error: true,
    low: Some(&CUDA_LOW),
};

/// CUDA's driver. 201 is "no context", 3 is "not initialised", 4 is "being unloaded": in all of
/// them this thread has no current device.
static CUDA_LOW: LowRow = LowRow {
    title: "CUDA driver",
    prefix: "cu",
    renames: &[
        ("GetDevice", "cuCtxGetDevice"),
        ("GetDeviceCount", "cuDeviceGetCount"),
        ("StreamCreateWithFlags", "cuStreamCreate"),
        ("StreamDestroy", "cuStreamDestroy_v2"),
        ("EventCreateWithFlags", "cuEventCreate"),
        ("EventDestroy", "cuEventDestroy_v2"),
        ("Malloc", "cuMemAlloc_v2"),
        ("Free", "cuMemFree_v2"),
        ("HostAlloc", "cuMemHostAlloc"),
        ("FreeHost", "cuMemFreeHost"),
        ("MallocManaged", "cuMemAllocManaged"),
        ("HostRegister", "cuMemHostRegister_v2"),
        ("HostUnregister", "cuMemHostUnregister"),
        ("MemsetAsync", "cuMemsetD8Async"),
    ],
    sonames: &["libcuda.so.1"],
    numbers: Numbers {
        unbound: &[3, 4, 201],
        ..CUDA_NUMBERS
    },
};
