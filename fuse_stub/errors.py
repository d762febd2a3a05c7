"""Turning what goes wrong below into what a system call returns."""

import errno
import functools
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from pyfuse3 import FUSEError

from dedupd.errors import Damaged, NoSpace

log = logging.getLogger("dedupd.mount")

P = ParamSpec("P")
R = TypeVar("R")


class Load:
    """What users have asked of this process: one mount, and all of its life."""

    def __init__(self) -> None:
        self.requests = 0
        self.busy_s = 0.0
        """The times that all requests took, added up: in a second this grows by the number of
        requests that were being served on average."""


load = Load()


def answers(
    operation: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Let an operation raise what it likes: the kernel gets an error number, the log the rest."""

    @functools.wraps(operation)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        began = time.perf_counter()
        try:
            return await operation(*args, **kwargs)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None
        except FUSEError:
            raise
        except NoSpace:
            raise FUSEError(errno.ENOSPC) from None
        except Damaged as error:
            log.error("%s: %s", operation.__name__, error)
            raise FUSEError(errno.EIO) from None
        except Exception:
            log.exception("%s failed", operation.__name__)
            raise FUSEError(errno.EIO) from None
        finally:
            load.requests += 1
            load.busy_s += time.perf_counter() - began

    return wrapper
