"""Pictures, meters and models of more than one lesson."""
