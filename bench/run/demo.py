"""The demo: the same conversations on a bare engine and through slotwise, call by call.

    python -m slotwise.bench.run.demo [--model smollm2|tiny]

Two conversations with a coding agent take turns, with title jobs beside them, on four slots. First
the bare engine chooses the slot itself, without and with its RAM cache; then slotwise chooses. Each
arm has an engine of its own and gets the same calls at the same moments.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import httpx
from rich import box
from rich.console import Console
from rich.table import Table

from slotwise.bench.run import client, engines
from slotwise.bench.run.client import Answer
from slotwise.bench.run.compare import Comparison, Result, Servers, run_all
from slotwise.bench.run.engines import Model, Server
from slotwise.bench.sim import bounds
from slotwise.bench.trace import workload
from slotwise.bench.trace.report import parser_of, percentile
from slotwise.bench.trace.rows import total
from slotwise.bench.trace.trace import Call, Message
from slotwise.bench.trace.workload import Moment

TOOLS = {
    "read_file": "Read a file of the workspace. Returns its text with line numbers. Use offset and "
    "limit for long files instead of reading them whole.",
    "write_file": "Create a file or replace its whole text. Prefer edit_file for small changes. "
    "Never write secrets into files.",
    "edit_file": "Replace one exact piece of text in a file. The old text must occur exactly once, "
    "with its indentation.",
    "list_files": "List a directory. Hidden and ignored files are left out unless all is true.",
    "search": "Search the workspace with a regular expression. Returns paths, lines and matches, "
    "at most 100 of them.",
    "run_command": "Run a shell command in the workspace and return its output and exit status. "
    "Ask first where it deletes, installs or sends anything.",
    "run_tests": "Run the project's tests, or those whose name matches. Returns failures in full.",
    "git_diff": "Show what changed since the last commit, or between two commits.",
    "git_commit": "Commit the named files with a message that says why, not what.",
    "fetch_page": "Fetch a page of documentation and return its text without navigation.",
    "ask_user": "Ask the person one short question when the task can be read in two ways.",
    "update_plan": "Replace the list of steps. Keep one step in progress, mark the others done or "
    "open.",
}
RULES = (
    "Work in small steps and say in one sentence what you are about to do.",
    "Read the code around a change before you make it, and follow its style.",
    "Run the tests after each change; when they fail, read the failure before you guess.",
    "Do not add a dependency without asking.",
    "When a command fails twice in the same way, stop and explain what you see.",
    "Keep answers short; the person reads them in a terminal.",
)
TITLE = "Write a title of at most five words for this conversation. Answer with the title only.\n\n"
ORDER = "ABAABABBABAB"  # who speaks next: neither waits for the other
ANSWER_TOKENS = 20


def head() -> str:
    """The agent's rules and tools, some 1,500 tokens."""
    rules = "\n".join(f"{n}. {rule}" for n, rule in enumerate(RULES, 1))
    tools = "\n\n".join(_tool(name, what) for name, what in TOOLS.items())
    return f"You are a coding agent in a terminal.\n\n# Rules\n{rules}\n\n# Tools\n{tools}"


def _tool(name: str, what: str) -> str:
    return (
        f"## {name}\n{what}\n"
        f'Call: <tool name="{name}">{{"path": string, "arguments": object}}</tool>\n'
        f"Returns: text, cut after 20,000 characters; a cut is marked with its length.\n"
        f"Errors: begin with 'error:' and name the argument, its value and what was expected."
    )


def moments(order: str = ORDER, words_per_turn: int = 180) -> list[Moment]:
    """Groups of calls, each group sent at one moment: a turn, and often its title job."""
    system: Message = {"role": "system", "content": head()}
    histories = {name: [system] for name in sorted(set(order))}
    turns = dict.fromkeys(histories, 0)
    result = []
    for name in order:
        turn = turns[name] = turns[name] + 1
        said = _said(name, turn, words_per_turn)
        histories[name] = [*histories[name], {"role": "user", "content": said}]
        group = [_call(f"{name} turn {turn}", turn, histories[name])]
        if turn % 2:  # a new question; the turns between carry what a tool printed
            asked: Message = {"role": "user", "content": TITLE + _said(name, turn, 200)}
            group.append(_call(f"  title for {name}", 1, [asked]))
        result.append(group)
        answer = f"I looked at it: {workload.text(15, f'{name} answer {turn}')}."
        histories[name] = [*histories[name], {"role": "assistant", "content": answer}]
    return result


def _said(name: str, turn: int, words: int) -> str:
    filler = workload.text(words, f"agent {name} turn {turn}")
    if turn % 2:
        return f"Please look at the following and fix it: {filler}"
    return f"Result of run_tests, exit status 1:\n{filler}"


def _call(label: str, turn: int, messages: list[Message]) -> Call:
    return Call(label, turn, messages, None, ANSWER_TOKENS, "", None, None)


SLOTS = 4
CTX_TOKENS = 8192  # a slot's window
COLUMNS = 100
STYLES = ("", "cyan")  # of the arms, by turns


def arms(model: Model, binary: str | None) -> Servers:
    """The three servers, by the name of their arm."""
    flags = ("-c", str(SLOTS * CTX_TOKENS), "-np", str(SLOTS))
    return {
        "bare, without RAM cache": engines.bare(model, (*flags, "--cache-ram", "0"), binary),
        "bare, with RAM cache": engines.bare(model, flags, binary),
        "slotwise": engines.slotwise(model, SLOTS, SLOTS * CTX_TOKENS, 0, binary),
    }


