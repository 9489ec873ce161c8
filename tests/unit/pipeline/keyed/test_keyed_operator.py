"""A keyed operator by itself: the tests of `stateful_op`, and the rules for authors."""

from __future__ import annotations

import pytest

from capstan.pipeline import END, StatefulLogic, stateful_map, ttl_map
from capstan.pipeline.keyed.stateful_functions import Data
from capstan.pipeline.state.codec import PLAIN, Encoded
from capstan.pipeline.state.errors import (
    KeyChanged,
    LateRecord,
    Misplaced,
    NoCodec,
    NotWhole,
    StateLost,
    StateVersion,
)
from tests.reference.errors import MixedAlignment, Suspended
from tests.reference.live.aligned_input import AlignedInput
from tests.reference.live.epochs import (
    EpochGenerator,
    assign_timestamps,
    limit_out_of_orderness,
    monotonic,
)
from tests.reference.live.keyed_operator import KeyedOperator
from tests.reference.live.messages import (
    AbsBarrier,
    Acquire,
    Collect,
    Epoch,
    Interrogate,
    Reply,
    Rescale,
    SuspendMarker,
)
from tests.reference.live.partitioned_output import Output, by_key, round_robin
from tests.reference.live.snapshot_store import MemorySnapshots

ID = 42


class Made(StatefulLogic):
    """A logic of one function."""

    def __init__(self, on_data):
        self._on_data = on_data

    def on_data(self, message, state, output):
        return self._on_data(message, state, output)


LAST = Made(lambda message, state, output: message.value)
SHORT = Made(lambda message, state, output: message.value if len(message.value) < 4 else None)
TOTAL = stateful_map(lambda key, value, state: ((state or 0) + value,) * 2)


class Driven:
    def __init__(self, logic):
        self.out = []
        self.operator = KeyedOperator(ID, logic, self.out.append, "op")

    def data(self, *records):
        for key, value in records:
            self.operator.handle(Data(key, value))
        return self

    def ask(self, message):
        self.operator.handle(message)
        assert self.out[-1] is message
        assert message.reply.complete
        return message.reply

    def interrogate(self, moves=lambda key: True):
        return list(self.ask(Interrogate(moves, Reply([ID]))).keys)

    def collect(self, key):
        states = self.ask(Collect(key, Reply([ID]))).states
        return {number: PLAIN.decode(state.data) for number, state in states.items()}

    def totals(self):
        return [message.value for message in self.out if isinstance(message, Data)]


def encoded(value, version=1, codec="plain"):
    return Encoded(codec, version, PLAIN.encode(value))


def test_interrogate():
    tester = Driven(LAST).data((1, "foo"), (5, "bar"))
    assert tester.interrogate() == [1, 5]
    assert tester.interrogate(lambda key: key == 5) == [5]


def test_interrogate_discarded():
    assert Driven(SHORT).data((1, "foo"), (1, "hello")).interrogate() == []


def test_collect():
    tester = Driven(LAST).data((1, "foo"), (5, "bar"))
    assert tester.collect(1) == {ID: "foo"}
    assert tester.interrogate() == [5]
    assert tester.collect(1) == {}


def test_collect_discarded():
    assert Driven(SHORT).data((1, "foo"), (1, "hello")).collect(1) == {}


def test_acquire_state():
    tester = Driven(stateful_map(lambda key, value, state: (state or "", value)))
    acquire = Acquire(1337, {ID: encoded("HelloWorld"), 7: encoded("another operator's")})
    tester.operator.handle(acquire)
    tester.data((1337, "foo"))
    assert tester.out == [acquire, Data(1337, "HelloWorld")]


def test_drop_key_state():
    tester = Driven(TOTAL).data((False, 1), (False, 2))
    assert tester.collect(False) == {ID: 3}
    assert tester.data((False, 1)).totals() == [1, 3, 1]


def test_snapshot_state():
    tester = Driven(TOTAL).data(("a", 1), ("b", 5), ("a", 2))
    reply = tester.ask(AbsBarrier(1, Reply([ID])))
    assert reply.snapshots == {ID: {"a": encoded(3), "b": encoded(5)}}


def test_forward_system_messages():
    tester = Driven(Made(lambda message, state, output: None))
    system = [
        AbsBarrier(),
        Acquire(0),
        Collect(0),
        Interrogate(lambda key: False),
        Rescale((), 1),
        SuspendMarker(),
        Epoch(3),
    ]
    for message in system:
        tester.operator.handle(message)
    assert len(tester.out) == len(system)
    assert all(one is other for one, other in zip(tester.out, system, strict=True))


