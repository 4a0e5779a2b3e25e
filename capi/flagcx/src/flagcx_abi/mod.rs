//! FlagCX's ABI, as far as its API (`libflagcx.so`) and its adaptor plugins (in `libflagos_comm.so`) share it.

pub(crate) mod device;
pub(crate) mod handles;
pub(crate) mod operations;
pub(crate) mod skin;
#[allow(
    missing_docs,
    dead_code,
    reason = "FlagCX's names, some for the C side only"
)]
pub(crate) mod types;
