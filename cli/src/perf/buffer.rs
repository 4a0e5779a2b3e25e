//! Operand buffers with guard bytes around the data.

use super::reference::poison;
use crate::library::Library;
use crate::words::amount;
use flagos_comm::{Code, Error, Result};
use std::alloc::Layout;
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes before and after the data that nobody may write.
pub const GUARD: usize = 256;

const ALIGN: usize = 4096;

enum Owner {
    /// Ordinary memory of this process.
    Host(Layout),
    /// The library's memory on a device, copied with the driver's help on a stream.
    Device(Arc<dyn Library>, *mut c_void),
    /// The library's memory on a machine without devices, which the process can touch itself.
    Shared(Arc<dyn Library>),
}

/// Where a buffer comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Ordinary memory.
    Host,
    /// flagosMemAlloc, on a device.
    Device,
    /// flagosMemAlloc, on a machine without devices.
    Shared,
}

/// An empty vector with room for so many bytes.
///
/// # Errors
/// If the memory can't be had, which would end the process if it were found out by writing.
pub fn room(bytes: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    match room.try_reserve_exact(bytes) {
        Ok(()) => Ok(room),
        Err(_) => Err(out_of_memory(bytes)),
    }
}

fn out_of_memory(bytes: usize) -> Error {
    let text = format!(
        "the system has no {} of memory for it",
        amount(bytes as u64)
    );
    Error::new(Code::SystemError, text)
}

/// A buffer. Its data starts `GUARD` and a chosen offset behind its start.
pub struct Buffer {
    base: *mut u8,
    len: usize,
    owner: Owner,
}

impl Buffer {
    /// A buffer for `data` bytes at an offset of at most `offset`.
    pub fn new(
        library: &Arc<dyn Library>,
        place: Place,
        stream: *mut c_void,
        data: usize,
        offset: usize,
    ) -> Result<Buffer> {
        let len = (data + offset + 2 * GUARD).next_multiple_of(ALIGN);
        if place == Place::Host {
            let layout = Layout::from_size_align(len, ALIGN)
                .map_err(|_| Error::invalid_argument("the sizes are too large"))?;
            // SAFETY: the layout is not empty.
            let base = unsafe { std::alloc::alloc_zeroed(layout) };
            if base.is_null() {
                return Err(out_of_memory(len));
            }
            return Ok(Buffer {
                base,
                len,
                owner: Owner::Host(layout),
            });
        }
        let base = library.mem_alloc(len)?.cast();
        let owner = match place {
            Place::Device => Owner::Device(library.clone(), stream),
            _ => Owner::Shared(library.clone()),
        };
        Ok(Buffer { base, len, owner })
    }

    /// Where the data starts.
    pub fn data(&self, offset: usize) -> *mut u8 {
        self.base.wrapping_add(GUARD + offset)
    }

    /// Sets data and guards.
    pub fn put(&mut self, offset: usize, data: &[u8]) -> Result<()> {
        let mut region = room(data.len() + 2 * GUARD)?;
        region.extend((0..GUARD).map(poison));
        region.extend_from_slice(data);
        region.extend((0..GUARD).map(poison));
        assert!(offset + region.len() <= self.len, "buffer too small");
        let to = self.base.wrapping_add(offset);
        match &self.owner {
            Owner::Host(_) | Owner::Shared(_) => {
                // SAFETY: the region lies in the buffer, and no operation is under way.
                unsafe { std::ptr::copy_nonoverlapping(region.as_ptr(), to, region.len()) };
                Ok(())
            }
            Owner::Device(library, stream) => {
                let from = region.as_ptr().cast();
                // SAFETY: as above, and the stream is waited for.
                unsafe { library.copy(to.cast(), from, region.len(), *stream) }?;
                library.stream_synchronize(*stream)
            }
        }
    }

    /// Reads `len` bytes of data, and how many guard bytes are wrong.
    pub fn get(&self, offset: usize, len: usize) -> Result<(Vec<u8>, usize)> {
        let mut region = room(len + 2 * GUARD)?;
        region.resize(len + 2 * GUARD, 0);
        assert!(offset + region.len() <= self.len, "buffer too small");
        let from = self.base.wrapping_add(offset);
        match &self.owner {
            Owner::Host(_) | Owner::Shared(_) => {
                // SAFETY: the region lies in the buffer, and no operation is under way.
                unsafe { std::ptr::copy_nonoverlapping(from, region.as_mut_ptr(), region.len()) };
            }
            Owner::Device(library, stream) => {
                let to = region.as_mut_ptr().cast();
                // SAFETY: as above, and the stream is waited for.
                unsafe { library.copy(to, from.cast(), region.len(), *stream) }?;
                library.stream_synchronize(*stream)?;
            }
        }
        let wrong = |guard: &[u8]| {
            let bytes = guard.iter().enumerate();
            bytes.filter(|(i, byte)| **byte != poison(*i)).count()
        };
        let broken = wrong(&region[..GUARD]) + wrong(&region[GUARD + len..]);
        region.truncate(GUARD + len);
        region.drain(..GUARD);
        Ok((region, broken))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: allocated with this layout.
            Owner::Host(layout) => unsafe { std::alloc::dealloc(self.base, *layout) },
            Owner::Device(library, _) | Owner::Shared(library) => {
                let _ = library.mem_free(self.base.cast());
            }
        }
    }
}