class SlotNames:
    """The slot of each answer. A bare engine does not report it: it is the slot whose content
    changed and that holds about as many tokens."""

    def __init__(self) -> None:
        self._used: dict[str, dict[int, tuple[int, int]]] = {}  # by the engine's address

    async def note(
        self, connection: httpx.AsyncClient, server: Server, answers: list[Answer]
    ) -> None:
        """Name the slots of the answers to one moment."""
        if server.pinned:
            return
        before, used = (
            self._used.get(server.url, {}),
            await client.slots_used(connection, server.url),
        )
        self._used[server.url] = used
        worked = {slot: held for slot, held in used.items() if held != before.get(slot)}
        for answer in sorted(answers, key=lambda a: -a.prompt_tokens):
            expected = answer.prompt_tokens + answer.completion_tokens
            nearest = min(worked, key=lambda s: abs(worked[s][1] - expected), default=None)
            if nearest is not None:
                answer.slot = str(nearest)
                del worked[nearest]


def run(model: Model, binary: str | None, console: Console) -> tuple[list[Result], float, float]:
    """All arms, then both bounds as ratios: best use of the slots, infinite cache."""
    plan = Comparison(moments(), 1, SLOTS, concurrent=False, max_tokens=ANSWER_TOKENS)
    results, rows = run_all(plan, arms(model, binary), console, SlotNames().note)
    whole = max(total(rows), 1)
    return results, bounds.slots(rows, SLOTS) / whole, bounds.infinite(rows) / whole


def call_table(results: Sequence[Result]) -> Table:
    """One line per call, the arms side by side."""
    arms = ", ".join(f"({n}) {result.name}" for n, result in enumerate(results, 1))
    table = Table(box=box.SIMPLE_HEAD, padding=0, title=f"every call: {arms}")
    table.add_column("\ncall", no_wrap=True)
    table.add_column("\nprompt", justify="right")
    for n, result in enumerate(results, 1):
        table.add_column(f"({n})\nslot", justify="right", style=STYLES[n % 2])
        if any(answer.rule for answer in result.answers):
            table.add_column("\nrule", style=STYLES[n % 2])
        table.add_column("\ncached", justify="right", style=STYLES[n % 2])
        table.add_column("TTFT\nms", justify="right", style=STYLES[n % 2])
    labels = [call.session for moment in moments() for call in moment]
    for number, label in enumerate(labels):
        cells = [label, f"{results[0].answers[number].prompt_tokens:,}"]
        for result in results:
            answer = result.answers[number]
            cells.append(answer.slot.rpartition("/")[2] if answer.slot else "-")
            if any(a.rule for a in result.answers):
                cells.append(answer.rule or "-")
            cells += [f"{answer.cached_tokens:,}", f"{answer.ttft_s * 1000:,.0f}"]
        table.add_row(*cells)
    return table


def summary_table(results: Sequence[Result], optimum: float, infinite: float) -> Table:
    """One line per arm, then the bounds."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title="in all")
    table.add_column("arm")
    for name in ("prompt", "cached", "reuse", "wall s", "TTFT ms turns", "TTFT ms titles"):
        table.add_column(name, justify="right")
    labels = [call.session for moment in moments() for call in moment]
    for result in results:
        ttft: dict[bool, list[float]] = {True: [], False: []}
        for label, answer in zip(labels, result.answers, strict=True):
            ttft["turn" in label].append(answer.ttft_s * 1000)
        table.add_row(
            result.name,
            f"{result.prompt_tokens:,}",
            f"{result.cached_tokens:,}",
            f"{result.reuse():.3f}",
            f"{result.wall_s:.1f}",
            *(f"{percentile(ttft[kind], 50) or 0:,.0f}" for kind in (True, False)),
        )
    table.add_section()
    table.add_row(f"bound: best use of {SLOTS} slots", "", "", f"{optimum:.3f}", "", "", "")
    table.add_row("bound: an infinite cache", "", "", f"{infinite:.3f}", "", "", "")
    return table


def verdict(results: Sequence[Result], optimum: float) -> str:
    """What the figures say, and no more than that."""
    without, with_cache, ours = (result.reuse() for result in results)
    lines = [f"slotwise reuses {ours:.1%} of all prompt tokens; {SLOTS} slots allow {optimum:.1%}."]
    for name, theirs in (("without", without), ("with", with_cache)):
        if ours - theirs > 0.02:
            read = (1 - theirs) / max(1 - ours, 1e-9)
            lines.append(
                f"The bare engine {name} its RAM cache reuses {theirs:.1%}: "
                f"it reads {read:.1f} times as many tokens."
            )
        elif theirs - ours > 0.02:
            lines.append(f"The bare engine {name} its RAM cache does better here: {theirs:.1%}.")
        else:
            lines.append(f"The bare engine {name} its RAM cache does as well here: {theirs:.1%}.")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = parser_of("slotwise.bench.run.demo", __doc__)
    parser.add_argument("--model", choices=("smollm2", "tiny"), default="smollm2")
    parser.add_argument("--binary", help="a llama-server binary in place of the embedded engine")
    options = parser.parse_args(argv)
    shown = Console()
    if not shown.is_terminal:
        shown = Console(width=COLUMNS)
    try:
        model = engines.smollm2_model() if options.model == "smollm2" else engines.tiny_model()
        results, optimum, infinite = run(model, options.binary, Console(stderr=True))
    except (engines.ServerError, client.CallError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    shown.print(call_table(results))
    shown.print(summary_table(results, optimum, infinite))
    for result in results:
        shown.print(f"[bold]{result.name}[/bold]")
        for line in result.launch_lines:
            shown.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    shown.print()
    shown.print(verdict(results, optimum), markup=False, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
