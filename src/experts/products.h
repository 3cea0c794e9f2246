// SPDX-License-Identifier: Apache-2.0
// The products that instruction sets build from their own instructions: what gemm_kernel.h multiplies, with
//   Sum, start, finish   an accumulator of one group (kGroupSums) or of the whole row; finish puts it into the tile of
//                        floats
//   Scales, scales       what load needs of a group's scales (kGrouped)
//   Weights, load        kVecs registers of the weights of kLoadSteps steps, kLoadBytes in all
//   broadcast, dot       one step of a row; sum + weights x row
#pragma once

#include "experts/gemm.h"

namespace trimtab {
namespace {

struct NoScales {};

// Sums of floats, not grouped. Derived gives Weights, kStepBytes, kLoadBytes, load_one, broadcast, dot.
template <class V, class Derived>
struct FloatSums {
  using Sum = typename V::Reg;
  using Scales = NoScales;
  static constexpr bool kGrouped = false, kGroupSums = false, kQuantizedRows = false;
  static constexpr int kLoadSteps = 1;
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
  static auto broadcast(const std::byte* x) { return V::broadcast(reinterpret_cast<const float*>(x)); }
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

// bf16 pairs without an instruction for them: V::low and V::high widen a register of pairs to floats, exactly.
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
  static Weights load_one(const std::byte* p) { return {V::low(V::load_pairs(p)), V::high(V::load_pairs(p))}; }
  static Row broadcast(const std::byte* x) { return {V::low(V::set_pairs(x)), V::high(V::set_pairs(x))}; }
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

// u8 weights with s8 rows: exact sums in int32, group by group. I: Ints, Bytes, Row, set_int, load_ints, load_bytes,
// broadcast, dot, to_float, kMaxRows. load_bytes may take kShift off the weights.
template <class V, class I, int kShift = 0>
struct Int8Dot {
  using Sum = typename I::Ints;
  using Weights = typename I::Bytes;
  using Scales = NoScales;
  static constexpr bool kGrouped = true, kGroupSums = true, kQuantizedRows = true;
  static constexpr int kMaxRows = I::kMaxRows, kStepBytes = 4, kLoadSteps = 1, kLoadBytes = 2 * 4 * V::kLanes;
  static Scales scales(const PanelTask&, int64_t) { return {}; }

  // sum (w - zero) x = sum (w - kShift) x - (zero - kShift) sum x.
  static Sum start(const PanelTask& task, int64_t row, int64_t group, int64_t groups, int v) {
    const int sum = task.x_sums[row * groups + group];
    if (task.zeros == nullptr) return I::set_int((kShift - task.zero) * sum);
    const Sum zeros = I::load_ints(task.zeros + (group * 2 + v) * V::kLanes);
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
    const float* scale = reinterpret_cast<const float*>(task.weight_scales) + (group * 2 + v) * V::kLanes;
    V::store(tile, V::multiply_add(I::to_float(sum), V::load(scale), group == 0 ? V::set(0.0F) : V::load(tile)));
  }
};

template <class V, class I>
struct Int4Dot : Int8Dot<V, I> {
  static constexpr int kLoadSteps = 2;
  template <class W>
  static void load(const std::byte* p, NoScales, W (&weights)[2][2]) {
    for (int v = 0; v < 2; ++v) I::load_nibbles(p + v * 4 * V::kLanes, weights[0][v], weights[1][v]);
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

// 2^(e8m0 - 127) as a float; 0 is the smallest.
inline float e8m0_to_float(uint8_t e8m0) {
  const uint32_t bits = e8m0 == 0 ? 0x00400000U : static_cast<uint32_t>(e8m0) << 23;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// A code of e4m3 (e2m1) with its fields in the place of a float's stands for 2^-120 (2^-126) of its value, because of
// the other bias. Rounded to bf16: nearest, ties to even. Finite values only.
template <int kShift>
uint16_t decode_to_bf16(uint32_t magnitude, uint32_t sign, float factor) {
  const uint32_t fields = magnitude << kShift;
  float value;
  __builtin_memcpy(&value, &fields, sizeof(value));
  value *= factor;
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16) | sign << 15);
}
inline uint16_t decode_e4m3(uint32_t code, float scale_times_2_120) {
  return decode_to_bf16<20>(code & 0x7FU, code >> 7, scale_times_2_120);
}
inline uint16_t decode_e2m1(uint32_t code, float scale_times_2_126) {
  return decode_to_bf16<22>(code & 7U, code >> 3, scale_times_2_126);
}

// The factors of the columns of one group, for both bf16 of a step.
template <class V>
struct Factors {
  static constexpr int kWidth = 2 * V::kLanes;
  float of[2 * kWidth];

