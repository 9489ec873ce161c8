"""What Airflow is told of a table's coverage, over random histories, batches and kills."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from capstan.backfill.told_coverage import PartState, TablePart, ToldCoverage

HOURS = 12
STEP = 10
Part = tuple[int, int]

parts = st.tuples(st.integers(0, HOURS - 1), st.integers(1, HOURS)).map(
    lambda pair: (pair[0], min(pair[0] + pair[1], HOURS))
)
publish = st.tuples(st.just("publish"), parts)
# Of a batch of how many; the task is killed before Airflow has it, or not.
tell = st.tuples(st.just("tell"), st.tuples(st.integers(1, 5), st.booleans()))
steps = st.one_of(
    publish,
    publish,
    tell,
    tell,
    tell,
    st.tuples(st.just("roll back"), st.integers(0, 9)),
    st.tuples(st.just("change"), parts),
)
replaced = st.just([("replace", None)])
histories = st.one_of(
    st.lists(steps, min_size=15, max_size=40),
    st.tuples(st.lists(steps, min_size=8), replaced, st.lists(steps, max_size=20)).map(
        lambda three: [step for each in three for step in each]
    ),
)


class Table:
    """A table with its publishes by version, and who has written each hour last."""

    def __init__(self) -> None:
        self.id = 0
        self.version = 0
        self.standing: dict[int, Part] = {}
        self.known: dict[int, Part] = {}
        self.changed: dict[int, int] = {}  # by hour, the last version by others
        self.new: set[int] = set()  # hours written since they were told

    def writers(self, hour: int) -> list[int]:
        """The standing publishes of an hour."""
        return [v for v, (low, high) in self.standing.items() if low <= hour < high]

    def covers(self, hour: int) -> bool:
        return max(self.writers(hour), default=-1) > self.changed.get(hour, -1)

    def do(self, what: str, given: object) -> None:
        self.version += 1
        if what == "publish":
            assert isinstance(given, tuple)
            self.standing[self.version] = self.known[self.version] = given
            self.new |= set(range(*given))
        elif what == "change":
            assert isinstance(given, tuple)
            self.changed |= dict.fromkeys(range(*given), self.version)
        elif what == "roll back" and self.standing:
            assert isinstance(given, int)
            # Not one over which another has written.
            free = [
                v
                for v, (low, high) in self.standing.items()
                if not any(w > v and a < high and low < b for w, (a, b) in self.standing.items())
            ]
            low, high = self.standing.pop(free[given % len(free)])
            self.new |= set(range(low, high))
        elif what == "replace":
            self.id += 1
            self.version = 0
            self.standing, self.known, self.changed = {}, {}, {}
            self.new |= set(range(HOURS))

    def look(self, told: ToldCoverage) -> tuple[ToldCoverage, list[TablePart]]:
        """What was told, and is to be told, with what stands now."""
        changed = [
            (low * STEP, high * STEP)
            for v in self.standing.keys() ^ told.versions
            for low, high in [self.known.get(v, (0, 0))]
            if low < high
        ]
        told = told.standing(str(self.id), self.standing, changed)
        present = [
            TablePart(
                hour * STEP,
                hour * STEP + STEP,
                PartState.COVERED if self.covers(hour) else PartState.GONE,
            )
            for hour in range(HOURS)
        ]
        return told, told.changes(present)


@given(histories)
def test_each_change_of_coverage_is_told_once_and_what_was_told_is_the_coverage(
    history: list[tuple[str, object]],
) -> None:
    table, told = Table(), ToldCoverage()
    # The hours that a reader of the events takes for complete, with those who had written them.
    complete: dict[int, tuple[int, list[int]]] = {}
    for what, given_ in [*history, *[("tell", (5, True))] * 6]:
        if what != "tell":
            table.do(what, given_)
            continue
        most, lives = given_  # type: ignore[misc]
        looked, changes = table.look(told)
        chosen = changes[:most]
        assert (looked, chosen) == (table.look(told)[0], table.look(told)[1][:most])
        if not lives or not chosen:
            continue
        told = looked.after(chosen)
        # As it comes back from an event.
        assert ToldCoverage.from_json(told.to_json()) == told
        for part in chosen:
            hour = part.since // STEP
            if part.state is PartState.GONE:
                assert hour in complete
                assert not table.covers(hour)
                del complete[hour]
            else:
                assert table.covers(hour)
                # It is told again only if its rows were written since.
                assert hour not in complete or hour in table.new
                complete[hour] = table.id, table.writers(hour)
            table.new.discard(hour)
    covered = filter(table.covers, range(HOURS))
    assert complete == {hour: (table.id, table.writers(hour)) for hour in covered}
    assert table.look(told)[1] == []
    assert {part.state for part in told.parts} <= {PartState.COVERED}
