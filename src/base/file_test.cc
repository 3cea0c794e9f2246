// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

#include "base/test_folder.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

void write(const std::string& path, std::string_view text) {
  write_file(path, {bytes_of(text)});
}

TEST(WriteFile, PartsStandOneAfterTheOther) {
  const TestFolder folder;
  write_file(folder.path("a"), {bytes_of("one "), {}, bytes_of("two")});
  EXPECT_EQ(folder.read("a"), "one two");
  EXPECT_EQ(folder.num_files(), 1);  // no temporary file is left
}

TEST(WriteFile, AFailedWriteLeavesTheOldFileAndNothingElse) {
  const TestFolder folder;
  EXPECT_THROW(write(folder.path("no/such/folder"), "x"), Error);
  fs::create_directory(folder.path("taken"));
  folder.write("taken/inside", "");
  EXPECT_THROW(write(folder.path("taken"), "x"), Error);  // the rename fails
  EXPECT_EQ(folder.num_files(), 1);
  EXPECT_TRUE(fs::exists(folder.path("taken/inside")));
}

TEST(WriteFile, ALinkStaysAndItsTargetChanges) {
  const TestFolder folder;
  folder.write("target", "old");
  fs::create_symlink("target", folder.path("link"));
  write(folder.path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(folder.path("link")));
  EXPECT_EQ(folder.read("target"), "new");
}

TEST(WriteFile, TheModeOfTheOldFileStays) {
  const TestFolder folder;
  for (const mode_t mode : {0600, 0644, 0664, 0444, 0755}) {
    folder.write("a", "old");
    ASSERT_EQ(::chmod(folder.path("a").c_str(), mode), 0);
    fs::remove(folder.path("link"));
    fs::create_symlink("a", folder.path("link"));
    for (const char* name : {"a", "link"}) {
      write(folder.path(name), "new");
      struct stat info = {};
      ASSERT_EQ(::stat(folder.path("a").c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 07777, mode) << name;
      EXPECT_EQ(folder.read("a"), "new");
    }
    fs::remove(folder.path("a"));
  }
}

TEST(WriteFile, ANewFileHasTheModeThatTheUserWants) {
  const TestFolder folder;
  const mode_t before = ::umask(027);
  write(folder.path("a"), "new");
  ::umask(before);
  struct stat info = {};
  ASSERT_EQ(::stat(folder.path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640U);
}

TEST(WriteFile, APipeIsWrittenToNotReplaced) {
  const TestFolder folder;
  const std::string path = folder.path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::string got;
  std::jthread reader([&] { got = folder.read("pipe"); });
  write(path, "x");
  reader.join();
  EXPECT_TRUE(fs::is_fifo(path));
  EXPECT_EQ(got, "x");
}

TEST(WriteFile, ReplacesPastAbandonedTemporaries) {
  const TestFolder folder;
  folder.write("a.tmp0", "left by a writer that was killed");
  folder.write("a", "old");
  write(folder.path("a"), "new");
  EXPECT_EQ(folder.read("a"), "new");
  EXPECT_EQ(folder.num_files(), 2);
}

TEST(WriteFile, ReadersAndWritersAtOnceSeeWholeFiles) {
  const TestFolder folder;
  const auto write_many = [&](char value) {
    write(folder.path("a"), std::string(5000 + 1000 * (value - '0'), value));
  };
  write_many('0');
  std::vector<std::thread> writers;
  for (const char value : {'1', '2'}) {
    writers.emplace_back([&, value] {
      for (int i = 0; i < 20; ++i) write_many(value);
    });
  }
  for (int i = 0; i < 50; ++i) {
    const std::vector<std::byte> seen = read_file(folder.path("a"));
    const char value = std::to_integer<char>(seen[0]);
    EXPECT_EQ(seen.size(), 5000U + 1000U * (value - '0'));
    EXPECT_EQ(seen, std::vector<std::byte>(seen.size(), seen[0]));
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(folder.num_files(), 1);
}

TEST(FileWriter, AppearsWholeWithCommit) {
  const TestFolder folder;
  {
    FileWriter writer(folder.path("a"));
    writer.write(bytes_of("one "));
    EXPECT_FALSE(fs::exists(folder.path("a")));
    writer.write(bytes_of("two"));
    writer.commit();
  }
  EXPECT_EQ(folder.read("a"), "one two");
  EXPECT_EQ(folder.num_files(), 1);
}

TEST(FileWriter, WithoutCommitTheOldFileStaysAndNothingElse) {
  const TestFolder folder;
  folder.write("a", "old");
  {
    FileWriter(folder.path("a")).write(bytes_of("new"));
  }
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.num_files(), 1);
}

// As the command's signal handler does.
TEST(FileWriter, AnInterruptedProcessLeavesNothing) {
  const TestFolder folder;
  folder.write("a", "old");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGTERM, [](int) {
      remove_unfinished_files();
      _exit(7);
    });
    FileWriter first(folder.path("a")), second(folder.path("b"));
    first.write(bytes_of("new"));
    ::raise(SIGTERM);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.num_files(), 1);
}

TEST(ReadFile, WhatIsNoFileIsAnError) {
  const TestFolder folder;
  EXPECT_THROW(read_file(folder.path("absent")), Error);
  EXPECT_THROW(read_file(folder.path()), Error);
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_file(folder.path("pipe")), Error);  // and does not wait for a writer
  folder.write("empty", "");
  EXPECT_TRUE(read_file(folder.path("empty")).empty());
}

}  // namespace
}  // namespace trimtab
