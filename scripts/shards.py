"""Token shards in Megatron-LM's indexed format.  Plain Python, no packages."""

from __future__ import annotations

import array
import struct

IDX_MAGIC = b"MMIDIDX\x00\x00"
TYPE_CODES = {1: "B", 4: "i", 8: "H"}  # Megatron-LM's dtype codes: uint8, int32, uint16


def read_documents(prefix: str) -> list[array.array]:
    """The documents of PREFIX.bin as arrays of tokens, in the order of PREFIX.idx."""
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    if index[:9] != IDX_MAGIC:
        raise ValueError(f"{prefix}.idx: not an indexed data set: it starts with {index[:9]!r}")
    version, code, n_sequences, n_marks = struct.unpack_from("<QBQQ", index, 9)
    if version != 1 or code not in TYPE_CODES:
        raise ValueError(f"{prefix}.idx: version {version}, token type {code}: not supported")
    at = 9 + struct.calcsize("<QBQQ")
    lengths = struct.unpack_from(f"<{n_sequences}i", index, at)
    starts = struct.unpack_from(f"<{n_sequences}q", index, at + 4 * n_sequences)
    marks = struct.unpack_from(f"<{n_marks}q", index, at + 12 * n_sequences)
    with open(prefix + ".bin", "rb") as file:
        data = file.read()
    width = array.array(TYPE_CODES[code]).itemsize
    documents = []
    for first, last in zip(marks, marks[1:]):
        document = array.array(TYPE_CODES[code])
        for sequence in range(first, last):
            start = starts[sequence]
            document.frombytes(data[start:start + width * lengths[sequence]])
        documents.append(document)
    return documents


def write_documents(prefix: str, documents: list[list[int]], code: int = 4) -> None:
    """PREFIX.bin and PREFIX.idx of these documents, one sequence each."""
    width = array.array(TYPE_CODES[code]).itemsize
    lengths = [len(document) for document in documents]
    starts, at = [], 0
    for length in lengths:
        starts.append(at)
        at += width * length
    with open(prefix + ".bin", "wb") as file:
        for document in documents:
            array.array(TYPE_CODES[code], document).tofile(file)
    with open(prefix + ".idx", "wb") as file:
        file.write(IDX_MAGIC + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1))
        file.write(struct.pack(f"<{len(lengths)}i", *lengths))
        file.write(struct.pack(f"<{len(starts)}q", *starts))
        file.write(struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1)))
