"""A server that was found by a name: its address is connected to, and the name is what it hears."""

import dataclasses

import pytest

from dispatcher.model import Request
from dispatcher.vllm.prober import HttpProber
from dispatcher.vllm.transport import AiohttpTransport

ROW = Request(0, "a", "/v1/completions", "m", b'{"model":"m"}')


async def send(server):
    async with AiohttpTransport() as transport:
        await transport.send(server, ROW, "id", 2.0)


async def probe(server):
    async with HttpProber() as prober:
        await prober.probe(server)


async def hosts_heard(wire, speak, **fields):
    """Every Host header of one exchange, and the server's own address."""
    heads = []

    async def handler(reader, writer):
        heads.append((await wire.read_request(reader))[0])
        writer.write(wire.response())

    server = await wire.serve(handler)
    await speak(dataclasses.replace(server, **fields))
    lines = [line.partition(b":") for line in heads[0].split(b"\r\n")]
    return [value.strip().decode() for name, _, value in lines if name.lower() == b"host"], server


@pytest.mark.parametrize("speak", [send, probe])
async def test_requests_and_probes_carry_the_name_that_the_server_was_found_by(wire, speak):
    hosts, server = await hosts_heard(wire, speak, host_name="vllm.test")
    assert hosts == [f"vllm.test:{server.base_url.rpartition(':')[2]}"]


@pytest.mark.parametrize("speak", [send, probe])
async def test_without_a_name_they_carry_the_address(wire, speak):
    hosts, server = await hosts_heard(wire, speak)
    assert hosts == [server.base_url.removeprefix("http://")]


@pytest.mark.parametrize("header", ["Host", "host"])
@pytest.mark.parametrize("speak", [send, probe])
async def test_a_host_header_of_the_servers_own_wins(wire, speak, header):
    hosts, _ = await hosts_heard(wire, speak, host_name="vllm.test", headers=((header, "own.test"),))
    assert hosts == ["own.test"]
