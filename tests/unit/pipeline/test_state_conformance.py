"""Malstrom's behaviour, scenario by scenario, against our own classes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from pathlib import Path
from random import Random

import pytest

from capstan.errors import CapstanError
from capstan.pipeline import END, StatefulLogic, stateful_map, ttl_map
from capstan.pipeline.keyed.stateful_functions import Data
from capstan.pipeline.state.codec import PLAIN, Encoded
from tests.reference.key_placement import Modulo, Rendezvous
from tests.reference.live import (
    AckUpgrade,
    BarrierMarker,
    Bye,
    Cluster,
    Distributor,
    Done,
    Exchange,
    Job,
    Keyed,
    Phase,
    Prepared,
    Router,
    Sent,
    Upgrade,
)
from tests.reference.live.aligned_input import AlignedInput
from tests.reference.live.epochs import EpochGenerator, limit_out_of_orderness, monotonic
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
from tests.reference.live.snapshot_store import MemorySnapshots

CASES = json.loads(
    (Path(__file__).parents[2] / "conformance" / "dag_state" / "cases.json").read_text()
)["cases"]


class Index:
    def owner(self, key, workers):
        return sorted(workers)[key % len(workers)]


class Md5:
    """The placement that the scenarios were made with."""

    def owner(self, key, workers):
        def weight(worker):
            return hashlib.md5(f"{key}#{worker}".encode()).hexdigest(), worker

        return max(workers, key=weight)


def placed(case):
    return {"index": Index, "rendezvous": Md5}[case["part"]]()


def encoded(value):
    return Encoded(PLAIN.name, 1, PLAIN.encode(value))


def decoded(states):
    return {str(number): PLAIN.decode(state.data) for number, state in states.items()}


def time_of(value):
    return END if value == "MAX" else value


def shown_time(value):
    return "MAX" if value == END else value


class Logic(StatefulLogic):
    def __init__(self, does):
        self.on_data = does

    on_data = None


class Batch(StatefulLogic):
    def __init__(self, n):
        self.n = n

    def on_data(self, message, state, output):
        state = [*(state or []), message.value]
        if len(state) < self.n:
            return state
        output.emit(message.key, state, message.time)
        return None

    def on_epoch(self, epoch, states, output):
        if epoch == END:
            for key, rest in states.items():
                output.emit(key, rest, epoch)
            states.clear()


def running_sum(key, value, state):
    total = (state or 0) + value
    return total, total


def concat_until_6(key, value, state):
    text = (state or "") + value
    return text, text if len(text) < 6 else None


def ttl_concat(ttl):
    def mapper(key, value, time, entries):
        entries = {**entries, time: (value, time + ttl)}
        return "|".join(value for value, _ in entries.values()), entries

    return ttl_map(mapper)


def logic_of(kind, n=0, ttl=0):
    return {
        "last_value": lambda: Logic(lambda m, state, output: m.value),
        "keep_if_len_le_3": lambda: Logic(
            lambda m, s, output: m.value if len(m.value) < 4 else None
        ),
        "emit_previous": lambda: stateful_map(lambda key, value, state: (state or "", value)),
        "running_sum": lambda: stateful_map(running_sum),
        "drop_all": lambda: Logic(lambda m, state, output: None),
        "concat_until_6": lambda: stateful_map(concat_until_6),
        "batch": lambda: Batch(n),
        "ttl_concat": lambda: ttl_concat(ttl),
    }[kind]()


PREDICATES = {"all": lambda key: True, "none": lambda key: False, "odd": lambda key: key % 2 == 1}
NAMES = {
    AbsBarrier: "barrier",
    Acquire: "acquire",
    Collect: "collect",
    Interrogate: "interrogate",
    Rescale: "rescale",
    SuspendMarker: "suspend",
}


def shown(message):
    if isinstance(message, Data):
        return ["data", message.key, message.value, shown_time(message.time)]
    if isinstance(message, Epoch):
        return ["epoch", shown_time(message.time)]
    return [NAMES[type(message)]]


def message_of(words):
    kind, *rest = words
    if kind == "data":
        key, value, time = rest[:3]
        return Data(key, value, time_of(time))
    if kind == "acquire":
        key, states = rest
        return Acquire(key, {int(op): encoded(value) for op, value in states.items()})
    return {
        "epoch": lambda: Epoch(time_of(rest[0])),
        "barrier": AbsBarrier,
        "suspend": SuspendMarker,
        "collect": lambda: Collect(rest[0]),
        "interrogate": lambda: Interrogate(PREDICATES[rest[0]], Reply([])),
        "rescale": lambda: Rescale(tuple(rest[0]), rest[1]),
    }[kind]()


class Stateful:
    """A keyed operator, step by step. What is checked at once has come out as well."""

    def __init__(self, case):
        self.out = deque()
        self.operator = KeyedOperator(
            case["operator_id"], logic_of(**case["logic"]), self.out.append
        )
        self.id = case["operator_id"]

    def do_send(self, words, step):
        self.operator.handle(message_of(words))

    def do_interrogate(self, which, step):
        requested = Interrogate(PREDICATES[which], Reply([self.id]))
        self.operator.handle(requested)
        assert requested.reply.complete
        assert sorted(requested.reply.keys) == sorted(step["expect_keys"])

    def do_collect(self, key, step):
        requested = Collect(key, Reply([self.id]))
        self.operator.handle(requested)
        assert requested.reply.complete
        if "expect_states" in step:
            assert decoded(requested.reply.states) == step["expect_states"]

    def do_acquire(self, words, step):
        self.operator.handle(message_of(["acquire", *words]))

    def do_barrier(self, _, step):
        barrier = AbsBarrier(1, Reply([self.id]))
        self.operator.handle(barrier)
        assert barrier.reply.complete
        actual = barrier.reply.snapshots[self.id]
        if "expect_persisted" in step:
            # A key that is a boolean is `true` as the key of a JSON object.
            named = {key if isinstance(key, str) else json.dumps(key): key for key in actual}
            values = {name: PLAIN.decode(actual[key].data) for name, key in named.items()}
            assert {str(self.id): values} == step["expect_persisted"]

    def do_recv(self, expected, step):
        assert [shown(self.out.popleft()) for _ in expected] == expected


def run_stateful(case):
    run = Stateful(case)
    for step in case["steps"]:
        name = next(iter(step))
        getattr(run, f"do_{name}")(step[name], step)


def run_input(case):
    alone = AlignedInput(case["inputs"])
    for step in case["steps"]:
        if "send" in step:
            channel, words = step["send"]
            alone.send(channel, message_of(words))
        elif "recv" in step:
            actual = alone.recv()
            assert (actual if actual is None else shown(actual)) == step["recv"]
        elif "recv_error" in step:
            with pytest.raises(CapstanError) as caught:
                alone.recv()
            assert type(caught.value).__name__ == step["recv_error"]["kind"]
        else:
            assert alone.frontier == step["frontier"]


class Exchanging:
    """One worker's end of an exchange; what waits is read after every step."""

    def __init__(self, case):
        self.out, self.net = [], []
        self.end = Distributor(
            case["me"], case["workers"], placed(case), self.out.append,
            lambda peer, message: self.net.append((peer, message)),
        )  # fmt: skip
        self.own = deque()
        self.peers = {peer: deque() for peer in case["workers"] if peer != case["me"]}

    def read(self):
        # One message of each that could be read when the step began.
        peers = [
            peer for peer, waiting in self.peers.items() if waiting and self.end.readable(peer)
        ]
        if self.own and self.end.readable():
            self.end.handle(self.own.popleft())
        for peer in peers:
            self.end.handle_peer(peer, self.peers[peer].popleft())

    def do_local(self, words):
        self.own.append(message_of(words))
        self.read()

    def do_peer(self, given):
        peer, words = given
        if words[0] == "data":
            message = Sent(message_of(words), words[4] if len(words) > 4 else 0)
        elif words[0] == "barrier":
            message = BarrierMarker(0)
        else:
            message = message_of(words)
        self.peers[peer].append(message)
        self.read()

    def do_step(self, times):
        for _ in range(times):
            self.read()

    def do_out(self, expected):
        assert [shown(message) for message in self.out] == expected
        self.out.clear()

    def do_net(self, expected):
        actual = [[peer, self.sent(message)] for peer, message in self.net]
        assert actual == expected
        self.net.clear()

    def sent(self, message):
        if isinstance(message, Sent):
            return [*shown(message.record), message.version]
        return ["barrier"] if isinstance(message, BarrierMarker) else shown(message)


