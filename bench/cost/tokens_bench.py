"""Do prompts become the engine's own tokens, and at what cost.

    python -m slotwise.bench.cost.tokens_bench

``--equality``: thousands of hard prompts through the real engine, every id compared. Without: one
agent's conversation of 100,000 tokens that adds 500 a turn, at once and after a pause; encoding and
rendering against doing it anew and against the engine, and how long a body of 30 MB holds up
everybody else.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table

from slotwise.bench.cost.prompt_corpus import code_text, conversation, prompts
from slotwise.bench.run import engines
from slotwise.bench.trace.report import count, parser_of
from slotwise.launcher.model import gguf_header
from slotwise.policies.prefix import pack
from slotwise.proxy.chat.request import GenerationRequest, Kind
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.tokens.encoders import Source
from slotwise.proxy.tokens.tokenizer import Tokenizer
from slotwise.proxy.tokens.verification import VerifiedEngine

PROVE_S = 120.0
TURNS = 40
COMPARED_EVERY = 10  # turns: an engine may take seconds for the ids of a whole prompt
TIMES_ANEW = 5
PAUSES_S = (0.0, 0.5)  # before each turn; after some rest caches are cold and processes asleep
WIDTH = 100  # of the table, also where it goes into a file
BIG_BYTES = 30_000_000
MODELS = {"tiny": engines.tiny_model, "gemma": engines.gemma_model}
Row = tuple[str, str, str, str]
T = TypeVar("T")


class BenchError(RuntimeError):
    """The measurement cannot be made; the text says why."""


@asynccontextmanager
async def proven(
    path: Path, url: str
) -> AsyncIterator[tuple[Tokenizer, EngineClient, VerifiedEngine]]:
    """A tokenizer that was proven equal to the engine; raises BenchError if it was not."""
    source = Source(vocabulary=partial(gguf_header.read_vocabulary, path))
    tokenizer, engine = Tokenizer(sources={"main": source}), EngineClient(url, None)
    try:
        known = tokenizer.ready(engine, "main")
        assert known is not None
        async with asyncio.timeout(PROVE_S):
            while "proving" in (known.tokenizer.state, known.rendering.state):
                await asyncio.sleep(0.05)
        for status in (known.tokenizer, known.rendering):
            if status.state != "local":
                raise BenchError(f"the {status.job} is not local: {status.reason}")
        yield tokenizer, engine, known
    finally:
        await tokenizer.close()
        await engine.close()


def request(kind: Kind, fields: dict[str, Any], size_bytes: int = 0) -> GenerationRequest:
    return GenerationRequest(
        kind=kind, path="/", profile="main", fields=fields, stream=True, max_tokens=None,
        cache_prompt=True, injected_progress=False, size_bytes=size_bytes,
    )  # fmt: skip


def shown(work: Iterable[T], what: str, total: int) -> Iterable[T]:
    """The same, with a bar on a terminal that says how far it is."""
    return track(work, what, total, console=Console(stderr=True), transient=True)


# ------------------------------------------------------------ equality


async def differences(
    path: Path, url: str, count: int, seed: int = 1
) -> tuple[Counter[str], list[str]]:
    """How many prompts of each kind were compared, and those whose ids differ."""
    compared: Counter[str] = Counter()
    differing: list[str] = []
    async with proven(path, url) as (tokenizer, engine, known):
        assert known.prompts is not None
        specials = [
            *known.prompts.segmenter.clean,
            *(text for text, _ in known.prompts.segmenter.tangled),
        ]
        for name, text in shown(prompts(count, specials, seed), "prompts", count):
            ids = pack(await engine.tokenize(text))
            mine = await tokenizer.encode(engine, request(Kind.COMPLETION, {"prompt": text}))
            messages = [{"role": "system", "content": "s"}, {"role": "user", "content": text}]
            said = await tokenizer.encode(engine, request(Kind.CHAT, {"messages": messages}))
            whole = await engine.tokenize(await engine.apply_template({"messages": messages}))
            compared[name] += 1
            if mine.tokens != ids or said.tokens != pack(whole):
                differing.append(text)
    return compared, differing


# ------------------------------------------------------------ cost


async def timed(work: Awaitable[Any]) -> tuple[float, Any]:
    """Milliseconds, and the result."""
    begin = time.perf_counter()
    result = await work
    return (time.perf_counter() - begin) * 1000, result


async def costs(path: Path, url: str, tokens: int) -> list[Row]:
    """The table: what, ms in the middle and at the 95th percentile, and the ratios asked for."""
    async with proven(path, url) as (tokenizer, engine, known):
        messages, turn = conversation(tokens)
        body = {"messages": messages}
        assert known.prompts is not None
        text = await known.text(engine, body, known.plan(body))
        engine_ms, ids = await timed(engine.tokenize(text))
        rows = [(f"the engine's /tokenize, {len(ids)} tokens", f"{engine_ms:.1f}", "", "")]
        for pause_s in PAUSES_S:
            text = await known.text(engine, body, known.plan(body))
            turns = Turns(await anew(tokenizer, engine, known, tokens))
            await known.prompts.encode(text)
            for n in shown(range(TURNS), f"turns, {pause_s:g} s after another", TURNS):
                messages += turn()
                await asyncio.sleep(pause_s)
                await turns.one(engine, known, body, compared=(n + 1) % COMPARED_EVERY == 0)
                messages += turn()
                await asyncio.sleep(pause_s)
                ms, _ = await timed(tokenizer.encode(engine, request(Kind.CHAT, body)))
                turns.all.append(ms)
            rows += turns.rows(f"{pause_s:g} s after another" if pause_s else "at once")
        kept = tokenizer.segments.size_bytes + tokenizer.known_prompts.size_bytes
        most = tokenizer.segments.max_bytes + tokenizer.known_prompts.max_bytes
        return [*rows, ("kept (MB of at most)", f"{kept / 1e6:.1f}", f"{most / 1e6:.0f}", "")]


async def anew(
    tokenizer: Tokenizer, engine: EngineClient, known: VerifiedEngine, tokens: int
) -> list[float]:
    """Times of encoding so many tokens with nothing kept, in ms; another text each time, because
    the library itself remembers words."""
    assert known.prompts is not None
    times: list[float] = []
    for n in range(1, 1 + TIMES_ANEW):
        messages, _ = conversation(tokens, start=n * len(code_text()) // (1 + TIMES_ANEW))
        body = {"messages": messages}
        text = await known.text(engine, body, known.plan(body))
        tokenizer.segments.clear()
        tokenizer.known_prompts.clear()
        ms, _ = await timed(known.prompts.encode(text))
        times.append(ms)
    return times


class Turns:
    """Times of many turns, in ms: of the engine's rendering, and of what is done here.

    ``anew``: times of encoding such a prompt with nothing kept.
    """

    def __init__(self, anew: list[float]) -> None:
        self.anew = anew
        self.template: list[float] = []
        self.render: list[float] = []
        self.encode: list[float] = []
        self.all: list[float] = []

    async def one(
        self, engine: EngineClient, known: VerifiedEngine, body: dict[str, Any], compared: bool
    ) -> None:
        """Render and encode a turn here, then let the engine render it; the texts are the same,
        and the ids where they are ``compared``."""
        assert known.prompts is not None
        render_ms, mine = await timed(known.text(engine, body, known.plan(body)))
        encode_ms, tokenized = await timed(known.prompts.encode(mine))
        template_ms, text = await timed(engine.apply_template(body))
        if mine != text or (compared and tokenized.tokens != pack(await engine.tokenize(text))):
            raise BenchError("a turn differs from the engine's")
        self.template.append(template_ms)
        self.render.append(render_ms)
        self.encode.append(encode_ms)

    def rows(self, when: str) -> list[Row]:
        """``when``: the turns came."""
        both = [r + e for r, e in zip(self.render, self.encode, strict=True)]
        template = median(self.template)
        return [
            (f"turns of +500 tokens, {when}", "", "", ""),
            _row("  encode the whole anew", self.anew),
            _row("  encode", self.encode, median(self.anew), "anew"),
            _row("  the engine's /apply-template", self.template),
            _row("  render", self.render),
            _row("  render + encode", both, template, "the engine's"),
            _row("  all, with its sections", self.all, template, "the engine's"),
        ]


def _row(what: str, times_ms: list[float], against_ms: float = 0, of: str = "") -> Row:
    middle, high = median(times_ms), quantiles(times_ms, n=20)[-1]
    ratios = f"{middle / against_ms:.3f}, {high / against_ms:.3f} of {of}" if of else ""
    return what, f"{middle:.2f}", f"{high:.2f}", ratios


async def stalls(path: Path, url: str) -> list[Row]:
    """The longest that anything else waited for the loop while a body of 30 MB was encoded."""
    text = (code_text() * 20)[:BIG_BYTES]
    said = [text[n : n + 5000] for n in range(0, len(text), 5000)]
    turns = [{"role": ("user", "assistant")[n % 2], "content": c} for n, c in enumerate(said[:-1])]
    fields: dict[str, Any] = {"messages": turns[: len(turns) // 2 * 2 - 1]}
    bodies = {
        f"{len(turns)} messages": request(Kind.CHAT, fields, len(text)),
        "one text": request(Kind.COMPLETION, {"prompt": text}, len(text)),
    }
    rows: list[Row] = []
    async with proven(path, url) as (tokenizer, engine, _):
        for name, body in bodies.items():
            longest = 0.0

            async def tick() -> None:
                nonlocal longest
                while True:
                    ms, _ = await timed(asyncio.sleep(0.001))
                    longest = max(longest, ms - 1)

            ticking = asyncio.create_task(tick())
            ms, encoded = await timed(tokenizer.encode(engine, body))
            ticking.cancel()
            what = f"30 MB as {name}: {len(encoded.tokens)} tokens"
            rows.append((what, f"{ms:.0f}", "", f"others waited {longest:.0f} ms at most"))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of("slotwise.bench.cost.tokens_bench", __doc__)
    parser.add_argument("--model", choices=[*MODELS, "both"], default="both")
    parser.add_argument("--equality", action="store_true", help="compare ids instead of times")
    parser.add_argument("--prompts", type=count, default=2000, help="how many to compare")
    parser.add_argument("--tokens", type=count, default=100_000, help="length of the conversation")
    chosen = parser.parse_args(arguments)
    names = list(MODELS) if chosen.model == "both" else [chosen.model]
    try:
        return max(measure(name, chosen) for name in names)
    except (BenchError, engines.ServerError) as error:
        print(f"tokens_bench: {error}", file=sys.stderr)
        return 1


def measure(name: str, chosen: argparse.Namespace) -> int:
    model = MODELS[name]()
    console = Console(width=WIDTH)
    with engines.bare(model, ("-c", "4096", "-np", "1")) as server:
        if chosen.equality:
            compared, differing = asyncio.run(differences(model.path, server.url, chosen.prompts))
            kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(compared.items()))
            console.print(f"{name}: {compared.total()} prompts ({kinds}): {len(differing)} differ")
            for text in differing[:5]:
                console.print(f"  {text[:200]!a}", markup=False)
            return 1 if differing else 0
        rows = asyncio.run(costs(model.path, server.url, chosen.tokens))
        if name == "tiny":
            rows += asyncio.run(stalls(model.path, server.url))
    table = Table(title=name)
    for heading in ("", "ms", "p95 ms", "ratios of both"):
        table.add_column(heading, justify="right" if heading.endswith("ms") else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
