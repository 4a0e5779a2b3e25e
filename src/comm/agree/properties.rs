//! Whatever the ranks say: they all come to the same end, and nobody's reason is lost.

use super::*;
use proptest::prelude::*;

/// What happens on one rank when a tier is tried.
#[derive(Clone, Debug)]
struct Trial {
    /// Why it has no library; empty if it has one.
    missing: String,
    version: i32,
    /// Why the library's init fails there; empty if it does not.
    init: String,
}

/// One rank: what it says, and what happens to it on each tier.
#[derive(Clone, Debug)]
struct Member {
    info: RankInfo,
    trials: [Trial; 2],
}

/// How an init ends on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Tier(Tier, Vec<(Tier, String)>),
    Failed(Code, String),
}

fn trial(member: &Member, tier: Tier) -> &Trial {
    &member.trials[usize::from(tier == Tier::Flagcx)]
}

/// What one rank goes through. It knows of the others what came over the wire.
fn one_rank(world: &[Member]) -> End {
    let bodies: Vec<Vec<u8>> = world.iter().map(|m| m.info.encode()).collect();
    let infos = RankInfo::decode_all(bodies.iter().map(Vec::as_slice)).expect("our own encoding");
    let failed = |error: Error| End::Failed(error.code(), error.text().to_owned());
    let mut course = match Course::new(&infos) {
        Ok(course) => course,
        Err(error) => return failed(error),
    };
    loop {
        let tier = match course.next() {
            Ok(tier) => tier,
            Err(error) => return failed(error),
        };
        if tier == Tier::Host {
            return End::Tier(tier, course.declined);
        }
        let votes: Vec<ProbeVote> = world
            .iter()
            .map(|m| {
                let trial = trial(m, tier);
                let vote = ProbeVote {
                    reason: trial.missing.clone(),
                    version: trial.version,
                    path: format!("/lib/{}", trial.version),
                    numbers: String::new(),
                    id: Vec::new(),
                };
                ProbeVote::decode(&vote.encode()).expect("our own encoding")
            })
            .collect();
        match after_probe(&infos, &votes) {
            Verdict::Go => {}
            Verdict::Decline(reason) => {
                course.decline(tier, reason);
                continue;
            }
            Verdict::Stop(text) => return failed(Error::invalid_usage(text)),
        }
        match reasons(&infos, world.iter().map(|m| trial(m, tier).init.as_str())) {
            None => return End::Tier(tier, course.declined),
            Some(reason) => {
                course.code = Code::UnhandledCclError;
                course.decline(tier, reason);
            }
        }
    }
}

/// The end on all ranks, which must be one.
fn agreed(world: &[Member]) -> End {
    let ends: Vec<End> = world.iter().map(|_| one_rank(world)).collect();
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    ends[0].clone()
}

fn text_of(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Go => "",
        Verdict::Decline(text) | Verdict::Stop(text) => text,
    }
}

/// Whether a text names the rank, alone or in a range.
fn names(text: &str, rank: usize) -> bool {
    let bare = text.replace(", ", ",").replace("ranks ", "rank ");
    bare.split("rank ").skip(1).any(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '-');
        rest[..end.unwrap_or(rest.len())].split(',').any(|part| {
            let mut ends = part.split('-').filter_map(|n| n.parse::<usize>().ok());
            match (ends.next(), ends.next()) {
                (Some(low), Some(high)) => (low..=high).contains(&rank),
                (Some(one), None) => one == rank,
                _ => false,
            }
        })
    })
}

fn same_device(a: &RankInfo, b: &RankInfo) -> bool {
    a.machine == b.machine
        && a.vendor == b.vendor
        && match (a.uuid, b.uuid) {
            (Some(x), Some(y)) => x == y,
            _ => a.device == b.device && a.pid_namespace == b.pid_namespace,
        }
}

fn info(rank: usize, nranks: usize) -> RankInfo {
    let common = Common {
        library_version: 100,
        nranks: nranks as u32,
        vendor: "nvidia".into(),
        machine: "m".into(),
        host: format!("h{rank}"),
        pid_namespace: 1,
        tiers: Tier::DEFAULT_ORDER.to_vec(),
        ..Common::default()
    };
    let mut info = RankInfo::new(common, 100 + rank as u32, 5);
    info.device = rank as i32;
    info
}

