"""How much the threads of shared and warp_tiled read, write and multiply, without running them.

These stage what they work on in shared memory. See `cuda_ops.mapping`.
"""

from functools import partial

from cuda_ops.mapping import LANES, Case, Mapping, ceil_div, over_warps, with_partials

SHARED_WARPS = 8  # kWarps
SHARED_STEPS = 64  # kSteps: outputs of a row that a block computes
SHARED_TAP_TILE = 64  # kTapTile: taps that a block of the weight gradient owns
SHARED_STRETCH = 128  # kStretch: time steps that it stages at once
SHARED_STAGED = 4096  # kStaged: numbers that it stages at once
SHARED_PART = 256  # kSamples
CHUNK = 16  # kChunk of warp_tiled
TILED_WARPS = 4  # kWarps
TILED_BLOCK = 16  # kRowSamples: samples of a block, forward and input gradient
TILED_PART = 64  # kPartSamples; a quarter of it where the batch is smaller than 256 parts
MATRIX_WARPS = 8  # matrix.cuh's kWarps, and channels of a block
MATRIX_SAMPLES = 16  # kSamples
MATRIX_BLOCK = 32  # kRowTiles * kSamples
MATRIX_LENGTHS = (16, 32, 48, 64)
MATRIX_PART = 344  # kPartSamples; 32 where the batch is smaller than 32 parts
LDMATRIX = LANES * 16  # bytes that a warp's `load_four` reads


# -- shared: a block's rows and filters in shared memory ---------------------------------------


def shared_rows(case: Case, mirrored: bool) -> Mapping:
    """A block stages the inputs and taps that 64 steps of 32 rows need, tile by tile.

    So a row longer than 64 is staged again for each stretch, up to there. Each multiply-add then
    reads a tap and an input for 32 rows at once.
    """
    length, tile = case.size.length, 64 if case.wide == 4 else 32  # kTile
    staged = 0  # numbers for each row
    for start in range(0, length, SHARED_STEPS):
        end = min(start + SHARED_STEPS, length)
        taps = min(case.taps, length - start if mirrored else end)
        for j0 in range(0, taps, tile):
            j1 = min(j0 + tile, taps)
            first = max(0, start + j0 if mirrored else start - (j1 - 1))
            last = min(length, end + (j1 - 1 if mirrored else -j0))
            staged += last - first + j1 - j0
    groups = ceil_div(case.rows, LANES)
    return Mapping(
        loaded=case.rows * staged * case.item,
        stored=case.elements * case.item,
        operands=2 * groups * case.macs * LANES * case.wide,
        macs=case.rows * case.macs,
        warps=groups * ceil_div(length, SHARED_STEPS) * SHARED_WARPS,
    )