def test_requests_complete_after_all_acknowledge():
    reply = Reply([1, 2])
    reply.name_keys(1, ["a"])
    assert not reply.complete
    reply.name_keys(2, ["b", "a"])
    assert reply.complete
    assert list(reply.keys) == ["a", "b"]


def test_the_first_state_that_is_given_counts():
    reply = Reply([ID])
    reply.give_state(ID, encoded("first"))
    reply.give_state(ID, encoded("second"))
    assert reply.states == {ID: encoded("first")}


def test_another_key_is_refused():
    tester = Driven(Made(lambda m, state, output: output.emit("other", 1, m.time)))
    with pytest.raises(KeyChanged) as caught:
        tester.data(("k", 1))
    assert caught.value.fields["operator"] == "op"


def test_a_time_that_is_over_is_refused():
    tester = Driven(Made(lambda m, state, output: output.emit(m.key, 1, 5)))
    tester.operator.handle(Epoch(5))
    with pytest.raises(LateRecord):
        tester.operator.handle(Data("k", 1, 6))


class Flushing(StatefulLogic):
    def on_data(self, message, state, output):
        return message.value

    def on_epoch(self, epoch, states, output):
        for key in list(states):
            output.emit(key, states.pop(key), epoch)

    def on_schedule(self, states, output):
        for key, value in states.items():
            output.emit(key, value, None)


def test_output_of_an_epoch_precedes_it():
    tester = Driven(Flushing()).data(("a", 1), ("b", 2))
    tester.operator.handle(Epoch(END))
    assert tester.out == [Data("a", 1, END), Data("b", 2, END), Epoch(END)]
    assert tester.interrogate() == []


def test_a_schedule_sees_all_states():
    tester = Driven(Flushing()).data(("a", 1), ("b", 2))
    tester.operator.schedule()
    assert tester.out == [Data("a", 1), Data("b", 2)]


def test_entries_expire_at_their_epoch():
    def mapper(key, value, time, entries):
        entries = {**entries, time: (value, time + 2)}
        return "|".join(value for value, _ in entries.values()), entries

    tester = Driven(ttl_map(mapper))
    for time, word in enumerate(["foo", "bar", "hello", "world", "baz"]):
        tester.operator.handle(Data("k", word, time))
        tester.operator.handle(Epoch(time))
    assert tester.totals() == [
        "foo", "foo|bar", "foo|bar|hello", "bar|hello|world", "hello|world|baz",
    ]  # fmt: skip
    tester.operator.handle(Epoch(5))
    assert tester.interrogate() == ["k"]
    tester.operator.handle(Epoch(6))
    assert tester.interrogate() == []
    with pytest.raises(ValueError, match="times"):
        tester.operator.handle(Data("k", "x"))


def test_a_state_for_a_key_that_has_one_is_refused():
    tester = Driven(TOTAL).data(("a", 1))
    with pytest.raises(Misplaced):
        tester.operator.handle(Acquire("a", {ID: encoded(2)}))
    assert tester.collect("a") == {ID: 1}


def test_unwritable_state_stops_its_snapshot():
    tester = Driven(Made(lambda message, state, output: message.value))
    tester.data(("fine", 1), ("bad", object()))
    for message in (AbsBarrier(1, Reply([ID])), Collect("bad", Reply([ID]))):
        with pytest.raises(StateLost) as caught:
            tester.operator.handle(message)
        assert caught.value.fields["operator"] == "op"
        assert caught.value.fields["key"] == "'bad'"
        assert not message.reply.complete
    assert tester.interrogate() == ["fine", "bad"]


def test_a_state_that_cannot_be_read_back_stops_loudly():
    tester = Driven(TOTAL)
    with pytest.raises(StateLost):
        tester.operator.handle(Acquire("a", {ID: Encoded("plain", 1, b"{")}))
    with pytest.raises(NoCodec):
        tester.operator.handle(Acquire("a", {ID: encoded(1, codec="pickle")}))
    with pytest.raises(StateVersion) as caught:
        tester.operator.handle(Acquire("a", {ID: encoded(1, version=9)}))
    assert caught.value.fields == {"operator": "op", "found": 9, "version": 1}
    assert tester.interrogate() == []


def test_a_state_of_an_earlier_version_is_migrated():
    class Second(StatefulLogic):
        version = 2

        def on_data(self, message, state, output):
            return {"total": (state or {"total": 0})["total"] + message.value}

        def migrate(self, version, state):
            assert version == 1
            return {"total": state}

    tester = Driven(Second())
    tester.operator.handle(Acquire("a", {ID: encoded(3)}))
    tester.data(("a", 4))
    reply = tester.ask(AbsBarrier(1, Reply([ID])))
    assert reply.snapshots == {ID: {"a": encoded({"total": 7}, version=2)}}


