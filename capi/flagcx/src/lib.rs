//! `libflagcx`: the engine under the names of FlagCX 0.13. What a program may rely on is said in
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

#[allow(dead_code, reason = "the native library needs more of it")]
#[path = "../../flagos/src/boundary.rs"]
mod boundary;
mod coll;
mod comm;
mod devcomm;
mod device;
mod flagcx_abi;
mod group;
mod handles;
mod info;
#[path = "../../instance.rs"]
mod instance;
mod mem;
mod onesided;
#[allow(dead_code, reason = "the library under NCCL's names needs more of it")]
#[path = "../../registry.rs"]
mod registry;
#[allow(
    missing_docs,
    dead_code,
    reason = "FlagCX's names, some for the C side only"
)]
mod types;
