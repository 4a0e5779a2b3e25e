//! Builds the stand-ins of a vendor (`nvidia` if none is named) and prints their folder, for use by hand:
//! `LD_LIBRARY_PATH=$(cargo run -q -p flagos-comm-testkit --bin standins metax) GEMS_VENDOR=metax …`.
//! With the argument `bare`, the collective library does nothing but return (for counting instructions); an argument with
//! `-D` in front is a define.

use flagos_comm_testkit::standins::Standins;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let vendor = args.iter().find(|a| *a != "bare" && !a.starts_with("-D"));
    let mut builder = Standins::of(vendor.map_or("nvidia", String::as_str));
    for arg in &args {
        if arg == "bare" {
            builder = builder.bare();
        } else if let Some(define) = arg.strip_prefix("-D") {
            builder = builder.define(define);
        }
    }
    println!("{}", builder.build().dir.display());
}
