"""Keyed sums under load, rescaled while records move, by seed; with checks of the result."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from random import Random

from capstan.pipeline import END, stateful_map
from capstan.pipeline.keyed.stateful_functions import Data
from capstan.pipeline.state.codec import PLAIN
from tests.reference.keyed_snapshot import KeyedSnapshot, OperatorStates
from tests.reference.live import Cluster, Exchange, Job, Keyed
from tests.reference.live.messages import Epoch

_GROUPS = 5


def _total(key: Hashable, value: object, state: object) -> tuple[object, object]:
    number = value[0] if isinstance(value, tuple) else value
    assert isinstance(number, int)
    before = state or 0
    assert isinstance(before, int)
    return (number, before + number), before + number


def _job(*, twice: bool, window: int) -> Job:
    total = stateful_map(_total)
    first = (Exchange(), Keyed("by key", total))
    if not twice:
        return Job.of(*first, window=window)
    return Job.of(*first, Exchange(_group), Keyed("by group", total), window=window)


def _group(record: Data[object]) -> Hashable:
    assert isinstance(record.key, int)
    return record.key % _GROUPS


@dataclass(slots=True)
class Load:
    """One run.

    Attributes:
        seed: Seed of all random choices.
        before: Initial workers.
        after: Final workers.
        draw: The random generator.
        cluster: The running job.
        fed: Records fed.
        cuts: Number of records fed at the start of each snapshot, by its number.
        snapshots: Complete snapshots.
    """

    seed: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    draw: Random
    cluster: Cluster
    fed: list[tuple[int, int]] = field(default_factory=list)
    cuts: dict[int, int] = field(default_factory=dict)
    snapshots: dict[int, KeyedSnapshot] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int, *, up: bool) -> Load:
        """A run that increases or decreases the number of workers."""
        draw = Random(seed)
        few = draw.randint(1, 4)
        many = few + draw.randint(1, 3)
        sizes = (few, many) if up else (many, few)
        before, after = (tuple(sorted(draw.sample(range(8), size))) for size in sizes)
        if draw.random() < 0.5:
            before, after = tuple(range(sizes[0])), tuple(range(sizes[1]))
        job = _job(twice=draw.random() < 0.3, window=draw.choice((1, 2, 64)))
        return cls(seed, before, after, draw, Cluster(job, before, seed))

    def run(self) -> int:
        """Feed records, rescale once or twice meanwhile, and let everything finish.

        Returns:
            Number of steps taken.

        Raises:
            AssertionError: A record or a key was lost, split, duplicated, or late.
            Stuck: Nothing can proceed.
        """
        draw, cluster = self.draw, self.cluster
        count = draw.randint(20, 90)
        plan = {draw.randint(0, count): "rescale", draw.randint(0, count): "snapshot"}
        if draw.random() < 0.3:
            plan[draw.randint(0, count)] = "rescale"
        keys, clock = draw.randint(1, 25), 0
        for number in range(count):
            self._operate(plan.get(number))
            clock += draw.randint(0, 2)
            self._feed(Data(draw.randrange(keys), draw.randint(1, 9), clock + 1))
            if draw.random() < 0.3:
                for worker in cluster.sources:
                    cluster.feed(worker, Epoch(clock))
            for _ in range(draw.randint(0, 12)):
                cluster.step()
        cluster.run()
        cluster.begin_rescale(self.after)
        self._end()
        return cluster.steps

    def check(self) -> None:
        """See `run` for what is raised."""
        cluster, expected = self.cluster, _totals(self.fed)
        assert cluster.coordinator.workers == self.after == tuple(sorted(cluster.workers))
        assert not any(worker.late for worker in cluster.workers.values())
        cluster.prove()
        by_key, *others = (keyed.operator_id for keyed in cluster.job.keyed)
        assert found_totals(cluster.states(), by_key) == expected
        for by_group in others:
            grouped = _totals([(key % _GROUPS, value) for key, value in self.fed])
            assert found_totals(cluster.states(), by_group) == grouped
        for number, snapshot in self.snapshots.items():
            cut = self.fed[: self.cuts[number]]
            assert found_totals(snapshot.states, by_key) == _totals(cut)
        self._check_outputs()

    def _check_outputs(self) -> None:
        records = [message for _, message in self.cluster.outputs if isinstance(message, Data)]
        assert len(records) == len(self.fed)
        totals: dict[Hashable, list[int]] = defaultdict(list)
        for record in records:
            totals[record.key].append(record.value[1])  # type: ignore[index]
        for sums in totals.values():
            # Values are positive: a state that was split or duplicated repeats a total.
            assert len(set(sums)) == len(sums)
        last: dict[int, int] = {}
        for worker, message in self.cluster.outputs:
            assert message.time is not None
            if isinstance(message, Epoch):
                # A returning worker repeats the epoch at which it joins.
                assert message.time >= last.get(worker, -1)
                last[worker] = message.time
            else:
                assert message.time > last.get(worker, -1)
        assert {worker: last[worker] for worker in self.after} == dict.fromkeys(self.after, END)

    def _operate(self, what: str | None) -> None:
        cluster = self.cluster
        if what is None:
            return
        while cluster.coordinator.running is not None:
            cluster.step()
        self._keep_snapshot()
        if what == "snapshot":
            self.cuts[cluster.coordinator.snapshots + 1] = len(self.fed)
            cluster.begin_snapshot()
        elif cluster.coordinator.workers == self.before:
            cluster.begin_rescale(self.after)
        else:
            cluster.begin_rescale(self.before)

    def _keep_snapshot(self) -> None:
        snapshot = self.cluster.snapshot
        if snapshot is not None:
            self.snapshots[snapshot.number] = snapshot

    def _feed(self, record: Data[object]) -> None:
        while not self.cluster.sources:
            self.cluster.step()
        assert isinstance(record.key, int)
        assert isinstance(record.value, int)
        self.cluster.feed(self.draw.choice(self.cluster.sources), record)
        self.fed.append((record.key, record.value))

    def _end(self) -> None:
        self.cluster.run()
        self._keep_snapshot()
        for worker in self.cluster.sources:
            self.cluster.feed(worker, Epoch(END))
        self.cluster.run()


def found_totals(states: Mapping[int, OperatorStates], operator: int) -> dict[Hashable, object]:
    """The states of one operator, of all workers together."""
    return {
        key: PLAIN.decode(state.data)
        for operators in states.values()
        for key, state in operators.get(operator, {}).items()
    }


def run_load(seed: int, *, up: bool) -> int:
    """Run and check one load; see `Load.run`."""
    load = Load.of(seed, up=up)
    steps = load.run()
    load.check()
    return steps


def _totals(records: list[tuple[int, int]]) -> dict[Hashable, object]:
    totals: Counter[Hashable] = Counter()
    for key, value in records:
        totals[key] += value
    return {**totals}
