"""Losslessness over tables: exactly, by sampling, and that both kinds of check notice what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import Acceptance, SamplingParams
from dspark.evaluation.lossless.enumeration import (
    PRODUCTION,
    TOO_LENIENT,
    WRONG_RESIDUAL,
    AcceptRule,
    largest_gap,
    output_distribution,
    target_distribution,
)
from dspark.evaluation.lossless.policies import (
    APPENDIX_A_CURVE,
    Policy,
    early_stop,
    fixed,
    retrospective,
    shipped_policies,
    threshold,
)
from dspark.evaluation.lossless.simulation import sample_outputs
from dspark.evaluation.lossless.statistics import ERROR_RATE, sequences_p_value
from dspark.evaluation.lossless.tables import Tables, appendix_a_tables, random_tables
from dspark.evaluation.verdict import Check

# float64 sums of some thousand terms.
EXACT = 1e-12
# Everything that changes single logits at once.
_ADJUSTED = SamplingParams(
    temperature=0.8,
    top_k=3,
    min_p=0.05,
    adjustments=LogitAdjustments(1.3, -0.4, 0.6, ((1, 0.8),), min_tokens=2, ending_token_ids=(3,)),
)
# That, and each alone. Policies see nothing of them, so two policies will do.
_ADJUSTED_EACH = (
    _ADJUSTED,
    SamplingParams(adjustments=LogitAdjustments(repetition_penalty=1.6)),
    SamplingParams(adjustments=LogitAdjustments(presence_penalty=0.9)),
    SamplingParams(adjustments=LogitAdjustments(frequency_penalty=0.7)),
    SamplingParams(adjustments=LogitAdjustments(logit_bias=((0, 1.5), (2, -100.0)))),
    SamplingParams(adjustments=LogitAdjustments(min_tokens=2, ending_token_ids=(1, 3))),
)
_SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.3, top_k=2),
    SamplingParams(min_p=0.2),
)
_NUM_TOKENS = 3
_TABLE_SEED = 7


def table_checks(num_samples: int) -> Iterator[Check]:
    """All checks over tables, each as it is done.

    Args:
        num_samples: outputs per sampling check.
    """
    yield _enumerate_all()
    for acceptance in (Acceptance.REJECTION, Acceptance.COUPLED):
        yield _sample_all(acceptance, num_samples)
    yield _coupled_is_pure(num_samples)
    yield from _appendix_a(num_samples)
    yield _is_caught("a wrong residual", WRONG_RESIDUAL)
    yield _is_caught("a too lenient acceptance", TOO_LENIENT)


def enumeration_gap(tables: Tables, policy: Policy, num_tokens: int, rule: AcceptRule = PRODUCTION) -> float:
    """Largest difference between the output's exact distribution and the target's."""
    found = output_distribution(tables, policy, num_tokens, rule)
    return largest_gap(found, target_distribution(tables, num_tokens))


def sampling_p_value(
    tables: Tables, policy: Policy, num_tokens: int, num_samples: int, acceptance: Acceptance
) -> float:
    """Chance of sampled outputs as far from the target's distribution as these, were they drawn from it."""
    outputs = sample_outputs(tables, policy, num_tokens, range(num_samples), acceptance)
    return sequences_p_value(outputs, target_distribution(tables, num_tokens))


def _enumerate_all() -> Check:
    gaps = []
    for sampling in _SAMPLINGS:
        tables = random_tables(_TABLE_SEED, sampling)
        gaps += [
            enumeration_gap(tables, policy, _NUM_TOKENS) for policy in shipped_policies(tables.gamma).values()
        ]
    for sampling in _ADJUSTED_EACH:
        tables = random_tables(_TABLE_SEED, sampling)
        for policy in (fixed(tables.gamma), early_stop(APPENDIX_A_CURVE)):
            gaps.append(enumeration_gap(tables, policy, _NUM_TOKENS))
    found = f"largest gap {max(gaps):.1e} in {len(gaps)} cases"
    return Check("tables: distribution by enumeration", found, f"<= {EXACT:g}", max(gaps) <= EXACT)


def _sample_all(acceptance: Acceptance, num_samples: int) -> Check:
    p_values = []
    for sampling in _SAMPLINGS[:2]:
        tables = random_tables(_TABLE_SEED, sampling)
        for policy in (fixed(0), fixed(tables.gamma), early_stop(APPENDIX_A_CURVE), threshold(0.5)):
            p_values.append(sampling_p_value(tables, policy, _NUM_TOKENS, num_samples, acceptance))
    tables = random_tables(_TABLE_SEED, _ADJUSTED)
    # Enough for these tables, and each costs more than one of the others.
    num_adjusted = num_samples // 2
    p_values.append(sampling_p_value(tables, fixed(tables.gamma), _NUM_TOKENS, num_adjusted, acceptance))
    smallest = min(p_values)
    # Several tests share the error rate.
    bound = ERROR_RATE / len(p_values)
    found = f"smallest p {smallest:.2g} of {len(p_values)}"
    name = f"tables: distribution by chi-square, {acceptance.value}"
    return Check(name, found, f">= {bound:.1g}", smallest >= bound)


def _coupled_is_pure(num_samples: int) -> Check:
    num_tokens, seeds = 8, range(num_samples // 16)
    num_same = num_outputs = 0
    for sampling in (SamplingParams(), _ADJUSTED):
        tables = random_tables(_TABLE_SEED, sampling)
        plain = sample_outputs(tables, fixed(0), num_tokens, seeds, Acceptance.COUPLED)
        drafted = sample_outputs(tables, fixed(tables.gamma), num_tokens, seeds, Acceptance.COUPLED)
        num_same += sum(one == other for one, other in zip(plain, drafted, strict=True))
        num_outputs += len(plain)
    found = f"{num_same} of {num_outputs} outputs"
    return Check(
        "tables: coupled output without and with drafts", found, "all the same", num_same == num_outputs
    )


def _appendix_a(num_samples: int) -> Iterator[Check]:
    tables = appendix_a_tables()
    for policy, name, is_lossless in (
        (early_stop(APPENDIX_A_CURVE), "early stop", True),
        (retrospective(APPENDIX_A_CURVE), "retrospective search (must be caught)", False),
    ):
        shown = output_distribution(tables, policy, 1)
        gap = largest_gap(shown, target_distribution(tables, 1))
        p_value = sampling_p_value(tables, policy, 1, num_samples, Acceptance.REJECTION)
        is_same = gap <= EXACT and p_value >= ERROR_RATE
        is_different = gap > EXACT and p_value < ERROR_RATE
        found = f"({shown[0,]:.2f}, {shown[1,]:.2f}), p {p_value:.2g}"
        wanted = "(0.70, 0.30)" if is_lossless else "not (0.70, 0.30)"
        yield Check(f"appendix A: {name}", found, wanted, is_same if is_lossless else is_different)


def _is_caught(what: str, rule: AcceptRule) -> Check:
    tables = random_tables(_TABLE_SEED, SamplingParams())
    gap = enumeration_gap(tables, fixed(tables.gamma), _NUM_TOKENS, rule)
    return Check(f"tables: {what} (must be caught)", f"gap {gap:.1e}", f"> {EXACT:g}", gap > EXACT)
