// SPDX-License-Identifier: Apache-2.0
#include "files/stand_in.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/test_folder.h"
#include "files/json.h"
#include "files/testing.h"
#include "trimtab/npy.h"

namespace trimtab {
namespace {

const std::string kPointer =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 12345\n";

template <class Call>
void expect_named(Call&& call, const std::string& what) {
  const std::string text = error_text<FormatError>(call);
  EXPECT_NE(text.find(what), text.npos) << text;
}

TEST(StandIn, EveryReaderNamesAnLfsPointer) {
  const TestFolder folder;
  for (const char* name : {"model.safetensors", "a.npy", "config.json"})
    folder.write(name, kPointer);
  expect_named([&] { SafeTensors::open(folder.path("model.safetensors")); }, "Git LFS pointer");
  expect_named([&] { SafeTensors::open(folder.path()); }, "git lfs pull");
  expect_named([&] { read_npy(folder.path("a.npy")); }, "Git LFS pointer");
  expect_named([&] { read_json(folder.path("config.json")); }, "Git LFS pointer");
}

TEST(StandIn, AShardAndAnIndexAreNamed) {
  const TestFolder folder;
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "1.safetensors"}})");
  folder.write("1.safetensors", kPointer);
  expect_named([&] { SafeTensors::open(folder.path()); }, "1.safetensors at byte 0: a Git LFS");
  folder.write("model.safetensors.index.json", kPointer);
  expect_named([&] { SafeTensors::open(folder.path()); }, "index.json at byte 0: a Git LFS");
}

TEST(StandIn, OthersAreNamedToo) {
  expect_named([] { refuse_stand_in("/annex/objects/MD5E-s5--abc\n", "a"); }, "git annex get");
  for (const char* page : {"<!DOCTYPE html><html>", "<!doctype html>", "<html lang=en>"})
    expect_named([&] { refuse_stand_in(page, "a"); }, "an HTML page");
  EXPECT_NO_THROW(refuse_stand_in("", "a"));
  EXPECT_NO_THROW(refuse_stand_in("version 1\n", "a"));
}

TEST(StandIn, AByteOrderMarkBeforeJsonIsNoData) {
  EXPECT_EQ(parse_json("\xef\xbb\xbf{\"a\": 1}", "a")["a"], 1);
}

}  // namespace
}  // namespace trimtab
