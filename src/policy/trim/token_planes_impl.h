// SPDX-License-Identifier: Apache-2.0
// The body of PlaneKernel in token_planes.h, compiled once for each instruction set inside its own
// namespace.

// Vectors of the compiler (GCC, Clang) are as wide as a register of this instruction set: wider
// ones go over the stack, piece by piece.
#if defined(__AVX512VPOPCNTDQ__)
constexpr int kLanes = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 4;
#else
constexpr int kLanes = 2;
#endif
using Lanes [[gnu::vector_size(kLanes * sizeof(uint64_t))]] = uint64_t;

#ifdef __AVX512VPOPCNTDQ__
using BitSum = Lanes;
[[gnu::always_inline]] inline BitSum bits_of(Lanes words) {
  return reinterpret_cast<Lanes>(_mm512_popcnt_epi64(reinterpret_cast<__m512i>(words)));
}
[[gnu::always_inline]] inline int64_t total(BitSum sum) {
  int64_t all = 0;
  for (int i = 0; i < kLanes; ++i) all += static_cast<int64_t>(sum[i]);
  return all;
}
#else
using BitSum = int64_t;
[[gnu::always_inline]] inline BitSum bits_of(Lanes words) {
  BitSum sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += __builtin_popcountll(words[i]);
  return sum;
}
[[gnu::always_inline]] inline int64_t total(BitSum sum) {
  return sum;
}
#endif

// Adds (or takes away) one pick of every token in `members` to the numbers in `planes`, several
// words of 64 tokens at once; planes[i] are the bits of 2^i.
template <int kPlanes>
[[gnu::always_inline]] inline void count_pick(Lanes members, bool add, Lanes* planes) {
  const Lanes flip = Lanes{} - (add ? uint64_t{0} : uint64_t{1});
  for (int i = 0; i < kPlanes; ++i) {
    const Lanes carry = (planes[i] ^ flip) & members;
    planes[i] ^= members;
    members = carry;
  }
}

template <int kPlanes>
[[gnu::always_inline]] inline int64_t change_planes(uint64_t* planes, int words,
                                                    const PlaneChange* changes, int num_changes,
                                                    bool keep) {
  BitSum cost{};
  for (int w = 0; w < words; w += kLanes) {
    Lanes number[2 * kPlanes];
    for (int i = 0; i < 2 * kPlanes; ++i)
      __builtin_memcpy(&number[i], planes + i * words + w, sizeof(Lanes));
    for (int c = 0; c < num_changes; ++c) {
      Lanes members;
      __builtin_memcpy(&members, changes[c].members + w, sizeof(members));
      // Two calls, so that the numbers stay in registers.
      if (changes[c].half) {
        count_pick<kPlanes>(members, changes[c].add, number + kPlanes);
      } else {
        count_pick<kPlanes>(members, changes[c].add, number);
      }
    }
    Lanes certain = number[0], two_halves = number[kPlanes + 1];
    for (int i = 1; i < kPlanes; ++i) certain |= number[i];
    for (int i = 2; i < kPlanes; ++i) two_halves |= number[kPlanes + i];
    two_halves &= ~certain;
    const Lanes half = two_halves | (number[kPlanes] & ~certain);
    cost += 4 * bits_of(certain) + 2 * bits_of(half) + bits_of(two_halves);
    for (int i = 0; i < 2 * kPlanes && keep; ++i)
      __builtin_memcpy(planes + i * words + w, &number[i], sizeof(Lanes));
  }
  return total(cost);
}

int64_t change(uint64_t* planes, int words, int num_planes, const PlaneChange* changes,
               int num_changes, bool keep) {
  switch (num_planes) {
    case 2:
      return change_planes<2>(planes, words, changes, num_changes, keep);
    case 3:
      return change_planes<3>(planes, words, changes, num_changes, keep);
    case 4:
      return change_planes<4>(planes, words, changes, num_changes, keep);
    default:
      return change_planes<kMostPlanes>(planes, words, changes, num_changes, keep);
  }
}
