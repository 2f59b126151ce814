"""Pictures that more than one lesson shows."""
