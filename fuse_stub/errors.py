"""Turning what goes wrong below into what a system call returns."""

import errno
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from pyfuse3 import FUSEError

from dedupd.errors import Damaged, NoSpace

log = logging.getLogger("dedupd.mount")

P = ParamSpec("P")
R = TypeVar("R")


def answers(
    operation: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Let an operation raise what it likes: the kernel gets an error number, the log the rest."""

    @functools.wraps(operation)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
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

    return wrapper
