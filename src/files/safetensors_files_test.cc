// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/cat.h"
#include "files/safetensors_writer.h"
#include "files/testing.h"
#include "trimtab/safetensors.h"

namespace trimtab {
namespace {

// A file with these tensors of three bytes each.
std::string file_with(std::initializer_list<const char*> names,
                      const char* metadata = R"("format":"pt")") {
  std::string header = cat(R"({"__metadata__":{)", metadata, "}");
  size_t end = 0;
  for (const char* name : names) {
    header += cat(",\"", name, R"(":{"dtype":"U8","shape":[1,3],"data_offsets":[)", end, ",",
                  end + 3, "]}");
    end += 3;
  }
  return safetensors_image(header + "}", end);
}

std::string open_error(const std::string& path) {
  return error_text<FormatError>([&] { SafeTensors::open(path); });
}

TEST(CheckpointFiles, OneFile) {
  const TestFolder folder;
  folder.write("model.safetensors", file_with({"a", "b"}));
  folder.write("model.safetensors.index.json", "broken, but not looked at");
  for (const std::string& path : {folder.path(), folder.path("model.safetensors")}) {
    const SafeTensors tensors = SafeTensors::open(path);
    EXPECT_EQ(tensors.path(), folder.path("model.safetensors"));
    EXPECT_EQ(tensors.names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(tensors.metadata().at("format"), "pt");
    EXPECT_TRUE(tensors.contains("b"));
    EXPECT_FALSE(tensors.contains("c"));
    EXPECT_EQ(tensors.at("b", std::array<int64_t, 2>{1, 3}).data[0], std::byte{3});
  }
}

TEST(CheckpointFiles, ACopyKeepsTheMap) {
  const TestFolder folder;
  folder.write("x.safetensors", file_with({"a"}));
  auto first = std::make_unique<SafeTensors>(SafeTensors::open(folder.path("x.safetensors")));
  const SafeTensors copy = *first;
  first.reset();
  std::filesystem::remove(folder.path("x.safetensors"));
  EXPECT_EQ(copy.at("a").data[2], std::byte{2});
}

TEST(CheckpointFiles, ErrorsNameFileTensorAndOffset) {
  const TestFolder folder;
  folder.write("x.safetensors", file_with({"a", "b"}));
  const std::string path = folder.path("x.safetensors");
  const SafeTensors tensors = SafeTensors::open(path);
  EXPECT_EQ(error_text<FormatError>([&] { tensors.at("c"); }), path + ": tensor 'c' is missing");
  const auto begin = std::filesystem::file_size(path) - 3;
  EXPECT_EQ(error_text<FormatError>([&] { tensors.at("b", std::array<int64_t, 1>{3}); }),
            cat(path, " at byte ", begin, ": tensor 'b' has shape [1, 3] in place of [3]"));
}

TEST(CheckpointFiles, WhatIsNoCheckpoint) {
  const TestFolder folder;
  EXPECT_EQ(open_error(folder.path("none.safetensors")),
            folder.path("none.safetensors") + ": can't be opened: No such file or directory");
  EXPECT_EQ(open_error(folder.path()),
            folder.path() + ": holds neither model.safetensors nor model.safetensors.index.json");
  folder.write("empty.safetensors", "");
  EXPECT_NE(open_error(folder.path("empty.safetensors")).find("has 0 bytes"), std::string::npos);
  ASSERT_EQ(::mkfifo(folder.path("pipe.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(open_error(folder.path("pipe.safetensors")),
            folder.path("pipe.safetensors") + ": is not a regular file");
  std::filesystem::create_directories(folder.path("model.safetensors"));
  EXPECT_EQ(open_error(folder.path()),
            folder.path("model.safetensors") + ": is not a regular file");
}

TEST(CheckpointFiles, Shards) {
  const TestFolder folder;
  folder.write("1.safetensors", file_with({"a", "shared", "extra"}, R"("one":"1")"));
  folder.write("2.safetensors", file_with({"shared", "b"}, R"("two":"2")"));
  folder.write("model.safetensors.index.json",
               R"({"metadata":{"total_size":12},"weight_map":{"a":"1.safetensors",)"
               R"("b":"2.safetensors","shared":"2.safetensors"}})");
  const SafeTensors tensors = SafeTensors::open(folder.path());
  EXPECT_EQ(tensors.path(), folder.path("model.safetensors.index.json"));
  EXPECT_EQ(tensors.names(), (std::vector<std::string>{"a", "b", "extra", "shared"}));
  EXPECT_EQ(tensors.metadata(), (std::map<std::string, std::string>{{"one", "1"}, {"two", "2"}}));
  EXPECT_EQ(tensors.at("shared").data[0], std::byte{0});  // the one of the second shard
  EXPECT_EQ(tensors.at("b").data[0], std::byte{3});
  const std::string error =
      error_text<FormatError>([&] { tensors.at("b", std::array<int64_t, 1>{3}); });
  EXPECT_TRUE(error.starts_with(folder.path("2.safetensors") + " at byte ")) << error;
  EXPECT_TRUE(error_text<FormatError>([&] { tensors.at("c"); }).starts_with(tensors.path()));
}

// The error of an index with this weight_map beside a shard "1.safetensors" with the tensors a and
// b.
std::string index_error(const std::string& index) {
  const TestFolder folder;
  folder.write("1.safetensors", file_with({"a", "b"}));
  folder.write("2.safetensors", file_with({"b"}));
  folder.write("model.safetensors.index.json", index);
  return open_error(folder.path());
}

TEST(CheckpointFiles, BrokenIndexes) {
  const auto expect = [](const std::string& index, const char* text) {
    const std::string error = index_error(index);
    EXPECT_NE(error.find(text), error.npos) << error;
  };
  expect(R"({"weight_map":{"c":"1.safetensors"}})", "index.json: tensor 'c' is not in the shard");
  expect(R"({"weight_map":{"a":"2.safetensors"}})", "index.json: tensor 'a' is not in the shard");
  expect(R"({"weight_map":{"a":"3.safetensors"}})", "3.safetensors: can't be opened");
  expect(R"({"weight_map":{"a":"1.safetensors","a":"1.safetensors"}})", "key 'a' comes twice");
  expect(R"({"weight_map":{"a":7}})", "tensor 'a': the shard's name is no string");
  expect(R"({"weight_map":[]})", "no object 'weight_map'");
  expect(R"([])", "no object 'weight_map'");
  expect(R"({"weight_map":{"a":"1.safetensors")", "index.json at byte 35: not valid JSON");
  expect(std::string(1000, '['), "nested more than 64 deep");
  for (const char* name : {"", ".", "..", "../1.safetensors", "/1.safetensors", "x/1.safetensors",
                           "x\\\\1", "1\\u0000"}) {
    expect(cat(R"({"weight_map":{"a":")", name, "\"}}"),
           "tensor 'a': the shard's name is not that of a file beside the index");
  }
}

TEST(CheckpointFiles, ATensorInTwoShardsThatTheIndexDoesNotList) {
  const TestFolder folder;
  folder.write("1.safetensors", file_with({"a", "twice"}));
  folder.write("2.safetensors", file_with({"b", "twice"}));
  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  const std::string error = open_error(folder.path());
  EXPECT_NE(error.find("1.safetensors at byte"), error.npos) << error;
  EXPECT_NE(error.find("tensor 'twice' is in " + folder.path("2.safetensors")), error.npos)
      << error;
}

TEST(WriteSafetensors, IsReadBackWithEveryTensorOnAPage) {
  const TestFolder folder;
  const std::string path = folder.path("x.safetensors");
  const std::vector<std::byte> few(5, std::byte{7}), many(2 * kFilePage, std::byte{9});
  const std::vector<TensorToWrite> tensors = {
      {"few", DType::kU8, {int64_t{kFilePage}}, few},
      {"many", DType::kI16, {2, int64_t{kFilePage} / 2}, many},
      {"last", DType::kU8, {5}, few}};
  write_safetensors(path, tensors, {{"key", "a \"quoted\" text"}});
  const SafeTensors read = SafeTensors::open(path);
  EXPECT_EQ(read.metadata().at("key"), "a \"quoted\" text");
  for (const TensorToWrite& tensor : tensors) {
    const TensorView& view = read.at(tensor.name, tensor.shape);
    EXPECT_EQ(view.dtype, tensor.dtype);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data.data()) % kFilePage, 0U) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(view.data.first(tensor.data.size()), tensor.data));
    SafeTensors::bring_in(view.data);
  }
  read.release_pages();
  EXPECT_EQ(read.at("last").data[4], std::byte{7});
  // Only the last one may end within a page.
  const std::vector<TensorToWrite> hole = {tensors[2], tensors[0]};
  EXPECT_NE(error_text<InvalidArgument>([&] { write_safetensors(path, hole, {}); }).find("'few'"),
            std::string::npos);
  EXPECT_EQ(folder.num_files(), 1);
}

}  // namespace
}  // namespace trimtab
