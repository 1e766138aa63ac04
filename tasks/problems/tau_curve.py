"""The curve of F1 over tau: what each threshold of "no answer" costs and gains on a split of SQuAD 2.0."""

import numpy as np

from bert_keras.io.files import atomic_file
from bert_keras.io.paths import to_path


def draw_tau_curve(taus: np.ndarray, f1: np.ndarray, *, tau: float, title: str, path: str) -> None:
    """Draws F1 in percent over tau, with the tau in use and the F1 of no answer to any question.

    taus: [T], rising; a question is answered where its best span scores more than no answer plus tau
    f1: [T], 0 to 1
    path: a .svg or .png file
    """
    from matplotlib.figure import Figure  # slow to import

    figure, best = Figure(figsize=(6, 4), layout="constrained"), int(f1.argmax())
    axes = figure.subplots()
    axes.plot(taus, 100 * f1, label=f"F1; the highest, {100 * f1[best]:.1f}, at tau {taus[best]:z.2f}")
    axes.axhline(100 * f1[-1], color="gray", linestyle=":", label=f"no answer to any: {100 * f1[-1]:.1f}")
    axes.axvline(tau, color="tab:orange", linestyle="--", label=f"tau {tau:z.2f}")
    axes.set(title=title, xlabel="tau", ylabel="F1, percent", ylim=(0, 102))
    axes.legend(fontsize="small")
    with atomic_file(to_path(path)) as temporary:
        figure.savefig(temporary, dpi=120, format=to_path(path).suffix[1:])
