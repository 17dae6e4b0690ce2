"""Losslessness over tables: exactly, by sampling, and that both kinds of check notice what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from dspark.decoding.types import Acceptance, SamplingParams
from dspark.evaluation.lossless.enumeration import (
    PRODUCTION,
    AcceptRule,
    largest_gap,
    output_distribution,
    target_distribution,
)
from dspark.evaluation.lossless.matrix import Case
from dspark.evaluation.lossless.mutations import (
    TOO_LENIENT,
    WRONG_RESIDUAL,
    ForgetfulTables,
    first_draft_stays,
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
from dspark.evaluation.lossless.settings import Setting, SettingTokens, all_settings
from dspark.evaluation.lossless.simulation import sample_outputs
from dspark.evaluation.lossless.statistics import ERROR_RATE, sequences_p_value
from dspark.evaluation.lossless.tables import Tables, appendix_a_tables, copying, random_tables
from dspark.evaluation.verdict import Check

# float64 sums of some thousand terms.
EXACT = 1e-12
_TOKENS = SettingTokens(biased=(0, 1), ending=(3,), stops=(2,), min_tokens=2, top_k=2)
# Stop tokens end an output; they have no say in its distribution before.
_SETTINGS = [setting for setting in all_settings(_TOKENS) if setting.name != "stop tokens"]
_PLAIN, _ALL_AT_ONCE = _SETTINGS[0], _SETTINGS[-1]
# Under each setting but the plain one, one variant of a policy in so many; other ones under the next setting.
_STRIDE = 6
_NUM_TOKENS = 3
_TABLE_SEED = 7


def enumerated_cases() -> Iterator[Case]:
    """Every policy under rejection and every setting: is the distribution exactly that of plain decoding?"""
    tables_of = {setting.name: _tables(setting) for setting in _SETTINGS}
    for policy, variants in shipped_policies(tables_of[_PLAIN.name].gamma).items():
        failed, num_cases = [], 0
        for place, setting in enumerate(_SETTINGS):
            for name in _some(list(variants), place):
                gap = enumeration_gap(tables_of[setting.name], variants[name], _NUM_TOKENS)
                num_cases += 1
                failed += [f"{name}, {setting.name}: gap {gap:.1e}"] * (gap > EXACT)
        yield Case(
            policy,
            Acceptance.REJECTION,
            "exact",
            num_cases - len(failed),
            num_cases,
            failed=tuple(failed),
        )


def table_checks(num_samples: int) -> Iterator[Check]:
    """Checks by sampling, the example of Appendix A, and what must be caught, each as it is done.

    Args:
        num_samples: outputs per sampling check.
    """
    for acceptance in (Acceptance.REJECTION, Acceptance.COUPLED):
        yield _sample_all(acceptance, num_samples)
    yield _copies_are_lossless()
    yield _coupled_is_pure(num_samples)
    yield from _appendix_a(num_samples)
    for what, rule in (("a wrong residual", WRONG_RESIDUAL), ("a too lenient acceptance", TOO_LENIENT)):
        tables = _tables(_PLAIN)
        yield _is_caught(what, enumeration_gap(tables, fixed(tables.gamma), _NUM_TOKENS, rule))
    frequency = next(setting for setting in _SETTINGS if setting.name == "frequency penalty")
    forgetful = ForgetfulTables.of(_tables(frequency))
    gap = enumeration_gap(forgetful, fixed(forgetful.gamma), _NUM_TOKENS)
    yield _is_caught("penalties that forget the drafts of the block", gap)
    for acceptance in (Acceptance.GREEDY, Acceptance.COUPLED):
        yield _wrong_acceptor(acceptance)


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


def _tables(setting: Setting) -> Tables:
    return random_tables(_TABLE_SEED, setting.sampling)


def _some(names: list[str], place: int) -> list[str]:
    """All under the first setting; at least one under each other."""
    return names if place == 0 else names[place % min(_STRIDE, len(names)) :: _STRIDE]


def _sample_all(acceptance: Acceptance, num_samples: int) -> Check:
    p_values = []
    for sampling in (SamplingParams(), SamplingParams(temperature=0.7, top_p=0.9)):
        tables = random_tables(_TABLE_SEED, sampling)
        for policy in (fixed(0), fixed(tables.gamma), early_stop(APPENDIX_A_CURVE), threshold(0.5)):
            p_values.append(sampling_p_value(tables, policy, _NUM_TOKENS, num_samples, acceptance))
    tables = _tables(_ALL_AT_ONCE)
    # Enough for these tables, and each costs more than one of the others.
    num_adjusted = num_samples // 2
    p_values.append(sampling_p_value(tables, fixed(tables.gamma), _NUM_TOKENS, num_adjusted, acceptance))
    smallest = min(p_values)
    # Several tests share the error rate.
    bound = ERROR_RATE / len(p_values)
    found = f"smallest p {smallest:.2g} of {len(p_values)}"
    name = f"tables: distribution by chi-square, {acceptance.value}"
    return Check(name, found, f">= {bound:.1g}", smallest >= bound)


def _copies_are_lossless() -> Check:
    """Drafts of prompt lookup, whose distributions are point masses, under rejection and every policy."""
    tables = copying(_tables(_PLAIN))
    variants = [one for named in shipped_policies(tables.gamma).values() for one in named.values()]
    gap = max(enumeration_gap(tables, policy, _NUM_TOKENS) for policy in variants)
    return Check("tables: distribution with copied drafts", f"gap {gap:.1e}", f"<= {EXACT:g}", gap <= EXACT)


def _coupled_is_pure(num_samples: int) -> Check:
    num_tokens, seeds = 8, range(num_samples // 16)
    num_same = num_outputs = 0
    for setting in (_PLAIN, _ALL_AT_ONCE):
        tables = _tables(setting)
        plain = sample_outputs(tables, fixed(0), num_tokens, seeds, Acceptance.COUPLED)
        drafted = sample_outputs(tables, fixed(tables.gamma), num_tokens, seeds, Acceptance.COUPLED)
        num_same += sum(one == other for one, other in zip(plain, drafted, strict=True))
        num_outputs += len(plain)
    found = f"{num_same} of {num_outputs} outputs"
    return Check(
        "tables: coupled output without and with drafts", found, "all the same", num_same == num_outputs
    )


def _wrong_acceptor(acceptance: Acceptance) -> Check:
    num_tokens, seeds = 8, range(20)
    tables = _tables(_PLAIN)
    plain = sample_outputs(tables, fixed(0), num_tokens, seeds, acceptance)
    drafted = sample_outputs(
        tables, fixed(tables.gamma), num_tokens, seeds, acceptance, accept=first_draft_stays
    )
    num_other = sum(one != other for one, other in zip(plain, drafted, strict=True))
    name = f"tables: a {acceptance.value} acceptor that keeps first drafts (must be caught)"
    return Check(name, f"{num_other} of {len(plain)} outputs differ", "some differ", num_other > 0)


def _appendix_a(num_samples: int) -> Iterator[Check]:
    tables = appendix_a_tables()
    for policy, name, is_lossless in (
        (early_stop(APPENDIX_A_CURVE), "early stop", True),
        (retrospective(APPENDIX_A_CURVE), "retrospective search, which peeks (must be caught)", False),
    ):
        shown = output_distribution(tables, policy, 1)
        gap = largest_gap(shown, target_distribution(tables, 1))
        p_value = sampling_p_value(tables, policy, 1, num_samples, Acceptance.REJECTION)
        is_same = gap <= EXACT and p_value >= ERROR_RATE
        is_different = gap > EXACT and p_value < ERROR_RATE
        found = f"({shown[0,]:.2f}, {shown[1,]:.2f}), p {p_value:.2g}"
        wanted = "(0.70, 0.30)" if is_lossless else "not (0.70, 0.30)"
        yield Check(f"appendix A: {name}", found, wanted, is_same if is_lossless else is_different)


def _is_caught(what: str, gap: float) -> Check:
    return Check(f"tables: {what} (must be caught)", f"gap {gap:.1e}", f"> {EXACT:g}", gap > EXACT)
