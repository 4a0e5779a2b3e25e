//! Leads a library that is in the process already back to its own functions.
//!
//! A library calls its own exported functions through a table of jumps, which the loader fills by name. If a
//! library of ours with the same names stands in front of it, and somebody has opened it without
//! RTLD_DEEPBIND, those jumps lead to ours.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::open::{Lib, global_owner, is_another_file};

const DT_PLTRELSZ: usize = 2;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_JMPREL: usize = 23;

/// Kinds of places that hold a function's address alone.
#[cfg(target_arch = "x86_64")]
const FUNCTION_PLACES: [usize; 3] = [1, 6, 7];
#[cfg(target_arch = "aarch64")]
const FUNCTION_PLACES: [usize; 3] = [257, 1025, 1026];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const FUNCTION_PLACES: [usize; 0] = [];

const STT_FUNC: u8 = 2;

/// A relocation with its addend, as ELF lays it out for 64 bits.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rela {
    place: usize,
    info: usize,
    addend: isize,
}

impl Rela {
    /// The number of the symbol whose address stands in the place, if it is a place for functions.
    fn function(&self) -> Option<usize> {
        let kind = self.info & 0xffff_ffff;
        (FUNCTION_PLACES.contains(&kind) && self.addend == 0).then_some(self.info >> 32)
    }
}

/// A symbol, as ELF lays it out for 64 bits.
#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}
const _: () = assert!(size_of::<Rela>() == 24 && size_of::<Symbol>() == 24);

impl Symbol {
    fn is_own_function(&self) -> bool {
        self.section != 0 && self.info & 15 == STT_FUNC
    }
}

/// Where an object's tables are in memory.
#[derive(Default)]
struct Tables {
    symbols: Option<usize>,
    strings: Option<usize>,
    jumps: [usize; 2],
    rest: [usize; 2],
}

impl Tables {
    /// Takes an entry of the dynamic section; `false` at its end. The loader has made addresses of
    /// offsets, on most machines.
    fn take(&mut self, tag: usize, value: usize, base: usize) -> bool {
        let address = if value < base { base + value } else { value };
        match tag {
            0 => return false,
            DT_SYMTAB => self.symbols = Some(address),
            DT_STRTAB => self.strings = Some(address),
            DT_JMPREL => self.jumps[0] = address,
            DT_PLTRELSZ => self.jumps[1] = value,
            DT_RELA => self.rest[0] = address,
            DT_RELASZ => self.rest[1] = value,
            _ => {}
        }
        true
    }

    /// Tables of relocations: their addresses and sizes in bytes.
    fn relocations(&self) -> impl Iterator<Item = (usize, usize)> {
        [self.jumps, self.rest]
            .into_iter()
            .map(|[start, bytes]| (start, bytes))
            .filter(|(start, bytes)| *start != 0 && *bytes != 0)
    }
}

/// Leads a library's calls of its own functions back to it, where a library of ours that has the same names
/// stands in front of it: it was opened by somebody else, so that RTLD_DEEPBIND was not to be had. `prefix`: of
/// its names. How many of its jumps led to ours.
pub(super) fn to_itself(lib: &Lib, prefix: &str) -> Result<usize, String> {
    let mut bound = 0;
    for slot in own_slots(lib).ok_or("its dynamic section can't be understood")? {
        let name = slot.name.to_bytes();
        let named = name.strip_prefix(b"p").unwrap_or(name);
        if !name.starts_with(prefix.as_bytes()) && !named.starts_with(prefix.as_bytes()) {
            continue;
        }
        let ours = global_owner(slot.name).is_some_and(|owner| is_another_file(&owner));
        if !ours || slot.place.load(Ordering::Relaxed).addr() == slot.own {
            continue;
        }
        let page = Page::around(std::ptr::from_ref(slot.place).addr())
            .ok_or("the place of a jump is not mapped")?;
        page.while_writable(|| {
            slot.place.store(
                std::ptr::with_exposed_provenance_mut(slot.own),
                Ordering::Relaxed,
            );
        })?;
        bound += 1;
    }
    Ok(bound)
}

/// A place through which a library calls a function, or knows its address.
struct JumpSlot {
    name: &'static CStr,
    /// Where the library's own function of this name is.
    own: usize,
    place: &'static AtomicPtr<c_void>,
}

/// The places through which a library reaches the functions that it defines itself.
fn own_slots(lib: &Lib) -> Option<Vec<JumpSlot>> {
    let (base, dynamic) = lib.memory()?;
    let mut tables = Tables::default();
    for at in 0.. {
        // SAFETY: the section ends with an entry of tag 0, which is where this ends too.
        let [tag, value] = unsafe { dynamic.add(at).read_unaligned() };
        if !tables.take(tag, value, base) {
            break;
        }
    }
    let (symbols, strings) = (tables.symbols?, tables.strings?);
    let mut slots = Vec::new();
    for (start, bytes) in tables.relocations() {
        for at in 0..bytes / size_of::<Rela>() {
            // SAFETY: within the table, whose size is the object's own word.
            let rela = unsafe {
                std::ptr::with_exposed_provenance::<Rela>(start)
                    .add(at)
                    .read_unaligned()
            };
            let Some(symbol) = rela.function() else {
                continue;
            };
            // SAFETY: a relocation names a symbol of the object's table.
            let symbol = unsafe {
                std::ptr::with_exposed_provenance::<Symbol>(symbols)
                    .add(symbol)
                    .read_unaligned()
            };
            if !symbol.is_own_function() {
                continue;
            }
            let name = std::ptr::with_exposed_provenance(strings + symbol.name as usize);
            // SAFETY: the table holds texts that end with a zero.
            let name = unsafe { CStr::from_ptr(name) };
            let place = std::ptr::with_exposed_provenance_mut(base + rela.place);
            slots.push(JumpSlot {
                name,
                own: base + symbol.value,
                // SAFETY: an aligned word of the object, which lives as long as the process, and which
                // others only read: the code that jumps, and the loader.
                place: unsafe { AtomicPtr::from_ptr(place) },
            });
        }
    }
    Some(slots)
}

/// A page of memory and what may be done with it.
struct Page {
    start: usize,
    protection: c_int,
}

impl Page {
    fn size() -> usize {
        // SAFETY: asks for a number of the system's.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
    }

    /// The page of an address, with the rights that the kernel tells.
    fn around(address: usize) -> Option<Page> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let rights = maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let from = usize::from_str_radix(from, 16).ok()?;
            let to = usize::from_str_radix(to, 16).ok()?;
            (from..to).contains(&address).then_some(rest)
        })?;
        let mut protection = 0;
        for (letter, right) in [
            ('r', libc::PROT_READ),
            ('w', libc::PROT_WRITE),
            ('x', libc::PROT_EXEC),
        ] {
            if rights.chars().take(3).any(|c| c == letter) {
                protection |= right;
            }
        }
        Some(Page {
            start: address & !(Page::size() - 1),
            protection,
        })
    }

    fn protect(&self, protection: c_int) -> Result<(), String> {
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: a page that is mapped. Rights are only added for a while, never taken from what others use.
        match unsafe { libc::mprotect(start, Page::size(), protection) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().to_string()),
        }
    }

    fn while_writable(&self, write: impl FnOnce()) -> Result<(), String> {
        if self.protection & libc::PROT_WRITE != 0 {
            write();
            return Ok(());
        }
        self.protect(self.protection | libc::PROT_WRITE)?;
        write();
        self.protect(self.protection)
    }
}
