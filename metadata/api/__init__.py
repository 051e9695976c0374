"""The request API as pure models: what is asked, what is answered, and their JSON.

Subjects are ``{prefix}.stream.create`` and so on; docs/api.md shows every request.
"""
