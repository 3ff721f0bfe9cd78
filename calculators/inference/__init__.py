"""Calculators of 第 15–20 章: one file each, the file name is the id."""
