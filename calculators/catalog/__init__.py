"""The only place where facts about models, accelerators, sources and chapters stand."""

from calculators.catalog.chapters import Chapter, Route, chapters, routes
from calculators.catalog.choices import gpu_input, model_input
from calculators.catalog.hardware import Accelerator, accelerator, accelerators
from calculators.catalog.models import MlaShape, Model, MoeShape, model, models
from calculators.catalog.references import Reference, reference, references

__all__ = [
    "Accelerator", "Chapter", "MlaShape", "Model", "MoeShape", "Reference", "Route",
    "accelerator", "accelerators", "chapters", "gpu_input", "model", "model_input", "models", "reference", "references", "routes",
]  # fmt: skip
