"""A tiny llama with random weights, made on the spot: a real engine to test against, no download.

About 1 MB, built in seconds, the same bytes for the same parameters. Its texts mean nothing, but
they have the two properties that tests of prompt reuse need:

* greedy output depends on the whole context, so a corrupted cache shows in the text;
* only tokens of the form space + letters are ever generated. Each is a pre-token of its own, so a
  generated text tokenises back to exactly the ids that were generated, and the next turn of a chat
  extends what the slot holds.

The second is built into the weights: channel 0 of the residual stream is a constant that no layer
writes to, and its output weight is hugely negative for every other token, the end of turn among
them. A completion therefore always runs to ``max_tokens``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VERSION = 1  # raise it whenever the files come out different for the same parameters
GGUF_NAME, TOKENIZER_NAME = "tiny.gguf", "tokenizer.json"

# llama.cpp's "qwen2" pre-tokenizer; the local tokenizer must split exactly as the engine does.
QWEN2_SPLIT = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END_OF_TEXT, TURN_START, TURN_END)
CORPUS_BYTES = 2_500_000

# ChatML. Tools stand before everything else, as in the templates of the qwen and hermes families:
# whoever changes them changes the prompt from its first tokens on. An answer renders as it was
# generated: nothing is trimmed, and the space that the engine's tool parser takes off comes back.
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{- content -}}
{%- elif content -%}
{%- for part in content -%}{%- if part.text -%}{{- part.text -}}{%- endif -%}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(rest=messages) -%}
{%- if tools or (messages and messages[0].role == 'system') -%}
{{- '<|im_start|>system\\n' -}}
{%- if tools -%}
{{- '# Tools\\n' -}}
{%- for tool in tools -%}{{- tool | tojson -}}{{- '\\n' -}}{%- endfor -%}
{{- '\\n' -}}
{%- endif -%}
{%- if messages and messages[0].role == 'system' -%}
{{- text(messages[0].content) -}}
{%- set ns.rest = messages[1:] -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in ns.rest -%}
{%- set said = text(message.content) -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' and said and not said.startswith(' ') -%}{{- ' ' -}}{%- endif -%}
{{- said -}}
{%- if message.tool_calls -%}
{%- for call in message.tool_calls -%}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{%- if call.function.arguments is string -%}{{- call.function.arguments -}}
{%- else -%}{{- call.function.arguments | tojson -}}{%- endif -%}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


class MissingExtraError(RuntimeError):
    """A package is missing that belongs to an optional extra; the text names the extra."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the model. One head: attention on a CPU costs by the head."""

    vocab: int = 3000
    dim: int = 64
    layers: int = 2
    heads: int = 1
    ffn: int = 192
    ctx: int = 131_072
    seed: int = 1

    def key(self) -> str:
        """Names a build by all it depends on; the training text is Python's own library."""
        origin = [VERSION, platform.python_version(), tokenizers.__version__, CHAT_TEMPLATE]
        text = json.dumps([asdict(self), origin], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def build(out_dir: Path, shape: Shape | None = None) -> Path:
    """Path of the GGUF, built unless it is there; ``tokenizer.json`` lies beside it.

    Safe to call from several processes at once: each builds aside and one rename wins. Raises
    MissingExtraError without ``gguf`` and ``numpy``, OSError where ``out_dir`` cannot be written.
    """
    shape = shape or Shape()
    target = Path(out_dir) / f"tiny-{shape.key()}"
    gguf_path = target / GGUF_NAME
    if gguf_path.exists():
        return gguf_path
    try:
        import gguf  # noqa: F401
        import numpy  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"the tiny model needs the package {error.name}: pip install 'slotwise[bench]'"
        ) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".tiny-", dir=target.parent))
    try:
        tokenizer = _train_tokenizer(shape.vocab)
        tokenizer.save(str(aside / TOKENIZER_NAME))
        _write_gguf(aside / GGUF_NAME, tokenizer, shape)
        aside.chmod(0o755)
        with contextlib.suppress(FileExistsError, OSError):  # another process was first
            aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    if not gguf_path.exists():
        raise OSError(f"could not put the tiny model in place at {target}")
    return gguf_path


