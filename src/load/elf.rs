//! Reads the little of an ELF file that has to be known before the loader gets it.
//!
//! The loader's words for a wrong file are short ("invalid ELF header"), and a truncated library
//! kills the process with SIGBUS instead of an error. So files are looked at first.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
/// More than any real library has; bounds what a hostile file can make us read.
const MAX_DYNAMIC_BYTES: u64 = 1 << 20;
const MAX_STRING_BYTES: usize = 4096;

#[cfg(target_arch = "x86_64")]
const OWN_MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const OWN_MACHINE: u16 = 183;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OWN_MACHINE: u16 = 0;

/// What is wrong with a file, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There is no such file, in words.
    Absent(String),
    /// There is something, but not a library that this process can load.
    Unusable(String),
    /// A library whose end is missing. The loader would map it, and the process would die of it.
    CutOff(String),
}

/// The dynamic section as far as searches need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dynamic {
    /// DT_SONAME.
    pub(crate) soname: Option<String>,
    /// DT_NEEDED.
    pub(crate) needed: Vec<String>,
    /// DT_RUNPATH, or DT_RPATH without it, with `$ORIGIN` replaced.
    pub(crate) runpath: Vec<PathBuf>,
}

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "x86 (32-bit)".to_string(),
        8 => "MIPS".to_string(),
        21 => "PowerPC 64".to_string(),
        40 => "Arm (32-bit)".to_string(),
        62 => "x86-64".to_string(),
        183 => "AArch64".to_string(),
        243 => "RISC-V".to_string(),
        258 => "LoongArch".to_string(),
        other => format!("machine number {other}"),
    }
}

fn cut_off(text: impl Into<String>) -> Fault {
    Fault::CutOff(text.into())
}

fn unusable(text: impl Into<String>) -> Fault {
    Fault::Unusable(text.into())
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    file_size: u64,
}

struct Elf {
    file: File,
    segments: Vec<Segment>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let mut word = [0; 2];
    word.copy_from_slice(&bytes[at..at + 2]);
    u16::from_le_bytes(word)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn open(path: &Path) -> Result<Elf, Fault> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(Fault::Absent("there is no such file".to_string()));
        }
        Err(error) => return Err(unusable(format!("can't be looked at: {error}"))),
    };
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(unusable(
            "is a directory; the library file itself has to be named",
        ));
    }
    if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
        return Err(unusable("is not a regular file"));
    }
    let size = metadata.len();
    let file = File::open(path).map_err(|error| unusable(format!("can't be read: {error}")))?;
    if size == 0 {
        return Err(unusable("is an empty file"));
    }
    let mut header = [0u8; HEADER_BYTES];
    let have = (size as usize).min(HEADER_BYTES);
    file.read_exact_at(&mut header[..have], 0)
        .map_err(|error| unusable(format!("can't be read: {error}")))?;
    if have < 4 || header[..4] != *b"\x7fELF" {
        let text = header[..have]
            .iter()
            .all(|b| matches!(b, 9..=13 | 32..=126));
        return Err(unusable(if text {
            "is not a shared library but text (no ELF header)"
        } else {
            "is not a shared library (no ELF header)"
        }));
    }
    if have < HEADER_BYTES {
        return Err(cut_off(format!(
            "is truncated: {size} bytes are less than an ELF header"
        )));
    }
    if header[4] != 2 {
        return Err(unusable(
            "is a 32-bit library; this process is 64-bit (wrong ELF class)",
        ));
    }
    if header[5] != 1 {
        return Err(unusable("is for the other byte order (big-endian ELF)"));
    }
    let machine = u16_at(&header, 18);
    if OWN_MACHINE != 0 && machine != OWN_MACHINE {
        return Err(unusable(format!(
            "is built for {}; this process runs on {}",
            machine_name(machine),
            machine_name(OWN_MACHINE)
        )));
    }
    if u16_at(&header, 16) != 3 {
        return Err(unusable(
            "is an ELF file but not a shared library (e_type is not DYN)",
        ));
    }
    let table = u64_at(&header, 32);
    let entry = usize::from(u16_at(&header, 54));
    let count = usize::from(u16_at(&header, 56));
    if entry != PROGRAM_HEADER_BYTES || count == 0 {
        return Err(unusable("has no valid program headers"));
    }
    let bytes = entry * count;
    if table.checked_add(bytes as u64).is_none_or(|end| end > size) {
        return Err(cut_off(format!(
            "is truncated: its program headers end beyond its {size} bytes"
        )));
    }
    let mut raw = vec![0u8; bytes];
    file.read_exact_at(&mut raw, table)
        .map_err(|error| unusable(format!("can't be read: {error}")))?;
    let mut segments = Vec::with_capacity(count);
    for raw in raw.chunks_exact(entry) {
        let segment = Segment {
            kind: u32_at(raw, 0),
            offset: u64_at(raw, 8),
            address: u64_at(raw, 16),
            file_size: u64_at(raw, 32),
        };
        let end = segment.offset.checked_add(segment.file_size);
        if segment.kind == PT_LOAD && end.is_none_or(|end| end > size) {
            return Err(cut_off(format!(
                "is truncated: a segment ends at byte {}, the file has {size}",
                end.unwrap_or(u64::MAX)
            )));
        }
        segments.push(segment);
    }
    Ok(Elf { file, segments })
}

