# h2o_cuda_ptx: what nvcc makes of the kernels, in the folder `ptx`, for the emulator to execute (emulator/ptx).
find_program(H2O_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" PATHS /usr/local/cuda/bin)
if(NOT H2O_NVCC)
  return()
endif()

set(ptx_files)
foreach(source IN LISTS H2O_CUDA_SOURCES)
  get_filename_component(name "${source}" NAME_WE)
  get_filename_component(extension "${source}" LAST_EXT)
  if(NOT extension STREQUAL ".cu")
    continue()
  endif()
  set(ptx "${CMAKE_CURRENT_BINARY_DIR}/ptx/${name}.ptx")
  add_custom_command(OUTPUT "${ptx}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${CMAKE_CURRENT_BINARY_DIR}/ptx"
    COMMAND "${H2O_NVCC}" -ptx -arch=compute_87 -std=c++17 -O3 -DNDEBUG
            "-I$<JOIN:$<TARGET_PROPERTY:h2o_operators,INTERFACE_INCLUDE_DIRECTORIES>,;-I>"
            -MD -MF "${ptx}.d" -o "${ptx}" "${source}"
    DEPENDS "${source}" h2o_operators DEPFILE "${ptx}.d" COMMAND_EXPAND_LISTS VERBATIM)
  list(APPEND ptx_files "${ptx}")
endforeach()
add_custom_target(h2o_cuda_ptx DEPENDS ${ptx_files})
