"""How a process of dspark runs: server, health, errors on the wire, channels, threads, telemetry."""