def run_distributor(case):
    run = Exchanging(case)
    for step in case["steps"]:
        for name, given in step.items():
            getattr(run, f"do_{name}")(given)


def run_router(case):
    router = Router(case["me"], placed(case), tuple(case["old"]), tuple(case["new"]))
    router.phase = {
        "interrogate": Phase.INTERROGATING,
        "collect": Phase.COLLECTING,
        "finished": Phase.FINISHED,
        "normal": Phase.NORMAL,
    }[case["phase"]]
    router.note(case.get("whitelist", []))
    if "collecting" in case:
        router.collecting.add(case["collecting"])
    known = case.get("peer_version", {})
    router.upgraded = {int(peer) for peer, version in known.items() if version == case["version"]}
    for item in case["route"]:
        assert router.target(item["key"], item["sender"]) == item["target"], item
    if "expect_noted" in case:
        assert list(router.noted) == case["expect_noted"]


def run_protocol(case):
    """A worker whose operators have state of some keys, and peers that only answer."""
    me, version = case["me"], case["version"]
    out, net = [], []
    end = Distributor(
        me, case["workers"], placed(case), out.append,
        lambda peer, message: net.append((peer, message)), operators=[42],
    )  # fmt: skip
    rescale = Rescale(tuple(case["new"]), version)
    end.handle(rescale)
    peers = sorted({*case["workers"], *case["new"]} - {me})
    for peer in peers:
        end.handle_peer(peer, Prepared(version, None))
    assert isinstance(out[-1], Interrogate)
    out.pop().reply.name_keys(42, case["keys"])
    end.advance()
    assert [collect.key for collect in out] == case.get("expect_collect_order", [])
    if "buffer_during" in case:
        end.handle(Data(case["buffer_during"], "x", 1))
    net.clear() if case["keys"] else None
    for collect in out:
        collect.reply.give_state(42, encoded(collect.key))
    while end.ready:
        end.advance()
    if "expect_net_prefix" in case:
        actual = [
            ["acquire", m.key] if isinstance(m, Acquire) else ["data", m.record.key]
            for _, m in net[: len(case["expect_net_prefix"])]
        ]
        assert actual == case["expect_net_prefix"]
        assert all(m.version == version for _, m in net if isinstance(m, Sent))
    upgrades = [peer for peer, message in net if isinstance(message, Upgrade)]
    assert upgrades == case.get("expect_upgrades", peers)
    finishes_only_with_all(end, peers, version, out, net, rescale)


