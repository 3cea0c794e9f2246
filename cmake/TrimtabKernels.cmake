# SPDX-License-Identifier: Apache-2.0
# Compile options of files that are one instruction set's kernels.

# Kernels are optimised in every build: their tiles live in registers only once the loops are
# unrolled. Under sanitizers they don't anyway, so tiles have few rows there: all levels take g++
# half a minute, in place of a minute and a half.
set(trimtab_kernel ${TRIMTAB_OPTIMISE_MORE} -fno-trapping-math)
if(TRIMTAB_SANITIZE)
  list(APPEND trimtab_kernel -DTRIMTAB_SMALL_TILES)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND trimtab_kernel -Wno-maybe-uninitialized)  # g++ 12 warns of its own <immintrin.h>
endif()
set(trimtab_avx2 ${trimtab_kernel} -mavx2 -mfma -mf16c)
set(trimtab_avx512 ${trimtab_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
set(trimtab_neon ${trimtab_kernel})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND trimtab_avx512 -Wno-uninitialized)  # the same at -O1
  # g++ hoists so many loads that sums are spilled, half of the loop of a 6-row tile.
  list(APPEND trimtab_neon -fno-schedule-insns)
endif()
