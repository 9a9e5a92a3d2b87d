"""How ext_core is compiled. Named by pyproject.toml; never imported at run time.

All processors compile at the same time. EXT_CORE_CHECKED=DIRECTORY makes the checked build there (.ci/checked).
EXT_CORE_OPTIMIZE=0 compiles three times as fast, for a test.
EXT_CORE_ANNOTATE=1 writes Cython's annotated HTML; alone it rebuilds nothing (file dates decide): remove build/ first.
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension
from setuptools.command.build_ext import build_ext as _build_ext

CHECKED = os.environ.get("EXT_CORE_CHECKED", "")
SHARED = "ext_core._cyutility"  # one copy of Cython's memoryview code for all modules
PROBE = "ext_core._probe"  # faults on purpose; in the checked build only
SANITIZER = ["-fsanitize=address"] if os.environ.get("EXT_CORE_SANITIZED") else []

# No fused multiply-add: the last bit of a score is part of the order, on every machine the same.
# No debug information for the server: a quarter of the compiler's time goes into it.
SERVER_FLAGS = [f"-O{os.environ.get('EXT_CORE_OPTIMIZE', '3')}", "-g0", "-Wall", "-ffp-contract=off"]
CHECKED_FLAGS = [
    "-O1",
    "-g1",
    "-fno-omit-frame-pointer",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",  # Cython gives every method the parameters of its slot
    *SANITIZER,
]


class build_ext(_build_ext):
    """setuptools' build_ext, with the directives of every kernel in one place."""

    parallel: int | None

    def finalize_options(self) -> None:
        """Cython's sources become extensions here, with our flags; setuptools calls it once or twice."""
        jobs = os.cpu_count() or 1
        modules = self.distribution.ext_modules
        listed = set(self.distribution.commands) <= {"egg_info", "sdist"}  # nothing is compiled for the source archive
        if not listed and not any(e.name == SHARED for e in modules):  # may run twice
            if CHECKED:
                modules.append(Extension(PROBE, ["ext_core/_probe.pyx"]))
            for extension in modules:
                extension.extra_compile_args = CHECKED_FLAGS if CHECKED else SERVER_FLAGS
                extension.extra_link_args = SANITIZER
            modules[:] = cythonize(
                [*modules, Extension(SHARED, ["ext_core/_cyutility.c"])],
                shared_utility_qualified_name=SHARED,
                build_dir=str(Path(CHECKED, "cython")) if CHECKED else "build/cython",
                nthreads=jobs,
                annotate=bool(os.environ.get("EXT_CORE_ANNOTATE")),
                emit_linenums=bool(CHECKED),  # faults name the line of the .pyx
                compiler_directives={
                    "language_level": 3,
                    "boundscheck": bool(CHECKED),
                    "initializedcheck": bool(CHECKED),
                    "overflowcheck": bool(CHECKED),
                    "wraparound": False,
                    "cdivision": not CHECKED,
                    "show_performance_hints": False,
                },
            )
        super().finalize_options()
        self.parallel = jobs
        if CHECKED:
            self.build_lib, self.build_temp = CHECKED, str(Path(CHECKED, "objects"))
        elif self.inplace:
            # `pip install --editable` compiles in a temporary folder by default, and the next build compiles again.
            self.build_lib = self.build_temp = f"build/{sys.implementation.cache_tag}"
