"""Draws sign.png and speaks speech.wav, the two inputs kept beside this file.

Run it only to change them: `python examples/inputs/make.py` needs Pillow, NumPy and Debian's espeak-ng.
"""

import io
import subprocess
import wave
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).resolve().parent
LINES = (
    "Platform 9 to Rotterdam",
    "Departs 14:35 on Monday",
    "Ticket price 27.50 euro",
    "Please mind the gap",
)
UPSIDE_DOWN = 2  # this line tests the direction classifier
SPOKEN = "The model repository is ready. Every request was answered."
RATE = 16_000
SILENCE_S = (1.0, 0.8)  # before and after


def draw_sign() -> Image.Image:
    sign = Image.new("RGB", (640, 384), "white")
    font = ImageFont.load_default(size=40)  # Aileron, CC0, embedded in Pillow
    for number, line in enumerate(LINES):
        strip = Image.new("RGB", (600, 64), "white")
        ImageDraw.Draw(strip).text((20, 6), line, font=font, fill=(20, 30, 80))
        if number == UPSIDE_DOWN:
            strip = strip.rotate(180)
        sign.paste(strip, (20, 28 + number * 84))
    return sign


def speak() -> np.ndarray:
    """Return the spoken sentence, 16 kHz 16-bit mono, between two stretches of faint noise."""
    command = ["espeak-ng", "-v", "en-us", "-s", "150", "--stdout", SPOKEN]
    with wave.open(io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout)) as spoken:
        rate = spoken.getframerate()
        voice = np.frombuffer(spoken.readframes(-1), dtype="<i2").astype(np.float64)
    moments = np.arange(int(len(voice) * RATE / rate)) * rate / RATE
    voice = np.interp(moments, np.arange(len(voice)), voice) * 0.6
    before, after = (np.zeros(int(seconds * RATE)) for seconds in SILENCE_S)
    whole = np.concatenate([before, voice, after])
    return (whole + np.random.default_rng(7).normal(0, 12, len(whole))).round().astype("<i2")


def main() -> None:
    draw_sign().save(HERE / "sign.png", optimize=True)
    sound = speak()
    with wave.open(str(HERE / "speech.wav"), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(sound.tobytes())
    end = len(sound) / RATE - SILENCE_S[1]
    print(f"spoken from {SILENCE_S[0]:.2f} s to {end:.2f} s; put that and the lines into answers.py")


if __name__ == "__main__":
    main()
