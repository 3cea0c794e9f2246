// SPDX-License-Identifier: Apache-2.0
// Runs the trimtab command for the tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace trimtab::cli {

#ifdef TRIMTAB_WITH_MPI
constexpr bool kHasMpi = true;
#else
constexpr bool kHasMpi = false;
#endif

inline const std::string kTinyMoe = std::string(TRIMTAB_SOURCE_DIR) + "/models/tiny-moe";
inline const std::string kFixtures =
    std::string(TRIMTAB_SOURCE_DIR) + "/tests/fixtures/checkpoints/";

// A new directory that goes with the object.
class Scratch {
 public:
  Scratch() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "trimtab_cli_test_XXXXXX").string();
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
  const int status = std::system(
      (std::string(TRIMTAB_BINARY) + " " + arguments + " >" + out + " 2>" + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

struct Failure {
  std::string arguments;
  std::string message;
};

// The one line on standard error, without "trimtab: "; progress may come before it.
inline std::string error_line(const Failure& failure, int status) {
  const Outcome run = trimtab(failure.arguments);
  EXPECT_EQ(run.status, status) << failure.arguments;
  EXPECT_EQ(run.out, "") << failure.arguments;
  const std::vector<std::string> err = lines(run.err);
  const bool progress = run.err.starts_with("loading ") || run.err.starts_with("packing ") ||
                        run.err.starts_with("verifying ") || run.err.starts_with("planning ");
  EXPECT_EQ(err.size(), progress ? 2U : 1U) << failure.arguments << "\n" << run.err;
  const std::string line = err.empty() ? "" : err.back();
  EXPECT_EQ(line.substr(0, 9), "trimtab: ") << failure.arguments;
  return line.substr(std::min<size_t>(line.size(), 9));
}

}  // namespace trimtab::cli
