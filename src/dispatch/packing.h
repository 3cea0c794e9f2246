// SPDX-License-Identifier: Apache-2.0
// Packs tokens with their picks, each token once for every rank that it has to go to, into a block
// of records for each rank; unpacks the blocks there; and sums what comes back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "dispatch/records.h"
#include "dispatch/scaled_rows.h"
#include "dispatch/shape.h"
#include "trimtab/communicator.h"
#include "trimtab/dispatcher.h"

namespace trimtab {

class Packing {
 public:
  struct Memory {
    std::span<std::byte> outbox;    // records by destination, then token
    std::span<int64_t> sent_bytes;  // [ranks]
    std::span<int32_t> counts;      // [ranks] records for each
    std::span<int32_t> last_token;  // [ranks] scratch
    std::span<int32_t> cursors;     // [ranks] scratch
    std::span<int32_t> record_of;  // [max_tokens, top_k] the record of each pick, -1 without a slot
    std::span<int32_t> first_picks;  // [records] the first pick of each record
    // [records + 1] picks of all records before each; with exact_order only.
    std::span<int32_t> picks_before;
  };
  // most_records: of a rank's tokens for all others. Without the outbox.
  static Memory plan(Carver& carver, const RankShape& shape, int64_t most_records);

  Packing(const RankShape& shape, const Memory& memory)
      : shape_(shape), m_(memory), records_(shape, tail_bytes(shape)) {}

  // destinations [ranks]: where to send what a rank has to get. request must outlive the packing.
  void pack(const Request& request, std::span<const int32_t> destinations, Team& team);
  std::span<const std::byte> outbox() const;
  std::span<const int64_t> sent_bytes() const { return m_.sent_bytes; }
  // Takes part in an exchange of tokens without any: where the ranks end before they are packed.
  Pending send_nothing(Communicator& comm, std::span<int64_t> inbox_bytes) const {
    std::ranges::fill(m_.sent_bytes, 0);
    return comm.all_to_all_v({}, m_.sent_bytes, {}, inbox_bytes);
  }

  static int64_t record_bytes(const RankShape& shape) {
    return Records(shape, tail_bytes(shape)).bytes();
  }
  // Views and copies of `count` records that have arrived: ids and weights [count, top_k of the
  // request].
  ScaledRows rows(std::span<std::byte> inbox, int64_t count) const {
    return records_.rows(inbox.data(), count);
  }
  void read_picks(std::span<std::byte> inbox, int64_t count, std::span<int32_t> ids,
                  std::span<float> weights, Team& team) const;

  // out: the sum of each token's results, one a record, or one a pick, in the order of the records
  // and their picks.
  void sum_records(ConstRows results, Rows out, Team& team) const;
  void sum_picks(ConstRows results, Rows out, Team& team) const;  // with exact_order

 private:
  struct Pick {
    int32_t slot;
    float weight;
  };
  static int64_t tail_bytes(const RankShape& shape) { return shape.top_k * int64_t{sizeof(Pick)}; }

  int32_t number_records(std::span<const int32_t> destinations);
  void write_record(int64_t record);
  void count_picks_before() const;

  const RankShape& shape_;
  const Memory m_;
  const Records records_;
  const Request* request_ = nullptr;
  int32_t num_records_ = 0;
};

}  // namespace trimtab
