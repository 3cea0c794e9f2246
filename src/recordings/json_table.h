// SPDX-License-Identifier: Apache-2.0
// Nested lists of whole numbers in JSON, as all engines write loads and placements.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recordings/json_reader.h"
#include "trimtab/table.h"

namespace trimtab {

// A nested list of whole numbers in which all lists of a level have the same length.
struct IntTable {
  std::vector<int64_t> shape;
  std::vector<int64_t> values;  // row-major
  std::vector<int64_t> row_at;  // the byte at which each innermost list begins
  int64_t at = 0;               // the byte at which the whole begins

  Table<const int64_t> rows() const { return {values, shape.back()}; }
};

// Reads the next value as a table of min_dims to max_dims dimensions of numbers in [min, max].
// what: the name of the table in errors. Throws FormatError.
IntTable read_table(JsonReader& json, std::string_view what, int min_dims, int max_dims,
                    int64_t max, int64_t min = 0);

// Appends "[a, b]".
template <class Int>
void append_list(std::string& out, std::span<const Int> values) {
  out += '[';
  bool first = true;
  for (const Int value : values) {
    if (!first) out += ", ";
    first = false;
    out += std::to_string(value);
  }
  out += ']';
}

// Appends "[[a, b], [c, d]]", with a line for each row.
template <class Int>
void append_rows(std::string& out, Table<const Int> rows) {
  out += '[';
  for (int64_t row = 0; row < rows.rows(); ++row) {
    if (row > 0) out += ",\n  ";
    append_list(out, rows[row]);
  }
  out += ']';
}

}  // namespace trimtab
