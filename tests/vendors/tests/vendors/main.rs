//! Every vendor's row over its stand-ins, from C: the whole numeric matrix, the numbers that each library gets, and what was
//! reported of other libraries' handling of these vendors.
//!
//! The programs are those of `tests/c/vendors`. The stand-ins prove dispatch and ABI, not the vendor.

mod facts;
mod flagcx;
mod matrix;
mod perf;
mod reports;
mod turns;
