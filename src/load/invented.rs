//! A vendor of NCCL's shape is data: a row for one that doesn't exist, with names that nothing else
//! has, makes the public API run on its libraries. They are stand-ins, built of the same sources as
//! the others' under these names.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use flagos_comm_testkit::ranks;
use flagos_comm_testkit::standins::{CallLog, Standins};

use super::tests::{has_compiler, temp};
use crate::{Communicator, DataType, Op, Options, RedOp, Stream, UniqueId, config, internal};

/// Its key.
pub(super) const KEY: &str = "invented";

const FOLDER: &str = "INVENTED_TEST_FOLDER";
const RANK: &str = "INVENTED_TEST_RANK";
const COUNT: usize = 1000;

/// The id that rank 0 made, through a file.
fn exchange(folder: &Path, rank: usize) -> UniqueId {
    let file = folder.join("id");
    if rank == 0 {
        let id = UniqueId::new().unwrap();
        std::fs::write(folder.join("new"), id.as_bytes()).unwrap();
        std::fs::rename(folder.join("new"), &file).unwrap();
        return id;
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match std::fs::read(&file) {
            Ok(bytes) => return UniqueId::from_bytes(bytes.try_into().unwrap()),
            Err(_) => assert!(Instant::now() < deadline, "rank 0 made no id"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Not a test of its own: a rank, if the environment says which.
#[test]
fn rank() {
    let (Some(folder), Ok(rank)) = (std::env::var_os(FOLDER), std::env::var(RANK)) else {
        return;
    };
    let rank: usize = rank.parse().unwrap();
    crate::log::install();
    internal::set_device(i32::try_from(rank).unwrap()).unwrap();
    let id = exchange(Path::new(&folder), rank);
    let comm = Communicator::init_rank(2, &id, rank, &Options::default()).unwrap();
    let info = comm.info().unwrap();
    assert_eq!((info.tier, info.vendor.as_str()), (1, KEY), "{info:?}");
    assert!(info.library_path.ends_with("libzccl.so.1"), "{info:?}");
    assert_eq!(info.library_version, 21803);

    let stream = Stream::create().unwrap();
    let bytes = COUNT * size_of::<f32>();
    let device = internal::mem_alloc(bytes).unwrap();
    let mut host: Vec<f32> = (0..COUNT).map(|i| (i * (rank + 1)) as f32).collect();
    let op = Op::Builtin(RedOp::Sum);
    // SAFETY: both blocks have as many bytes as said and live until the stream is synchronised; 0 and 1
    // are the directions to and from the device.
    unsafe {
        internal::memcpy_async(device, host.as_ptr().cast(), bytes, 0, stream.0).unwrap();
        comm.all_reduce(device, device, COUNT, DataType::Float32, op, stream)
            .unwrap();
        internal::memcpy_async(host.as_mut_ptr().cast(), device, bytes, 1, stream.0).unwrap();
    }
    stream.synchronize().unwrap();
    let wanted: Vec<f32> = (0..COUNT).map(|i| (i * 3) as f32).collect();
    assert_eq!(host, wanted);

    internal::mem_free(device).unwrap();
    stream.destroy().unwrap();
    comm.destroy().unwrap();
    println!("rank {rank} is done");
}

#[test]
fn a_vendor_is_data_only() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::of(KEY).build();
    let folder = temp("invented");
    let log = folder.join("log");
    for name in [KEY, " Made_Up"] {
        let _ = std::fs::remove_file(folder.join("id"));
        let outputs = ranks::run_ok(
            2,
            |rank| {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "load::invented::rank", "--nocapture"]);
                for var in config::FOREIGN {
                    command.env_remove(var.name);
                }
                standins
                    .env(&mut command)
                    .env(FOLDER, &folder)
                    .env(RANK, rank.to_string())
                    .env("GEMS_VENDOR", name)
                    .env("FLAGOSCOMM_INIT_TIMEOUT", "30")
                    .env("FAKE_LOG", &log);
                command
            },
            Duration::from_secs(60),
        );
        for (rank, output) in outputs.iter().enumerate() {
            let done = format!("rank {rank} is done");
            assert!(output.stdout.contains(&done), "{}", output.stdout);
        }
    }
    // The libraries under these names did it, twice on two ranks.
    let calls = CallLog::read(&log);
    let reductions = calls.iter().filter(|c| c.name == "zcclAllReduce").count();
    assert_eq!(reductions, 4);
    assert!(calls.iter().any(|c| c.name == "zrtMemcpyAsync"));
    assert!(calls.iter().all(|c| !c.name.starts_with("nccl")));
}