def test_no_channel_starves_another():
    channels = AlignedInput(2)
    for number in range(3):
        for channel in (0, 1):
            channels.send(channel, Data("k", (channel, number)))
    actual = [channels.recv().value[0] for _ in range(6)]
    assert actual == [0, 1, 0, 1, 0, 1]
    assert channels.recv() is None


def test_a_message_of_the_system_passes_once():
    channels, collect = AlignedInput(2), Collect("k")
    channels.send(0, collect)
    channels.send(0, Data("k", 2))
    channels.send(1, Data("k", 1))
    assert channels.recv() == Data("k", 1)
    assert channels.recv() is None
    channels.send(1, collect)
    assert channels.recv() is collect
    assert channels.recv() == Data("k", 2)
    assert channels.recv() is None


def test_a_smaller_epoch_is_not_passed_on():
    channels = AlignedInput(1)
    for time in (5, 3, 5, 6):
        channels.send(0, Epoch(time))
    assert [channels.recv(), channels.recv(), channels.recv()] == [Epoch(5), Epoch(6), None]
    merged = AlignedInput(2)
    for channel, time in ((0, 5), (0, 3), (1, 9)):
        merged.send(channel, Epoch(time))
    assert [merged.recv(), merged.recv()] == [Epoch(5), None]


def test_channels_that_wait_for_different_keys_are_an_error():
    channels = AlignedInput(2)
    channels.send(0, Collect("a"))
    channels.send(1, Collect("b"))
    with pytest.raises(MixedAlignment):
        channels.recv()


def readers(output, count):
    actual = [[] for _ in range(count)]
    for item in actual:
        output.add_reader(item.append)
    return actual


def test_records_go_one_way_and_all_else_goes_every_way():
    output = Output(round_robin())
    actual = readers(output, 2)
    for message in (Data("a", 1), Data("a", 2), Epoch(3), Epoch(1), Data("a", 4)):
        output.send(message)
    assert actual == [
        [Data("a", 1), Epoch(3), Epoch(1), Data("a", 4)],
        [Data("a", 2), Epoch(3), Epoch(1)],
    ]
    assert output.frontier == 3


def test_records_of_a_key_go_to_one_reader():
    output = Output(by_key())
    actual = readers(output, 3)
    for number in range(60):
        output.send(Data(number % 10, number))
    keys = [{message.key for message in item} for item in actual]
    assert sum(len(item) for item in keys) == 10
    assert sum(bool(item) for item in keys) > 1


def test_without_readers_messages_vanish():
    output = Output()
    output.send(Data("a", 1))
    output.send(Epoch(1))
    assert output.frontier == 1


def test_nothing_follows_a_suspend_marker():
    output = Output()
    (actual,) = readers(output, 1)
    output.send(SuspendMarker())
    assert output.suspended
    with pytest.raises(Suspended):
        output.send(Data("a", 1))
    assert actual == [SuspendMarker()]


def test_new_times_take_the_place_of_old_epochs():
    assigned = assign_timestamps(lambda record: record.value * 10)
    given = [Data("k", 2, 1), Epoch(1), Epoch(END), SuspendMarker()]
    made = [message for item in given for message in assigned(item)]
    assert made == [Data("k", 2, 20), Epoch(END), SuspendMarker()]


def test_epochs_go_on_after_a_restore():
    out, late = [], []
    generator = EpochGenerator(7, monotonic, out.append, late.append)
    generator.handle(Data("k", 1, 5))
    barrier = AbsBarrier(1, Reply([7]))
    generator.handle(barrier)
    assert out[-1] is barrier
    assert barrier.reply.complete
    other = EpochGenerator(7, monotonic, out.append, late.append)
    other.restore(barrier.reply.states[7])
    other.handle(Data("k", 2, 5))
    assert late == [Data("k", 2, 5)]
    other.handle(Epoch(END))
    assert out[-1] == Epoch(END)


def test_a_negative_bound_is_refused():
    with pytest.raises(ValueError, match="-1"):
        limit_out_of_orderness(-1)


def test_the_last_snapshot_is_the_one_committed_last():
    store = MemorySnapshots()
    for number in (3, 1):
        store.persist(0, number, "op", b"%d" % number)
        store.commit(number)
    assert store.last() == 1
    assert store.load(0, 3, "op") == b"3"
    with pytest.raises(NotWhole):
        store.persist(0, 3, "op", b"again")


def test_an_uncommitted_snapshot_is_restarted():
    store = MemorySnapshots()
    store.persist(0, 1, "old", b"x")
    store.begin(1)
    store.persist(0, 1, "op", b"y")
    store.commit(1)
    store.begin(1)
    assert store.load(0, 1, "old") is None
    assert store.load(0, 1, "op") == b"y"
