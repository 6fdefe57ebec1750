"""The most that any memory of b bits can know of a noise stream: an upper bound on its accuracy.

    best_accuracy(bits=256, length=512)        # no memory of 256 bits answers more of the questions right

Holds for the `max` band with `uniform` negatives: a stream x of L uniform symbols, a memory M of b bits computed from x
in any way (randomness of its own included), a candidate of n symbols that is with even odds a uniformly chosen one of
the W = L - n + 1 windows of x, or uniform over the V^n - |S| strings that are not among them.

**Derivation.** Given M = m and n, the best decision says yes on a set A of strings. Let a = |A| / V^n, and

    beta = P(a random window of x lies in A | m).

1. Accuracy given m is 1/2 + (beta - E U) / 2, where U is the share of absent strings that lie in A. At most
   W P(window in A) of A's strings occur in x, so U >= a - P(window in A) W / V^n, and with Jensen
   E U >= max(0, a - beta W / V^n).
2. Let K = KL(P(x | m) || uniform). Windows whose starts agree modulo n are disjoint, so x is a product over them under
   the uniform law. Relative entropy to a product is at least the sum over its factors; each factor, cut down to "in A
   or not", is at least d(beta_j || a), the binary relative entropy, which is convex. Over the n classes: n K >=
   W d(beta || a).
3. So accuracy given m is at most (1 + F(K)) / 2, with F(K) the maximum of beta - max(0, a - beta W / V^n) over the
   (beta, a) with d(beta || a) <= n K / W. That is a concave function maximised over a convex set, so F is concave, and
   E F(K) <= F(E K). E K is the mutual information of x and M: at most b bits.

The lengths of a candidate are averaged, each with all b bits to itself, though one memory has to serve them all; and
step 2 is attained only by sets with structure, such as all strings over half of the symbols, which cannot fit every
stream. So the bound is not tight, and a memory near it is very good. Ingredients: the chain rule and data processing
of relative entropy (Cover and Thomas, Elements of Information Theory, chapter 2); without structure step 2 is the
bound of log2(1/epsilon) bits per stored item of approximate membership (Carter, Floyd, Gill, Markowsky and Wegman,
STOC 1978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.optimize import brentq, minimize_scalar

from tasks.batch import VOCABULARY


def best_accuracy(
    bits: float, length: int, vocabulary: int = VOCABULARY, candidate_lengths: Sequence[int] = (3, 4, 5, 6)
) -> float:
    """Upper bound on the accuracy of a memory of `bits` bits on noise streams of `length` symbols.

    Args:
        bits: of the state, b.
        length: symbols of the stream, L.
        vocabulary: V.
        candidate_lengths: n, equally likely.

    Raises:
        ValueError: negative bits, or a stream shorter than a candidate.
    """
    if bits < 0 or length < max(candidate_lengths):
        raise ValueError(f"bits={bits} must not be negative, and length={length} must hold the longest candidate")
    each = [_advantage(bits * math.log(2), length - n + 1, n, vocabulary) for n in candidate_lengths]
    return 0.5 + 0.5 * sum(each) / len(each)


def _advantage(nats: float, windows: int, n: int, vocabulary: int) -> float:
    """F of the derivation: the largest P(yes | occurred) - P(yes | did not)."""
    budget, density = n * nats / windows, windows / vocabulary**n

    def loss(a: float) -> float:
        beta = _reach(a, budget)
        return max(0.0, a - beta * density) - beta

    if math.exp(-budget) <= density:  # all windows in A, and no more strings than windows
        return 1.0
    # Unimodal in a, since the best beta for an a leaves a concave function; the kink at beta = 1 is looked at apart.
    found = minimize_scalar(loss, bounds=(math.exp(-budget), 1.0), method="bounded", options={"xatol": 1e-12})
    return max(-found.fun, -loss(math.exp(-budget)))


def _reach(a: float, budget: float) -> float:
    """The largest beta with d(beta || a) <= budget."""
    if a >= 1 or math.log(1 / a) <= budget:
        return 1.0

    def excess(beta: float) -> float:
        rest = (1 - beta) * math.log((1 - beta) / (1 - a)) if beta < 1 else 0.0
        return beta * math.log(beta / a) + rest - budget

    return brentq(excess, a, 1.0, xtol=1e-12)