/// Every verdict on one world, against what must follow from its facts alone.
fn check_worth_probing(infos: &[RankInfo]) {
    let refusing = |i: &RankInfo| i.vendor.is_empty() || !i.no_native.is_empty();
    let mixed = infos.iter().any(|i| i.vendor != infos[0].vendor);
    let twins = (0..infos.len())
        .flat_map(|a| (0..a).map(move |b| (b, a)))
        .find(|(b, a)| same_device(&infos[*a], &infos[*b]));
    assert_eq!(worth_probing(Tier::Host, infos), Verdict::Go);
    for tier in [Tier::Native, Tier::Flagcx] {
        let verdict = worth_probing(tier, infos);
        let text = text_of(&verdict);
        if infos.iter().any(refusing) {
            assert!(matches!(verdict, Verdict::Decline(_)), "{verdict:?}");
            for (rank, info) in infos.iter().enumerate() {
                assert_eq!(names(text, rank), refusing(info), "rank {rank}: {text}");
                assert!(text.contains(&info.no_native), "rank {rank}: {text}");
            }
        } else if mixed && tier == Tier::Native {
            assert!(matches!(verdict, Verdict::Decline(_)), "{verdict:?}");
            for info in infos {
                assert!(text.contains(&info.vendor), "{text}");
            }
        } else if let Some((b, a)) = twins {
            assert!(matches!(verdict, Verdict::Stop(_)), "{verdict:?}");
            assert!(names(text, a) && names(text, b), "{text}");
            assert!(text.contains("same device") && text.contains("FLAGOSCOMM_TIERS=host"));
        } else {
            assert_eq!(verdict, Verdict::Go);
        }
    }
}

/// Every world of two ranks, and of three, over a few values of each fact.
#[test]
fn verdicts_of_all_small_worlds() {
    let mut kinds = Vec::new();
    for vendor in ["", "nvidia", "metax"] {
        for no_native in ["", "its driver is broken"] {
            for device in 0..2 {
                for uuid in [None, Some([1; 16]), Some([2; 16])] {
                    for machine in ["m", "n"] {
                        kinds.push((vendor, no_native, device, uuid, machine));
                    }
                }
            }
        }
    }
    let member = |rank: usize, n: usize, kind: &(&str, &str, i32, Option<[u8; 16]>, &str)| {
        let mut info = info(rank, n);
        info.vendor = kind.0.into();
        info.no_native = kind.1.into();
        (info.device, info.uuid, info.machine) = (kind.2, kind.3, kind.4.into());
        info
    };
    let mut worlds = 0;
    for a in &kinds {
        for b in &kinds {
            check_worth_probing(&[member(0, 2, a), member(1, 2, b)]);
            // Of three ranks the third is one without reasons of its own: the pairs have shown those.
            for c in kinds.iter().filter(|k| !k.0.is_empty() && k.1.is_empty()) {
                check_worth_probing(&[member(0, 3, a), member(1, 3, b), member(2, 3, c)]);
                worlds += 1;
            }
        }
    }
    assert_eq!(worlds, 72 * 72 * 24);
}

/// Every way in which the libraries of three ranks can be there and work.
#[test]
fn all_votes_of_small_worlds() {
    let trials: Vec<Trial> = [
        ("", 1, ""),
        ("", 2, ""),
        ("not found", 0, ""),
        ("", 1, "code 7"),
    ]
    .into_iter()
    .map(|(missing, version, init)| Trial {
        missing: missing.into(),
        version,
        init: init.into(),
    })
    .collect();
    let all: Vec<[Trial; 2]> = trials
        .iter()
        .flat_map(|n| trials.iter().map(|f| [n.clone(), f.clone()]))
        .collect();
    let mut tiers = [0; 4];
    for a in &all {
        for b in &all {
            for c in &all {
                let world: Vec<Member> = [a, b, c]
                    .into_iter()
                    .enumerate()
                    .map(|(rank, trials)| Member {
                        info: info(rank, 3),
                        trials: trials.clone(),
                    })
                    .collect();
                match agreed(&world) {
                    End::Tier(tier, declined) => {
                        tiers[tier as usize] += 1;
                        for (tier, text) in &declined {
                            check_reasons(&world, *tier, text);
                        }
                    }
                    // Host is allowed, so that only versions that differ are an error, which shows them.
                    End::Failed(code, text) => {
                        tiers[0] += 1;
                        assert_eq!(code, Code::InvalidUsage);
                        assert!(text.contains("/lib/1") && text.contains("/lib/2"), "{text}");
                        assert!((0..3).all(|rank| names(&text, rank)), "{text}");
                    }
                }
            }
        }
    }
    assert!(tiers.iter().all(|n| *n > 0), "{tiers:?}");
    assert_eq!(tiers.iter().sum::<usize>(), 16 * 16 * 16);
}

