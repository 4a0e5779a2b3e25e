//! `libflagos_comm`: the native C library over the engine.
//!
//! The functions are written out one by one, because the header generator sees no others. Their
//! documentation is the header's. Each is `unsafe` with one contract: that of the header.
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

mod boundary;
mod coll;
mod comm;
mod config;
mod device;
#[path = "../../flagcx/src/flagcx_abi/mod.rs"]
mod flagcx_abi;
mod group;
mod info;
#[path = "../../instance.rs"]
mod instance;
mod mem;
mod p2p;
mod plugin;
mod redop;
#[allow(dead_code, reason = "some constants are for the C side only")]
mod types;
