// SPDX-License-Identifier: Apache-2.0
#include "trimtab/safetensors.h"

#include <gtest/gtest.h>

#include <array>
#include <span>

#include "base/cat.h"
#include "files/testing.h"

namespace trimtab {
namespace {

std::span<const std::byte> bytes_of(const std::string& image) {
  return {reinterpret_cast<const std::byte*>(image.data()), image.size()};
}

// The error of an image with this header, which must be about "file".
std::string refused(std::string_view header, size_t data_bytes = 0) {
  const std::string image = safetensors_image(header, data_bytes);
  const std::string text =
      error_text<FormatError>([&] { parse_safetensors(bytes_of(image), "file"); });
  EXPECT_TRUE(text.starts_with("file at byte ")) << text;
  return text;
}

// The same, which must also say the offset, count from the first byte of the file.
std::string refused_at(size_t offset, std::string_view header, size_t data_bytes = 0) {
  const std::string text = refused(header, data_bytes);
  EXPECT_TRUE(text.starts_with(cat("file at byte ", offset, ": "))) << text;
  return text;
}

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    EXPECT_NE(text.find(word), text.npos) << "'" << word << "' is not in: " << text;
}

TEST(SafeTensors, EveryElementType) {
  struct Type {
    DType dtype;
    const char* name;
    int bits;
  };
  constexpr std::array<Type, 17> kAll = {{{DType::kBool, "BOOL", 8},
                                          {DType::kU8, "U8", 8},
                                          {DType::kI8, "I8", 8},
                                          {DType::kI16, "I16", 16},
                                          {DType::kU16, "U16", 16},
                                          {DType::kF16, "F16", 16},
                                          {DType::kBF16, "BF16", 16},
                                          {DType::kI32, "I32", 32},
                                          {DType::kU32, "U32", 32},
                                          {DType::kF32, "F32", 32},
                                          {DType::kI64, "I64", 64},
                                          {DType::kU64, "U64", 64},
                                          {DType::kF64, "F64", 64},
                                          {DType::kF8E4M3, "F8_E4M3", 8},
                                          {DType::kF8E5M2, "F8_E5M2", 8},
                                          {DType::kF8E8M0, "F8_E8M0", 8},
                                          {DType::kF4, "F4", 4}}};
  for (const Type& type : kAll) {
    const size_t size = 6 * static_cast<size_t>(type.bits) / 8;
    const std::string image = safetensors_image(
        cat(R"({"t":{"dtype":")", type.name, R"(","shape":[2,3],"data_offsets":[0,)", size, "]}}"),
        size);
    const auto tensors = parse_safetensors(bytes_of(image), "file");
    const TensorView& tensor = tensors.at("t");
    EXPECT_EQ(tensor.dtype, type.dtype) << type.name;
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(tensor.data.size(), size);
    EXPECT_EQ(tensor.data.data(), bytes_of(image).data() + image.size() - size);
  }
}

TEST(SafeTensors, OrderOfTheHeaderIsFree) {
  const std::string image = safetensors_image(
      R"({"b":{"shape":[1],"data_offsets":[4,5],"dtype":"U8"},"__metadata__":{"k":"v"},)"
      R"("\u0061\"":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
      5);
  std::map<std::string, std::string> metadata;
  const auto tensors = parse_safetensors(bytes_of(image), "file", &metadata);
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors.at("a\"").data[3], std::byte{3});
  EXPECT_EQ(tensors.at("b").data[0], std::byte{4});
  EXPECT_EQ(metadata, (std::map<std::string, std::string>{{"k", "v"}}));
}

TEST(SafeTensors, EmptyTensorsAndEmptyFiles) {
  EXPECT_TRUE(parse_safetensors(bytes_of(safetensors_image("{}", 0)), "file").empty());
  const std::string image =
      safetensors_image(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                        R"("c":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]}})",
                        4);
  const auto tensors = parse_safetensors(bytes_of(image), "file");
  EXPECT_TRUE(tensors.at("b").data.empty());
  EXPECT_TRUE(tensors.at("c").data.empty());
  EXPECT_EQ(tensors.at("c").shape, (std::vector<int64_t>{3, 0}));
}

TEST(SafeTensors, LengthOfTheHeader) {
  const auto refuse = [](const std::string& image) {
    return error_text<FormatError>([&] { parse_safetensors(bytes_of(image), "file"); });
  };
  EXPECT_EQ(refuse(""),
            "file at byte 0: has 0 bytes, too few for the length of a safetensors header");
  expect_words(refuse("1234567"), {"file at byte 0", "7 bytes"});
  std::string image = safetensors_image("{}", 0);
  image[0] = 3;
  expect_words(refuse(image), {"file at byte 0", "3 bytes goes beyond", "10 bytes of the file"});
  const uint64_t limit = 100'000'001;
  std::memcpy(image.data(), &limit, sizeof limit);
  expect_words(refuse(image), {"file at byte 0", "100000001", "limit of 100000000"});
  image.replace(0, 8, std::string(8, '\xff'));
  expect_words(refuse(image), {"file at byte 0", "18446744073709551615", "limit"});
}

TEST(SafeTensors, Json) {
  expect_words(refused_at(8, ""), {"begin with '{'"});
  expect_words(refused_at(8, " {}"), {"begin with '{'"});
  expect_words(refused_at(8, "\xef\xbb\xbf{}"), {"begin with '{'"});
  expect_words(refused("{"), {"not valid JSON"});
  expect_words(refused("{} x"), {"not valid JSON"});
  expect_words(refused("{}{}"), {"not valid JSON"});
  expect_words(refused("{\"\xff\":1}"), {"not valid JSON", "UTF-8"});
  expect_words(refused_at(10, std::string_view("{}\0", 3)), {"NUL"});
  expect_words(refused_at(10, std::string_view("{}\0{}", 5)), {"NUL"});
}

