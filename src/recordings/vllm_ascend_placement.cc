// SPDX-License-Identifier: Apache-2.0
// The expert_map.json of vllm-ascend (vllm_ascend/eplb/core/eplb_utils.py). The engine reads
// moe_layer_count, layer_list, device_list and device_expert, goes by the order of the lists and
// passes over all other keys. So layer_id, device_id and device_count may be absent; but where they
// disagree with the order of the lists, the engine would load the file wrong, and this reader
// refuses it.
#include <optional>

#include "base/cat.h"
#include "base/quoted.h"
#include "recordings/checked_placement.h"
#include "recordings/ids.h"
#include "recordings/readers.h"
#include "trimtab/error.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {
namespace {

class ExpertMapReader {
 public:
  explicit ExpertMapReader(const Content& content)
      : file_(content.file()), json_(content.text(), file_) {}

  void read() {
    std::optional<int64_t> layers;
    object([&](const std::string& key) {
      if (key == "moe_layer_count") {
        layers = json_.count();
      } else if (key == "layer_list") {
        list([&] { read_layer(); });
      } else {
        json_.skip_value();
      }
    });
    json_.end();
    if (!layers) throw FormatError(file_, 0, "no moe_layer_count, which the engine needs");
    if (*layers != table.num_layers) {
      throw FormatError(file_, 0,
                        cat("moe_layer_count is ", *layers, "; layer_list has ", table.num_layers));
    }
    if (table.num_layers == 0) throw FormatError(file_, 0, "no layers");
    if (table.layer_ids.empty()) table.layer_ids = counted_ids<int>(table.num_layers);
    if (std::ssize(table.layer_ids) != table.num_layers)
      throw FormatError(file_, 0,
                        "some entries of layer_list have a layer_id and others have none");
  }

  SlotTable table;
  int num_devices = 0;
  int num_slots = 0;  // of a device

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
  void read_layer() {
    const int64_t at = json_.offset();
    std::optional<int> id;
    std::optional<int64_t> declared;
    int devices = 0;
    object([&](const std::string& key) {
      if (key == "layer_id") {
        id = json_.id(kMaxLayerId);
      } else if (key == "device_count") {
        declared = json_.count();
      } else if (key == "device_list") {
        list([&] { read_device(devices++); });
      } else {
        json_.skip_value();
      }
    });
    const std::string where = cat("entry ", table.num_layers, " of layer_list");
    if (id && !table.layer_ids.empty() && *id <= table.layer_ids.back()) {
      json_.fail(at, cat(where, ": layer_id ", *id, " after ", table.layer_ids.back(),
                         "; the engine goes by the order of the list"));
    }
    if (declared && *declared != devices) {
      json_.fail(at, cat(where, ": device_count is ", *declared, "; device_list has ", devices));
    }
    if (devices == 0) json_.fail(at, where + ": no devices in device_list");
    if (table.num_layers++ == 0) num_devices = devices;
    if (devices != num_devices) {
      json_.fail(at, cat(where, ": ", devices, " devices; the first has ", num_devices));
    }
    table.layer_at.push_back(at);
    if (id) table.layer_ids.push_back(*id);
  }

  void read_device(int place) {
    const int64_t at = json_.offset();
    std::optional<int64_t> id;
    int slots = 0;
    object([&](const std::string& key) {
      if (key == "device_id") {
        id = json_.count();
      } else if (key == "device_expert") {
        const IntTable experts = read_table(json_, key, 1, 1, kMaxExpertId);
        slots = static_cast<int>(experts.values.size());
        table.logical.insert(table.logical.end(), experts.values.begin(), experts.values.end());
      } else {
        json_.skip_value();
      }
    });
    if (id && *id != place) {
      json_.fail(at, cat("device_id ", *id, " at place ", place,
                         "; the engine goes by the order of the list"));
    }
    if (slots == 0) json_.fail(at, cat("device ", place, ": no device_expert"));
    if (num_slots == 0) num_slots = slots;
    if (slots != num_slots) {
      json_.fail(at, cat("device ", place, " has ", slots, " slots; the first has ", num_slots));
    }
  }

  const std::string& file_;
  JsonReader json_;
};

}  // namespace

PlacementFile read_vllm_ascend_placement(const Content& content, const PlacementOptions& options) {
  ExpertMapReader reader(content);
  reader.read();
  std::vector<int> slots(reader.num_devices, reader.num_slots);
  check_ranks(content.file(), slots, options);
  return make_placement(content.file(), std::move(reader.table), std::move(slots), 0, options);
}

std::string vllm_ascend_placement(const PlacementFile& file) {
  const Placement& placement = file.placement;
  equal_slots(placement, "vLLM-Ascend");
  const SlotRanges slots(placement.first_slots());
  std::string out = cat("{\"moe_layer_count\": ", placement.num_layers(), ", \"layer_list\": [");
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    out += cat(layer > 0 ? ",\n " : "", "{\"layer_id\": ", file.layer_ids[layer],
               ", \"device_count\": ", placement.num_ranks(), ", \"device_list\": [");
    for (int rank = 0; rank < placement.num_ranks(); ++rank) {
      out += cat(rank > 0 ? ",\n  " : "", "{\"device_id\": ", rank, ", \"device_expert\": ");
      append_list(out, slots.of(rank, placement.logical(layer)));
      out += '}';
    }
    out += "]}";
  }
  return out + "]}\n";
}

}  // namespace trimtab
