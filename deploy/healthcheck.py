"""Exit code 0 when a part of the system is ready. For containers, which have no other client at hand.

healthcheck.py 127.0.0.1:50051 dspark.api.v1.DrafterService      gRPC health of one service
healthcheck.py http://127.0.0.1:8000/health                      HTTP status 200
"""

from __future__ import annotations

import sys
import urllib.request

_TIMEOUT_S = 5.0


def is_ready(address: str, service: str = "") -> bool:
    """Ask once."""
    if address.startswith("http"):
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as response:
            return bool(response.status == 200)
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT_S)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    try:
        sys.exit(0 if is_ready(*sys.argv[1:3]) else 1)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the part is not ready
        sys.exit(f"not ready: {error}")
