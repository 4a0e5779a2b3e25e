//! Opens libraries, says what the loader says, and never closes them.

use std::ffi::{CStr, CString, OsStr, OsString, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::discover::{Candidate, Spec, Target};
use super::elf::{self, Fault};
use super::rebind;
use super::report::{Attempt, Coverage, Outcome, Section, Source};
use super::symbols::Resolver;
use crate::config::OpenMode;

/// The symbol by which a library of ours is recognised.
pub(crate) const MARKER: &CStr = c"flagos_comm_instance";

/// A function that only FlagCX has.
const FLAGCX: &CStr = c"flagcxCommInitRank";

/// An open library. It is never closed, so its addresses are good until the process ends.
#[derive(Clone, Debug)]
pub(crate) struct Lib {
    handle: NonNull<c_void>,
    path: PathBuf,
    /// Whether the process had it before we opened it.
    preloaded: bool,
}

// SAFETY: the handle is only given to dlsym and dlinfo, which may be called from any thread, and
// is never closed.
unsafe impl Send for Lib {}
// SAFETY: as above; nothing of the struct changes after it was made.
unsafe impl Sync for Lib {}

/// What the loader's own list says about an object.
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const std::ffi::c_char,
    dynamic: *const c_void,
    next: *const LinkMap,
    previous: *const LinkMap,
}

impl Lib {
    /// The file, as the loader knows it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the process had it before we opened it.
    pub(crate) fn preloaded(&self) -> bool {
        self.preloaded
    }

    /// The address of a symbol in this library or in the libraries that it needs, and nothing about
    /// which of them.
    pub(crate) fn raw_symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open and is never closed; `name` ends in a NUL.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }

    /// Whether this library is one of ours: it defines the marker itself.
    pub(crate) fn is_ours(&self) -> bool {
        self.raw_symbol(MARKER)
            .and_then(object_of)
            .is_some_and(|object| object == self.path)
    }

    /// Why this library is not the vendor's although it has the vendor's names, if that is so.
    fn other_than_vendors(&self) -> Option<String> {
        if self.is_ours() {
            return Some(String::from(
                "this is flagos-comm's own drop-in library, not the vendor's (it has the symbol \
                 flagos_comm_instance)",
            ));
        }
        // What FlagCX itself has is found in FlagCX itself.
        let flagcx = self.raw_symbol(FLAGCX).and_then(object_of)?;
        (flagcx != self.path).then(|| {
            format!(
                "this has the vendor's names over FlagCX ({}), which may have called us: calls would lead \
                 back to it",
                flagcx.display()
            )
        })
    }

    /// Where the object begins in memory, and its dynamic section there.
    pub(super) fn memory(&self) -> Option<(usize, *const [usize; 2])> {
        let map = link_map(self.handle)?;
        // SAFETY: the loader's entry of an object lives as long as the object, which is never closed,
        // and its first fields have the documented layout of `LinkMap`.
        unsafe { Some(((*map).address, (*map).dynamic.cast())) }
    }

    fn of_handle(handle: NonNull<c_void>, preloaded: bool) -> Lib {
        let path = path_of_handle(handle).unwrap_or_default();
        Lib {
            handle,
            path,
            preloaded,
        }
    }
}

fn link_map(handle: NonNull<c_void>) -> Option<*const LinkMap> {
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: the handle is open; for RTLD_DI_LINKMAP dlinfo writes one pointer to the place that
    // the third argument names, which is a live local of that type.
    let rc = unsafe {
        libc::dlinfo(
            handle.as_ptr(),
            libc::RTLD_DI_LINKMAP,
            (&raw mut map).cast::<c_void>(),
        )
    };
    (rc == 0 && !map.is_null()).then_some(map)
}

fn path_of_handle(handle: NonNull<c_void>) -> Option<PathBuf> {
    let map = link_map(handle)?;
    // SAFETY: the loader's entry of an object lives as long as the object, which is never closed,
    // and its first fields have the documented layout of `LinkMap`.
    let name = unsafe { (*map).name };
    if name.is_null() {
        return None;
    }
    // SAFETY: the loader keeps the name as a NUL-terminated string for the object's life.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(OsString::from_vec(name.to_bytes().to_vec())))
}

