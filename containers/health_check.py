"""The image's health check: asks the node in this container at /healthz, where its settings say it listens.

Runs with nothing but the standard library, every ten seconds: `python -I -S health_check.py NODE_TOML`.
"""

import http.client
import os
import ssl
import sys
import tomllib

_ANYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - what the node listens on, and no address to ask at
_TIMEOUT_S = 4


def main(file: str) -> int:
    """Print the answer; return 0 if the node is ready."""
    with open(file, "rb") as settings:
        section = tomllib.load(settings).get("http", {})
    tls = section.get("tls", {})

    def setting(name: str, default: object) -> str:
        return os.environ.get(f"JETSTREAM_NODE_HTTP__{name}", str(default))

    host = setting("HOST", section.get("host", "127.0.0.1"))
    port = int(setting("PORT", section.get("port", 9293)))
    certificate, key, client_ca = (
        setting(f"TLS__{name.upper()}", tls.get(name, "")) for name in ("certificate", "key", "client_ca")
    )
    host = "127.0.0.1" if host in _ANYWHERE else host
    if certificate:
        connection = _over_tls(host, port, *((certificate, key) if client_ca else ()))
    else:
        connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    connection.request("GET", "/healthz")
    response = connection.getresponse()
    sys.stdout.write(response.read().decode())
    return int(response.status != http.client.OK)


def _over_tls(host: str, port: int, *own: str) -> http.client.HTTPConnection:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate is for the names outside; this is our own container
    if own:
        context.load_cert_chain(*own, password="")
    return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
