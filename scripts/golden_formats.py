#!/usr/bin/env python3
"""Golden blocks of weight formats for kernels-tests/formats.rs, decoded by the `gguf` package.

    pip install gguf numpy
    scripts/golden_formats.py kernels-tests/golden/formats.json

Of each format two random blocks, one with scales as in a model and one with any; bytes and f32 weights as hex.
"""

import json
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, dequantize

# Where the f16 of a block are.
HALVES = {
    "F32": (), "F16": (), "BF16": (), "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "MXFP4": (),
}  # fmt: skip


def main(path):
    random = np.random.default_rng(1)
    np.seterr(all="ignore")
    golden = {}
    for name, halves in HALVES.items():
        length, size = GGML_QUANT_SIZES[T[name]]
        blocks = random.integers(0, 256, (2, size * (32 if length == 1 else 1)), dtype=np.uint8)
        for at in halves:
            blocks[0, at : at + 2] = np.frombuffer(np.float16(random.normal() * 1e-3).tobytes(), np.uint8)
        weights = dequantize(blocks, T[name]).astype("<f4")
        golden[name] = [{"block": b.tobytes().hex(), "weights": w.tobytes().hex()} for b, w in zip(blocks, weights)]
    with open(path, "w") as file:
        json.dump(golden, file, indent=1)
        file.write("\n")


main(sys.argv[1])
