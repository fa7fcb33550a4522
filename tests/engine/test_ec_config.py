import pytest

from runtime.errors import SettingsError
from workers.models.ec_config import read_ec_transfer_config


def config(**changes):
    return {
        "ec_connector": "ECExampleConnector",
        "ec_role": "ec_producer",
        "ec_connector_extra_config": {"shared_storage_path": "/data/ec"},
        **changes,
    }


def test_nothing_configured_is_nothing():
    assert read_ec_transfer_config(None) is None
    assert read_ec_transfer_config({}) is None


@pytest.mark.parametrize(
    ("role", "stage"), [("ec_producer", "encode"), ("ec_consumer", "prefill"), ("ec_both", None)]
)
def test_the_role_pins_the_stage(role, stage):
    found = read_ec_transfer_config(config(ec_role=role))

    assert (found.url, found.is_flat, found.stage) == ("directory:///data/ec", True, stage)


def test_the_default_path_is_that_of_the_connector():
    assert read_ec_transfer_config(config(ec_connector_extra_config={})).url == "directory:///tmp"


def test_a_path_with_spaces_and_a_relative_one_become_urls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    extra = {"shared_storage_path": "my ec"}

    url = read_ec_transfer_config(config(ec_connector_extra_config=extra)).url

    assert url == f"directory://{tmp_path}/my%20ec"


@pytest.mark.parametrize(
    "changes",
    [
        {"ec_connector": "ECMooncakeConnector"},
        {"ec_role": None},
        {"ec_role": "producer"},
        {"ec_connector_extra_config": [1]},
        {"ec_connector_extra_config": {"shared_storage_path": 3}},
    ],
)
def test_what_is_not_known_is_refused_in_one_line(changes):
    with pytest.raises(SettingsError, match="ec_transfer_config") as error:
        read_ec_transfer_config(config(**changes))

    assert "\n" not in str(error.value)
