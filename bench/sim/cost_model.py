"""What an engine's work costs in seconds, read from a YAML file.

Prefill of tokens n0..n1 takes ``c + a (n1-n0) + b (n1^2-n0^2)/2``, with c once a prompt. A decode
step gives every sequence one token; what it takes depends on how many there are and, where the file
says so, on how many tokens they look back on. Copying a state to or from the RAM cache stops
everything else.

What a request takes outside the engine's loop (sent, read, rendered, tokenized) delays it and stops
nobody. Where client, proxy and engine share few cores, all of it goes slower while several requests
are at work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slotwise.policies.params import Cost

_STRICT = ConfigDict(extra="forbid", frozen=True)
COSTS = Path(__file__).resolve().parents[1] / "costs"


class CostError(ValueError):
    """A cost model that cannot be read; the text names the file and what is wrong."""


class Prefill(BaseModel):
    """Seconds of a prompt: a start, a token, and what depth adds."""

    model_config = _STRICT
    c_s: float = Field(ge=0, le=60)
    a_s: float = Field(gt=0, le=1)
    b_s: float = Field(ge=0, le=1e-3)


class Outside(BaseModel):
    """Seconds of a request before the engine's loop has it, by the tokens of its whole prompt."""

    model_config = _STRICT
    c_s: float = Field(default=0.0, ge=0, le=60)
    a_s: float = Field(default=0.0, ge=0, le=1)


class CostModel(BaseModel):
    """One engine's costs."""

    model_config = _STRICT
    about: str
    prefill: Prefill
    decode_step_s: dict[int, float] = Field(min_length=1)  # by number of sequences
    decode_depth_s: float = Field(default=0.0, ge=0, le=1e-3)  # a step, by a token in its contexts
    copy_tokens_per_s: float = Field(gt=0)
    outside: Outside = Outside()
    crowded: float = Field(default=1.0, ge=1, le=10)  # so many times as long beside others

    def piece_s(self, n0: int, n1: int) -> float:
        """Seconds to compute tokens n0..n1 of a prompt, without its start."""
        p = self.prefill
        return p.a_s * (n1 - n0) + p.b_s * (n1 * n1 - n0 * n0) / 2

    def prefill_s(self, n0: int, n1: int) -> float:
        """Seconds from the start of a prompt of which n0 tokens are cached to its end."""
        return self.prefill.c_s + self.piece_s(n0, n1) if n1 > n0 else 0.0

    def step_s(self, sequences: int) -> float:
        """Seconds of one decode step: on a straight line through the two nearest figures."""
        known = sorted(self.decode_step_s.items())
        if len(known) == 1:
            return known[0][1]
        above = next((i for i, (n, _) in enumerate(known) if n >= sequences), len(known) - 1)
        (n0, s0), (n1, s1) = known[max(above - 1, 0)], known[max(above, 1)]
        return s0 + (s1 - s0) * (sequences - n0) / (n1 - n0)

    def outside_s(self, tokens: int, beside_others: bool) -> float:
        """Seconds until the engine's loop has a prompt of so many tokens."""
        seconds = self.outside.c_s + self.outside.a_s * tokens
        return seconds * self.crowded if beside_others else seconds

    def as_policy(self) -> Cost:
        """The same as the scheduler's rules count it."""
        p = self.prefill
        return Cost(
            prefill_c_s=p.c_s,
            prefill_a_s=p.a_s,
            prefill_b_s=p.b_s,
            decode_s=self.step_s(1),
            decode_more_s=max(0.0, self.step_s(2) - self.step_s(1)),
        )


def known() -> list[str]:
    """The names of the cost models that come with the project."""
    return sorted(path.stem for path in COSTS.glob("*.yaml"))


def load(name: str) -> CostModel:
    """A cost model by its name or its file's path; raises :class:`CostError`."""
    if name in known():
        text = COSTS.joinpath(f"{name}.yaml").read_text("utf-8")
    else:
        try:
            text = Path(name).read_text("utf-8")
        except OSError as error:
            names = ", ".join(known())
            raise CostError(f"cost: neither one of {names} nor a file: {error}") from None
    return parse(text, name)


def parse(text: str, name: str) -> CostModel:
    """A cost model from YAML text; raises :class:`CostError` with all faults."""
    try:
        given: Any = yaml.safe_load(text)
        return CostModel.model_validate(given)
    except yaml.YAMLError as error:
        raise CostError(f"{name}: not YAML: {error}") from None
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise CostError(f"{name}: {'; '.join(faults)}") from None