/// A tier that was tried and left: each rank that failed is named, with its own words.
fn check_reasons(world: &[Member], tier: Tier, text: &str) {
    let missing = world.iter().any(|m| !trial(m, tier).missing.is_empty());
    for (rank, member) in world.iter().enumerate() {
        let trial = trial(member, tier);
        let own = if missing { &trial.missing } else { &trial.init };
        assert_eq!(names(text, rank), !own.is_empty(), "rank {rank}: {text}");
        assert!(text.contains(own.as_str()), "rank {rank}: {text}");
    }
}

fn mostly<T: Clone + std::fmt::Debug + 'static>(usual: T, odd: T) -> impl Strategy<Value = T> {
    prop_oneof![12 => Just(usual), 1 => Just(odd)]
}

fn words() -> impl Strategy<Value = String> {
    prop_oneof![6 => Just(String::new()), 1 => Just("not found".into()), 1 => "[a-z]{1,12}( [a-z./]{1,20}){0,3}"]
}

fn any_trial() -> impl Strategy<Value = Trial> {
    (words(), mostly(22_809, 21_803), words()).prop_map(|(missing, version, init)| Trial {
        missing,
        version,
        init,
    })
}

prop_compose! {
    fn member(n: usize)(
        version in mostly(100, 101),
        nranks in mostly(n as u32, n as u32 + 1),
        vendor in prop_oneof![12 => Just("nvidia"), 2 => Just("metax"), 1 => Just("")],
        no_native in words(),
        device in 0..2 * n as i32,
        uuid in prop_oneof![2 => Just(None), 1 => any::<[u8; 16]>().prop_map(Some), 1 => Just(Some([7; 16]))],
        machine in 0..3,
        namespace in 1..3u64,
        tiers in mostly(Tier::DEFAULT_ORDER.to_vec(), vec![Tier::Host]),
        checking in mostly(false, true),
        fatal in mostly(None, Some(Box::new((4, "GEMS_VENDOR is odd".to_owned())))),
        trials in (any_trial(), any_trial()),
    ) -> Member {
        let mut info = info(0, n);
        (info.library_version, info.nranks, info.vendor) = (version, nranks, vendor.into());
        (info.no_native, info.device, info.uuid) = (no_native, device, uuid);
        (info.machine, info.pid_namespace, info.tiers) = (format!("m{machine}"), namespace, tiers);
        (info.checking, info.fatal) = (checking, fatal);
        Member { info, trials: [trials.0, trials.1] }
    }
}

fn world() -> impl Strategy<Value = Vec<Member>> {
    (1..13usize)
        .prop_flat_map(|n| proptest::collection::vec(member(n), n))
        .prop_map(|mut world| {
            for (rank, member) in world.iter_mut().enumerate() {
                member.info.host = format!("h{rank}");
                member.info.pid = 100 + rank as u32;
            }
            world
        })
}

/// The same facts, so that the tiers are reached more often than by chance.
fn consistent_world() -> impl Strategy<Value = Vec<Member>> {
    world().prop_map(|mut world| {
        let n = world.len() as u32;
        for member in &mut world {
            let info = &mut member.info;
            (info.library_version, info.nranks, info.checking) = (100, n, false);
            (info.tiers, info.fatal) = (Tier::DEFAULT_ORDER.to_vec(), None);
        }
        world
    })
}

