"""Which cards have a scale-up link of their own: NVLink and its like, not PCIe, no torus, no Ethernet."""

from __future__ import annotations

from calculators.catalog import Accelerator

SCALE_UP = ("NVLink", "Infinity Fabric", "HCCS", "Unified Bus")


def has_scale_up_link(card: Accelerator) -> bool:
    """A ring formula may take ``link_gb_s_per_dir`` of these as the bandwidth between two neighbours."""
    return card.link_kind.startswith(SCALE_UP)
