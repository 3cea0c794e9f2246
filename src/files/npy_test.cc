// SPDX-License-Identifier: Apache-2.0
#include "trimtab/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/test_folder.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;

const std::string kFixtures = std::string(TRIMTAB_SOURCE_DIR) + "/tests/fixtures/npy/";

template <class T>
std::vector<T> values(const NpyArray& array) {
  std::vector<T> out(array.data.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), array.data.data(), array.data.size());
  return out;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// An image of the given version, header text and data.
std::string image(std::string_view header, std::string_view data, char major = 1) {
  std::string out = "\x93NUMPY";
  out += major;
  out += '\0';
  const size_t length_bytes = major == 1 ? 2 : 4;
  for (size_t i = 0; i < length_bytes; ++i)
    out += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  out += header;
  out += data;
  return out;
}

NpyArray parse(std::string_view text) {
  return parse_npy(bytes_of(text), "some.npy");
}

// Refused, naming the file, an offset and the part.
void expect_refused(std::string_view text, const std::string& part, int64_t offset) {
  try {
    parse(text);
    ADD_FAILURE() << "accepted; should say " << part;
  } catch (const FormatError& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
        << e.what() << "\n lacks " << part;
    EXPECT_EQ(e.file(), "some.npy");
    EXPECT_EQ(e.offset(), offset) << e.what();
  }
}

TEST(ReadNpy, WhatNumpyWrote) {
  const NpyArray trace = read_npy(kFixtures + "i4_v1.npy");
  EXPECT_EQ(trace.dtype, DType::kI32);
  EXPECT_EQ(trace.shape, (Shape{2, 3, 4}));
  const std::vector<int32_t> numbers = values<int32_t>(trace);
  ASSERT_EQ(numbers.size(), 24U);
  for (int32_t i = 0; i < 24; ++i) EXPECT_EQ(numbers[i], i - 5);

  const NpyArray scalar = read_npy(kFixtures + "f8_scalar_v2.npy");
  EXPECT_EQ(scalar.dtype, DType::kF64);
  EXPECT_EQ(scalar.shape, Shape{});
  EXPECT_EQ(values<double>(scalar), std::vector<double>{-0.125});

  const NpyArray half = read_npy(kFixtures + "f2_v3.npy");
  EXPECT_EQ(half.dtype, DType::kF16);
  EXPECT_EQ(half.shape, Shape{3});
  const std::vector<f16_t> halves = values<f16_t>(half);
  EXPECT_EQ(to_float(halves[0]), 1.5F);
  EXPECT_EQ(to_float(halves[1]), -2.0F);
  EXPECT_EQ(to_float(halves[2]), 65504.0F);

  const NpyArray empty = read_npy(kFixtures + "bool_empty_v1.npy");
  EXPECT_EQ(empty.dtype, DType::kBool);
  EXPECT_EQ(empty.shape, (Shape{0, 5}));
  EXPECT_TRUE(empty.data.empty());
}

TEST(ReadNpy, WhatNumpyWroteButIsNotSupported) {
  for (const auto& [name, part] :
       {std::pair("f4_fortran_v1.npy", "Fortran"), {"i8_big_endian_v1.npy", "'>i8'"}}) {
    try {
      read_npy(kFixtures + name);
      ADD_FAILURE() << name << " accepted";
    } catch (const FormatError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  }
}

TEST(ReadNpy, WhatIsNoFileIsAnError) {
  const TestFolder folder;
  EXPECT_THROW(read_npy(folder.path("absent.npy")), Error);
  EXPECT_THROW(read_npy(folder.path(".")), Error);
  std::ofstream(folder.path("empty.npy")).close();
  EXPECT_THROW(read_npy(folder.path("empty.npy")), FormatError);
}

TEST(ParseNpy, EveryDtype) {
  const struct {
    const char* descr;
    DType dtype;
    size_t size;
  } all[] = {{"|b1", DType::kBool, 1}, {"|u1", DType::kU8, 1},  {"|i1", DType::kI8, 1},
             {"<i2", DType::kI16, 2},  {"<u2", DType::kU16, 2}, {"<f2", DType::kF16, 2},
             {"<i4", DType::kI32, 4},  {"<u4", DType::kU32, 4}, {"<f4", DType::kF32, 4},
             {"<i8", DType::kI64, 8},  {"<u8", DType::kU64, 8}, {"<f8", DType::kF64, 8}};
  for (const auto& [descr, dtype, size] : all) {
    const std::string header =
        std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (2,), }\n";
    const NpyArray array = parse(image(header, std::string(2 * size, 'x')));
    EXPECT_EQ(array.dtype, dtype) << descr;
    EXPECT_EQ(array.data.size(), 2 * size) << descr;
    EXPECT_THROW(parse(image(header, std::string(2 * size + 1, 'x'))), FormatError) << descr;
  }
}

