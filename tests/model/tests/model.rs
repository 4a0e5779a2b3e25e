//! `src/host/shm/protocol.rs`, the rules by which ranks hand memory to each other, on the words of model
//! checkers: loom with 2 ranks, which tries what the memory model allows, and shuttle with 4, which tries
//! many interleavings. Each model is also run with a rule broken, which the checker has to find.

#[path = "../../../src/host/shm/protocol.rs"]
mod protocol;

use protocol::{Counter, Group, Peers, Posted, Word};
use std::sync::atomic::Ordering;

/// What rank `from` contributes to block `block` of a step.
fn contribution(from: usize, step: u64, block: usize) -> u64 {
    1 << (16 * (step % 4)) << (4 * from) << block
}

/// The models, for one checker: the crate, and memory that it watches.
macro_rules! models {
    ($checker:ident, $slot:ident) => {
        use $checker::sync::Arc;
        use $checker::sync::atomic::AtomicU64;
        use $checker::thread;

        /// A word; `RELAXED` leaves out the orderings.
        struct Flag<const RELAXED: bool>(AtomicU64);

        impl<const RELAXED: bool> Word for Flag<RELAXED> {
            fn load(&self, order: Ordering) -> u64 {
                self.0.load(if RELAXED { Ordering::Relaxed } else { order })
            }

            fn store(&self, value: u64, order: Ordering) {
                self.0
                    .store(value, if RELAXED { Ordering::Relaxed } else { order });
            }

            fn replace(&self, current: u64, new: u64, order: Ordering) -> bool {
                let order = if RELAXED { Ordering::Relaxed } else { order };
                let replaced = self
                    .0
                    .compare_exchange(current, new, order, Ordering::Relaxed);
                replaced.is_ok()
            }
        }

        /// What one rank shares with the others.
        struct Shared<const RELAXED: bool> {
            counters: [Flag<RELAXED>; 5],
            /// By parity and receiver.
            inbound: [Vec<$slot>; 2],
            outbound: [$slot; 2],
            /// The caller's own.
            buffer: $slot,
        }

        impl<const RELAXED: bool> Shared<RELAXED> {
            fn new(ranks: usize) -> Self {
                let slots = || (0..ranks).map(|_| $slot::new()).collect();
                Shared {
                    counters: std::array::from_fn(|_| Flag(AtomicU64::new(0))),
                    inbound: [slots(), slots()],
                    outbound: [$slot::new(), $slot::new()],
                    buffer: $slot::new(),
                }
            }
        }

        /// One rank's view. `AFTER_ALL` is the rule that a result waits for all.
        struct Rank<const RELAXED: bool, const AFTER_ALL: bool> {
            all: Arc<Vec<Shared<RELAXED>>>,
            rank: usize,
        }

        impl<const RELAXED: bool, const AFTER_ALL: bool> Group for Rank<RELAXED, AFTER_ALL> {
            type Word = Flag<RELAXED>;
            type Error = ();
            const RESULT_AFTER_ALL: bool = AFTER_ALL;

            fn rank(&self) -> usize {
                self.rank
            }

            fn ranks(&self) -> usize {
                self.all.len()
            }

            fn counter(&self, counter: Counter, rank: usize) -> &Flag<RELAXED> {
                let index = match counter {
                    Counter::Posted => 0,
                    Counter::Consumed => 1,
                    Counter::Left => 2,
                    Counter::Header(parity) => 3 + parity,
                };
                &self.all[rank].counters[index]
            }

            fn ring(&self) {}

            fn wait_until(
                &self,
                ready: impl Fn() -> bool,
                _missing: impl Fn() -> Vec<u32>,
            ) -> Result<(), ()> {
                while !ready() {
                    thread::yield_now();
                }
                Ok(())
            }
        }

        /// Runs a body for each rank on a thread.
        fn ranks<const RELAXED: bool, const AFTER_ALL: bool>(
            ranks: usize,
            body: impl Fn(&Rank<RELAXED, AFTER_ALL>) + Clone + Send + Sync + 'static,
        ) {
            let all = Arc::new((0..ranks).map(|_| Shared::new(ranks)).collect::<Vec<_>>());
            let threads: Vec<_> = (1..ranks)
                .map(|rank| {
                    let own = Rank {
                        all: all.clone(),
                        rank,
                    };
                    let body = body.clone();
                    thread::spawn(move || body(&own))
                })
                .collect();
            body(&Rank { all, rank: 0 });
            for thread in threads {
                thread.join().unwrap();
            }
        }

        /// Collectives whose data lies in slots, by parity of their number.
        fn small<const RELAXED: bool>(n: usize, calls: u64) {
            ranks::<RELAXED, true>(n, move |own| {
                for sequence in 1..=calls {
                    let parity = (sequence & 1) as usize;
                    own.all[own.rank].outbound[parity].write(contribution(own.rank, sequence, 0));
                    protocol::exchange(own, sequence, |rank| {
                        let found = own.all[rank].outbound[parity].read();
                        assert_eq!(found, contribution(rank, sequence, 0));
                    })
                    .unwrap();
                }
            });
        }

        /// Piece steps from some ranks to some.
        fn pieces<const RELAXED: bool>(n: usize, steps: u64, writers: Peers, readers: Peers) {
            ranks::<RELAXED, true>(n, move |own| {
                let put = |step: u64, parity: usize| {
                    for block in 0..n {
                        let value = contribution(own.rank, step, block);
                        own.all[own.rank].inbound[parity][block].write(value);
                    }
                };
                let take = |step: u64, parity: usize| {
                    for peer in protocol::others(own).filter(|peer| writers.has(*peer)) {
                        let found = own.all[peer].inbound[parity][own.rank].read();
                        assert_eq!(found, contribution(peer, step, own.rank));
                    }
                };
                protocol::pipeline(own, 0, steps, (writers, readers), put, take).unwrap();
            });
        }

        /// Piece steps with a reduction between them. Without the rule that a result waits for all, the
        /// result is made of what the one rank that was waited for has posted: nothing but the reuse of the
        /// outbound area is wrong then.
        fn reduction<const RELAXED: bool, const AFTER_ALL: bool>(n: usize, steps: u64, to: Peers) {
            ranks::<RELAXED, AFTER_ALL>(n, move |own| {
                let parts = |owner: usize| -> Vec<usize> {
                    match AFTER_ALL {
                        true => (0..n).collect(),
                        false => vec![owner, (owner + 1) % n],
                    }
                };
                let put = |step: u64, parity: usize| {
                    // The inbound areas are to be right in any case.
                    if !AFTER_ALL && step >= 2 {
                        let consumed = Counter::Consumed;
                        protocol::await_peers(own, consumed, Peers::All, step - 1).unwrap();
                    }
                    for block in protocol::others(own) {
                        let value = contribution(own.rank, step, block);
                        own.all[own.rank].inbound[parity][block].write(value);
                    }
                };
                let fold = |step: u64, parity: usize| {
                    let part = |from: usize| match from == own.rank {
                        true => contribution(from, step, own.rank),
                        false => own.all[from].inbound[parity][own.rank].read(),
                    };
                    let sum = parts(own.rank).into_iter().map(part).sum();
                    own.all[own.rank].outbound[parity].write(sum);
                    Ok(())
                };
                let take = |step: u64, peer: usize, parity: usize| {
                    let found = own.all[peer].outbound[parity].read();
                    let of = |from: usize| contribution(from, step, peer);
                    assert_eq!(found, parts(peer).into_iter().map(of).sum::<u64>());
                };
                protocol::reduce_steps(own, 0, steps, to, put, fold, take).unwrap();
            });
        }

        /// Collectives that read the buffers of some ranks where they are; their owners write to them again
        /// when the call has returned.
        fn visits<const RELAXED: bool>(n: usize, calls: u64, owners: Peers) {
            ranks::<RELAXED, true>(n, move |own| {
                for sequence in 1..=calls {
                    if owners.has(own.rank) {
                        own.all[own.rank]
                            .buffer
                            .write(contribution(own.rank, sequence, 0));
                    }
                    protocol::exchange(own, sequence, |_| {}).unwrap();
                    for peer in protocol::others(own).filter(|peer| owners.has(*peer)) {
                        let found = own.all[peer].buffer.read();
                        assert_eq!(found, contribution(peer, sequence, 0));
                    }
                    let visitors = match owners.has(own.rank) {
                        true => Peers::All,
                        false => Peers::Only(own.rank),
                    };
                    // What it has itself is still there.
                    protocol::leave(own, sequence, visitors, || {
                        if owners.has(own.rank) {
                            let found = own.all[own.rank].buffer.read();
                            assert_eq!(found, contribution(own.rank, sequence, 0));
                        }
                    })
                    .unwrap();
                }
            });
        }

        /// A message that rank 0 offers where it lies, and takes back if it may not wait; then it puts a piece in its place
        /// and uses its buffer for something else. Without `AFTER_ALL` it does so in any case.
        fn offer<const RELAXED: bool, const AFTER_ALL: bool>() {
            const OFFERED: u64 = 4096;
            ranks::<RELAXED, AFTER_ALL>(2, move |own| {
                let [note, posted, ..] = &own.all[0].counters;
                let taken = &own.all[1].counters[0];
                let (buffer, piece) = (&own.all[0].buffer, &own.all[0].outbound[0]);
                if own.rank == 0 {
                    buffer.write(7);
                    note.store(OFFERED, Ordering::Relaxed);
                    posted.store(1, Ordering::Release);
                    if protocol::take_back(note, OFFERED) {
                        piece.write(7);
                        protocol::put_instead(note);
                    } else if AFTER_ALL {
                        own.wait_until(|| taken.load(Ordering::Acquire) == 1, Vec::new)
                            .unwrap();
                    }
                    buffer.write(8);
                } else {
                    own.wait_until(|| posted.load(Ordering::Acquire) == 1, Vec::new)
                        .unwrap();
                    loop {
                        match protocol::look(note) {
                            Posted::Offer(offered) if protocol::take_offer(note, offered) => {
                                assert_eq!(buffer.read(), 7);
                                break;
                            }
                            Posted::Piece => {
                                assert_eq!(piece.read(), 7);
                                break;
                            }
                            _ => thread::yield_now(),
                        }
                    }
                    taken.store(1, Ordering::Release);
                }
            });
        }
    };
}

