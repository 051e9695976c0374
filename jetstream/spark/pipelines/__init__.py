"""Jobs on Spark that are configured, not coded."""