def tokenizer_path(gguf_path: Path) -> Path:
    """The tokenizer that belongs to a built model."""
    return gguf_path.with_name(TOKENIZER_NAME)


def _corpus() -> list[str]:
    """Python's own library: text that is at hand everywhere, prose and code mixed."""
    texts: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        texts.append(path.read_text("utf-8", "replace"))
        size += len(texts[-1])
        if size > CORPUS_BYTES:
            break
    return texts


def _train_tokenizer(vocab: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIALS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return tokenizer


def _write_gguf(path: Path, tokenizer: Tokenizer, shape: Shape) -> None:
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("slotwise-tiny")
    writer.add_context_length(shape.ctx)
    writer.add_embedding_length(shape.dim)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.dim // shape.heads)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    tokens = _add_vocabulary(writer, tokenizer)
    for name, tensor in _tensors(tokens, _generable(tokens, tokenizer), shape).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, tokenizer: Tokenizer) -> list[str]:
    """Writes the tokenizer into the GGUF; returns the token texts by id."""
    import gguf

    spec = json.loads(tokenizer.to_str())
    by_id = {i: token for token, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens = [by_id[i] for i in range(len(by_id))]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIALS else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index(END_OF_TEXT))
    writer.add_pad_token_id(tokens.index(END_OF_TEXT))
    writer.add_eos_token_id(tokens.index(TURN_END))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return tokens


def _generable(tokens: list[str], tokenizer: Tokenizer) -> list[int]:
    """Ids of the words: a space and letters, that encode back to themselves."""
    space = "Ġ"  # how a byte-level vocabulary spells it
    words = [i for i, token in enumerate(tokens) if re.fullmatch(space + "[A-Za-z]{2,}", token)]
    return [i for i in words if tokenizer.encode(tokens[i].replace(space, " ")).ids == [i]]


def _tensors(
    tokens: list[str], generable: list[int], shape: Shape
) -> dict[str, NDArray[np.float16] | NDArray[np.float32]]:
    """Random weights, scaled so that the greedy choice depends on what was read."""
    import numpy as np

    random = np.random.default_rng(shape.seed)
    dim, ffn = shape.dim, shape.ffn

    def matrix(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float16]:
        drawn = random.standard_normal((rows, columns)) * (scale / np.sqrt(columns))
        rounded: NDArray[np.float16] = drawn.astype(np.float16)
        return rounded

    def silent(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float16]:
        drawn = matrix(rows, columns, scale)
        drawn[0] = 0  # channel 0 stays the constant it was
        return drawn

    embedding = random.standard_normal((len(tokens), dim)).astype(np.float16)
    embedding[:, 0] = 4.0
    output = matrix(len(tokens), dim, scale=4.0)
    output[:, 0] = -40.0
    output[generable, 0] = 0.0
    ones = np.ones(dim, np.float32)
    tensors: dict[str, NDArray[np.float16] | NDArray[np.float32]] = {
        "token_embd.weight": embedding,
        "output.weight": output,
        "output_norm.weight": ones,
    }
    for layer in range(shape.layers):
        block: dict[str, NDArray[np.float16] | NDArray[np.float32]] = {
            "attn_norm": ones,
            "ffn_norm": ones,
            "attn_q": matrix(dim, dim, scale=2.0),
            "attn_k": matrix(dim, dim, scale=2.0),
            "attn_v": matrix(dim, dim, scale=2.0),
            "attn_output": silent(dim, dim, scale=2.0),
            "ffn_gate": matrix(ffn, dim),
            "ffn_up": matrix(ffn, dim),
            "ffn_down": silent(dim, ffn),
        }
        tensors |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in block.items()}
    return tensors


def main(arguments: Sequence[str] | None = None) -> None:
    """Builds it and prints the path of the GGUF; the exit status is 1 where that is impossible."""
    parser = argparse.ArgumentParser(
        prog="python -m slotwise.launcher.model.tiny_model", description=__doc__
    )
    parser.add_argument("directory", type=Path, help="where it is built, unless it is there")
    try:
        print(build(parser.parse_args(arguments).directory))
    except (MissingExtraError, OSError) as error:
        sys.exit(f"tiny_model: {error}")


if __name__ == "__main__":
    main()
