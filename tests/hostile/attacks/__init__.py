"""Hostile inputs by area: every module here has a list `ATTACKS`."""

import importlib
import pkgutil

from tests.hostile.attack import Attack


def all_attacks() -> list[Attack]:
    """Those of every module, those of one server (`Attack.group`) next to each other."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [
        attack
        for name in modules
        for attack in importlib.import_module(f"{__name__}.{name}").ATTACKS
    ]
    return sorted(found, key=lambda attack: attack.group)