fn place_in_order(tier: Tier) -> usize {
    let mut order = Tier::DEFAULT_ORDER.iter();
    order.position(|t| *t == tier).expect("every tier is there")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_ranks_come_to_the_same_end(world in world()) {
        let infos: Vec<RankInfo> = world.iter().map(|m| m.info.clone()).collect();
        check_worth_probing(&infos);
        let end = agreed(&world);
        let fits = infos.iter().all(|i| {
            let first = &infos[0];
            i.fatal.is_none()
                && (i.library_version, i.nranks, &i.tiers, i.checking)
                    == (first.library_version, first.nranks, &first.tiers, first.checking)
        });
        prop_assert_eq!(fits, consistent(&infos).is_ok());
        if !fits {
            let End::Failed(_, text) = &end else {
                return Err(TestCaseError::fail("ranks that do not fit together went on"));
            };
            let fatal = infos.iter().position(|i| i.fatal.is_some());
            prop_assert!(fatal.is_none_or(|rank| names(text, rank)), "{}", text);
            prop_assert!((0..infos.len()).any(|rank| names(text, rank)), "{}", text);
        }
    }

    #[test]
    fn a_tier_that_is_left_says_why_for_each_rank(world in consistent_world()) {
        if let End::Tier(tier, declined) = agreed(&world) {
            // All better tiers were left, in order, each for a reason.
            let left: Vec<Tier> = declined.iter().map(|(t, _)| *t).collect();
            prop_assert_eq!(&left[..], &Tier::DEFAULT_ORDER[..place_in_order(tier)]);
            let infos: Vec<RankInfo> = world.iter().map(|m| m.info.clone()).collect();
            for (tier, text) in &declined {
                prop_assert!(!text.is_empty());
                if worth_probing(*tier, &infos) == Verdict::Go {
                    check_reasons_bounded(&world, *tier, text)?;
                }
            }
            if tier != Tier::Host {
                prop_assert!(infos.iter().all(|i| !i.vendor.is_empty() && i.no_native.is_empty()));
            }
            if tier == Tier::Native {
                prop_assert!(infos.iter().all(|i| i.vendor == infos[0].vendor));
            }
        }
    }

    /// What one rank lacks, once it has it, never makes the end worse.
    #[test]
    fn a_repaired_rank_is_never_to_the_others_harm(world in consistent_world(), which in any::<usize>()) {
        let End::Tier(before, _) = agreed(&world) else { return Ok(()) };
        let mut better = world.clone();
        let rank = which % world.len();
        for trial in &mut better[rank].trials {
            trial.init = String::new();
        }
        match agreed(&better) {
            End::Tier(after, _) => prop_assert!(place_in_order(after) <= place_in_order(before)),
            End::Failed(_, text) => prop_assert!(false, "{}", text),
        }
    }

    /// The odd ranks are named, however many ranks there are.
    #[test]
    fn the_odd_rank_of_many_is_named(n in 3..400usize, odd in any::<usize>(), what in 0..3) {
        let odd = odd % n;
        let mut infos: Vec<RankInfo> = (0..n).map(|rank| info(rank, n)).collect();
        let text = match what {
            0 => {
                infos[odd].library_version = 99;
                consistent(&infos).unwrap_err().text().to_owned()
            }
            1 => {
                infos[odd].no_native = "its driver is broken".into();
                text_of(&worth_probing(Tier::Native, &infos)).to_owned()
            }
            _ => {
                let vote = |rank| ProbeVote {
                    reason: String::new(),
                    version: 1 + i32::from(rank == odd),
                    path: "/lib/nccl".into(),
                    numbers: String::new(),
                    id: Vec::new(),
                };
                let votes: Vec<ProbeVote> = (0..n).map(vote).collect();
                text_of(&after_probe(&infos, &votes)).to_owned()
            }
        };
        let place = format!("rank {odd} (host h{odd}, pid {})", 100 + odd);
        prop_assert!(text.contains(&place), "{}", text);
        prop_assert!(text.len() < 2000, "{}", text);
    }
}

/// As [`check_reasons`], where there may be more reasons than are told in full.
fn check_reasons_bounded(
    world: &[Member],
    tier: Tier,
    text: &str,
) -> std::result::Result<(), TestCaseError> {
    let missing = world.iter().any(|m| !trial(m, tier).missing.is_empty());
    for (rank, member) in world.iter().enumerate() {
        let trial = trial(member, tier);
        let own = if missing { &trial.missing } else { &trial.init };
        prop_assert_eq!(
            names(text, rank),
            !own.is_empty(),
            "rank {}: {}",
            rank,
            text
        );
        prop_assert!(
            text.contains(own.as_str()) || text.contains("yet other reasons"),
            "{}",
            text
        );
    }
    Ok(())
}
