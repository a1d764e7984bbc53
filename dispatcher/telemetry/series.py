"""Every series that the dispatcher exports: its name, its labels, what it says.

Names follow https://prometheus.io/docs/practices/naming/.
"""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_ATTEMPT_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_PROBE_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)
_SHORT_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ServerFamilies:
    """The series that each server has."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, namespace="dispatcher", registry=registry)
        counter = partial(Counter, namespace="dispatcher", registry=registry)
        histogram = partial(Histogram, namespace="dispatcher", registry=registry, labelnames=["server"])
        self.state = gauge(
            "server_state",
            "1 for the state that a server is in, 0 for its earlier ones.",
            ["server", "state"],
        )
        self.since = gauge(
            "server_state_timestamp_seconds", "When a server entered the state that it is in.", ["server"]
        )
        self.in_flight = gauge("server_in_flight", "Requests in flight on a server.", ["server"])
        self.limit = gauge("server_limit", "Permits of a server.", ["server"])
        self.attempts = counter("attempts_total", "Ended attempts.", ["server", "verdict"])
        self.attempt_seconds = histogram(
            "attempt_seconds", "From the sending of a request to its end.", buckets=_ATTEMPT_BUCKETS_S
        )
        self.evictions = counter("evictions_total", "Evictions of a server.", ["server", "reason"])
        self.readmissions = counter("readmissions_total", "Readmissions of a server.", ["server"])
        self.probe_seconds = histogram("probe_seconds", "Time that a probe took.", buckets=_PROBE_BUCKETS_S)

    def forget(self, server: str) -> None:
        """Remove every series of a server."""
        labels = {"server": server}
        for family in (self.state, self.since, self.in_flight, self.limit):
            family.remove_by_labels(labels)
        for counts in (self.attempts, self.evictions, self.readmissions):
            counts.remove_by_labels(labels)
        for times in (self.attempt_seconds, self.probe_seconds):
            times.remove_by_labels(labels)


class FleetFamilies:
    """The series of this dispatcher as a whole."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, namespace="dispatcher", registry=registry)
        counter = partial(Counter, namespace="dispatcher", registry=registry)
        histogram = partial(Histogram, namespace="dispatcher", registry=registry, buckets=_SHORT_BUCKETS_S)
        self.tokens = counter("tokens_total", "Tokens that servers counted.", ["model", "kind"])
        self.outcomes = counter("outcomes_total", "Requests with a final result.", ["result"])
        self.poison = counter("poison_total", "Requests that were found to end servers.")
        self.hedges = counter("hedges_total", "Copies of old requests, by how they ended.", ["result"])
        self.asked_again = counter(
            "asked_again_total", "Requests asked again for a better answer, or for more.", ["reason"]
        )
        self.queue_requests = gauge("queue_requests", "Requests in the queue.", ["state"])
        self.queue_shards = gauge("queue_shards", "Shards in the queue.", ["state"])
        self.jobs = gauge("jobs", "Jobs of the service.", ["status"])
        self.jobs_starving = gauge(
            "jobs_starving", "Jobs that may be sent and have had nothing in flight for a minute."
        )
        self.nodes = gauge("nodes", "Nodes that share the queue, by what this one knows of them.", ["state"])
        self.jobs_late = gauge(
            "jobs_late", "Jobs that will not be done within their window at their present rate."
        )
        self.obstacle = gauge(
            "obstacle", "1 while nothing can be leased, or nothing recorded, otherwise 0.", ["part"]
        )
        self.leases_lost = counter("leases_lost_total", "Leases that another node took over.")
        self.journal_sync_seconds = histogram("journal_sync_seconds", "Time that a sync of journals took.")
        self.event_loop_lag_seconds = histogram("event_loop_lag_seconds", "How late the loop's timers ring.")
        self.source_faulty = gauge(
            "source_faulty",
            "1 while what lists servers cannot be read, or not wholly, otherwise 0.",
            ["source"],
        )
        self.waiting_for_servers = gauge(
            "waiting_for_servers", "1 while there is work and no usable server, otherwise 0."
        )
        self.build_info = gauge(
            "build_info", "Always 1; the labels say what runs.", ["version", "python", "role"]
        )