/// The file of the object in which an address lies.
pub(crate) fn object_of(address: NonNull<c_void>) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: dladdr only compares the address with the loader's list and fills the struct, which
    // is a live local.
    if unsafe { libc::dladdr(address.as_ptr(), &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: on success the name is the loader's own NUL-terminated string of a loaded object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsString::from_vec(name.to_bytes().to_vec())))
}

fn dlopen(name: &OsStr, flags: c_int) -> std::result::Result<NonNull<c_void>, String> {
    // SAFETY: opening a library runs its initialisers; this is what the caller asks for, for
    // vendors' libraries that are made to be opened like this. It is never closed.
    let opened = unsafe { libloading::os::unix::Library::open(Some(name), flags) };
    match opened {
        Ok(library) => NonNull::new(library.into_raw())
            .ok_or_else(|| "the loader gave a null handle".to_string()),
        Err(error) => {
            let words = match std::error::Error::source(&error) {
                Some(source) => source.to_string(),
                None => error.to_string(),
            };
            Err(explain(words))
        }
    }
}

/// Whether the loader's words say that it found no file of this name. What another file lacks, it
/// says with that file's name.
fn is_not_found(name: &str, words: &str) -> bool {
    words
        .strip_prefix(name)
        .is_some_and(|rest| rest.starts_with(": cannot open shared object file: No such file"))
}

/// Adds a remedy where the loader's words are known to puzzle people.
fn explain(words: String) -> String {
    if words.contains("static TLS block") {
        format!("{words} (remedy: load the library earlier, for example with LD_PRELOAD)")
    } else {
        words
    }
}

/// Sets a variable that a library reads while it is loaded.
pub(crate) fn set_environment(name: &str, value: &str) {
    // SAFETY: a thread that reads the environment behind Rust's and the C library's locks, while another
    // writes it, may read what is being moved. The variables are new, few and set once in a process, right
    // before a library is opened, which may do the same. The loader's own readers take the C library's lock.
    unsafe { std::env::set_var(name, value) };
}

/// A copy that the process already has under this name; opens nothing new.
pub(crate) fn loaded(name: &OsStr) -> Option<Lib> {
    let handle = dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD).ok()?;
    Some(Lib::of_handle(handle, true))
}

/// The owner of a symbol in the process' global scope: the program, what it was linked with, what
/// was preloaded, and what was opened with RTLD_GLOBAL.
pub(crate) fn global_owner(name: &CStr) -> Option<PathBuf> {
    let program = libloading::os::unix::Library::this().into_raw();
    // SAFETY: the program's own handle is always valid; `name` ends in a NUL.
    let address = NonNull::new(unsafe { libc::dlsym(program, name.as_ptr()) })?;
    object_of(address)
}

/// Whether a mapped file has a vendor's names without being the vendor's.
pub(super) fn is_another_file(path: &Path) -> bool {
    loaded(path.as_os_str()).is_some_and(|lib| lib.other_than_vendors().is_some())
}

fn sanitizer() -> Option<&'static str> {
    [
        (c"__asan_init", "ASan"),
        (c"__tsan_init", "TSan"),
        (c"__msan_init", "MSan"),
    ]
    .into_iter()
    .find_map(|(symbol, name)| global_owner(symbol).map(|_| name))
}

/// Refuses a name for which the loader would map a file whose end is missing, which kills the process.
/// Looks where the loader looks first; what else is wrong with a file, the loader says itself.
fn not_cut_off(name: &str) -> std::result::Result<(), Fault> {
    let folders = crate::config::foreign("LD_LIBRARY_PATH").unwrap_or_default();
    let listed = std::env::split_paths(&folders)
        .filter(|folder| !folder.as_os_str().is_empty())
        .map(|folder| folder.join(name));
    let cache = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
    for path in listed.chain(elf::cached(&cache, name)) {
        match elf::check(&path) {
            Err(Fault::CutOff(words)) => {
                return Err(Fault::CutOff(format!("{} {words}", path.display())));
            }
            // The loader takes this one.
            Ok(()) => break,
            Err(_) => {}
        }
    }
    Ok(())
}

/// Files that are mapped into the process and look like shared libraries.
pub(crate) fn mapped_files() -> Vec<PathBuf> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.split(|b| *b == b'\n') {
        let Some(at) = line.iter().position(|b| *b == b'/') else {
            continue;
        };
        let path = &line[at..];
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        if path.windows(3).any(|window| window == b".so") {
            let path = PathBuf::from(OsStr::from_bytes(path));
            if !files.contains(&path) {
                files.push(path);
            }
        }
    }
    files
}

/// Why an opened library is not accepted, and what was learnt about it.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The reason in words.
    pub(crate) reason: String,
    /// The version that it reports.
    pub(crate) version: Option<String>,
    /// The functions that it has.
    pub(crate) coverage: Option<Coverage>,
}

impl Refusal {
    /// A refusal of a library that lacks what was looked for.
    pub(crate) fn lacking(resolver: &Resolver<'_>) -> Refusal {
        let mut reason = format!("it lacks {}", resolver.missing().join(", "));
        for stray in resolver.strays() {
            reason += &format!("; {stray}");
        }
        Refusal {
            reason,
            version: None,
            coverage: Some(resolver.coverage()),
        }
    }

