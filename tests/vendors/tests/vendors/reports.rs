//! What was reported of other libraries' handling of these vendors, on every row that it applies to.

use crate::facts::{FACTS, Fact, on_every_row};
use flagos_comm_testkit::scenario::{Outcome, Scenario, has, scratch};
use flagos_comm_testkit::{Broken, Standins};
use std::path::PathBuf;

/// An init over other libraries than the complete ones.
fn init_over(fact: &Fact, standins: &Standins) -> Scenario {
    fact.over(standins, "rows", "init")
}

fn is_native(outcome: &Outcome, fact: &Fact) {
    assert_eq!(outcome.said("tier"), "1", "{}", outcome.report());
    assert_eq!(outcome.said("vendor"), fact.key);
}

/// A failed init where only the vendor was allowed; its text.
fn refused(outcome: &Outcome) -> &str {
    assert_ne!(outcome.said("init"), "0", "{}", outcome.report());
    outcome.said("text")
}

/// All files of a folder, with the collective library under another name.
fn with_name(standins: &Standins, name: &str) -> PathBuf {
    let dir = scratch();
    let ccl = standins.ccl();
    for entry in std::fs::read_dir(&standins.dir)
        .expect("the folder")
        .flatten()
    {
        let path = entry.path();
        let target = path.canonicalize().expect("a file");
        if target != ccl.canonicalize().expect("a file") {
            let link = dir.join(entry.file_name());
            std::os::unix::fs::symlink(target, link).expect("a link");
        }
    }
    std::os::unix::fs::symlink(ccl, dir.join(name)).expect("a link");
    dir
}

/// LD-2: whichever of its names the library has; an override that is empty is said with its path; and all places that were
/// tried are.
#[test]
fn every_name_of_a_library_is_found_and_every_place_is_said() {
    on_every_row(
        |_| true,
        |fact| {
            let whole = fact.standins();
            for name in fact.files {
                let mut run = fact.scenario("rows", "init");
                let dir = with_name(&whole, name);
                run = run.over_instead(&dir);
                let outcome = run.ok();
                is_native(&outcome, fact);
                has(outcome.said("library"), &[&format!("/{name}")]);
            }
            let file = whole.ccl();
            let file = file.file_name().expect("a file").to_str().expect("text");
            let without = fact.builder().without(file).build();
            let empty = scratch();
            let run = init_over(fact, &without).env("FLAGOSCOMM_TIERS", "native");
            let outcome = run.ok();
            has(refused(&outcome), fact.files);
            let variable = format!("FLAGOSCOMM_{}_LIBRARY", fact.key.to_uppercase());
            let run = fact.scenario("rows", "init").env(&variable, &empty);
            let outcome = run.env("FLAGOSCOMM_TIERS", "native").ok();
            has(refused(&outcome), &[empty.to_str().expect("text")]);
        },
    );
}

/// LD-3: each optional function is missed by its own call only; a required one that is missing is named.
#[test]
fn missing_functions_hurt_nothing_else_and_are_named() {
    on_every_row(
        |_| true,
        |fact| {
            let prefix = fact.init[0].split("CommInit").next().expect("a prefix");
            let optional: Vec<String> = match fact.key {
                "ascend" => ["HcclGetCommAsyncError", "HcclGetRankSize", "HcclAlltoAll"]
                    .map(Into::into)
                    .into(),
                "cambricon" => ["cnclAbortComm", "cnclGetCommAsyncError", "cnclGetErrorStr"]
                    .map(Into::into)
                    .into(),
                "kunlunxin" => ["bkcl_comm_abort", "bkcl_comm_count", "bkcl_all_to_all"]
                    .map(Into::into)
                    .into(),
                _ => [
                    "CommAbort",
                    "GetLastError",
                    "CommGetAsyncError",
                    "CommCount",
                    "GetVersion",
                    "CommFinalize",
                ]
                .map(|name| format!("{prefix}{name}"))
                .into(),
            };
            let builder = optional.iter().fold(fact.builder(), |b, name| b.omit(name));
            let outcome = init_over(fact, &builder.build()).ok();
            is_native(&outcome, fact);
            assert_eq!(outcome.said("async"), "0 0");
            assert!(outcome.said("finalize").starts_with('0'));
            assert!(outcome.said("destroy").starts_with('0'));
            let required = [fact.five[1], fact.five[4]];
            let builder = fact.builder().omit(required[0]).omit(required[1]);
            let run = init_over(fact, &builder.build()).env("FLAGOSCOMM_TIERS", "native");
            let outcome = run.ok();
            has(refused(&outcome), &required);
            assert!(!outcome.stderr().contains("panicked"));
        },
    );
}

