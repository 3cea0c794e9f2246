# SPDX-License-Identifier: Apache-2.0
"""The experts stage of this project, through the library that the target trimtab_stage builds."""

import ctypes

import torch


class Shape(ctypes.Structure):
    """Sizes of one layer; max_tokens and threads are the caller's."""

    _fields_ = [("hidden", ctypes.c_int64), ("intermediate", ctypes.c_int64),
                ("max_tokens", ctypes.c_int64), ("experts", ctypes.c_int32),
                ("top_k", ctypes.c_int32), ("threads", ctypes.c_int32)]


class Library:
    """Loads the library from its path. Every failure is a RuntimeError with the library's text."""

    def __init__(self, path):
        self.functions = ctypes.CDLL(path)
        self.functions.trimtab_stage_error.restype = ctypes.c_char_p
        self.functions.trimtab_stage_make.restype = ctypes.c_void_p
        self.functions.trimtab_stage_run.restype = ctypes.c_double
        self.functions.trimtab_stage_free.argtypes = [ctypes.c_void_p]

    def shape(self, name):
        """The sizes of a model, by the names of `trimtab bench experts`."""
        shape = Shape()
        if self.functions.trimtab_stage_shape(name.encode(), ctypes.byref(shape)) != 0:
            raise RuntimeError(self.functions.trimtab_stage_error().decode())
        return shape


class Stage:
    """gate_up: [experts, 2 intermediate, hidden], gate first; down: [experts, hidden,
    intermediate]; f32 for dtype f32, else bf16. They are packed and not needed afterwards."""

    def __init__(self, library, shape, dtype, gate_up, down):
        self.functions = library.functions
        self.stage = self.functions.trimtab_stage_make(ctypes.byref(shape), dtype.encode(),
                                                       ctypes.c_void_p(gate_up.data_ptr()),
                                                       ctypes.c_void_p(down.data_ptr()))
        if not self.stage:
            raise RuntimeError(self.functions.trimtab_stage_error().decode())

    def __call__(self, x, ids, weights):
        """x: [tokens, hidden]; ids: int64, weights: f32 [tokens, top_k]. Returns f32 [tokens,
        hidden] and the seconds that it took; with one thread, by that thread's own clock."""
        out = torch.empty(x.shape, dtype=torch.float32)
        ids = ids.to(torch.int32)
        seconds = self.functions.trimtab_stage_run(ctypes.c_void_p(self.stage),
                                                   ctypes.c_int64(x.shape[0]),
                                                   ctypes.c_void_p(ids.data_ptr()),
                                                   ctypes.c_void_p(weights.data_ptr()),
                                                   ctypes.c_void_p(x.data_ptr()),
                                                   ctypes.c_void_p(out.data_ptr()))
        if seconds < 0:
            raise RuntimeError(self.functions.trimtab_stage_error().decode())
        return out, seconds

    def __del__(self):
        if getattr(self, "stage", None):
            self.functions.trimtab_stage_free(self.stage)
