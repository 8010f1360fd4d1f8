"""Golden logits and greedy continuations of a Llama-architecture GGUF, made without farpast.

    pip install numpy gguf tokenizers jinja2        (--engine transformers and --compare: also torch transformers accelerate)
    python3 scripts/golden.py MODEL.gguf kernels-tests/golden [--engine numpy|transformers] [--compare]

Writes smollm2.json and smollm2_logits.bin. The numpy engine computes in f64 over the dequantised f32 weights;
--compare runs the other engine over the same ids too and prints how far apart the two are.
"""
import argparse
import hashlib
import importlib.metadata
import json
from pathlib import Path

import numpy as np

GREEDY_TOKENS = 48
PROMPT_TOKENS = 64
LOGIT_COLUMNS = 256
SMALLEST_GAP = 0.02     # between the two best logits; a smaller one would make the argmax a matter of rounding

PROMPT = """Binary search halves a sorted list until the value is found. Here it is in Python:

def find(values, x):
    low, high = 0, len(values)
    while low < high:
        mid = (low + high) // 2
"""
GREEDY_PROMPTS = [
    "What is the capital of France?",
    "Write a Python function that returns the sum of the squares of the even numbers in a list, and show how to call it.",
    "Here are my notes from this morning. We met at 9:30 in the small room. Anna said that the new pump arrives on "
    "Thursday and that the old one must be taken out first. Ben will drain the tank on Wednesday evening, which takes "
    "about three hours, and he needs two people to help him. The invoice of 1,250 euros is still open; Clara calls the "
    "supplier today. Nobody knew where the spare seals are.\n\nSummarize these notes as a short list of tasks with the "
    "person who does each of them.",
]


