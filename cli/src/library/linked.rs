//! The engine that is linked into this tool, through its Rust API.

use super::{Call, Comm, Function, Library, Made, MadeAll, Setup};
use crate::perf::operation::Operation;
use flagos_comm::{
    CommInfo, Communicator, DataType, Error, Limit, Op, Options, RedOp, Result, Stream, UniqueId,
    VectorLayout, internal,
};
use std::ffi::c_void;

/// The linked engine.
pub struct Linked;

fn options(setup: &Setup) -> Options {
    Options {
        init_timeout: Limit::After(setup.timeout),
        collective_timeout: Limit::After(setup.timeout),
        device: setup.device,
        tiers: setup.tiers.clone(),
        name: Some("perf".to_owned()),
        ..Options::default()
    }
}

impl Library for Linked {
    fn origin(&self) -> String {
        "linked into this tool".to_owned()
    }

    fn version_code(&self) -> i32 {
        internal::version_code()
    }

    fn unique_id(&self) -> Result<[u8; 256]> {
        Ok(*UniqueId::new()?.as_bytes())
    }

    fn init_rank(&self, ranks: usize, id: &[u8; 256], rank: usize, setup: &Setup) -> Made {
        let id = UniqueId::from_bytes(*id);
        let comm = Communicator::init_rank(ranks, &id, rank, &options(setup))?;
        Ok(Box::new(LinkedComm(comm)))
    }

    fn init_all(&self, ranks: usize, devices: Option<&[i32]>, setup: &Setup) -> MadeAll {
        let options = options(setup);
        let comms = match devices {
            Some(devices) => Communicator::init_all(devices, &options)?,
            None => Communicator::init_local(ranks, &options)?,
        };
        Ok(comms
            .into_iter()
            .map(|comm| Box::new(LinkedComm(comm)) as Box<dyn Comm>)
            .collect())
    }

    fn device_count(&self) -> Result<i32> {
        internal::device_count()
    }

    fn set_device(&self, device: i32) -> Result<()> {
        internal::set_device(device)
    }

    fn stream_create(&self) -> Result<*mut c_void> {
        Ok(Stream::create()?.0)
    }

    fn stream_destroy(&self, stream: *mut c_void) -> Result<()> {
        Stream(stream).destroy()
    }

    fn stream_synchronize(&self, stream: *mut c_void) -> Result<()> {
        Stream(stream).synchronize()
    }

    fn mem_alloc(&self, bytes: usize) -> Result<*mut c_void> {
        internal::mem_alloc(bytes)
    }

    fn mem_free(&self, pointer: *mut c_void) -> Result<()> {
        internal::mem_free(pointer)
    }

    unsafe fn copy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<()> {
        // SAFETY: this function's contract; kind 3 lets the driver look at the pointers.
        unsafe { internal::memcpy_async(to, from, bytes, 3, stream) }
    }

    fn group_start(&self) -> Result<()> {
        internal::group_start()
    }

    fn group_end(&self) -> Result<()> {
        internal::group_end().map(|_| ())
    }
}

struct LinkedComm(Communicator);

fn op(number: i32) -> Op {
    match RedOp::from_raw(number) {
        Some(op) => Op::Builtin(op),
        None => Op::Custom(number),
    }
}

impl Comm for LinkedComm {
    fn info(&self) -> Result<CommInfo> {
        self.0.info()
    }

    unsafe fn call(&self, call: &Call<'_>) -> Result<()> {
        let comm = &self.0;
        let Call {
            send,
            recv,
            count,
            dtype,
            root,
            ..
        } = *call;
        let (op, stream) = (op(call.redop), Stream(call.stream));
        // SAFETY: this function's contract.
        unsafe {
            match call.function {
                Function::Send => comm.send(send, count, dtype, root, stream),
                Function::Recv => comm.recv(recv, count, dtype, root, stream),
                Function::Collective(operation) => match operation {
                    Operation::AllReduce => comm.all_reduce(send, recv, count, dtype, op, stream),
                    Operation::AllGather => comm.all_gather(send, recv, count, dtype, stream),
                    Operation::ReduceScatter => {
                        comm.reduce_scatter(send, recv, count, dtype, op, stream)
                    }
                    Operation::Broadcast => comm.broadcast(send, recv, count, dtype, root, stream),
                    Operation::Reduce => comm.reduce(send, recv, count, dtype, op, root, stream),
                    Operation::Gather => comm.gather(send, recv, count, dtype, root, stream),
                    Operation::Scatter => comm.scatter(send, recv, count, dtype, root, stream),
                    Operation::AllToAll => comm.all_to_all(send, recv, count, dtype, stream),
                    Operation::AllToAllv => {
                        let Some((from, to)) = call.layouts else {
                            return Err(Error::internal("AlltoAllv without layouts"));
                        };
                        let from = VectorLayout {
                            counts: &from.counts,
                            displs: &from.displs,
                        };
                        let to = VectorLayout {
                            counts: &to.counts,
                            displs: &to.displs,
                        };
                        comm.all_to_allv(send, from, recv, to, dtype, stream)
                    }
                    Operation::Barrier => comm.barrier(stream),
                    Operation::SendRecv => Err(Error::internal("sendrecv is two calls")),
                },
            }
        }
    }

    fn pre_mul_sum(&self, scalar: &[u8; 8], dtype: DataType) -> Result<i32> {
        // SAFETY: eight bytes hold one element of any type.
        match unsafe { self.0.create_pre_mul_sum(scalar.as_ptr().cast(), dtype) }? {
            Op::Custom(number) => Ok(number),
            Op::Builtin(op) => Ok(op as i32),
        }
    }

    fn redop_destroy(&self, redop: i32) -> Result<()> {
        internal::redop_destroy(self.0.as_raw(), redop)
    }

    fn destroy(self: Box<Self>) -> Result<()> {
        self.0.destroy()
    }
}

/// Sums a slice over all ranks and waits for the result.
///
/// # Errors
/// The library's.
pub fn sum(comm: &Communicator, values: &[f32], stream: Stream) -> Result<Vec<f32>> {
    let mut result = vec![0f32; values.len()];
    let (send, recv) = (values.as_ptr().cast(), result.as_mut_ptr().cast());
    let op = Op::Builtin(RedOp::Sum);
    // SAFETY: both slices are as long as said and live until the stream is synchronised.
    unsafe { comm.all_reduce(send, recv, values.len(), DataType::Float32, op, stream) }?;
    stream.synchronize()?;
    Ok(result)
}
