# SPDX-License-Identifier: Apache-2.0
"""Features of recording that a kernel may change, and their tests: the selection of `scripts/vmtest`.

Emulation takes some ten times as long as the machine itself, and some hours for all of tests/kernel. The rest there
(`--all`) asks about things that are the same on every kernel: commands of pages, runtimes and their symbol files, files
that are only read, mistakes of users, how the program ends and talks to terminals, many examples where one is enough.
`scripts/suitetest` shows without emulation what another perf, Python or bcc changes about that.
"""

import re
from pathlib import Path

KERNEL_TESTS = Path(__file__).resolve().parents[1] / "kernel"

FEATURES = {
    "the verifier takes the programs, and all of it goes away": (
        "test_bpf_verifier.py", "test_bpf_lifetime.py::test_closing_gives_everything_back",
        "test_bpf_lifetime.py::test_two_recorders_at_once_do_not_disturb_each_other",
        "test_doctor.py::test_all_that_recording_needs_works_where_recording_works",
    ),
    "waits with time, state and system call; a program that knows its own": (
        "test_bpf_program.py::test_every_wait_is_a_sample_with_its_time_state_and_call",
        "test_bpf_program.py::test_a_sample_lies_where_the_wait_was",
        "test_short_and_unfinished.py::test_preempted_threads_are_waits_if_asked_for", "test_workload.py",
    ),
    "stacks of kernel and user": (
        "test_bpf_program.py::test_stacks_reach_from_the_wait_to_the_root",
        "test_bpf_program.py::test_both_forms_show_the_same_frames",
        "test_bpf_program.py::test_user_frames_are_those_the_kernel_walks",
        "test_bpf_program.py::test_kernel_stacks_can_be_left_out",
    ),
    "stacks without frame pointers": (
        "test_unwind.py::test_waits_of_python_reach_the_root",
        "test_unwind.py::test_waits_of_the_workload_without_frame_pointers_reach_the_root",
    ),
    "user callchains that are walked later": ("test_deferred.py",),
    "sums, thresholds, rates": (
        "test_bpf_program.py::test_short_waits_are_summed_by_thread_state_and_stack",
        "test_bpf_program.py::test_sums_without_stacks",
        "test_bpf_program.py::test_threshold_parts_samples_from_sums",
        "test_bpf_program.py::test_the_threshold_can_be_moved_while_recording",
        "test_short_and_unfinished.py::test_waits_shorter_than_asked_for_are_left_out_and_counted",
        "test_short_and_unfinished.py::test_the_rate_of_samples_is_limited_and_nothing_goes_missing",
    ),
    "what was waited for": (
        "test_wait_objects.py::test_both_forms_find_the_same_kinds",
        "test_wait_objects.py::test_each_wait_for_a_descriptor_names_what_it_refers_to",
        "test_wait_objects.py::test_holder_when_the_wait_began_and_releaser",
        "test_epoll.py::test_the_object_is_the_descriptor_that_ended_the_wait",
        "test_epoll.py::test_events_of_others_are_answers_and_those_of_clients_are_work",
    ),
    "locks inside the kernel": ("test_kernel_locks.py",),
    "network or peer": ("test_network_causes.py",),
    "functions of Python": ("test_python_names.py",),
    "wakers; blocked and runnable time": (
        "test_wakers.py::test_a_thread_is_woken_by_the_one_that_lets_it_go",
        "test_wakers.py::test_blocked_and_runnable_time_make_up_the_wait",
        "test_wakers.py::test_both_forms_see_the_same_wakers",
        "test_wakers.py::test_wakers_stacks_lead_to_the_call_that_woke",
    ),
    "time budgets of threads": (
        "test_budget.py::test_every_thread_has_a_budget_that_adds_up",
        "test_budget.py::test_hogs_wait_for_a_cpu_and_are_not_blocked",
        "test_budget.py::test_running_time_is_cpu_time", "test_throttled.py",
    ),
    "waits that began before, or do not end": (
        "test_short_and_unfinished.py::test_a_wait_from_before_is_flagged_when_it_ends",
        "test_short_and_unfinished.py::test_who_never_comes_back_is_there",
    ),
    "targets": (
        "test_bpf_targets.py::test_other_processes_are_left_alone",
        "test_bpf_targets.py::test_a_command_is_recorded_from_its_exec_on",
        "test_bpf_targets.py::test_a_killed_sleeper_is_still_seen",
        "test_bpf_targets.py::test_cgroup_of_the_sleeper",
        "test_record_targets.py::test_control_group_by_path_and_by_name_and_those_below",
        "test_record_targets.py::test_cpus_hold_for_waits_and_for_samples",
    ),
    "on-CPU events and the surroundings of samples": (
        "test_record.py::test_on_cpu_samples_are_of_the_target_and_have_stacks",
        "test_record.py::test_cycles_are_counted_or_replaced_by_the_clock_and_that_is_said_once",
        "test_record.py::test_events_by_name_with_period_and_modifier",
        "test_record.py::test_tracepoints_of_everybody_with_what_perf_needs_to_print_them",
        "test_record.py::test_build_ids_of_kernel_and_mapped_files",
        "test_record.py::test_nothing_was_lost",
    ),
    "output: files in turn, compressed, pipes": (
        "test_record_output.py::test_files_in_turn_are_each_complete_and_together_hold_everything",
        "test_record_output.py::test_signal_switches_and_only_the_last_files_are_kept",
        "test_record_output.py::test_compressed_file_opens_in_perf",
        "test_record_output.py::test_pipe_holds_what_a_file_holds",
    ),
    "what perf of the kernel's time makes of it": (
        "test_perf_opens.py::test_perf_opens_a_recording_without_a_word",
        "test_perf_opens.py::test_perf_of_today_makes_the_same_samples_of_the_raw_ones",
        "test_perf_opens.py::test_both_doors_give_the_same_folded_stacks",
        "test_inject.py::test_what_we_recorded", "test_script_as_perf.py::test_the_same_text",
    ),
}  # fmt: skip

TESTS = tuple(f"tests/kernel/{name}" for names in FEATURES.values() for name in names)


def share() -> str:
    per_file = {
        path.name: len(re.findall(r"^def test_", path.read_text(), re.MULTILINE))
        for path in KERNEL_TESTS.glob("test_*.py")
    }
    names = [name for listed in FEATURES.values() for name in listed]
    chosen = sum(1 if "::" in name else per_file[name] for name in names)
    return f"{chosen} of the {sum(per_file.values())} test functions of tests/kernel"


def text() -> str:
    return "\n".join(f"{feature}\n" + "".join(f"    {name}\n" for name in names) for feature, names in FEATURES.items())
