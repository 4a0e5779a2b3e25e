//! Unique ids, and the interface on which others are told to come.
#![forbid(unsafe_code)]

use crate::bootstrap::interface::{self, Family, Filter};
use crate::bootstrap::rendezvous;
use crate::bootstrap::unique_id::IdContent;
use crate::config::{self, SocketFamily};
use crate::error::Result;
use crate::types::UNIQUE_ID_BYTES;
use std::time::Duration;

/// How long an id that nobody uses is served, as a multiple of the init deadline.
const UNUSED_ID_FACTOR: u32 = 10;

pub(super) fn family() -> Family {
    match config::get().socket_family {
        None => Family::Any,
        Some(SocketFamily::Ipv4) => Family::V4,
        Some(SocketFamily::Ipv6) => Family::V6,
    }
}

/// The interface filter in force: ours, else the one that the user gave to a vendor.
pub(super) fn filter() -> Option<Filter> {
    if let Some(own) = &config::get().socket_ifname {
        return Some(Filter::parse("FLAGOSCOMM_SOCKET_IFNAME", own));
    }
    for name in [
        "NCCL_SOCKET_IFNAME",
        "FLAGCX_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
    ] {
        if let Some(value) = config::foreign(name) {
            let value = value.to_string_lossy().into_owned();
            log::info!("{name}={value} guides the choice of the control interface");
            return Some(Filter::parse(name, &value));
        }
    }
    let address = config::foreign("HCCL_IF_IP")?
        .to_string_lossy()
        .into_owned();
    let wanted: std::net::IpAddr = address.parse().ok()?;
    let all = crate::sys::net::interfaces().ok()?;
    let name = &all.iter().find(|i| i.addr == wanted)?.name;
    log::info!("HCCL_IF_IP={address} guides the choice of the control interface");
    Some(Filter::parse("HCCL_IF_IP", &format!("={name}")))
}

fn unused_limit() -> Option<Duration> {
    config::get()
        .timeouts
        .init
        .map(|limit| limit * UNUSED_ID_FACTOR)
}

/// Makes a unique id and serves it from this process.
pub fn get_unique_id() -> Result<[u8; UNIQUE_ID_BYTES]> {
    rendezvous::start(filter().as_ref(), family(), unused_limit())
}

/// An id whose ranks are all in this process.
pub(super) fn local_unique_id() -> Result<[u8; UNIQUE_ID_BYTES]> {
    let loopback = Filter::parse("loopback", "=lo");
    rendezvous::start(Some(&loopback), Family::Any, unused_limit()).or_else(|_| get_unique_id())
}

/// A rendezvous on loopback is met on loopback.
pub(super) fn filter_for(id: &IdContent) -> Option<Filter> {
    if id.addresses.iter().all(|a| a.ip().is_loopback()) {
        let lo = crate::sys::net::interfaces().ok()?;
        if interface::choose(&lo, Some(&Filter::parse("loopback", "=lo")), family()).is_ok() {
            return Some(Filter::parse("loopback", "=lo"));
        }
    }
    filter()
}
