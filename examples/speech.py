"""Finds speech in a sound with Silero's detector, which remembers: its state travels with every request."""

import wave
from pathlib import Path

import numpy as np
from ocr import Array, Infer

RATE = 16_000
WINDOW = 512  # samples that one request judges
CONTEXT = 64  # samples of the window before, sent along
STARTS = 0.5  # speech begins above this probability
ENDS = 0.35  # and ends below this one
SHORTEST_S = 0.25
PAUSE_S = 0.1  # a shorter silence does not end a segment


def find_speech(samples: Array, infer: Infer) -> list[tuple[float, float]]:
    """Return (start, end) in seconds of every stretch of speech in `samples`, 16 kHz in [-1, 1]."""
    return segments(probabilities(samples, infer), WINDOW / RATE)


def probabilities(samples: Array, infer: Infer) -> list[float]:
    """Return how likely each window holds speech."""
    padded = np.pad(samples.astype(np.float32), (CONTEXT, -len(samples) % WINDOW))
    state = np.zeros((2, 1, 128), np.float32)
    rate = np.array([RATE], np.int64)  # a scalar in the graph; Triton carries it as [1]
    found = []
    for start in range(0, len(padded) - CONTEXT, WINDOW):
        window = padded[None, start : start + CONTEXT + WINDOW]
        outputs = infer("silero_vad", {"input": window, "state": state, "sr": rate})
        state = outputs["stateN"]
        found.append(float(outputs["output"].reshape(-1)[0]))
    return found


def segments(likely: list[float], step: float) -> list[tuple[float, float]]:
    """Return the (start, end) of each stretch of speech, a window lasting `step` seconds."""
    found: list[tuple[float, float]] = []
    start = quiet = None  # when speech began; since when it has paused
    for number, probability in enumerate([*likely, *[0.0] * (int(PAUSE_S / step) + 2)]):
        now = number * step
        if probability > STARTS:
            start, quiet = now if start is None else start, None
        elif start is not None and probability < ENDS:
            quiet = now if quiet is None else quiet
            if now - quiet >= PAUSE_S:
                found.append((start, quiet))
                start = quiet = None
    return [(begin, end) for begin, end in found if end - begin >= SHORTEST_S]


def load_sound(path: Path) -> Array:
    """Return the samples of a 16 kHz 16-bit mono WAV file, in [-1, 1]."""
    with wave.open(str(path)) as sound:
        if (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) != (RATE, 1, 2):
            raise ValueError(f"{path}: the detector takes 16 kHz 16-bit mono")
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float32) / 32768
