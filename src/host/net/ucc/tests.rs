//! UCC as a transport, over the stand-in of `tests/fakevendor`, and over the real one where it is.

use super::abi::ERR_NO_MESSAGE;
use super::*;
use crate::error::{Code, Error, Result as Outcome};
use crate::host::engine::Engine;
use crate::host::kernels::tests::Random;
use crate::host::net::NetEngine;
use crate::host::op::HostOp;
use crate::host::tests::{
    self, Buffer, World, group, matrix, pattern, reductions_of_size, transfer,
};
use crate::load::{Env, open_ucc_of};
use crate::types::OpKind;
use flagos_comm_testkit::cargo::target_dir;
use flagos_comm_testkit::standins::Standins;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The library of this file.
fn opened(path: &Path) -> Outcome<&'static Api> {
    let path = path.to_str().unwrap();
    let env = Env::of(&[("FLAGOSCOMM_ENGINE_PATH", path)]);
    let api = open_ucc_of(&env, &mut Vec::new())?;
    Ok(Box::leak(Box::new(api)))
}

fn stand_in() -> &'static Api {
    static API: LazyLock<&Api> = LazyLock::new(|| opened(&Standins::ucc().build().ccl()).unwrap());
    &API
}

/// The real one: that of `FLAGOSCOMM_TEST_UCC`, else the system's.
fn real() -> Option<&'static Api> {
    static API: LazyLock<Option<&Api>> = LazyLock::new(|| {
        let named = std::env::var("FLAGOSCOMM_TEST_UCC").ok();
        let found = match &named {
            Some(path) => opened(Path::new(path)),
            None => open_ucc_of(&Env::of(&[]), &mut Vec::new()).and_then(|api| {
                // Other tests have brought it into the process.
                let is_ours = api.path.starts_with(target_dir().join("standins"));
                match is_ours {
                    true => Err(Error::not_supported("the process has the stand-in")),
                    false => Ok(&*Box::leak(Box::new(api))),
                }
            }),
        };
        match found {
            Ok(api) => Some(api),
            Err(why) if named.is_some() => panic!("FLAGOSCOMM_TEST_UCC: {why}"),
            Err(why) => {
                println!(
                    "SKIPPED: the host tier's engine over the real UCC needs libucc.so.1 (Debian sid: libucc1): {why}"
                );
                None
            }
        }
    });
    *API
}

/// The ends of ranks of this process, which tell each other in turn what UCC wants to exchange.
fn ends(api: &'static Api, ranks: usize) -> Outcome<Vec<Ucc>> {
    let begun = (0..ranks).map(|rank| Meeting::begin(api, rank, ranks));
    let mut meetings = begun.collect::<Outcome<Vec<Meeting>>>()?;
    let mut said: Vec<Option<Vec<u8>>> = vec![None; ranks];
    let mut made = vec![false; ranks];
    let until = Instant::now() + Duration::from_secs(20);
    while !made.iter().all(|made| *made) {
        assert!(Instant::now() < until, "the ranks don't meet");
        for (rank, meeting) in meetings.iter_mut().enumerate() {
            match meeting.advance()? {
                Step::Wait => {}
                Step::Say(own) => said[rank] = Some(own),
                Step::Made => made[rank] = true,
            }
        }
        if said.iter().all(Option::is_some) {
            let all: Vec<Vec<u8>> = said.iter_mut().filter_map(Option::take).collect();
            for meeting in &mut meetings {
                meeting.heard(all.iter().map(Vec::as_slice))?;
            }
        }
    }
    meetings.into_iter().map(Meeting::finish).collect()
}

fn world_of(api: &'static Api, ranks: u32) -> World {
    let engine = |(rank, end)| {
        let engine = NetEngine::new(Box::new(end), rank, ranks as usize, false).unwrap();
        Arc::new(engine) as Arc<dyn Engine>
    };
    let ends = ends(api, ranks as usize).unwrap();
    World(ends.into_iter().enumerate().map(engine).collect(), |_| {
        false
    })
}

