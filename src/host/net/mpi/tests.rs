//! MPI as a transport over an MPI of ours that moves nothing by itself. The real ones are used by the scenarios of
//! `tests/life/mpi.py`.

use super::abi::{Calls, CopyAttr, DeleteAttr, OF_STANDARD, Plain, Status};
use super::*;
use std::cell::RefCell;
use std::ffi::c_char;

/// One request, whose handle is its place in the list, from 1 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Begun {
    receives: bool,
    at: usize,
    count: c_int,
    peer: c_int,
    tag: c_int,
    done: bool,
}

#[derive(Default)]
struct World {
    begun: Vec<Begun>,
    /// Receives can't be cancelled, as they have begun to come.
    holds: bool,
    freed: usize,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

fn world<T>(with: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(with)
}

/// Writes a number where MPI would.
fn answer<T>(to: *mut T, value: T) -> c_int {
    // SAFETY: the transport gives places for answers.
    unsafe { to.write(value) };
    0
}

fn begin(begun: Begun, request: *mut usize) -> c_int {
    let handle = world(|world| {
        world.begun.push(begun);
        world.begun.len()
    });
    answer(request, handle)
}

unsafe extern "C" fn yes(to: *mut c_int) -> c_int {
    answer(to, 1)
}
unsafe extern "C" fn no(to: *mut c_int) -> c_int {
    answer(to, 0)
}
unsafe extern "C" fn level(to: *mut c_int) -> c_int {
    answer(to, OF_STANDARD.thread_multiple)
}
unsafe extern "C" fn init(
    _: *mut c_int,
    _: *mut *mut *mut c_char,
    _: c_int,
    _: *mut c_int,
) -> c_int {
    0
}
unsafe extern "C" fn nothing() -> c_int {
    0
}
unsafe extern "C" fn no_words(_: *mut c_char, _: *mut c_int) -> c_int {
    0
}
unsafe extern "C" fn no_text(_: c_int, _: *mut c_char, _: *mut c_int) -> c_int {
    0
}
unsafe extern "C" fn rank(_: usize, to: *mut c_int) -> c_int {
    answer(to, 0)
}
unsafe extern "C" fn attribute(_: usize, _: c_int, _: *mut c_void, found: *mut c_int) -> c_int {
    answer(found, 0)
}
unsafe extern "C" fn set_attribute(_: usize, _: c_int, _: *mut c_void) -> c_int {
    0
}
unsafe extern "C" fn keyval(
    _: CopyAttr<usize>,
    _: DeleteAttr<usize>,
    to: *mut c_int,
    _: *mut c_void,
) -> c_int {
    answer(to, 1)
}
unsafe extern "C" fn errhandler(_: usize, _: usize) -> c_int {
    0
}
unsafe extern "C" fn group(_: usize, to: *mut usize) -> c_int {
    answer(to, 1)
}
unsafe extern "C" fn incl(_: usize, _: c_int, _: *const c_int, to: *mut usize) -> c_int {
    answer(to, 1)
}
unsafe extern "C" fn free_group(_: *mut usize) -> c_int {
    0
}
unsafe extern "C" fn create(_: usize, _: usize, _: c_int, to: *mut usize) -> c_int {
    answer(to, 7)
}
unsafe extern "C" fn free(_: *mut usize) -> c_int {
    world(|world| world.freed += 1);
    0
}
unsafe extern "C" fn isend(
    from: *const c_void,
    count: c_int,
    _: usize,
    peer: c_int,
    tag: c_int,
    comm: usize,
    request: *mut usize,
) -> c_int {
    assert_eq!(comm, 7);
    let (receives, done, at) = (false, false, from.addr());
    begin(
        Begun {
            receives,
            at,
            count,
            peer,
            tag,
            done,
        },
        request,
    )
}
unsafe extern "C" fn irecv(
    to: *mut c_void,
    count: c_int,
    _: usize,
    peer: c_int,
    tag: c_int,
    comm: usize,
    request: *mut usize,
) -> c_int {
    assert_eq!(comm, 7);
    let (receives, done, at) = (true, false, to.addr());
    begin(
        Begun {
            receives,
            at,
            count,
            peer,
            tag,
            done,
        },
        request,
    )
}
unsafe extern "C" fn test(request: *mut usize, flag: *mut c_int, _: *mut Status) -> c_int {
    // SAFETY: the transport gives the place of a handle.
    let handle = unsafe { request.read() };
    let done = world(|world| world.begun[handle - 1].done);
    if done {
        answer(request, 0);
    }
    answer(flag, c_int::from(done))
}
unsafe extern "C" fn cancel(request: *mut usize) -> c_int {
    // SAFETY: as above.
    let handle = unsafe { request.read() };
    world(|world| {
        let begun = &mut world.begun[handle - 1];
        assert!(begun.receives, "sends can't be cancelled");
        begun.done |= !world.holds;
    });
    0
}
unsafe extern "C" fn iprobe(
    _: c_int,
    _: c_int,
    _: usize,
    flag: *mut c_int,
    _: *mut Status,
) -> c_int {
    answer(flag, 0)
}

/// Rank 0's end of a communicator whose largest tag is the smallest that MPI allows.
fn transport() -> Box<dyn Transport> {
    world(|world| *world = World::default());
    let api = api(yes, no, level);
    let up = Use::begin(api).unwrap();
    connect(api, up, &[0, 1], 0, 32767).unwrap()
}

type Question = unsafe extern "C" fn(*mut c_int) -> c_int;

/// An MPI that says so of itself.
fn api(initialized: Question, finalized: Question, query_thread: Question) -> &'static Api {
    let plain = Plain {
        get_library_version: no_words,
        initialized,
        finalized,
        init_thread: init,
        query_thread,
        finalize: nothing,
        error_string: no_text,
    };
    let calls = Calls {
        comm_rank: rank,
        comm_size: rank,
        comm_get_attr: attribute,
        comm_set_attr: set_attribute,
        comm_create_keyval: keyval,
        comm_set_errhandler: errhandler,
        comm_group: group,
        group_incl: incl,
        group_free: free_group,
        comm_create_group: create,
        comm_free: free,
        isend,
        irecv,
        test,
        cancel,
        iprobe,
    };
    let constants = OF_STANDARD;
    let table = Handles::Wide(Table { calls, constants });
    Box::leak(Box::new(Api::of_parts(plain, table)))
}