/// LD-6: the file of another vendor under this vendor's name is refused with its path, and not called.
#[test]
fn another_vendors_library_of_the_same_name_is_refused() {
    for (mine, other, whose) in [
        ("metax", "mthreads", "Moore Threads"),
        ("mthreads", "metax", "MetaX"),
        ("nvidia", "amd", "RCCL"),
        ("nvidia", "tsingmicro", "Tsingmicro"),
        ("amd", "nvidia", "not AMD RCCL"),
    ] {
        let (fact, other) = (Fact::of(mine), Fact::of(other).standins());
        let dir = with_name(&fact.standins(), fact.files[0]);
        let link = dir.join(fact.files[0]);
        std::fs::remove_file(&link).expect("just made");
        std::os::unix::fs::symlink(other.ccl(), &link).expect("a link");
        // What the stranger needs of its own machine is there too: only we refuse it.
        for entry in std::fs::read_dir(&other.dir).expect("the folder").flatten() {
            let _ = std::os::unix::fs::symlink(entry.path(), dir.join(entry.file_name()));
        }
        let run = fact.scenario("rows", "init").over_instead(&dir);
        let outcome = run.env("FLAGOSCOMM_TIERS", "native").ok();
        has(refused(&outcome), &[whose, fact.files[0]]);
        for call in &outcome.log {
            let harmless = call.name.ends_with("GetVersion") || call.name.contains("Device");
            assert!(
                harmless || !call.name.contains("ccl"),
                "{mine}: it was called: {call:?}"
            );
        }
    }
}

/// LD-8: every name that is in use for a vendor means it.
#[test]
fn every_name_of_a_vendor_is_known() {
    on_every_row(
        |_| true,
        |fact| {
            for name in fact.aliases.iter().chain([&fact.key]) {
                let outcome = fact.scenario("rows", "init").env("GEMS_VENDOR", name).ok();
                is_native(&outcome, fact);
            }
        },
    );
    // Known accelerators without a collective library, and a name that nobody has.
    for name in ["arm", "spacemit", "aipu", "bpu"] {
        let run = FACTS[0].scenario("rows", "init").env("GEMS_VENDOR", name);
        assert_eq!(run.ok().said("tier"), "3", "{name}");
    }
    let run = FACTS[0].scenario("rows", "init").env("GEMS_VENDOR", "hygn");
    let outcome = run.ok();
    let keys: Vec<&str> = FACTS.iter().map(|f| f.key).collect();
    has(refused(&outcome), &keys);
}

/// AB-3: ids of more than 128 bytes reach every rank whole, and the caller's 256 bytes end where they end.
#[test]
fn ids_of_any_size_arrive_whole() {
    on_every_row(
        |_| true,
        |fact| {
            let outcome = fact.scenario("rows", "init").ranks(3).ok();
            let inits = outcome.calls(fact.init[0]);
            assert_eq!(inits.len(), 3, "{inits:?}");
            // The stand-in compares every byte of the id with what it has made.
            assert!(inits.iter().all(|c| c.result == Some(0)), "{inits:?}");
            // PCCL's messages need an id for each pair of ranks too.
            let ids = if fact.key == "sunrise" { 4 } else { 1 };
            assert_eq!(outcome.calls(fact.init[1]).len(), ids);
        },
    );
}

/// The size of BKCL's id is the user's word: one that is too small is said, not overrun.
#[test]
fn an_id_that_is_longer_than_was_said_is_refused() {
    let fact = Fact::of("kunlunxin");
    let (name, numbers) = fact.numbers.expect("numbers");
    let numbers = numbers.replace("id_bytes=1024", "id_bytes=128");
    let run = fact.scenario("rows", "init").env(name, &numbers);
    let outcome = run.env("FLAGOSCOMM_TIERS", "native").ok();
    has(refused(&outcome), &["at least 1024 bytes", "not 128"]);
}

/// AB-4: each vendor's numbers in its own scheme; one that means nothing is shown as it is, none is no error.
#[test]
fn versions_are_read_in_each_vendors_scheme() {
    for (key, code, text) in [
        ("nvidia", "23007", "2.30.7"),
        ("iluvatar", "2803", "2.8.3"),
        ("iluvatar", "20908", "2.9.8"),
        ("du", "21003", "2.10.3"),
        ("thead", "0", "unknown (0)"),
        ("thead", "-1", "unknown (-1)"),
        ("amd", "22105", "2.21.5"),
        ("hygon", "22203", "2.22.3"),
        ("metax", "21605", "2.16.5"),
        ("mthreads", "21100", "unknown (21100)"),
        ("enflame", "30100", "3.1.0"),
        ("sunrise", "20000", "unknown (20000)"),
    ] {
        let fact = Fact::of(key);
        let run = fact.scenario("rows", "init").env("FAKE_CCL_VERSION", code);
        let outcome = run.ok();
        is_native(&outcome, fact);
        assert_eq!(outcome.said("version"), code, "{key}");
        has(outcome.said("report"), &[text]);
    }
    // Without a version call, and a call with three numbers.
    for (key, code, text) in [
        ("ascend", "0", "8.5.0"),
        ("cambricon", "12500", "1.25.0"),
        ("kunlunxin", "0", ""),
    ] {
        let fact = Fact::of(key);
        let outcome = fact.scenario("rows", "init").ok();
        is_native(&outcome, fact);
        assert_eq!(outcome.said("version"), code, "{key}");
        has(outcome.said("report"), &[text]);
    }
}

