//! Whether the process runs with more rights than its caller has.

/// Whether the kernel says that the environment must not be trusted with paths (set-user-id
/// programs, file capabilities, security modules). Variables that hold a path are then ignored.
pub(crate) fn at_secure() -> bool {
    // SAFETY: getauxval takes a number, reads the process' own auxiliary vector and touches
    // nothing else.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