    /// A refusal with nothing but a reason.
    pub(crate) fn new(reason: impl Into<String>) -> Refusal {
        Refusal {
            reason: reason.into(),
            version: None,
            coverage: None,
        }
    }
}

/// An accepted library.
#[derive(Debug)]
pub(crate) struct Accepted<T> {
    /// What was made of it.
    pub(crate) value: T,
    /// The version that it reports.
    pub(crate) version: Option<String>,
    /// The functions that it has.
    pub(crate) coverage: Option<Coverage>,
}

/// How a search opens and what it knows.
pub(crate) struct Search<'a> {
    /// What is looked for.
    pub(crate) spec: &'a Spec,
    /// A symbol that only this kind of library has, to see who else offers it.
    pub(crate) fingerprint: &'a str,
    /// FLAGOSCOMM_DLOPEN.
    pub(crate) mode: OpenMode,
    /// Candidates that are tried only if a library that is not the vendor's has taken the name.
    pub(crate) by_path: &'a dyn Fn() -> Vec<Candidate>,
    /// Mapped files that are copies by their name.
    pub(crate) copies: &'a [PathBuf],
}

impl Search<'_> {
    /// Tries candidates in order until `accept` takes one. Every attempt goes into the report.
    pub(crate) fn run<T>(
        &self,
        candidates: Vec<Candidate>,
        section: &mut Section,
        accept: &mut dyn FnMut(&Lib) -> std::result::Result<Accepted<T>, Refusal>,
    ) -> Option<(Lib, T)> {
        let mut refused: Vec<(PathBuf, String)> = Vec::new();
        // Whether the name leads to a library that only has the vendor's names.
        let mut taken = false;
        let found = self.pass(candidates, section, accept, &mut refused, &mut taken);
        if found.is_some() || !taken || section.attempts[0].source == Source::Override {
            return found;
        }
        self.pass((self.by_path)(), section, accept, &mut refused, &mut taken)
    }

    fn pass<T>(
        &self,
        candidates: Vec<Candidate>,
        section: &mut Section,
        accept: &mut dyn FnMut(&Lib) -> std::result::Result<Accepted<T>, Refusal>,
        refused: &mut Vec<(PathBuf, String)>,
        taken: &mut bool,
    ) -> Option<(Lib, T)> {
        for candidate in candidates {
            let mut attempt = Attempt {
                source: candidate.source,
                name: match &candidate.target {
                    Target::Name(name) => name.clone(),
                    Target::File(path) => path.display().to_string(),
                },
                why: candidate.why.clone(),
                outcome: Outcome::Refused,
                detail: None,
                path: None,
                version: None,
                coverage: None,
            };
            let already = section
                .attempts
                .iter()
                .any(|a| a.name == attempt.name && a.source == attempt.source);
            if already {
                continue;
            }
            let lib = match self.open(&candidate) {
                Ok(lib) => lib,
                Err(Fault::Absent(words)) => {
                    attempt.outcome = Outcome::Absent;
                    attempt.detail = Some(words);
                    section.attempts.push(attempt);
                    continue;
                }
                Err(Fault::Unusable(words) | Fault::CutOff(words)) => {
                    attempt.detail = Some(words);
                    section.attempts.push(attempt);
                    continue;
                }
            };
            attempt.path = Some(lib.path.display().to_string());
            if let Some((_, reason)) = refused.iter().find(|(path, _)| *path == lib.path) {
                attempt.detail = Some(format!("the same file was refused: {reason}"));
                section.attempts.push(attempt);
                continue;
            }
            let verdict = match lib.other_than_vendors() {
                Some(why) => {
                    *taken = true;
                    Err(Refusal::new(why))
                }
                None => accept(&lib),
            };
            match verdict {
                Ok(accepted) => {
                    attempt.outcome = if lib.preloaded {
                        Outcome::AlreadyLoaded
                    } else {
                        Outcome::Loaded
                    };
                    attempt.version = accepted.version;
                    attempt.coverage = accepted.coverage;
                    section.attempts.push(attempt);
                    self.other_copies(&lib, section);
                    self.lead_back(&lib, section);
                    return Some((lib, accepted.value));
                }
                Err(refusal) => {
                    refused.push((lib.path.clone(), refusal.reason.clone()));
                    attempt.detail = Some(refusal.reason);
                    attempt.version = refusal.version;
                    attempt.coverage = refusal.coverage;
                    section.attempts.push(attempt);
                }
            }
        }
        None
    }

    fn open(&self, candidate: &Candidate) -> std::result::Result<Lib, Fault> {
        let name: &OsStr = match &candidate.target {
            Target::Name(name) => OsStr::new(name),
            Target::File(path) => {
                elf::check(path)?;
                path.as_os_str()
            }
        };
        if candidate.source == Source::AlreadyLoaded {
            return loaded(name)
                .ok_or_else(|| Fault::Absent("not loaded by the process".to_string()));
        }
        let preloaded = loaded(name).is_some();
        if !preloaded && let Target::Name(name) = &candidate.target {
            not_cut_off(name)?;
        }
        if !preloaded && let Target::File(path) = &candidate.target {
            self.open_companions(path);
        }
        let mut flags = libc::RTLD_NOW
            | match self.mode {
                OpenMode::Local => libc::RTLD_LOCAL,
                OpenMode::DeepBind => libc::RTLD_LOCAL | libc::RTLD_DEEPBIND,
                OpenMode::Global => libc::RTLD_GLOBAL,
            };
        if !preloaded && matches!(candidate.target, Target::File(_)) {
            let fingerprint = CString::new(self.fingerprint).unwrap_or_default();
            let interposed =
                global_owner(&fingerprint).is_some_and(|owner| is_another_file(&owner));
            if interposed {
                flags |= libc::RTLD_DEEPBIND;
            }
        }
        if !preloaded
            && flags & libc::RTLD_DEEPBIND != 0
            && let Some(sanitizer) = sanitizer()
        {
            return Err(Fault::Unusable(format!(
                "it would have to be opened with RTLD_DEEPBIND, which {sanitizer} ends the process \
                 for; run without the sanitizer or without the drop-in in the global scope"
            )));
        }
        let handle = dlopen(name, flags).map_err(|words| match &candidate.target {
            Target::Name(name) if is_not_found(name, &words) => Fault::Absent(words),
            _ => Fault::Unusable(words),
        })?;
        Ok(Lib::of_handle(handle, preloaded))
    }

    /// A library that stands behind one of ours must not call ours instead of itself.
    fn lead_back(&self, lib: &Lib, section: &mut Section) {
        let fingerprint = CString::new(self.fingerprint).unwrap_or_default();
        if !global_owner(&fingerprint).is_some_and(|owner| is_another_file(&owner)) {
            return;
        }
        let prefix = self
            .fingerprint
            .chars()
            .take_while(char::is_ascii_lowercase);
        let note = match rebind::to_itself(lib, &prefix.collect::<String>()) {
            Ok(0) => return,
            Ok(bound) => format!(
                "{} was in the process before, and {bound} of its functions were taken for those of \
                 flagos-comm's drop-in, which stands in front of it; they lead to itself again",
                lib.path.display()
            ),
            Err(why) => {
                let note = format!(
                    "{} calls flagos-comm's drop-in, which stands in front of it, instead of itself: {why}",
                    lib.path.display()
                );
                log::warn!("{}: {note}", section.title);
                note
            }
        };
        log::info!("{}: {note}", section.title);
        section.notes.push(note);
    }

    /// Opens what lies beside a library and is needed by it, in order, where the process has none: a
    /// wheel's libraries may not say themselves where the others are. What fails is told by the library.
    fn open_companions(&self, library: &Path) {
        let Some(folder) = library.parent().filter(|f| !f.as_os_str().is_empty()) else {
            return;
        };
        for companion in self.spec.companions {
            let path = folder.join(companion);
            if loaded(OsStr::new(companion)).is_none() && elf::check(&path).is_ok() {
                let _ = dlopen(path.as_os_str(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            }
        }
    }

    /// Notes other copies of the library, because calls split between two copies are hard to see.
    fn other_copies(&self, lib: &Lib, section: &mut Section) {
        let own = canonical(&lib.path);
        let mut others: Vec<PathBuf> = Vec::new();
        let by_name = self
            .spec
            .sonames
            .iter()
            .filter_map(|s| loaded(OsStr::new(s)));
        let fingerprint = CString::new(self.fingerprint).unwrap_or_default();
        let candidates = by_name
            .map(|other| other.path)
            .chain(self.copies.iter().cloned())
            .chain(global_owner(&fingerprint));
        for path in candidates {
            let path = canonical(&path);
            if path != own && !others.contains(&path) && !is_another_file(&path) {
                others.push(path);
            }
        }
        for other in others {
            let note = format!(
                "the process has another copy, {}; flagos-comm uses {}",
                other.display(),
                own.display()
            );
            log::warn!("{}: {note}", section.title);
            section.notes.push(note);
        }
    }
}

fn canonical(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}
