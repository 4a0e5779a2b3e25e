//! All ranks agree on the tier, or all fail with the same reason; what can't be loaded is said.

use crate::kit::{Outcome, has, scenario, scratch, variant};
use flagos_comm_testkit::{Broken, Standins};
use std::path::{Path, PathBuf};

fn tiers(outcome: &Outcome) -> Vec<&str> {
    let all = 0..outcome.outputs.len();
    all.map(|r| outcome.said_by(r, "tier")).collect()
}

/// HG-1: one rank's vendor init fails; all go to the host tier and say why.
#[test]
fn a_failed_init_of_one_rank_takes_all_to_the_host_tier() {
    let outcome = scenario("agree", "init")
        .ranks(3)
        .env_of(1, "FAKE_FAIL", "ncclCommInitRank:1")
        .ok();
    assert_eq!(tiers(&outcome), ["3", "3", "3"]);
    has(
        &outcome.stderr(),
        &["WARN", "rank 1", "ncclCommInitRank failed with 1"],
    );
}

/// HG-1: if only the vendor is allowed, it is the same error everywhere, in time.
#[test]
fn a_failed_init_without_another_tier_is_the_same_error_everywhere() {
    let outcome = scenario("agree", "init")
        .ranks(3)
        .env("FLAGOSCOMM_TIERS", "native")
        .env_of(1, "FAKE_FAIL", "ncclCommInitRank:1")
        .ok();
    for rank in 0..3 {
        assert_eq!(outcome.said_by(rank, "init"), outcome.said("init"));
        has(
            outcome.said_by(rank, "text"),
            &["rank 1", "ncclCommInitRank failed with 1", "no tier"],
        );
    }
    assert_ne!(outcome.said("init"), "0");
}

/// HG-1: a rank without the library.
#[test]
fn a_missing_library_on_one_rank_takes_all_to_the_host_tier() {
    let (whole, without) = (
        Standins::builder().build(),
        Standins::builder().without("libnccl.so.2").build(),
    );
    let ranks = || {
        scenario("agree", "init")
            .ranks(2)
            .over(&whole.dir)
            .over(&without.dir)
    };
    let outcome = ranks().ok();
    assert_eq!(tiers(&outcome), ["3", "3"]);
    has(&outcome.outputs[1].stderr, &["WARN", "libnccl.so.2"]);
    assert!(outcome.calls("ncclCommInitRank").is_empty());
    let outcome = ranks().env("FLAGOSCOMM_TIERS", "native").ok();
    for text in outcome.texts() {
        has(text, &["rank 1", "libnccl.so.2"]);
    }
}

/// Design 11: different versions are an error on all ranks that names both files.
#[test]
fn different_versions_are_refused_with_both_paths() {
    let (new, old) = (
        Standins::builder().build(),
        Standins::builder().nccl_version(22707).build(),
    );
    let outcome = scenario("agree", "init")
        .ranks(2)
        .over(&new.dir)
        .over(&old.dir)
        .ok();
    for rank in 0..2 {
        assert_eq!(outcome.said_by(rank, "init"), "5");
        let paths = [new.nccl(), old.nccl()];
        let paths: Vec<&str> = paths.iter().filter_map(|p| p.to_str()).collect();
        has(
            outcome.said_by(rank, "text"),
            &["23203", "22707", paths[0], paths[1]],
        );
    }
    assert!(outcome.calls("ncclCommInitRank").is_empty());
}

/// LD-1: a typo is an error with the names, and nothing is opened; blanks and case don't matter; blank is unset.
#[test]
fn the_vendors_name_is_checked() {
    let outcome = scenario("agree", "init").env("GEMS_VENDOR", "nvidai").ok();
    assert_eq!(outcome.said("init"), "4");
    has(
        outcome.said("text"),
        &["nvidai", "nvidia", "ascend", "metax"],
    );
    assert!(outcome.log.is_empty(), "{:?}", outcome.log);
    for value in [" NVIDIA ", "", "cuda", "  "] {
        let outcome = scenario("agree", "init").env("GEMS_VENDOR", value).ok();
        assert_eq!(
            (outcome.said("tier"), outcome.said("vendor")),
            ("1", "nvidia"),
            "{value:?}"
        );
    }
}

fn folder_with(name: &str) -> PathBuf {
    let (whole, dir) = (Standins::builder().build(), scratch());
    for (target, link) in [
        (whole.nccl(), name.to_owned()),
        (whole.cuda(), "libcuda.so.1".to_owned()),
        (whole.cudart(), "libcudart.so.13".to_owned()),
    ] {
        std::os::unix::fs::symlink(target, dir.join(link)).expect("the folder can be written");
    }
    dir
}

/// LD-2: whatever name a distribution gives it.
#[test]
fn versioned_and_unversioned_names_are_found() {
    for name in ["libnccl.so.2", "libnccl.so"] {
        let outcome = scenario("agree", "init").over(&folder_with(name)).ok();
        assert_eq!(outcome.said("tier"), "1");
        has(outcome.said("library"), &[&format!("/{name}")]);
    }
}

