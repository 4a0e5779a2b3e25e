//! FlagCX's adaptor plugins. FlagCX opens this library if `FLAGCX_CCL_ADAPTOR_PLUGIN` or
//! `FLAGCX_DEVICE_ADAPTOR_PLUGIN` is its path, looks up one table each, copies it, and calls the functions in it in
//! place of its own. It refuses a table with a NULL where it needs a function, and tells nobody.

mod ccl;
mod device;

pub(crate) use ccl::communicators;

/// A table of functions that other threads read and nobody changes.
#[repr(transparent)]
pub struct Table<T>(T);

// SAFETY: addresses of functions and of constants.
unsafe impl<T> Sync for Table<T> {}
