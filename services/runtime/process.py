"""From `__main__` to an exit code: settings, logs, the event loop, and one sentence for a failed start."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dspark.errors import ConfigurationError, DsparkError, ModelMismatchError
from services.runtime.settings import ServiceSettings, read_settings
from services.runtime.telemetry import configure_logging, serve_metrics

_Settings = TypeVar("_Settings", bound=ServiceSettings)

_log = logging.getLogger(__name__)


def run_service(
    name: str, kind: type[_Settings], main: Callable[[_Settings], Coroutine[Any, Any, None]]
) -> int:
    """Run a service to its end.

    Returns:
        0 after a graceful stop, EX_CONFIG where starting again cannot help, 1 for any other error. The last
        line on stderr says why.
    """
    configure_logging("info", name)
    try:
        settings = read_settings(kind)
        configure_logging(settings.log_level, name)
        _log.info("settings %s", settings.describe())
        serve_metrics(settings.metrics_port, settings.metrics_host)
        asyncio.run(main(settings))
    except (ConfigurationError, ModelMismatchError) as error:
        return _fail(str(error), os.EX_CONFIG)
    except DsparkError as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return 130
    return 0


def _fail(sentence: str, code: int) -> int:
    sys.stderr.write(" ".join(sentence.split()) + "\n")
    sys.stderr.flush()
    return code