/// LD-2: an override that can't be used is said with its path, and is an error where there is no other tier.
#[test]
fn a_bad_override_is_said() {
    let empty = scratch();
    for value in [empty.clone(), empty.join("libnccl.so.2")] {
        let text = value.to_str().expect("text");
        let run = || scenario("agree", "init").env("FLAGOSCOMM_NVIDIA_LIBRARY", text);
        let outcome = run().ok();
        assert_eq!(outcome.said("tier"), "3");
        has(&outcome.stderr(), &["WARN", text]);
        let outcome = run().env("FLAGOSCOMM_TIERS", "native").ok();
        assert_ne!(outcome.said("init"), "0");
        has(outcome.said("text"), &[text]);
    }
}

/// LD-2: named and absent: every place that was tried.
#[test]
fn a_named_vendor_that_is_absent_is_a_warning_or_an_error() {
    let nothing = scratch();
    let run = || {
        scenario("agree", "init")
            .over(&nothing)
            .env("GEMS_VENDOR", "nvidia")
    };
    let outcome = run().ok();
    assert_eq!(outcome.said("tier"), "3");
    has(
        &outcome.stderr(),
        &[
            "WARN",
            "GEMS_VENDOR names nvidia",
            "libcuda.so.1",
            "libcudart.so.13",
        ],
    );
    let outcome = run().env("FLAGOSCOMM_TIERS", "native").ok();
    assert_ne!(outcome.said("init"), "0");
    has(outcome.said("text"), &["libcuda.so.1", "libcudart.so.13"]);
    // The driver is there, the collective library is not.
    let without = Standins::builder().without("libnccl.so.2").build();
    let outcome = scenario("agree", "init").over(&without.dir).ok();
    assert_eq!(outcome.said("tier"), "3");
    has(&outcome.stderr(), &["WARN", "libnccl.so.2", "libnccl.so"]);
}

/// HG-2 through the C interface: the loader's own words.
#[test]
fn a_broken_library_is_said_in_the_loaders_words() {
    for (broken, words) in [
        (Broken::Text, "file too short"),
        (Broken::MissingDependency, "libfoo.so.9"),
        (Broken::Empty, "it is not NVIDIA NCCL"),
    ] {
        let standins = Standins::builder().broken_nccl(broken).build();
        let outcome = scenario("agree", "init")
            .over(&standins.dir)
            .env("FLAGOSCOMM_TIERS", "native")
            .ok();
        has(outcome.said("text"), &[words]);
    }
}

/// LD-3: each optional symbol is missed by its own call only.
#[test]
fn missing_optional_symbols_hurt_nothing_else() {
    for (symbol, line) in [
        ("ncclCommAbort", ""),
        ("ncclGetLastError", ""),
        ("ncclCommFinalize", ""),
        ("ncclCommGetAsyncError", ""),
        ("ncclCommCount", ""),
        ("ncclRedOpCreatePreMulSum", "premulsum"),
        ("ncclCommSuspend", "suspend"),
        ("ncclGroupSimulateEnd", "simulate"),
    ] {
        let standins = Standins::builder().omit(symbol).build();
        let outcome = scenario("agree", "init")
            .over(&standins.dir)
            .env("OPTIONAL", "1")
            .ok();
        assert_eq!(outcome.said("tier"), "1", "{symbol}");
        for name in ["premulsum", "suspend", "simulate", "finalize"] {
            let said = outcome.said(name);
            if name == line {
                has(said, &["9 ", symbol]);
            } else {
                assert!(said.starts_with("0"), "{symbol}: {name}: {said}");
            }
        }
        assert_eq!(outcome.said("async"), "0 0", "{symbol}");
        // The vendor's group is closed again, whether it can simulate or not.
        let calls = &outcome.between("simulate")[0];
        let of = |end: &str| calls.iter().filter(|c| c.name == end).count();
        let end = if line == "simulate" {
            "ncclGroupEnd"
        } else {
            "ncclGroupSimulateEnd"
        };
        assert_eq!(
            (of("ncclGroupStart"), of(end)),
            (1, 1),
            "{symbol}: {calls:?}"
        );
        assert_eq!(outcome.said("destroy").trim(), "0", "{symbol}");
    }
}

/// LD-3: a required one is missing.
#[test]
fn a_missing_required_symbol_is_named() {
    let standins = Standins::builder().omit("ncclAllReduce").build();
    let outcome = scenario("agree", "init")
        .over(&standins.dir)
        .env("FLAGOSCOMM_TIERS", "native")
        .ok();
    assert_ne!(outcome.said("init"), "0");
    has(
        outcome.said("text"),
        &["lacks ncclAllReduce", "libnccl.so.2"],
    );
    let outcome = scenario("agree", "init").over(&standins.dir).ok();
    assert_eq!(outcome.said("tier"), "3");
}

fn on_a_bare_machine(library: &Path) {
    let outcome = scenario("agree", "init")
        .library(library)
        .over(&scratch())
        .ok();
    assert_eq!(outcome.said("tier"), "3");
    assert_eq!(outcome.stderr(), "", "nothing to warn of");
}

/// LD-4: no driver at all, also where a panic would end the process.
#[test]
fn no_driver_is_no_panic() {
    on_a_bare_machine(&crate::kit::library());
    let abort = variant("panic-abort", &[], &[("CARGO_PROFILE_DEV_PANIC", "abort")]);
    on_a_bare_machine(&abort);
}
