// SPDX-License-Identifier: Apache-2.0
#include "trimtab/cost_file.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/cat.h"
#include "base/file.h"
#include "base/quoted.h"
#include "recordings/json_table.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr std::string_view kCosts = "trimtab_costs";

// The values of one entry, as they were read.
struct Entry {
  std::string shape, weights, isa;
  int64_t hidden = 0, intermediate = 0, threads = 0, wire = 0;
  std::vector<CostPoint> points;
  std::vector<int32_t> speeds;
};

std::vector<CostPoint> read_points(JsonReader& json) {
  const IntTable table = read_table(json, "points", 2, 2, CostModel::kMostPicoseconds);
  if (table.shape.back() != 2 && !table.values.empty())
    json.fail(table.at, "points are pairs of rows and picoseconds");
  std::vector<CostPoint> points;
  for (size_t i = 0; i + 1 < table.values.size(); i += 2)
    points.push_back({.rows = table.values[i], .picoseconds = table.values[i + 1]});
  return points;
}

std::vector<int32_t> read_speeds(JsonReader& json) {
  const IntTable table = read_table(json, "speeds", 1, 1, std::numeric_limits<int32_t>::max());
  return {table.values.begin(), table.values.end()};
}

MeasuredCost read_entry(JsonReader& json) {
  const int64_t at = json.offset();
  Entry entry;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    const int64_t at_value = json.offset();
    if (key == "shape") {
      entry.shape = json.string();
    } else if (key == "weights") {
      entry.weights = json.string();
    } else if (key == "isa") {
      entry.isa = json.string();
    } else if (key == "hidden") {
      entry.hidden = json.integer(1, INT32_MAX);
    } else if (key == "intermediate") {
      entry.intermediate = json.integer(1, INT32_MAX);
    } else if (key == "threads") {
      entry.threads = json.integer(1, INT32_MAX);
    } else if (key == "points") {
      entry.points = read_points(json);
    } else if (key == "speeds") {
      entry.speeds = read_speeds(json);
    } else if (key == "wire_picoseconds") {
      entry.wire = json.integer(0, CostModel::kMostPicoseconds);
    } else {
      json.fail(at_value, cat("unknown key ", json_quoted(key)));
    }
  }
  const auto need = [&](const char* name, bool there) {
    if (!there) json.fail(at, cat("a cost without ", json_quoted(name)));
  };
  need("hidden", entry.hidden > 0);
  need("intermediate", entry.intermediate > 0);
  need("weights", !entry.weights.empty());
  need("isa", !entry.isa.empty());
  need("threads", entry.threads > 0);
  need("points", !entry.points.empty());
  try {
    return {.shape = entry.shape,
            .hidden = entry.hidden,
            .intermediate = entry.intermediate,
            .weights = entry.weights,
            .isa = entry.isa,
            .threads = static_cast<int>(entry.threads),
            .cost = CostModel(std::move(entry.points), std::move(entry.speeds), entry.wire)};
  } catch (const InvalidArgument& error) {
    json.fail(at, error.what());
  }
}

std::string entry_text(const MeasuredCost& measured) {
  std::vector<int64_t> points;
  for (const CostPoint& point : measured.cost.points()) {
    points.push_back(point.rows);
    points.push_back(point.picoseconds);
  }
  std::string out =
      cat("{\"shape\": ", json_quoted(measured.shape), ", \"hidden\": ", measured.hidden,
          ", \"intermediate\": ", measured.intermediate,
          ", \"weights\": ", json_quoted(measured.weights),
          ", \"isa\": ", json_quoted(measured.isa), ", \"threads\": ", measured.threads);
  if (measured.cost.has_speeds()) {
    out += ", \"speeds\": ";
    append_list(out, measured.cost.speeds());
  }
  if (measured.cost.wire_picoseconds() > 0)
    out += cat(", \"wire_picoseconds\": ", measured.cost.wire_picoseconds());
  out += ",\n \"points\": ";
  append_rows(out, Table<const int64_t>(points, 2));
  return out + "}";
}

std::string text_of(int64_t hidden, int64_t intermediate, const std::string& weights,
                    const std::string& isa, int threads) {
  return cat(weights, " experts of ", hidden, " x ", intermediate, " with ", isa, " on ", threads,
             threads == 1 ? " thread" : " threads");
}

}  // namespace

std::vector<MeasuredCost> parse_costs(std::string_view text, const std::string& file) {
  JsonReader json(text, file);
  std::vector<MeasuredCost> costs;
  FormatKeys format(kCosts);
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    const int64_t at = json.offset();
    if (format.read(json, key, at)) continue;
    if (key == "costs") {
      json.begin_array();
      while (json.next_element()) costs.push_back(read_entry(json));
    } else {
      json.fail(at, cat("unknown key ", json_quoted(key)));
    }
  }
  json.end();
  format.check(file);
  if (costs.empty()) throw FormatError(file, 0, "no costs");
  return costs;
}

std::vector<MeasuredCost> read_costs(const std::string& path) {
  const std::vector<std::byte> image = read_file(path);
  return parse_costs({reinterpret_cast<const char*>(image.data()), image.size()}, path);
}

std::string serialize_costs(std::span<const MeasuredCost> costs) {
  std::string out = cat("{\"format\": ", json_quoted(kCosts), ", \"version\": 1, \"costs\": [");
  for (size_t i = 0; i < costs.size(); ++i) out += (i == 0 ? "\n" : ",\n") + entry_text(costs[i]);
  return out + "\n]}\n";
}

void write_costs(const std::string& path, std::span<const MeasuredCost> costs) {
  const std::string text = serialize_costs(costs);
  write_file(path, {std::as_bytes(std::span(text))});
}

const MeasuredCost& find_cost(std::span<const MeasuredCost> costs, const WantedCost& wanted,
                              const std::string& file) {
  std::string there;
  for (const MeasuredCost& c : costs) {
    if (c.hidden == wanted.hidden && c.intermediate == wanted.intermediate &&
        c.weights == wanted.weights && c.isa == wanted.isa && c.threads == wanted.threads) {
      return c;
    }
    there += (there.empty() ? "" : "; ") +
             text_of(c.hidden, c.intermediate, c.weights, c.isa, c.threads);
  }
  throw InvalidArgument(
      cat(file, " has no cost of ",
          text_of(wanted.hidden, wanted.intermediate, wanted.weights, wanted.isa, wanted.threads),
          "; it has ", there));
}

}  // namespace trimtab
