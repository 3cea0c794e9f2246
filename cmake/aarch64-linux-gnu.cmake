# SPDX-License-Identifier: Apache-2.0
# Cross build for AArch64 Linux with Debian's g++-aarch64-linux-gnu; tests run in qemu-user, on the
# CPU that QEMU_CPU names (by default one with all that qemu can do).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
