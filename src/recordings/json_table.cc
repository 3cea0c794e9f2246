// SPDX-License-Identifier: Apache-2.0
#include "recordings/json_table.h"

#include "base/cat.h"

namespace trimtab {
namespace {

// Reads one level of a nested list; depth counts from the outside.
class TableReader {
 public:
  TableReader(JsonReader& json, std::string_view what, int max_dims, int64_t min, int64_t max,
              IntTable& table)
      : json_(json), what_(what), max_dims_(max_dims), min_(min), max_(max), table_(table) {}

  void read(int depth) {
    const int64_t at = json_.offset();
    json_.begin_array();
    bool leaves = false;
    int64_t length = 0;
    while (json_.next_element()) {
      const bool list = json_.peek() == '[';
      if (length++ == 0) leaves = start(depth, list);
      if (list == leaves)
        json_.fail(json_.offset(),
                   cat(what_, ": lists and numbers mixed, or lists of unequal depth"));
      if (list) {
        read(depth + 1);
      } else {
        table_.values.push_back(json_.integer(min_, max_));
      }
    }
    if (length == 0) json_.fail(at, cat(what_, ": an empty list"));
    if (leaves) table_.row_at.push_back(at);
    int64_t& expected = table_.shape[depth];
    if (expected == 0) expected = length;
    if (expected != length)
      json_.fail(at, cat(what_, ": a list of ", length, " after lists of ", expected));
  }

 private:
  // Returns whether this level holds numbers. The first branch down decides for all.
  bool start(int depth, bool list) {
    if (depth == std::ssize(table_.shape)) {
      if (depth == max_dims_)
        json_.fail(json_.offset(), cat(what_, ": lists nested more than ", max_dims_, " deep"));
      table_.shape.push_back(0);
      if (!list) dims_ = depth + 1;
    }
    return depth + 1 == dims_;
  }

  JsonReader& json_;
  std::string_view what_;
  int max_dims_;
  int64_t min_;
  int64_t max_;
  IntTable& table_;
  int dims_ = 0;
};

}  // namespace

IntTable read_table(JsonReader& json, std::string_view what, int min_dims, int max_dims,
                    int64_t max, int64_t min) {
  IntTable table;
  table.at = json.offset();
  TableReader(json, what, max_dims, min, max, table).read(0);
  if (std::ssize(table.shape) < min_dims) {
    json.fail(table.at, cat(what, ": lists nested ", table.shape.size(), " deep; at least ",
                            min_dims, " expected"));
  }
  return table;
}

}  // namespace trimtab
