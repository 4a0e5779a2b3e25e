//! The scenarios of tests/life: what happens to communicators when ranks come late, fail, die, fork, exec
//! or exit. `long` tests do more of the same.

use flagos_comm_capi_tests::{have, library, root, run, target_dir};
use flagos_comm_testkit::Standins;
use std::path::PathBuf;
use std::process::Command;

/// The files with the scenarios.
const FILES: [&str; 7] = [
    "life.py",
    "edges.py",
    "matrix.py",
    "foreign.py",
    "machines.py",
    "mpi.py",
    "ucc.py",
];

/// Scenarios that only long tests run.
const LONG: [&str; 1] = ["faults_of_a_rank_everywhere"];

/// The code of a file of scenarios.
fn code(file: &str) -> String {
    std::fs::read_to_string(root().join("tests/life").join(file)).expect("a file of scenarios")
}

/// Runs a scenario of whichever file has it.
fn scenario(name: &str, cycles: u32) {
    if !have("python3") {
        return;
    }
    // The fault matrix compiles a library that it preloads, and needs a vendor.
    let standins = match code("matrix.py").contains(&format!("def {name}():")) {
        true if !have("gcc") => return,
        true => Standins::builder().build().dir,
        false => Default::default(),
    };
    let mut ucc = [PathBuf::new(), PathBuf::new()];
    if code("ucc.py").contains(&format!("def {name}():")) {
        if !have("gcc") {
            return;
        }
        ucc = [10900, 10300].map(|version| Standins::ucc().version(version).build().ccl());
    }
    let definition = format!("@scenario\ndef {name}():");
    let file = FILES
        .into_iter()
        .find(|f| code(f).contains(&definition))
        .unwrap_or_else(|| panic!("no scenario {name}"));
    run(Command::new("timeout")
        .args(["-k", "5", if LONG.contains(&name) { "900" } else { "200" }])
        .arg("python3")
        .arg(root().join("tests/life").join(file))
        .arg(name)
        .env("FLAGOSCOMM_TEST_LIBRARY", library())
        .env("FLAGOSCOMM_TEST_CYCLES", cycles.to_string())
        .env("FLAGOSCOMM_TEST_STANDINS", standins)
        .env(
            "FLAGOSCOMM_TEST_MPI_STANDARD",
            target_dir().join("mpi-standard"),
        )
        .env("FLAGOSCOMM_TEST_UCC_STANDIN", &ucc[0])
        .env("FLAGOSCOMM_TEST_UCC_OLDER", &ucc[1])
        .env("FLAGOSCOMM_TIERS", "host")
        .env("PYTHONDONTWRITEBYTECODE", "1"));
}

macro_rules! scenarios {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                scenario(stringify!($name), 100);
            }
        )*

        /// No scenario is forgotten here.
        #[test]
        fn every_scenario_is_a_test() {
            let code = FILES.map(code).concat();
            let mut lines = code.lines();
            while let Some(line) = lines.next() {
                if line != "@scenario" {
                    continue;
                }
                let name = lines.next().unwrap_or_default();
                let known = [$(stringify!($name)),*];
                assert!(
                    known.iter().chain(&LONG).any(|k| name == format!("def {k}():")),
                    "{name} is not in life.rs"
                );
            }
        }
    };
}

