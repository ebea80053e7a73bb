# h2o_operators: the C++ header that is generated from the table of operators, and what reads it.
if(TARGET h2o_operators)
  return()
endif()
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
set(H2O_OPERATOR_TABLE "${CMAKE_CURRENT_LIST_DIR}/../../runtime/h2o_runtime/operators.py"
    CACHE FILEPATH "The table of operators; another one may add to it")
set(h2o_operator_parts operator_spec dense_operators)  # which the table imports
list(TRANSFORM h2o_operator_parts REPLACE ".+" "${CMAKE_CURRENT_LIST_DIR}/../../runtime/h2o_runtime/\\0.py")
set(h2o_generated "${CMAKE_BINARY_DIR}/generated")
set(h2o_generator "${CMAKE_CURRENT_LIST_DIR}/generate.py")
add_custom_command(OUTPUT "${h2o_generated}/h2o/operators.h"
  COMMAND "${Python_EXECUTABLE}" "${h2o_generator}" "${H2O_OPERATOR_TABLE}" "${h2o_generated}/h2o/operators.h"
  DEPENDS "${h2o_generator}" ${h2o_operator_parts} "${H2O_OPERATOR_TABLE}" VERBATIM)
add_library(h2o_operators OBJECT "${CMAKE_CURRENT_LIST_DIR}/resolve.cpp" "${h2o_generated}/h2o/operators.h")
target_include_directories(h2o_operators PUBLIC "${CMAKE_CURRENT_LIST_DIR}/include" "${h2o_generated}")
target_compile_options(h2o_operators PRIVATE -Wall -Wextra -fvisibility=hidden $<$<BOOL:${H2O_WERROR}>:-Werror>)
set_target_properties(h2o_operators PROPERTIES POSITION_INDEPENDENT_CODE ON)
