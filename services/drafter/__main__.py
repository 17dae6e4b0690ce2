"""Entry of the drafter process."""

import os
import sys

from dspark.engine.threads import quiet_thread_variables
from services.drafter.assembly import load_drafter_service
from services.drafter.servicer import SERVICE_NAME
from services.drafter.settings import DrafterSettings
from services.runtime.process import run_service
from services.runtime.server import serve


async def serve_drafter(settings: DrafterSettings) -> None:
    """Serve until told to stop."""
    await serve(
        SERVICE_NAME,
        settings.listen,
        lambda: load_drafter_service(settings),
        grace_s=settings.shutdown_grace_s,
    )


if __name__ == "__main__":
    # Before torch is imported, which the engine's thread does.
    os.environ.update(quiet_thread_variables(os.environ))
    sys.exit(run_service("drafter", DrafterSettings, serve_drafter))
