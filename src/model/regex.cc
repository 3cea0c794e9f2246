// SPDX-License-Identifier: Apache-2.0
// Thompson's construction and simulation: R. Cox, "Regular Expression Matching Can Be Simple And
// Fast" (2007).
#include "model/regex.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

int byte(char c) {
  return static_cast<unsigned char>(c);
}

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

}  // namespace

class Regex::Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern) {}

  std::vector<Instruction> parse() {
    alternatives();
    if (at_ < pattern_.size()) throw error("an unmatched ')'");
    program_.push_back({Op::kMatch});
    return std::move(program_);
  }

 private:
  static constexpr int kMaxProgram = 5000;
  static constexpr int kMaxDepth = 50;
  static constexpr int kUnlimited = std::numeric_limits<int>::max();

  InvalidArgument error(const std::string& what) const {
    return InvalidArgument(cat("the pattern '", pattern_, "' has ", what, " at ", at_));
  }
  bool at_end() const { return at_ == pattern_.size(); }
  bool next_is(char c) const { return !at_end() && pattern_[at_] == c; }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  char take_any(const char* where) {
    if (at_end()) throw error(cat("an end within ", where));
    return pattern_[at_++];
  }
  int64_t length() const { return std::ssize(program_); }
  int64_t length_from(int64_t start) const { return length() - start; }
  void emit(Instruction instruction) {
    if (length() >= kMaxProgram) throw error("too many repetitions");
    program_.push_back(instruction);
  }
  void insert(int64_t where, Instruction instruction) {
    emit({Op::kMatch});
    std::move_backward(program_.begin() + where, program_.end() - 1, program_.end());
    program_[where] = instruction;
  }

  void alternatives() {
    std::vector<int64_t> exits;
    int64_t start = length();
    sequence();
    while (take('|')) {
      insert(start, {Op::kFork, 1, length_from(start) + 2});
      exits.push_back(length());
      emit({Op::kJump});
      start = length();
      sequence();
    }
    for (const int64_t exit : exits) program_[exit].to = length_from(exit);
  }

  void sequence() {
    while (!at_end() && !next_is('|') && !next_is(')')) {
      const int64_t start = length();
      atom();
      repetitions(start);
    }
  }

  void atom() {
    const char c = take_any("nothing");
    std::bitset<256> set;
    switch (c) {
      case '(':
        if (take('?') && !take(':')) throw error("an extension '(?'");
        if (++depth_ > kMaxDepth) throw error("groups nested too deep");
        alternatives();
        --depth_;
        if (!take(')')) throw error("an unmatched '('");
        return;
      case '^':
        return emit({Op::kBegin});
      case '$':
        return emit({Op::kEnd});
      case '*':
      case '+':
      case '?':
        throw error("nothing to repeat");
      case '.':
        return emit({Op::kOneOf, 0, 0, set.set('\n').flip()});
      case '[':
        return emit({Op::kOneOf, 0, 0, bracket()});
      case '\\':
        return emit({Op::kOneOf, 0, 0, escape()});
      default:
        return emit({Op::kOneOf, 0, 0, set.set(byte(c))});
    }
  }

  std::bitset<256> escape() {
    const char c = take_any("an escape");
    std::bitset<256> set;
    const auto range = [&](char first, char last) {
      for (int i = first; i <= last; ++i) set.set(i);
    };
    switch (c) {
      case 'd':
      case 'D':
        range('0', '9');
        break;
      case 'w':
      case 'W':
        range('0', '9'), range('A', 'Z'), range('a', 'z'), range('_', '_');
        break;
      case 's':
      case 'S':
        range('\t', '\r'), range(' ', ' ');
        break;
      default:
        if (c <= ' ' || c == '\x7f' || is_word(c))
          throw error(cat("an unknown escape '\\", c, "'"));
        return set.set(byte(c));
    }
    return c == 'D' || c == 'W' || c == 'S' ? set.flip() : set;
  }

  std::bitset<256> bracket() {
    std::bitset<256> set;
    const bool inverted = take('^');
    bool first = true;
    for (char c = take_any("[]"); c != ']' || first; c = take_any("[]"), first = false) {
      if (c == '\\') {
        set |= escape();
        continue;
      }
      char last = c;
      if (next_is('-') && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
        ++at_;
        last = take_any("[]");
        if (last == '\\' || byte(last) < byte(c)) throw error("an impossible range");
      }
      for (int i = byte(c); i <= byte(last); ++i) set.set(i);
    }
    return inverted ? set.flip() : set;
  }

  void repetitions(int64_t start) {
    int least = 1, most = 1;
    if (take('*')) {
      least = 0, most = kUnlimited;
    } else if (take('+')) {
      most = kUnlimited;
    } else if (take('?')) {
      least = 0;
    } else if (!take_counts(least, most)) {
      return;
    }
    take('?');  // the fewest or the most: it matches or not
    if (next_is('*') || next_is('+') || next_is('?')) throw error("a repetition of a repetition");
    repeat(start, least, most);
  }

  // {m}, {m,}, {,n}, {m,n}; anything else is text, as in Python.
  bool take_counts(int& least, int& most) {
    const size_t before = at_;
    if (!take('{')) return false;
    const std::optional<int> first = number();
    const bool range = take(',');
    const std::optional<int> second = range ? number() : first;
    if (!take('}') || (!first && !range)) {
      at_ = before;
      return false;
    }
    least = first.value_or(0);
    most = second.value_or(kUnlimited);
    if (least > most) throw error("an impossible range");
    return true;
  }
  std::optional<int> number() {
    std::optional<int> value;
    while (!at_end() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      value = value.value_or(0) * 10 + (pattern_[at_++] - '0');
      if (*value > kMaxProgram) throw error("too many repetitions");
    }
    return value;
  }

  // Repeats what stands from start on.
  void repeat(int64_t start, int least, int most) {
    const std::vector<Instruction> piece(program_.begin() + start, program_.end());
    const int64_t length = std::ssize(piece);
    const auto append = [&] {
      for (const Instruction& i : piece) emit(i);
    };
    program_.resize(start);
    for (int i = 0; i < least; ++i) append();
    if (most == kUnlimited) {
      emit({Op::kFork, 1, length + 2});
      append();
      emit({Op::kJump, -(length + 1)});
    } else {
      for (int i = least; i < most; ++i) {
        emit({Op::kFork, 1, length + 1});
        append();
      }
    }
  }

  std::string_view pattern_;
  size_t at_ = 0;
  int depth_ = 0;
  std::vector<Instruction> program_;
};

Regex::Regex(std::string_view pattern) : program_(Parser(pattern).parse()) {}

// Adds pc and everything that it leads to without a character.
void Regex::add(Threads& threads, int64_t pc, std::string_view name, size_t at) const {
  size_t next = threads.list.size();
  threads.add(pc);
  for (; next < threads.list.size(); ++next) {
    pc = threads.list[next];
    const Instruction& i = program_[pc];
    const auto jump = [&](int64_t by) { threads.add(pc + by); };
    if (i.op == Op::kJump || i.op == Op::kFork) jump(i.to);
    if (i.op == Op::kFork) jump(i.or_to);
    if ((i.op == Op::kBegin && at == 0) || (i.op == Op::kEnd && at == name.size())) jump(1);
  }
}

}  // namespace trimtab
