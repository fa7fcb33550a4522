import json
import struct
import subprocess
import sys

import pytest

from runtime.errors import SettingsError
from tests.engine.builders import MODELS
from workers.models.namespace import ec_namespace, is_namespace, weights_fingerprint

MODEL = MODELS / "tiny-qwen3-vl"


def write_model(folder, data, *, config=None, name="model.safetensors"):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "x"}))
    header = json.dumps(
        {"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}
    )
    (folder / name).write_bytes(struct.pack("<Q", len(header)) + header.encode() + data)
    return folder


def test_the_same_setup_gives_the_same_name():
    assert ec_namespace(MODEL, {"a": 1, "b": 2}) == ec_namespace(str(MODEL), {"b": 2, "a": 1})
    assert is_namespace(ec_namespace(MODEL, {}))


def test_processor_configurations_are_kept_apart():
    names = {ec_namespace(MODEL, {}), ec_namespace(MODEL, {"size": 2})}

    assert len(names) == 2
    assert all(is_namespace(name) for name in names)


def test_changed_weights_change_the_name(tmp_path):
    before = weights_fingerprint(write_model(tmp_path / "a", bytes(50_000)))

    after = weights_fingerprint(write_model(tmp_path / "b", bytes([1]) * 50_000))

    assert before != after


def test_another_shape_or_configuration_changes_the_name(tmp_path):
    first = weights_fingerprint(write_model(tmp_path / "a", bytes(100)))

    assert first != weights_fingerprint(write_model(tmp_path / "b", bytes(101)))
    assert first != weights_fingerprint(write_model(tmp_path / "c", bytes(100), config={"x": 1}))


def test_a_small_tensor_is_read_in_full(tmp_path):
    first = weights_fingerprint(write_model(tmp_path / "a", bytes(3000) + b"\1" + bytes(1000)))

    assert first != weights_fingerprint(write_model(tmp_path / "b", bytes(4001)))


def test_the_name_does_not_depend_on_where_the_model_lies(tmp_path):
    one = write_model(tmp_path / "a", b"abc")
    two = write_model(tmp_path / "b", b"abc", name="weights.safetensors")

    assert ec_namespace(one, {}) == ec_namespace(two, {})


def test_a_directory_without_weights_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="safetensors"):
        ec_namespace(tmp_path, {})


def test_garbage_weights_are_refused(tmp_path):
    write_model(tmp_path, b"abc")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)

    with pytest.raises(SettingsError, match=r"model\.safetensors"):
        ec_namespace(tmp_path, {})


@pytest.mark.parametrize(
    "module",
    [
        "workers.models.namespace",
        "workers.models.ec_config",
        "workers.models.engine.protocol",
        "workers.models.engine.facts",
        "workers.encode.stage",
        "workers.prefill.stage",
    ],
)
def test_modules_without_weights_load_without_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
