//! A loaded collective library: its row's numbers, its functions, and safe calls for what needs no
//! communicator.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use super::comm::{Slot, VendorComm};
use super::options::{CommOptions, ConfigBuffer};
use super::symbols::{
    Calls, CommPtr, Id128, NEEDED, RawResult, SimInfo, StreamPtr, Symbols, function_name,
    function_names,
};
use super::{Ccl, Meaning, Number, Shape, Version, VersionOf};
use crate::config;
use crate::device::UserPtr;
use crate::load::numbers::Numbers;
use crate::load::open::{Accepted, Lib, Refusal, object_of};
use crate::load::report::Coverage;
use crate::load::symbols::Resolver;
use crate::types::OpKind;
use crate::{Code, DataType, Error, RedOp, Result};

/// Whether a call is finished. Only communicators that were asked to be non-blocking give
/// `Pending`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Progress {
    /// Finished.
    Done,
    /// The library goes on with it; ask [`VendorComm::async_error`].
    Pending,
}

/// How the ranks of a communicator find each other.
#[derive(Clone, Copy)]
pub(crate) enum Bootstrap {
    /// By an id of 128 bytes, which is passed by value: `GetUniqueId` and `CommInitRank`.
    ByValue(
        unsafe extern "C" fn(*mut Id128) -> RawResult,
        unsafe extern "C" fn(*mut CommPtr, c_int, Id128, c_int) -> RawResult,
    ),
    /// By an id of the row's size, which is passed by pointer.
    ByPointer(
        unsafe extern "C" fn(*mut u8) -> RawResult,
        unsafe extern "C" fn(*mut CommPtr, c_int, *const u8, c_int) -> RawResult,
    ),
    /// As by pointer, but all ranks of a process are made by one call: the last argument says how
    /// many there are.
    Together(
        unsafe extern "C" fn(*mut u8) -> RawResult,
        unsafe fn(*mut CommPtr, c_int, *const u8, c_int, usize) -> RawResult,
    ),
}

/// A message to or from a peer, in the vendor's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    /// The other rank; never the own one.
    pub(crate) peer: c_int,
    /// Whether it is sent.
    pub(crate) out: bool,
    /// Its buffer; a sent one is only read.
    pub(crate) buffer: *mut c_void,
    /// Number of elements, never 0.
    pub(crate) count: usize,
    /// The vendor's number of the data type.
    pub(crate) dtype: c_int,
    /// Size of the buffer.
    pub(crate) bytes: usize,
}

/// Makes messages of one communicator on one stream together: none waits for another.
pub(crate) type Messages = unsafe fn(CommPtr, &[Message], StreamPtr) -> Result<RawResult>;

/// Words for the user that go with an error of this number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    /// The vendor's number.
    pub(crate) result: RawResult,
    /// What to think of.
    pub(crate) words: &'static str,
    /// A variable of the vendor's whose value matters: one of `config::FOREIGN`. Beside it our own
    /// limit for inits is said.
    pub(crate) variable: Option<&'static str>,
}

impl Hint {
    fn text(&self) -> String {
        let Some(variable) = self.variable else {
            return self.words.to_string();
        };
        let value = config::foreign(variable).map_or_else(
            || "not set".to_string(),
            |value| value.to_string_lossy().into_owned(),
        );
        let own = config::get().timeouts.init.map_or_else(
            || "none".to_string(),
            |limit| format!("{} s", limit.as_secs_f64()),
        );
        format!(
            "{}: {variable} is {value}, FLAGOSCOMM_INIT_TIMEOUT is {own}",
            self.words
        )
    }
}

/// A library of another shape, behind adapters.
pub(crate) struct Adapted {
    pub(crate) calls: Calls,
    pub(crate) symbols: Symbols,
    pub(crate) bootstrap: Bootstrap,
    /// If the library's groups are not for messages.
    pub(crate) messages: Option<Messages>,
}

