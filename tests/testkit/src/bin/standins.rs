//! Builds the stand-ins of NCCL and CUDA and prints their folder, for use by hand:
//! `LD_LIBRARY_PATH=$(cargo run -q -p flagos-comm-testkit --bin standins) GEMS_VENDOR=nvidia …`.
//! With the argument `bare`, the NCCL stand-in does nothing but return (for counting instructions).

use flagos_comm_testkit::standins::Standins;

fn main() {
    let mut builder = Standins::builder();
    if std::env::args().nth(1).as_deref() == Some("bare") {
        builder = builder.bare();
    }
    println!("{}", builder.build().dir.display());
}
