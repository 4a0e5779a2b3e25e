//! `libnccl`: the engine under the names of NCCL 2.28. What a program may rely on is said in
//! `capi/README.md`.
#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "these are the names of the C API"
)]
#![allow(
    clippy::too_many_arguments,
    reason = "the argument lists are those of the C API"
)]

mod aliases;
#[allow(dead_code, reason = "the native library needs more of it")]
#[path = "../../flagos/src/boundary.rs"]
mod boundary;
mod coll;
mod comm;
mod config;
mod device_side;
mod group;
mod info;
#[path = "../../instance.rs"]
mod instance;
mod mem;
mod p2p;
mod redop;
#[allow(
    dead_code,
    reason = "the library under FlagCX's names needs more of it"
)]
#[path = "../../registry.rs"]
mod registry;
mod skin;
#[allow(
    missing_docs,
    dead_code,
    reason = "NCCL's names, some for the C side only"
)]
mod types;
