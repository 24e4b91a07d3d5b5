"""Rules on the functions that make elements: types that are too wide, needless calls, repeated work."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from headrace.lint.batchable import batch_size_after, how_batchable
from headrace.lint.findings import Finding, Subject, is_fixed, size_text, where
from headrace.lint.pipeline import (
    BATCHES,
    MAPS,
    PIXELS_THROUGH,
    Consumer,
    Stage,
    batch_size,
    flow,
    flow_in_graph,
    inner_maps,
    static,
)
from headrace.tensorflow.compat import argument_of

LARGE_VALUES = 1024
"""Minimum size, in values per example, of a tensor that `wide_wire` examines. A 32 × 32 image has 1,024 pixels."""
CACHE_LIMIT_BYTES = 2**30
"""Bytes that any data host can cache: the smallest instance type in instances.csv has 8 GiB of memory."""
BATCHING, CROP = 1.5, 1.4
"""Two speed-ups. `BATCHING`: `images.augment` called once for 32 images of 64 × 64, not for each. `CROP`: decoding
a 224 × 224 crop of a 375 × 500 JPEG, not the whole JPEG. Measured with TensorFlow 2.21 on one core of a two-core x86-64
machine."""
_ASKS_SHAPE = {"Shape", "Size", "Rank", "ShapeN"}


def wide_wire(subject: Subject) -> Iterator[Finding]:
    """Find large float components that go to `distribute`, although a narrower type could carry them."""
    end = subject.pipeline.end
    from_pixels = flow(end, lambda tensor: getattr(tensor, "dtype", None) == tf.uint8, PIXELS_THROUGH, [])
    shapes = _batch_shapes(subject)
    if shapes is None:
        return
    now = then = 0
    any_pixels = any(marked and spec.dtype.is_floating for spec, marked in zip(end.spec, from_pixels, strict=True))
    wide, pixels = [], False
    for spec, shape, marked in zip(end.spec, shapes, from_pixels, strict=True):
        size = narrow = spec.dtype.size
        if spec.dtype.is_floating and math.prod(shape[1:]) >= LARGE_VALUES and marked >= any_pixels:
            narrow = 1 if marked else max(size // 2, 2)
        if narrow < size:
            wide.append(f"{spec.dtype.name} {' × '.join(map(str, shape))}")
            pixels |= marked
        now, then = now + math.prod(shape) * size, then + math.prod(shape) * narrow
    if wide and pixels:
        origin, narrow_type = "made of uint8 pixels", "uint8"
        by_image = any("Mean" in stage.ops for stage in subject.pipeline.stages)
        layer = "Lambda(tf.image.per_image_standardization)" if by_image else "Rescaling(1 / 255)"
        fix = f"keep pixels as uint8 until data.distribute, and scale them in the model: keras.layers.{layer}"
    else:
        origin, narrow_type = "safe in a smaller dtype only if the values fit it", "numbers with half the bits"
        fix = "if the values fit a smaller dtype: tf.cast before data.distribute, and tf.cast back in the model"
    if wide:
        cost = f"{', '.join(wide)}, {origin}: {size_text(now)} a batch, {size_text(then)} as {narrow_type}"
        yield Finding("wide-wire", subject.distributed_at, cost, now / then, "fewer bytes on the wire", False, fix)


def map_before_batch(subject: Subject) -> Iterator[Finding]:
    """Find functions that are called on each element and could be called on batches."""
    for stage in subject.pipeline.stages:
        if stage.kind not in MAPS or any(each.kind in BATCHES for each in stage.before()):
            continue
        size = batch_size_after(subject.pipeline, stage)
        how = how_batchable(stage, size) if size > 1 else ""
        if not how:
            continue
        name, several = stage.in_code, len(stage.inputs[0].spec) > 1
        call = f"lambda batch: tf.vectorized_map({name}, batch)"
        if several:
            call = f"lambda *batch: tf.vectorized_map(lambda each: {name}(*each), batch)"
        fix = f".batch({size}).map({call if how == 'vectorised' else f'{name} for a batch'}, …)"
        cost = f"called once per element, where one call could make a batch of {size}"
        yield Finding("map-before-batch", where(stage), cost, BATCHING, "faster for this map", True, fix)


def no_cache(subject: Subject) -> Iterator[Finding]:
    """Find small finite datasets that are decoded again in every epoch."""
    chain = subject.pipeline.stages
    if any(len(stage.inputs) > 1 or stage.kind.startswith("Cache") for stage in chain):
        return
    end = next((place for place, each in enumerate(chain) if not _is_made_alike(each)), len(chain))
    maps = [stage for stage in chain[:end] if stage.kind in MAPS]
    repeated = any(each.kind == "Repeat" and static(argument_of(each.dataset, "count")) != 1 for each in chain[end:])
    if not maps or not repeated or not any(re.search("Decode|ReadFile", op) for each in maps for op in each.ops):
        return
    last = maps[-1]
    elements = int(last.dataset.cardinality())
    if elements < 1 or not all(is_fixed(spec) and spec.dtype != tf.string for spec in last.spec):
        return
    size = elements * sum(math.prod(spec.shape) * spec.dtype.size for spec in last.spec)
    if size > CACHE_LIMIT_BYTES:
        return
    cost = f"{elements} elements are made again in every epoch; a cache of them takes {size_text(size)}"
    fix = f".cache() after .map({last.in_code}), before shuffle and repeat"
    yield Finding("no-cache", where(last), cost, None, "if cached, this map runs only in the first epoch", False, fix)


def decode_then_crop(subject: Subject) -> Iterator[Finding]:
    """Find JPEGs that are decoded whole although only a part is used."""
    whole = ("Identity", "IdentityN", "EnsureShape")
    consumers: list[Consumer] = []
    kept = any(flow(subject.pipeline.end, _is_jpeg, whole, consumers))
    decoding = [stage for stage in subject.pipeline.stages if stage.kind in MAPS and "DecodeJpeg" in stage.ops]
    cases = [(decoding[0], consumers, kept)] if decoding else []
    for stage in subject.pipeline.stages:
        for graph in inner_maps(stage):
            inner: list[Consumer] = []
            kept = any(flow_in_graph(graph, [], _is_jpeg, whole, inner))
            cases.append((stage, inner, kept))
    for stage, used, kept in cases:
        crops = [result for name, result in used if name == "crop"]
        if kept or not crops or any(name not in ("crop", *_ASKS_SHAPE) for name, _ in used):
            continue
        height, width = _crop_size(crops[0])
        cost = f"whole JPEGs are decoded, of which {height or '?'} × {width or '?'} pixels are used"
        gain_of = "faster decoding for a JPEG of 375 × 500"
        fix = "tf.image.decode_and_crop_jpeg(bytes, [y, x, height, width]), with tf.io.extract_jpeg_shape(bytes)"
        yield Finding("decode-then-crop", where(stage), cost, CROP, gain_of, True, fix)


def _batch_shapes(subject: Subject) -> list[list[int]] | None:
    """Return the shapes of all components of a batch, or None if any of these shapes is not known."""
    end = subject.pipeline.end
    size = next((batch_size(each) for each in [end, *end.before()] if each.kind in BATCHES), -1)
    if not all(isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in end.spec):
        return None
    shapes = [
        [size if not place and each is None else each for place, each in enumerate(spec.shape)] for spec in end.spec
    ]
    return shapes if all(each is not None and each >= 0 for shape in shapes for each in shape) else None


def _is_made_alike(stage: Stage) -> bool:
    """Return whether a stage makes the same elements in every epoch if its inputs are the same."""
    fixed = not stage.inputs or stage.kind in ("Options", "AssertCardinality", "Take", "Skip", *MAPS)
    return fixed and not stage.is_random


def _crop_size(crop: Any) -> list[int | None]:
    """Return the numbers of rows and of columns that an operation cuts out; None for a number that is not known."""
    if crop.shape.rank and all(crop.shape[:2]):
        return list(crop.shape[:2])
    begin, end = (tf.get_static_value(crop.op.inputs[place]) for place in (1, 2))
    if crop.op.type != "StridedSlice" or begin is None or end is None or len(end) < 2:
        return [None, None]
    return [int(last - first) if last > first >= 0 else None for first, last in zip(begin[:2], end[:2], strict=True)]


def _is_jpeg(tensor: Any) -> bool:
    # A JPEG decoded at reduced size (`ratio`) does not count: decoding only the crop could not give the same pixels.
    op = getattr(tensor, "op", None)
    return op is not None and op.type == "DecodeJpeg" and op.get_attr("ratio") == 1
