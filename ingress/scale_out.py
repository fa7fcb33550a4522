"""Decides whether the scale-out endpoints are on (06-launch §2). Knows no HTTP."""

from typing import Literal

from runtime.errors import SettingsError

Mode = Literal["serve", "render"]
"""`serve`: the standard server; `render`: the server without a model behind it."""

VARIABLE = "VLLM_ENABLE_SCALE_OUT_ENDPOINTS"
DISABLED = (
    "Scale-out endpoints are disabled. Restart with --enable-scale-out"
    f" or {VARIABLE}=1 to enable them."
)


def scale_out(mode: Mode, flag: bool, value: str | None) -> bool:
    """Whether the routes are on, from `--enable-scale-out` and the variable's value (None: unset).

    Raise SettingsError for a value other than 1 and 0, and for 0 on a render server, whose only
    routes these are.
    """
    if value not in (None, "0", "1"):
        raise SettingsError(f"{VARIABLE}={value!r} is not understood: leave it unset or set 0 or 1")
    if mode == "render":
        if value == "0":
            raise SettingsError(
                f"{VARIABLE}=0 conflicts with `launch render`, which serves nothing else:"
                " leave it unset, or set 1"
            )
        return True
    return flag or value == "1"
