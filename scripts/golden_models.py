#!/usr/bin/env python3
"""Golden logits, greedy continuations and perplexities of GGUF models, computed in f64 without farpast.

    pip install gguf numpy tokenizers transformers jinja2
    scripts/golden_models.py packaged smollm2=SmolLM2.gguf ...    # NAME.json and NAME_logits.bin in kernels-tests/golden
    scripts/golden_models.py perplexity smollm2=SmolLM2.gguf ...  # its models in perplexity.json, of english.txt
    scripts/golden_models.py toys FOLDER                          # toys.json, of every GGUF file in the folder

The weights are those that the `gguf` package decodes. The forward passes are written down from the papers and from what
transformers computes; only the names of tensors and fields, and llama's order of rows, are those of llama.cpp.
"""

import argparse
import hashlib
import importlib.metadata
import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent.parent / "kernels-tests/golden"
ENGLISH = GOLDEN / "english.txt"


class Model:
    """A decoder-only transformer with a cache of keys and values; all activations are f64."""

    def __init__(self, path, context):
        from gguf import GGUFReader

        reader = GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {t.name: t for t in reader.tensors}
        self.weights = {}
        self.arch = self.fields["general.architecture"].contents()
        gemma = self.arch in ("gemma2", "gemma3")
        self.hidden = self.field("embedding_length")
        self.layers = self.field("block_count")
        self.heads = self.field("attention.head_count")
        self.kv_heads = self.field("attention.head_count_kv", self.heads)
        self.head_dim = self.field("attention.key_length", self.hidden // self.heads)
        self.eps = self.field("attention.layer_norm_rms_epsilon")
        self.activation = gelu if gemma else silu
        self.embedding_scale = self.hidden**0.5 if gemma else 1
        # The 27B models divide by the square root of hidden / heads, which is not their head dim.
        is_27b = (self.arch, self.layers) in (("gemma2", 46), ("gemma3", 62))
        self.score_scale = (self.hidden / self.heads if is_27b else self.head_dim) ** -0.5
        self.score_cap = self.field("attn_logit_softcapping", 50.0) if self.arch == "gemma2" else 0
        self.logit_cap = self.field("final_logit_softcapping", 30.0) if self.arch == "gemma2" else 0
        self.rope_global = Rope(self, context)
        self.rope_local = Rope(self, context, self.field("rope.freq_base_swa", 10000.0)) if self.arch == "gemma3" else None
        self.reset()

    def field(self, key, default=None):
        field = self.fields.get(f"{self.arch}.{key}")
        if field is None and default is None:
            raise SystemExit(f"{self.arch}.{key} is missing")
        return default if field is None else field.contents()

    def w(self, name):
        """A tensor, its rows first; None if there is none."""
        if name not in self.weights and name in self.tensors:
            from gguf import dequantize

            t = self.tensors[name]
            self.weights[name] = dequantize(t.data, t.tensor_type).astype(np.float32).astype(np.float64)
        return self.weights.get(name)

    def layer_kind(self, layer):
        """How far back a layer's attention reaches (0: to the first position), and its rotation, if any."""
        window = self.field("attention.sliding_window", 0)
        match self.arch:
            case "gemma2":  # local, global, ...
                return window if layer % 2 == 0 else 0, self.rope_global
            case "gemma3":  # five local ones, then a global one
                return (0, self.rope_global) if layer % 6 == 5 else (window, self.rope_local)
            case "smollm3":
                return 0, None if layer % 4 == 3 else self.rope_global
            case "llama" | "phi3":
                return window, self.rope_global
            case "qwen2" | "qwen3":
                return 0, self.rope_global
        raise SystemExit(f"no forward pass of {self.arch} is written down here")

    def reset(self):
        empty = np.empty((0, self.kv_heads, self.head_dim))
        self.keys, self.values = [empty] * self.layers, [empty] * self.layers

    def hidden_states(self, ids):
        """After each of `ids`, which follow those in the cache: what the head reads."""
        first = len(self.keys[0])
        h = self.w("token_embd.weight")[ids] * self.embedding_scale
        for layer in range(self.layers):
            p = f"blk.{layer}."
            h = h + self.norm(self.attention(layer, self.norm(h, p + "attn_norm"), first), p + "post_attention_norm")
            h = h + self.norm(self.feed_forward(p, self.norm(h, p + "ffn_norm")), p + "post_ffw_norm")
        return self.norm(h, "output_norm")

    def head(self, h):
        output = self.w("output.weight")
        return soft_cap(h @ (self.w("token_embd.weight") if output is None else output).T, self.logit_cap)

    def logits(self, ids):
        return self.head(self.hidden_states(ids))

    def norm(self, x, name):
        """RMSNorm over the last axis, or x itself where the model has no such norm."""
        w = self.w(name + ".weight")
        return x if w is None else x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * w

    def linear(self, x, name):
        y, bias = x @ self.w(name + ".weight").T, self.w(name + ".bias")
        return y if bias is None else y + bias

    def attention(self, layer, x, first):
        p = f"blk.{layer}."
        if p + "attn_qkv.weight" in self.tensors:
            q_rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
            q, k, v = np.split(self.linear(x, p + "attn_qkv"), [q_rows, q_rows + kv_rows], -1)
        else:
            q, k, v = (self.linear(x, f"{p}attn_{c}") for c in "qkv")
        q, k, v = (y.reshape(len(x), -1, self.head_dim) for y in (q, k, v))
        q, k = self.norm(q, p + "attn_q_norm"), self.norm(k, p + "attn_k_norm")
        window, rope = self.layer_kind(layer)
        if rope:
            q, k = rope(q, first), rope(k, first)
        self.keys[layer] = np.concatenate([self.keys[layer], k])
        self.values[layer] = np.concatenate([self.values[layer], v])
        # Some queries at a time, for the size of the scores.
        parts = [self.attend(layer, q[i : i + 256], first + i, window) for i in range(0, len(q), 256)]
        return self.linear(np.concatenate(parts), p + "attn_output")

    def attend(self, layer, q, first, window):
        """Softmax attention of queries [T, H, D] at positions from `first` on, to keys [S, G, D] up to their own."""
        n, end = len(q), first + len(q)
        k, v = (cache[layer][:end].transpose(1, 0, 2)[:, None] for cache in (self.keys, self.values))
        q = q.reshape(n, self.kv_heads, -1, self.head_dim).transpose(1, 2, 0, 3)
        scores = soft_cap(q @ k.swapaxes(2, 3) * self.score_scale, self.score_cap)
        back = np.arange(first, end)[:, None] - np.arange(end)
        seen = (back >= 0) & (back < window if window else True)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True) @ v).transpose(2, 0, 1, 3).reshape(n, -1)

    def feed_forward(self, p, x):
        if p + "ffn_gate.weight" in self.tensors:
            gate, up = self.linear(x, p + "ffn_gate"), self.linear(x, p + "ffn_up")
        else:
            gate, up = np.split(self.linear(x, p + "ffn_up"), 2, -1)
        return self.linear(self.activation(gate) * up, p + "ffn_down")


