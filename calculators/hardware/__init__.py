"""Calculators of 第 02–05 章: one file each, the file name is the id."""
