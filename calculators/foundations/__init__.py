"""Calculators of 第 00–01 章: one file each, the file name is the id."""