  void read_e8m0(const PanelTask& task, int64_t group, float times) {
    const auto* scales = reinterpret_cast<const uint8_t*>(task.weight_scales) + group * kWidth;
    for (int i = 0; i < 2 * kWidth; ++i) of[i] = e8m0_to_float(scales[i / 2]) * times;
  }
  void read_f32(const PanelTask& task, int64_t group, float times) {
    const float* scales = reinterpret_cast<const float*>(task.weight_scales) + group * kWidth;
    for (int i = 0; i < 2 * kWidth; ++i) of[i] = scales[i / 2] * times;
  }
};

// For every 4 columns of the left half their 8 bytes come first, then those of 4 columns of the right half, because
// that is how the bytes of AVX-512 registers interleave. Exact: the packer has seen to it that the products with the
// scales are normal numbers or 0.
template <class V>
void unpack_mx8(const PanelTask& task, std::byte* out) noexcept {
  constexpr int kWidth = Factors<V>::kWidth;
  const auto* in = reinterpret_cast<const uint8_t*>(task.panel);
  auto* words = reinterpret_cast<uint16_t*>(out);
  Factors<V> factors;
  for (int64_t i = 0; i < task.steps; ++i, in += 2 * kWidth, words += 2 * kWidth) {
    if (i % task.group_steps == 0) factors.read_e8m0(task, i / task.group_steps, 0x1p120F);
    for (int chunk = 0; chunk < kWidth / 8; ++chunk) {
      for (int j = 0; j < 16; ++j) {
        const int word = j / 8 * kWidth + 8 * chunk + j % 8;
        words[word] = decode_e4m3(in[16 * chunk + j], factors.of[word]);
      }
    }
  }
}

template <class V>
void unpack_fp8(const PanelTask& task, std::byte* out) noexcept {
  constexpr int kWidth = Factors<V>::kWidth;
  const auto* in = reinterpret_cast<const uint8_t*>(task.panel);
  auto* words = reinterpret_cast<uint16_t*>(out);
  Factors<V> factors;
  for (int64_t i = 0; i < task.steps; ++i, in += 2 * kWidth, words += 2 * kWidth) {
    if (i % task.group_steps == 0) factors.read_f32(task, i / task.group_steps, 0x1p120F);
    for (int j = 0; j < 2 * kWidth; ++j) words[j] = decode_e4m3(in[j], factors.of[j]);
  }
}

template <class V>
void unpack_mx4(const PanelTask& task, std::byte* out) noexcept {
  constexpr int kWidth = Factors<V>::kWidth;
  const auto* in = reinterpret_cast<const uint8_t*>(task.panel);
  auto* words = reinterpret_cast<uint16_t*>(out);
  Factors<V> factors;
  for (int64_t i = 0; i < task.steps; i += 2, in += 2 * kWidth, words += 4 * kWidth) {
    if (i % task.group_steps == 0) factors.read_e8m0(task, i / task.group_steps, 0x1p126F);
    for (int j = 0; j < 2 * kWidth; ++j) words[j] = decode_e2m1(in[j] & 15U, factors.of[j]);
    for (int j = 0; j < 2 * kWidth; ++j) words[2 * kWidth + j] = decode_e2m1(in[j] >> 4U, factors.of[j]);
  }
}

// The kernels of V with Bf16 (kBF16) and bytes multiplied as I does. e4m3 and e2m1 are always unpacked first.
template <class V, class Bf16, class I, class Int8 = Int8Dot<V, I>>
constexpr GemmKernels make_kernels(const char* isa) {
  using F32 = F32Dot<V>;
  using F16 = F16Dot<V>;
  using Mixed = MixedDot<V>;
  using Int4 = Int4Dot<V, I>;
  return {isa,
          2 * V::kLanes,
          {F32::kMaxRows, F16::kMaxRows, Mixed::kMaxRows, Bf16::kMaxRows, Int8::kMaxRows, Int4::kMaxRows,
           Bf16::kMaxRows, Bf16::kMaxRows, Bf16::kMaxRows},
          {run_panel<V, F32, false>, run_panel<V, F16, false>, run_panel<V, Mixed, false>, run_panel<V, Bf16, false>,
           run_panel<V, Int8, false>, run_panel<V, Int4, false>, nullptr, nullptr, nullptr},
          {run_panel<V, F32, true>, run_panel<V, F16, true>, run_panel<V, Mixed, true>, run_panel<V, Bf16, true>,
           run_panel<V, Int8, true>, run_panel<V, Int4, true>, nullptr, nullptr, nullptr},
          {nullptr, nullptr, nullptr, nullptr, nullptr, unpack_int4<V>, unpack_mx8<V>, unpack_fp8<V>, unpack_mx4<V>}};
}

}  // namespace
}  // namespace trimtab
