"""Tests of slotwise; the tree mirrors the packages."""