def finishes_only_with_all(end, peers, version, out, net, rescale):
    out.clear()
    for answer in (Upgrade(version), AckUpgrade(version)):
        for peer in peers:
            assert end.router.phase is Phase.FINISHED
            end.handle_peer(peer, answer)
            while end.ready:
                end.advance()
    assert end.router.phase is Phase.DONE
    for peer in peers:
        assert Bye(version) not in [message for _, message in net]
        end.handle_peer(peer, Done(version))
        while end.ready:
            end.advance()
    for peer in peers:
        assert out == []
        end.handle_peer(peer, Bye(version))
    assert end.router.phase is Phase.NORMAL
    assert out == [rescale]


def run_epochs(case):
    rule = case["rule"]
    made = {
        "monotonic": lambda: monotonic,
        "limit": lambda: limit_out_of_orderness(rule["bound"]),
        "table": lambda: lambda message, last: rule["map"].get(str(message.time), message.time),
    }[rule["kind"]]()
    seen = []
    generator = EpochGenerator(
        1, made,
        lambda m: seen.append(["epoch" if isinstance(m, Epoch) else "on_time", m.time]),
        lambda m: seen.append(["late", m.time]),
    )  # fmt: skip
    for time in case["feed"]:
        generator.handle(Data("k", time, time))
    only = {
        "expect": seen,
        "expect_on_time": [time for kind, time in seen if kind == "on_time"],
        "expect_late": [time for kind, time in seen if kind == "late"],
        "expect_epochs": [time for kind, time in seen if kind == "epoch"],
    }
    checked = [name for name in only if name in case]
    assert checked
    for name in checked:
        assert only[name] == case[name], name


def run_snapshot(case):
    store = MemorySnapshots()
    for step in case["steps"]:
        if "persist" in step:
            worker, version, operator, state = step["persist"]
            store.persist(worker, version, operator, state.encode())
        elif "load" in step:
            worker, version, operator = step["load"]
            actual = store.load(worker, version, operator)
            assert (actual if actual is None else actual.decode()) == step["expect"]
        elif "commit" in step:
            store.commit(step["commit"])
        else:
            assert store.last() == step["last"]