fn world(ranks: u32) -> World {
    world_of(stand_in(), ranks)
}

fn real_world(ranks: u32) -> World {
    world_of(real().unwrap(), ranks)
}

mod over_the_stand_in {
    use super::world;

    crate::host::tests::engine_tests! {
        world;
        matrix_of_1_and_2_ranks
        matrix_of_3_and_4_ranks
        disagreements_are_errors_on_every_rank_and_leave_the_engine_usable
        wrong_arguments_are_found_before_anything_is_published
        lone_messages_arrive
        large_messages_that_block_each_other_end_at_the_deadline
        groups_of_messages_are_matched_in_order
        a_group_may_mix_collectives_and_messages_in_any_order
        random_operations_with_threads
    }
}

#[test]
fn numbers_of_more_ranks_and_larger_pieces() {
    matrix(world, 9, &[1, 3001]);
    for (ranks, bytes) in [(2, 2_200_000), (3, 1_200_000)] {
        reductions_of_size(&world(ranks), bytes);
    }
    tests::disagreeing_messages(&world(2), Some(8 << 10));
}

/// The numbers again, over UCC as it is here.
#[test]
fn numbers_and_messages_over_the_real_one() {
    if real().is_none() {
        return;
    }
    matrix(real_world, 2, &[0, 1, 13, 3001, 70_001]);
    matrix(real_world, 3, &[0, 7, 5000]);
    matrix(real_world, 4, &[0, 1, 13, 3001]);
    matrix(real_world, 9, &[1, 100]);
    for (ranks, bytes) in [(2, 2_200_000), (3, 1_200_000)] {
        reductions_of_size(&real_world(ranks), bytes);
    }
    tests::lone_messages_arrive(real_world);
    tests::groups_of_messages_are_matched_in_order(real_world);
    tests::a_group_may_mix_collectives_and_messages_in_any_order(real_world);
    tests::large_messages_that_block_each_other_end_at_the_deadline(real_world);
    tests::disagreeing_messages(&real_world(2), Some(8 << 10));
    tests::disagreements_are_errors_on_every_rank_and_leave_the_engine_usable(real_world);
}

/// The tags of data, whose size both sides know, and of a header.
const DATA: u64 = 2 << 60;
const HEADER: u64 = 1 << 60;

fn pair() -> [Ucc; 2] {
    ends(stand_in(), 2).unwrap().try_into().ok().unwrap()
}

fn send(end: &mut Ucc, tag: u64, data: &[u8]) -> Option<Ticket> {
    let to = 1 - end.rank;
    // SAFETY: the data outlives the ends in every test.
    unsafe { end.send(to, tag, data.as_ptr(), data.len()) }.unwrap()
}

fn recv(end: &mut Ucc, tag: u64, data: &mut [u8]) -> Option<Ticket> {
    let from = 1 - end.rank;
    // SAFETY: as above.
    unsafe { end.recv(from, tag, data.as_mut_ptr(), data.len()) }.unwrap()
}

/// Moves these on until the ticket of one of them is done, or no longer than so long.
fn done_within(ends: &mut [Ucc], of: usize, ticket: Ticket, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    while Instant::now() < until {
        ends.iter_mut().for_each(|end| {
            end.progress();
        });
        if let Some(outcome) = ends[of].done(ticket) {
            outcome.unwrap();
            return true;
        }
    }
    false
}

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(10);

/// More than a connection takes in while nobody reads.
const MUCH: usize = 20 << 20;

