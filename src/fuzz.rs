//! Everything that reads what others wrote, against anything that they may have written: no panic, and
//! no more memory than the input explains.
//!
//! `PROPTEST_CASES` sets how many inputs are tried. Inputs that once were trouble, and typical ones, lie
//! in `tests/corpus`, in a folder for each reader.

use crate::bootstrap::interface::{Family, Filter, choose};
use crate::bootstrap::rendezvous::{Hello, Plan};
use crate::bootstrap::unique_id::{self, Secret};
use crate::comm::agree::{Common, ProbeVote, RankInfo, parse_order};
use crate::comm::init::{vote_code, vote_texts};
use crate::comm::split::Part;
use crate::comm::vote;
use crate::config::{self, HostEngine, Tier, VARS};
use crate::control::gathered::Gathered;
use crate::control::patience::{AbortFlag, Patience};
use crate::control::tree::{MAX_FAN_OUT, Tree};
use crate::control::wire::{
    Connection, Kind, MAX_FIRST_BODY, Reader, WireError, Writer, decode_error, encode_error,
};
use crate::differing::{Field, Shape};
use crate::load::numbers::Numbers;
use crate::sys::net::InterfaceAddress;
use crate::types::UNIQUE_ID_BYTES;
use crate::{Code, Error};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::OsString;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

/// The system's allocator, which counts what each thread asks it for.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator unchanged; the counter is a thread local
// without a destructor, which needs no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ASKED.try_with(|asked| asked.set(asked.get() + layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ASKED.try_with(|asked| asked.set(asked.get() + size));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs it; all allocations of this thread meanwhile, freed or not, must be explained by the input.
#[track_caller]
fn bounded<T>(input: usize, body: impl FnOnce() -> T) -> T {
    let before = ASKED.get();
    let result = body();
    let asked = ASKED.get() - before;
    // A vector that grows copies itself; texts are shown in errors and may triple when they are no UTF-8.
    let most = 16 * input + 16_384;
    assert!(asked <= most, "{asked} bytes were allocated for {input}");
    result
}

const SECRET: Secret = [7; 16];

/// A reader of bytes, with something sound for it to read.
struct Target {
    name: &'static str,
    read: fn(&[u8]),
    sound: fn() -> Vec<u8>,
}

fn info() -> RankInfo {
    let common = Common {
        library_version: 100,
        nranks: 2,
        vendor: "nvidia".into(),
        no_native: "libnccl.so.2: not found".into(),
        machine: "boot id".into(),
        host: "host".into(),
        pid_namespace: 4_026_531_836,
        network: 4_026_531_840,
        engine: HostEngine::Ucx,
        hierarchy: true,
        tiers: Tier::DEFAULT_ORDER.to_vec(),
        checking: true,
        liveness_ms: 3000,
        address: Some(([10, 0, 0, 7], 0).into()),
    };
    let mut info = RankInfo::new(common, 77, 12);
    (info.device, info.uuid) = (1, Some([3; 16]));
    info.fatal = Some(Box::new((4, "GEMS_VENDOR".into())));
    info
}

fn infos(bytes: &[u8]) -> Option<std::sync::Arc<[RankInfo]>> {
    RankInfo::decode_all(std::iter::once(bytes))
}

fn padded(bytes: &[u8]) -> [u8; UNIQUE_ID_BYTES] {
    let mut id = [0; UNIQUE_ID_BYTES];
    let length = bytes.len().min(UNIQUE_ID_BYTES);
    id[..length].copy_from_slice(&bytes[..length]);
    id
}

