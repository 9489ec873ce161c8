"""Stored hashes and signatures of the demo's pipelines, which have moved since the first runs."""

from __future__ import annotations

import importlib

import pytest

from capstan.pipeline.registry import Pipelines, registered

# As runs of earlier commits have them.
HASHES = {
    "flights_with_weather": "49298cdd5e938e32fe3452e6c72cfe4cced5fc6f5d2c82300b654d942ff2a10c",
    "hourly_departures": "1eb739636973f9c534e55401a6a70ad516109e8e741506e80eaadb3f481252f5",
    "late_carriers": "8c3c485b98e324f278114cea662c274117b4133f36e7dbaa2db725c4b9f54386",
}


@pytest.mark.parametrize("module", ["capstan.demo.pipelines", "capstan.workloads.flight_pipelines"])
def test_a_declaration_names_a_pipeline_by_either_path(module: str) -> None:
    known = Pipelines(references={"weather": f"{module}:flights_with_weather"})
    assert known.get("weather").code_hash == HASHES["flights_with_weather"]


def test_hashes_and_signatures_are_those_that_are_stored() -> None:
    importlib.import_module("capstan.demo.pipelines")
    assert {name: registered.get(name).code_hash for name in HASHES} == HASHES
    read = registered.get("flights_with_weather").signatures("flights_and_weather")["weather"]
    assert read["function"] == "capstan.workloads.flight_pipelines:read_weather"
