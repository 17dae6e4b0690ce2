"""Entry of the scheduler process."""

import sys

from services.runtime.process import run_service
from services.runtime.server import serve
from services.scheduler.assembly import load_scheduler_service
from services.scheduler.servicer import SERVICE_NAME
from services.scheduler.settings import SchedulerSettings


async def serve_scheduler(settings: SchedulerSettings) -> None:
    """Serve until told to stop."""
    await serve(
        SERVICE_NAME,
        settings.listen,
        lambda: load_scheduler_service(settings),
        grace_s=settings.shutdown_grace_s,
    )


if __name__ == "__main__":
    sys.exit(run_service("scheduler", SchedulerSettings, serve_scheduler))
