"""Who asks for the end a third time has seen that it does not come."""

from dispatcher.app.requests_file import RequestsFile
from dispatcher.app.run import JobRun
from dispatcher.app.service import Service
from dispatcher.app.snapshot import Phase
from dispatcher.config import load_config


class Hands:
    """Hands that do not let go."""

    def __init__(self):
        self.told = []

    def request_drain(self):
        self.told.append("drain")

    def stop(self):
        self.told.append("stop")


def test_a_service_may_be_ended_at_the_third_request():
    service = Service(load_config(None, {"servers": ["http://127.0.0.1:9"]}, {}))
    assert [service.request_stop() for _ in range(3)] == [True, True, False]


def test_a_run_may_be_ended_at_the_third_request(tmp_path):
    output = {"run": {"output": str(tmp_path / "out.jsonl")}}
    config = load_config(None, {"servers": ["http://127.0.0.1:9"], **output}, {})
    run, hands = JobRun(config, RequestsFile(config, str(tmp_path / "in.jsonl"))), Hands()
    run._hands, run.phase = hands, Phase.RUNNING
    assert [run.request_stop() for _ in range(3)] == [True, True, False]
    assert hands.told == ["drain", "stop", "stop"]
