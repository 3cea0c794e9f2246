// SPDX-License-Identifier: Apache-2.0
// The rows that the ranks of the experts send back to the ranks that the tokens came from: sums, or
// one row a pick. They are computed and added in f32, and travel in f32 or in the type of
// DispatchShape::results, to which every row is rounded, those of a rank for itself too.
#pragma once

#include <cstdint>
#include <span>

#include "dispatch/records.h"
#include "dispatch/shape.h"
#include "trimtab/communicator.h"
#include "trimtab/team.h"

namespace trimtab {

class Results {
 public:
  struct Memory {
    std::span<std::byte> outbox;       // the rows that are sent, as they travel; f32: none
    std::span<int64_t> sent_bytes;     // [ranks]
    std::span<std::byte> inbox;        // what comes back, as it travels; f32: none
    std::span<int64_t> arrived_bytes;  // [ranks]
    Rows arrived;                      // f32 [most_arriving, hidden]
    std::span<std::byte> before;       // the same memory, until results are sent
  };
  // before_bytes: what this rank sends before the results, and no longer needs then.
  static Memory plan(Carver& carver, const RankShape& shape, int64_t most_made,
                     int64_t most_arriving, int64_t before_bytes);

  Results(const RankShape& shape, Communicator& comm, const Memory& memory)
      : comm_(comm),
        m_(memory),
        records_(shape.hidden, shape.results),
        in_f32_(shape.results == DType::kF32) {}

  // So many rows are for the rank.
  void set_rows_for(size_t rank, int64_t rows) { m_.sent_bytes[rank] = rows * records_.bytes(); }
  // made: f32, the rows for all ranks, in their order; stays valid until released(). Sends them
  // once `before`, which has sent what was in Memory::before, is released: at once or from done().
  void send(ConstRows made, Pending& before, Team& team);
  bool done(bool block);
  bool released(bool block);
  // What has come back, in f32, once it is done().
  ConstRows arrived(Team& team) const;

 private:
  bool start(bool block);

  Communicator& comm_;
  const Memory m_;
  const Records records_;
  const bool in_f32_;
  ConstRows made_;
  Pending* before_ = nullptr;
  Team* team_ = nullptr;
  bool started_ = false;
  Pending pending_;
};

}  // namespace trimtab
