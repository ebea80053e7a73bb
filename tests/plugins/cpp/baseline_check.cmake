# Files of an instruction set are compiled for it as a whole. Every processor calls what they export, to compare tables,
# before it knows what it can run: so those functions must be without vector instructions. Nor may such a file have code
# that a linker shares with other files, or that runs when a library is loaded.
#
#   cmake -DOBJECTS="a.o;b.o" -DNM=nm -DOBJDUMP=objdump -P baseline_check.cmake

function(output_of result)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

set(checked 0)
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "/x86/(isa|product)_[^/]*$")
    continue()
  endif()
  output_of(symbols ${NM} -g --defined-only ${object})
  string(REGEX MATCHALL "[WVu] [^\n]+" shared "${symbols}")
  list(FILTER shared EXCLUDE REGEX "DW\\.ref\\.") # of exceptions' tables
  if(shared)
    message(SEND_ERROR "${object} has code that other files may use: ${shared}")
  endif()
  output_of(sections ${OBJDUMP} -h ${object})
  if(sections MATCHES "\\.(init_array|ctors)")
    message(SEND_ERROR "${object} has code that runs when the library is loaded")
  endif()
  string(REGEX MATCHALL "T [^\n]+" exported "${symbols}")
  list(FILTER exported EXCLUDE REGEX "is_right") # called where AMX is
  foreach(symbol IN LISTS exported)
    string(SUBSTRING "${symbol}" 2 -1 name)
    output_of(code ${OBJDUMP} --no-show-raw-insn --disassemble=${name} ${object})
    if(NOT code MATCHES "ret")
      message(SEND_ERROR "${object}: ${name} cannot be read")
    elseif(code MATCHES "%[xyz]mm|call")
      message(SEND_ERROR "${object}: ${name} has vector instructions, or calls code that may have them")
    endif()
    math(EXPR checked "${checked} + 1")
  endforeach()
endforeach()
if(checked EQUAL 0)
  message(SEND_ERROR "no function was checked")
endif()
message(STATUS "${checked} functions without vector instructions")
