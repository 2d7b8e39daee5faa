"""Measure: head times, workloads, acceptance, and pictures of what was measured."""
