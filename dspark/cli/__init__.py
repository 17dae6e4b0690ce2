"""The commands of dspark. Starts services as processes and speaks HTTP; imports no service and no model."""