mod orderings {
    use super::*;

    /// Memory without any ordering of its own: loom fails if two ranks can be at it at once.
    struct Slot(loom::cell::UnsafeCell<u64>);

    // SAFETY: loom sees every access and ends the model at one that is not ordered.
    unsafe impl Sync for Slot {}

    impl Slot {
        fn new() -> Slot {
            Slot(loom::cell::UnsafeCell::new(0))
        }

        fn write(&self, value: u64) {
            // SAFETY: loom has checked that nobody else is at it.
            self.0.with_mut(|at| unsafe { *at = value });
        }

        fn read(&self) -> u64 {
            // SAFETY: as above.
            self.0.with(|at| unsafe { *at })
        }
    }

    models!(loom, Slot);

    fn check(body: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.max_branches = 20_000;
        model.check(body);
    }

    #[test]
    fn small_collectives() {
        check(|| small::<false>(2, 3));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn small_collectives_without_orderings_are_found_wrong() {
        check(|| small::<true>(2, 2));
    }

    #[test]
    fn piece_steps() {
        check(|| pieces::<false>(2, 3, Peers::All, Peers::All));
        check(|| pieces::<false>(2, 4, Peers::Only(0), Peers::Except(0)));
        check(|| pieces::<false>(2, 4, Peers::Except(1), Peers::Only(1)));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn piece_steps_without_orderings_are_found_wrong() {
        check(|| pieces::<true>(2, 2, Peers::All, Peers::All));
    }

    #[test]
    fn reductions() {
        check(|| reduction::<false, true>(2, 3, Peers::All));
        check(|| reduction::<false, true>(2, 3, Peers::Only(1)));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn reductions_without_orderings_are_found_wrong() {
        check(|| reduction::<true, true>(2, 2, Peers::All));
    }

    #[test]
    fn visits_of_buffers() {
        check(|| visits::<false>(2, 3, Peers::All));
        check(|| visits::<false>(2, 3, Peers::Only(0)));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn visits_without_orderings_are_found_wrong() {
        check(|| visits::<true>(2, 2, Peers::All));
    }

    #[test]
    fn offers_are_taken_or_taken_back() {
        check(offer::<false, true>);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn offers_without_orderings_are_found_wrong() {
        check(offer::<true, true>);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_buffer_that_is_used_again_although_its_offer_was_taken_is_found() {
        check(offer::<false, false>);
    }

    // With 2 ranks the one that is waited for is all others: why 4 are needed to find the fault.
    #[test]
    fn a_result_after_one_of_one_other_is_right() {
        check(|| reduction::<false, false>(2, 3, Peers::All));
    }
}

mod interleavings {
    use super::*;

    /// Memory whose every access is a place where another rank may go on.
    struct Slot(shuttle::sync::atomic::AtomicU64);

    impl Slot {
        fn new() -> Slot {
            Slot(AtomicU64::new(0))
        }

        fn write(&self, value: u64) {
            self.0.store(value, Ordering::Relaxed);
        }

        fn read(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    models!(shuttle, Slot);

    const RANKS: usize = 4;

    /// Half of the interleavings at random, half with few changes of the rank that runs.
    fn check(interleavings: usize, body: impl Fn() + Send + Sync + Copy + 'static) {
        shuttle::check_random(body, interleavings / 2);
        shuttle::check_pct(body, interleavings / 2, 5);
    }

    fn all(interleavings: usize) {
        let n = interleavings;
        check(n, || small::<false>(RANKS, 5));
        check(n, || pieces::<false>(RANKS, 5, Peers::All, Peers::All));
        check(n, || {
            pieces::<false>(RANKS, 5, Peers::Only(1), Peers::Except(1))
        });
        check(n, || {
            pieces::<false>(RANKS, 5, Peers::Except(2), Peers::Only(2))
        });
        check(n, || reduction::<false, true>(RANKS, 5, Peers::All));
        check(n, || reduction::<false, true>(RANKS, 5, Peers::Only(3)));
        check(n, || visits::<false>(RANKS, 4, Peers::All));
        check(n, || visits::<false>(RANKS, 4, Peers::Only(1)));
        check(n, offer::<false, true>);
    }

    #[test]
    fn four_ranks() {
        all(200);
    }

    #[test]
    #[ignore = "long: minutes of interleavings"]
    fn four_ranks_for_long() {
        all(50_000);
    }

    // The outbound area is rewritten when one of the other ranks has announced the step, not all: another may
    // still copy out what lay there.
    #[test]
    #[should_panic(expected = "assertion `left == right` failed")]
    fn a_result_after_one_of_three_others_is_found_wrong() {
        check(20_000, || reduction::<false, false>(RANKS, 5, Peers::All));
    }
}
