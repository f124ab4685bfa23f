"""The calls of the demo: two conversations with the same coding agent, and its side jobs.

The shape is that of a person with two terminals open. Both conversations begin with the agent's
own head, its rules and tools, and then grow by what the tools print. At a new question the client
also asks for a title, a short prompt of its own, at the same moment. The answers in the histories
are fixed, so that every arm gets the very same calls.
"""

from __future__ import annotations

from slotwise.bench import workload
from slotwise.bench.trace import Call, Message
from slotwise.bench.workload import Moment

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