const TARGETS: &[Target] = &[
    Target {
        name: "unique_id",
        read: |bytes| {
            let mut id = padded(bytes);
            let _ = unique_id::decode(&id);
            // Also what a right checksum would let through.
            unique_id::seal(&mut id);
            if let Ok(content) = unique_id::decode(&id) {
                let again = unique_id::decode(&unique_id::encode(&content));
                assert_eq!(again.expect("our own encoding"), content);
            }
        },
        sound: || {
            let content = unique_id::IdContent {
                addresses: vec![
                    "10.0.0.1:80".parse().expect("an address"),
                    "[fe80::1]:9".parse().expect("an address"),
                ],
                secret: SECRET,
            };
            unique_id::encode(&content).to_vec()
        },
    },
    Target {
        name: "rank_info",
        read: |bytes| {
            if let Some(all) = infos(bytes) {
                assert_eq!(infos(&all[0].encode()), Some(all));
            }
        },
        sound: || info().encode(),
    },
    Target {
        name: "probe_vote",
        read: |bytes| {
            if let Some(vote) = ProbeVote::decode(bytes) {
                assert_eq!(ProbeVote::decode(&vote.encode()), Some(vote));
            }
        },
        sound: || {
            let vote = ProbeVote {
                reason: "no".into(),
                version: 22_809,
                path: "/lib/libnccl.so.2".into(),
                numbers: "float32=7".into(),
                id: vec![1; 128],
            };
            vote.encode()
        },
    },
    Target {
        name: "hello",
        read: |bytes| {
            if let Some((_, hello)) = Hello::decode(bytes, &SECRET) {
                let nranks = hello.plan.tree.nranks;
                assert!(hello.rank < nranks && nranks as usize <= crate::types::MAX_RANKS);
                assert!((1..=MAX_FAN_OUT).contains(&hello.plan.tree.fan_out));
                assert!(hello.plan.id_of(hello.rank) < hello.plan.ids);
            }
        },
        sound: || {
            let hello = Hello {
                plan: Plan {
                    tree: Tree::of(3),
                    ids: 1,
                },
                id: 0,
                rank: 0,
                pid: 7,
                host: "h".into(),
                visitor: 5,
                asks: false,
                listens: vec!["10.0.0.1:80".parse().expect("an address")],
            };
            hello.encode(&SECRET)
        },
    },
    Target {
        name: "gathered",
        read: |bytes| {
            for nranks in [0, 1, 3, 40] {
                let mut gathered = Gathered::new(nranks);
                let mut ranks = 0;
                let _ = gathered.unpack(0..nranks, bytes, |range, _| ranks += range.len());
                assert!(gathered.present() <= nranks as usize && ranks >= gathered.present());
            }
        },
        sound: || {
            let mut gathered = Gathered::new(3);
            gathered.put(0..1, b"first");
            gathered.put(2..3, b"first and third");
            let mut packed = Vec::new();
            gathered.pack(0..3, |_| true, &mut packed);
            packed
        },
    },
    Target {
        name: "error",
        read: |bytes| {
            // A rank that fails must not look like one that goes on.
            assert_ne!(decode_error(bytes).code(), Code::InProgress);
        },
        sound: || encode_error(&Error::internal("a fault")),
    },
    Target {
        name: "vote",
        read: |bytes| {
            let mut votes = Gathered::new(2);
            votes.put(1..2, bytes);
            assert_eq!(vote_texts(&votes).len(), 2);
            vote_code(bytes);
        },
        sound: || encode_error(&Error::internal("a fault")),
    },
    Target {
        name: "split",
        read: |bytes| {
            if let Some(part) = Part::decode(bytes) {
                assert_eq!(Part::decode(&part.encode()), Some(part));
            }
        },
        sound: || vec![1, 0, 0, 0, 2, 0, 0, 0],
    },
    Target {
        name: "call",
        read: |bytes| {
            if let Some(call) = Shape::decode(&mut Reader(bytes)) {
                let mut again = Writer::default();
                call.encode(&mut again);
                assert_eq!(Shape::decode(&mut Reader(&again.0)), Some(call));
            }
        },
        sound: || {
            let call = Shape::new("Reduce").with(Field::Count, 5);
            let mut writer = Writer::default();
            call.with(Field::Root, 1).encode(&mut writer);
            writer.0
        },
    },
    Target {
        name: "level",
        read: |bytes| {
            if let Some((level, reason)) = vote::decode(bytes) {
                assert_eq!(
                    vote::decode(&vote::encode(level, &reason)).map(|v| v.0),
                    Some(level)
                );
            }
        },
        sound: || vote::encode(-1, "no room"),
    },
    Target {
        name: "numbers",
        read: |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _ = Numbers::parse(&text);
            let _ = Numbers::of_text("nvidia", Some(&text), &["not_ready", "busy"]);
        },
        sound: || b" not_ready = 34,BUSY=0x88, x=-1".to_vec(),
    },
    Target {
        name: "interfaces",
        read: |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let filter = Filter::parse("FLAGOSCOMM_SOCKET_IFNAME", &text);
            for family in [Family::Any, Family::V4, Family::V6] {
                if let Ok(chosen) = choose(&machine(), Some(&filter), family) {
                    assert!(chosen.iter().all(|i| i.up));
                }
            }
        },
        sound: || b"^=eth0:1,bond, lo".to_vec(),
    },
    Target {
        name: "tiers",
        read: |bytes| {
            if let Ok(order) = parse_order(&String::from_utf8_lossy(bytes)) {
                assert!((1..=3).contains(&order.len()));
            }
        },
        sound: || b"host, native ,FLAGCX".to_vec(),
    },
    Target {
        name: "environment",
        read: environment,
        sound: || b"1e19".to_vec(),
    },
    Target {
        name: "stream",
        read: |bytes| frames(bytes, &[]),
        sound: || {
            let mut stream = frame(Kind::Hello, b"hello");
            stream.extend(frame(Kind::Part, &[9; 300]));
            stream
        },
    },
];

