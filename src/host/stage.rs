//! Device buffers on the host tier: copied to host memory before an operation, and back after it.
//! Only what an operation reads is copied in, only what it writes is copied back.

use super::op::HostOp;
use crate::device::{CopyKind, Driver, RawStream};
use crate::error::Result;
use crate::types::OpKind;
use std::ffi::c_void;

/// One range of a buffer, in bytes from its start.
type Range = std::ops::Range<usize>;

/// Host memory of our own, freed with the operation.
struct Staging {
    driver: &'static Driver,
    memory: *mut c_void,
}

impl Staging {
    fn new(driver: &'static Driver, bytes: usize) -> Result<Staging> {
        Ok(Staging {
            driver,
            memory: driver.malloc_host(bytes)?,
        })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: allocated by `Staging::new`, and every copy from or to it was waited for.
        if let Err(error) = unsafe { self.driver.free_host(self.memory) } {
            log::warn!("staging memory can't be freed: {error}");
        }
    }
}

/// What has to go back to the device.
pub(crate) struct CopyBack {
    copies: Vec<(*mut c_void, *const c_void, usize)>,
    /// Keeps the host buffers until the copies are done.
    staging: Vec<Staging>,
}

impl CopyBack {
    /// Copies the results to the device and waits for the copies.
    pub(crate) fn copy(self, driver: &'static Driver, stream: RawStream) -> Result<()> {
        for (to, from, bytes) in &self.copies {
            // SAFETY: `to` lies in the caller's device buffer, `from` in our staging memory, which
            // lives until the synchronisation below.
            unsafe {
                driver.memcpy_async(*to, *from, *bytes, CopyKind::HostToDevice, stream)?;
            }
        }
        let waited = if self.copies.is_empty() {
            Ok(())
        } else {
            driver.stream_synchronize(stream)
        };
        drop(self.staging);
        waited
    }
}

/// The ranges that this rank's operation reads and writes.
fn ranges(op: &HostOp, rank: u32, nranks: u32) -> (Vec<Range>, Vec<Range>) {
    let n = nranks as usize;
    let size = op.dtype.size();
    let block = op.count * size;
    let at_root = |blocks: usize| if op.root == rank { blocks } else { 0 };
    let (read, written) = match op.kind {
        OpKind::AllReduce => (1, 1),
        OpKind::Broadcast => (at_root(1), 1),
        OpKind::Reduce => (1, at_root(1)),
        OpKind::AllGather => (1, n),
        OpKind::ReduceScatter => (n, 1),
        OpKind::Gather => (1, at_root(n)),
        OpKind::Scatter => (at_root(n), 1),
        OpKind::AllToAll => (n, n),
        OpKind::Send => (1, 0),
        OpKind::Recv => (0, 1),
        OpKind::Barrier => (0, 0),
        OpKind::AllToAllv => {
            let side = |counts: &[usize], displs: &[usize]| {
                let ranges = counts.iter().zip(displs);
                ranges
                    .map(|(c, d)| d * size..(d + c) * size)
                    .filter(|r| !r.is_empty())
                    .collect()
            };
            return match &op.vector {
                Some(v) => (
                    side(&v.send_counts, &v.send_displs),
                    side(&v.recv_counts, &v.recv_displs),
                ),
                None => (Vec::new(), Vec::new()),
            };
        }
    };
    let whole =
        |blocks: usize| Vec::from_iter(Some(0..blocks * block).filter(|range| !range.is_empty()));
    (whole(read), whole(written))
}

/// The operations with every device buffer replaced by a host buffer of ours, and what has to be
/// copied back afterwards. Host, pinned and managed memory stays as it is.
pub(crate) fn to_host(
    driver: &'static Driver,
    ops: &[HostOp],
    rank: u32,
    nranks: u32,
    stream: RawStream,
) -> Result<(Vec<HostOp>, CopyBack)> {
    let mut back = CopyBack {
        copies: Vec::new(),
        staging: Vec::new(),
    };
    let mut staged = Vec::with_capacity(ops.len());
    let mut copied = false;
    for op in ops {
        let (read, written) = ranges(op, rank, nranks);
        let mut op = op.clone();
        let extent = |ranges: &[Range]| ranges.iter().map(|r| r.end).max().unwrap_or(0);
        if extent(&read) > 0 && driver.on_device(op.send.cast())? {
            let staging = Staging::new(driver, extent(&read))?;
            let host = staging.memory.cast::<u8>();
            back.staging.push(staging);
            for range in &read {
                // SAFETY: both ranges are as long as what the operation reads; the copy is waited
                // for below.
                unsafe {
                    driver.memcpy_async(
                        host.add(range.start).cast(),
                        op.send.add(range.start).cast(),
                        range.len(),
                        CopyKind::DeviceToHost,
                        stream,
                    )?;
                }
                copied = true;
            }
            op.send = host;
        }
        if extent(&written) > 0 && driver.on_device(op.recv.cast())? {
            let staging = Staging::new(driver, extent(&written))?;
            let host = staging.memory.cast::<u8>();
            back.staging.push(staging);
            for range in &written {
                // SAFETY: offsets within what the operation writes.
                let (to, from) =
                    unsafe { (op.recv.add(range.start), host.add(range.start).cast_const()) };
                back.copies.push((to.cast(), from.cast(), range.len()));
            }
            op.recv = host;
        }
        staged.push(op);
    }
    if copied {
        driver.stream_synchronize(stream)?;
    }
    Ok((staged, back))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::{driver, log, tables, without_owners};
    use crate::device::{MACA, MUSA, stream_of};
    use crate::types::{DataType, RedOp, Reduction};

    fn stage(driver: &'static Driver, send: *mut c_void) -> (*const u8, Vec<String>) {
        let op = HostOp {
            kind: OpKind::Send,
            send: send.cast(),
            recv: std::ptr::null_mut(),
            count: 16,
            dtype: DataType::Uint8,
            reduction: Reduction::Builtin(RedOp::Sum),
            root: 1,
            vector: None,
        };
        let stream = stream_of(std::ptr::without_provenance_mut(1));
        log();
        let (staged, back) = to_host(driver, &[op], 0, 2, stream).unwrap();
        let calls = log();
        back.copy(driver, stream).unwrap();
        (staged[0].send, calls)
    }

    #[test]
    fn memory_that_the_host_cannot_read_is_staged_where_the_driver_cannot_tell() {
        // The answer of the one can't be read, the other has no function that could be asked.
        for (row, tables) in [(&MACA, tables()), (&MUSA, without_owners())] {
            let driver: &'static Driver = Box::leak(Box::new(driver(row, "not_ready=600", tables)));
            let mut on_host = [0u8; 16];
            let (send, calls) = stage(driver, on_host.as_mut_ptr().cast());
            assert_eq!(send, on_host.as_ptr());
            assert!(calls.is_empty(), "{calls:?}");

            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping of the kernel's choice replaces nothing.
            let page =
                unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0) };
            assert_ne!(page, libc::MAP_FAILED);
            let (send, calls) = stage(driver, page);
            assert_ne!(send, page.cast_const().cast());
            let expected = [
                "host_alloc 16 0 on 0",
                "memcpy 16 2 on 0",
                "stream_synchronize on 0",
            ];
            assert_eq!(calls, expected);
            // SAFETY: the mapping made above, which nobody else knows.
            unsafe { libc::munmap(page, 4096) };
        }
    }
}