class Checkpoint:
    def __init__(self, path):
        from gguf import GGUFReader, dequantize
        reader = GGUFReader(path)
        self.field = field = lambda key: reader.fields[key].contents()
        if field("general.architecture") != "llama":
            raise SystemExit("not a Llama-architecture GGUF")
        self.layers = field("llama.block_count")
        self.heads = field("llama.attention.head_count")
        self.kv_heads = field("llama.attention.head_count_kv")
        self.head_dim = field("llama.embedding_length") // self.heads
        self.eps = field("llama.attention.layer_norm_rms_epsilon")
        self.theta = field("llama.rope.freq_base")
        self.tensors = lambda: {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
        self.tokenizer = self.load_tokenizer()

    def load_tokenizer(self):
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        if self.field("tokenizer.ggml.pre") != "smollm":
            raise SystemExit("only the smollm pre-tokenizer is written down here")
        tokens = self.field("tokenizer.ggml.tokens")
        merges = [tuple(m.split(" ")) for m in self.field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = decoders.ByteLevel()
        control = [t for t, kind in zip(tokens, self.field("tokenizer.ggml.token_type")) if kind == 3]
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
        return tokenizer

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def chat(self, user):
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
            self.field("tokenizer.chat_template"))
        return template.render(messages=[{"role": "user", "content": user}], add_generation_prompt=True)


class NumpyEngine:
    """The definition in f64, with a cache of rotated keys and values."""
    def __init__(self, checkpoint, path):
        self.m = checkpoint
        self.w = {name: w.astype(np.float64) for name, w in checkpoint.tensors().items()}
        self.versions = [f"{p} {importlib.metadata.version(p)}" for p in ("numpy", "gguf")]
        self.reset()

    def reset(self):
        empty = np.empty((0, self.m.kv_heads, self.m.head_dim))
        self.k, self.v = [empty] * self.m.layers, [empty] * self.m.layers

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.m.eps) * self.w[name]

    def rope(self, x, first):
        d = self.m.head_dim
        angle = (first + np.arange(len(x)))[:, None] * self.m.theta ** (-np.arange(0, d, 2) / d)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]      # GGUF stores the pairs interleaved
        return np.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(x.shape)

    def attention(self, layer, q):
        n, keys, values = len(q), self.k[layer], self.v[layer]
        group, first = self.m.heads // self.m.kv_heads, len(keys) - n
        s = np.einsum("thd,jhd->htj", q, keys.repeat(group, 1)) / np.sqrt(self.m.head_dim)
        s = np.where(np.arange(len(keys)) <= first + np.arange(n)[:, None], s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        return np.einsum("htj,jhd->thd", p / p.sum(-1, keepdims=True), values.repeat(group, 1)).reshape(n, -1)

    def logits(self, ids):
        """Logits after each of `ids`, which follow those already in the cache."""
        w, n, first = self.w, len(ids), len(self.k[0])
        h = w["token_embd.weight"][ids]
        for l in range(self.m.layers):
            p = f"blk.{l}."
            x = self.norm(h, p + "attn_norm.weight")
            q, k, v = ((x @ w[f"{p}attn_{c}.weight"].T).reshape(n, -1, self.m.head_dim) for c in "qkv")
            self.k[l] = np.concatenate([self.k[l], self.rope(k, first)])
            self.v[l] = np.concatenate([self.v[l], v])
            h = h + self.attention(l, self.rope(q, first)) @ w[p + "attn_output.weight"].T
            x = self.norm(h, p + "ffn_norm.weight")
            gate, up = x @ w[p + "ffn_gate.weight"].T, x @ w[p + "ffn_up.weight"].T
            h = h + (gate / (1 + np.exp(-gate)) * up) @ w[p + "ffn_down.weight"].T
        return self.norm(h, "output_norm.weight") @ w.get("output.weight", w["token_embd.weight"]).T


class TransformersEngine:
    """Transformers' own GGUF loader and Llama, in f32 on the CPU."""
    def __init__(self, checkpoint, path):
        import torch
        from transformers import AutoModelForCausalLM
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
        self.versions = [f"{p} {importlib.metadata.version(p)}" for p in ("torch", "transformers", "gguf")]
        self.reset()

    def reset(self):
        self.cache = None

    def logits(self, ids):
        with self.torch.no_grad():
            out = self.model(self.torch.tensor([ids]), past_key_values=self.cache, use_cache=True)
        self.cache = out.past_key_values
        return out.logits[0].double().numpy()


ENGINES = {"numpy": NumpyEngine, "transformers": TransformersEngine}


def top_gap(logits):
    best = np.partition(logits, -2, axis=-1)[..., -2:]
    return best[..., 1] - best[..., 0]


def prompt_logits(engine, ids):
    engine.reset()
    return engine.logits(ids)


def greedy(engine, ids, forced=None):
    """Argmax tokens (or the `forced` ones) after `ids`, through the cache, and the row of logits each came from."""
    engine.reset()
    row, out, rows = engine.logits(ids)[-1], [], []
    for i in range(GREEDY_TOKENS):
        out.append(forced[i] if forced else int(row.argmax()))
        rows.append(row)
        if i + 1 < GREEDY_TOKENS:
            row = engine.logits(out[-1:])[-1]
    return out, np.stack(rows)


def mean_nll(logits, ids):
    top = logits.max(-1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(-1))
    return float((log_sum[:-1] - logits[np.arange(len(ids) - 1), ids[1:]]).mean())


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model", type=Path)
    args.add_argument("out", type=Path)
    args.add_argument("--engine", choices=ENGINES, default="numpy")
    args.add_argument("--compare", action="store_true")
    args = args.parse_args()

    checkpoint = Checkpoint(args.model)
    engine = ENGINES[args.engine](checkpoint, args.model)
    prompt = checkpoint.encode(checkpoint.chat(PROMPT))[:PROMPT_TOKENS]
    logits = prompt_logits(engine, prompt)
    vocabulary = logits.shape[1]
    columns = list(range(0, vocabulary, vocabulary // LOGIT_COLUMNS))[:LOGIT_COLUMNS]
    gaps = [top_gap(logits).min()]

    entries, all_rows = [], []
    for text in GREEDY_PROMPTS:
        ids = checkpoint.encode(checkpoint.chat(text))
        tokens, rows = greedy(engine, ids)
        gaps.append(top_gap(rows).min())
        all_rows.append(rows)
        entries.append({"prompt": text, "prompt_ids": ids, "tokens": tokens,
                        "text": checkpoint.tokenizer.decode(tokens, skip_special_tokens=False),
                        "smallest_gap": round(float(gaps[-1]), 6)})
        print(f"{len(ids)} ids, smallest gap {gaps[-1]:.4f}: {entries[-1]['text']!r}")
    print(f"smallest gap over the {len(prompt)} prompt positions: {gaps[0]:.4f}")
    if min(gaps) <= SMALLEST_GAP:
        raise SystemExit("an argmax is not well defined: choose another prompt")

    golden = {
        "model_sha256": hashlib.sha256(args.model.read_bytes()).hexdigest(),
        "engine": args.engine,
        "versions": engine.versions + [f"tokenizers {importlib.metadata.version('tokenizers')}"],
        "prompt_text": checkpoint.tokenizer.decode(prompt, skip_special_tokens=False),
        "prompt": prompt,
        "argmax": logits.argmax(-1).tolist(),
        "argmax_smallest_gap": round(float(gaps[0]), 6),
        "nll": round(mean_nll(logits, prompt), 9),
        "logit_ids": columns,
        "greedy": entries,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    lines = [f'"{key}": {json.dumps(value)}' for key, value in golden.items() if key != "greedy"]
    lines.append('"greedy": [\n' + ",\n".join(json.dumps(e) for e in entries) + "\n]")
    (args.out / "smollm2.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    with open(args.out / "smollm2_logits.bin", "wb") as file:
        file.write(logits[:, columns].astype("<f4").tobytes() + logits[-1].astype("<f4").tobytes())

    if args.compare:
        other_name = next(name for name in ENGINES if name != args.engine)
        other = ENGINES[other_name](checkpoint, args.model)
        again = prompt_logits(other, prompt)
        print(f"{args.engine} against {other_name}, prompt: max |delta| {np.abs(logits - again).max():.2e}, "
              f"rms {np.sqrt(((logits - again) ** 2).mean()):.2e} (logits' rms {np.sqrt((logits ** 2).mean()):.2f}), "
              f"same argmax {(logits.argmax(-1) == again.argmax(-1)).mean():.0%}, "
              f"nll {golden['nll']:.7f} against {mean_nll(again, prompt):.7f}")
        for entry, rows in zip(entries, all_rows):
            _, again = greedy(other, entry["prompt_ids"], entry["tokens"])
            print(f"greedy after {len(entry['prompt_ids'])} ids: max |delta| {np.abs(rows - again).max():.2e}, "
                  f"same argmax {(rows.argmax(-1) == again.argmax(-1)).mean():.0%}")


if __name__ == "__main__":
    main()
