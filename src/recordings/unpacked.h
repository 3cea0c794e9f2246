// SPDX-License-Identifier: Apache-2.0
// The content of a file that may be compressed, under the name that it has when unpacked: errors
// count its bytes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "files/xz.h"

namespace trimtab {

class Unpacked {
 public:
  // Throws as unpack_xz(). image must outlive the object.
  Unpacked(std::span<const std::byte> image, const std::string& file) : image_(image), file_(file) {
    if (!is_xz(image)) return;
    bytes_ = unpack_xz(image, file);
    image_ = bytes_;
    if (file_.ends_with(".xz")) file_.resize(file_.size() - 3);
  }
  Unpacked(const Unpacked&) = delete;
  Unpacked& operator=(const Unpacked&) = delete;

  std::span<const std::byte> image() const { return image_; }
  const std::string& file() const { return file_; }

 private:
  std::vector<std::byte> bytes_;
  std::span<const std::byte> image_;
  std::string file_;
};

}  // namespace trimtab
