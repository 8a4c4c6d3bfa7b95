"""Flags made from declared settings: name, type, default and help come from the declaration.

A typer command reads its flags from the signature of its function; `with_flags` gives a function a
signature that is put together at run time.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import typer

from tidegraph.cli.settings import Setting

# Where a flag of one name would clash or say too little.
_NAMES = {("split", "by"): "split-by"}
_PANELS = {
    "data": "The table",
    "split": "The split",
    "model": "The model",
    "training": "Training and evaluation",
    "task": "The task",
}


class Flag:
    """One flag: a parameter of the command and where its value goes."""

    def __init__(self, setting: Setting, name: str) -> None:
        self.setting, self.name = setting, name
        self.parameter = name.replace("-", "_")

    def declare(self) -> inspect.Parameter:
        """The typer parameter; None stands for "not given"."""
        setting = self.setting
        form = f"--{self.name}"
        kind = flag_type(setting.type)
        if kind is bool:
            form = f"{form}/--no-{self.name}"
        option = typer.Option(
            form,
            help=setting.help + _shown(setting.default),
            show_default=False,
            rich_help_panel=_PANELS[setting.section],
        )
        return inspect.Parameter(
            self.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, option],
        )


def flags_for(settings: Iterable[Setting], taken: Iterable[str] = ()) -> list[Flag]:
    """One flag per setting; a name that is taken gets its section in front."""
    used, flags = set(taken), []
    for setting in settings:
        name = _NAMES.get((setting.section, setting.key), setting.key.replace("_", "-"))
        if name in used:
            name = f"{setting.section}-{name}"
        used.add(name)
        flags.append(Flag(setting, name))
    return flags


def with_flags(run: Callable[..., Any], flags: Iterable[Flag]) -> Callable[..., Any]:
    """`run(own arguments, given)` with the flags added to its signature.

    `given` becomes section -> key -> value of the flags that were used.
    """
    flags = list(flags)
    own = inspect.signature(run, eval_str=True).parameters
    fixed = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for n, p in own.items() if n != "given"]

    def command(**values: Any) -> Any:
        given: dict[str, dict[str, Any]] = {}
        for flag in flags:
            value = values.pop(flag.parameter)
            if value is not None:
                section = given.setdefault(flag.setting.section, {})
                section[flag.setting.key] = parsed(value, flag.setting)
        return run(**values, given=given)

    parameters = [*fixed, *(flag.declare() for flag in flags)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__, command.__doc__ = run.__name__, run.__doc__
    return command


def flag_type(declared: Any) -> Any:
    """What a flag of a setting of this type takes."""
    options = [one for one in _members(declared) if one is not type(None)]
    if typing.get_origin(declared) is Literal:
        return declared
    if len(options) == 1 and options[0] is not declared:
        return flag_type(options[0])
    if typing.get_origin(declared) is tuple:
        return list[str]
    if declared in (bool, int, float, str):
        return declared
    return float if set(options) == {int, float} else str


def parsed(value: Any, setting: Setting) -> Any:
    """Text of a flag as the setting's value: positions of columns and times are numbers."""
    if isinstance(value, list):
        return tuple(_position_or_name(one) for one in value)
    kinds = set(_members(setting.type))
    if isinstance(value, str) and {str, int} <= kinds:
        return number_or_text(value) if float in kinds else _position_or_name(value)
    return value


def _position_or_name(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def number_or_text(text: str) -> int | float | str:
    """Digits as an integer, a decimal number as a float, everything else as it is.

    >>> number_or_text("3"), number_or_text("1.5"), number_or_text("2013-06-30")
    (3, 1.5, '2013-06-30')
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _members(declared: Any) -> tuple[Any, ...]:
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        return typing.get_args(declared)
    return (declared,)


def _shown(default: Any) -> str:
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return f" (default {'yes' if default else 'no'})"
    return f" (default {default:g})" if isinstance(default, float) else f" (default {default})"
