// SPDX-License-Identifier: Apache-2.0
// The products that instruction sets build from their own instructions: what gemm_kernel.h
// multiplies, with
//   Sum, start, finish   an accumulator of one group (kGroupSums) or of the whole row; finish puts
//   it into the tile of
//                        floats
//   Scales, scales       what load needs of a group's scales (kGrouped)
//   Weights, load        kVecs registers of the weights of kLoadSteps steps, kLoadBytes in all
//   broadcast, dot       one step of a row; sum + weights x row
#pragma once

#include "base/quantize_kernel.h"
#include "experts/gemm_kernel.h"

namespace trimtab {
namespace {

struct NoScales {};

// A step of a row: rows of bf16 that are read in place are aligned to 2 bytes only.
inline int load_step(const std::byte* p) {
  int step;
  __builtin_memcpy(&step, p, sizeof(step));
  return step;
}

// From so many rows on the multiplications take longer than the weights take from memory, and
// fetching the next panel into L2 meanwhile pays; below it gets in the way of the processor's own
// prefetching. Measured: m = 6 at 2 bytes.
constexpr int kComputeBoundRows = 6;

// tile += sum * scale: the end of a group.
template <class V>
void add_group(const PanelTask& task, int64_t group, int v, typename V::Reg sum, float* tile) {
  const float* scale = reinterpret_cast<const float*>(task.weight_scales) +
                       (group / task.groups_of_scale * 2 + v) * V::kLanes;
  V::store(tile, V::multiply_add(sum, V::load(scale), group == 0 ? V::set(0.0F) : V::load(tile)));
}

// Sums of floats, not grouped. Derived gives Weights, kStepBytes, kLoadBytes, load_one, broadcast,
// dot.
template <class V, class Derived>
struct FloatSums {
  using Sum = typename V::Reg;
  using Scales = NoScales;
  static constexpr bool kGrouped = false, kGroupSums = false, kQuantizedRows = false;
  static constexpr int kLoadSteps = 1, kMinPrefetchRows = kComputeBoundRows;
  static constexpr int kSumsAtOnce = 1;  // rows x groups that are multiplied side by side
  static Sum start(const PanelTask&, int64_t, int64_t, int64_t, int) { return V::set(0.0F); }
  static Scales scales(const PanelTask&, int64_t) { return {}; }
  template <class Weights>
  static void load(const std::byte* p, Scales, Weights (&weights)[1][2]) {
    weights[0][0] = Derived::load_one(p);
    weights[0][1] = Derived::load_one(p + Derived::kLoadBytes / 2);
  }
  static void finish(const PanelTask&, int64_t, int, Sum sum, float* tile) { V::store(tile, sum); }
};

template <class V>
struct F32Dot : FloatSums<V, F32Dot<V>> {
  using Reg = typename V::Reg;
  using Weights = Reg;
  static constexpr int kMaxRows = V::kMaxRows, kStepBytes = 4, kLoadBytes = 2 * 4 * V::kLanes;
  static Reg load_one(const std::byte* p) { return V::load(reinterpret_cast<const float*>(p)); }
  static auto broadcast(const std::byte* x) {
    return V::broadcast(reinterpret_cast<const float*>(x));
  }
  template <class X>
  static Reg dot(Reg sum, Reg w, X x) {
    return V::multiply_add(x, w, sum);
  }
};

template <class V>
struct F16Dot : F32Dot<V> {
  static constexpr int kLoadBytes = 2 * 2 * V::kLanes;
  template <class Weights>
  static void load(const std::byte* p, NoScales, Weights (&weights)[1][2]) {
    weights[0][0] = V::load_f16(p);
    weights[0][1] = V::load_f16(p + kLoadBytes / 2);
  }
};

// bf16 pairs without an instruction for them: V::low and V::high widen a register of pairs to
// floats, exactly.
template <class V>
struct PairDot : FloatSums<V, PairDot<V>> {
  using Reg = typename V::Reg;
  struct Weights {
    Reg low, high;
  };
  struct Row {
    decltype(V::low(V::set_pairs(nullptr))) low;
    decltype(V::high(V::set_pairs(nullptr))) high;
  };
  static constexpr int kMaxRows = V::kMaxPairRows, kStepBytes = 4, kLoadBytes = 2 * 4 * V::kLanes;
  static Weights load_one(const std::byte* p) {
    return {V::low(V::load_pairs(p)), V::high(V::load_pairs(p))};
  }
  static void store(std::byte* p, Weights weights) { V::store_pairs(p, weights.low, weights.high); }
  static Row broadcast(const std::byte* x) {
    return {V::low(V::set_pairs(x)), V::high(V::set_pairs(x))};
  }
  template <class X>
  static Reg dot(Reg sum, Weights w, X x) {
    return V::multiply_add(x.high, w.high, V::multiply_add(x.low, w.low, sum));
  }
};

// bf16 weights with rows of floats.
template <class V>
struct MixedDot : PairDot<V> {
  struct Row {
    decltype(V::broadcast(nullptr)) low, high;
  };
  static constexpr int kStepBytes = 8;
  static Row broadcast(const std::byte* x) {
    const float* pair = reinterpret_cast<const float*>(x);
    return {V::broadcast(pair), V::broadcast(pair + 1)};
  }
};

// u8 weights with s8 rows: exact sums in int32, group by group. I: Ints, Bytes, Row, set_int,
// load_ints, load_bytes, broadcast, dot, to_float, kMaxRows. load_bytes may take kShift off the
// weights.
template <class V, class I, int kShift = 0>
struct Int8Dot {
  using Sum = typename I::Ints;
  using Weights = typename I::Bytes;
  using Scales = NoScales;
  static constexpr bool kGrouped = true, kGroupSums = true, kQuantizedRows = true;
  static constexpr int kMaxRows = I::kMaxRows, kStepBytes = 4, kLoadSteps = 1,
                       kLoadBytes = 2 * 4 * V::kLanes;
  static constexpr int kMinPrefetchRows = kComputeBoundRows, kSumsAtOnce = 1;
  static Scales scales(const PanelTask&, int64_t) { return {}; }

