// SPDX-License-Identifier: Apache-2.0
// libxsmm: panels of 64 outputs in its VNNI layout, one generated kernel for each number of rows;
// panels are shared out over the team as ours are.
#include <libxsmm.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/cat.h"
#include "bench/peers/peer_experts.h"
#include "bench/peers/silu.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

constexpr int64_t kPanel = 64;  // outputs of one kernel
// The most rows of one kernel; longer ones are generated for minutes and run no faster.
constexpr int64_t kMostRows = 64;

libxsmm_bsmmfunction kernel(int64_t rows, int64_t in, int64_t x_stride, int64_t y_stride) {
  const auto size = [](int64_t n) { return static_cast<libxsmm_blasint>(n); };
  const libxsmm_blasint lda = size(kPanel), ldb = size(x_stride), ldc = size(y_stride);
  const float one = 1.0F, zero = 0.0F;
  const int flags = LIBXSMM_GEMM_FLAG_VNNI_A;
  const libxsmm_bsmmfunction found = libxsmm_bsmmdispatch(size(kPanel), size(rows), size(in), &lda,
                                                          &ldb, &ldc, &one, &zero, &flags, nullptr);
  if (found == nullptr) throw Error(cat("libxsmm generates no kernel for ", rows, " rows of ", in));
  return found;
}

class Matrix {
 public:
  // rows: bf16 [out, in]. Layout: [out / 64][in / 2][64][2].
  Matrix(const uint16_t* rows, int64_t out, int64_t in) : out_(out), in_(in), panels_(bytes()) {
    uint16_t* to = panels_.as<uint16_t>();
    for (int64_t first = 0; first < out; first += kPanel) {
      for (int64_t i = 0; i < in; i += 2) {
        for (int64_t j = first; j < first + kPanel; ++j, to += 2)
          std::memcpy(to, rows + j * in + i, 2 * sizeof(*to));
      }
    }
  }
  int64_t num_panels() const { return out_ / kPanel; }
  void run_panel(int64_t panel, ConstRows x, Rows y) const {
    const auto* weights = panels_.as<libxsmm_bfloat16>() + panel * kPanel * in_;
    for (int64_t row = 0; row < x.rows; row += kMostRows) {
      const int64_t count = std::min(kMostRows, x.rows - row);
      kernel(count, in_, x.stride, y.stride)(weights,
                                             reinterpret_cast<const libxsmm_bfloat16*>(x.row(row)),
                                             y.row_as<float>(row) + panel * kPanel);
    }
  }

 private:
  size_t bytes() const { return cells(out_, in_) * sizeof(uint16_t); }

  int64_t out_, in_;
  Buffer panels_;
};

class LibxsmmExperts final : public PeerExperts {
 public:
  explicit LibxsmmExperts(const PeerRequest& request) : PeerExperts(request) {
    libxsmm_init();
    const int64_t hidden = model_.hidden, intermediate = model_.intermediate;
    for (int64_t e = 0; e < num_experts_; ++e) {
      const MlpSource source = request.set.source(e);
      // The pool has gate and up one behind the other.
      gate_up_.emplace_back(reinterpret_cast<const uint16_t*>(source.gate.data), 2 * intermediate,
                            hidden);
      down_.emplace_back(reinterpret_cast<const uint16_t*>(source.down.data), hidden, intermediate);
    }
  }

  void run(const Tokens& tokens, Rows out, std::span<std::byte> scratch,
           Team& team) const override {
    std::vector<Part> parts;
    for_each_part(tokens, out, scratch, [&](const Part& part) { parts.push_back(part); });
    for_each_panel(team, parts, gate_up_,
                   [](const Matrix& matrix, int64_t panel, const Part& part) {
                     matrix.run_panel(panel, part.x, part.gate_up);
                   });
    team.for_each(std::ssize(parts), [&](int64_t i) { activate(parts[i]); });
    for_each_panel(team, parts, down_, [](const Matrix& matrix, int64_t panel, const Part& part) {
      matrix.run_panel(panel, part.act, part.out);
    });
  }

 private:
  template <class Body>
  static void for_each_panel(Team& team, const std::vector<Part>& parts,
                             const std::vector<Matrix>& matrices, const Body& body) {
    const int64_t panels = matrices.front().num_panels();
    team.for_each(std::ssize(parts) * panels, [&](int64_t item) {
      const Part& part = parts[item / panels];
      body(matrices[part.expert], item % panels, part);
    });
  }

  void activate(const Part& part) const {
    for (int64_t i = 0; i < part.x.rows; ++i) {
      const float* gate = part.gate_up.row_as<float>(i);
      silu_row(gate, gate + model_.intermediate, model_.intermediate,
               &part.act.row_as<bf16_t>(i)->bits);
    }
  }

  std::vector<Matrix> gate_up_, down_;
};

}  // namespace

std::unique_ptr<Experts> make_libxsmm_experts(const PeerRequest& request) {
  const ModelShape& model = request.model;
  if (request.dtype.name != "bf16" || model.hidden % kPanel != 0 ||
      model.intermediate % kPanel != 0) {
    throw InvalidArgument(cat("libxsmm: experts here are bf16 with sides that are multiples of ",
                              kPanel, "; ", model.name, " in ", request.dtype.name, " is not"));
  }
  return std::make_unique<LibxsmmExperts>(request);
}

}  // namespace trimtab::bench
