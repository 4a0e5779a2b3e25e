//! What comes from outside: a configuration with anything in it, and foreign clients on our ports.

use flagos_comm_capi_tests::library;
use libloading::Library;
use proptest::prelude::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

type InitRankConfig = unsafe extern "C" fn(*mut *mut c_void, i32, *const u8, i32, *const u8) -> i32;
type LastError = unsafe extern "C" fn(*mut c_void) -> *const c_char;

const SIZE: usize = 144;
const MAGIC: u32 = 4_054_189_504;
const UNDEF: i32 = i32::MIN;

fn lib() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    // SAFETY: the library has no constructors of its own.
    LIBRARY.get_or_init(|| unsafe { Library::new(library()) }.expect("the library can be loaded"))
}

/// Asks for a communicator of no ranks, so that a configuration that is taken is refused after it.
fn refused(config: &[u8]) -> (i32, String) {
    assert!(config.len() >= SIZE);
    // SAFETY: the two functions have these types in the header. The id and the configuration are as long
    // as they must be, and its texts are NULL or end with a zero.
    unsafe {
        let init = lib()
            .get::<InitRankConfig>(b"flagosCommInitRankConfig")
            .expect("a function");
        let last = lib()
            .get::<LastError>(b"flagosGetLastError")
            .expect("a function");
        let mut comm = std::ptr::dangling_mut();
        let code = init(&raw mut comm, 0, [0u8; 256].as_ptr(), 0, config.as_ptr());
        assert!(comm.is_null(), "a failure leaves no handle");
        (
            code,
            CStr::from_ptr(last(std::ptr::null_mut()))
                .to_string_lossy()
                .into_owned(),
        )
    }
}

/// Size, magic, version; two flags; three limits; four texts; the rest.
fn config(
    size: usize,
    flags: [i32; 2],
    limits: [i64; 3],
    texts: [*const c_char; 4],
    rest: [i32; 16],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(size.to_ne_bytes());
    bytes.extend(MAGIC.to_ne_bytes());
    bytes.extend(100u32.to_ne_bytes());
    flags.iter().for_each(|f| bytes.extend(f.to_ne_bytes()));
    limits.iter().for_each(|l| bytes.extend(l.to_ne_bytes()));
    texts
        .iter()
        .for_each(|t| bytes.extend((*t as usize).to_ne_bytes()));
    rest.iter().for_each(|r| bytes.extend(r.to_ne_bytes()));
    assert_eq!(bytes.len(), SIZE);
    bytes
}

fn nothing_set() -> Vec<u8> {
    let limit = i64::from(UNDEF);
    config(
        SIZE,
        [UNDEF; 2],
        [limit; 3],
        [std::ptr::null(); 4],
        [UNDEF; 16],
    )
}

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![3 => Just(UNDEF), 2 => 0..3, 1 => any::<i32>()]
}

fn limit() -> impl Strategy<Value = i64> {
    prop_oneof![2 => Just(i64::from(UNDEF)), 1 => 0..5000i64, 1 => any::<i64>(), 1 => Just(i64::MAX)]
}

fn text() -> impl Strategy<Value = Option<CString>> {
    let bytes = prop_oneof![
        "(native|flagcx|host|,| ){0,6}".prop_map(String::into_bytes),
        proptest::collection::vec(1..=255u8, 0..300),
        Just(vec![b'x'; 9000]),
    ];
    proptest::option::of(bytes.prop_map(|b| CString::new(b).unwrap_or_default()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Every field with anything in it; larger structs of newer headers too.
    #[test]
    fn any_configuration_is_taken_or_refused_in_words(
        size in prop_oneof![6 => Just(SIZE), 1 => SIZE..5000, 1 => 0..SIZE, 1 => any::<usize>()],
        flags in [number(), number()],
        limits in [limit(), limit(), limit()],
        texts in [text(), text(), text(), text()],
        rest in proptest::collection::vec(number(), 15),
        reserved in prop_oneof![5 => Just(UNDEF), 1 => any::<i32>()],
        tail in proptest::collection::vec(prop_oneof![20 => Just(0u8), 1 => any::<u8>()], 0..40),
    ) {
        let pointers = texts.each_ref().map(|t| t.as_ref().map_or(std::ptr::null(), |t| t.as_ptr()));
        let mut all = [reserved; 16];
        all[..15].copy_from_slice(&rest);
        let mut bytes = config(size, flags, limits, pointers, all);
        bytes.extend(&tail);
        // As long as any size that is believed.
        bytes.resize(4096, 0);
        let (code, words) = refused(&bytes);
        // 3 is a fault of ours: a panic, say.
        prop_assert!([4, 9].contains(&code), "{}: {}", code, words);
        prop_assert!(!words.is_empty());
        if reserved != UNDEF && (SIZE..=4096).contains(&size) && tail.iter().all(|b| *b == 0) {
            prop_assert!(words.contains("reserved"), "{}", words);
        }
    }

    /// Any bytes that are no configuration.
    #[test]
    fn any_bytes_are_no_configuration(mut bytes in proptest::collection::vec(any::<u8>(), 16..200)) {
        bytes.resize(4096, 0);
        let (code, words) = refused(&bytes);
        prop_assert_eq!(code, 4, "{}", &words);
        prop_assert!(words.contains("FLAGOS_CONFIG_INITIALIZER"), "{}", words);
    }
}

/// Else the tests above would try refusals of the configuration only.
#[test]
fn a_configuration_that_sets_nothing_is_taken() {
    let (code, words) = refused(&nothing_set());
    assert!(
        code == 4 && words.contains("nranks is 0"),
        "{code}: {words}"
    );
}
