// SPDX-License-Identifier: Apache-2.0
// An exchange in as many rounds as the row budget asks for. It begins with all tokens in one round.
// When all ranks find that one of them would get more rows than the budget, they cut their tokens
// alike into that many parts, and go on with the first one; a part that is still too much is cut
// again. Each round is an exchange of whole tokens, so their outputs have the bits of one round.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch/staged_exchange.h"

namespace trimtab {

// Makes the exchange of one round in `memory`, where the one before it has gone.
class RoundMaker {
 public:
  virtual StagedExchange* make_round(const Request& request, Lane& lane,
                                     std::byte* memory) const = 0;

 protected:
  ~RoundMaker() = default;
};

class Rounds final : public Exchange {
 public:
  // All must outlive the exchange.
  Rounds(const RoundMaker& maker, const RankShape& shape, const Request& request, Lane& lane,
         std::byte* memory);
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;
  ~Rounds() override;

  bool poll(Stage stage) override { return advance(stage, false); }
  void wait(Stage stage) override { advance(stage, true); }
  const Tokens& tokens() const override { return round().tokens(); }
  void send_back(ConstRows y, Left left) override { round().send_back(y, left); }
  void finish(Rows out) override;
  bool more() const override { return part_ + 1 < parts_; }

 private:
  // The tokens of this round.
  int64_t first() const { return request_.x.rows * part_ / parts_; }
  int64_t count() const { return request_.x.rows * (part_ + 1) / parts_ - first(); }

  StagedExchange& round() const;
  bool advance(Stage stage, bool block);
  void begin();
  void end();
  void cut(int64_t most_rows);

  const RoundMaker& maker_;
  const RankShape& shape_;
  const Request request_;
  Lane& lane_;
  Lane inner_lane_;  // of the rounds
  std::byte* const memory_;
  StagedExchange* round_ = nullptr;
  int64_t part_ = 0, parts_ = 1;  // the same on every rank
  bool drained_ = false;          // this round
};

}  // namespace trimtab
