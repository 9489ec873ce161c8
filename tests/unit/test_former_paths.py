"""Former import paths: what was under them is found, with a warning, and what is stored stays."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import warnings

import pytest

from capstan import errors, former_paths, pipeline
from capstan.demo import pipelines as demo
from capstan.pipeline.registry import Pipelines, registered

# Without Airflow's: those modules import it.
PATHS = sorted(name for name in former_paths.MOVED if not name.startswith("capstan.airflow"))
# As runs of earlier versions have them.
HASHES = {
    "flights_with_weather": "49298cdd5e938e32fe3452e6c72cfe4cced5fc6f5d2c82300b654d942ff2a10c",
    "hourly_departures": "1eb739636973f9c534e55401a6a70ad516109e8e741506e80eaadb3f481252f5",
    "late_carriers": "8c3c485b98e324f278114cea662c274117b4133f36e7dbaa2db725c4b9f54386",
}


def test_each_leads_to_a_module_that_is_there() -> None:
    found = {now for several in former_paths.MOVED.values() for now in several}
    assert [name for name in sorted(found) if importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize("path", PATHS)
def test_what_was_there_is_found(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, path, raising=False)
    with pytest.warns(DeprecationWarning, match=f"^{path} has moved to "):
        module = importlib.import_module(path)
    now = importlib.import_module(former_paths.MOVED[path][0])
    names = [name for name in vars(now) if not name.startswith("__")]
    assert [name for name in names if getattr(module, name) is not getattr(now, name)] == []
    # The module that is there now keeps its own name.
    assert now.__spec__ is not None
    assert now.__spec__.name == now.__name__ == former_paths.MOVED[path][0]


@pytest.mark.filterwarnings("ignore:.* has moved to .*:DeprecationWarning")
def test_a_pipeline_of_a_user_is_imported_as_before() -> None:
    made: dict[str, object] = {}
    exec(
        "from capstan.declare import Declarations, load, transform\n"
        "from capstan.errors import BadRequest, Held\n"
        "from capstan.dag import TIME, DagBuilder, OperatorSpec, MulticastBuffer\n"
        "from capstan.dag.operators import Window, sum_of\n"
        "from capstan.interop import EventReader\n"
        "from capstan.state import EpochGenerator, KeyedLogic, LogicOutput, stateful_map\n"
        "from capstan.state.live import Cluster\n"
        "from capstan.workloads.flight_pipelines import late_carriers\n",
        made,
    )
    assert made["DagBuilder"] is pipeline.DagBuilder
    assert made["KeyedLogic"] is pipeline.KeyedLogic
    assert made["late_carriers"] is demo.late_carriers
    assert made["BadRequest"] is errors.InvalidRequestError


def test_what_was_never_there_is_not_found() -> None:
    with pytest.raises(ImportError):
        importlib.import_module("capstan.dag.nothing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        former = importlib.import_module("capstan.dag")
    with pytest.raises(AttributeError, match="nothing"):
        former.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="nothing"):
        importlib.import_module("capstan.interop").nothing  # noqa: B018


def test_a_program_is_started_by_its_former_path() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "capstan.launcher", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--port" in ended.stdout


@pytest.mark.parametrize("module", ["capstan.demo.pipelines", "capstan.workloads.flight_pipelines"])
def test_a_declaration_names_a_pipeline_by_either_path(module: str) -> None:
    known = Pipelines(references={"weather": f"{module}:flights_with_weather"})
    assert known.get("weather").code_hash == HASHES["flights_with_weather"]


def test_hashes_and_signatures_are_those_that_are_stored() -> None:
    assert {name: registered.get(name).code_hash for name in HASHES} == HASHES
    read = registered.get("flights_with_weather").signatures("flights_and_weather")["weather"]
    assert read["function"] == "capstan.workloads.flight_pipelines:read_weather"
