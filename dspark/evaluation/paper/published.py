"""What the paper reports (DSpark, arXiv 2607.05147), to compare shapes with; its target here is Qwen3-4B."""

from __future__ import annotations

from collections.abc import Mapping

# Table 1: accepted length, bonus token included, temperature 1, gamma 7.
ACCEPTED: Mapping[str, Mapping[str, float]] = {
    "Eagle3": {
        "gsm8k": 5.14,
        "math500": 4.62,
        "aime25": 3.92,
        "mbpp": 3.69,
        "humaneval": 4.16,
        "livecodebench": 3.77,
        "mt-bench": 2.39,
        "alpaca": 2.26,
        "arena-hard-v2": 2.55,
    },
    "DFlash": {
        "gsm8k": 5.40,
        "math500": 4.85,
        "aime25": 4.15,
        "mbpp": 4.40,
        "humaneval": 4.74,
        "livecodebench": 4.18,
        "mt-bench": 3.07,
        "alpaca": 2.96,
        "arena-hard-v2": 2.83,
    },
    "DSpark": {
        "gsm8k": 6.11,
        "math500": 5.70,
        "aime25": 4.89,
        "mbpp": 5.13,
        "humaneval": 5.38,
        "livecodebench": 4.86,
        "mt-bench": 3.64,
        "alpaca": 3.54,
        "arena-hard-v2": 3.29,
    },
}
# Gains of DSpark in the mean of the tasks, over the targets 4B, 8B and 14B.
GAIN_OVER = {"Eagle3": (0.267, 0.309), "DFlash": (0.163, 0.184)}
# Fig. 2: acceptance at position 1 and at position 7, given that all drafts before were accepted.
CONDITIONAL: Mapping[tuple[str, str], tuple[float | None, float | None]] = {
    ("DFlash", "math"): (0.88, None),
    ("DFlash", "code"): (0.87, 0.78),
    ("DFlash", "chat"): (0.72, 0.63),
    ("Eagle3", "math"): (0.81, None),
    ("Eagle3", "chat"): (0.53, 0.74),
    ("DSpark", "math"): (0.93, None),
}
# Fig. 4: what drafting 4 to 16 tokens with the sequential head adds to the time of a round, and the gain over
# DFlash in math, code and chat at gamma 7 and 15.
HEAD_SHARE = (0.002, 0.013)
GAIN_AT_GAMMA = {7: (0.16, 0.15, 0.18), 15: (0.30, 0.26, 0.22)}
# Fig. 5: acceptance rate without a threshold and at the last one.
THRESHOLD_RATE = {"math": (0.769, 0.925), "code": (0.676, 0.920), "chat": (0.457, 0.957)}
# Fig. 6: least and most calibration error over the positions, before and after STS; AUROC.
ECE_BEFORE, ECE_AFTER, AUROC = (0.033, 0.082), (0.004, 0.020), (0.812, 0.907)