/// A long message is no more done than its seal, on both sides; what may be shorter than its place has none.
#[test]
fn messages_that_may_be_cut_are_sealed() {
    let mut ends = pair();
    let data: Vec<u8> = (0..MUCH).map(|at| at as u8).collect();
    let mut place = vec![0; data.len()];
    let sent = send(&mut ends[0], DATA, &data).unwrap();
    let came = recv(&mut ends[1], DATA, &mut place).unwrap();
    assert!(
        !done_within(&mut ends, 1, came, SHORT * 10),
        "its sender has not been asked, and so has not sealed it"
    );
    assert!(data == place, "but all of it has come");
    assert!(done_within(&mut ends, 0, sent, LONG));
    assert!(done_within(&mut ends, 1, came, LONG));
    for (tag, bytes, seals) in [
        (DATA, CERTAIN + 1, 1),
        (DATA, CERTAIN, 0),
        (HEADER, CERTAIN + 1, 0),
    ] {
        let data = vec![7; bytes];
        let mut place = vec![0; bytes];
        let came = recv(&mut ends[1], tag, &mut place).unwrap();
        let requests = ends[1].messages[came.0].requests.len();
        assert_eq!(requests, 1 + seals, "{bytes} bytes");
        assert!(
            send(&mut ends[0], tag, &data).is_none(),
            "what is with the kernel is done"
        );
        assert!(done_within(&mut ends, 1, came, LONG));
        assert_eq!(data, place);
    }
}

/// UCC does not tell when something has left: for a while after a send it is taken to be there.
#[test]
fn what_was_sent_is_looked_after_for_a_while() {
    let mut ends = pair();
    let mut place = [0; 8];
    assert!(ends[0].has_left() && ends[1].has_left());
    recv(&mut ends[1], HEADER, &mut place);
    send(&mut ends[0], HEADER, &[1; 8]);
    assert!(!ends[0].has_left() && ends[1].has_left());
    std::thread::sleep(LINGER);
    assert!(ends[0].has_left());
}

/// The seals of one sender and tag come in the order of the messages, whichever is asked for first.
#[test]
fn seals_keep_the_order_of_their_messages() {
    let mut ends = pair();
    let data: Vec<Vec<u8>> = (1..4).map(|n| vec![n; MUCH + n as usize]).collect();
    let mut places: Vec<Vec<u8>> = data.iter().map(|d| vec![0; d.len()]).collect();
    let sent: Vec<Ticket> = data
        .iter()
        .map(|d| send(&mut ends[0], DATA, d).unwrap())
        .collect();
    let came: Vec<Ticket> = places
        .iter_mut()
        .map(|place| recv(&mut ends[1], DATA, place).unwrap())
        .collect();
    assert!(
        !done_within(&mut ends, 0, sent[2], SHORT * 20),
        "two are before it"
    );
    assert!(data == places, "but all have come");
    assert!(done_within(&mut ends, 0, sent[0], LONG));
    assert!(done_within(&mut ends, 1, came[0], LONG));
    assert!(!done_within(&mut ends, 1, came[1], SHORT));
    assert!(done_within(&mut ends, 0, sent[1], LONG));
    assert!(done_within(&mut ends, 0, sent[2], LONG));
    assert!(done_within(&mut ends, 1, came[2], LONG) && done_within(&mut ends, 1, came[1], LONG));
}

#[test]
fn long_messages_go_in_pieces_that_keep_their_place() {
    let mut ends = pair();
    let mut random = Random::new(5);
    let words = 2 * PIECE / 8 + 3;
    let data: Vec<u8> = (0..words)
        .flat_map(|_| random.next().to_ne_bytes())
        .collect();
    let mut place = vec![0; data.len()];
    let came = recv(&mut ends[1], DATA, &mut place).unwrap();
    let sent = send(&mut ends[0], DATA, &data).unwrap();
    assert_eq!(
        ends[1].messages[came.0].requests.len(),
        4,
        "three pieces and a seal"
    );
    assert!(done_within(&mut ends, 0, sent, LONG) && done_within(&mut ends, 1, came, LONG));
    assert!(data == place);
    assert!(
        send(&mut ends[0], DATA, &[]).is_none(),
        "nothing to send is sent"
    );
}

