"""How ext_core is compiled. Named by pyproject.toml; never imported at run time.

EXT_CORE_CHECKED=DIRECTORY makes the checked build there, see .ci/checked. EXT_CORE_ANNOTATE=1 writes Cython's annotated
HTML. Changing EXT_CORE_ANNOTATE alone rebuilds nothing (file dates decide): remove build/ first.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension
from setuptools.command.build_ext import build_ext as _build_ext

CHECKED = os.environ.get("EXT_CORE_CHECKED", "")
SHARED = "ext_core._cyutility"  # one copy of Cython's memoryview code for all modules
PROBE = "ext_core._probe"  # faults on purpose; in the checked build only

# No fused multiply-add: the last bit of a score is part of the order, on every machine the same.
ALWAYS = ["-Wall", "-ffp-contract=off"]
WARNINGS = [
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",  # Cython gives every method the parameters of its slot
]


class build_ext(_build_ext):
    """setuptools' build_ext, with the directives of every kernel in one place."""

    def finalize_options(self) -> None:
        modules = self.distribution.ext_modules
        if not any(e.name == SHARED for e in modules):  # may run twice
            if CHECKED:
                modules.append(Extension(PROBE, ["ext_core/_probe.pyx"]))
                self.build_lib, self.build_temp = CHECKED, str(Path(CHECKED, "objects"))
            for extension in modules:
                extension.extra_compile_args = [*ALWAYS, *(_checked() if CHECKED else ["-O3"])]
                extension.extra_link_args = _sanitizer()
            modules[:] = cythonize(
                [*modules, Extension(SHARED, ["ext_core/_cyutility.c"])],
                shared_utility_qualified_name=SHARED,
                build_dir=str(Path(CHECKED, "cython")) if CHECKED else "build/cython",
                annotate=bool(os.environ.get("EXT_CORE_ANNOTATE")),
                nthreads=os.cpu_count() if CHECKED else 0,
                compiler_directives={
                    "show_performance_hints": False,
                    "language_level": 3,
                    "boundscheck": bool(CHECKED),
                    "initializedcheck": bool(CHECKED),
                    "overflowcheck": bool(CHECKED),
                    "wraparound": False,
                    "cdivision": not CHECKED,
                },
            )
        super().finalize_options()


def _checked() -> list[str]:
    return ["-O1", "-g1", "-fno-omit-frame-pointer", *WARNINGS, *_sanitizer()]


def _sanitizer() -> list[str]:
    return ["-fsanitize=address"] if os.environ.get("EXT_CORE_SANITIZED") else []
