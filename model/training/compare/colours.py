"""The colours of a comparison's pictures."""

from model.canvas import ORANGE

KERNELS = {
    "pytorch": "#546e7a",
    "naive": "#c2185b",
    "coalesced": "#7e57c2",
    "shared": "#1e88e5",
    "warp_tiled": ORANGE,
    "fused": "#00897b",
    "published": "#6d4c41",
}
"""What takes part -> its colour in every picture."""