/// In its environment a child finds what its launcher has set.
const CHILD: &str = "FLAGOSCOMM_TEST_LAUNCHER";

#[test]
fn a_launcher_is_known_by_what_it_sets() {
    let names = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"];
    for set in std::iter::once(None).chain(names.map(Some)) {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "host::net::mpi::tests::child_of_a_launcher"]);
        for name in names {
            child.env_remove(name);
        }
        child.env(CHILD, set.unwrap_or_default());
        child.envs(set.map(|name| (name, "0")));
        let out = child.output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{set:?}: {said}");
    }
}

#[test]
fn child_of_a_launcher() {
    let Ok(set) = std::env::var(CHILD) else {
        return;
    };
    // Without a launcher MPI is used only if the program has initialised it.
    let why = unusable(api(no, no, level)).unwrap_or_default();
    assert_eq!(
        why.contains("no MPI launcher has started it"),
        set.is_empty()
    );
    assert_eq!(why.contains("mpirun"), set.is_empty());
    assert_eq!(launcher_is_not_open_mpis(), set == "PMI_RANK");
    assert_eq!(unusable(api(yes, no, level)), None);
    let why = unusable(api(yes, no, no)).unwrap();
    assert!(why.contains("MPI_THREAD_MULTIPLE"), "{why}");
    let why = unusable(api(yes, yes, level)).unwrap();
    assert!(why.contains("was finalised"), "{why}");
}

/// The requests that were begun, and not yet looked at here.
fn begun() -> Vec<Begun> {
    world(|world| world.begun.clone())
}

fn finish(at: usize) {
    world(|world| world.begun[at].done = true);
}

const TAG: u64 = 4 << 60;
/// Nobody reads or writes there.
const BASE: usize = 1 << 40;

fn send(
    transport: &mut dyn Transport,
    number: u64,
    bytes: usize,
) -> std::result::Result<Option<Ticket>, String> {
    // SAFETY: the MPI of these tests touches no memory.
    unsafe { transport.send(1, TAG | number, std::ptr::without_provenance(BASE), bytes) }
}

fn recv(
    transport: &mut dyn Transport,
    from: usize,
    number: u64,
    bytes: usize,
) -> std::result::Result<Option<Ticket>, String> {
    let to = std::ptr::without_provenance_mut(BASE);
    // SAFETY: as above.
    unsafe { transport.recv(from, TAG | number, to, bytes) }
}

#[test]
fn a_place_is_read_as_it_was_said_or_not_at_all() {
    let place = Place {
        rank: 3,
        size: 9,
        largest_tag: 32767,
        before: u32::MAX,
    };
    let body = place.encode();
    assert_eq!(Place::decode(&body), Some(place));
    assert!((0..body.len()).all(|cut| Place::decode(&body[..cut]).is_none()));
}

