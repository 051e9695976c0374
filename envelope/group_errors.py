"""Errors of the members and cursors of consumer groups alone."""

from envelope.errors import Fenced, RequestError


class MemberFenced(Fenced, err_code="member_fenced", ack_code=60_040):
    """The group has no such member any more, or never had: it owns nothing, and has to join anew.

    Its session expired, it left, or it kept what it was to give up.
    """


class InstanceFenced(Fenced, err_code="instance_fenced", ack_code=60_041):
    """Another process has joined the group with the same instance id, and has taken this member's place."""


class IllegalGeneration(Fenced, err_code="illegal_generation", ack_code=60_042):
    """The generation is older than the member's ownership of the partition, or newer than the group's."""


class PartitionNotOwned(Fenced, err_code="partition_not_owned", ack_code=60_043):
    """The member does not own the partition, so it cannot commit for it; ``detail`` names both."""


class CursorBehind(RequestError, err_code="cursor_behind", status=409, ack_code=60_044):
    """The cursor would go back, and nobody asked for that: ``detail`` has the partition and its cursor."""


class UnknownGroup(RequestError, err_code="group_not_found", status=404, ack_code=60_045):
    """There is no consumer group of that name."""


class GroupInUse(RequestError, err_code="group_in_use", status=409, ack_code=60_046):
    """The group has members: stop them, or force it, which puts them out."""
