"""A real DNS server on loopback, over UDP and TCP, with a zone and moods that tests change."""

import asyncio
import random
import socket

import dns.asyncresolver
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.resolver
import dns.rrset

TTL = 5
PATIENCE_S = 0.2
"""How long `getaddrinfo` waits; glibc waits for 5 s, twice."""


class NameServer:
    """`async with NameServer() as names:`, and `names.set("vllm.test", "A", "127.0.0.1")` fills its zone."""

    def __init__(self, host="127.0.0.1", port=0):
        self._address = (host, port)
        self.rcode = None
        """What every question is answered with, instead of the zone's records; such as `SERVFAIL`."""
        self.silent = False
        self.has_tcp = True
        self.udp_records_max = None
        """Over UDP, so many records at most, by chance, and no word about it: Consul's default is three."""
        self.questions = []
        self._zone = {}

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self._tcp = await asyncio.start_server(self._converse, *self._address)
        self.host, self.port = self._tcp.sockets[0].getsockname()[:2]
        self._udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), (self.host, self.port))
        return self

    async def __aexit__(self, *_):
        self._udp.close()
        self._tcp.close()

    def set(self, name, kind, *records):
        """These are the name's records of this kind from now on. None of any kind: there is no such name."""
        self._zone[_key(name), kind] = records

    def answer(self, wire, *, tcp):
        """The answer to a question, as bytes; None is silence."""
        question = dns.message.from_wire(wire)
        name, kind = question.question[0].name, dns.rdatatype.to_text(question.question[0].rdtype)
        self.questions.append((str(name), kind, "TCP" if tcp else "UDP"))
        if self.silent:
            return None
        answer = dns.message.make_response(question)
        answer.flags |= dns.flags.RA
        answer.set_rcode(self._rcode(name))
        records = self._zone.get((_key(name), kind), ()) if self.rcode is None else ()
        if not tcp and self.udp_records_max is not None:
            records = random.sample(records, min(self.udp_records_max, len(records)))
        if records:
            answer.answer.append(dns.rrset.from_text(name, TTL, "IN", kind, *records))
        return answer.to_wire(max_size=65_535 if tcp else 512)

    def _rcode(self, name):
        if self.rcode is not None:
            return dns.rcode.from_text(self.rcode)
        known = any(records and zone == _key(name) for (zone, _), records in self._zone.items())
        return dns.rcode.NOERROR if known else dns.rcode.NXDOMAIN

    async def _converse(self, reader, writer):
        try:
            while self.has_tcp and (length := await reader.readexactly(2)):
                answer = self.answer(await reader.readexactly(int.from_bytes(length)), tcp=True)
                if answer is None:
                    await reader.read()
                    return
                writer.write(len(answer).to_bytes(2) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def resolver(self):
        """A resolver that asks this server, as `/etc/resolv.conf` would make one."""
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = [self.host], self.port
        return resolver

    async def getaddrinfo(self, host, port, **_hints):
        """`loop.getaddrinfo`, but of this server: its results and its errors are glibc's."""
        found, missing = [], 0
        for family, kind in ((socket.AF_INET, "A"), (socket.AF_INET6, "AAAA")):
            try:
                answer = await self.resolver().resolve(host, kind, lifetime=PATIENCE_S)
            except dns.resolver.NXDOMAIN:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
            except dns.resolver.NoAnswer:
                missing += 1
            except dns.exception.DNSException:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution") from None
            else:
                found += [(family, socket.SOCK_STREAM, 6, "", (record.address, port)) for record in answer]
        if missing == 2:
            raise socket.gaierror(socket.EAI_NODATA, "No address associated with hostname")
        return found


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server):
        self._server = server

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, data, address):
        answer = self._server.answer(data, tcp=False)
        if answer is not None:
            self._transport.sendto(answer, address)


def _key(name):
    return str(name).rstrip(".").lower()