TEST(ParseNpy, AcceptsTheSameDictionaryWrittenOtherwise) {
  for (const char* header :
       {"{'shape':(1,2),'fortran_order':False,'descr':'|u1'}",
        "{ \"descr\" : \"|u1\" , 'fortran_order': False, 'shape': ( 1 , 2 , ) , }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2), }          \n"}) {
    for (const char major : {'\1', '\2', '\3'}) {
      const NpyArray array = parse(image(header, "ab", major));
      EXPECT_EQ(array.shape, (Shape{1, 2})) << header;
      EXPECT_EQ(values<char>(array), (std::vector<char>{'a', 'b'}));
    }
  }
}

TEST(ParseNpy, RefusesOtherEnvelopes) {
  const std::string good =
      image("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }\n", "ab");
  ASSERT_NO_THROW(parse(good));
  expect_refused("", "magic", 0);
  expect_refused("\x93NUMPX\1", "magic", 0);
  for (size_t size = 6; size < good.size(); ++size) {
    EXPECT_THROW(parse(std::string_view(good).substr(0, size)), FormatError) << size << " bytes";
  }
  std::string version = good;
  version[6] = '\4';
  expect_refused(version, "format 4.0", 6);
  version[6] = '\0';
  expect_refused(version, "format 0.0", 6);
  version[6] = '\1';
  version[7] = '\1';
  expect_refused(version, "format 1.1", 6);
  std::string length = good;
  length[9] = '\x7f';
  expect_refused(length, "a header of", 8);
  expect_refused(good + "c", "needs 2 bytes of data, the file has 3", 68);
  expect_refused(good.substr(0, good.size() - 1), "needs 2 bytes of data, the file has 1", 68);
  expect_refused(image("", "", 2) + "\xff", "'{' expected", 12);
  expect_refused(std::string("\x93NUMPY\2\0\xff\xff\xff\xff", 12), "a header of 4294967295 bytes",
                 8);
}

TEST(ParseNpy, RefusesOtherHeaders) {
  const auto with_shape = [](const std::string& shape) {
    return image("{'descr': '|u1', 'fortran_order': False, 'shape': " + shape + ", }", "ab");
  };
  constexpr int64_t kShapeAt = 10 + 50;
  const auto with_descr = [](const std::string& descr) {
    return image("{'descr': " + descr + ", 'fortran_order': False, 'shape': (2,), }", "ab");
  };
  expect_refused(with_descr("'<V2'"), "'<V2' is not supported; supported are |b1", 20);
  expect_refused(with_descr("'<c8'"), "not supported", 20);
  expect_refused(with_descr("'|O'"), "not supported", 20);
  expect_refused(with_descr("[('a', '<i4')]"), "structured", 20);
  expect_refused(with_descr("3"), "a string expected", 20);
  expect_refused(with_shape("(2)"), "no tuple", kShapeAt + 2);
  expect_refused(with_shape("[2]"), "'(' expected", kShapeAt);
  expect_refused(with_shape("(-2,)"), "0 or more", kShapeAt + 1);
  expect_refused(with_shape("(02,)"), "starts with 0", kShapeAt + 1);
  expect_refused(with_shape("(2L,)"), "no tuple", kShapeAt + 2);
  expect_refused(with_shape("(2, 1.5)"), "')' expected", kShapeAt + 5);
  expect_refused(with_shape("(,)"), "0 or more", kShapeAt + 1);
  expect_refused(with_shape("(9223372036854775808,)"), "exceeds 64 bits", kShapeAt + 1);
  expect_refused(image("{'descr': '|u1', 'fortran_order': True, 'shape': (2,), }", "ab"), "Fortran",
                 10 + 34);
  expect_refused(image("{'descr': '|u1', 'fortran_order': 0, 'shape': (2,), }", "ab"),
                 "True or False", 10 + 34);
  expect_refused(image("{'descr': '|u1', 'shape': (2,), }", "ab"), "no key 'fortran_order'", 10);
  expect_refused(image("{'fortran_order': False, 'shape': (2,), }", "ab"), "no key 'descr'", 10);
  expect_refused(image("{'descr': '|u1', 'fortran_order': False}", "ab"), "no key 'shape'", 10);
  expect_refused(image("{'descr': '|u1', 'descr': '|u1'}", "ab"), "'descr' comes twice", 10 + 17);
  expect_refused(image("{'colour': 1}", "ab"), "unknown key 'colour'", 11);
  expect_refused(image("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), } x", "ab"),
                 "follows", 10 + 58);
  expect_refused(image("{'descr': '|u1' 'shape': (2,)}", "ab"), "'}' expected", 10 + 16);
  expect_refused(image("{'descr", "ab"), "without an end", 11);
}

