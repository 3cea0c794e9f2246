# SPDX-License-Identifier: Apache-2.0
"""onnxruntime's MoE operator (com.microsoft, f32 on CPUs) as a graph of one node."""

import numpy
import torch

own_threads = False


class OnnxRuntime:
    """The operator does its own top-k: it gets logits that make it choose the ids with the weights."""

    def __init__(self, shape, dtype, gate_up, down):
        if dtype != "f32":
            raise RuntimeError(f"onnxruntime's MoE on CPUs is f32, not {dtype}")
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper

        size = shape.intermediate
        # Rows of gate and up in turn: swiglu_fusion 1.
        pairs = torch.stack([gate_up[:, :size], gate_up[:, size:]], dim=2).flatten(1, 2).contiguous()
        self.shape, self.values = shape, {"fc1": pairs.numpy(), "fc2": down.numpy()}
        node = helper.make_node("MoE", ["x", "logits", "fc1", "", "fc2"], ["out"], domain="com.microsoft",
                                k=shape.top_k, activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.0,
                                activation_beta=0.0, normalize_routing_weights=1)
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "logits", "fc1", "fc2")]
        outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
        model = helper.make_model(helper.make_graph([node], "moe", inputs, outputs),
                                  opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
        model.ir_version = min(model.ir_version, 10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = shape.threads
        # As initialisers, so that the operator may pack them.
        for name, value in self.values.items():
            options.add_initializer(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
            model.graph.initializer.append(self.outside(name, value))
        self.session = onnxruntime.InferenceSession(onnx.ModelProto.SerializeToString(model), options,
                                                    providers=["CPUExecutionProvider"])

    @staticmethod
    def outside(name, value):
        """An initialiser whose data add_initializer brings: more than a model file may hold."""
        from onnx import TensorProto, external_data_helper

        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=value.shape)
        tensor.raw_data = b""
        external_data_helper.set_external_data(tensor, location="given")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        return tensor

    def __call__(self, x, ids, weights):
        logits = torch.full((x.shape[0], self.shape.experts), -1e4)
        logits.scatter_(1, ids, weights.log())
        out, = self.session.run(None, {"x": x.numpy(), "logits": logits.numpy().astype(numpy.float32)})
        return torch.from_numpy(out)
