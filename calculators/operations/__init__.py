"""Calculators of 第 21–24 章: one file each, the file name is the id."""
