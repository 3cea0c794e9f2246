// SPDX-License-Identifier: Apache-2.0
// Other libraries' products in the place of ours: the same rows in, the same rows out, so that
// sorting and summing are the same code on both sides. Weights come from the same sources and are
// packed as the library likes them.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "bench/experts/expert_set.h"
#include "bench/experts/model_shape.h"
#include "bench/experts/weight_dtype.h"
#include "trimtab/experts.h"
#include "trimtab/table.h"

namespace trimtab::bench {

struct PeerRequest {
  const ModelShape& model;
  const WeightDType& dtype;
  const ExpertSet& set;  // slot s holds expert s % set.size()
  int threads;
};

struct Peer {
  std::string_view name;
  // Throws InvalidArgument for a dtype that the library has no product for.
  std::unique_ptr<Experts> (*make)(const PeerRequest& request);
};

// Those that were found when the build was configured.
std::span<const Peer> peers();

std::unique_ptr<Experts> make_onednn_experts(const PeerRequest& request);
std::unique_ptr<Experts> make_libxsmm_experts(const PeerRequest& request);

// The part that peers have in common: rows by slot, in the standard format.
class PeerExperts : public Experts {
 public:
  explicit PeerExperts(const PeerRequest& request)
      : model_(request.model), rows_dtype_(request.dtype.rows), num_experts_(request.set.size()) {}
  Format format() const final { return Format::kStandard; }
  Left left() const final { return Left::kWeightAndSum; }
  int64_t hidden() const final { return model_.hidden; }
  int num_local() const final { return model_.experts; }
  DType dtype() const final { return rows_dtype_; }
  // Gate and up in f32, and what they become.
  size_t scratch_bytes(int64_t rows) const final {
    return cells(rows, model_.intermediate) * (3 * sizeof(float));
  }

 protected:
  // One expert's rows, and places for both halves of its work.
  struct Part {
    int64_t expert;
    ConstRows x;
    Rows gate_up;  // f32 [m, 2 intermediate]
    Rows act;      // [m, intermediate]
    Rows out;
  };
  // Calls body(part) for every slot that has rows.
  template <class Body>
  void for_each_part(const Tokens& tokens, Rows out, std::span<std::byte> scratch,
                     const Body& body) const {
    const int64_t rows = tokens.x.rows, intermediate = model_.intermediate;
    const Rows gate_up(reinterpret_cast<float*>(scratch.data()), rows, 2 * intermediate);
    const Rows act(scratch.data() + cells(2, rows, intermediate) * sizeof(float), rows,
                   intermediate, intermediate, rows_dtype_);
    int64_t first = 0;
    for (size_t s = 0; s < tokens.counts.size(); ++s) {
      const int64_t m = tokens.counts[s];
      if (m == 0) continue;
      body(Part{static_cast<int64_t>(s) % num_experts_, tokens.x.slice(first, m),
                gate_up.slice(first, m), act.slice(first, m), out.slice(first, m)});
      first += m;
    }
  }

  const ModelShape model_;
  const DType rows_dtype_;
  const int64_t num_experts_;
};

}  // namespace trimtab::bench