scenarios! {
    without_a_driver_nothing_panics
    an_id_serves_one_communicator
    a_malformed_id_is_refused
    an_interface_that_does_not_exist_is_said_at_once
    loopback_is_enough
    ranks_that_disagree_on_their_number_all_hear_it
    ranks_that_disagree_on_their_tiers_all_hear_it
    a_rank_that_never_comes_is_named
    a_rank_that_dies_during_init_ends_the_init
    ctrl_c_ends_a_waiting_program
    a_collective_that_a_rank_does_not_call_times_out
    zero_means_no_deadline
    a_rank_that_exits_before_the_first_collective_is_noticed
    destroy_after_a_peer_was_killed_returns
    a_rank_killed_inside_a_collective_frees_the_others
    a_rank_killed_while_its_memory_is_read_frees_the_others
    a_rank_killed_at_any_moment
    a_program_may_exit_without_destroying
    abort_frees_a_thread_that_waits_in_a_collective
    abort_of_an_init_that_waits_for_ranks
    a_nonblocking_init_completes
    abort_frees_a_thread_that_waits_in_a_split
    a_split_does_not_stop_an_operation_on_a_stream
    a_child_of_a_fork_starts_clean
    a_forked_child_does_not_keep_a_used_id_open
    a_communicator_of_before_a_fork_is_refused_in_the_child
    memory_of_before_a_fork_is_shared_with_the_child
    a_fork_while_other_threads_are_inside_the_library
    no_descriptor_survives_exec
    signals_do_not_disturb
    cycles_of_init_and_destroy_leave_nothing
    cycles_of_failed_init_leave_nothing
    cycles_of_shared_memory_leave_nothing
    a_communicator_shrinks_after_a_rank_was_killed
    splits_of_splits
    a_split_with_a_dead_rank_fails_everywhere
    a_process_may_start_over_and_change_its_environment
    threads_and_processes_as_ranks_of_one_communicator
    calls_that_differ_are_an_error_on_every_rank
    the_cost_of_init
    after_finalize_there_is_destroy_only
    control_calls_that_differ_are_an_error_on_both_ranks
    a_program_without_standard_streams_works
    a_limit_on_the_size_of_files_is_an_error_and_no_signal
    no_descriptor_left_is_a_system_error
    ranks_without_files_for_their_connections_say_how_many_they_need
    very_many_ranks_in_one_process_are_refused
    a_deadline_that_has_passed_at_once_is_a_timeout
    ranks_that_wait_hear_that_the_rendezvous_has_died
    a_slice_of_the_faults_of_a_rank
    ranks_that_come_with_something_wrong
    a_rank_that_is_lost_ends_the_communicator
    a_network_that_is_cut
    abort_wakes_every_wait_at_once
    cycles_on_a_vendor_leave_nothing
    foreign_clients_do_not_stop_an_init
    foreign_clients_do_not_move_a_deadline
    more_silent_clients_than_are_heard_make_room
    results_do_not_depend_on_where_the_ranks_are
    results_in_layers_are_the_same_on_all_ranks
    without_ucx_the_error_says_what_was_tried_and_what_to_install
    machines_that_ucx_does_not_connect_are_named
    a_rank_that_is_killed_on_another_machine_ends_the_others
    a_rank_that_is_killed_in_either_layer_ends_all
    a_cable_that_is_cut_ends_the_collectives_of_all
    an_abort_on_one_machine_ends_the_others
    calls_that_differ_across_machines_are_an_error_on_every_rank
    a_rank_that_leaves_at_once_has_done_its_part
    what_a_rank_did_that_ended_a_wait_on_another_machine_is_said
    layers_that_a_revoke_ends_can_be_split
    a_revoke_that_is_heard_through_shared_memory_is_passed_on_before_a_shrink
    an_abort_while_ucx_connects_ends_no_process
    a_hangup_is_left_to_the_program_over_ucx
    a_communicator_over_machines_shrinks
    cycles_over_ucx_leave_nothing
    cycles_of_layers_leave_nothing
    over_mpi_results_are_those_of_shared_memory
    results_in_layers_over_mpi_are_the_same_on_all_ranks
    mpi_is_finalised_by_whoever_has_initialised_it
    a_program_that_finalises_mpi_too_early_is_told
    what_mpi_can_not_do_is_refused_in_words
    mpi_takes_the_place_of_ucx_that_is_missing
    two_communicators_over_mpi_at_once
    large_messages_go_over_mpi_in_pieces
    cycles_over_mpi_leave_nothing
    a_rank_over_mpi_that_dies_or_stops_ends_the_others_calls
    over_ucc_results_are_those_of_shared_memory
    results_in_layers_over_ucc_are_the_same_on_all_ranks
    without_ucc_the_error_says_what_was_tried_and_how_to_get_it
    a_rank_over_ucc_that_is_killed_ends_the_others
    a_rank_over_ucc_that_stops_or_is_cut_off_ends_the_others
    an_abort_ends_a_wait_over_ucc
    a_connection_of_uccs_that_breaks_is_no_success
    a_connection_between_leaders_that_breaks_is_no_success
    what_ucc_says_of_an_error_is_said
    a_destroy_does_not_wait_for_ucc
    calls_that_differ_over_ucc_are_an_error_on_every_rank
    a_rank_over_ucc_that_leaves_at_once_has_done_its_part
    cycles_over_ucc_leave_nothing
}

#[test]
#[ignore = "long"]
fn long_cycles_over_mpi_leave_nothing() {
    scenario("cycles_over_mpi_leave_nothing", 1000);
}

#[test]
#[ignore = "long"]
fn long_cycles_over_ucc_leave_nothing() {
    scenario("cycles_over_ucc_leave_nothing", 1000);
}

#[test]
#[ignore = "long"]
fn long_cycles_of_layers_leave_nothing() {
    scenario("cycles_of_layers_leave_nothing", 2000);
}

#[test]
#[ignore = "long"]
fn long_cycles_over_ucx_leave_nothing() {
    scenario("cycles_over_ucx_leave_nothing", 2000);
}

#[test]
#[ignore = "long"]
fn long_cycles_on_a_vendor_leave_nothing() {
    scenario("cycles_on_a_vendor_leave_nothing", 500);
}

/// Every death at every moment on both tiers.
#[test]
#[ignore = "long"]
fn long_faults_of_a_rank_everywhere() {
    scenario("faults_of_a_rank_everywhere", 100);
}

#[test]
#[ignore = "long"]
fn long_cycles_of_init_and_destroy_leave_nothing() {
    scenario("cycles_of_init_and_destroy_leave_nothing", 500);
}

#[test]
#[ignore = "long"]
fn long_cycles_of_failed_init_leave_nothing() {
    scenario("cycles_of_failed_init_leave_nothing", 500);
}
