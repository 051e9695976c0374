"""Streams, cursors and groups without asyncio: each call waits for its result."""

from jetstream.client.admin.cursors import Cursors
from jetstream.client.admin.groups import Groups
from jetstream.client.admin.namespaces import Namespaces
from jetstream.client.admin.streams import Streams
from jetstream.client.blocking.facade import Facade, awaited


class BlockingStreams(Facade[Streams]):
    """The streams of a cluster; every method is that of `Streams`, awaited."""

    create = awaited(Streams.create)
    restore = awaited(Streams.restore)
    update = awaited(Streams.update)
    delete = awaited(Streams.delete)
    info = awaited(Streams.info)
    publishers = awaited(Streams.publishers)
    partitions = awaited(Streams.partitions)
    list = awaited(Streams.list)
    lookup = awaited(Streams.lookup)
    truncate = awaited(Streams.truncate)
    set_txid = awaited(Streams.set_txid)
    reset_time = awaited(Streams.reset_time)


class BlockingNamespaces(Facade[Namespaces]):
    """The limits of namespaces; every method is that of `Namespaces`, awaited."""

    limit = awaited(Namespaces.limit)
    info = awaited(Namespaces.info)
    list = awaited(Namespaces.list)


class BlockingCursors(Facade[Cursors]):
    """The cursors of all consumers; every method is that of `Cursors`, awaited."""

    get = awaited(Cursors.get)
    commit = awaited(Cursors.commit)
    delete = awaited(Cursors.delete)
    list = awaited(Cursors.list)


class BlockingGroups(Facade[Groups]):
    """The consumer groups of the cluster; every method is that of `Groups`, awaited."""

    list = awaited(Groups.list)
    info = awaited(Groups.info)
    lag = awaited(Groups.lag)
    reset = awaited(Groups.reset)
    move = awaited(Groups.move)
    delete = awaited(Groups.delete)
