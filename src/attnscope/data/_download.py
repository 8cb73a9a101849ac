"""Files of a data set, downloaded once, checked by their hash and kept in a cache."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path


def cache() -> Path | None:
    """The folder of downloaded files; None without the library that downloads."""
    if importlib.util.find_spec("pooch") is None:
        return None
    import pooch

    return Path(pooch.os_cache("attnscope"))


def download(data_set: str, url: str, md5: str) -> Path:
    """The file in the cache; it is there whole and unaltered, or not at all."""
    file = url.rsplit("/", 1)[1]
    if importlib.util.find_spec("pooch") is None:
        raise ValueError(
            f'{data_set} is downloaded with pooch: pip install "attnscope[data]", or pass the path'
            f" of {file}."
        )
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    cache = Path(pooch.os_cache("attnscope"))
    try:
        return Path(pooch.retrieve(url, known_hash=f"md5:{md5}", fname=file, path=cache))
    except (OSError, ValueError) as error:
        what = (
            "is not the official file"
            if "hash" in str(error)
            else f"cannot be downloaded ({type(error).__name__})"
        )
        raise ValueError(
            f"{data_set} is not in the cache and {url} {what}: get {file} (md5 {md5}) by other"
            f" means and put it into {cache}, or pass its path instead of the name."
        ) from error