fn machine() -> Vec<InterfaceAddress> {
    let one = |name: &str, addr: &str, up| InterfaceAddress {
        name: name.into(),
        addr: addr.parse().expect("an address"),
        scope: 0,
        up,
        loopback: name == "lo",
    };
    vec![
        one("lo", "127.0.0.1", true),
        one("eth0", "10.0.0.1", true),
        one("bond0.7", "fe80::2", true),
        one("down", "10.0.0.9", false),
    ]
}

/// The value in each variable of ours: understood, or one warning that names it; and never a deadline
/// that no clock can hold.
fn environment(bytes: &[u8]) {
    let value = OsString::from_vec(bytes.to_vec());
    for var in VARS {
        let (config, warnings) = config::of_pairs(&[(var.name, value.clone())], false);
        assert!(warnings.len() <= 1, "{warnings:?}");
        assert!(warnings.iter().all(|w| w.contains(var.name)));
        for limit in [
            config.timeouts.init,
            config.timeouts.collective,
            config.timeouts.destroy,
        ] {
            let patience = Patience::starting_now(limit, &AbortFlag::default());
            let _ = patience.with_grace(Duration::from_secs(1)).slice();
            assert!(limit.is_none_or(|limit| limit.checked_mul(100).is_some()));
        }
        // Nothing is trusted with a path in a process with more rights than its caller.
        let (config, _) = config::of_pairs(&[(var.name, value.clone())], true);
        assert_eq!(config.log_file, None);
    }
}

fn frame(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend([kind as u8, 0, 0, 0, 5, 0, 0, 0]);
    bytes.extend(body);
    bytes
}

/// The bytes as they come over a connection, in pieces that end at the cuts.
fn frames(bytes: &[u8], cuts: &[usize]) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    let mut far = TcpStream::connect(address).expect("a connection");
    far.set_nodelay(true).expect("an option");
    let near = listener.accept().expect("a connection").0;
    let mut near = Connection::of_stranger(near).expect("a connection");
    let mut cuts: Vec<usize> = cuts.iter().map(|c| c % (bytes.len() + 1)).collect();
    cuts.push(bytes.len());
    cuts.sort_unstable();
    let (mut at, mut got) = (0, 0);
    let patience = Patience::starting_now(Some(Duration::from_secs(10)), &AbortFlag::default());
    let end = 'all: {
        for cut in cuts {
            // The other side may have hung up on us already.
            if far.write_all(&bytes[at..cut]).is_err() {
                break;
            }
            at = cut;
            match near.try_receive() {
                Ok(Some(frame)) => got += 12 + frame.body.len(),
                Ok(None) => {}
                Err(error) => break 'all error,
            }
        }
        drop(far);
        loop {
            match near.receive(&patience) {
                Ok(frame) => {
                    assert!(frame.body.len() <= MAX_FIRST_BODY);
                    got += 12 + frame.body.len();
                }
                Err(error) => break error,
            }
        }
    };
    assert!(got <= bytes.len());
    assert!(
        matches!(end, WireError::Closed | WireError::Garbage),
        "{end:?}"
    );
}

/// The memory that one reading of these bytes may need: 64 variables are read from each, say.
fn weight(target: &Target, bytes: &[u8]) -> usize {
    match target.name {
        "environment" => 64 * (bytes.len() + 1024),
        // Errors show the machine's interfaces; buffers of a connection are of a fixed size.
        "interfaces" | "stream" => bytes.len() + 4096,
        _ => bytes.len() + 256,
    }
}

fn run(target: &Target, bytes: &[u8]) {
    bounded(weight(target, bytes), || (target.read)(bytes));
}