/// Receives that short tags would take for one another are refused while both are under way.
#[test]
fn receives_that_would_be_mistaken_for_one_another_are_refused() {
    let mut ends = pair();
    let mut places = [[0; 8]; 3];
    let first = recv(&mut ends[0], HEADER | 5, &mut places[0]).unwrap();
    recv(&mut ends[0], HEADER | 6, &mut places[1]).unwrap();
    let other = HEADER | (5 + (1 << 10));
    let to = places[2].as_mut_ptr();
    // SAFETY: the place outlives the ends.
    let error = unsafe { ends[0].recv(1, other, to, 8) }.unwrap_err();
    assert!(
        error.contains("15 bits") && error.contains("too many"),
        "{error}"
    );
    send(&mut ends[1], HEADER | 5, &[1; 8]);
    assert!(done_within(&mut ends, 0, first, LONG));
    assert!(recv(&mut ends[0], other, &mut places[2]).is_some());
}

/// More messages from one rank to another than short tags tell apart, small ones and large ones, both ways.
#[test]
fn a_group_may_have_more_messages_than_short_tags_tell_apart() {
    let world = world(2);
    for (count, bytes) in [(2200, 4), (1100, 9000)] {
        world.each(|engine| {
            let (rank, peer) = (engine.rank(), 1 - engine.rank());
            let sent = |number| Buffer::of(&pattern(rank, peer, number, bytes));
            let mut out: Vec<Buffer> = (0..count).map(sent).collect();
            let mut into: Vec<Buffer> = (0..count).map(|_| Buffer::new(bytes)).collect();
            let sends = out.iter_mut().map(|b| transfer(OpKind::Send, peer, b));
            let recvs = into.iter_mut().map(|b| transfer(OpKind::Recv, peer, b));
            let ops: Vec<HostOp> = sends.chain(recvs).collect();
            group(engine, &ops).unwrap();
            for (number, buffer) in into.iter().enumerate() {
                assert!(
                    buffer.get() == pattern(peer, rank, number, bytes),
                    "{number}"
                );
            }
        });
    }
}

unsafe extern "C" fn never(_: *mut c_void) -> c_int {
    IN_PROGRESS
}

/// The stand-in with other functions.
fn stand_in_with(change: impl FnOnce(&mut Api)) -> &'static Api {
    let mut api = stand_in().clone();
    change(&mut api);
    Box::leak(Box::new(api))
}

/// Whoever loses patience with UCC's end before he is asked has not come to it, and neither has an error.
#[test]
fn an_end_that_does_not_come_is_none() {
    unsafe extern "C" fn fails(_: *mut c_void) -> c_int {
        ERR_NO_MESSAGE
    }
    let handles = |destroy: unsafe extern "C" fn(*mut c_void) -> c_int| {
        let api = stand_in_with(|api| api.team_destroy = destroy);
        ends(api, 1).unwrap()[0].handles.take().unwrap()
    };
    assert_eq!(
        handles(never).end_within(LONG, Duration::ZERO),
        Ended::Never
    );
    assert_eq!(handles(fails).end_within(LONG, LONG), Ended::Never);
    assert_eq!(handles(never).end_within(SHORT, 10 * SHORT), Ended::NotYet);
    let whole = ends(stand_in(), 1).unwrap()[0].handles.take().unwrap();
    assert_eq!(whole.end_within(LONG, LONG), Ended::Wholly);
}

/// What could only be begun in part is under way, too, although it has no ticket.
#[test]
fn what_has_no_ticket_is_counted_when_it_is_left() {
    static POSTS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn third_fails(request: *mut c_void) -> c_int {
        match POSTS.fetch_add(1, Ordering::Relaxed) {
            // SAFETY: as the caller's.
            0 | 1 => unsafe { (stand_in().collective_post)(request) },
            _ => ERR_NO_MESSAGE,
        }
    }
    let api = stand_in_with(|api| {
        api.collective_post = third_fails;
        api.team_destroy = never;
    });
    let mut ends = ends(api, 2).unwrap();
    let mut place = vec![0; 2 * PIECE + 1];
    let to = place.as_mut_ptr();
    // SAFETY: the place is leaked below.
    let begun = unsafe { ends[0].recv(1, DATA, to, place.len()) };
    std::mem::forget(place);
    assert!(begun.is_err());
    assert_eq!(ends[0].give_up(&[]), 1);
    assert_eq!(ends[1].give_up(&[]), 0, "nothing of it was under way");
}

