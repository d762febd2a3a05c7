"""Refinement: cold chunks get smaller payloads."""
