//! Inits at once.

use crate::facts::on_every_row;

/// Two communicators from two threads, in the opposite order on the other rank. The stand-ins of HCCL and CNCL refuse, or wait
/// for ever, as theirs do.
#[test]
fn two_inits_at_once_in_opposite_orders() {
    on_every_row(
        |_| true,
        |fact| {
            let run = fact.scenario("rows", "turns").ranks(2).limit(40);
            run.env("FLAGOSCOMM_INIT_TIMEOUT", "10").ok();
        },
    );
}
