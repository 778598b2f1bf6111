"""Options that several commands share, written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, get_type_hints

Given = Callable[[], Any]  # what a group makes of its options; called where errors are caught


class Group(NamedTuple):
    """Options by name, each an annotation and a default, and the function of all of them that a command is given."""

    make: Callable[..., Any]
    options: dict[str, tuple[Any, Any]]


def with_options(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of groups. The command has a parameter by the name of each group, and calls it for
    what the group makes of them."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = inspect.signature(command).parameters.values()
        parameters = [
            parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            for parameter in own
            if parameter.name not in groups
        ]
        shared = {name: option for group in groups.values() for name, option in group.options.items()}
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in shared.items()
        ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            gathered = {}
            for name, group in groups.items():
                gathered[name] = functools.partial(
                    group.make, **{option: given.pop(option) for option in group.options}
                )
            command(**given, **gathered)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return wrap
