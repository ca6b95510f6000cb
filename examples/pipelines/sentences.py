"""200 sentences of mixed length, the same ones each time: from one word to more than the model takes."""

import random

TEXT = """
server model batch request answer latency queue engine tensor graph picture sentence vector repository version
deploys serves waits measures reads returns quickly slowly never always under over between without because the a
an this every some no café naïve Zürich 東京 Ελλάδα Москва don't it's state-of-the-art GPT-4 3.14 1,024 50% C++
e-mail@example.com https://example.org/path?q=1 #tag 🙂 antidisestablishmentarianism Ångström
"""
WORDS = TEXT.split()
COUNT, SEED = 200, 20
LONGEST = 320  # words: more tokens than the model takes


def sentences() -> list[str]:
    rng = random.Random(SEED)
    found = []
    for index in range(COUNT):
        length = 1 + index % 40 if index % 20 else LONGEST
        words = [rng.choice(WORDS) for _ in range(length)]
        found.append(" ".join(words).capitalize() + rng.choice((".", "?", "!", "", " …")))
    return found
