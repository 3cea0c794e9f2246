// SPDX-License-Identifier: Apache-2.0
// Regular expressions that come out of files. Matching takes linear time and does not recurse.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace trimtab {

// A regular expression in Python's syntax that matches names from their beginning. Matching takes
// time in proportion to pattern x name, whatever the pattern. It knows characters, '.', classes,
// escapes (\d \w \s and punctuation), groups, '|', repetitions and anchors; no lookaround, no back
// references, no flags.
class Regex {
 public:
  // Throws InvalidArgument, with the place, for syntax that it does not know and for text that is
  // no regular expression.
  explicit Regex(std::string_view pattern);

  // True when a beginning of name matches and may end where it does, as end_ok(size_t end) says.
  template <class EndOk>
  bool match(std::string_view name, const EndOk& end_ok) const {
    Threads now(program_.size()), next(program_.size());
    add(now, 0, name, 0);
    for (size_t at = 0;; ++at) {
      if (now.contains(program_.size() - 1) && end_ok(at)) return true;
      if (now.list.empty() || at == name.size()) return false;
      for (const int64_t pc : now.list) {
        const Instruction& i = program_[pc];
        if (i.op == Op::kOneOf && i.set.test(static_cast<unsigned char>(name[at])))
          add(next, pc + 1, name, at + 1);
      }
      std::swap(now, next);
      next.clear();
    }
  }

 private:
  // Jumps are relative, so that pieces of a program can be moved and copied.
  enum class Op : uint8_t { kOneOf, kJump, kFork, kBegin, kEnd, kMatch };
  struct Instruction {
    Op op;
    int64_t to = 0, or_to = 0;
    std::bitset<256> set = {};
  };
  // The places in the program at which the match may stand.
  struct Threads {
    explicit Threads(size_t size) : has(size) {}
    bool contains(int64_t pc) const { return has[pc]; }
    void add(int64_t pc) {
      if (!has[pc]) list.push_back(pc);
      has[pc] = true;
    }
    void clear() {
      for (const int64_t pc : list) has[pc] = false;
      list.clear();
    }
    std::vector<int64_t> list;
    std::vector<bool> has;
  };
  class Parser;

  void add(Threads& threads, int64_t pc, std::string_view name, size_t at) const;

  std::vector<Instruction> program_;  // ends with kMatch
};

}  // namespace trimtab