/// A loaded collective library. It lives as long as the process.
pub(crate) struct Library {
    /// Its row.
    pub(crate) row: &'static Ccl,
    /// What every library has.
    pub(crate) calls: Calls,
    /// What it may lack.
    pub(crate) symbols: Symbols,
    /// How messages are made together if not by the library's groups.
    pub(crate) messages: Option<Messages>,
    /// The version that it reports; `None` where the number means nothing or it has none.
    pub(crate) version: Option<Version>,
    /// The number that it reports as its version, 0 for none.
    pub(crate) version_code: i32,
    /// The vendor's numbers of our data types; [`Library::UNSUPPORTED`] where there is none.
    pub(crate) dtypes: [c_int; 12],
    /// The vendor's numbers of our operators; [`Library::UNSUPPORTED`] where there is none.
    pub(crate) redops: [c_int; 5],
    /// Size of its unique id.
    pub(crate) id_bytes: usize,
    bootstrap: Bootstrap,
    lib: Lib,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library")
            .field("row", &self.row.key)
            .field("version", &self.version)
            .field("lib", &self.lib)
            .finish()
    }
}

/// How large an id may be: what travels with a vote, with room for the largest that is known.
const MAX_ID_BYTES: i64 = 64 << 10;

/// Why the numbers that the user gave can't all be right: an id of no size that is possible, or one
/// number for two data types or for two operators.
fn given_wrongly(row: &Ccl, given: &Numbers) -> Option<String> {
    if let Some(bytes) = given.get("id_bytes")
        && !(1..=MAX_ID_BYTES).contains(&bytes)
    {
        return Some(format!(
            "{}: id_bytes={bytes} is no size of an id: 1 to {MAX_ID_BYTES} bytes",
            given.variable()
        ));
    }
    let dtypes = DataType::ALL.map(|d| (d.name(), row.dtypes[d as usize]));
    let redops = RedOp::ALL.map(|o| (o.name(), row.redops[o as usize]));
    [&dtypes[..], &redops[..]].into_iter().find_map(|names| {
        let mut taken: Vec<(&str, i64)> = Vec::new();
        for (name, number) in names {
            let value = match number {
                Number::Is(value, _) => i64::from(*value),
                Number::Unknown => match given.get(name) {
                    Some(value) => value,
                    None => continue,
                },
                Number::Absent => continue,
            };
            if !(0..=i64::from(c_int::MAX)).contains(&value) {
                return Some(format!(
                    "{}: {name}={value} is no number of an enumeration",
                    given.variable()
                ));
            }
            let twin = taken.iter().find(|(_, other)| *other == value);
            if let Some((twin, _)) = twin
                && (given.get(name).is_some() || given.get(twin).is_some())
            {
                return Some(format!(
                    "{}: {twin} and {name} have the same number, {value}",
                    given.variable()
                ));
            }
            taken.push((name, value));
        }
        None
    })
}

/// The names under which a row's unknown numbers can be given.
pub(crate) fn askable(row: &Ccl) -> Vec<&'static str> {
    let dtypes = DataType::ALL.into_iter();
    let dtypes = dtypes.filter(|d| row.dtypes[*d as usize] == Number::Unknown);
    let redops = RedOp::ALL.into_iter();
    let redops = redops.filter(|o| row.redops[*o as usize] == Number::Unknown);
    let id = (row.id_bytes == 0).then_some("id_bytes");
    dtypes
        .map(DataType::name)
        .chain(redops.map(RedOp::name))
        .chain(id)
        .collect()
}

