// SPDX-License-Identifier: Apache-2.0
#include "files/stand_in.h"

#include "trimtab/error.h"

namespace trimtab {

void refuse_stand_in(std::string_view text, const std::string& file) {
  constexpr struct {
    std::string_view begin;
    const char* what;
  } kKnown[] = {
      {"version https://git-lfs.github.com/spec/",
       "a Git LFS pointer, which stands in the place of the data; fetch them: git lfs pull"},
      {"/annex/objects/",
       "a git-annex pointer, which stands in the place of the data; fetch them: git annex get "
       "FILE"},
      {"<!DOCTYPE html", "an HTML page in the place of the data; download the file again"},
      {"<!doctype html", "an HTML page in the place of the data; download the file again"},
      {"<html", "an HTML page in the place of the data; download the file again"},
  };
  for (const auto& [begin, what] : kKnown)
    if (text.starts_with(begin)) throw FormatError(file, 0, what);
}

}  // namespace trimtab