  // sum (w - zero) x = sum (w - kShift) x - (zero - kShift) sum x.
  static Sum start(const PanelTask& task, int64_t row, int64_t group, int64_t groups, int v) {
    const int sum = task.x_sums[row * groups + group];
    if (task.zeros == nullptr) return I::set_int((kShift - task.zero) * sum);
    const Sum zeros =
        I::load_ints(reinterpret_cast<const int32_t*>(task.zeros) + (group * 2 + v) * V::kLanes);
    if constexpr (kShift == 0) {
      return I::multiply(I::set_int(-sum), zeros);
    } else {
      return I::multiply(I::set_int(sum), I::subtract(I::set_int(kShift), zeros));
    }
  }
  template <class W>
  static void load(const std::byte* p, Scales, W (&weights)[1][2]) {
    weights[0][0] = I::load_bytes(p);
    weights[0][1] = I::load_bytes(p + kLoadBytes / 2);
  }
  static auto broadcast(const std::byte* x) { return I::broadcast(x); }
  template <class Row>
  static Sum dot(Sum sum, Weights w, Row x) {
    return I::dot(sum, w, x);
  }
  static void finish(const PanelTask& task, int64_t group, int v, Sum sum, float* tile) {
    add_group<V>(task, group, v, I::to_float(sum), tile);
  }
};

// A product of floats, with a sum for each group.
template <class V, class Dot>
struct Grouped : Dot {
  static constexpr bool kGrouped = true, kGroupSums = true;
  static void finish(const PanelTask& task, int64_t group, int v, typename V::Reg sum,
                     float* tile) {
    add_group<V>(task, group, v, sum, tile);
  }
};

template <class V, class I>
struct Int4Dot : Int8Dot<V, I> {
  static constexpr int kLoadSteps = 2, kMinPrefetchRows = kComputeBoundRows / 2;
  template <class W>
  static void load(const std::byte* p, NoScales, W (&weights)[2][2]) {
    for (int v = 0; v < 2; ++v)
      I::load_nibbles(p + v * 4 * V::kLanes, weights[0][v], weights[1][v]);
  }
};

// Two steps of nibbles become two steps of bytes.
template <class V>
void unpack_int4(const PanelTask& task, std::byte* out) noexcept {
  constexpr int kStep = 2 * 4 * V::kLanes;
  const auto* in = reinterpret_cast<const uint8_t*>(task.panel);
  auto* bytes = reinterpret_cast<uint8_t*>(out);
  for (int64_t pairs = task.steps / 2; pairs > 0; --pairs, in += kStep, bytes += 2 * kStep) {
    for (int i = 0; i < kStep; ++i) bytes[i] = in[i] & 0x0F;
    for (int i = 0; i < kStep; ++i) bytes[kStep + i] = static_cast<uint8_t>(in[i] >> 4);
  }
}

// A code of e4m3 (e2m1) with its fields in the place of a float's stands for 2^-120 (2^-126) of its
// value, because of the other bias, which is made up for before the scale comes in, since a factor
// of both may be infinite. The packer has seen to it that products with scales are exact in bf16.
template <int kShift>
uint16_t decode_to_bf16(uint32_t magnitude, uint32_t sign, float scale) {
  constexpr float kBias = kShift == 20 ? 0x1p120F : 0x1p126F;
  return static_cast<uint16_t>(
      bits_as<uint32_t>(bits_as<float>(magnitude << kShift) * kBias * scale) >> 16 | sign << 15);
}

// For every 4 columns of the left half their 8 codes come first, then those of 4 columns of the
// right half, because that is how the bytes of AVX-512 registers interleave: the place of code i of
// a step among its bf16.
template <class V>
constexpr int place_of_code(int i) {
  return i % 16 / 8 * 2 * V::kLanes + i / 16 * 8 + i % 8;
}

// The scales of the columns of one group, in the order of the codes.
template <class V>
struct ColumnScales {
  static constexpr int kCodes = 4 * V::kLanes;
  float of[kCodes];

