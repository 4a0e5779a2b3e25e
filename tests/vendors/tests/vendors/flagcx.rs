//! FlagCX as a tier.

use crate::facts::Fact;
use flagos_comm_testkit::Standins;
use flagos_comm_testkit::cargo;
use flagos_comm_testkit::scenario::{Scenario, has, scratch};

const ORDER: &str = "flagcx,native,host";

fn standins(key: &str) -> Standins {
    Fact::of(key).builder().flagcx().build()
}

/// Over FlagCX every vendor has FlagCX's types and operators.
fn over_flagcx(key: &str, program: &'static str, name: &'static str) -> Scenario {
    let moves = "111111111100";
    let reduces: Vec<&str> = (0..12)
        .map(|d| if d < 10 { "11111" } else { "00000" })
        .collect();
    let calls = [
        "AllReduce",
        "Reduce",
        "ReduceScatter",
        "Broadcast",
        "AllGather",
        "Gather",
        "Scatter",
        "AlltoAll",
        "AlltoAllv",
        "Send",
        "Recv",
    ];
    let calls: Vec<String> = calls.iter().map(|c| format!("flagcx{c}")).collect();
    let run = Fact::of(key).over(&standins(key), program, name);
    run.env("FLAGOSCOMM_TIERS", ORDER)
        .env("TIER", "2")
        .env("MOVES", moves)
        .env("WIDE", moves)
        .env("REDUCES", reduces.join(" "))
        .env("VENDOR_CALLS", calls.join(","))
}

#[test]
fn flagcx_computes_what_the_reference_does() {
    for ranks in [1, 2, 3] {
        let outcome = over_flagcx("nvidia", "matrix", "matrix").ranks(ranks).ok();
        assert!(outcome.calls("ncclCommInitRank").is_empty());
        assert_eq!(outcome.calls("flagcxCommInitRank").len(), ranks);
    }
}

/// Ranks of several vendors have FlagCX in common.
#[test]
fn ranks_of_two_vendors_meet_over_flagcx() {
    let (nvidia, ascend) = (standins("nvidia"), standins("ascend"));
    let run = over_flagcx("nvidia", "rows", "init").ranks(2);
    let run = run.over_instead(&nvidia.dir).over(&ascend.dir);
    let machine = ascend.machine();
    let machine = machine.file_name().expect("a file").to_str().expect("text");
    let outcome = run
        .env_of(1, "GEMS_VENDOR", "ascend")
        .env_of(1, "VENDOR", "ascend")
        .env_of(1, "MACHINE", machine)
        // Inside the stand-ins of FlagCX both are NCCL's, whose versions must be the same.
        .env("FAKE_CCL_VERSION", "23203")
        .ok();
    for rank in 0..2 {
        assert_eq!(outcome.said_by(rank, "tier"), "2", "{}", outcome.report());
        has(outcome.said_by(rank, "library"), &["libflagcx.so"]);
    }
}

/// A value that FlagCX would end the process for: said, and the next tier is used.
#[test]
fn a_value_that_flagcx_cannot_read_is_said() {
    let names = ["FLAGCX_USE_HETERO_COMM", "FLAGCX_USE_HOST_COMM"];
    // Set to nothing is no number to FlagCX either.
    for (name, value) in names
        .into_iter()
        .flat_map(|n| ["yes", "", " "].map(|v| (n, v)))
    {
        let outcome = over_flagcx("nvidia", "rows", "init").env(name, value).ok();
        assert_eq!(outcome.said("tier"), "1", "{}", outcome.report());
        assert!(outcome.calls("flagcxCommInitRank").is_empty());
        let run = over_flagcx("nvidia", "rows", "init").env(name, value);
        let outcome = run.env("FLAGOSCOMM_TIERS", "flagcx").ok();
        assert_ne!(outcome.said("init"), "0");
        has(outcome.said("text"), &[name, &format!("{value:?}")]);
    }
}

/// Our own libflagcx.so is no FlagCX, wherever it is found.
#[test]
fn our_own_skin_is_never_taken_for_flagcx() {
    let skin = match std::env::var_os("FLAGOSCOMM_TEST_FLAGCX_SKIN") {
        Some(path) => path.into(),
        None => cargo::release("libflagcx.so"),
    };
    let nvidia = Fact::of("nvidia");
    let dir = scratch();
    for entry in std::fs::read_dir(&nvidia.standins().dir)
        .expect("the folder")
        .flatten()
    {
        std::os::unix::fs::symlink(entry.path(), dir.join(entry.file_name())).expect("a link");
    }
    std::os::unix::fs::symlink(&skin, dir.join("libflagcx.so")).expect("a link");
    let run = || over_flagcx("nvidia", "rows", "init").over_instead(&dir);
    let outcome = run().ok();
    assert_eq!(outcome.said("tier"), "1", "{}", outcome.report());
    let outcome = run().env("FLAGOSCOMM_TIERS", "flagcx").ok();
    assert_ne!(outcome.said("init"), "0");
    has(outcome.said("text"), &["libflagcx.so"]);
    // Named by its path.
    let outcome = run()
        .env("FLAGOSCOMM_FLAGCX_LIBRARY", &skin)
        .env("FLAGOSCOMM_TIERS", "flagcx")
        .ok();
    assert_ne!(outcome.said("init"), "0");
    has(outcome.said("text"), &[skin.to_str().expect("text")]);
}
