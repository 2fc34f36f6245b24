"""An entry and an exit of HTTP/3 CONNECT by aioquic, for the tests of gateway/tests/http3.rs.

    proxy.py entry EXIT LISTEN TARGET --ca FILE --name NAME [--certificate FILE --key FILE]
    proxy.py exit LISTEN --certificate FILE --key FILE [--deny]

For each connection to LISTEN, the entry sends EXIT a CONNECT for TARGET. It prints each answer with a status other than
2xx. The exit dials the requested targets. With --deny, it answers 403. Both print "ready" when they accept connections.
EXIT, LISTEN and TARGET have the form IP:PORT.
"""

import argparse
import asyncio
import socket
import struct
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect, serve
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, StopSendingReceived, StreamReset

CHUNK_BYTES = 64 << 10
WINDOW_BYTES = 1 << 20
# Maximum number of bytes of one stream that wait in the library for the peer's credit.
UNSENT_MAX = 1 << 20


class Proxy(QuicConnectionProtocol):
    """One QUIC connection, at the entry or at the exit."""

    def __init__(self, *args, deny=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.deny = deny
        self.http = None
        self.tunnels = {}

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        elif isinstance(event, (StreamReset, StopSendingReceived)):
            tunnel = self.tunnels.get(event.stream_id)
            if tunnel:
                tunnel.cut()
        if self.http is None:
            return
        for heard in self.http.handle_event(event):
            if isinstance(heard, HeadersReceived):
                self.headers(heard)
            elif isinstance(heard, DataReceived):
                tunnel = self.tunnels.get(heard.stream_id)
                if tunnel:
                    tunnel.received(heard.data, heard.stream_ended)

    def headers(self, heard):
        headers = dict(heard.headers)
        tunnel = self.tunnels.get(heard.stream_id)
        if tunnel:
            tunnel.answered(headers)
        else:
            asyncio.ensure_future(self.serve_one(heard.stream_id, headers))

    async def serve_one(self, stream, headers):
        """Answers a request from the peer."""
        shape = sorted(name for name in headers if name.startswith(b":"))
        if headers[b":method"] != b"CONNECT" or shape != [b":authority", b":method"]:
            return self.answer(stream, b"400", True)
        if self.deny:
            return self.answer(stream, b"403", True)
        tunnel = Tunnel(self, stream)
        # Data before the answer does not belong to a CONNECT.
        self.tunnels[stream] = tunnel
        host, _, port = headers[b":authority"].decode().rpartition(":")
        try:
            tunnel.join(*await asyncio.open_connection(host, int(port)))
        except OSError:
            del self.tunnels[stream]
            return self.answer(stream, b"502", True)
        self.answer(stream, b"200", False)
        await tunnel.run()

    def answer(self, stream, status, ends):
        self.http.send_headers(stream, [(b":status", status)], end_stream=ends)
        self.transmit()

    async def open_one(self, target, reader, writer):
        """Requests a tunnel from the peer for an accepted connection."""
        stream = self._quic.get_next_available_stream_id()
        tunnel = self.tunnels[stream] = Tunnel(self, stream)
        tunnel.join(reader, writer)
        request = [(b":method", b"CONNECT"), (b":authority", target.encode())]
        self.http.send_headers(stream, request)
        self.transmit()
        if await tunnel.is_open:
            await tunnel.run()
        else:
            tunnel.reset_socket()

    def unsent(self, stream):
        """Number of bytes of a stream that the library has not sent yet. The library has no public method for it."""
        known = self._quic._streams.get(stream)
        return len(known.sender._buffer) if known else 0


class Tunnel:
    """A stream and its TCP connection."""

    def __init__(self, proxy, stream):
        self.proxy, self.stream = proxy, stream
        self.is_open = asyncio.get_running_loop().create_future()
        self.reader = self.writer = None
        self.was_cut = False

    def join(self, reader, writer):
        self.reader, self.writer = reader, writer

    def answered(self, headers):
        status = headers[b":status"]
        if not status.startswith(b"2"):
            words = headers.get(b"proxy-status", b"").decode()
            print("refused", status.decode(), words, flush=True)
        if not self.is_open.done():
            self.is_open.set_result(status.startswith(b"2"))

    def received(self, data, ended):
        if self.writer is None or self.was_cut:
            return
        if data:
            self.writer.write(data)
        if ended and not self.writer.is_closing():
            self.writer.write_eof()

    async def run(self):
        """Connection -> stream."""
        http, quic = self.proxy.http, self.proxy._quic
        try:
            while data := await self.reader.read(CHUNK_BYTES):
                while self.proxy.unsent(self.stream) > UNSENT_MAX and not self.was_cut:
                    await asyncio.sleep(0.001)
                if self.was_cut:
                    break
                http.send_data(self.stream, data, end_stream=False)
                self.proxy.transmit()
            if not self.was_cut:
                http.send_data(self.stream, b"", end_stream=True)
        except OSError:
            if not self.was_cut:
                # Wait until earlier data has been sent, because the peer's library discards unread data on a reset.
                while self.proxy.unsent(self.stream):
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.1)
                quic.reset_stream(self.stream, ErrorCode.H3_CONNECT_ERROR)
                quic.stop_stream(self.stream, ErrorCode.H3_CONNECT_ERROR)
        self.proxy.transmit()

    def cut(self):
        """The peer cut the stream."""
        self.was_cut = True
        if not self.is_open.done():
            self.is_open.set_result(False)
        elif self.writer:
            self.reset_socket()

    def reset_socket(self):
        self.was_cut = True
        tcp = self.writer.get_extra_info("socket")
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def address(text):
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def configuration(args, is_client):
    made = QuicConfiguration(is_client=is_client, alpn_protocols=H3_ALPN)
    made.max_data = made.max_stream_data = WINDOW_BYTES
    if args.certificate:
        made.load_cert_chain(args.certificate, args.key)
    return made


async def entry(args):
    made = configuration(args, True)
    made.load_verify_locations(args.ca)
    made.server_name = args.name
    async with connect(*address(args.exit), configuration=made, create_protocol=Proxy) as proxy:
        await proxy.wait_connected()

        async def accepted(reader, writer):
            await proxy.open_one(args.target, reader, writer)

        server = await asyncio.start_server(accepted, *address(args.listen))
        print("ready", flush=True)
        async with server:
            await proxy.wait_closed()


async def run_exit(args):
    def proxy(*rest, **named):
        return Proxy(*rest, deny=args.deny, **named)

    made = configuration(args, False)
    await serve(*address(args.listen), configuration=made, create_protocol=proxy)
    print("ready", flush=True)
    await asyncio.Event().wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    dials = roles.add_parser("entry")
    for name in ("exit", "listen", "target"):
        dials.add_argument(name)
    dials.add_argument("--ca", required=True)
    dials.add_argument("--name", required=True)
    accepts = roles.add_parser("exit")
    accepts.add_argument("listen")
    accepts.add_argument("--deny", action="store_true")
    for role in (dials, accepts):
        role.add_argument("--certificate")
        role.add_argument("--key")
    args = parser.parse_args()
    asyncio.run(entry(args) if args.role == "entry" else run_exit(args))


if __name__ == "__main__":
    sys.exit(main())
