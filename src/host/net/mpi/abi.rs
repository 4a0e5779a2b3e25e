//! The functions of MPI that are called, and what the three binary interfaces do differently: Open MPI's,
//! whose handles are addresses of its own objects, MPICH's, whose handles are numbers of 32 bits, and the
//! standard one of MPI 5, whose handles are as wide as pointers. The figures are those of the
//! implementations' headers; a test compares them where a header is installed.

use crate::load::open::{Accepted, Lib, Refusal, object_of};
use crate::load::symbols::{Declaration, Resolver};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The name of Open MPI's library.
const OPEN_MPI: &str = "libmpi.so.40";
/// The names of MPICH's, and of those that are compatible with it.
const MPICH: [&str; 2] = ["libmpich.so.12", "libmpi.so.12"];
/// The name of a library with the standard interface, whoever made it.
const STANDARD: &str = "libmpi_abi.so.1";
/// Names, in the order in which they are tried below a launcher of Open MPI's and below others.
pub(crate) const SONAMES: &[&str] = &[OPEN_MPI, STANDARD, MPICH[0], MPICH[1]];
pub(crate) const SONAMES_PMI: &[&str] = &[MPICH[0], MPICH[1], STANDARD, OPEN_MPI];
/// Where wheels put it, from `site-packages`: beside the environment's `python3.11`.
pub(crate) const WHEELS: &[&str] = &["../.."];
/// A function that every MPI has.
pub(crate) const FINGERPRINT: &str = "MPI_Init_thread";

/// Room for the words of any of the libraries.
const WORDS: usize = 8192;

/// A kind of handle.
pub(crate) trait Handle: Copy + Default + Send + Sync + 'static {}

/// An address, or a number as wide as one.
impl Handle for usize {}
impl Handle for c_int {}

/// A communicator and so on, for the check of the declarations: all handles of an interface are alike.
type Comm<H> = H;
type Group<H> = H;
type Datatype<H> = H;
type Errhandler<H> = H;
type Request<H> = H;
/// Nobody looks at a status, whose layout is another in each interface: there is a constant for none.
pub(super) type Status = c_void;

/// What is called when a communicator with an attribute is duplicated.
pub(super) type CopyAttr<H> =
    unsafe extern "C" fn(H, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// What is called when one is freed: that of the process alone at the begin of the program's finalize.
pub(super) type DeleteAttr<H> = unsafe extern "C" fn(H, c_int, *mut c_void, *mut c_void) -> c_int;

macro_rules! functions {
    ($(#[$doc:meta])* $table:ident $(<$handle:ident>)?
     $($field:ident $name:literal ($($arg:ty),* $(,)?);)*) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(super) struct $table $(<$handle>)? {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl $(<$handle: Handle>)? $table $(<$handle>)? {
            fn resolve(resolver: &mut Resolver<'_>) -> Option<Self> {
                $(let $field = resolver.find($name);)*
                Some($table {
                    $($field: {
                        let address = $field?;
                        // SAFETY: the address is that of MPI's function with this name, whose C signature
                        // is the one given, with the handles of the interface that the library was
                        // found to have; a test compares both with the implementations' headers.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> c_int>(
                                NonNull::as_ptr(address),
                            )
                        }
                    },)*
                })
            }

            /// Every function of the table, for the check against the headers.
            #[cfg_attr(not(test), expect(dead_code, reason = "for the check"))]
            pub(super) fn declarations() -> Vec<Declaration> {
                vec![$(Declaration {
                    library: "mpi",
                    name: $name.to_string(),
                    arguments: vec![$(stringify!($arg)),*],
                    result: "c_int",
                }),*]
            }
        }
    };
}

functions! {
    /// The functions without handles.
    Plain
    get_library_version "MPI_Get_library_version" (*mut c_char, *mut c_int);
    initialized "MPI_Initialized" (*mut c_int);
    finalized "MPI_Finalized" (*mut c_int);
    init_thread "MPI_Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    query_thread "MPI_Query_thread" (*mut c_int);
    finalize "MPI_Finalize" ();
    error_string "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
}