/// Says what would go wrong if the loader got this file.
pub(crate) fn check(path: &Path) -> Result<(), Fault> {
    open(path).map(|_| ())
}

/// The dynamic section of a library; empty where it can't be read.
pub(crate) fn dynamic(path: &Path) -> Dynamic {
    open(path)
        .ok()
        .and_then(|elf| elf.dynamic(path))
        .unwrap_or_default()
}

impl Elf {
    fn file_offset(&self, address: u64) -> Option<u64> {
        self.segments
            .iter()
            .filter(|s| s.kind == PT_LOAD)
            .find_map(|s| {
                let inside = address.checked_sub(s.address)?;
                (inside < s.file_size).then(|| s.offset + inside)
            })
    }

    fn string(&self, at: u64) -> Option<String> {
        let mut bytes = vec![0u8; MAX_STRING_BYTES];
        let mut have = 0;
        while have < bytes.len() {
            match self
                .file
                .read_at(&mut bytes[have..], at + have as u64)
                .ok()?
            {
                0 => break,
                n => have += n,
            }
        }
        let end = bytes[..have].iter().position(|b| *b == 0)?;
        String::from_utf8(bytes[..end].to_vec()).ok()
    }

    fn dynamic(&self, path: &Path) -> Option<Dynamic> {
        let segment = self.segments.iter().find(|s| s.kind == PT_DYNAMIC)?;
        if segment.file_size > MAX_DYNAMIC_BYTES {
            return None;
        }
        let mut raw = vec![0u8; segment.file_size as usize];
        self.file.read_exact_at(&mut raw, segment.offset).ok()?;
        let entries: Vec<(u64, u64)> = raw
            .chunks_exact(16)
            .map(|entry| (u64_at(entry, 0), u64_at(entry, 8)))
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?.1;
        let strings = self.file_offset(strings)?;
        let text = |value: u64| self.string(strings.checked_add(value)?);
        let first = |tag| entries.iter().find(|e| e.0 == tag).and_then(|e| text(e.1));
        let origin = path
            .parent()
            .unwrap_or(Path::new("/"))
            .to_string_lossy()
            .into_owned();
        let runpath = first(DT_RUNPATH)
            .or_else(|| first(DT_RPATH))
            .unwrap_or_default();
        Some(Dynamic {
            soname: first(DT_SONAME),
            needed: entries
                .iter()
                .filter(|e| e.0 == DT_NEEDED)
                .filter_map(|e| text(e.1))
                .collect(),
            runpath: runpath
                .split(':')
                .filter(|part| !part.is_empty())
                .map(|part| {
                    PathBuf::from(
                        part.replace("${ORIGIN}", &origin)
                            .replace("$ORIGIN", &origin),
                    )
                })
                .collect(),
        })
    }
}

/// The paths that `/etc/ld.so.cache` gives for a soname, for this machine's libraries.
pub(crate) fn cached(cache: &[u8], soname: &str) -> Vec<PathBuf> {
    parse_cache(cache, soname).unwrap_or_default()
}

