"""EndpointSlices, in whatever order their changes are told."""

from endpoint_slices import endpoint, slice_of
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.discovery.slices import Changed, Removed, Slices

PODS = [f"pod-{number}" for number in range(4)]
ENDPOINTS = st.builds(
    lambda pod, terminating: (pod, terminating), st.sampled_from(PODS), st.sampled_from([None, False, True])
)
SLICE = st.tuples(st.sampled_from("abc"), st.sampled_from(["IPv4", "IPv6"]), st.lists(ENDPOINTS, max_size=4))
CHANGES = st.lists(st.one_of(SLICE, st.sampled_from("abc")), max_size=20)


def address(pod, kind):
    number = PODS.index(pod) + 1
    return f"10.0.0.{number}" if kind == "IPv4" else f"2001:db8::{number}"


def built(name, kind, endpoints):
    listed = [endpoint(address(pod, kind), pod, terminating=ends) for pod, ends in endpoints]
    return slice_of(name, *listed, kind=kind)


def hosts(slices):
    return [each.host for each in slices.listing().addresses]


@given(CHANGES)
@settings(max_examples=150, deadline=None)
def test_changes_lead_to_where_a_list_of_the_end_leads_and_each_living_pod_is_there_once(changes):
    told, there = Slices(None), {}
    for change in changes:
        if isinstance(change, str):
            there.pop(change, None)
            told.apply(Removed(change, "1"))
        else:
            there[change[0]] = change
            told.apply(Changed(built(*change)))
    listed = Slices(None)
    listed.replace([built(*each) for each in there.values()], "1")
    assert told.listing() == listed.listing()

    copies = [(pod, kind, ends) for _, kind, endpoints in there.values() for pod, ends in endpoints]
    living = {pod for pod, *_ in copies} - {pod for pod, _, ends in copies if ends}
    families = {pod: {kind for each, kind, _ in copies if each == pod} for pod in living}
    assert hosts(told) == sorted(
        (address(pod, min(families[pod])) for pod in living), key=lambda host: (":" in host, host)
    )
