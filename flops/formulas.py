"""Closed forms read off the terms: the polynomial in D and T that the printed numbers are values of.

A dimension of a term is taken for a constant when it is the same at all widths that are shown, for a multiple of D when
it grows in proportion, at wider widths too, and is otherwise shown as its values, `[256, 512]`: the hidden width of a
SwiGLU, which is rounded up to a multiple of 256, or a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from .terms import Price, Term

PROBES = (192, 256)
"""Widths that must agree before a dimension is called proportional."""
TOKENS = (1000, 4097)
"""Lengths by which two rules of execution with one name are told apart."""

Power = tuple[int, tuple[tuple[int, ...], ...]]
"""Exponent of D, and the irregular factors."""
Form = dict[tuple, dict[Power, Fraction]]
"""Rule of execution -> power -> coefficient."""


def closed_form(price_at: Callable[[int], Price], widths: Sequence[int] = (64, 128)) -> str:
    """F over T tokens, e.g. `3 (12 D^2 T + 4 D T (T + 1) / 2)`, valid at the given widths.

    Args:
        price_at: width -> price, of the same terms in the same order.
        widths: those at which the formula must hold.
    """
    every = list(zip(*(price_at(width).terms for width in (*widths, *PROBES)), strict=True))
    layers: dict[int | None, Form] = {}
    for terms in every:
        form = layers.setdefault(terms[0].layer, {})
        _add(form, terms, widths)
    forms = list(layers.values())
    if all(form == forms[0] for form in forms):
        text = _write(forms[0])
        return f"{len(forms)} ({text})" if len(forms) > 1 else text
    total: Form = {}
    for form in forms:
        for rule, polynomial in form.items():
            for power, coefficient in polynomial.items():
                _accumulate(total, rule, power, coefficient)
    return _write(total)


def _add(form: Form, terms: Sequence[Term], widths: Sequence[int]) -> None:
    """Add one term, given at all widths and probes."""
    coefficient, exponent, irregular = Fraction(2), 0, []
    for values in zip(*((term.times, *term.shape) for term in terms), strict=True):
        shown = values[: len(widths)]
        if len(set(shown if len(shown) > 1 else values)) == 1:
            coefficient *= shown[0]
        elif len({Fraction(v, w) for v, w in zip(values, (*widths, *PROBES), strict=True)}) == 1:
            coefficient *= Fraction(shown[0], widths[0])
            exponent += 1
        else:
            irregular.append(shown)
    rule = terms[0].formula, tuple(terms[0].count(T) for T in TOKENS)
    _accumulate(form, rule, (exponent, tuple(sorted(irregular))), coefficient)


def _accumulate(form: Form, rule: tuple, power: Power, coefficient: Fraction) -> None:
    polynomial = form.setdefault(rule, {})
    polynomial[power] = polynomial.get(power, Fraction(0)) + coefficient


def _write(form: Form) -> str:
    parts = []
    for (rule, _), polynomial in form.items():
        monomials = [
            _monomial(*power, coefficient)
            for power, coefficient in sorted(polynomial.items(), key=lambda item: (-item[0][0], item[0][1]))
        ]
        text = " + ".join(monomials)
        parts.append(f"{text if len(monomials) == 1 else f'({text})'} {rule}")
    return " + ".join(parts)


def _monomial(exponent: int, irregular: tuple[tuple[int, ...], ...], coefficient: Fraction) -> str:
    number = str(coefficient) if coefficient.denominator == 1 else f"{float(coefficient):.10g}"
    width = {0: [], 1: ["D"]}.get(exponent, [f"D^{exponent}"])
    return " ".join([number, *width, *(f"[{', '.join(map(str, values))}]" for values in irregular)])
