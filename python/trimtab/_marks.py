# SPDX-License-Identifier: Apache-2.0
"""Notices that tensors have changed since their contents were packed."""

import ctypes
import weakref

_SAMPLES, _SAMPLE_BYTES = 8, 64


class _Mark:
    """How a tensor was when it was packed, to notice that it is no longer so.

    It is no longer so when another tensor or other memory is in its place, after an operation in
    place, or, for what torch does not count (writes through .data), when a few places hold other
    bytes.
    """

    def __init__(self, tensor):
        self.tensor = weakref.ref(tensor)
        self.version = _version(tensor)
        self.address = tensor.data_ptr()
        self.places = []
        if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.nbytes > 0:
            size = min(_SAMPLE_BYTES, tensor.nbytes)
            last = tensor.nbytes - size
            self.places = [
                (self.address + last * i // (_SAMPLES - 1), size) for i in range(_SAMPLES)
            ]
        self.bytes = self._read()

    def _read(self):
        return [ctypes.string_at(*place) for place in self.places]

    def fits(self, tensor):
        return (
            self.tensor() is tensor
            and self.version == _version(tensor)
            and self.address == tensor.data_ptr()
            and self.bytes == self._read()
        )

    def for_copy(self, memo):
        """The mark of the tensor's deep copy; None where there is none or the tensor has
        changed."""
        tensor = self.tensor()
        copy = None if tensor is None else memo.get(id(tensor))
        return _Mark(copy) if copy is not None and self.fits(tensor) else None


def _version(tensor):
    return None if tensor.is_inference() else tensor._version


class Marks:
    """The marks of a module's packed tensors, by name. A deep copy of the module gets marks of its
    own tensors."""

    def __init__(self, tensors):
        self.of = {name: _Mark(tensor) for name, tensor in tensors.items()}

    def changed(self, module):
        """The name of a tensor that is not as it was, or None."""
        for name, mark in self.of.items():
            tensor = getattr(module, name, None)
            if tensor is None or mark is None or not mark.fits(tensor):
                return name
        return None

    def __deepcopy__(self, memo):
        copy = Marks({})
        copy.of = {name: mark and mark.for_copy(memo) for name, mark in self.of.items()}
        return copy
