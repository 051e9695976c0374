"""The request API as pure models: requests, responses, and their JSON.

Subjects are ``{prefix}.stream.create`` and so on; docs/api.md shows every request.
"""
