"""What a process may run: combinations that could only fail later are refused at once."""

from pathlib import Path

import pytest

from runtime.errors import SettingsError
from tokenfleet.cli import make_plan
from tokenfleet.demo_model import demo_model
from tokenfleet.options import Values
from tokenfleet.plan import RENDER_SERVER, WHOLE_FLEET, Role

KAFKA = {"bus": "kafka://127.0.0.1:9092", "store": "file:///s", "ec": "directory:///e"}


def plan(roles=WHOLE_FLEET, mode="serve", **values):
    return make_plan(Values(values), frozenset(roles), "m", mode)


def test_the_embedded_default_needs_nothing():
    assert plan().is_alone


@pytest.mark.parametrize("role", Role)
def test_one_role_alone_needs_a_broker(role):
    words = role.value if role in (Role.COORDINATOR, Role.INGRESS) else f"worker {role.value}"
    with pytest.raises(SettingsError, match=f"^{words} needs --bus kafka://"):
        plan({role})
    with pytest.raises(SettingsError, match="--bus kafka://"):
        plan({role}, bus="memory:///")


@pytest.mark.parametrize("model", [demo_model(), f"{demo_model()}/", demo_model() / "..", "x"])
def test_the_demo_model_has_one_name_and_others_that_which_was_typed(model):
    values = Values()
    settings = make_plan(values, WHOLE_FLEET, str(model), "serve").model
    is_demo = Path(model).resolve() == demo_model()

    assert settings.served_model_name == (("shapes-vl",) if is_demo else ())
    assert make_plan(values, WHOLE_FLEET, None, "serve").model.served_model_name == ("shapes-vl",)


def test_a_relative_path_is_the_demo_model_too(monkeypatch):
    monkeypatch.chdir(demo_model().parent.parent)

    assert plan_of("models/shapes-vl").served_model_name == ("shapes-vl",)
    assert plan_of("models/shapes-vl", served_model_name=("m",)).served_model_name == ("m",)


def plan_of(model, **values):
    return make_plan(Values(values), WHOLE_FLEET, model, "serve").model


def test_processes_cannot_share_a_store_in_memory():
    with pytest.raises(SettingsError, match="--store memory:///"):
        plan({Role.RENDER}, bus=KAFKA["bus"])


@pytest.mark.parametrize("role", [Role.ENCODE, Role.PREFILL])
def test_engines_in_separate_processes_name_their_cache(role):
    with pytest.raises(SettingsError, match="--ec"):
        plan({role}, **{k: v for k, v in KAFKA.items() if k != "ec"})
    assert not plan({role}, **KAFKA).is_alone


def test_scale_out_is_off_unless_asked_for(monkeypatch):
    monkeypatch.delenv("VLLM_ENABLE_SCALE_OUT_ENDPOINTS", raising=False)

    assert not plan().is_scale_out
    assert plan(enable_scale_out=True).is_scale_out
    assert plan(generate_stage="encode").is_scale_out
    assert plan(RENDER_SERVER, "render").is_scale_out


@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("0", False)])
def test_the_seeds_variable_switches_scale_out(monkeypatch, value, is_on):
    monkeypatch.setenv("VLLM_ENABLE_SCALE_OUT_ENDPOINTS", value)

    assert plan().is_scale_out is is_on


def test_a_render_server_refuses_to_have_its_endpoints_off(monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_SCALE_OUT_ENDPOINTS", "0")

    with pytest.raises(SettingsError, match="conflicts"):
        plan(RENDER_SERVER, "render")


@pytest.mark.parametrize(
    ("role", "stage"), [("ec_producer", "encode"), ("ec_consumer", "prefill"), ("ec_both", None)]
)
def test_vllms_ec_transfer_config_pins_the_stage(role, stage):
    config = {
        "ec_connector": "ECExampleConnector",
        "ec_role": role,
        "ec_connector_extra_config": {"shared_storage_path": "/x"},
    }

    assert plan(ec_transfer_config=config).ingress.generate_stage == stage


def test_vllms_api_key_variable_is_used_where_ours_is_not(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk")

    assert plan().ingress.api_key == ("sk",)
    assert plan(api_key=("own",)).ingress.api_key == ("own",)


def test_an_engine_is_not_multiplied():
    with pytest.raises(SettingsError, match="--api-server-count"):
        plan(api_server_count=2)
    assert plan(api_server_count=1).ingress.api_server_count == 1


def test_every_role_without_an_http_front_has_a_port_of_its_own_for_probes():
    ports = {role: plan({role}, **KAFKA).health_port for role in set(Role) - {Role.INGRESS}}

    assert ports == {
        Role.COORDINATOR: 9101,
        Role.RENDER: 9102,
        Role.ENCODE: 9103,
        Role.PREFILL: 9104,
        Role.DERENDER: 9105,
    }
