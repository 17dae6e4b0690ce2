"""The processes of dspark: one package for each service, and `runtime` for what they share."""
