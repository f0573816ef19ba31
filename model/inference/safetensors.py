"""Tensors in the safetensors format: a JSON header and raw data, which no program has to trust.

8 bytes     the header's length, little-endian
the header  {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}, ...}
the data    each tensor's numbers, little-endian, in C order, one behind the other
"""

import json
from pathlib import Path
from typing import Any

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNED = 8  # bytes; the header is filled up with spaces


def write_safetensors(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> None:
    """Write tensors of `DTYPES` on the CPU."""
    header: dict[str, Any] = {"__metadata__": metadata}
    data = bytearray()
    # The widest numbers first, so that each tensor begins at a multiple of its numbers' width.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        begin = len(data)
        data += tensor.contiguous().numpy().tobytes()
        offsets = [begin, len(data)]
        shape = list(tensor.shape)
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNED)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """What `write_safetensors` wrote: the tensors and the metadata."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = bytearray(content[start + begin : start + end])
        flat = torch.frombuffer(raw, dtype=DTYPES[entry["dtype"]]) if raw else torch.empty(0)
        tensors[name] = flat.to(DTYPES[entry["dtype"]]).view(entry["shape"])
    return tensors, metadata