def shared_weight_grad(case: Case) -> Mapping:
    """A block stages, for 64 taps of a channel, all of gy and the x that these taps meet.

    A thread adds up one tap of one of the samples that are staged at once, and a warp loops for as
    long as the least of its taps needs.
    """
    batch, length = case.size.batch, case.size.length
    staged = reads = 0  # of a channel, over the batch
    for j0 in range(0, case.taps, SHARED_TAP_TILE):
        taps = min(SHARED_TAP_TILE, case.taps - j0)
        steps = min(SHARED_STRETCH, length)
        widest = min(length, steps + taps - 1)
        at_once = min(LANES * SHARED_WARPS // taps, SHARED_STAGED // (steps + widest))
        for t0 in range(0, length, steps):
            t1 = min(t0 + steps, length)
            first = max(0, t0 - (j0 + taps - 1))
            staged += batch * (t1 - t0 + max(0, t1 - j0 - first))
            trips = partial(_trips_of_taps, j0, taps, t0, t1)
            for samples, count in _stagings(batch, at_once):
                reads += 2 * count * over_warps(samples * taps, taps, trips)
    parts = ceil_div(batch, SHARED_PART)
    tiles = parts * case.size.channels * ceil_div(case.taps, SHARED_TAP_TILE)
    return with_partials(
        case,
        parts,
        loaded=case.size.channels * staged * case.item,
        operands=case.size.channels * reads * LANES * case.wide,
        macs=case.rows * case.macs,
        warps=tiles * SHARED_WARPS,
    )


def _stagings(batch: int, at_once: int) -> list[tuple[int, int]]:
    """(samples staged together, how often) over a batch that is cut into parts."""
    parts, rest = divmod(batch, SHARED_PART)
    return [
        (at_once, parts * (SHARED_PART // at_once) + rest // at_once),
        (SHARED_PART % at_once, parts),
        (rest % at_once, 1),
    ]


def _trips_of_taps(j0: int, taps: int, t0: int, t1: int, first: int, lanes: int) -> int:
    """Steps of [t0, t1) that the least tap of a warp meets; its lanes begin at tap j0 + first."""
    least = j0 if first + lanes > taps else j0 + first
    return max(0, t1 - max(t0, least))


# -- warp_tiled: a warp's rows staged once, Toeplitz tiles in registers --------------------------


def tiled_rows(case: Case, mirrored: bool) -> Mapping:
    """Each row is staged once, the filters once for each block of 16 samples.

    Output chunk o meets o whole tiles of 256 multiply-adds and the 136 of its first, or as many
    whole ones as there are taps for; a tile reads 16 taps and 16 inputs. The input gradient
    counts its chunks from the end, and so does the same.
    """
    if on_tensor_cores(case):
        return _matrix_rows(case, mirrored)
    size = case.size
    tap_chunks = ceil_div(case.taps, CHUNK)
    macs = operands = 0  # of a row
    for o in range(ceil_div(size.length, CHUNK)):
        tiles = min(o, tap_chunks)
        macs += 256 * tiles + (136 if o < tap_chunks else 0)
        operands += CHUNK * (case.item + tiles * (case.item + case.wide))
        operands += CHUNK * case.wide if o < tap_chunks else 0
    blocks = ceil_div(size.batch, TILED_BLOCK)
    filters = blocks * size.channels * case.taps
    return Mapping(
        loaded=(case.elements + filters) * case.item,
        stored=case.elements * case.item,
        operands=case.rows * operands,
        macs=case.rows * macs,
        warps=blocks * ceil_div(size.channels, LANES) * TILED_WARPS,
    )


def tiled_weight_grad(case: Case) -> Mapping:
    """Each row of gy and of x is staged once; a tap chunk reads 16 of each for every tile.

    Lanes that share a row have at most 4 chunks each, 2 in float64.
    """
    if on_tensor_cores(case):
        return _matrix_weight_grad(case)
    size = case.size
    samples = TILED_PART if size.batch >= 256 * TILED_PART else TILED_PART // 4
    parts = ceil_div(size.batch, samples)
    chunks, tap_chunks = ceil_div(size.length, CHUNK), ceil_div(case.taps, CHUNK)
    tiles = sum(chunks - c for c in range(tap_chunks))
    rows_of_warp = LANES
    while rows_of_warp > 1 and tap_chunks > LANES // rows_of_warp * (16 // case.wide):
        rows_of_warp //= 2
    return with_partials(
        case,
        parts,
        loaded=2 * case.elements * case.item,
        operands=case.rows * tiles * 2 * CHUNK * case.item,
        macs=case.rows * (256 * (tiles - tap_chunks) + 136 * tap_chunks),
        warps=parts * ceil_div(size.channels, rows_of_warp),
    )


# -- warp_tiled in half precision: products of matrices, see matrix.cuh ---------------------------


def on_tensor_cores(case: Case) -> bool:
    """Whether warp_tiled leaves the multiply-adds to tensor cores, as the GPUs of today have."""
    return case.item == 2 and case.size.length in MATRIX_LENGTHS


def _matrix_rows(case: Case, mirrored: bool) -> Mapping:
    """Each row is staged once; for each block a lane loads the taps of its fragments, in twos.

    Its element (g, t) of the fragment of diagonal e is tap 8 e + g - 2 t, or 8 e + 2 t - g, and the
    one before or after it.
    """
    size, chunks = case.size, case.size.length // CHUNK
    first = [
        8 * e + (2 * t - g if mirrored else g - 2 * t)
        for e in range(2 * chunks)
        for g in range(8)
        for t in range(4)
    ]
    taps = [j for f in first for j in (f, f + 1 if mirrored else f - 1) if 0 <= j < case.taps]
    blocks = ceil_div(size.batch, MATRIX_BLOCK)
    filters = blocks * size.channels * len(taps)
    return Mapping(
        loaded=(case.elements + filters) * case.item,
        stored=case.elements * case.item,
        operands=ceil_div(size.batch, MATRIX_SAMPLES) * size.channels * chunks * LDMATRIX,
        macs=0,
        warps=blocks * ceil_div(size.channels, MATRIX_WARPS) * MATRIX_WARPS,
    )


def _matrix_weight_grad(case: Case) -> Mapping:
    """Each row of gy and of x is staged once, and read once as a fragment."""
    size = case.size
    samples = MATRIX_PART if size.batch >= 32 * MATRIX_PART else 32
    parts = ceil_div(size.batch, samples)
    steps = ceil_div(size.batch, MATRIX_SAMPLES)  # of 16 samples, taken in turns by the parts
    return with_partials(
        case,
        parts,
        loaded=2 * case.elements * case.item,
        operands=2 * steps * size.channels * size.length // CHUNK * LDMATRIX,
        macs=0,
        warps=parts * ceil_div(size.channels, MATRIX_WARPS) * MATRIX_WARPS,
    )
