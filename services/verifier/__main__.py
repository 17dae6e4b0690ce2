"""Entry of the verifier process."""

import os
import sys

from dspark.engine.threads import quiet_thread_variables
from services.runtime.process import run_service
from services.runtime.server import serve
from services.verifier.assembly import load_verifier_service
from services.verifier.servicer import SERVICE_NAME
from services.verifier.settings import VerifierSettings


async def serve_verifier(settings: VerifierSettings) -> None:
    """Serve until told to stop."""
    await serve(
        SERVICE_NAME,
        settings.listen,
        lambda: load_verifier_service(settings),
        grace_s=settings.shutdown_grace_s,
    )


if __name__ == "__main__":
    # Before torch is imported, which the engine's thread does.
    os.environ.update(quiet_thread_variables(os.environ))
    sys.exit(run_service("verifier", VerifierSettings, serve_verifier))