TEST(SafeTensors, DeepNestingIsRefusedAtOnce) {
  const std::string deep = R"({"t":{"shape":)" + std::string(1 << 20, '[');
  expect_words(refused_at(24, deep), {"tensor 't'", "array"});
  expect_words(refused("{\"t\":{\"shape\":{"), {"tensor 't'", "object"});
  expect_words(refused("{\"t\":[["), {"array", "'t'"});
}

TEST(SafeTensors, KeysThatComeTwice) {
  const std::string a = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_words(refused_at(9 + a.size() + 1, "{" + a + "," + a + "}"), {"key 'a' comes twice"});
  expect_words(refused(R"({"a":{"dtype":"U8","dtype":"U8"}})"),
               {"tensor 'a'", "key 'dtype' comes twice"});
  expect_words(refused(R"({"__metadata__":{"k":"v","k":"v"}})"),
               {"__metadata__", "key 'k' comes twice"});
  expect_words(refused(R"({"__metadata__":{},"__metadata__":{}})"),
               {"key '__metadata__' comes twice"});
}

TEST(SafeTensors, FieldsOfAnEntry) {
  expect_words(refused_at(9, R"({"a":{"shape":[0],"data_offsets":[0,0]}})"),
               {"tensor 'a'", "no dtype"});
  expect_words(refused_at(9, R"({"a":{"dtype":"U8","data_offsets":[0,0]}})"),
               {"tensor 'a'", "no shape"});
  expect_words(refused_at(9, R"({"a":{"dtype":"U8","shape":[0]}})"),
               {"tensor 'a'", "no data_offsets"});
  expect_words(refused_at(14, R"({"a":{"d\"\\":1}})"), {"tensor 'a'", "unknown field 'd\"\\'"});
  expect_words(refused_at(22, R"({"a":{"dtype":"F7"}})"), {"tensor 'a'", "'F7' is not known"});
  expect_words(refused_at(14, R"({"a":{"data_offsets":[0]}})"),
               {"tensor 'a'", "1 numbers in place of 2"});
  expect_words(refused(R"({"a":{"data_offsets":[0,0,0]}})"), {"tensor 'a'", "3 numbers"});
  for (const char* value :
       {"-1", "1.0", "1e3", "18446744073709551616", "null", "true", "\"1\"", "{}", "[]"}) {
    expect_words(refused(cat(R"({"a":{"shape":[)", value, "]}}")), {"tensor 'a'", "'shape'"});
  }
  for (const char* value : {"1", "null", "[]", "{}", "false"}) {
    expect_words(refused(cat(R"({"a":{"dtype":)", value, "}}")), {"tensor 'a'", "'dtype'"});
    expect_words(refused(cat(R"({"__metadata__":{"k":)", value, "}}")), {"__metadata__", "'k'"});
  }
  for (const char* value : {"1", "null", "[]", "\"x\"", "false"})
    expect_words(refused(cat(R"({"a":)", value, "}")), {"'a'"});
}

// An entry of one byte elements.
std::string entry(const char* name, const char* shape, size_t begin, size_t end,
                  const char* dtype = "U8") {
  return cat('"', name, R"(":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":[)",
             begin, ',', end, "]}");
}

TEST(SafeTensors, Layout) {
  const std::string first = entry("a", "[4]", 0, 4) + ",";
  const size_t second = 9 + first.size();  // where b's name stands
  const auto b = [&](const char* shape, size_t begin, size_t end) {
    return "{" + first + entry("b", shape, begin, end) + "}";
  };
  expect_words(refused_at(second, b("[4]", 3, 7), 7),
               {"tensor 'b'", "[3, 7]", "overlap", "ends at 4"});
  expect_words(refused_at(second, b("[4]", 5, 9), 9),
               {"tensor 'b'", "[5, 9]", "hole", "ends at 4"});
  expect_words(refused_at(second, b("[0]", 5, 4), 4),
               {"tensor 'b'", "[5, 4]", "end before they begin"});
  expect_words(refused_at(second, b("[4]", 4, 8), 7),
               {"tensor 'b'", "[4, 8]", "beyond the 7 bytes"});
  expect_words(refused_at(second, b("[3]", 4, 8), 8),
               {"tensor 'b'", "hold 4 bytes", "shape [3] of U8 has 3"});
  expect_words(refused_at(9, "{" + entry("a", "[1]", 1, 2) + "}", 2),
               {"tensor 'a'", "hole", "ends at 0"});
  const std::string only = "{" + entry("a", "[4]", 0, 4) + "}";
  expect_words(refused_at(8 + only.size() + 4, only, 9), {"5 bytes of data belong to no tensor"});
  expect_words(refused_at(10, "{}", 1), {"1 bytes of data belong to no tensor"});
}

TEST(SafeTensors, SizesThatOverflow) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[9223372036854775807,2]", "[9223372036854775808]",
        "[18446744073709551615]", "[4611686018427387904,8,0]"}) {
    expect_words(refused_at(9, "{" + entry("a", shape, 0, 0) + "}"),
                 {"tensor 'a'", "overflows 64 bits"});
  }
  expect_words(refused("{" + entry("a", "[4611686018427387904]", 0, 0, "F64") + "}"),
               {"tensor 'a'", "overflows"});
  expect_words(refused("{" + entry("a", "[1]", 18446744073709551615U, 18446744073709551615U) + "}"),
               {"beyond the 0"});
  expect_words(refused("{" + entry("a", "[3]", 0, 2, "F4") + "}", 2),
               {"tensor 'a'", "[3] of F4", "whole byte"});
}

}  // namespace
}  // namespace trimtab
