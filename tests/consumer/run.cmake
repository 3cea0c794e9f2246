# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=<trimtab build> -DSOURCE=<tests/consumer> -DWORK=<folder> -DCXX=<compiler>
#   -DGENERATOR=<generator> -DMAKE=<its program> -P run.cmake
# Installs the build into a folder of its own. Then configures, builds and runs the consumer against
# that folder alone, with nothing in the environment but PATH.
function(must)
  execute_process(COMMAND env -i PATH=$ENV{PATH} ${ARGV}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGV}: ${result}\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()

file(REMOVE_RECURSE ${WORK})
must(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
must(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE}
  -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_CXX_COMPILER=${CXX})
must(${CMAKE_COMMAND} --build ${WORK}/build)
must(${WORK}/build/consumer)
