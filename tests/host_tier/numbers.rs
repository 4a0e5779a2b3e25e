//! Numbers that went wrong elsewhere.

use super::{all_reduce, sum, with_ranks};
use flagos_comm::{Communicator, DataType, Op, RedOp, Stream, VectorLayout};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

const NOW: Stream = Stream::DEFAULT;

/// NU-2: count 0 is a call like any other, touches nothing, and keeps the ranks in step.
#[test]
fn count_zero_keeps_the_ranks_in_step() {
    with_ranks(3, |rank, comm| {
        let op: Op = RedOp::Avg.into();
        let t = DataType::Float32;
        for root in 0..3 {
            // SAFETY: nothing is read or written with count 0.
            unsafe {
                comm.all_reduce(null(), null_mut(), 0, t, op, NOW).unwrap();
                comm.broadcast(null(), null_mut(), 0, t, root, NOW).unwrap();
                comm.reduce(null(), null_mut(), 0, t, op, root, NOW)
                    .unwrap();
                comm.all_gather(null(), null_mut(), 0, t, NOW).unwrap();
                comm.reduce_scatter(null(), null_mut(), 0, t, op, NOW)
                    .unwrap();
                comm.gather(null(), null_mut(), 0, t, root, NOW).unwrap();
                comm.scatter(null(), null_mut(), 0, t, root, NOW).unwrap();
                comm.all_to_all(null(), null_mut(), 0, t, NOW).unwrap();
                // An empty message, in a ring.
                flagos_comm::group(|| {
                    comm.send(null(), 0, t, (rank + 1) % 3, NOW)?;
                    comm.recv(null_mut(), 0, t, (rank + 2) % 3, NOW)
                })
                .unwrap();
            }
            assert_eq!(sum(comm, rank as f32), 3.0);
        }
    });
}

/// A small generator, the same on all ranks.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// NU-2: AlltoAllv with zeros anywhere, also a rank that neither sends nor receives.
#[test]
fn alltoallv_with_random_zeros() {
    const N: usize = 3;
    with_ranks(N, |rank, comm| {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for round in 0..40 {
            let mut counts = [[0usize; N]; N];
            for (from, row) in counts.iter_mut().enumerate() {
                for (to, count) in row.iter_mut().enumerate() {
                    let r = random(&mut state);
                    let silent = round % 4 == 0 && (from == round % N || to == round % N);
                    if !r.is_multiple_of(3) && !silent {
                        *count = (r >> 8) as usize % 2000;
                    }
                }
            }
            let displs = |side: &[usize; N]| {
                let mut at = 0;
                side.map(|count| {
                    at += count;
                    at - count
                })
            };
            let send_counts = counts[rank];
            let recv_counts = [0, 1, 2].map(|from: usize| counts[from][rank]);
            let (send_displs, recv_displs) = (displs(&send_counts), displs(&recv_counts));
            let mut send = Vec::new();
            for (to, count) in send_counts.iter().enumerate() {
                send.extend((0..*count).map(|i| (rank * 100_000 + to * 10_000 + i) as i32));
            }
            let mut recv = vec![-1i32; recv_counts.iter().sum()];
            let nothing = send.is_empty() && recv.is_empty();
            // SAFETY: the layouts describe the vectors, which live until the call returns.
            unsafe {
                comm.all_to_allv(
                    if nothing {
                        null()
                    } else {
                        send.as_ptr().cast()
                    },
                    VectorLayout {
                        counts: &send_counts,
                        displs: &send_displs,
                    },
                    if nothing {
                        null_mut()
                    } else {
                        recv.as_mut_ptr().cast()
                    },
                    VectorLayout {
                        counts: &recv_counts,
                        displs: &recv_displs,
                    },
                    DataType::Int32,
                    NOW,
                )
                .unwrap();
            }
            for from in 0..N {
                for i in 0..recv_counts[from] {
                    let wanted = (from * 100_000 + rank * 10_000 + i) as i32;
                    assert_eq!(recv[recv_displs[from] + i], wanted, "round {round}");
                }
            }
            assert_eq!(sum(comm, 1.0), 3.0);
        }
    });
}

/// AllReduce, Reduce and ReduceScatter of what each rank brings; every rank's result must be `wanted`.
fn reduced<T: Copy + PartialEq + std::fmt::Debug + Send + Sync>(
    op: RedOp,
    dtype: DataType,
    inputs: &[Vec<T>],
    wanted: &[T],
) {
    let n = inputs.len();
    let count = wanted.len();
    with_ranks(n, |rank, comm: &Communicator| {
        let mut values = inputs[rank].clone();
        all_reduce(comm, &mut values, dtype, op, NOW).unwrap();
        assert_eq!(values, wanted, "AllReduce {op:?} {dtype:?} on rank {rank}");

        let send = &inputs[rank];
        let mut values = send.clone();
        // SAFETY: both vectors have `count` elements and live until the call returns.
        unsafe {
            let recv = values.as_mut_ptr().cast::<c_void>();
            comm.reduce(send.as_ptr().cast(), recv, count, dtype, op.into(), 1, NOW)
                .unwrap();
        }
        assert_eq!(values, if rank == 1 { wanted } else { &send[..] });

        let wide: Vec<T> = (0..n).flat_map(|_| send.iter().copied()).collect();
        // SAFETY: `wide` has n * count elements and `values` has count.
        unsafe {
            let recv = values.as_mut_ptr().cast::<c_void>();
            comm.reduce_scatter(wide.as_ptr().cast(), recv, count, dtype, op.into(), NOW)
                .unwrap();
        }
        assert_eq!(values, wanted, "ReduceScatter {op:?} {dtype:?}");
    });
}

