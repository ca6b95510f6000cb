"""Finds the batching settings that hold a P99: predicts Triton's batcher first, then confirms on the live server."""
