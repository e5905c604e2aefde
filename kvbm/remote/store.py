"""An object store, as far as kvbm uses one: get, create, delete, list, and what went wrong in a few
words.

Over obstore (the object_store crate), so that S3, its relatives and directories are one thing.
Invariant: no call takes longer than the configured timeout, and none but `StoreError` is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError

from kvbm.conf.model import Remote
from kvbm.remote import StoreError, layout

LIST_CHUNK = 1000
OBJECT_MAX = (64 << 20) + 2 * 4096
TIDY_MAX = 400  # characters of a store's own words that are kept
# What stands before what matters: names of blocks, and of many objects all but the first.
NAME, OTHERS = re.compile(r"([0-9a-f]{8})[0-9a-f]{56}"), re.compile(r"(?:,[^\s,:]*/[^\s,:]*)+")
RETRIES = re.compile(r", after \d+ retries, max_retries: \d+, retry_timeout: \d+s ")
WORD = re.compile(r'"([^"]+)"|\b([A-Z][a-z]\w+)')
T = TypeVar("T")


class _Taken(Exception):
    """There is an object of that name."""


class Store:
    """One address. Raises StoreError where it cannot be one."""

    def __init__(self, remote: Remote) -> None:
        self._timeout_s = remote.timeout_s
        self._store: Any = _open(remote)

    async def get(self, path: str) -> bytes | None:
        """The object, None where there is none. One that is too large is given as an empty one."""

        async def work() -> bytes:
            found = await obstore.get_async(self._store, path)
            return b"" if found.meta["size"] > OBJECT_MAX else await _all(found)

        try:
            return await self._within(work())
        except (FileNotFoundError, NotFoundError):
            return None

    async def get_part(self, path: str, begin: int, end: int) -> bytes | None:
        """Those bytes of an object, fewer where it is shorter; None: there is none."""

        async def work() -> bytes:
            try:
                span: Any = {"range": (begin, end)}
                return await _all(await obstore.get_async(self._store, path, options=span))
            except (FileNotFoundError, NotFoundError):
                raise
            except BaseError:
                # A range behind the end is refused: the object is at fault then, not the store.
                if (await obstore.head_async(self._store, path))["size"] >= end:
                    raise
                return b""

        try:
            return await self._within(work())
        except (FileNotFoundError, NotFoundError):
            return None

    async def create(self, path: str, data: bytes) -> bool:
        """Writes an object; False: it was there already."""
        try:
            await self._within(self._put(path, data))
        except _Taken:
            return False
        except (FileNotFoundError, NotFoundError):
            raise StoreError("there is no such bucket or directory") from None
        return True

    async def _put(self, path: str, data: bytes) -> None:
        try:
            await obstore.put_async(self._store, path, data, mode="create")
        except AlreadyExistsError:
            raise _Taken from None

    async def delete(self, *paths: str) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError, NotFoundError):
                await self._within(obstore.delete_async(self._store, path))

    async def delete_many(self, paths: Sequence[str]) -> None:
        """In one request, where the store can; those that are not there are as good as deleted."""
        try:
            await self._within(obstore.delete_async(self._store, list(paths)))
        except (FileNotFoundError, NotFoundError):
            await self.delete(*paths)

    async def folders(self, folder: str) -> list[str]:
        """Names of the folders in a folder."""
        try:
            found = await self._within(obstore.list_with_delimiter_async(self._store, folder))
        except (FileNotFoundError, NotFoundError):
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

    async def names(self, folder: str) -> AsyncIterator[list[tuple[str, int]]]:
        """(path, bytes) of all objects below a folder, some at a time. Raises StoreError where it
        comes back to where it began: some stores do not know how to go on.
        """
        stream = obstore.list(self._store, prefix=folder, chunk_size=LIST_CHUNK)
        first, seen = "", 0
        while True:
            try:
                chunk = await self._within(anext(stream, None))
            except (FileNotFoundError, NotFoundError):
                return
            if chunk is None:
                return
            rows = [(row["path"], row["size"]) for row in chunk]
            first = first or (rows[0][0] if rows else "")
            seen += sum(path == first for path, _ in rows)
            if seen > 1:
                raise StoreError(f"a listing of {folder} does not end: {first} came again")
            yield rows

    async def probe(self) -> None:
        """Writes, reads and deletes an object: no less tells of a missing bucket, or right. Raises
        StoreError.
        """
        path = f"{layout.PROBE}-{os.urandom(8).hex()}"
        await self.create(path, b"kvbm")
        if await self.get_part(path, 0, 4) != b"kvbm":
            raise StoreError("what was written is not what is read")
        await self.delete(path)

    async def _within(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError:
            raise StoreError(f"no answer within {self._timeout_s:g} s") from None
        except (FileNotFoundError, NotFoundError):
            raise
        except (BaseError, OSError) as error:
            raise StoreError(_tidy(error)) from None


async def _all(found: Any) -> bytes:
    """What was announced. Raises StoreError where more comes, of which no more is taken, or less:
    that is the store's fault, not the object's.
    """
    begin, end = found.range
    parts, left = [], end - begin
    async for part in found.stream():
        left -= len(part)
        if left < 0:
            break
        parts.append(part)
    if left:
        what = "more" if left < 0 else "fewer"
        raise StoreError(f"{what} bytes came than the {end - begin} that were announced")
    return b"".join(parts)


def settings(remote: Remote) -> dict[str, str]:
    """What the configuration says of the store, under object_store's names."""
    given = {
        "endpoint": remote.endpoint, "region": remote.region,
        "access_key_id": remote.access_key, "secret_access_key": remote.secret_key,
    }  # fmt: skip
    found = {name: value for name, value in given.items() if value}
    if remote.endpoint:
        found.setdefault("region", os.environ.get("AWS_REGION", "us-east-1"))
    return found


def _open(remote: Remote) -> Any:
    timeout = f"{max(1, round(remote.timeout_s * 1000))}ms"
    client: Any = {"timeout": timeout, "connect_timeout": timeout}
    if remote.endpoint.startswith("http://"):
        client["allow_http"] = True
    config: Any = settings(remote)
    if remote.access_key:
        # A session's token goes with the environment's keys; both clients would send it along.
        os.environ.pop("AWS_SESSION_TOKEN", None)
    retries: Any = {"max_retries": 1}
    try:
        if remote.url.startswith("file://"):
            return obstore.store.from_url(remote.url, mkdir=True)
        return obstore.store.from_url(
            remote.url, config=config, client_options=client, retry_config=retries
        )
    except (BaseError, OSError, ValueError) as error:
        raise StoreError(_tidy(error)) from None


def _tidy(error: Exception) -> str:
    """The first line of what a store says, which may be a page, without what is long in it; of a
    request that did not get through, the cause, which the library tells in the lines below.
    """
    line, _, more = str(error).strip().partition("\n")
    line = RETRIES.sub("", NAME.sub(r"\1..", OTHERS.sub(",...", line)))
    if line.endswith("error sending request") and (words := WORD.findall(more)):
        line += f": {''.join(words[-1])}"
    return f"{type(error).__name__}: {line}"[:TIDY_MAX]
