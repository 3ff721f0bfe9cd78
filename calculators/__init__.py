"""Live calculators of the AI-infrastructure tutorial: pure Python, the same code at build time and in the browser."""

__version__ = "1.0.0"
