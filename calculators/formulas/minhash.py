"""MinHash with banding: which pairs of documents land in a common bucket?  Broder 1997; Leskovec, Rajaraman, Ullman ch. 3.

A signature of b × r hashes is cut into b bands of r; two documents of Jaccard similarity s agree in one hash with probability
s, in a whole band with s^r, in at least one band with 1 − (1 − s^r)^b.
"""

from __future__ import annotations

import math

from calculators.core.worked import N, power


def match_probability(s: float, bands: int, rows: int) -> float:
    """1 − (1 − s^r)^b, exact for tiny s^r as well."""
    agree = power(s, rows)
    return 1.0 if agree >= 1 else -math.expm1(bands * math.log1p(-agree))


def threshold(bands: N, rows: N, one: N) -> N:
    """(1/b)^(1/r): about where the curve is steepest (``one`` = 1)."""
    return power(one / bands, one / rows)


def hash_evaluations(docs: N, tokens_per_doc: N, ngram: N, bands: N, rows: N, one: N) -> N:
    """Every shingle of every document through every hash function."""
    return docs * (tokens_per_doc - ngram + one) * bands * rows
