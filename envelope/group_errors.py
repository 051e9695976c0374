"""Errors of the members and cursors of consumer groups alone."""

from envelope.errors import Fenced, RequestError


class MemberFenced(Fenced):
    """The group has no such member any more, or never had: it owns nothing, and has to join anew.

    Its session expired, it left, or it kept what it was to give up.
    """

    err_code = "member_fenced"
    ack_code = 60_040


class InstanceFenced(Fenced):
    """Another process has joined the group with the same instance id, and has taken this member's place."""

    err_code = "instance_fenced"
    ack_code = 60_041


class IllegalGeneration(Fenced):
    """The generation is older than the member's ownership of the partition, or newer than the group's."""

    err_code = "illegal_generation"
    ack_code = 60_042


class PartitionNotOwned(Fenced):
    """The member does not own the partition, so it cannot commit for it; ``detail`` names both."""

    err_code = "partition_not_owned"
    ack_code = 60_043


class CursorBehind(RequestError):
    """The cursor would go back, and nobody asked for that: ``detail`` has the partition and its cursor."""

    err_code = "cursor_behind"
    status = 409
    ack_code = 60_044


class UnknownGroup(RequestError):
    """There is no consumer group of that name."""

    err_code = "group_not_found"
    status = 404
    ack_code = 60_045


class GroupInUse(RequestError):
    """The group has members: stop them, or force it, which puts them out."""

    err_code = "group_in_use"
    status = 409
    ack_code = 60_046
