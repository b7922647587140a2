"""Tests; a package, so that test modules of one name in two directories do not clash."""
