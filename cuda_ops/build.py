"""Compiles the CUDA kernels ahead of time, all of them or those named.

    python -m cuda_ops.build [variant ...]

It is apart from `jit`, which the package imports: Python warns of running such a module.
"""

import argparse
import sys
import time

from cuda_ops.errors import KernelUnavailableError
from cuda_ops.jit import (
    BLOCK,
    VARIANTS,
    arch_names,
    architectures,
    architectures_of,
    compile_variant,
)


def main() -> None:
    """Compile ahead of time, say on a cluster's login node; a mistake ends with code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m cuda_ops.build",
        description="Compile CUDA kernels before they are used, for this machine's GPUs or for "
        "what TORCH_CUDA_ARCH_LIST names.",
    )
    known = (*VARIANTS, *BLOCK)
    parser.add_argument("variants", nargs="*", metavar="variant", help=", ".join(known))
    asked = parser.parse_args().variants
    for variant in asked:  # `choices` would refuse to be given none
        if variant not in known:
            parser.error(f"there is no kernel '{variant}'; choose from: {', '.join(known)}")
    try:
        for variant in asked or known:
            archs = architectures_of(variant, architectures())
            if not archs:
                print(f"{variant}: left out, it is for Hopper (9.0) alone")
                continue
            start = time.perf_counter()
            path = compile_variant(variant, archs)
            print(f"{variant}: {time.perf_counter() - start:.1f} s, {arch_names(archs)}, {path}")
    except KernelUnavailableError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
