"""One small Spark session for all tests of this folder: a JVM start costs several seconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capstan.spark.session import build_session
from capstan.storage.lake import Lake
from tests.bench.workloads import nexmark_events
from tests.support.sample_streams import MARKET_EVENTS
from tests.support.small_spark import LASTING, MASTER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


_HERE = Path(__file__).parent

# The tests of this folder that `make test` runs: for each package, those without which a defect
# would go unnoticed. All others are further cases, which `make test-all` runs.
CORE = {
    "adjoining": {"test_together_is_as_one_by_one[copy]"},
    "audit": {
        "test_a_copy_fails[altered]",
        "test_a_transform_fails[altered]",
        "test_a_transform_passes",
        "test_a_true_copy_passes",
        "test_cells_of_a_table_equal_those_of_the_index",
        "test_shared_columns_fail[altered]",
        "test_shared_columns_pass_and_leave_the_others_alone",
    },
    "capture": {
        "test_a_second_capture_of_nothing_new_changes_nothing",
        "test_a_worker_that_opens_later_starts_at_the_frontier",
        "test_advance_sends_late_records_at_the_frontier",
        "test_each_reason_for_being_late",
        "test_epochs",
        "test_what_is_fed_is_on_tape_and_the_tape_is_sound",
    },
    "change_rows": {
        "test_changes_cut_anyhow_give_the_rows_of_one_replay_over_all[latest]",
        "test_equal_sequences_are_decided_by_delete_then_content",
    },
    "change_sequences": {
        "test_a_merge_without_a_sequence_keeps_the_latest_time",
        "test_any_cuts_and_rollbacks_give_the_counting_rows[history-1]",
        "test_text_is_ordered_as_what_it_holds[version]",
    },
    "change_streams": {"test_the_later_change_wins_in_any_order"},
    "checks": {"test_failed_checks_publish_nothing_and_are_noted"},
    "claims": {"test_a_run_that_was_unlocked_while_it_lived_is_shut_out[merge-replay.holds]"},
    "cli": {
        "test_a_locked_range_exits_4_until_unlocked",
        "test_verify_ends_with_1_where_a_recording_is_not_valid",
        "test_incomplete_ranges_exit_3_until_closed",
    },
    "counters": {
        "test_a_replay_of_a_day_reads_the_files_of_that_day",
        "test_a_replay_reads_records_once_and_its_audit_does_not",
        "test_a_replay_that_stands_runs_nothing",
        "test_a_staged_replay_makes_six_commits",
        "test_no_payload_passes_through_python",
        "test_python_over_the_payload_would_be_seen",
        "test_verification_of_few_events_runs_no_job",
        "test_verification_reads_no_payload",
    },
    "damage": {"test_a_log_that_lacks_something_is_named", "test_put_back_it_is_as_before"},
    "dead_letters": {"test_dropped_records_are_counted_as_such_until_they_are_opened_again"},
    "declared_sources": {"test_text_is_decoded_and_what_does_not_parse_is_kept"},
    "delta_features": {"test_a_replay_that_could_not_be_rolled_back_is_refused"},
    "engine_audits": {"test_a_wrong_plan_publishes_nothing"},
    "exchange": {
        f"test_a_timely_recording_round_trips[{case}]" for case in ("g0_strings_w3-timely",)
    },
    "exchange_stamps": {"test_stamps_come_out_as_they_came_in[6]"},
    "fix": {"test_malformed_lines_return_repaired_and_the_source_adds_up"},
    "fingerprint": {
        "test_a_doubled_row_shows",
        "test_golden",
        "test_order_and_files_change_nothing",
        "test_rows_are_equal_exactly_when_their_hashes_are",
        "test_sums_are_modulo_two_to_the_64",
    },
    "kafka": {"test_each_partition_is_a_worker_with_a_watermark_of_its_own"},
    "kept_lake": {"test_a_command_gives_the_same_result"},
    "known": {"test_what_one_run_has_left_out_is_not"},
    "moments": {"test_a_text_is_a_moment_only_where_it_becomes_a_time"},
    "named_targets": {"test_a_renamed_managed_table_keeps_its_followed_runs"},
    "nexmark": {"test_every_query_is_registered"},
    "operator_plans": {"test_the_engine_goes_on_from_what_spark_has_computed"},
    "ordered": {
        "test_what_of_a_query_depends_on_the_order_of_rows",
        "test_which_aggregates_depend_on_the_order_of_rows",
    },
    "pipeline_play": {
        "test_a_failing_operator_fails_the_job_and_says_where",
        "test_hourly_departures_are_those_of_the_source",
    },
    "predicates": {"test_spark_keeps_what_the_region_has"},
    "put_back": {"test_late_records_enter_at_the_frontier_once"},
    "replay": {
        "test_a_transform_that_wrote_a_wrong_row_is_not_published",
        "test_append_and_its_rollback",
        "test_bad_requests_change_nothing",
        "test_each_time_once",
        "test_held_then_published",
        "test_ledgers_are_read_by_others",
        "test_only_complete_times",
        "test_publish_roll_back_publish_again",
        "test_replace_leaves_the_rows_outside",
        "test_rows_of_unknown_origin_are_not_replaced_unless_adopted",
        "test_twice_changes_nothing",
    },
    "replay_piped": {
        "test_a_sink_goes_into_its_table",
        "test_an_operator_that_fails_publishes_nothing",
    },
    "replay_state": {"test_a_pipeline_with_no_end_reads_each_record_once"},
    "rescaled_capture": {"test_old_workers_are_closed_and_new_ones_go_on"},
    "session": {
        "test_a_second_session_is_the_first",
        "test_sql_means_the_same_on_any_machine",
        "test_the_session_reads_and_writes_delta_in_utc",
        "test_the_settings_are_those_that_were_measured",
        "test_which_masters_are_local",
    },
    "sockets": {"test_what_is_sent_is_on_tape_as_it_was"},
    "source": {"test_a_record_that_the_tape_lost", "test_all_that_was_consumed_is_there"},
    "stamp_pipelines": {"test_ranges_together_are_the_whole[stamp_sizes]"},
    "standing": {"test_three_answers_agree_after_any_history[1]"},
    "times_of_rows": {"test_what_is_no_time_is_late"},
    "transaction": {
        "test_a_commit_adds_two_files_to_the_log",
        "test_a_commit_is_the_one_that_delta_s_own_writer_makes",
        "test_of_one_app_only_a_rising_version_is_committed",
        "test_of_two_at_once_under_one_app_the_second_is_skipped",
    },
    "undo": {
        "test_a_range_inside_a_step_is_refused",
        "test_of_rows_that_nobody_has_changed_any_run_is_taken_back",
    },
    "verify": {
        "test_agrees_with_the_reference_on_any_sequence[1]",
        "test_events_of_unknown_workers_are_not_forgotten",
        "test_few_events_are_judged_alike_without_spark[1]",
        "test_only_what_is_sound_is_remembered",
    },
    "verify_deep": {"test_records_are_held_against_their_events"},
    "worker_labels": {"test_bytes_that_are_no_text_are_workers_and_nothing_is_late"},
    "workloads": {"test_flights_by_day_counts_as_polars_does", "test_the_first_bids_are_known"},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests outside the core, which `make test-all` runs."""
    for item in items:
        if item.path.parent == _HERE:
            core = CORE.get(item.path.stem.removeprefix("test_"), ())
            # A name without a case means all cases of the test.
            if not {getattr(item, "originalname", item.name), item.name} & set(core):
                item.add_marker(pytest.mark.rest)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The small session of all Spark tests, with two cores; stopped after the last test."""
    session = build_session("capstan-tests", master=MASTER, extra=LASTING)
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake for one test."""
    return Lake.at(tmp_path / "lake")


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> Iterator[DataFrame]:
    """A small Nexmark market: persons, auctions and bids."""
    made = nexmark_events.events(
        spark, MARKET_EVENTS, seed=11, events_per_second=23, partitions=2
    ).persist()
    yield made
    made.unpersist()
