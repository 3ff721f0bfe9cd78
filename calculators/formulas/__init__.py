"""Pure arithmetic shared by several calculators, one file a subject."""
