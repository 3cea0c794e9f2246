# SPDX-License-Identifier: Apache-2.0
# GTest::gtest_main: the installed one, or, for another machine, built from the sources that Debian
# installs beside it.
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  set(TRIMTAB_GOOGLETEST_SOURCE /usr/src/googletest CACHE PATH
    "GoogleTest's sources, for want of an installed one")
  if(NOT EXISTS ${TRIMTAB_GOOGLETEST_SOURCE}/CMakeLists.txt)
    message(FATAL_ERROR
      "Found neither GoogleTest for this target nor its sources in ${TRIMTAB_GOOGLETEST_SOURCE}. "
      "Debian: libgtest-dev; or set TRIMTAB_GOOGLETEST_SOURCE, or TRIMTAB_DEVELOPER=OFF.")
  endif()
  set(BUILD_GMOCK OFF)
  set(INSTALL_GTEST OFF)
  add_subdirectory(${TRIMTAB_GOOGLETEST_SOURCE} googletest EXCLUDE_FROM_ALL SYSTEM)
endif()
