#!/usr/bin/env python3
"""Writes a model with the palettes (k-means, 4 bits) or the linear int4 of coremltools, as fp32 in a GGUF file, to compare.

usage: make_palettes.py MODEL.gguf OUT.gguf tensor|GROUP|int4      tensor: one table a matrix; GROUP: a table for so many rows

All matrices and the head, which becomes a tensor of its own, go through coremltools in fp16, and are decompressed again. The table of
the embedding stays as it is. Needs coremltools, kmeans1d (which coremltools prefers) and gguf.
"""
import sys

import numpy as np
from coremltools.optimize.coreml._quantization_passes import linear_quantize_weights, palettize_weights
from coremltools.models.neural_network.quantization_utils import _get_kmeans_lookup_table_and_weight
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize

SKIPPED = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def exact(w):
    """Its k-means, exact for groups of any size: it takes scikit-learn for less than 10,000 weights."""
    lut, codes = _get_kmeans_lookup_table_and_weight(4, w, force_kmeans1d=True)
    return lut.astype(w.dtype), codes.astype(np.uint8)


def coarse(w, how):
    w = w.astype(np.float16)
    if how == "int4":
        passes, params = linear_quantize_weights, linear_quantize_weights.blockwise_compress(w, 4, "LINEAR_SYMMETRIC", True, [1, 32])
    else:
        group = 0 if how == "tensor" else int(how)
        passes, params = palettize_weights, palettize_weights.blockwise_compress(w, "CUSTOM", 4, [group, 0], lut_function=exact)
    return passes.decompress(params).astype(np.float32)


def main():
    source, out, how = sys.argv[1:4]
    reader = GGUFReader(source)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith(SKIPPED):
            continue
        kind, sub = field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub)
    names = {t.name for t in reader.tensors}
    for t in reader.tensors:
        plain = t.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
        values = t.data.astype(np.float32) if plain else dequantize(t.data, t.tensor_type)
        if t.name == "token_embd.weight" and "output.weight" not in names:
            writer.add_tensor("output.weight", coarse(values, how))
        is_matrix = values.ndim == 2 and t.name != "token_embd.weight"
        writer.add_tensor(t.name, coarse(values, how) if is_matrix else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
