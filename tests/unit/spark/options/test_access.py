import pickle

import pytest
from nats.aio.client import RawCredentials
from pydantic import SecretStr

from envelope.errors import InvalidConfig
from envelope.spark_errors import InvalidOption
from jetstream.client.nodes.socket_access import ReadPass
from jetstream.spark.options.access import ClusterAccess, NatsIdentity
from metadata.stream_config import API_PREFIX_DEFAULT

SERVERS = "nats://user:hidden@one:4222, nats://two:4222"
CREDENTIALS = "-----BEGIN NATS USER JWT-----\nhidden\n------END NATS USER JWT------\n"


def access(**options: str) -> ClusterAccess:
    given = {name.replace("_", "."): value for name, value in options.items()}
    found, rest = ClusterAccess.from_options(given)
    assert not rest
    return found


def test_the_rest_of_the_options_is_given_back_by_names_in_lower_case() -> None:
    found, rest = ClusterAccess.from_options(
        {"SERVERS": SERVERS, "Sockets": "[::1]:7, b:8", "Stream": "orders"}
    )
    assert rest == {"stream": "orders"}
    assert found.servers == ("nats://user:hidden@one:4222", "nats://two:4222")
    assert found.sockets == ("[::1]:7", "b:8")
    assert found.api_prefix == API_PREFIX_DEFAULT


def test_what_is_not_said_is_left_to_the_client() -> None:
    found = access(servers="nats://one:4222", apiPrefix="mine")
    assert found.api_prefix == "mine"
    assert found.nats.connect_options() == {}
    assert (found.sockets, found.token, found.tls_ca, found.nats_tls_ca) == ((), None, None, None)
    assert found.short_circuit_reads


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("False", False), (" false ", False)])
def test_reading_where_the_records_lie_can_be_turned_off_for_all_executors(text: str, expected: bool) -> None:
    found = access(servers="nats://one:4222", shortCircuitReads=text)
    assert found.short_circuit_reads is expected
    assert pickle.loads(pickle.dumps(found)).short_circuit_reads is expected


def test_no_secret_is_shown_and_none_is_lost_on_the_way_to_an_executor() -> None:
    found = access(servers=SERVERS, token="hidden", nats_user="shop", nats_password="hidden")
    assert repr(found) == str(found) == "ClusterAccess(nats://one:4222, nats://two:4222)"
    assert repr(found.nats) == "NatsIdentity(shop)"
    assert "hidden" not in repr([found, found.nats, found.token])
    there = pickle.loads(pickle.dumps(found))
    assert there == found
    assert there.token is not None
    assert there.token.get_secret_value() == "hidden"
    assert there.nats.connect_options() == {"user": "shop", "password": "hidden"}


def test_each_way_to_authenticate_reaches_the_nats_client() -> None:
    assert access(servers="a", nats_token="t").nats.connect_options() == {"token": "t"}
    assert access(servers="a", nats_nkeySeed="SU").nats.connect_options() == {"nkeys_seed_str": "SU"}
    own = access(servers="a", nats_inboxPrefix="_INBOX_shop").nats.connect_options()
    assert own == {"inbox_prefix": "_INBOX_shop"}
    by_path = access(servers="a", nats_credentials="shop.creds").nats.connect_options()
    assert by_path == {"user_credentials": "shop.creds"}
    assert not isinstance(by_path["user_credentials"], RawCredentials)
    by_contents = access(servers="a", nats_credentials=CREDENTIALS).nats.connect_options()
    assert isinstance(by_contents["user_credentials"], RawCredentials)
    assert by_contents["user_credentials"].data == CREDENTIALS.strip()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "servers or sockets"),
        ({"servers": " "}, "servers is empty"),
        ({"servers": ","}, "servers: ',': at least one"),
        ({"servers": "a,a"}, "servers: a is named twice"),
        ({"servers": "nats://u:hidden@a:1,nats://u:hidden@a:1"}, "servers: nats://a:1 is named twice"),
        ({"sockets": "host"}, "sockets: 'host' is not a socket address"),
        ({"sockets": "nats://u:hidden@a:1"}, "sockets: host:port of nodes, not a URL"),
        ({"servers": "a", "nats.user": "u"}, "nats.user and nats.password belong together"),
        ({"servers": "a", "nats.password": "p"}, "nats.user and nats.password belong together"),
        (
            {"servers": "a", "nats.token": "t", "nats.nkeySeed": "s"},
            "one way to authenticate to NATS, not nats.token and nats.nkeySeed",
        ),
        ({"sockets": "a:1", "nats.token": "t"}, "nats.token is for NATS, and servers does not say"),
        ({"sockets": "a:1", "nats.tls.ca": "system"}, "nats.tls.ca is for NATS"),
        ({"sockets": "a:1", "nats.inboxPrefix": "_INBOX_shop"}, "nats.inboxPrefix is for NATS"),
        ({"servers": "a", "nats.inboxPrefix": "a.>"}, "nats.inboxPrefix: "),
        ({"servers": "a", "shortCircuitReads": "no"}, "shortCircuitReads: 'no': there are true, false"),
        ({"servers": "a", "shortCircuitReads": " "}, "shortCircuitReads is empty"),
        ({"servers": "a", "SERVERS": "b"}, "SERVERS is given twice, with different values"),
    ],
)
def test_what_cannot_be_reached_is_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        ClusterAccess.from_options(options)


def test_to_publish_nats_is_needed() -> None:
    options = {"sockets": "a:1"}
    ClusterAccess.from_options(options)
    with pytest.raises(InvalidOption, match="servers: to publish"):
        ClusterAccess.from_options(options, publishes=True)


@pytest.mark.parametrize("option", ["tls.ca", "nats.tls.ca"])
def test_a_file_without_authorities_is_named(option: str) -> None:
    found, _ = ClusterAccess.from_options({"servers": "nats://127.0.0.1:1", option: "nowhere.pem"})
    with pytest.raises(InvalidConfig, match=r"nowhere\.pem"), found.open():
        pass


def test_a_task_without_nats_has_the_drivers_pass_and_nothing_for_nats() -> None:
    given = {"servers": SERVERS, "nats.user": "u", "nats.password": "hidden", "nats.tls.ca": "system"}
    driver, _ = ClusterAccess.from_options({**given, "tls.ca": "system", "token": "t"})
    task = driver.passed(ReadPass(("a:1",), SecretStr("hidden")))
    assert "hidden" not in repr(task)
    assert (task.servers, task.nats, task.nats_tls_ca) == ((), NatsIdentity(), None)
    assert (task.tls_ca, task.token) == (driver.tls_ca, driver.token)
    assert task.read_pass == ReadPass(("a:1",), SecretStr("hidden"))
    named, _ = ClusterAccess.from_options({**given, "sockets": "b:2"})
    assert named.passed(ReadPass(("a:1",), None)).read_pass == ReadPass(("b:2",), None)