  void read(const PanelTask& task, int64_t group) {
    const auto* e8m0 = reinterpret_cast<const uint8_t*>(task.weight_scales) + group * kCodes / 2;
    for (int i = 0; i < kCodes; ++i) {
      const uint32_t scale = e8m0[place_of_code<V>(i) / 2];
      of[i] = bits_as<float>(scale == 0 ? 0x00400000U : scale << 23);
    }
  }
};

template <class V>
void unpack_mx8(const PanelTask& task, std::byte* out) noexcept {
  constexpr int kCodes = ColumnScales<V>::kCodes;
  const auto* in = reinterpret_cast<const uint8_t*>(task.panel);
  auto* words = reinterpret_cast<uint16_t*>(out);
  ColumnScales<V> scales;
  for (int64_t s = 0; s < task.steps; ++s, in += kCodes, words += kCodes) {
    if (s % task.group_steps == 0) scales.read(task, s / task.group_steps);
    for (int i = 0; i < kCodes; ++i) {
      words[place_of_code<V>(i)] = decode_to_bf16<20>(in[i] & 0x7FU, in[i] >> 7U, scales.of[i]);
    }
  }
}

template <class V>
void unpack_mx4(const PanelTask& task, std::byte* out) noexcept {
  constexpr int kCodes = ColumnScales<V>::kCodes;
  const auto* in = reinterpret_cast<const uint8_t*>(task.panel);
  auto* words = reinterpret_cast<uint16_t*>(out);
  ColumnScales<V> scales;
  for (int64_t s = 0; s < task.steps; s += 2, in += kCodes, words += 2 * kCodes) {
    if (s % task.group_steps == 0) scales.read(task, s / task.group_steps);
    for (int i = 0; i < kCodes; ++i) {
      words[place_of_code<V>(i)] = decode_to_bf16<22>(in[i] & 7U, in[i] >> 3U & 1U, scales.of[i]);
      words[kCodes + place_of_code<V>(i)] =
          decode_to_bf16<22>(in[i] >> 4U & 7U, in[i] >> 7U, scales.of[i]);
    }
  }
}

template <class V>
void unpack_fp8(const PanelTask& task, std::byte* out) noexcept {
  constexpr int kCodes = ColumnScales<V>::kCodes;
  const auto* in = reinterpret_cast<const uint8_t*>(task.panel);
  auto* words = reinterpret_cast<uint16_t*>(out);
  for (int64_t s = 0; s < task.steps; ++s, in += kCodes, words += kCodes) {
    for (int i = 0; i < kCodes; ++i) {
      words[place_of_code<V>(i)] = decode_to_bf16<20>(in[i] & 0x7FU, in[i] >> 7U, 1.0F);
    }
  }
}

// Two codes less their zero point, as a pair of bf16: integers of so few bits are exact.
inline uint32_t bf16_pair(uint32_t low, uint32_t high, int32_t zero) {
  const auto bits = [zero](uint32_t code) {
    return bits_as<uint32_t>(static_cast<float>(static_cast<int32_t>(code) - zero));
  };
  return bits(low) >> 16 | bits(high);
}

// The zero points of the columns of one group.
template <class V>
struct ColumnZeros {
  int32_t of[2 * V::kLanes];

