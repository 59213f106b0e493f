"""The space of a search: the hyperparameters that a tuning job chooses, and their possible values.

It is ``ParameterRanges`` of the API in syrtos's own terms.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from syrtos.errors import ConfigurationError

Kind = Literal["Continuous", "Integer", "Categorical"]
Scale = Literal["linear", "log", "reverse"]

_SCALES: Mapping[str, Scale] = {
    "Linear": "linear",
    "Logarithmic": "log",
    "ReverseLogarithmic": "reverse",
}
_WIDE = 100  # times the least value: the scale of such a range is chosen to be logarithmic
_MOST_COMBINATIONS = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    """A hyperparameter.

    Attributes:
        low, high: the range of a number, both included.
        scale: the scale on which numbers are chosen evenly; ``reverse``: logarithmic in the
            distance from 1.
        values: the values of a categorical parameter, as the texts that a training job gets.
    """

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    scale: Scale = "linear"
    values: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a parameter that is not continuous."""
        return self.values or tuple(
            str(number) for number in range(int(self.low), int(self.high) + 1)
        )


Space = tuple[Parameter, ...]


def read(ranges: Mapping[str, Any]) -> Space:
    """Returns the parameters of ``ParameterRanges``, sorted by name.

    Raises:
        ConfigurationError: there are none, two have one name, or a range is none.
    """
    found = [
        *(_number(one, "Continuous") for one in ranges.get("ContinuousParameterRanges") or ()),
        *(_number(one, "Integer") for one in ranges.get("IntegerParameterRanges") or ()),
        *(
            Parameter(
                name=one["Name"], kind="Categorical", values=tuple(dict.fromkeys(one["Values"]))
            )
            for one in ranges.get("CategoricalParameterRanges") or ()
        ),
    ]
    names = [parameter.name for parameter in found]
    if not found:
        raise ConfigurationError(
            "There is nothing to tune: give at least one hyperparameter a range or a list of"
            " values."
        )
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"Each hyperparameter has one range. Received: {', '.join(sorted(names))}."
        )
    return tuple(sorted(found, key=lambda parameter: parameter.name))


def _number(given: Mapping[str, str], kind: Kind) -> Parameter:
    name = given["Name"]
    low, high = (_value(name, given[key], kind) for key in ("MinValue", "MaxValue"))
    if low > high:
        raise ConfigurationError(
            f"The range of {name} ends before it begins: min is {low:g}, and max is {high:g}."
        )
    asked = given.get("ScalingType") or "Auto"
    scale = _SCALES.get(asked) or ("log" if low > 0 and high / low >= _WIDE else "linear")
    if scale == "log" and low <= 0:
        raise ConfigurationError(
            f"A logarithmic scale needs a min above 0: {name} has {low:g}. Raise min, or use a"
            " linear scale."
        )
    if scale == "reverse" and (kind == "Integer" or low < 0 or high >= 1):
        raise ConfigurationError(
            "A reverse logarithmic scale is for continuous ranges from 0 to less than 1. Received:"
            f" {name} from {low:g} to {high:g}."
        )
    return Parameter(name=name, kind=kind, low=low, high=high, scale=scale)


def _value(name: str, text: str, kind: Kind) -> float:
    try:
        number = float(text)
    except ValueError:
        number = (
            math.nan
        )  # which no range has, so the message below is that for all that is no number
    if not math.isfinite(number) or (kind == "Integer" and number != int(number)):
        what = "a whole number" if kind == "Integer" else "a number"
        raise ConfigurationError(
            f"The range of {name} begins and ends with {what}. Received: {text!r}."
        )
    return number


def combinations(space: Space) -> int:
    """Returns the number of points in a grid.

    Raises:
        ConfigurationError: a parameter is continuous, or there are too many points.
    """
    endless = [parameter.name for parameter in space if parameter.kind == "Continuous"]
    if endless:
        raise ConfigurationError(
            f"A grid needs lists of values or ranges of whole numbers: {', '.join(endless)} is"
            " continuous. List its values, or choose another strategy."
        )
    sizes = [len(p.values) or int(p.high - p.low) + 1 for p in space]
    if math.prod(sizes) > _MOST_COMBINATIONS:
        raise ConfigurationError(
            f"The grid has {math.prod(sizes)} combinations, more than {_MOST_COMBINATIONS}. Give"
            " fewer values."
        )
    return math.prod(sizes)


def grid(space: Space) -> Iterator[dict[str, str]]:
    """Yields the points of a grid in order: the last parameter changes fastest."""
    for values in itertools.product(*(parameter.choices for parameter in space)):
        yield {parameter.name: value for parameter, value in zip(space, values, strict=True)}


def corner(space: Space) -> dict[str, str]:
    """Returns the point that has the first value of each parameter."""
    return {p.name: p.values[0] if p.values else text(p, p.low) for p in space}


def text(parameter: Parameter, value: float) -> str:
    """Returns a number as the text that a training job gets, moved into the parameter's range."""
    kept = min(max(value, parameter.low), parameter.high)
    return str(int(kept)) if parameter.kind == "Integer" else repr(float(kept))


def within(space: Space, given: Mapping[str, str]) -> dict[str, str] | None:
    """Returns a training job's values of the space's hyperparameters; None outside of the space."""
    found = {parameter.name: given.get(parameter.name, "") for parameter in space}
    return found if all(_has(parameter, found[parameter.name]) for parameter in space) else None


def _has(parameter: Parameter, value: str) -> bool:
    if parameter.kind == "Categorical":
        return value in parameter.values
    try:
        number = float(value)
    except ValueError:
        return False
    return parameter.low <= number <= parameter.high and (
        parameter.kind != "Integer" or value == str(int(number))
    )


def names(space: Sequence[Parameter]) -> list[str]:
    """Returns the names of the parameters."""
    return [parameter.name for parameter in space]
