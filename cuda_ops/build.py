"""Compiles the CUDA kernels ahead of time, all of them or those named.

    python -m cuda_ops.build [variant ...]

It is apart from `jit`, which the package imports: Python warns of running such a module.
"""

import argparse
import sys
import time

from cuda_ops.errors import KernelUnavailableError
from cuda_ops.jit import VARIANTS, arch_names, architectures, compile_variant


def main() -> None:
    """Compile ahead of time, say on a cluster's login node; a mistake ends with code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m cuda_ops.build",
        description="Compile CUDA kernels before they are used, for this machine's GPUs or for "
        "what TORCH_CUDA_ARCH_LIST names.",
    )
    parser.add_argument("variants", nargs="*", metavar="variant", help=", ".join(VARIANTS))
    variants = parser.parse_args().variants or VARIANTS
    for variant in variants:  # `choices` would refuse to be given none
        if variant not in VARIANTS:
            parser.error(f"there is no kernel '{variant}'; choose from: {', '.join(VARIANTS)}")
    try:
        archs = architectures()
        for variant in variants:
            start = time.perf_counter()
            path = compile_variant(variant, archs)
            print(f"{variant}: {time.perf_counter() - start:.1f} s, {arch_names(archs)}, {path}")
    except KernelUnavailableError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
