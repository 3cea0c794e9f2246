// SPDX-License-Identifier: Apache-2.0
// The content of a file that may be compressed. Its name is the one that the file has when it is
// unpacked, and errors count the bytes of the content.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/xz.h"

namespace trimtab {

class Content {
 public:
  // Throws as unpack_xz(). The image must outlive the object.
  Content(std::span<const std::byte> image, const std::string& file) : image_(image), file_(file) {
    if (!is_xz(image)) return;
    unpacked_ = unpack_xz(image, file);
    image_ = unpacked_;
    if (file_.ends_with(".xz")) file_.resize(file_.size() - 3);
  }
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  std::span<const std::byte> image() const { return image_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(image_.data()), image_.size()};
  }
  const std::string& file() const { return file_; }

 private:
  std::vector<std::byte> unpacked_;
  std::span<const std::byte> image_;
  std::string file_;
};

}  // namespace trimtab
