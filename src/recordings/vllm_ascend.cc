// SPDX-License-Identifier: Apache-2.0
// vllm-ascend's expert_map.json (vllm_ascend/eplb/core/eplb_utils.py). The engine goes by the order
// of the lists and ignores layer_id and device_id, so a file where they disagree loads wrong there;
// here it is refused.
#include "base/cat.h"
#include "recordings/readers.h"
#include "recordings/tables.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

class MapReader {
 public:
  MapReader(std::string_view text, const std::string& file) : file_(file), json_(text, file) {}

  void read() {
    int64_t layers = -1;
    object([&](const std::string& key) {
      if (key == "moe_layer_count") {
        layers = json_.count();
      } else if (key == "layer_list") {
        list([&] { read_layer(); });
      } else {
        unknown(key);
      }
    });
    json_.end();
    if (layers != static_cast<int64_t>(table.num_layers)) {
      throw FormatError(file_, 0,
                        cat("moe_layer_count is ", layers, "; layer_list has ", table.num_layers));
    }
    if (layers == 0) throw FormatError(file_, 0, "no layers");
  }

  SlotTable table;
  size_t num_devices = 0;
  size_t num_slots = 0;  // of a device

 private:
  template <class Take>
  void object(Take take) {
    std::string key;
    json_.begin_object();
    while (json_.next_key(key)) take(key);
  }
  template <class Take>
  void list(Take take) {
    json_.begin_array();
    while (json_.next_element()) take();
  }
  [[noreturn]] void unknown(const std::string& key) {
    json_.fail(json_.offset(), cat("unknown key ", quoted(key)));
  }

  void read_layer() {
    const int64_t at = json_.offset();
    int64_t id = -1;
    int64_t declared = -1;
    size_t devices = 0;
    object([&](const std::string& key) {
      if (key == "layer_id") {
        id = json_.integer(0, kMaxLayerId);
      } else if (key == "device_count") {
        declared = json_.count();
      } else if (key == "device_list") {
        list([&] { read_device(devices++); });
      } else {
        unknown(key);
      }
    });
    const std::string where = cat("entry ", table.num_layers, " of layer_list");
    if (id < 0) json_.fail(at, where + ": no layer_id");
    if (!table.layer_ids.empty() && id <= table.layer_ids.back()) {
      json_.fail(at, cat(where, ": layer_id ", id, " after ", table.layer_ids.back(),
                         "; the engine goes by the order of the list"));
    }
    if (declared != static_cast<int64_t>(devices)) {
      json_.fail(at, cat(where, ": device_count is ", declared, "; device_list has ", devices));
    }
    if (table.num_layers++ == 0) num_devices = devices;
    if (devices == 0 || devices != num_devices) {
      json_.fail(at, cat(where, ": ", devices, " devices; the first has ", num_devices));
    }
    table.layer_at.push_back(at);
    table.layer_ids.push_back(static_cast<int>(id));
  }

  void read_device(size_t index) {
    const int64_t at = json_.offset();
    int64_t id = -1;
    size_t slots = 0;
    object([&](const std::string& key) {
      if (key == "device_id") {
        id = json_.count();
      } else if (key == "device_expert") {
        const IntTable experts = read_table(json_, key, 1, 1, kMaxExperts - 1);
        slots = experts.values.size();
        table.logical.insert(table.logical.end(), experts.values.begin(), experts.values.end());
      } else {
        unknown(key);
      }
    });
    if (id != static_cast<int64_t>(index)) {
      json_.fail(at, cat("device_id ", id, " at place ", index,
                         "; the engine goes by the order of the list"));
    }
    if (num_slots == 0) num_slots = slots;
    if (slots == 0 || slots != num_slots) {
      json_.fail(at, cat("device ", index, " has ", slots, " slots; the first has ", num_slots));
    }
  }

  const std::string& file_;
  JsonReader json_;
};

}  // namespace

PlacementFile read_ascend_placement(std::string_view text, const std::string& file,
                                    const PlacementOptions& options) {
  MapReader reader(text, file);
  reader.read();
  std::vector<int> slots(reader.num_devices, static_cast<int>(reader.num_slots));
  check_ranks(file, slots, options);
  return make_placement(file, std::move(reader.table), std::move(slots), 0, options);
}

std::string ascend_placement(const PlacementFile& file) {
  const Placement& placement = file.placement;
  const auto slots = static_cast<size_t>(equal_slots(placement, "vLLM-Ascend"));
  std::string out = cat("{\"moe_layer_count\": ", placement.num_layers(), ", \"layer_list\": [");
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    out += cat(layer > 0 ? ",\n " : "", "{\"layer_id\": ", file.layer_ids[layer],
               ", \"device_count\": ", placement.num_ranks(), ", \"device_list\": [");
    for (int rank = 0; rank < placement.num_ranks(); ++rank) {
      out += cat(rank > 0 ? ",\n  " : "", "{\"device_id\": ", rank, ", \"device_expert\": ");
      append_list(out, placement.logical(layer).subspan(static_cast<size_t>(rank) * slots, slots));
      out += '}';
    }
    out += "]}";
  }
  return out + "]}\n";
}

}  // namespace trimtab