def run_placement(case):
    for chosen in (placed(case), {"index": Modulo, "rendezvous": Rendezvous}[case["part"]]()):
        old, new = case["old"], case["new"]
        moved = [
            (chosen.owner(key, old), chosen.owner(key, new))
            for key in range(case["keys"])
            if chosen.owner(key, old) != chosen.owner(key, new)
        ]
        expect = case["expect"]
        assert set(expect) <= {"moved_only_from", "moved_only_to"}
        assert bool(moved) == (set(old) != set(new))
        if "moved_only_from" in expect:
            assert {before for before, _ in moved} == set(expect["moved_only_from"])
        if "moved_only_to" in expect:
            assert {after for _, after in moved} == set(expect["moved_only_to"])


def load(case, seed):
    """Records whose values add up to what the scenario expects."""
    draw, count, total = Random(seed), case["messages"], case["expect"]["final_totals_sum"]
    keys = [*range(case["keys"]), *draw.choices(range(case["keys"]), k=count - case["keys"])]
    values = [total // count + (number < total % count) for number in range(count)]
    draw.shuffle(keys)
    return list(zip(keys, values, strict=True))


def job_of(case):
    return Job.of(Exchange(), Keyed("sum", stateful_map(running_sum)), placement=placed(case))


def check_whole(cluster, case, records, outputs):
    expect = case["expect"]
    proof = cluster.prove()
    assert proof.keys == expect["keys"]
    assert set(cluster.workers) == set(case["new"])
    totals = Counter()
    for key, value in records:
        totals[key] += value
    actual = {
        key: PLAIN.decode(state.data)
        for operators in cluster.states().values()
        for states in operators.values()
        for key, state in states.items()
    }
    assert actual == totals
    assert sum(actual.values()) == expect["final_totals_sum"]
    assert len(outputs) == expect["outputs"]


def run_rescale(case):
    for seed in range(5):
        records, draw = load(case, seed), Random(seed)
        cluster = Cluster(job_of(case), case["workers"], seed)
        for number, (key, value) in enumerate(records):
            if number == case["rescale_after"]:
                cluster.begin_rescale(case["new"])
            # Where no worker stays, none takes records until the rescale is over.
            while not cluster.sources:
                assert cluster.step()
            cluster.feed(draw.choice(cluster.sources), Data(key, value))
            for _ in range(draw.randint(0, 9)):
                cluster.step()
        if case["rescale_after"] >= len(records):
            cluster.begin_rescale(case["new"])
        cluster.run()
        check_whole(cluster, case, records, cluster.outputs)


def run_restore_scaled(case):
    for seed in range(5):
        records, draw = load(case, seed), Random(seed)
        job, cut = job_of(case), case["snapshot_after"]
        first = Cluster(job, case["workers"], seed)
        for key, value in records[:cut]:
            first.feed(draw.choice(first.sources), Data(key, value))
        first.begin_snapshot()
        first.run()
        second = Cluster(job, case["new"], seed)
        second.restore(first.snapshot.rescaled(case["new"], job.placement))
        for key, value in records[cut:]:
            second.feed(draw.choice(second.sources), Data(key, value))
        second.run()
        check_whole(second, case, records, first.outputs + second.outputs)


RUNNERS = {
    "stateful_op": run_stateful,
    "input": run_input,
    "distributor": run_distributor,
    "router": run_router,
    "protocol": run_protocol,
    "epochs": run_epochs,
    "snapshot": run_snapshot,
    "placement": run_placement,
    "rescale": run_rescale,
    "restore_scaled": run_restore_scaled,
}
# At least so many of each; a file with more is run in full.
COUNTS = {
    "stateful_op": 10, "input": 4, "distributor": 9, "router": 6, "protocol": 2, "epochs": 4,
    "snapshot": 2, "placement": 1, "rescale": 1, "restore_scaled": 1,
}  # fmt: skip
MINE = [case for case in CASES if case["kind"] in RUNNERS]


def test_no_scenario_is_left_out():
    actual = Counter(case["kind"] for case in MINE)
    assert {kind: actual[kind] >= count for kind, count in COUNTS.items()} == dict.fromkeys(
        COUNTS, True
    )


@pytest.mark.parametrize("case", MINE, ids=[case["id"] for case in MINE])
def test_scenario(case):
    RUNNERS[case["kind"]](case)
