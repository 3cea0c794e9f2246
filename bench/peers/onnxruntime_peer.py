# SPDX-License-Identifier: Apache-2.0
"""onnxruntime's MoE operator (com.microsoft, f32 on CPUs) as a graph of one node."""

import tempfile

import numpy
import torch


class OnnxRuntime:
    """The operator does its own top-k: its logits make it choose the ids with the weights."""

    own_threads = False

    def __init__(self, shape, dtype, gate_up, down):
        if dtype != "f32":
            raise RuntimeError(f"onnxruntime's MoE on CPUs is f32, not {dtype}")
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper

        size = shape.intermediate
        # Rows of gate and up in turn: swiglu_fusion 1.
        pairs = torch.stack([gate_up[:, :size], gate_up[:, size:]], dim=2)
        pairs = pairs.flatten(1, 2).contiguous()
        self.shape = shape
        node = helper.make_node("MoE", ["x", "logits", "fc1", "", "fc2"], ["out"],
                                domain="com.microsoft", k=shape.top_k, activation_type="swiglu",
                                swiglu_fusion=1, activation_alpha=1.0, activation_beta=0.0,
                                normalize_routing_weights=1)
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "logits")
        ]
        outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
        model = helper.make_model(helper.make_graph([node], "moe", inputs, outputs),
                                  opset_imports=[
                                      helper.make_opsetid("", 21),
                                      helper.make_opsetid("com.microsoft", 1)
                                  ])
        model.ir_version = min(model.ir_version, 10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = shape.threads
        # Weights as initialisers, so that the operator may pack them; in files, for they are more
        # than a model may hold.
        with tempfile.TemporaryDirectory() as folder:
            for name, value in (("fc1", pairs), ("fc2", down)):
                value.numpy().tofile(f"{folder}/{name}")
                tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=value.shape,
                                     data_location=TensorProto.EXTERNAL)
                tensor.external_data.add(key="location", value=name)
                model.graph.initializer.append(tensor)
            onnx.save(model, f"{folder}/moe.onnx")
            self.session = onnxruntime.InferenceSession(f"{folder}/moe.onnx", options,
                                                        providers=["CPUExecutionProvider"])

    def __call__(self, x, ids, weights):
        logits = torch.full((x.shape[0], self.shape.experts), -1e4)
        logits.scatter_(1, ids, weights.log())
        inputs = {"x": x.numpy(), "logits": logits.numpy().astype(numpy.float32)}
        out, = self.session.run(None, inputs)
        return torch.from_numpy(out)