functions! {
    /// The functions that take handles.
    Calls<H>
    comm_rank "MPI_Comm_rank" (Comm<H>, *mut c_int);
    comm_size "MPI_Comm_size" (Comm<H>, *mut c_int);
    comm_get_attr "MPI_Comm_get_attr" (Comm<H>, c_int, *mut c_void, *mut c_int);
    comm_set_attr "MPI_Comm_set_attr" (Comm<H>, c_int, *mut c_void);
    comm_create_keyval "MPI_Comm_create_keyval" (CopyAttr<H>, DeleteAttr<H>, *mut c_int, *mut c_void);
    comm_set_errhandler "MPI_Comm_set_errhandler" (Comm<H>, Errhandler<H>);
    comm_group "MPI_Comm_group" (Comm<H>, *mut Group<H>);
    group_incl "MPI_Group_incl" (Group<H>, c_int, *const c_int, *mut Group<H>);
    group_free "MPI_Group_free" (*mut Group<H>);
    comm_create_group "MPI_Comm_create_group" (Comm<H>, Group<H>, c_int, *mut Comm<H>);
    comm_free "MPI_Comm_free" (*mut Comm<H>);
    isend "MPI_Isend" (*const c_void, c_int, Datatype<H>, c_int, c_int, Comm<H>, *mut Request<H>);
    irecv "MPI_Irecv" (*mut c_void, c_int, Datatype<H>, c_int, c_int, Comm<H>, *mut Request<H>);
    test "MPI_Test" (*mut Request<H>, *mut c_int, *mut Status);
    cancel "MPI_Cancel" (*mut Request<H>);
    iprobe "MPI_Iprobe" (c_int, c_int, Comm<H>, *mut c_int, *mut Status);
}

/// What the header of an interface calls by names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constants<H> {
    /// `MPI_COMM_WORLD`, `MPI_COMM_SELF`.
    pub world: H,
    pub itself: H,
    /// `MPI_BYTE`.
    pub byte: H,
    /// `MPI_ERRORS_RETURN`.
    pub errors_return: H,
    /// `MPI_ANY_SOURCE`, `MPI_ANY_TAG`.
    pub any_source: c_int,
    pub any_tag: c_int,
    /// `MPI_TAG_UB`, the name of an attribute.
    pub tag_ub: c_int,
    /// `MPI_STATUS_IGNORE`, an address.
    pub status_ignore: usize,
    /// `MPI_THREAD_MULTIPLE`.
    pub thread_multiple: c_int,
}

impl<H> Constants<H> {
    pub(super) fn no_status(&self) -> *mut Status {
        std::ptr::without_provenance_mut(self.status_ignore)
    }
}

/// Open MPI's, but for its handles.
pub(super) const OF_OPEN_MPI: Constants<usize> = Constants {
    world: 0,
    itself: 0,
    byte: 0,
    errors_return: 0,
    any_source: -1,
    any_tag: -1,
    tag_ub: 0,
    status_ignore: 0,
    thread_multiple: 3,
};

pub(super) const OF_MPICH: Constants<c_int> = Constants {
    world: 0x4400_0000,
    itself: 0x4400_0001,
    byte: 0x4c00_010d,
    errors_return: 0x5400_0001,
    any_source: -2,
    any_tag: -1,
    tag_ub: 0x6440_0001,
    status_ignore: 1,
    thread_multiple: 3,
};

pub(super) const OF_STANDARD: Constants<usize> = Constants {
    world: 0x101,
    itself: 0x102,
    byte: 0x247,
    errors_return: 0x143,
    any_source: -1,
    any_tag: -2,
    tag_ub: 501,
    status_ignore: 0,
    thread_multiple: 4096,
};

/// The objects whose addresses are Open MPI's handles, in the order of [`Constants`].
pub(super) const OPEN_MPI_OBJECTS: [&str; 4] = [
    "ompi_mpi_comm_world",
    "ompi_mpi_comm_self",
    "ompi_mpi_byte",
    "ompi_mpi_errors_return",
];

/// Functions and constants of one kind of handle.
#[derive(Clone, Debug)]
pub(super) struct Table<H> {
    pub calls: Calls<H>,
    pub constants: Constants<H>,
}

/// The table of the library's kind of handle.
#[derive(Clone, Debug)]
pub(super) enum Handles {
    Wide(Table<usize>),
    Narrow(Table<c_int>),
}

/// Whose binary interface a library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OpenMpi,
    Mpich,
    Standard,
}

impl Kind {
    /// What a library says about itself by its symbols. One of MPICH's has the function that tells of the
    /// standard interface with either, and answers -1 where it hasn't the standard one.
    fn of(lib: &Lib) -> Kind {
        let own = |name: &CStr| {
            let address = lib.raw_symbol(name)?;
            (object_of(address)? == lib.path()).then_some(address)
        };
        if own(c"ompi_mpi_comm_world").is_some() {
            return Kind::OpenMpi;
        }
        let Some(address) = own(c"MPI_Abi_get_version") else {
            return Kind::Mpich;
        };
        let (mut major, mut minor) = (-1, -1);
        // SAFETY: MPI's function with this name takes the places of two numbers in every interface, and may
        // be called at any time.
        let answer = unsafe {
            let function = std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
            >(address.as_ptr());
            function(&mut major, &mut minor)
        };
        match answer == 0 && major > 0 {
            true => Kind::Standard,
            false => Kind::Mpich,
        }
    }
}

/// An opened MPI.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    kind: Kind,
    pub(super) plain: Plain,
    pub(super) handles: Handles,
    /// The first line of what it says about itself.
    pub(crate) version: String,
    pub(crate) path: PathBuf,
}