  void read(const PanelTask& task, int64_t group) {
    const auto* zeros =
        reinterpret_cast<const uint8_t*>(task.zeros) + group / task.groups_of_scale * 2 * V::kLanes;
    for (int c = 0; c < 2 * V::kLanes; ++c) of[c] = task.zeros == nullptr ? task.zero : zeros[c];
  }
};

// A word holds an input of two steps and of two columns, one of the left half and one of the right,
// so that a register of words becomes four registers of bf16 by shifts and a table alone. Its
// nibbles from the lowest: left and right of the first step, then of the second.
template <class V>
void unpack_int4_bf16(const PanelTask& task, std::byte* out) noexcept {
  constexpr int kLanes = V::kLanes;
  const auto* in = reinterpret_cast<const uint32_t*>(task.panel);
  auto* pairs = reinterpret_cast<uint32_t*>(out);
  ColumnZeros<V> zeros;
  for (int64_t s = 0; s < task.steps; s += 2, in += kLanes, pairs += 4 * kLanes) {
    if (s % task.group_steps == 0) zeros.read(task, s / task.group_steps);
    for (int r = 0; r < 4; ++r) {
      for (int i = 0; i < kLanes; ++i) {
        const uint32_t codes = in[i] >> 4 * r;
        pairs[r * kLanes + i] =
            bf16_pair(codes & 15U, codes >> 16 & 15U, zeros.of[r % 2 * kLanes + i]);
      }
    }
  }
}

// Four bytes are the two inputs of a column of the left half, then those of one of the right.
template <class V>
void unpack_int8_bf16(const PanelTask& task, std::byte* out) noexcept {
  constexpr int kLanes = V::kLanes;
  const auto* in = reinterpret_cast<const uint32_t*>(task.panel);
  auto* pairs = reinterpret_cast<uint32_t*>(out);
  ColumnZeros<V> zeros;
  for (int64_t s = 0; s < task.steps; ++s, in += kLanes, pairs += 2 * kLanes) {
    if (s % task.group_steps == 0) zeros.read(task, s / task.group_steps);
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < kLanes; ++i) {
        const uint32_t codes = in[i] >> 16 * half;
        pairs[half * kLanes + i] =
            bf16_pair(codes & 255U, codes >> 8 & 255U, zeros.of[half * kLanes + i]);
      }
    }
  }
}

template <class T>
void quantize_int8(const void* x, int64_t count, int8_t* q, float* scale) noexcept {
  quantize_int8_row(static_cast<const T*>(x), count, q, scale);
}
template <class T>
bool quantize_int8_by(const void* x, int64_t count, float scale, int8_t* q) noexcept {
  return quantize_int8_row_by(static_cast<const T*>(x), count, scale, q);
}
template <class T>
void round_e4m3(const void* x, int64_t count, float scale, uint16_t* y) noexcept {
  round_e4m3_row(static_cast<const T*>(x), count, scale, y);
}
template <class T>
void quantize_mx(const void* x, int64_t count, uint8_t* q, uint8_t* scales) noexcept {
  quantize_mx_row(static_cast<const T*>(x), count, q, scales);
}

// Sets what multiplies with P, as is and gated.
template <class V, class P>
constexpr void set_product(GemmKernels& kernels, Product product) {
  kernels.max_rows[product] = kernels.max_decoded_rows[product] = P::kMaxRows;
  kernels.linear[product] = run_panel<V, P, false>;
  kernels.gated[product] = run_panel<V, P, true>;
}

