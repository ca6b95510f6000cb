"""Where text stands in a picture, and its lines cut out: what PP-OCR wants before and after its models.

Lines may lean, or stand upside down, but not upright. It takes NumPy alone: no OpenCV.
"""

from typing import Any

import numpy as np
from ocr import connected_boxes

Array = np.ndarray[Any, Any]

STRIDE = 32  # the detector halves its input five times
SHORT_SIDE = 736  # at least, of what the detector sees: small letters need it
INK = 0.3  # a pixel belongs to text
LINE = 0.5  # mean over a box: it is a line of text
UNCLIP = 1.6  # the detector marks shrunken lines; this undoes it
SMALLEST = 3  # pixels
HEIGHT = 48  # of a line, for the classifier and the recogniser


def detector_input(picture: Array, short_side: int = SHORT_SIDE) -> Array:
    """Return an RGB picture as the detector wants it: [3, H, W], both sides multiples of 32."""
    high, wide = picture.shape[:2]
    grow = max(1.0, short_side / min(high, wide))
    size = [max(STRIDE, round(int(side * grow) / STRIDE) * STRIDE) for side in (high, wide)]
    return scaled(resized(picture, size[0], size[1]))


def find_lines(ink: Array, high: int, wide: int) -> list[Array]:
    """Return the corners of each line of text, from top to bottom, in pixels of the picture of this size.

    Corners are (x, y), clockwise from the upper left; `ink` is the detector's answer.
    """
    scale = np.array([wide / ink.shape[1], high / ink.shape[0]])
    mask = thickened(ink > INK)
    found = []
    for left, top, right, bottom in connected_boxes(mask):
        rows, columns = np.nonzero(mask[top:bottom, left:right])
        corner, along, down = smallest_rectangle(np.stack([columns + left, rows + top], axis=1).astype(float))
        width, height = np.linalg.norm(along), np.linalg.norm(down)
        if min(width, height) < SMALLEST or ink[top:bottom, left:right][rows, columns].mean() < LINE:
            continue
        margin = width * height * UNCLIP / (2 * (width + height))
        aside, below = along / width * margin, down / height * margin
        start, along, down = corner - aside - below, along + 2 * aside, down + 2 * below
        corners = np.array([start, start + along, start + along + down, start + down]) * scale
        found.append(np.clip(np.rint(corners), 0, [wide - 1, high - 1]))
    return sorted(found, key=lambda corners: (corners[0][1], corners[0][0]))


def smallest_rectangle(points: Array) -> tuple[Array, Array, Array]:
    """Return the smallest rectangle around the points: its upper left corner, and its sides along and down."""
    outline = hull(points)
    edges = np.roll(outline, -1, axis=0) - outline
    angles = np.unique(np.arctan2(edges[:, 1], edges[:, 0]) % (np.pi / 2))
    best: tuple[float, float, Array, Array] | None = None
    for angle in (*angles, *(angles - np.pi / 2)):
        if abs(angle) > np.pi / 4:
            continue
        axes = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        turned = outline @ axes
        low, size = turned.min(axis=0), np.ptp(turned, axis=0)
        if best is None or size.prod() < best[0]:
            best = (size.prod(), angle, low, size)
    assert best is not None
    _, angle, low, size = best
    across, down = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    return low[0] * across + low[1] * down, size[0] * across, size[1] * down


def hull(points: Array) -> Array:
    """Return the corners of the convex hull."""
    ordered = sorted(set(map(tuple, points.tolist())))
    if len(ordered) == 1:
        return np.array(ordered)
    found = []
    for row in (ordered, ordered[::-1]):
        chain: list[tuple[float, ...]] = []
        for point in row:
            while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        found += chain[:-1]
    return np.array(found)


def _turn(a: tuple[float, ...], b: tuple[float, ...], c: tuple[float, ...]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def cut_out(picture: Array, corners: Array) -> Array:
    """Return what stands between four corners, made upright."""
    sides = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)
    wide, high = max(1, int(max(sides[0], sides[2]))), max(1, int(max(sides[1], sides[3])))
    u, v = (np.arange(wide) / wide)[None, :, None], (np.arange(high) / high)[:, None, None]
    upper, lower = corners[0] * (1 - u) + corners[1] * u, corners[3] * (1 - u) + corners[2] * u
    at = upper * (1 - v) + lower * v
    return _sampled(picture, at[..., 1], at[..., 0])


def _sampled(picture: Array, rows: Array, columns: Array) -> Array:
    """Return the picture's colours at places between its pixels."""
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, across = (rows - top)[..., None], (columns - left)[..., None]
    bottom, right = np.minimum(top + 1, picture.shape[0] - 1), np.minimum(left + 1, picture.shape[1] - 1)
    upper = picture[top, left] * (1 - across) + picture[top, right] * across
    lower = picture[bottom, left] * (1 - across) + picture[bottom, right] * across
    return np.rint(upper * (1 - down) + lower * down).astype(np.uint8)


def batch_of(crops: list[Array], width: int) -> Array:
    """Return lines as a batch [N, 3, 48, width]: brought to one height, padded with zeros on the right."""
    batch = np.zeros((len(crops), 3, HEIGHT, width), np.float32)
    for slot, crop in zip(batch, crops, strict=True):
        wide = max(1, min(width, width_of(crop)))
        slot[:, :, :wide] = scaled(resized(crop, HEIGHT, wide))
    return batch


def width_of(crop: Array) -> int:
    """Return how wide a line is when it has the height that the models want."""
    return int(np.ceil(HEIGHT * crop.shape[1] / crop.shape[0]))


def scaled(picture: Array) -> Array:
    """Return channels first, in the order that the models were trained with (BGR), from -1 to 1."""
    return (picture.astype(np.float32)[:, :, ::-1].transpose(2, 0, 1) / 127.5) - 1


def resized(picture: Array, high: int, wide: int) -> Array:
    """Return the picture in another size: four neighbours weighted by distance, as the models were trained with."""
    rows, down = _neighbours(picture.shape[0], high)
    columns, across = _neighbours(picture.shape[1], wide)
    source = picture.astype(np.float32)
    wider = source[:, columns[0]] * (1 - across)[None, :, None] + source[:, columns[1]] * across[None, :, None]
    found = wider[rows[0]] * (1 - down)[:, None, None] + wider[rows[1]] * down[:, None, None]
    return np.rint(found).astype(np.uint8)


def _neighbours(have: int, want: int) -> tuple[tuple[Array, Array], Array]:
    at = np.clip((np.arange(want) + 0.5) * have / want - 0.5, 0, have - 1)
    first = np.floor(at).astype(int)
    return (first, np.minimum(first + 1, have - 1)), (at - first).astype(np.float32)


def thickened(mask: Array) -> Array:
    """Return the mask with each set pixel grown to its neighbours right, below and both."""
    grown = mask.copy()
    grown[1:] |= mask[:-1]
    grown[:, 1:] |= mask[:, :-1]
    grown[1:, 1:] |= mask[:-1, :-1]
    return grown
