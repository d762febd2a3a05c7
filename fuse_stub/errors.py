"""Converts errors below the mount into error numbers of system calls."""

import errno
import functools
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from pyfuse3 import FUSEError

from dedupd_core.errors import Damaged, NoSpace, OverQuota, StoreUnreachable
from fuse_stub.mounts.tasks import failures

log = logging.getLogger("dedupd.mount")

P = ParamSpec("P")
R = TypeVar("R")


class RequestLoad:
    """The requests of users to this process since the mount started."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        """The sum of the times of all requests: its growth per second is the average number of
        requests being served."""


load = RequestLoad()


def answers(
    operation: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Decorator: convert exceptions of an operation into error numbers; details go to the log."""

    @functools.wraps(operation)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        began = time.perf_counter()
        try:
            return await operation(*args, **kwargs)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None
        except FUSEError:
            raise
        except OverQuota:
            raise FUSEError(errno.EDQUOT) from None
        except NoSpace:
            raise FUSEError(errno.ENOSPC) from None
        except (Damaged, StoreUnreachable) as error:
            log.error("%s: %s", operation.__name__, error)
            raise FUSEError(errno.EIO) from None
        except Exception as error:
            failures.note(f"request {operation.__name__}", error)
            raise FUSEError(errno.EIO) from None
        finally:
            load.busy_s += time.perf_counter() - began

    return wrapper