/// NU-3: integer averages divide the whole sum by the number of ranks and cut toward zero.
#[test]
fn integer_averages_truncate_toward_zero() {
    let by_rank = |values: [i64; 3]| values.map(|v| vec![v; 7]);
    reduced(
        RedOp::Avg,
        DataType::Int32,
        &by_rank([1, 2, 4]).map(|v| v.iter().map(|x| *x as i32).collect::<Vec<i32>>()),
        &[2; 7],
    );
    reduced(
        RedOp::Avg,
        DataType::Int32,
        &by_rank([-1, -2, -4]).map(|v| v.iter().map(|x| *x as i32).collect::<Vec<i32>>()),
        &[-2; 7],
    );
    reduced(
        RedOp::Avg,
        DataType::Int64,
        &by_rank([-1, 0, -1]),
        &[0i64; 7],
    );
    reduced(
        RedOp::Avg,
        DataType::Uint8,
        &[vec![1u8; 7], vec![2; 7], vec![5; 7]],
        &[2; 7],
    );
    // Beyond what a double holds.
    let big = (1u64 << 62) + 1;
    reduced(
        RedOp::Avg,
        DataType::Uint64,
        &[vec![big; 7], vec![big + 3; 7], vec![big + 5; 7]],
        &[big + 2; 7],
    );
}

/// NU-3: sums of integers wrap, also where overflow is checked.
#[test]
fn integer_sums_wrap() {
    let (a, b) = (vec![120i8; 7], vec![100i8; 7]);
    reduced(RedOp::Sum, DataType::Int8, &[a, b], &[-36; 7]);
    let (a, b) = (vec![u64::MAX; 7], vec![3u64; 7]);
    reduced(RedOp::Sum, DataType::Uint64, &[a, b], &[2; 7]);
    let (a, b) = (vec![i32::MAX; 7], vec![2i32; 7]);
    reduced(RedOp::Prod, DataType::Int32, &[a, b], &[-2; 7]);
}

/// NU-4: 16-bit floats are added in f32 and rounded once.
#[test]
fn sixteen_bit_floats_round_once() {
    let bf16 = |v: f32| (v.to_bits() >> 16) as u16;
    let inputs = [256.0, 1.0, 1.0, 1.0].map(|v| vec![bf16(v); 7]);
    // 259 lies between 258 and 260; the even one is 260.
    reduced(RedOp::Sum, DataType::Bfloat16, &inputs, &[bf16(260.0); 7]);
    // 60000, 10000, -10000 as binary16: no infinity on the way.
    let (a, b, c) = (vec![0x7b53u16; 7], vec![0x70e2; 7], vec![0xf0e2; 7]);
    reduced(RedOp::Sum, DataType::Float16, &[a, b, c], &[0x7b53; 7]);
}

/// NU-4: NaN stays NaN, infinities and denormals are right, and all ranks have the same bits.
#[test]
fn special_values_survive() {
    type Right = fn(f32) -> bool;
    let cases: [(RedOp, [f32; 3], Right); 6] = [
        (RedOp::Max, [1.0, f32::NAN, 2.0], f32::is_nan),
        (RedOp::Min, [f32::NAN, 1.0, 2.0], f32::is_nan),
        (
            RedOp::Sum,
            [f32::INFINITY, 1.0, f32::NEG_INFINITY],
            f32::is_nan,
        ),
        (RedOp::Sum, [f32::INFINITY, 1.0, 2.0], |v| {
            v == f32::INFINITY
        }),
        (RedOp::Sum, [1e-45, 1e-45, 0.0], |v| v == 2.8e-45),
        (RedOp::Avg, [f32::NAN, 1.0, 1.0], f32::is_nan),
    ];
    for (op, inputs, right) in cases {
        let bits = with_ranks(3, |rank, comm| {
            let mut values = vec![inputs[rank]; 1000];
            all_reduce(comm, &mut values, DataType::Float32, op, NOW).unwrap();
            assert!(
                values.iter().all(|v| right(*v)),
                "{op:?} {inputs:?}: {values:?}"
            );
            values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>()
        });
        assert!(bits.iter().all(|b| *b == bits[0]), "{op:?} {inputs:?}");
    }
}
