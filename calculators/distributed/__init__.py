"""Calculators of 第 10–14 章: one file each, the file name is the id."""
