# SPDX-License-Identifier: Apache-2.0
# Install, export and version files: find_package(trimtab) and trimtab::trimtab for other projects.
include(CMakePackageConfigHelpers)

install(TARGETS trimtab EXPORT trimtab-targets FILE_SET HEADERS
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT trimtab-targets NAMESPACE trimtab:: DESTINATION
  ${CMAKE_INSTALL_LIBDIR}/cmake/trimtab)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/trimtab-config.cmake.in
  ${PROJECT_BINARY_DIR}/trimtab-config.cmake INSTALL_DESTINATION
    ${CMAKE_INSTALL_LIBDIR}/cmake/trimtab)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/trimtab-config-version.cmake COMPATIBILITY
  SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/trimtab-config.cmake
  ${PROJECT_BINARY_DIR}/trimtab-config-version.cmake ${PROJECT_SOURCE_DIR}/cmake/FindHwloc.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/trimtab)
if(TARGET trimtab_cli)
  install(TARGETS trimtab_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
