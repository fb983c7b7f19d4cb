"""Tests of two programs, which have to be built before:

    cc -g -o tidy tidy.c && cc -g -o leaky leaky.c && python3 -m pytest --heaptrace
"""

import pathlib

HERE = pathlib.Path(__file__).parent


def test_tidy(checked):
    checked(HERE / "tidy")


def test_leaky(checked):
    checked(HERE / "leaky")
