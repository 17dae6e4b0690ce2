"""The scheduler as a service: owns requests, runs their rounds, keeps their state in the store."""
