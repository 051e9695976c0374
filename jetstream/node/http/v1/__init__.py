"""Everything below ``/v1`` of the HTTP port."""