fn parse_cache(cache: &[u8], soname: &str) -> Option<Vec<PathBuf>> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const ENTRY: usize = 24;
    let library = if cfg!(target_arch = "aarch64") {
        0x0a03
    } else {
        0x0303
    };
    let start = cache
        .windows(MAGIC.len())
        .position(|window| window == MAGIC)?;
    let cache = &cache[start..];
    if cache.len() < 48 {
        return None;
    }
    let count = u32_at(cache, 20) as usize;
    let string = |at: u32| -> Option<&str> {
        let bytes = cache.get(at as usize..)?;
        let end = bytes.iter().position(|b| *b == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    };
    let entries = cache.get(48..48usize.checked_add(count.checked_mul(ENTRY)?)?)?;
    Some(
        entries
            .chunks_exact(ENTRY)
            .filter(|entry| u32_at(entry, 0) == library)
            .filter(|entry| string(u32_at(entry, 4)) == Some(soname))
            .filter_map(|entry| string(u32_at(entry, 8)).map(PathBuf::from))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this thread, so that tests don't remove each other's.
    fn folder() -> PathBuf {
        let name = format!(
            "flagoscomm-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        std::env::temp_dir().join(name)
    }

    fn clean() {
        std::fs::remove_dir_all(folder()).unwrap();
    }

    fn temp(name: &str, bytes: &[u8]) -> PathBuf {
        let dir = folder();
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn words(path: &Path) -> String {
        match check(path) {
            Err(Fault::Unusable(text) | Fault::CutOff(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    /// The test binary itself: position-independent, so an ELF file of type DYN.
    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn faults_in_words() {
        assert!(matches!(
            check(Path::new("/nonexistent/libx.so")),
            Err(Fault::Absent(words)) if words == "there is no such file"
        ));
        assert!(words(Path::new("/")).contains("directory"));
        assert!(words(Path::new("/dev/null")).contains("not a regular file"));
        assert!(words(&temp("empty", b"")).contains("empty"));
        assert!(words(&temp("text", b"/* GNU ld script */\n")).contains("text"));
        assert!(words(&temp("junk", &[0, 1, 2, 3, 4])).contains("no ELF header"));
        let own = own();
        assert!(words(&temp("short", &own[..40])).contains("truncated"));
        assert!(words(&temp("half", &own[..8192])).contains("truncated"));
        let mut other = own[..4096].to_vec();
        other[4] = 1;
        assert!(words(&temp("class", &other)).contains("32-bit"));
        other[4] = 2;
        other[18] = if OWN_MACHINE == 183 { 62 } else { 183 };
        let text = words(&temp("machine", &other));
        assert!(
            text.contains("AArch64") && text.contains("x86-64"),
            "{text}"
        );
        assert_eq!(check(&std::env::current_exe().unwrap()), Ok(()));
        clean();
    }

    #[test]
    fn dynamic_of_the_own_binary() {
        let dynamic = dynamic(&std::env::current_exe().unwrap());
        assert!(
            dynamic.needed.iter().any(|n| n.starts_with("libc.so")),
            "{dynamic:?}"
        );
    }

    #[test]
    fn junk_never_panics() {
        let own = own();
        for cut in [64, 65, 100, 500, 1000, 4000] {
            let mut bytes = own[..own.len().min(8192)].to_vec();
            for byte in bytes.iter_mut().skip(cut).step_by(7) {
                *byte ^= 0xff;
            }
            let path = temp("fuzz", &bytes);
            let _ = check(&path);
            let _ = dynamic(&path);
            let _ = cached(&bytes, "libc.so.6");
        }
        clean();
    }

    #[test]
    fn cache_of_the_loader() {
        let Ok(cache) = std::fs::read("/etc/ld.so.cache") else {
            eprintln!("SKIPPED: this machine has no /etc/ld.so.cache");
            return;
        };
        let paths = cached(&cache, "libc.so.6");
        assert!(paths.iter().any(|p| p.exists()), "{paths:?}");
        assert!(cached(&cache, "libnothing.so.77").is_empty());
        assert!(cached(&cache[..cache.len() / 2], "libc.so.6").len() <= paths.len());
    }
}
