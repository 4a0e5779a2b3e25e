//! The 256 bytes of a unique id. All its meaning is in the first 128, since some callers copy
//! only those; the rest is zero and is not looked at.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};
use crate::types::UNIQUE_ID_BYTES;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

const MAGIC: [u8; 8] = *b"FLAGOSID";
/// Version of everything that ranks say to each other before and after they meet.
pub(crate) const PROTOCOL: u16 = 6;
/// More addresses than this do not fit beside the secret.
pub(crate) const MAX_ADDRESSES: usize = 3;
/// Bytes of one address.
const SLOT: usize = 24;
const CHECKED: usize = 120;
const _: () = assert!(32 + MAX_ADDRESSES * SLOT <= CHECKED);

/// The secret that admits a connection to a rendezvous.
pub(crate) type Secret = [u8; 16];

/// What a unique id says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdContent {
    pub addresses: Vec<SocketAddr>,
    pub secret: Secret,
}

fn checksum(bytes: &[u8]) -> u64 {
    // FNV-1a: guards against a damaged id, not against an attacker.
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Writes the id. At most [`MAX_ADDRESSES`] addresses are kept.
pub(crate) fn encode(content: &IdContent) -> [u8; UNIQUE_ID_BYTES] {
    let mut id = [0u8; UNIQUE_ID_BYTES];
    let addresses = &content.addresses[..content.addresses.len().min(MAX_ADDRESSES)];
    id[0..8].copy_from_slice(&MAGIC);
    id[8..10].copy_from_slice(&PROTOCOL.to_le_bytes());
    id[10] = addresses.len() as u8;
    id[16..32].copy_from_slice(&content.secret);
    for (n, address) in addresses.iter().enumerate() {
        let at = &mut id[32 + n * SLOT..][..SLOT];
        at[0..2].copy_from_slice(&address.port().to_le_bytes());
        match address {
            SocketAddr::V4(v4) => {
                at[2] = 4;
                at[4..8].copy_from_slice(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                at[2] = 6;
                at[4..20].copy_from_slice(&v6.ip().octets());
                at[20..24].copy_from_slice(&v6.scope_id().to_le_bytes());
            }
        }
    }
    seal(&mut id);
    id
}

/// Writes the checksum.
pub(crate) fn seal(id: &mut [u8; UNIQUE_ID_BYTES]) {
    let sum = checksum(&id[..CHECKED]);
    id[CHECKED..CHECKED + 8].copy_from_slice(&sum.to_le_bytes());
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

/// Reads an id that a caller passed.
pub(crate) fn decode(id: &[u8; UNIQUE_ID_BYTES]) -> Result<IdContent> {
    if id.iter().all(|byte| *byte == 0) {
        return Err(Error::invalid_argument(
            "the unique id is all zero: it was never filled in. Call flagosGetUniqueId on one \
             rank and give its 256 bytes to all ranks",
        ));
    }
    if id[0..8] != MAGIC {
        return Err(Error::invalid_argument(
            "these bytes are no unique id of flagos-comm (wrong magic): pass what \
             flagosGetUniqueId wrote, all 256 bytes, as binary data",
        ));
    }
    if checksum(&id[..CHECKED]) != u64::from_le_bytes(array(&id[CHECKED..])) {
        return Err(Error::invalid_argument(
            "the unique id is damaged (its checksum is wrong): it was cut or changed on its way; \
             it is binary data and may hold zero bytes",
        ));
    }
    let version = u16::from_le_bytes(array(&id[8..]));
    if version != PROTOCOL {
        return Err(Error::invalid_usage(format!(
            "the unique id was made by a flagos-comm with protocol {version}, this one speaks \
             {PROTOCOL}: use the same version on all ranks"
        )));
    }
    let mut addresses = Vec::new();
    for n in 0..usize::from(id[10]).min(MAX_ADDRESSES) {
        let at = &id[32 + n * SLOT..][..SLOT];
        let port = u16::from_le_bytes(array(at));
        match at[2] {
            4 => addresses.push(SocketAddr::V4(SocketAddrV4::new(
                Ipv4Addr::from(array::<4>(&at[4..])),
                port,
            ))),
            6 => addresses.push(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(array::<16>(&at[4..])),
                port,
                0,
                u32::from_le_bytes(array(&at[20..])),
            ))),
            other => {
                return Err(Error::invalid_argument(format!(
                    "the unique id holds an address of an unknown family ({other})"
                )));
            }
        }
    }
    if addresses.is_empty() {
        return Err(Error::invalid_argument("the unique id holds no address"));
    }
    Ok(IdContent {
        addresses,
        secret: array(&id[16..]),
    })
}

/// The socket address of an interface's address.
pub(crate) fn socket_address(addr: IpAddr, scope: u32, port: u16) -> SocketAddr {
    match addr {
        IpAddr::V4(v4) => SocketAddr::V4(SocketAddrV4::new(v4, port)),
        IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn content() -> IdContent {
        IdContent {
            addresses: vec![
                "10.1.2.3:4711".parse().unwrap(),
                "[fe80::1]:65535".parse().unwrap(),
                "127.0.0.1:1".parse().unwrap(),
            ],
            secret: [0, 1, 2, 3, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0],
        }
    }

    #[test]
    fn id_survives_a_round_trip_and_a_copy_of_its_first_128_bytes() {
        let id = encode(&content());
        assert_eq!(decode(&id).unwrap(), content());
        assert!(id[128..].iter().all(|b| *b == 0));
        let mut half = [0xffu8; UNIQUE_ID_BYTES];
        half[..128].copy_from_slice(&id[..128]);
        assert_eq!(decode(&half).unwrap(), content());
    }

    #[test]
    fn zero_random_and_flipped_ids_are_invalid_arguments() {
        let mut bytes = [0u8; UNIQUE_ID_BYTES];
        assert_eq!(decode(&bytes).unwrap_err().code(), Code::InvalidArgument);
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = (n as u8).wrapping_mul(97).wrapping_add(13);
        }
        assert_eq!(decode(&bytes).unwrap_err().code(), Code::InvalidArgument);
        let id = encode(&content());
        for at in 0..128 {
            let mut damaged = id;
            damaged[at] ^= 0x40;
            assert_eq!(
                decode(&damaged).unwrap_err().code(),
                Code::InvalidArgument,
                "byte {at}"
            );
        }
    }
}
