"""How ext_core is compiled. Named by pyproject.toml; never imported at run time.

All processors compile at the same time. EXT_CORE_CHECKED=1 compiles with bounds checks, EXT_CORE_ANNOTATE=1 writes
Cython's annotated HTML.
Changing a switch alone rebuilds nothing (file dates decide): remove build/ first.
"""

import os
import sys

from Cython.Build import cythonize
from setuptools import Extension
from setuptools.command.build_ext import build_ext as _build_ext

CHECKED = os.environ.get("EXT_CORE_CHECKED", "0") != "0"
DEBUG = "-g" if CHECKED else "-g0"  # a quarter of the compiler's time goes into what a debugger reads
SHARED = "ext_core._cyutility"  # one copy of Cython's memoryview code for all modules


class build_ext(_build_ext):
    """setuptools' build_ext, with the directives of every kernel in one place."""

    parallel: int | None

    def finalize_options(self) -> None:
        jobs = self.parallel or os.cpu_count() or 1
        if not any(e.name == SHARED for e in self.distribution.ext_modules):  # may run twice
            for extension in self.distribution.ext_modules:
                # No fused multiply-add: the last bit of a score is part of the order, on every machine the same.
                extension.extra_compile_args = ["-O3", DEBUG, "-Wall", "-ffp-contract=off"]
            self.distribution.ext_modules[:] = cythonize(
                [*self.distribution.ext_modules, Extension(SHARED, ["ext_core/_cyutility.c"])],
                shared_utility_qualified_name=SHARED,
                build_dir="build/cython",
                nthreads=jobs,
                annotate=bool(os.environ.get("EXT_CORE_ANNOTATE")),
                compiler_directives={
                    "language_level": 3,
                    "boundscheck": CHECKED,
                    "initializedcheck": CHECKED,
                    "wraparound": False,
                    "cdivision": not CHECKED,
                },
            )
        super().finalize_options()
        self.parallel = jobs
        if self.inplace:
            # `pip install --editable` compiles in a temporary folder by default, and the next build compiles again.
            self.build_lib = self.build_temp = f"build/{sys.implementation.cache_tag}"