/// DV-3: the communicator's device is current during a call and the caller's before and after, on every path.
#[test]
fn a_device_scoped_library_is_called_on_its_device() {
    on_every_row(
        |fact| fact.needs_device,
        |fact| {
            // An argument that is refused: other codes end the communicator.
            let fail = format!("{}:4", fact.five[1]);
            let run = fact.scenario("rows", "device").ranks(2);
            let outcome = run.env("FAKE_FAIL", fail).ok();
            for (mark, function, result) in
                [("guarded", fact.five[0], 0), ("refused", fact.five[1], 4)]
            {
                for calls in outcome.between(mark) {
                    let names: Vec<&str> = calls.iter().map(|c| c.name.as_str()).collect();
                    let sets: Vec<usize> = (0..names.len())
                        .filter(|i| names[*i] == fact.device[1])
                        .collect();
                    let at = names.iter().position(|n| *n == function).expect("the call");
                    assert_eq!(calls[at].result, Some(result));
                    assert_ne!(calls[at].device, Some(3), "{calls:?}");
                    assert!(sets.iter().any(|s| *s < at), "{names:?}");
                    let last = sets.last().expect("a call that sets");
                    assert!(*last > at, "{names:?}");
                    assert_eq!(calls[*last].device, Some(3), "{calls:?}");
                }
            }
        },
    );
}

/// GR-1: a lone message goes by itself, and a group's over the communicator and stream that each was given.
#[test]
fn messages_go_alone_and_over_several_communicators() {
    on_every_row(
        |_| true,
        |fact| {
            let outcome = fact.scenario("rows", "messages").ranks(2).ok();
            for span in outcome.between("two") {
                let moved: Vec<_> = span
                    .iter()
                    .filter(|c| fact.functions.iter().any(|(name, _)| *name == c.name))
                    .collect();
                // On the calling thread or on one for each communicator.
                let tell = |c: &&&flagos_comm_testkit::Call| {
                    c.args
                        .split(", ")
                        .filter(|w| ["comm=", "ctx="].iter().any(|p| w.starts_with(p)))
                        .map(str::to_owned)
                        .next()
                };
                let mut comms: Vec<_> = moved.iter().filter_map(tell).collect();
                comms.sort();
                comms.dedup();
                assert!(moved.is_empty() || comms.len() == 2, "{moved:?}");
            }
            if fact.key == "ascend" {
                let batches = outcome.calls("HcclBatchSendRecv");
                assert!(
                    batches.iter().filter(|c| c.args.starts_with("2, ")).count() >= 4,
                    "{batches:?}"
                );
            }
        },
    );
}

/// HG-2: the loader's own words, whatever is wrong with the file.
#[test]
fn a_broken_library_is_said_in_the_loaders_words() {
    on_every_row(
        |_| true,
        |fact| {
            for (broken, words) in [
                (Broken::Text, "file too short"),
                (Broken::MissingDependency, "libfoo.so.9"),
                (Broken::Empty, "it is not "),
                // The loader would die of it, so it isn't given to the loader.
                (Broken::Truncated, "is truncated"),
            ] {
                let standins = fact.builder().broken(broken).build();
                let run = init_over(fact, &standins).env("FLAGOSCOMM_TIERS", "native");
                has(refused(&run.ok()), &[words]);
                // With another tier it is a warning with the same words.
                let outcome = init_over(fact, &standins).ok();
                assert_eq!(outcome.said("tier"), "3");
                has(&outcome.stderr(), &["WARN", words]);
            }
        },
    );
}

/// HG-5: a vendor's own limit for connecting is named with its value, beside ours.
#[test]
fn hccls_limit_for_connecting_is_named() {
    let fact = Fact::of("ascend");
    for value in [None, Some("7")] {
        let run = fact.scenario("rows", "init").ranks(2);
        let mut run = run
            .env("FAKE_FAIL", "HcclCommInitRootInfo:9")
            .env("FLAGOSCOMM_TIERS", "native")
            .env("FLAGOSCOMM_INIT_TIMEOUT", "33");
        if let Some(value) = value {
            run = run.env("HCCL_CONNECT_TIMEOUT", value);
        }
        let outcome = run.ok();
        for rank in 0..2 {
            assert_eq!(outcome.said_by(rank, "init"), "6");
            let ours = "FLAGOSCOMM_INIT_TIMEOUT is 33";
            let theirs = format!("HCCL_CONNECT_TIMEOUT is {}", value.unwrap_or("not set"));
            has(outcome.said_by(rank, "text"), &[ours, &theirs]);
        }
    }
}