TEST(ParseNpy, SizesDoNotOverflow) {
  const auto with_shape = [](const std::string& shape, const char* descr = "<i4") {
    return image(
        std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': " + shape + "}",
        "");
  };
  expect_refused(with_shape("(4294967296, 4294967296)"), "exceeds 64 bits", 10);
  expect_refused(with_shape("(2305843009213693952,)"), "exceeds 64 bits", 10);  // 2^61 * 4 = 2^63
  expect_refused(with_shape("(2305843009213693951,)"), "needs 9223372036854775804 bytes", 83);
  expect_refused(with_shape("(4294967296, 0, 4294967296)"), "exceeds 64 bits", 10);
  EXPECT_EQ(parse(with_shape("(4294967296, 0)")).shape, (Shape{4294967296, 0}));
  std::string deep = "(";
  for (int i = 0; i < 65; ++i) deep += "0,";
  expect_refused(with_shape(deep + ")"), "more than 64 dimensions", 61 + 128);
  EXPECT_EQ(parse(with_shape(deep.substr(0, 129) + ")")).shape, Shape(64, 0));
}

TEST(WriteNpy, ReadsBackEveryDtypeAndRank) {
  const TestFolder folder;
  const std::string path = folder.path("a.npy");
  const std::vector<std::byte> data(240, std::byte{5});
  for (const DType dtype :
       {DType::kBool, DType::kU8, DType::kI8, DType::kI16, DType::kU16, DType::kF16, DType::kI32,
        DType::kU32, DType::kF32, DType::kI64, DType::kU64, DType::kF64}) {
    for (const Shape& shape :
         {Shape{}, Shape{1}, Shape{3}, Shape{2, 5}, Shape{0, 4}, Shape{2, 3, 5}}) {
      int64_t count = 1;
      for (const int64_t n : shape) count *= n;
      const auto part = std::span(data).first(count * bits(dtype) / 8);
      write_npy(path, dtype, shape, part);
      EXPECT_EQ((fs::file_size(path) - part.size()) % 64, 0U);
      const NpyArray back = read_npy(path);
      EXPECT_EQ(back.dtype, dtype);
      EXPECT_EQ(back.shape, shape);
      EXPECT_TRUE(std::equal(back.data.begin(), back.data.end(), part.begin(), part.end()));
    }
  }
  EXPECT_EQ(folder.num_files(), 1);  // no temporary file is left
}

TEST(WriteNpy, SameBytesAsNumpy) {
  const TestFolder folder;
  const std::string path = folder.path("a.npy");
  const NpyArray trace = read_npy(kFixtures + "i4_v1.npy");
  write_npy(path, trace.dtype, trace.shape, trace.data);
  EXPECT_EQ(read_file(path), read_file(kFixtures + "i4_v1.npy"));
}

TEST(WriteNpy, RefusesWhatDoesNotFit) {
  const TestFolder folder;
  const std::string path = folder.path("a.npy");
  const std::vector<std::byte> data(8);
  const auto refusal = [&](DType dtype, const Shape& shape) {
    try {
      write_npy(path, dtype, shape, data);
    } catch (const InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal(DType::kI32, {3}).find("needs 12 bytes of data, got 8"), std::string::npos);
  EXPECT_NE(refusal(DType::kI32, {1}).find("needs 4 bytes of data, got 8"), std::string::npos);
  EXPECT_NE(refusal(DType::kBF16, {4}).find("BF16"), std::string::npos);
  EXPECT_NE(refusal(DType::kF4, {16}).find("F4"), std::string::npos);
  EXPECT_NE(refusal(DType::kI32, {-1, -2}).find("(-1, -2)"), std::string::npos);
  EXPECT_NE(refusal(DType::kU8, {int64_t{1} << 32, int64_t{1} << 32, 8}), "");
  EXPECT_NE(refusal(DType::kU8, Shape(65, 1)), "");
  EXPECT_EQ(folder.num_files(), 0);
}

TEST(WriteNpy, ReplacesTheOldFile) {
  const TestFolder folder;
  folder.write("a.npy", "old");
  write_npy(folder.path("a.npy"), DType::kU8, Shape{1}, bytes_of("x"));
  EXPECT_EQ(read_npy(folder.path("a.npy")).data.size(), 1U);
  EXPECT_EQ(folder.num_files(), 1);
}

}  // namespace
}  // namespace trimtab
