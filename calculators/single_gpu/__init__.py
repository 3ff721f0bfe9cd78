"""Calculators of 第 06–09 章: one file each, the file name is the id."""