/// What may happen to sound bytes.
#[derive(Clone, Debug)]
enum Damage {
    Byte(usize, u8),
    /// A length, where lengths may be.
    Word(usize, u32),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Repeat(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let word = prop_oneof![
        Just(u32::MAX),
        Just(1 << 31),
        Just(64 << 20),
        Just(0),
        0..5000u32,
        any::<u32>()
    ];
    prop_oneof![
        4 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        4 => (any::<usize>(), word).prop_map(|(at, word)| Damage::Word(at, word)),
        1 => any::<usize>().prop_map(Damage::Cut),
        1 => (any::<usize>(), proptest::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        1 => (any::<usize>(), 1..60usize).prop_map(|(at, length)| Damage::Repeat(at, length)),
    ]
}

fn damaged(mut bytes: Vec<u8>, all: &[Damage]) -> Vec<u8> {
    for damage in all {
        let at = |at: &usize| at % (bytes.len() + 1);
        match damage {
            Damage::Byte(to, byte) => {
                let to = at(to);
                if let Some(place) = bytes.get_mut(to) {
                    *place = *byte;
                }
            }
            Damage::Word(to, word) => {
                let to = at(to);
                for (place, byte) in bytes[to..].iter_mut().zip(word.to_le_bytes()) {
                    *place = byte;
                }
            }
            Damage::Cut(to) => bytes.truncate(at(to)),
            Damage::Insert(to, more) => {
                let to = at(to);
                bytes.splice(to..to, more.iter().copied());
            }
            Damage::Repeat(from, length) => {
                let from = at(from);
                let piece: Vec<u8> = bytes[from..].iter().take(*length).copied().collect();
                bytes.extend(piece);
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_read_breaks_a_reader(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        for target in TARGETS {
            run(target, &bytes);
        }
    }

    #[test]
    fn nothing_that_is_almost_right_breaks_a_reader(all in proptest::collection::vec(damage(), 1..8)) {
        for target in TARGETS {
            run(target, &damaged((target.sound)(), &all));
        }
    }

    #[test]
    fn texts_of_people_break_no_reader(text in "\\PC{0,60}", sign in "[\\^=, :]{0,4}[0-9a-zA-Z_.]{0,20}") {
        for target in TARGETS {
            run(target, text.as_bytes());
            run(target, format!("{sign}{text}").as_bytes());
        }
    }

    /// Frames in any pieces: those that are whole and small come out as they went in.
    #[test]
    fn frames_survive_any_cuts(
        bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..400), 1..5),
        cuts in proptest::collection::vec(any::<usize>(), 0..6),
        all in proptest::collection::vec(damage(), 0..2),
    ) {
        let stream: Vec<u8> = bodies.iter().flat_map(|b| frame(Kind::Part, b)).collect();
        let stream = damaged(stream, &all);
        bounded(stream.len() + 4096, || frames(&stream, &cuts));
    }
}

/// Sound bytes are read at all: else the tests above would try the refusals only.
#[test]
fn what_is_sound_is_understood() {
    let sound = |name: &str| {
        let target = TARGETS.iter().find(|t| t.name == name);
        (target.expect("a target").sound)()
    };
    assert!(unique_id::decode(&padded(&sound("unique_id"))).is_ok());
    assert_eq!(infos(&sound("rank_info")).as_deref(), Some(&[info()][..]));
    assert!(ProbeVote::decode(&sound("probe_vote")).is_some());
    assert!(Hello::decode(&sound("hello"), &SECRET).is_some());
    assert!(Hello::decode(&sound("hello"), &[8; 16]).is_none());
    let mut gathered = Gathered::new(3);
    assert_eq!(
        gathered.unpack(0..3, &sound("gathered"), |_, _| {}),
        Some(())
    );
    assert_eq!(
        (gathered.of(2), gathered.present()),
        (&b"first and third"[..], 2)
    );
    assert_eq!(decode_error(&sound("error")).code(), Code::InternalError);
    assert!(Part::decode(&sound("split")).is_some());
    assert!(Shape::decode(&mut Reader(&sound("call"))).is_some());
    assert_eq!(vote::decode(&sound("level")), Some((-1, "no room".into())));
    assert_eq!(
        Numbers::parse(" not_ready = 34,BUSY=0x88, x=-1")
            .map(|n| n.len())
            .ok(),
        Some(3)
    );
    assert_eq!(
        Reader(&sound("vote")).u32(),
        Some(Code::InternalError as u32)
    );
}

/// The bound bites: a reader that believes a length is found.
#[test]
#[should_panic(expected = "bytes were allocated for 4")]
fn a_reader_that_believes_a_length_is_found() {
    let claimed = (8u32 << 20).to_le_bytes();
    bounded(claimed.len(), || {
        let length = Reader(&claimed).u32().unwrap_or(0);
        std::hint::black_box(Vec::<u8>::with_capacity(length as usize));
    });
}

#[test]
fn the_corpus_breaks_no_reader() {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut seen = 0;
    for folder in std::fs::read_dir(top).expect("the corpus").flatten() {
        let name = folder.file_name();
        let target = TARGETS.iter().find(|t| name == t.name);
        let target = target.unwrap_or_else(|| panic!("no reader is called {name:?}"));
        for file in std::fs::read_dir(folder.path())
            .expect("a folder")
            .flatten()
        {
            run(target, &std::fs::read(file.path()).expect("a file"));
            seen += 1;
        }
    }
    assert!(
        seen >= TARGETS.len(),
        "{seen} files for {} readers",
        TARGETS.len()
    );
}
