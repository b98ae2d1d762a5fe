"""The pictures of a fine-tuning, read from matplotlib's objects."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from recipe_core.train.metrics.plotting import COLOURS
from recipe_hf_finetune.results.pictures import fill_confusion, fill_curves


def test_the_confusion_matrix_says_per_cent_and_counts() -> None:
    figure = Figure(layout="constrained")
    fill_confusion(figure, np.array([[1200, 300, 0], [0, 0, 0], [1, 0, 2]]), ["a $x$", "b", "c"])
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == [
        "80.0%\n1,200", "20.0%\n300", "0.0%\n0", "-\n0", "-\n0", "-\n0", "33.3%\n1", "0.0%\n0", "66.7%\n2",
    ]  # fmt: skip
    assert axes.get_title("left") == "Confusion matrix, validation\n1,503 samples, 80.0% right"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a $x$", "b", "c"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted label", "true label")


def test_of_many_labels_only_percentages_are_written() -> None:
    figure = Figure()
    fill_confusion(figure, 3 * np.eye(13, dtype=np.int64), [str(number) for number in range(13)])
    assert {text.get_text() for text in figure.axes[0].texts} == {"100%", "0%"}


def test_learning_curves_have_titles_units_and_one_legend() -> None:
    rows = [{"step": step, "loss": 1.0 / step} for step in (1, 2, 3)]
    rows[-1]["val_accuracy"] = 0.75
    figure = Figure(layout="constrained")
    fill_curves(figure, {"trained": rows, "random": rows}, "accuracy")
    left, right = figure.axes
    assert (left.get_title("left"), right.get_title("left")) == ("Training loss", "Accuracy on the validation split")
    assert (left.get_ylabel(), right.get_ylabel()) == ("loss", "accuracy (%)")
    assert [line.get_color() for line in left.lines] == list(COLOURS[:2])
    assert [list(line.get_ydata()) for line in right.lines] == [[75.0], [75.0]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["trained", "random"]
