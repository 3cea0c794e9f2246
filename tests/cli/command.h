// SPDX-License-Identifier: Apache-2.0
// Runs the trimtab command for the tests.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace trimtab::cli {

inline const std::string kTinyMoe = std::string(TRIMTAB_SOURCE_DIR) + "/models/tiny-moe";
inline const std::string kFixtures = std::string(TRIMTAB_SOURCE_DIR) + "/tests/fixtures/checkpoints/";

// A new directory that goes with the object.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trimtab_cli_test_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Outcome {
  int status = 0;
  std::string out, err;
};

// arguments: as a shell takes them.
inline Outcome trimtab(const std::string& arguments) {
  const Scratch scratch;
  const std::string out = scratch.file("stdout"), err = scratch.file("stderr");
  const int status = std::system((std::string(TRIMTAB_BINARY) + " " + arguments + " >" + out + " 2>" + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

}  // namespace trimtab::cli
