"""The core is a plugin like any other; and the suite cannot be thinned out without a sign."""

import pytest

from recipe_core.testing import PluginConformance


class TestConformance(PluginConformance):
    plugin = "recipe_core.plugin"


def test_the_suite_is_whole() -> None:
    assert {name for name in vars(PluginConformance) if name.startswith("test_")} == {
        "test_contributes_something",
        "test_imports_no_torch",
        "test_names_and_summaries",
        "test_settings_are_frozen_and_have_usable_defaults",
        "test_every_name_of_code_resolves",
        "test_engines_are_asked_without_torch",
        "test_every_variant_resolves",
        "test_a_model_is_divided_as_it_says",
        "test_tiny_trains",
        "test_stop_and_resume_gives_the_same_losses",
        "test_same_samples_on_one_and_two_ranks",
        "test_formats_round_trip",
    }


def test_a_plugin_cannot_take_a_test_away() -> None:
    with pytest.raises(TypeError, match="test_tiny_trains takes a conformance test away"):

        class Thinner(PluginConformance):
            test_tiny_trains = None  # type: ignore[assignment]
