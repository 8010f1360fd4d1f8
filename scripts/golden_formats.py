#!/usr/bin/env python3
"""Golden blocks of weight formats for kernels-tests/formats.rs, decoded by the `gguf` package.

    pip install gguf numpy
    scripts/golden_formats.py kernels-tests/golden/formats.json

Of each format two random blocks, one with scales as in a model and one with any; bytes and f32 weights as hex. Of each
format that the package encodes, too, weights and their blocks under "encoded".
"""

import json
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, dequantize, quantize

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
    weights = random.normal(size=(8, 32)).astype("<f4")
    weights[1] = 0
    weights[2] = np.round(weights[2] * 8) / 8  # ties, in quants and of the largest magnitude
    weights[2, [3, 4, 7]] = [4, -4, 4]
    weights[3, 9] = -1000  # an outlier
    weights[4] *= 1e-6  # a scale below the smallest normal f16
    weights[5] *= 1e4
    weights[6] = np.abs(weights[6])
    weights[7] = 0.37
    encoded = {name: quantize(weights, T[name]).tobytes().hex() for name in ("Q8_0", "Q4_0")}
    golden["encoded"] = {"weights": weights.tobytes().hex(), **encoded}
    with open(path, "w") as file:
        json.dump(golden, file, indent=1)
        file.write("\n")


main(sys.argv[1])
