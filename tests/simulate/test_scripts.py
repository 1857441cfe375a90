"""Scripts are data that says everything, and may be made smaller."""

from __future__ import annotations

from tests.simulate.drawing import draw
from tests.simulate.script import Script, smaller


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
