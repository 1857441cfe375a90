"""Scripts are data that says everything, and a broker without planted bugs keeps its promises to them."""

from __future__ import annotations

from tests.simulate.drawing import draw
from tests.simulate.script import Script, smaller
from tests.simulate.simulation import simulate


def test_a_script_says_all_that_is_to_be_done() -> None:
    for seed in range(20):
        script = draw(seed)
        assert draw(seed) == script
        assert Script.from_json(script.to_json()) == script


def test_smaller_scripts_have_fewer_steps_or_actors() -> None:
    script = draw(3)
    size = (len(script.actors), script.step_count)
    candidates = list(smaller(script))
    assert len(candidates) > script.step_count
    assert all((len(each.actors), each.step_count) < size for each in candidates)


def test_clients_at_once_get_what_a_broker_promises() -> None:
    for seed in range(1, 25):
        verdict = simulate(seed)
        assert not verdict.findings, f"{verdict.script}\n" + "\n".join(map(str, verdict.findings))


def test_a_seed_gives_the_same_tape() -> None:
    first, second = simulate(11), simulate(11)
    assert first.run is not None
    assert second.run is not None
    assert list(map(str, first.run.tape.events)) == list(map(str, second.run.tape.events))
