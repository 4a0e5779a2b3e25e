//! The marker that each of the three shared libraries exports.
//!
//! A loader of this project that opens a file under a vendor's name looks for this symbol first: a
//! file that has it is one of the project's own libraries, and is never taken for the vendor's.

/// What the marker symbol points to. The layout never changes; new fields go behind.
#[repr(C)]
pub struct Instance {
    /// `"FLAGOSC1"` as bytes.
    pub magic: [u8; 8],
    /// Version of the library as in `flagosGetVersion`.
    pub version: i32,
    /// Size of this struct.
    pub size: u32,
    /// `flagos_comm`, `flagcx` or `nccl`, zero-terminated.
    pub kind: [u8; 16],
}

const fn kind(name: &str) -> [u8; 16] {
    let bytes = name.as_bytes();
    assert!(bytes.len() < 16);
    let mut kind = [0; 16];
    let mut i = 0;
    while i < bytes.len() {
        kind[i] = bytes[i];
        i += 1;
    }
    kind
}

const fn number(text: &str) -> i32 {
    let bytes = text.as_bytes();
    let mut value = 0;
    let mut i = 0;
    while i < bytes.len() {
        assert!(bytes[i].is_ascii_digit());
        value = value * 10 + (bytes[i] - b'0') as i32;
        i += 1;
    }
    value
}

/// The marker of this library.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a C symbol")]
pub static flagos_comm_instance: Instance = Instance {
    magic: *b"FLAGOSC1",
    version: number(env!("CARGO_PKG_VERSION_MAJOR")) * 10000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + number(env!("CARGO_PKG_VERSION_PATCH")),
    size: size_of::<Instance>() as u32,
    kind: kind(env!("CARGO_CRATE_NAME")),
};
