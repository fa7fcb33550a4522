import pytest

from ingress.scale_out import scale_out
from runtime.errors import SettingsError


@pytest.mark.parametrize(
    ("mode", "flag", "value", "expected"),
    [
        ("serve", False, None, False),
        ("serve", False, "0", False),
        ("serve", False, "1", True),
        ("serve", True, None, True),
        ("serve", True, "0", True),
        ("serve", True, "1", True),
        ("render", False, None, True),
        ("render", False, "1", True),
        ("render", True, None, True),
    ],
)
def test_routes_are_on_as_flag_and_variable_say(mode, flag, value, expected):
    assert scale_out(mode, flag, value) is expected


def test_a_render_server_refuses_to_be_switched_off():
    with pytest.raises(SettingsError, match="conflicts with `launch render`"):
        scale_out("render", False, "0")


@pytest.mark.parametrize("mode", ["serve", "render"])
@pytest.mark.parametrize("value", ["", "true", "2", "01", " 1", "on", "-1"])
def test_other_values_are_refused_wherever_they_stand(mode, value):
    with pytest.raises(SettingsError, match="not understood"):
        scale_out(mode, True, value)