class Rope:
    """Rotary position embedding (arXiv:2104.09864) of the first `dims` elements of a head."""

    def __init__(self, model, context, local_base=None):
        self.dims = model.field("rope.dimension_count", model.head_dim)
        # llama's q and k have their rows in an order that puts the two halves of a pair side by side.
        self.neighbours = model.arch in ("llama", "smollm3")
        base = local_base or model.field("rope.freq_base", 10000.0)
        self.frequencies = base ** (-np.arange(0, self.dims, 2) / self.dims)
        self.magnitude = 1.0
        if local_base:
            return
        original = model.field("rope.scaling.original_context_length", model.field("context_length"))
        length = "long" if context > original else "short"
        for name in ("rope_freqs.weight", f"rope_factors_{length}.weight"):
            if (factors := model.w(name)) is not None:
                self.frequencies = self.frequencies / factors
        kind, factor = model.field("rope.scaling.type", "none"), model.field("rope.scaling.factor", 1.0)
        self.magnitude = model.field("rope.scaling.attn_factor", 1.0)
        if kind == "linear":
            self.frequencies = self.frequencies / factor
        elif kind == "yarn":
            fast, slow = model.field("rope.scaling.yarn_beta_fast", 32.0), model.field("rope.scaling.yarn_beta_slow", 1.0)
            kept = (1 - self.yarn_ramp(base, original, fast, slow)) * model.field("rope.scaling.yarn_ext_factor", 1.0)
            self.frequencies *= kept + (1 - kept) / factor
            self.magnitude *= 0.1 * np.log(factor) + 1
        elif kind not in ("none", "longrope"):
            raise SystemExit(f"no RoPE scaling {kind} is written down here")

    def yarn_ramp(self, base, original, fast, slow):
        """0 for pairs of `fast` turns or more within the original context, 1 for those of `slow` or less
        (arXiv:2309.00071, section 3.2, with the bounds in whole pairs as its authors' code has them)."""
        pair = lambda turns: self.dims * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))
        low, high = max(np.floor(pair(fast)), 0), min(np.ceil(pair(slow)), self.dims - 1)
        return np.clip((np.arange(self.dims // 2) - low) / max(high - low, 0.001), 0, 1)

    def __call__(self, x, first):
        """x [T, heads, D] at positions from `first` on."""
        angles = (first + np.arange(len(x)))[:, None, None] * self.frequencies
        cos, sin = np.cos(angles) * self.magnitude, np.sin(angles) * self.magnitude
        turned, rest = x[..., : self.dims], x[..., self.dims :]
        half = self.dims // 2
        a, b = (turned[..., 0::2], turned[..., 1::2]) if self.neighbours else (turned[..., :half], turned[..., half:])
        a, b = a * cos - b * sin, b * cos + a * sin
        turned = np.stack([a, b], -1).reshape(turned.shape) if self.neighbours else np.concatenate([a, b], -1)
        return np.concatenate([turned, rest], -1)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    """By tanh, as Gemma's `gelu_pytorch_tanh`."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def soft_cap(x, cap):
    return cap * np.tanh(x / cap) if cap else x


# Texts whose first tokens are the prompt, and texts that are continued; those of a chat model are a user's turn. No two best
# logits may be so close that rounding keys and values to f16 changes their order.
PROMPT_TOKENS = 64
GREEDY_TOKENS = 48
SMALLEST_GAP = 0.04
SPREAD = 64  # ids whose logits are kept at every position, beside those that are the best somewhere
LAST = 49152  # at most so many ids whose logits are kept at the last position
CODE = """Binary search halves a sorted list until the value is found. Here it is in Python:

def find(values, x):
    low, high = 0, len(values)
    while low < high:
        mid = (low + high) // 2
"""
PROSE = ENGLISH.read_text().partition("\n\nSome objects contain references to other")
SQUARES = "Write a Python function that returns the sum of the squares of the even numbers in a list, and show how to call it."
NOTES = (
    "Here are my notes from this morning. We met at 9:30 in the small room. Anna said that the new pump arrives on "
    "Thursday and that the old one must be taken out first. Ben will drain the tank on Wednesday evening, which takes "
    "about three hours, and he needs two people to help him. The invoice of 1,250 euros is still open; Clara calls the "
    "supplier today. Nobody knew where the spare seals are.\n\nSummarize these notes as a short list of tasks with the "
    "person who does each of them."
)
FIBONACCI = "Write a Rust function that returns the n-th Fibonacci number."
TEXTS = {
    "smollm2": (CODE, ["What is the capital of France?", SQUARES, NOTES]),
    "qwen2.5-coder-0.5b": (CODE, [FIBONACCI, "Write a SQL query that counts orders per customer."]),
    "gemma3-270m": (PROSE[1].strip() + PROSE[2], ["import numpy as np\n\n", "In 1969, Apollo 11"]),
}


class Text:
    """The tokenizer and chat template of a GGUF file, as golden_text.py reads them."""

    def __init__(self, path):
        import golden_text

        self.vocabulary = golden_text.read(path)
        self.tokenizer = golden_text.tokenizer(self.vocabulary)
        self.render = golden_text.render

    def encode(self, text):
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return [self.vocabulary["bos"]] * bool(self.vocabulary["add_bos"]) + ids

    def user(self, text):
        """The ids of a user's turn in the model's template, or of the text where it has none."""
        if template := self.vocabulary["chat_template"]:
            turn = [{"role": "user", "content": text}]
            text = self.render(template, self.vocabulary, {"messages": turn, "add_generation_prompt": True})
        return self.encode(text)

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def packaged(name, path):
    text, model = Text(path), Model(path, PROMPT_TOKENS)
    prompt_text, continued = TEXTS[name]
    prompt = text.user(prompt_text)[:PROMPT_TOKENS]
    logits = model.logits(prompt)
    best, vocabulary = logits.argmax(-1), logits.shape[1]
    columns = sorted({*range(0, vocabulary, vocabulary // SPREAD), *best.tolist()})
    last_step = -(-vocabulary // LAST)
    golden = {
        "model_sha256": sha256(path.read_bytes()),
        "versions": versions(),
        "prompt_text": text.decode(prompt),
        "prompt": prompt,
        "argmax": best.tolist(),
        "smallest_gap": round(top_gap(logits), 6),
        "logit_ids": columns,
        "last_step": last_step,
        "greedy": [greedy(model, text, user) for user in continued],
    }
    gaps = [golden["smallest_gap"]] + [case["smallest_gap"] for case in golden["greedy"]]
    print(f"{name}: smallest gaps {gaps}")
    if len(prompt) < PROMPT_TOKENS or min(gaps) < SMALLEST_GAP:
        raise SystemExit("an argmax is not well defined or the prompt too short: choose other texts")
    write(f"{name}.json", golden)
    rows = [logits[:, columns].astype("<f4"), logits[-1, ::last_step].astype("<f4")]
    (GOLDEN / f"{name}_logits.bin").write_bytes(b"".join(row.tobytes() for row in rows))


def greedy(model, text, user):
    ids = text.user(user)
    model.reset()
    rows, tokens = [model.logits(ids)[-1]], []
    while len(tokens) < GREEDY_TOKENS:
        tokens.append(int(rows[-1].argmax()))
        rows.append(model.logits(tokens[-1:])[0])
    print(repr(text.decode(tokens)))
    case = {"prompt": user, "prompt_ids": ids, "tokens": tokens, "text": text.decode(tokens)}
    return {**case, "smallest_gap": round(top_gap(np.stack(rows[:-1])), 6)}


def top_gap(logits):
    """The smallest difference of a row's two best logits."""
    best = np.partition(logits, -2, axis=-1)
    return float((best[:, -1] - best[:, -2]).min())


SCORED = 4096
SCORED_AFTER = (512, 1024, 2048, 4096)


def perplexity(models):
    """Negative log likelihoods of the tokens after the first, in one context."""
    source = ENGLISH.read_bytes()
    path = GOLDEN / "perplexity.json"
    golden = json.loads(path.read_text()) if path.exists() else {}
    golden = {name: entry for name, entry in golden.items() if name not in models} | {"text_sha256": sha256(source)}
    for name, file in models.items():
        ids = Text(file).encode(source.decode())[:SCORED]
        model, losses = Model(file, SCORED), []
        hidden = model.hidden_states(ids)
        # Some rows at a time, for the size of the logits.
        for i in range(0, SCORED - 1, 128):
            logits, targets = model.head(hidden[i : i + 128]), ids[i + 1 : i + 129]
            top = logits.max(-1)
            log_sums = top + np.log(np.exp(logits - top[:, None]).sum(-1))
            losses.append(log_sums[: len(targets)] - logits[np.arange(len(targets)), targets])
        sums = np.concatenate(losses).cumsum()
        golden[name] = {
            "model_sha256": sha256(file.read_bytes()),
            "tokens": len(ids),
            "ids_sha256": sha256(np.array(ids, "<u4").tobytes()),
            "nll_sum": round(float(sums[-1]), 8),
            "nll": {str(n): round(float(sums[n - 2] / (n - 1)), 8) for n in SCORED_AFTER},
        }
        print(name, golden[name])
    write("perplexity.json", {**golden, "versions": versions()})


TOY_TOKENS = 48


def toys(folder):
    """For every toy some ids without a pattern, and the logits after four of them."""
    golden = {"versions": versions()}
    for path in sorted(folder.glob("*.gguf")):
        model = Model(path, TOY_TOKENS)
        vocabulary = len(model.w("token_embd.weight"))
        ids = [(i * i * 37 + i * 11 + 5) % vocabulary for i in range(TOY_TOKENS)]
        logits = model.logits(ids)
        at = [1, 19, 33, TOY_TOKENS - 1]
        rows = [[float(f"{x:.8g}") for x in logits[i]] for i in at]
        golden[path.stem] = {"gguf_sha256": sha256(path.read_bytes()), "ids": ids, "at": at, "logits": rows}
    write("toys.json", golden)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def versions():
    return [f"{p} {importlib.metadata.version(p)}" for p in ("numpy", "gguf", "tokenizers")]


def write(name, golden):
    """One key a line."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
    (GOLDEN / name).write_text("{\n" + lines + "\n}\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=("packaged", "perplexity", "toys"))
    arguments.add_argument("files", nargs="+")
    arguments = arguments.parse_args()
    if arguments.what == "toys":
        return toys(Path(arguments.files[0]))
    models = {name: Path(path) for name, path in (file.split("=") for file in arguments.files)}
    if arguments.what == "perplexity":
        return perplexity(models)
    for name, path in models.items():
        packaged(name, path)


if __name__ == "__main__":
    main()
