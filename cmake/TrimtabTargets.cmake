# SPDX-License-Identifier: Apache-2.0
# How the project's own targets are made.

# Warnings, sanitizers and include paths of everything compiled here.
add_library(trimtab_options INTERFACE)
target_compile_features(trimtab_options INTERFACE cxx_std_20)
target_include_directories(trimtab_options INTERFACE ${PROJECT_SOURCE_DIR}/include
  ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(trimtab_options INTERFACE Threads::Threads)
# a * b + c is one rounding only where the code says so: the same bits whether or not the machine
# can fuse them.
target_compile_options(trimtab_options INTERFACE -ffp-contract=off)
if(TRIMTAB_DEVELOPER)
  # Designated initialisers leave the other members at their defaults on purpose.
  target_compile_options(trimtab_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
    -Werror
    -Wno-missing-field-initializers)
  # g++ 12 sees dangling and uninitialised memory inside std:: at -O2 where there is none.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(trimtab_options INTERFACE -Wno-error=maybe-uninitialized
      -Wno-error=restrict
      -Wno-error=stringop-overflow -Wno-error=array-bounds)
    if(CMAKE_UNITY_BUILD)
      # Files that are compiled as one hide each other's names, and types of one file are no longer
      # those of the main file.
      target_compile_options(trimtab_options INTERFACE -Wno-shadow -Wshadow=local
        -Wno-subobject-linkage)
    endif()
    # Notes on how g++ 9 for AArch64 passed arguments.
    target_compile_options(trimtab_options INTERFACE -Wno-psabi)
  else()
    # clang blames std::stable_sort for what libstdc++ 12 calls inside it. Signed indices are no
    # mistake; g++ warns of them as little.
    target_compile_options(trimtab_options INTERFACE -Wno-error=deprecated-declarations
      -Wno-sign-conversion)
  endif()
endif()
# Of the code whose speed is what the project is about. Under a sanitizer it would take the compiler
# twice as long, and run hardly faster.
set(TRIMTAB_OPTIMISE_MORE -O3)
# What is compiled with the sanitizers: all but the programs of tests and benchmarks under
# AddressSanitizer. Instrumenting tests would take long, and their memory comes from the sanitizer's
# heap either way, so that modules are caught beyond it. ThreadSanitizer must see all that
# synchronises.
add_library(trimtab_sanitizers INTERFACE)
if(TRIMTAB_SANITIZE)
  set(TRIMTAB_OPTIMISE_MORE)
  target_compile_options(trimtab_sanitizers INTERFACE -fsanitize=${TRIMTAB_SANITIZE}
    -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(trimtab_options INTERFACE -fsanitize=${TRIMTAB_SANITIZE})
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET default)

# trimtab_alone(FILES...): source files that name something of their own as another file of their
# target does. The compiler gets them by themselves.
function(trimtab_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# Sets `all` to these modules and the modules that they use.
function(trimtab_modules_and_uses all)
  set(found)
  foreach(module ${ARGN})
    get_property(further GLOBAL PROPERTY trimtab_uses_${module})
    list(APPEND found ${module} ${further})
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${all} ${found} PARENT_SCOPE)
endfunction()