/// A vendor whose numbers are in no published document is found, said, and not used without them.
#[test]
fn without_its_numbers_a_vendor_is_refused_in_words() {
    on_every_row(
        |fact| fact.numbers.is_some(),
        |fact| {
            let (name, numbers) = fact.numbers.expect("numbers");
            // What the driver needs for copies stays.
            let driver: Vec<&str> = numbers
                .split(',')
                .filter(|n| n.starts_with("copy_") || n.starts_with("not_ready"))
                .collect();
            let mut without = fact.scenario("rows", "init").unset(name);
            if !driver.is_empty() {
                without = without.env(name, driver.join(","));
            }
            let outcome = without.clone().env("FLAGOSCOMM_TIERS", "native").ok();
            has(refused(&outcome), &[name, "sum=N", fact.files[0]]);
            has(outcome.said("report"), &[fact.files[0]]);
            assert_eq!(without.ok().said("tier"), "3");
            // A name that is none.
            let run = fact.scenario("rows", "init");
            let run = run.env(name, format!("{numbers},inf8=1"));
            has(
                refused(&run.env("FLAGOSCOMM_TIERS", "native").ok()),
                &["inf8"],
            );
            // One number for two operators would make one of them compute the other.
            let twins = changed(numbers, "max", number(numbers, "sum"));
            let run = fact.scenario("rows", "init").env(name, twins);
            has(
                refused(&run.env("FLAGOSCOMM_TIERS", "native").ok()),
                &[name, "sum and max"],
            );
            if numbers.contains("id_bytes=") {
                let run = fact.scenario("rows", "init");
                let run = run.env(name, changed(numbers, "id_bytes", "99999999999"));
                has(
                    refused(&run.env("FLAGOSCOMM_TIERS", "native").ok()),
                    &["id_bytes=99999999999"],
                );
            }
        },
    );
}

/// HG-8, LC-1: a rank that leaves in order after as many collectives as the others is missed by nobody,
/// whatever the calls became on the way. A destroy that waits for the other ranks' ends at its limit.
#[test]
fn a_rank_that_leaves_in_order_is_missed_by_nobody() {
    on_every_row(
        |_| true,
        |fact| {
            let run = fact.scenario("rows", "leaves").ranks(2);
            let outcome = run.env("FLAGOSCOMM_DESTROY_TIMEOUT", "0.3").ok();
            let said = outcome.said_by(1, "destroy");
            match fact.key {
                "cambricon" => has(
                    said,
                    &[
                        "100 ",
                        "the vendor's destroy did not return in time",
                        "may wait for the other ranks' destroy",
                        "FLAGOSCOMM_DESTROY_TIMEOUT",
                    ],
                ),
                _ => assert_eq!(said.trim(), "0", "{}", fact.key),
            }
        },
    );
}

/// Ranks that were given different numbers would mean different things by one call.
#[test]
fn ranks_with_different_numbers_are_all_refused() {
    on_every_row(
        |fact| fact.numbers.is_some_and(|(_, n)| n.contains("sum=")),
        |fact| {
            let (name, numbers) = fact.numbers.expect("numbers");
            let (sum, max) = (number(numbers, "sum"), number(numbers, "max"));
            let other = changed(&changed(numbers, "sum", max), "max", sum);
            let run = fact.scenario("rows", "init").ranks(2);
            let run = run
                .env("FLAGOSCOMM_TIERS", "native")
                .env_of(1, name, &other);
            let outcome = run.ok();
            for rank in 0..2 {
                assert_ne!(outcome.said_by(rank, "init"), "0", "{}", outcome.report());
                let odd = format!("sum={max}");
                has(
                    outcome.said_by(rank, "text"),
                    &["different numbers", "rank 1", &odd],
                );
            }
        },
    );
}

/// The number that a list of `name=number` gives to a name.
fn number<'a>(numbers: &'a str, name: &str) -> &'a str {
    let mut items = numbers.split(',').filter_map(|item| item.split_once('='));
    let found = items.find(|(other, _)| *other == name);
    found.unwrap_or_else(|| panic!("no {name} in {numbers}")).1
}

/// The list with another number for the name.
fn changed(numbers: &str, name: &str, number: &str) -> String {
    let items = numbers.split(',').map(|item| match item.split_once('=') {
        Some((other, _)) if other == name => format!("{name}={number}"),
        _ => item.to_owned(),
    });
    items.collect::<Vec<_>>().join(",")
}
