// SPDX-License-Identifier: Apache-2.0
// Numbers of every step of a run, kept in a temporary file without a name, so that memory does not
// grow with the steps and nothing is left when the run ends in any way.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace trimtab::cli {

// Several writers, each with its own thread, append as many rows as there are steps.
class StepLog {
 public:
  // row: numbers that each writer appends per step. Throws Error when there is no room for a file.
  StepLog(int writers, int64_t row);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // Appends the writer's row of its next step: [row]. Throws Error when the file can't take it.
  void append(int writer, std::span<const int32_t> values);

  int64_t row() const { return row_; }
  // Steps that a block holds; reading goes block by block.
  int64_t block_steps() const { return block_steps_; }
  // The writer's rows of the steps from `first` on, a multiple of block_steps(): [steps, row],
  // where steps is block_steps() or what is left up to the writer's last step. No writer may append
  // at the same time. The view lasts until the next call.
  std::span<const int32_t> read(int writer, int64_t first);

 private:
  struct Writer {
    std::vector<int32_t> block;  // rows that are not in the file yet
    int64_t steps = 0;
  };
  int64_t offset(int writer, int64_t block) const;

  int fd_;
  int64_t row_;
  int64_t block_steps_;
  std::vector<Writer> writers_;
  std::vector<int32_t> read_;
};

}  // namespace trimtab::cli