impl Api {
    /// Takes an opened library if it has all that is needed.
    pub(crate) fn accept(lib: &Lib) -> std::result::Result<Accepted<Api>, Refusal> {
        let kind = Kind::of(lib);
        let mut resolver = Resolver::new(lib, &[]);
        let api = Api::resolve(kind, &mut resolver, lib.path());
        let Some(mut api) = api else {
            return Err(Refusal::lacking(&resolver));
        };
        let coverage = Some(resolver.coverage());
        // Its whole text goes on about the compiler.
        let version = words(|text, length| {
            // SAFETY: the function may be called at any time, and writes less than the room that there is.
            unsafe { (api.plain.get_library_version)(text, length) };
        });
        api.version = first_line(&version);
        Ok(Accepted {
            version: Some(api.version.clone()),
            value: api,
            coverage,
        })
    }

    /// An MPI of these functions.
    #[cfg(test)]
    pub(super) fn of_parts(plain: Plain, handles: Handles) -> Api {
        Api {
            kind: Kind::Standard,
            plain,
            handles,
            version: String::from("an MPI of tests"),
            path: PathBuf::from("/tests/libmpi.so"),
        }
    }

    fn resolve(kind: Kind, resolver: &mut Resolver<'_>, path: &Path) -> Option<Api> {
        // All of it, so that all that is missing is said.
        let plain = Plain::resolve(resolver);
        let handles = match kind {
            Kind::OpenMpi => {
                let calls = Calls::resolve(resolver);
                let objects = OPEN_MPI_OBJECTS.map(|name| resolver.find(name));
                let [world, itself, byte, errors_return] =
                    objects.map(|object| object.map_or(0, |o| o.as_ptr().expose_provenance()));
                let constants = Constants {
                    world,
                    itself,
                    byte,
                    errors_return,
                    ..OF_OPEN_MPI
                };
                let found = objects.iter().all(Option::is_some);
                calls
                    .filter(|_| found)
                    .map(|calls| Handles::Wide(Table { calls, constants }))
            }
            Kind::Standard => Calls::resolve(resolver).map(|calls| {
                Handles::Wide(Table {
                    calls,
                    constants: OF_STANDARD,
                })
            }),
            Kind::Mpich => Calls::resolve(resolver).map(|calls| {
                Handles::Narrow(Table {
                    calls,
                    constants: OF_MPICH,
                })
            }),
        };
        Some(Api {
            kind,
            plain: plain?,
            handles: handles?,
            version: String::new(),
            path: path.to_path_buf(),
        })
    }

    /// As `Open MPI v4.1.4 (/usr/lib/…)`.
    pub(crate) fn about(&self) -> String {
        let interface = match self.kind {
            Kind::Standard => ", standard interface",
            Kind::OpenMpi | Kind::Mpich => "",
        };
        format!("{} ({}{interface})", self.version, self.path.display())
    }

    /// Whether somebody has initialised it, and nobody has finalised it.
    pub(crate) fn is_up(&self) -> bool {
        self.asked(self.plain.initialized) && !self.is_over()
    }

    /// Whether it was finalised, after which it can't be used again.
    pub(crate) fn is_over(&self) -> bool {
        self.asked(self.plain.finalized)
    }

    fn asked(&self, question: unsafe extern "C" fn(*mut c_int) -> c_int) -> bool {
        let mut answer = 0;
        // SAFETY: both questions may be asked at any time, and write one number.
        (unsafe { question(&mut answer) }) == 0 && answer != 0
    }

    /// The words for a code that is not 0.
    pub(super) fn words(&self, code: c_int) -> String {
        let text = words(|text, length| {
            // SAFETY: MPI is up, and its words are shorter than the room that there is.
            unsafe { (self.plain.error_string)(code, text, length) };
        });
        match text.trim() {
            "" => format!("error {code}"),
            text => first_line(text),
        }
    }

    /// Whether threads may call it at will.
    pub(super) fn serves_threads(&self) -> bool {
        let wanted = match &self.handles {
            Handles::Wide(table) => table.constants.thread_multiple,
            Handles::Narrow(table) => table.constants.thread_multiple,
        };
        let mut level = 0;
        // SAFETY: MPI is up; the function writes one number.
        (unsafe { (self.plain.query_thread)(&mut level) }) == 0 && level >= wanted
    }
}

/// What a function of MPI's writes as text.
fn words(write: impl FnOnce(*mut c_char, *mut c_int)) -> String {
    let mut text = vec![0u8; WORDS + 1];
    let mut length = 0;
    write(text.as_mut_ptr().cast(), &mut length);
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

/// As `MPICH Version: 4.0.2`, without the spaces and what comes behind a comma.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let line = line.split(", package:").next().unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