# trimtab_module(NAME HEADERS a.h ... SOURCES a.cc ... USES modules... LIBRARIES ...): the object
# library of one module, its public headers (of include/trimtab), the modules that it may include,
# and what its objects need linked.
function(trimtab_module name)
  cmake_parse_arguments(PARSE_ARGV 1 module "" "" "HEADERS;SOURCES;USES;LIBRARIES")
  add_library(trimtab_${name} OBJECT ${module_SOURCES})
  set(objects)
  if(TRIMTAB_OBJECTS)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    file(GLOB_RECURSE objects ${TRIMTAB_OBJECTS}/${folder}/CMakeFiles/trimtab_${name}.dir/*.o)
  endif()
  if(objects)
    set_target_properties(trimtab_${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  else()
    set(objects $<TARGET_OBJECTS:trimtab_${name}>)
  endif()
  set_property(GLOBAL PROPERTY trimtab_objects_${name} "${objects}")
  target_link_libraries(trimtab_${name} PUBLIC trimtab_options
    PRIVATE trimtab_sanitizers ${module_LIBRARIES})
  set_property(GLOBAL PROPERTY trimtab_libraries_${name} "${module_LIBRARIES}")
  list(TRANSFORM module_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/include/trimtab/)
  set_property(GLOBAL PROPERTY trimtab_headers_${name} "${module_HEADERS}")
  trimtab_modules_and_uses(all ${module_USES})
  set_property(GLOBAL PROPERTY trimtab_uses_${name} "${all}")
endfunction()

# Links the objects of one module, and what they need, into a target.
function(trimtab_link_module target module)
  get_property(libraries GLOBAL PROPERTY trimtab_libraries_${module})
  get_property(objects GLOBAL PROPERTY trimtab_objects_${module})
  if(NOT objects MATCHES TARGET_OBJECTS)
    set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON)
  endif()
  target_sources(${target} PRIVATE ${objects})
  target_link_libraries(${target} PRIVATE ${libraries})
endfunction()

# trimtab_program(NAME SOURCES a.cc ... MODULES modules...): an executable linked with these modules
# and what they use.
function(trimtab_program name)
  cmake_parse_arguments(PARSE_ARGV 1 program "" "" "SOURCES;MODULES")
  # What replaces operator new must not be inlined into the rest of the program.
  set(replaces_new ${program_SOURCES})
  list(FILTER replaces_new INCLUDE REGEX "allocation_count\\.cc$")
  if(replaces_new)
    trimtab_alone(${replaces_new})
  endif()
  add_executable(${name} ${program_SOURCES})
  trimtab_modules_and_uses(all ${program_MODULES})
  foreach(module ${all})
    trimtab_link_module(${name} ${module})
  endforeach()
  target_link_libraries(${name} PRIVATE trimtab_options)
  if(TRIMTAB_SANITIZE)
    target_compile_definitions(${name} PRIVATE TRIMTAB_SANITIZED)  # see base/test_effort.h
    if(NOT TRIMTAB_SANITIZE MATCHES address)
      target_link_libraries(${name} PRIVATE trimtab_sanitizers)
    endif()
  endif()
endfunction()

# trimtab_test(NAME [READS_SOURCE_TREE] [OPTIMISED] SOURCES a_test.cc ... MODULES modules...
# [LIBRARIES ...] [LABELS ...]): a GoogleTest binary linked with these modules and what they use.
# The target tests_<label> builds all tests of a label.
# READS_SOURCE_TREE: TRIMTAB_SOURCE_DIR names the checkout, for tests that read files of it.
# OPTIMISED: the test computes so much itself that it is compiled as the modules are.
function(trimtab_test name)
  if(NOT TRIMTAB_DEVELOPER)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 test "READS_SOURCE_TREE;OPTIMISED" ""
    "SOURCES;MODULES;LIBRARIES;LABELS")
  trimtab_program(${name} SOURCES ${test_SOURCES} MODULES ${test_MODULES})
  target_link_libraries(${name} PRIVATE GTest::gtest_main ${test_LIBRARIES})
  # What a test itself does takes no time worth optimising, and GoogleTest's macros cost the
  # compiler much of it. The modules that it links are optimised as the preset says.
  if(NOT test_OPTIMISED)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  if(test_READS_SOURCE_TREE)
    target_compile_definitions(${name} PRIVATE TRIMTAB_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS "${test_LABELS}")
  foreach(label ${test_LABELS})
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
endfunction()

# trimtab_multirank_test(NAME [OPTIMISED] SOURCES a_test.cc ... MODULES modules... [LABEL label]): a
# test whose ranks are threads, label multirank or the given one, and with TRIMTAB_MPI once more as
# NAME_mpi_2 and NAME_mpi_4 with processes under mpiexec (the second alone under a sanitizer), label
# multirank_mpi. Its tests use comm/testing.h.
function(trimtab_multirank_test name)
  if(NOT TRIMTAB_DEVELOPER)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 test "OPTIMISED" "LABEL" "SOURCES;MODULES")
  if(NOT test_LABEL)
    set(test_LABEL multirank)
  endif()
  set(libraries)
  set(optimised)
  if(test_OPTIMISED)
    set(optimised OPTIMISED)
  endif()
  if(TRIMTAB_MPI)
    list(APPEND test_MODULES mpi)
    set(libraries MPI::MPI_CXX)
  endif()
  trimtab_test(${name} ${optimised}
    SOURCES ${test_SOURCES} ${PROJECT_SOURCE_DIR}/src/comm/testing.cc
      ${PROJECT_SOURCE_DIR}/src/comm/testing_streams.cc
    MODULES ${test_MODULES} LIBRARIES ${libraries} LABELS ${test_LABEL})
  if(NOT TRIMTAB_MPI)
    return()
  endif()
  target_compile_definitions(${name} PRIVATE TRIMTAB_WITH_MPI)
  if(TRIMTAB_SANITIZE MATCHES thread)
    return()  # it knows nothing of other processes, and MPI libraries are not built for it
  endif()
  set(counts 2 4)
  if(TRIMTAB_SANITIZE)
    set(counts 4)
  endif()
  foreach(ranks ${counts})
    add_test(NAME ${name}_mpi_${ranks}
      COMMAND ${PROJECT_SOURCE_DIR}/tests/mpi/run.sh ${ranks} $<TARGET_FILE:${name}>
        --gtest_brief=1)
    # MPI libraries leak.
    set_tests_properties(${name}_mpi_${ranks} PROPERTIES TIMEOUT 600 LABELS multirank_mpi
      PROCESSORS ${ranks} SKIP_RETURN_CODE 77
      ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0;MPIEXEC=${MPIEXEC_EXECUTABLE}")
  endforeach()
endfunction()
