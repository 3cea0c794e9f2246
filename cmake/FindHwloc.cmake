# SPDX-License-Identifier: Apache-2.0
# hwloc 2 and newer (Debian: libhwloc-dev): Hwloc_FOUND and the target Hwloc::Hwloc.
find_path(HWLOC_INCLUDE_DIR hwloc.h)
find_library(HWLOC_LIBRARY hwloc)
mark_as_advanced(HWLOC_INCLUDE_DIR HWLOC_LIBRARY)
set(Hwloc_VERSION)
if(HWLOC_INCLUDE_DIR AND EXISTS ${HWLOC_INCLUDE_DIR}/hwloc/autogen/config.h)
  file(STRINGS ${HWLOC_INCLUDE_DIR}/hwloc/autogen/config.h hwloc_version
    REGEX "#define HWLOC_VERSION \"")
  string(REGEX REPLACE ".*\"([0-9.]+).*" "\\1" Hwloc_VERSION "${hwloc_version}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Hwloc REQUIRED_VARS HWLOC_LIBRARY HWLOC_INCLUDE_DIR
  VERSION_VAR Hwloc_VERSION)
if(Hwloc_FOUND AND NOT TARGET Hwloc::Hwloc)
  add_library(Hwloc::Hwloc UNKNOWN IMPORTED)
  set_target_properties(Hwloc::Hwloc PROPERTIES IMPORTED_LOCATION ${HWLOC_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${HWLOC_INCLUDE_DIR})
endif()