// The kernels of V with Bf16 (kBF16) and bytes multiplied as I does. What is decoded to bf16 is
// always unpacked first.
template <class V, class Bf16, class I, class Int8 = Int8Dot<V, I>>
constexpr GemmKernels make_kernels(const char* isa) {
  GemmKernels kernels = {};
  kernels.isa = isa;
  kernels.width = 2 * V::kLanes;
  set_product<V, F32Dot<V>>(kernels, kF32Product);
  set_product<V, F16Dot<V>>(kernels, kF16Product);
  set_product<V, MixedDot<V>>(kernels, kBF16F32Product);
  set_product<V, Bf16>(kernels, kBF16Product);
  set_product<V, Grouped<V, Bf16>>(kernels, kBF16GroupProduct);
  set_product<V, Int8>(kernels, kInt8Product);
  set_product<V, Int4Dot<V, I>>(kernels, kInt4Product);
  constexpr Product kDecoded[] = {kMX8Product, kMX4Product, kFP8Product, kInt4BF16Product,
                                  kInt8BF16Product};
  for (const Product decoded : kDecoded) kernels.max_rows[decoded] = Bf16::kMaxRows;
  kernels.unpack[kInt4Product] = unpack_int4<V>;
  kernels.unpack[kMX8Product] = unpack_mx8<V>;
  kernels.unpack[kMX4Product] = unpack_mx4<V>;
  kernels.unpack[kFP8Product] = unpack_fp8<V>;
  kernels.unpack[kInt4BF16Product] = unpack_int4_bf16<V>;
  kernels.unpack[kInt8BF16Product] = unpack_int8_bf16<V>;
  kernels.quantize_int8[0] = quantize_int8<float>;
  kernels.quantize_int8[1] = quantize_int8<uint16_t>;
  kernels.quantize_int8_by[0] = quantize_int8_by<float>;
  kernels.quantize_int8_by[1] = quantize_int8_by<uint16_t>;
  kernels.round_e4m3[0] = round_e4m3<float>;
  kernels.round_e4m3[1] = round_e4m3<uint16_t>;
  kernels.quantize_mx[0] = quantize_mx<float>;
  kernels.quantize_mx[1] = quantize_mx<uint16_t>;
  kernels.dequantize_mx = dequantize_mx_row;
  kernels.sum_groups = sum_groups;
  return kernels;
}

// Panels of weights as P loads them, as P stores them: registers of bf16.
template <class V, class P>
void unpack_decoded(const PanelTask& task, std::byte* out) noexcept {
  const std::byte* in = task.panel;
  for (int64_t s = 0; s < task.steps; s += task.group_steps) {
    const auto scales = P::scales(task, s / task.group_steps);
    for (int64_t i = 0; i < task.group_steps; i += P::kLoadSteps, in += P::kLoadBytes) {
      typename P::Weights weights[P::kLoadSteps][2];
      P::load(in, scales, weights);
      for (const auto& step : weights) {
        for (const auto& half : step) {
          P::store(out, half);
          out += 4 * V::kLanes;
        }
      }
    }
  }
}

template <class V, class Bf16, class P>
constexpr void set_decoded(GemmKernels& kernels, Product product) {
  set_product<V, P>(kernels, product);
  kernels.max_rows[product] = Bf16::kMaxRows;  // those of what it becomes when it is unpacked
  kernels.unpack[product] = unpack_decoded<V, P>;
}

// Lets these products, which are Bf16 but for loading, decode weights in registers where there are
// few rows.
template <class V, class Bf16, class Mx8, class Mx4, class Fp8, class Int4, class Int8>
constexpr GemmKernels with_decoded(GemmKernels kernels) {
  set_decoded<V, Bf16, Mx8>(kernels, kMX8Product);
  set_decoded<V, Bf16, Mx4>(kernels, kMX4Product);
  set_decoded<V, Bf16, Fp8>(kernels, kFP8Product);
  set_decoded<V, Bf16, Int4>(kernels, kInt4BF16Product);
  set_decoded<V, Bf16, Int8>(kernels, kInt8BF16Product);
  return kernels;
}

}  // namespace
}  // namespace trimtab