/// What UCC may still write to is the caller's again when the call has returned.
#[test]
fn what_is_left_under_way_is_not_moved_on_behind_the_call() {
    static MOVED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn counted(context: *mut c_void) -> c_int {
        MOVED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { (stand_in().context_progress)(context) }
    }
    let api = stand_in_with(|api| {
        api.context_progress = counted;
        api.team_destroy = never;
    });
    let mut ends = ends(api, 2).unwrap();
    recv(&mut ends[0], HEADER, Box::leak(Box::new([0; 8]))).unwrap();
    assert_eq!(ends[0].give_up(&[]), 1);
    let moved = MOVED.load(Ordering::Relaxed);
    std::thread::sleep(SHORT);
    assert_eq!(MOVED.load(Ordering::Relaxed), moved);
}

/// A team whose making takes UCC long to give up is ended all the same.
#[test]
fn a_meeting_that_ucc_gives_up_late_ends() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn late(_: *mut c_void) -> c_int {
        match ASKED.fetch_add(1, Ordering::Relaxed) {
            0..1000 => IN_PROGRESS,
            _ => ERR_NO_MESSAGE,
        }
    }
    unsafe extern "C" fn counted(context: *mut c_void) -> c_int {
        ENDED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { (stand_in().context_destroy)(context) }
    }
    let api = stand_in_with(|api| {
        api.team_create_test = late;
        api.context_destroy = counted;
    });
    drop(Meeting::begin(api, 0, 2).unwrap());
    assert_eq!(ENDED.load(Ordering::Relaxed), 1);
}

/// With UCC's context all requests and connections end, and what is asked later is refused.
#[test]
fn giving_up_ends_what_is_under_way() {
    let mut ends = pair();
    let data = vec![1; MUCH];
    let unread = send(&mut ends[1], DATA, &data).unwrap();
    assert!(!done_within(&mut ends[1..], 0, unread, SHORT));
    let mut place = [0; 8];
    let ticket = recv(&mut ends[0], HEADER, &mut place).unwrap();
    let begin = Instant::now();
    assert_eq!(ends[0].give_up(&[ticket]), 0);
    assert!(begin.elapsed() < END);
    assert_eq!(ends[0].done(ticket), Some(Err("it is closed".into())));
    assert!(
        done_within(&mut ends[1..], 0, unread, LONG),
        "the connection is there no more, which UCC takes for success"
    );
    // SAFETY: nothing is read.
    let refused = unsafe { ends[0].send(1, HEADER, place.as_ptr(), 8) };
    assert_eq!(refused, Err("it is closed".into()));
    assert!(!ends[0].progress() && ends[0].end(true) && ends[1].end(true));
}

/// A meeting that comes to nothing leaves nothing, and says what UCC said.
#[test]
fn a_meeting_that_is_left_ends() {
    let mut meeting = Meeting::begin(stand_in(), 0, 2).unwrap();
    while !matches!(meeting.advance().unwrap(), Step::Say(_)) {}
    let begin = Instant::now();
    drop(meeting);
    assert!(begin.elapsed() < END);
    let mut meeting = Meeting::begin(stand_in(), 0, 2).unwrap();
    while !matches!(meeting.advance().unwrap(), Step::Say(_)) {}
    let error = meeting
        .heard([&[1u8][..], &[2u8, 3][..]].into_iter())
        .unwrap_err();
    assert_eq!(error.code(), Code::InternalError);
}

/// What is no UCC that can be used is refused in words.
#[test]
fn a_library_that_lacks_something_or_is_too_old_is_refused() {
    let lacking = Standins::ucc().omit("ucc_collective_init").build();
    let text = opened(&lacking.ccl()).unwrap_err().text().to_owned();
    assert!(text.contains("it lacks ucc_collective_init"), "{text}");
    let old = Standins::ucc().version(10100).build();
    let text = opened(&old.ccl()).unwrap_err().text().to_owned();
    assert!(
        text.contains("it is UCC 1.1.0, and 1.2 or later is needed"),
        "{text}"
    );
}
