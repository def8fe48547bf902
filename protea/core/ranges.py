"""Ranges of numbers that several settings share; a setting outside its range is refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Fraction = Annotated[float, Field(ge=0, lt=1)]  # less than the whole: a momentum, a part that is held out
Minority = Annotated[float, Field(ge=0, lt=0.5)]  # less than half: a share of clients that may be bad
Proportion = Annotated[float, Field(ge=0, le=1)]  # from none to all: a probability, a weight against its complement