/// A message is done when its last piece is, whichever that is, and that some are done is progress.
#[test]
fn a_long_message_goes_in_pieces() {
    let mut transport = transport();
    for receives in [false, true] {
        world(|world| world.begun.clear());
        let bytes = 2 * PIECE + 5;
        let ticket = match receives {
            true => recv(&mut *transport, 1, 3, bytes),
            false => send(&mut *transport, 3, bytes),
        };
        let ticket = ticket.unwrap().unwrap();
        let pieces: Vec<(usize, c_int)> = begun().iter().map(|b| (b.at - BASE, b.count)).collect();
        assert_eq!(
            pieces,
            [(0, PIECE as c_int), (PIECE, PIECE as c_int), (2 * PIECE, 5)]
        );
        assert!(
            begun()
                .iter()
                .all(|b| b.receives == receives && b.peer == 1 && b.tag == begun()[0].tag)
        );
        assert!(transport.done(ticket).is_none() && !transport.progress());
        finish(2);
        finish(0);
        assert!(transport.done(ticket).is_none());
        assert!(transport.progress() && !transport.progress());
        finish(1);
        assert_eq!(transport.done(ticket), Some(Ok(())));
        // Its place is used again, and an empty message is one, too.
        let again = send(&mut *transport, 4, 0).unwrap().unwrap();
        assert_eq!((again, begun().len(), begun()[3].count), (ticket, 4, 0));
        finish(3);
        assert_eq!(transport.done(again), Some(Ok(())));
        assert!(transport.progress());
    }
}

/// Receives that short tags would take for one another are refused while both are under way.
#[test]
fn receives_that_would_be_mistaken_for_one_another_are_refused() {
    let mut transport = transport();
    let first = recv(&mut *transport, 1, 5, 8).unwrap().unwrap();
    let same = recv(&mut *transport, 1, 5, 8).unwrap().unwrap();
    let other = recv(&mut *transport, 1, 6, 8).unwrap().unwrap();
    // Another sender, and another number of which enough is left.
    recv(&mut *transport, 0, 5 + 1024, 8).unwrap();
    recv(&mut *transport, 1, 5 + 1023, 8).unwrap();
    let error = recv(&mut *transport, 1, 5 + 1024, 8).unwrap_err();
    assert!(
        error.contains("15 bits") && error.contains("too many"),
        "{error}"
    );
    assert_eq!(begun().len(), 5, "what is refused is not begun");
    (0..3).for_each(finish);
    assert_eq!(transport.done(other), Some(Ok(())));
    assert_eq!(transport.done(first), Some(Ok(())));
    assert!(
        recv(&mut *transport, 1, 5 + 1024, 8).is_err(),
        "one is still under way"
    );
    assert_eq!(transport.done(same), Some(Ok(())));
    let later = recv(&mut *transport, 1, 5 + 1024, 8).unwrap().unwrap();
    assert_eq!(begun()[5].tag, begun()[0].tag);
    finish(5);
    assert_eq!(transport.done(later), Some(Ok(())));
}

/// Receives are taken back, unless they have begun to come; sends never.
#[test]
fn what_mpi_does_not_take_back_is_counted() {
    for (holds, left) in [(false, 1), (true, 2)] {
        let mut transport = transport();
        world(|world| world.holds = holds);
        let tickets = [
            send(&mut *transport, 1, 100),
            recv(&mut *transport, 1, 1, 100),
        ];
        let tickets = tickets.map(|ticket| ticket.unwrap().unwrap());
        let begin = Instant::now();
        assert_eq!(transport.give_up(&tickets), left);
        assert!(begin.elapsed() >= END);
        drop(transport);
        assert_eq!(
            world(|world| world.freed),
            0,
            "MPI still uses the communicator"
        );
    }
    // With nothing left behind nobody waits.
    let mut transport = transport();
    let ticket = recv(&mut *transport, 1, 1, 100).unwrap().unwrap();
    let begin = Instant::now();
    assert_eq!(transport.give_up(&[ticket]), 0);
    assert!(begin.elapsed() < END);
}

/// The end waits for letters on their way, and says if they are not gone by then.
#[test]
fn an_end_in_order_frees_the_communicator_when_all_has_left() {
    let mut transport = transport();
    send(&mut *transport, 1, 100).unwrap();
    finish(0);
    assert!(transport.end(true));
    drop(transport);
    assert_eq!(world(|world| world.freed), 1);
    let mut stuck = self::transport();
    send(&mut *stuck, 1, 100).unwrap();
    assert!(!stuck.end(true));
    drop(stuck);
    assert_eq!(world(|world| world.freed), 0);
    let mut failed = self::transport();
    assert!(failed.end(false));
    drop(failed);
    assert_eq!(world(|world| world.freed), 0);
}