fn numbers<const N: usize>(
    table: &[Number; N],
    names: [&'static str; N],
    version: Version,
    given: &Numbers,
) -> [c_int; N] {
    let mut numbers = [Library::UNSUPPORTED; N];
    for ((number, entry), name) in numbers.iter_mut().zip(table).zip(names) {
        *number = match entry {
            Number::Is(value, since) if *since <= version => *value,
            Number::Is(..) | Number::Absent => Library::UNSUPPORTED,
            Number::Unknown => given
                .get(name)
                .and_then(|value| c_int::try_from(value).ok())
                .unwrap_or(Library::UNSUPPORTED),
        };
    }
    numbers
}

/// Bytes behind an id that its library must leave alone, and what they are.
const SPARE_BYTES: usize = 8192;
const SPARE: u8 = 0x5a;

impl Library {
    /// The number in [`Library::dtypes`] and [`Library::redops`] of what the library doesn't have.
    pub(crate) const UNSUPPORTED: c_int = -1;

    /// Takes an open library for a row's, or says why not: whose it is, then its version, then
    /// its functions.
    pub(crate) fn accept(
        row: &'static Ccl,
        given: &Numbers,
        lib: &Lib,
    ) -> std::result::Result<Accepted<Library>, Refusal> {
        identify(row, lib)?;
        if let Some(reason) = given_wrongly(row, given) {
            return Err(Refusal {
                reason,
                version: None,
                coverage: None,
            });
        }
        let mut probe = Resolver::new(lib, row.companions);
        let (code, version) = find_version(row, &mut probe);
        let version_text = match (code, version) {
            (_, Some(version)) => Some(version.to_string()),
            (Some(code), None) => Some(format!("unknown ({code})")),
            (None, None) => None,
        };
        if let Some(version) = version
            && (version < row.min_version || version >= row.end_version)
        {
            return Err(Refusal {
                reason: format!(
                    "{} version is {version}, but >= {} and < {} is required",
                    row.title, row.min_version, row.end_version
                ),
                version: version_text,
                coverage: None,
            });
        }
        let mut resolver = Resolver::new(lib, row.companions);
        let adapted = match row.shape {
            Shape::Nccl => in_shape(row, &mut resolver),
            Shape::Adapted(adapt, _) => adapt(row, &mut resolver),
        };
        let coverage: Coverage = resolver.coverage();
        let adapted = match adapted {
            Ok(adapted) => adapted,
            Err(missing) => {
                let mut reason = format!("it lacks {}", missing.join(", "));
                for stray in resolver.strays() {
                    reason.push_str("; ");
                    reason.push_str(stray);
                }
                return Err(Refusal {
                    reason,
                    version: version_text,
                    coverage: Some(coverage),
                });
            }
        };
        for stray in resolver.strays() {
            log::warn!("{}: {stray}; it is not used", row.title);
        }
        if version.is_none() && matches!(row.version, VersionOf::Code(_)) {
            log::warn!(
                "{}: {} reports {}; it is taken for {}",
                row.title,
                lib.path().display(),
                version_text.as_deref().unwrap_or("no version"),
                row.min_version
            );
        }
        // A library that doesn't say its version is taken for the oldest that works.
        let taken_for = version.unwrap_or(row.min_version);
        let id_bytes = match row.id_bytes {
            0 => given
                .get("id_bytes")
                .map_or(0, |n| usize::try_from(n).unwrap_or(0)),
            bytes => bytes,
        };
        let library = Library {
            row,
            calls: adapted.calls,
            symbols: adapted.symbols,
            messages: adapted.messages,
            version,
            version_code: code.unwrap_or(0),
            dtypes: numbers(
                &row.dtypes,
                DataType::ALL.map(DataType::name),
                taken_for,
                given,
            ),
            redops: numbers(&row.redops, RedOp::ALL.map(RedOp::name), taken_for, given),
            id_bytes,
            bootstrap: adapted.bootstrap,
            lib: lib.clone(),
        };
        Ok(Accepted {
            value: library,
            version: version_text,
            coverage: Some(coverage),
        })
    }

    /// Why the library can't be used although it is the right one: numbers that nobody has given, or
    /// what would make it end the process.
    pub(crate) fn gate(&self) -> Option<Error> {
        if let Some(reason) = self.row.refusal.and_then(|refusal| refusal()) {
            return Some(Error::not_supported(reason));
        }
        let none = |numbers: &[c_int]| numbers.iter().all(|n| *n == Library::UNSUPPORTED);
        if !none(&self.dtypes) && !none(&self.redops) && self.id_bytes > 0 {
            return None;
        }
        Some(Error::not_supported(format!(
            "{} ({}) is there, but its numbers of data types and operators are not in any published \
             document, and flagos-comm doesn't guess them: take them from the vendor's header and \
             give them as {}=\"{}\"",
            self.row.title,
            self.path().display(),
            config::numbers_name(self.row.key),
            askable(self.row)
                .iter()
                .map(|name| format!("{name}=N"))
                .collect::<Vec<_>>()
                .join(",")
        )))
    }

    /// The numbers that the user has to give, as they are used: equal on all ranks, or the ranks
    /// would mean different things by one call.
    pub(crate) fn numbers_text(&self) -> String {
        let number = |name: &str| {
            let dtype = DataType::ALL.into_iter().find(|d| d.name() == name);
            let redop = RedOp::ALL.into_iter().find(|o| o.name() == name);
            match (dtype, redop) {
                (Some(dtype), _) => i64::from(self.dtypes[dtype as usize]),
                (_, Some(redop)) => i64::from(self.redops[redop as usize]),
                _ => i64::try_from(self.id_bytes).unwrap_or(i64::MAX),
            }
        };
        let given = askable(self.row).into_iter().filter_map(|name| {
            let number = number(name);
            (number >= 0).then(|| format!("{name}={number}"))
        });
        given.collect::<Vec<_>>().join(",")
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        self.lib.path()
    }

    /// A symbol that lies in this very library.
    pub(crate) fn own_symbol(&self, name: &CStr) -> Option<ptr::NonNull<c_void>> {
        let found = self.lib.raw_symbol(name)?;
        object_of(found)
            .is_some_and(|object| object == self.path())
            .then_some(found)
    }

    /// The version in words.
    pub(crate) fn version_text(&self) -> String {
        self.version
            .map_or_else(|| "unknown".to_string(), |v| v.to_string())
    }

    /// The vendor's number of a data type, or why there is none.
    pub(crate) fn dtype(&self, dtype: DataType) -> Result<c_int> {
        match self.dtypes[dtype as usize] {
            Library::UNSUPPORTED => {
                Err(self.unsupported(dtype.name(), self.row.dtypes[dtype as usize]))
            }
            number => Ok(number),
        }
    }

    /// The vendor's number of an operator, or why there is none. The average over one rank is its
    /// sum.
    pub(crate) fn redop(&self, op: RedOp, nranks: u32) -> Result<c_int> {
        let op = match (op, self.redops[op as usize], nranks) {
            (RedOp::Avg, Library::UNSUPPORTED, 1) => RedOp::Sum,
            _ => op,
        };
        match self.redops[op as usize] {
            Library::UNSUPPORTED => Err(self.unsupported(op.name(), self.row.redops[op as usize])),
            number => Ok(number),
        }
    }

    /// Refuses what the library has the parts of, but can't do.
    pub(crate) fn within_limits(
        &self,
        kind: OpKind,
        dtype: DataType,
        op: Option<RedOp>,
    ) -> Result<()> {
        let Some(why) = self.row.limit(kind, dtype, op) else {
            return Ok(());
        };
        let op = op.map(|op| format!(" and {}", op.name()));
        Err(Error::not_supported(format!(
            "{} has no {} of {}{}: {why}",
            self.row.title,
            kind.name(),
            dtype.name(),
            op.unwrap_or_default()
        )))
    }

    fn unsupported(&self, what: &str, number: Number) -> Error {
        let title = self.row.title;
        Error::not_supported(match number {
            Number::Is(_, since) => format!(
                "{what} needs {title} {since} or newer; the loaded one is {} ({})",
                self.version_text(),
                self.path().display()
            ),
            Number::Absent if what == RedOp::Avg.name() => format!(
                "{title} has no {what}, and nothing that could divide on a stream: use sum, and \
                 divide by the number of ranks"
            ),
            Number::Absent => format!("{title} has no {what}"),
            Number::Unknown => format!(
                "the number of {what} at {title} is not in any published document: give it as \
                 {}=\"{what}=N\"",
                config::numbers_name(self.row.key)
            ),
        })
    }

    /// The error for a function that the library lacks.
    #[cold]
    pub(crate) fn lacks(&self, suffix: &str) -> Error {
        let name = function_name(self.row, suffix);
        let mut all = Calls::SYMBOLS.iter().chain(Symbols::SYMBOLS);
        let since = all.find(|s| s.suffix == suffix).map(|s| s.since);
        let since = since.filter(|_| self.row.nccl_versions);
        let since = since.map(|v| format!("; {} {v} brings it", self.row.title));
        Error::not_supported(format!(
            "{} ({} {}) has no {name}{}",
            self.path().display(),
            self.row.title,
            self.version_text(),
            since.unwrap_or_default()
        ))
    }

    /// The error for a result other than success: our code, the vendor's number and words, its
    /// last error, the library's path and version.
    #[cold]
    pub(crate) fn failed(&self, suffix: &str, result: RawResult, comm: CommPtr) -> Error {
        let code = match self.row.meaning(result) {
            Meaning::Code(code) => code,
            Meaning::Success => Code::InternalError,
        };
        let mut text = format!("{} failed with {result}", function_name(self.row, suffix));
        if let Some(get_error_string) = self.symbols.get_error_string {
            // SAFETY: takes a number, any number, and returns a string literal of the library.
            let words = unsafe { get_error_string(result) };
            if let Some(words) = text_at(words) {
                text.push_str(&format!(" ({words})"));
            }
        }
        if let Some(get_last_error) = self.symbols.get_last_error {
            // SAFETY: the communicator is NULL, which is allowed, or one that the caller holds.
            let last = unsafe { get_last_error(comm) };
            if let Some(last) = text_at(last) {
                text.push_str(&format!("; its last error: {last}"));
            }
        }
        text.push_str(&format!(
            " [{} {}, {}]",
            self.row.title,
            self.version_text(),
            self.path().display()
        ));
        for hint in self.row.hints.iter().filter(|h| h.result == result) {
            text.push_str("; ");
            text.push_str(&hint.text());
        }
        Error::new(code, text)
    }

    pub(super) fn check(&self, suffix: &str, result: RawResult, comm: CommPtr) -> Result<()> {
        match self.row.meaning(result) {
            Meaning::Success => Ok(()),
            Meaning::Code(_) => Err(self.failed(suffix, result, comm)),
        }
    }

    pub(super) fn progress(
        &self,
        suffix: &str,
        result: RawResult,
        comm: CommPtr,
    ) -> Result<Progress> {
        match self.row.meaning(result) {
            Meaning::Success => Ok(Progress::Done),
            Meaning::Code(Code::InProgress) => Ok(Progress::Pending),
            Meaning::Code(_) => Err(self.failed(suffix, result, comm)),
        }
    }

    /// A new unique id of the vendor.
    pub(crate) fn unique_id(&self) -> Result<Vec<u8>> {
        let mut id = vec![0u8; self.id_bytes];
        let result = match self.bootstrap {
            Bootstrap::ByValue(get, _) => {
                let mut fixed = Id128([0; 128]);
                // SAFETY: the function fills the 128 bytes of a live local.
                let result = unsafe { get(&mut fixed) };
                id.copy_from_slice(&fixed.0);
                result
            }
            Bootstrap::ByPointer(get, _) | Bootstrap::Together(get, _) => {
                // The size may be the user's word: what is too small must not cost memory of others.
                id.resize(self.id_bytes + SPARE_BYTES, SPARE);
                // SAFETY: the function fills as many bytes as the vendor's id has.
                unsafe { get(id.as_mut_ptr()) }
            }
        };
        self.check("GetUniqueId", result, ptr::null_mut())?;
        if let Some(last) = id[self.id_bytes..].iter().rposition(|byte| *byte != SPARE) {
            return Err(Error::internal(format!(
                "{} wrote an id of at least {} bytes ({}), not {}",
                self.row.title,
                self.id_bytes + last + 1,
                self.path().display(),
                self.id_bytes
            )));
        }
        id.truncate(self.id_bytes);
        Ok(id)
    }

    fn check_id(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() == self.id_bytes {
            return Ok(());
        }
        Err(Error::internal(format!(
            "a unique id of {} has {} bytes, not {}",
            self.row.title,
            self.id_bytes,
            bytes.len()
        )))
    }

    fn id(&self, bytes: &[u8]) -> Result<Id128> {
        self.check_id(bytes)?;
        let id = bytes.try_into();
        id.map(Id128)
            .map_err(|_| Error::internal("an id that is passed by value has not 128 bytes"))
    }

    pub(super) fn options(&self, options: &CommOptions) -> CommOptions {
        options.without_useless(self.row, self.version)
    }

    pub(super) fn config(&self, options: &CommOptions) -> Result<ConfigBuffer> {
        options.buffer(self.row, self.version)
    }

    /// Makes a communicator. The calling thread's device becomes its device. `here`: how many of its
    /// ranks are in this process, each of which calls this on a thread of its own.
    pub(crate) fn init_rank(
        &'static self,
        nranks: i32,
        id: &[u8],
        rank: i32,
        here: usize,
        options: &CommOptions,
    ) -> Result<(VendorComm, Progress)> {
        self.check_id(id)?;
        let options = self.options(options);
        let slot = Slot::new(self.config(&options)?, &[]);
        let (suffix, result) = match (self.bootstrap, options.is_empty()) {
            (Bootstrap::ByValue(_, init), true) => {
                let id = self.id(id)?;
                // SAFETY: the result goes to a place that lives until the communicator is gone,
                // also if the library writes it later; the id is passed by value.
                let result = unsafe { init(slot.out(), nranks, id, rank) };
                ("CommInitRank", result)
            }
            (Bootstrap::ByValue(..), false) => {
                let id = self.id(id)?;
                let suffix = "CommInitRankConfig";
                let init = self
                    .symbols
                    .comm_init_rank_config
                    .ok_or_else(|| self.lacks(suffix))?;
                // SAFETY: as above; the config has the declared size and lives as long.
                let result = unsafe { init(slot.out(), nranks, id, rank, slot.config()) };
                (suffix, result)
            }
            (Bootstrap::ByPointer(_, init), _) => {
                // SAFETY: as above; the id has the size that the vendor's has.
                let result = unsafe { init(slot.out(), nranks, id.as_ptr(), rank) };
                ("CommInitRank", result)
            }
            (Bootstrap::Together(_, init), _) => {
                // SAFETY: as above.
                let result = unsafe { init(slot.out(), nranks, id.as_ptr(), rank, here) };
                ("CommInitRank", result)
            }
        };
        self.started(suffix, result, slot)
    }

    /// Makes a communicator with several unique ids, for many ranks.
    pub(crate) fn init_rank_scalable(
        &'static self,
        nranks: i32,
        rank: i32,
        ids: &[Vec<u8>],
        options: &CommOptions,
    ) -> Result<(VendorComm, Progress)> {
        let suffix = "CommInitRankScalable";
        let init = self
            .symbols
            .comm_init_rank_scalable
            .ok_or_else(|| self.lacks(suffix))?;
        let mut ids = ids
            .iter()
            .map(|id| self.id(id))
            .collect::<Result<Vec<Id128>>>()?;
        let count = c_int::try_from(ids.len())
            .map_err(|_| Error::invalid_argument("there are too many unique ids"))?;
        let slot = Slot::new(self.config(&self.options(options))?, &[]);
        // SAFETY: as in `init_rank`; the ids are an array of `count` that the library copies.
        let result = unsafe {
            init(
                slot.out(),
                nranks,
                rank,
                count,
                ids.as_mut_ptr(),
                slot.config(),
            )
        };
        self.started(suffix, result, slot)
    }

    pub(super) fn started(
        &'static self,
        suffix: &str,
        result: RawResult,
        slot: Slot,
    ) -> Result<(VendorComm, Progress)> {
        // A failed init that goes on inside may still write to the slot, which is left behind.
        let progress = self.progress(suffix, result, ptr::null_mut())?;
        Ok((VendorComm::new(self, slot), progress))
    }

    /// Opens a group on this thread.
    pub(crate) fn group_start(&self) -> Result<()> {
        let suffix = "GroupStart";
        let start = self.symbols.group_start.ok_or_else(|| self.lacks(suffix))?;
        // SAFETY: takes nothing.
        let result = unsafe { start() };
        self.check(suffix, result, ptr::null_mut())
    }

    /// Closes a group on this thread.
    pub(crate) fn group_end(&self) -> Result<Progress> {
        let suffix = "GroupEnd";
        let end = self.symbols.group_end.ok_or_else(|| self.lacks(suffix))?;
        // SAFETY: takes nothing.
        let result = unsafe { end() };
        self.progress(suffix, result, ptr::null_mut())
    }

    /// Closes a group on this thread without running it; the library's estimate in seconds of how
    /// long it would take.
    pub(crate) fn group_simulate_end(&self) -> Result<f32> {
        let suffix = "GroupSimulateEnd";
        let simulate = self
            .symbols
            .group_simulate_end
            .ok_or_else(|| self.lacks(suffix))?;
        // Spare bytes behind the struct, in case a library writes a longer one.
        #[repr(C)]
        struct Padded {
            info: SimInfo,
            spare: [u64; 16],
        }
        let mut padded = Padded {
            info: SimInfo {
                size: size_of::<SimInfo>(),
                magic: 0x7468_5283,
                version: Version::new(2, 22, 3).nccl_code(),
                estimated_time: -1.0,
            },
            spare: [0; 16],
        };
        // SAFETY: a live local with the size that it declares, and spare bytes behind it.
        let result = unsafe { simulate((&raw mut padded).cast::<SimInfo>()) };
        let _ = padded.spare;
        self.check(suffix, result, ptr::null_mut())?;
        Ok(padded.info.estimated_time)
    }

    /// Memory of the library's own kind on the calling thread's device.
    pub(crate) fn mem_alloc(&self, bytes: usize) -> Result<*mut c_void> {
        let suffix = "MemAlloc";
        let alloc = self.symbols.mem_alloc.ok_or_else(|| self.lacks(suffix))?;
        let mut memory = ptr::null_mut();
        // SAFETY: the result goes to a live local.
        let result = unsafe { alloc(&mut memory, bytes) };
        self.check(suffix, result, ptr::null_mut())?;
        Ok(memory)
    }

    /// Gives back what `mem_alloc` gave.
    pub(crate) fn mem_free(&self, memory: UserPtr) -> Result<()> {
        let suffix = "MemFree";
        let free = self.symbols.mem_free.ok_or_else(|| self.lacks(suffix))?;
        // SAFETY: `UserPtr` carries the promise that the memory is what the caller says.
        let result = unsafe { free(memory.get()) };
        self.check(suffix, result, ptr::null_mut())
    }
}

/// The functions of a library of NCCL's shape.
pub(super) fn in_shape(
    row: &'static Ccl,
    resolver: &mut Resolver<'_>,
) -> std::result::Result<Adapted, Vec<String>> {
    let named = |missing: Vec<&str>| missing.iter().map(|s| function_name(row, s)).collect();
    let mut find = |suffix: &str| resolver.find_any(&function_names(row, suffix));
    let (calls, symbols) = (Calls::resolve(&mut find), Symbols::resolve(&mut find));
    let mut missing: Vec<&str> = calls.as_ref().err().cloned().unwrap_or_default();
    let symbols = symbols.unwrap_or_default();
    missing.extend(NEEDED.iter().filter(|need| match **need {
        "GetUniqueId" => symbols.get_unique_id.is_none(),
        "CommInitRank" => symbols.comm_init_rank.is_none(),
        "Broadcast" => symbols.broadcast.is_none(),
        "GroupStart" => symbols.group_start.is_none(),
        _ => symbols.group_end.is_none(),
    }));
    let ids = symbols.get_unique_id.zip(symbols.comm_init_rank);
    match (calls, ids) {
        (Ok(calls), Some((get, init))) if missing.is_empty() => Ok(Adapted {
            calls,
            symbols,
            bootstrap: Bootstrap::ByValue(get, init),
            messages: None,
        }),
        _ => Err(named(missing)),
    }
}

/// Whether an open library is the row's at all.
fn identify(row: &Ccl, lib: &Lib) -> std::result::Result<(), Refusal> {
    let mut probe = Resolver::new(lib, row.companions);
    // Whose it is says more than that it is not this one's.
    for (name, whose) in row.strangers {
        if probe.find(name).is_some() {
            return Err(Refusal::new(format!(
                "it is {whose}, not {}: it has {name}",
                row.title
            )));
        }
    }
    if probe.find(row.fingerprint).is_none() {
        return Err(Refusal::new(match probe.strays().first() {
            Some(stray) => format!("it is not {}: {stray}", row.title),
            None => format!("it is not {}: it has no {}", row.title, row.fingerprint),
        }));
    }
    let needed = match row.stranger_needs {
        [] => Vec::new(),
        _ => crate::load::elf::dynamic(lib.path()).needed,
    };
    for (start, whose) in row.stranger_needs {
        if let Some(name) = needed.iter().find(|name| name.starts_with(start)) {
            return Err(Refusal::new(format!(
                "it is {whose}, not {}: it needs {name}",
                row.title
            )));
        }
    }
    Ok(())
}

fn find_version(row: &Ccl, resolver: &mut Resolver<'_>) -> (Option<i32>, Option<Version>) {
    let decode: fn(i32) -> Option<Version> = match row.version {
        VersionOf::Code(decode) => decode,
        VersionOf::Opaque => |_| None,
        VersionOf::Other(find) => return find(resolver),
    };
    let Some(address) = resolver.find_any(&function_names(row, "GetVersion")) else {
        return (None, None);
    };
    // SAFETY: the address is that of the vendor's version function, which has this signature in
    // every version.
    let get_version = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> RawResult>(
            address.as_ptr(),
        )
    };
    let mut code = 0;
    // SAFETY: the number goes to a live local; the function needs no device and no other state.
    let result = unsafe { get_version(&mut code) };
    if result != 0 {
        return (None, None);
    }
    (Some(code), decode(code))
}

fn text_at(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, and by the library's contract a NUL-terminated string that outlives the
    // call; it is copied at once.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_string())
}
