"""Builds the two compiled parts of kvgate: `native._core` (Rust, PyO3) and `native.relay` (Cython).

KVGATE_BUILD = full (default) | cython | rust | none
"""

import glob
import os
import shutil
import sys

from setuptools import Extension, setup

BUILD = os.environ.get("KVGATE_BUILD", "full")
if BUILD not in ("full", "cython", "rust", "none"):
    sys.exit(f"KVGATE_BUILD must be full, cython, rust or none, got `{BUILD}`")

rust_extensions = []
ext_modules = []

if BUILD in ("full", "rust"):
    if shutil.which("cargo") is None:
        sys.exit(
            "building kvgate needs Rust, and `cargo` was not found\n"
            "hint: install Rust 1.89 or newer, or take a wheel"
        )
    from setuptools_rust import Binding, RustExtension

    rust_extensions = [
        RustExtension(
            "native._core",
            "native/Cargo.toml",
            binding=Binding.PyO3,
            # An editable install builds Rust in debug unless told otherwise: 9 to 350 times slower.
            debug=False,
            cargo_manifest_args=["--locked"],
        )
    ]

if BUILD in ("full", "cython"):
    from Cython.Build import cythonize

    ext_modules = cythonize(
        [
            Extension(
                "native.relay",
                ["native/relay.pyx"],
                depends=glob.glob("native/*.pxi"),
                extra_compile_args=["-O3"],
            )
        ],
        language_level=3,
    )

if "--quiet" not in sys.argv:
    print(f"kvgate: building {BUILD} (Rust in release mode)", file=sys.stderr)

setup(ext_modules=ext_modules, rust_extensions=rust_extensions, zip_safe=False)
