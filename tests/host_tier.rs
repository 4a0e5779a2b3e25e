//! The host tier through the Rust API, on ranks that are threads of this process.

use flagos_comm::*;
use std::ffi::c_void;

#[test]
fn all_reduce_on_two_ranks_of_one_thread() {
    let ranks = Communicator::init_local(2, &Options::default()).unwrap();
    let send: Vec<Vec<f32>> = vec![vec![1.0; 5], vec![2.0; 5]];
    let mut recv = vec![vec![0f32; 5]; 2];
    group(|| {
        for (rank, comm) in ranks.iter().enumerate() {
            // SAFETY: the vectors live until the group has ended.
            unsafe {
                comm.all_reduce(
                    send[rank].as_ptr().cast(),
                    recv[rank].as_mut_ptr().cast::<c_void>(),
                    5,
                    DataType::Float32,
                    RedOp::Sum.into(),
                    Stream::DEFAULT,
                )?;
            }
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(recv, vec![vec![3.0; 5]; 2]);
    for comm in ranks {
        comm.destroy().unwrap();
    }
}
