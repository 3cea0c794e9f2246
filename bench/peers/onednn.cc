// SPDX-License-Identifier: Apache-2.0
// oneDNN: a matmul for each active expert, weights reordered once into the layout that its blocked
// kernels ask for, primitives cached by number of rows. Its threads are OpenMP's.
#include <omp.h>

#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "base/cat.h"
#include "bench/peers/peer_experts.h"
#include "bench/peers/silu.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

using dnnl::matmul;
using dnnl::memory;

// The layout of the weights is the one that a product of so many rows wants.
constexpr int64_t kRowsForLayout = 64;

memory::data_type type_of(DType dtype) {
  return dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// y[m, out] = x[m, in] W^T for any m.
class Product {
 public:
  Product(const dnnl::engine& engine, int64_t out, int64_t in, DType dtype)
      : engine_(engine), out_(out), in_(in), dtype_(dtype) {
    const memory::desc any({in, out}, type_of(dtype), memory::format_tag::any);
    layout_ = make(kRowsForLayout, any).weights_desc();
  }

  // rows: [out, in], contiguous.
  memory pack(const std::byte* rows, dnnl::stream& stream) {
    memory plain({{in_, out_}, type_of(dtype_), memory::format_tag::ba}, engine_,
                 const_cast<std::byte*>(rows));
    // Not the library's own memory: ours is in huge pages, as it is for our weights.
    Buffer& panels = panels_.emplace_back(layout_.get_size());
    memory packed(layout_, engine_, panels.data());
    dnnl::reorder(plain, packed).execute(stream, plain, packed);
    stream.wait();
    return packed;
  }

  void run(ConstRows x, const memory& weights, Rows y, dnnl::stream& stream) const {
    auto found = by_rows_.find(x.rows);
    if (found == by_rows_.end()) found = by_rows_.emplace(x.rows, make(x.rows, layout_)).first;
    const matmul::primitive_desc& desc = found->second.desc;
    const memory source(desc.src_desc(), engine_, const_cast<std::byte*>(x.data));
    const memory result(desc.dst_desc(), engine_, y.data);
    found->second.primitive.execute(
        stream, {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, result}});
  }

 private:
  struct Compiled {
    Compiled(const matmul::primitive_desc& d) : desc(d), primitive(d) {}
    memory::desc weights_desc() const { return desc.weights_desc(); }
    matmul::primitive_desc desc;
    matmul primitive;
  };

  Compiled make(int64_t m, const memory::desc& weights) const {
    const memory::desc x({m, in_}, type_of(dtype_), memory::format_tag::ab);
    const memory::desc y({m, out_}, memory::data_type::f32, memory::format_tag::ab);
    return Compiled(matmul::primitive_desc(matmul::desc(x, weights, y), engine_));
  }

  const dnnl::engine& engine_;
  int64_t out_, in_;
  DType dtype_;
  memory::desc layout_;
  std::vector<Buffer> panels_;
  mutable std::unordered_map<int64_t, Compiled> by_rows_;
};

class OneDnnExperts final : public PeerExperts {
 public:
  explicit OneDnnExperts(const PeerRequest& request)
      : PeerExperts(request),
        gate_up_(engine_, 2 * request.model.intermediate, request.model.hidden,
                 request.dtype.source),
        down_(engine_, request.model.hidden, request.model.intermediate, request.dtype.source) {
    omp_set_num_threads(request.threads);
    for (int64_t e = 0; e < num_experts_; ++e) {
      // The pool has gate and up one behind the other.
      gate_up_weights_.push_back(gate_up_.pack(request.set.source(e).gate.data, stream_));
      down_weights_.push_back(down_.pack(request.set.source(e).down.data, stream_));
    }
  }

  void run(const Tokens& tokens, Rows out, std::span<std::byte> scratch, Team&) const override {
    for_each_part(tokens, out, scratch, [&](const Part& part) {
      const size_t e = part.expert;
      gate_up_.run(part.x, gate_up_weights_[e], part.gate_up, stream_);
      activate(part);
      down_.run(part.act, down_weights_[e], part.out, stream_);
    });
    stream_.wait();
  }

 private:
  void activate(const Part& part) const {
    const int64_t intermediate = model_.intermediate;
#pragma omp parallel for if (part.x.rows >= 16)
    for (int64_t i = 0; i < part.x.rows; ++i) {
      const float* gate = part.gate_up.row_as<float>(i);
      if (rows_dtype_ == DType::kF32) {
        silu_row(gate, gate + intermediate, intermediate, part.act.row_as<float>(i));
      } else {
        silu_row(gate, gate + intermediate, intermediate, &part.act.row_as<bf16_t>(i)->bits);
      }
    }
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  mutable dnnl::stream stream_{engine_};
  Product gate_up_, down_;
  std::vector<memory> gate_up_weights_, down_weights_;
};

}  // namespace

std::unique_ptr<Experts> make_onednn_experts(const PeerRequest& request) {
  if (request.dtype.name != "f32" && request.dtype.name != "bf16") {
    throw InvalidArgument(
        cat("onednn: no experts in ", request.dtype.name, " here, only f32 and bf16"));
  }
  return std::make_unique<OneDnnExperts>(request);
}

}  // namespace trimtab::bench
