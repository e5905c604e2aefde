"""Where the files of a model lie: a folder, or the cache of models of this machine. Pure but for
looking at files.

The cache is laid out as `huggingface_hub` lays it out: HUB/models--ORG--NAME/refs/main names a
revision, HUB/models--ORG--NAME/snapshots/REVISION holds the files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

TOKENIZER = "tokenizer.json"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
REVISION_MAX = 256  # characters


def is_name(text: str) -> bool:
    """Whether a text can be a model's name on a hub: NAME or ORG/NAME."""
    return _NAME.fullmatch(text) is not None and ".." not in text and "--" not in text


def cache(environment: Mapping[str, str]) -> str:
    """The folder of the cache, by the variables that set it."""
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if environment.get(name):
            return os.path.join(os.path.expanduser(environment[name]), below).rstrip("/")
    home = environment.get("XDG_CACHE_HOME") or os.path.join(
        environment.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    return os.path.join(home, "huggingface", "hub")


def cached(name: str, environment: Mapping[str, str]) -> str:
    """The folder of a model of that name in the cache that has a tokenizer; "" = there is none."""
    if not is_name(name):
        return ""
    home = os.path.join(cache(environment), "models--" + name.replace("/", "--"))
    snapshots = os.path.join(home, "snapshots")
    try:
        with open(os.path.join(home, "refs", "main"), encoding="ascii") as file:
            wanted = [file.read(REVISION_MAX).strip()]
    except (OSError, ValueError):
        wanted = []
    try:
        found = [entry.path for entry in os.scandir(snapshots) if entry.is_dir()]
    except OSError:
        return ""
    named = [os.path.join(snapshots, revision) for revision in wanted if revision]
    for path in (*named, *sorted(found, key=os.path.getmtime, reverse=True)):
        if os.path.isfile(os.path.join(path, TOKENIZER)):
            return path
    return ""


def folder(root: str, environment: Mapping[str, str]) -> str:
    """The folder with the tokenizer of what an engine calls its model's root; "" = not here."""
    if os.path.isabs(root):
        return root if os.path.isfile(os.path.join(root, TOKENIZER)) else ""
    return cached(root, environment)
