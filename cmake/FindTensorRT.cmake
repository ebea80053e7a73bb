# Finds TensorRT's headers and, where it is, its library.
#
# Looked for under TensorRT_ROOT (or the environment's TENSORRT_ROOT), in JetPack's and the system's places,
# and in the pip packages of the Python that is found. Plugins need the headers only.
#
# Sets TensorRT_FOUND, TensorRT_INCLUDE_DIR, TensorRT_LIBRARY (may be empty), TensorRT_VERSION (such as
# 10.3.0) and TensorRT_VERSION_CODE (major * 10000 + minor * 100 + patch, to compare as one number), and
# defines the target TensorRT::headers.

set(_tensorrt_hints "${TensorRT_ROOT}" "$ENV{TensorRT_ROOT}" "$ENV{TENSORRT_ROOT}")

# pip's packages hold libraries under tensorrt_libs or tensorrt_cu*_libs and, from some versions on, headers.
if(NOT TensorRT_INCLUDE_DIR)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_FOUND)
    file(GLOB _tensorrt_pip "${Python3_SITELIB}/tensorrt*" "${Python3_SITELIB}/nvidia/tensorrt*")
  endif()
endif()

find_path(TensorRT_INCLUDE_DIR NvInferRuntime.h
          HINTS ${_tensorrt_hints} ${_tensorrt_pip}
          PATHS /usr/include /usr/include/${CMAKE_LIBRARY_ARCHITECTURE} /usr/include/aarch64-linux-gnu
                /usr/include/x86_64-linux-gnu /usr/local/tensorrt /opt/tensorrt /usr/src/tensorrt
          PATH_SUFFIXES include
          DOC "Folder of NvInferRuntime.h")
find_library(TensorRT_LIBRARY NAMES nvinfer libnvinfer.so.11 libnvinfer.so.10
             HINTS ${_tensorrt_hints} ${_tensorrt_pip}
             PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} /usr/lib/aarch64-linux-gnu /usr/lib/x86_64-linux-gnu
                   /usr/local/tensorrt /opt/tensorrt
             PATH_SUFFIXES lib
             DOC "libnvinfer")
if(NOT TensorRT_LIBRARY)
  set(TensorRT_LIBRARY "")
endif()

if(TensorRT_INCLUDE_DIR AND EXISTS "${TensorRT_INCLUDE_DIR}/NvInferVersion.h")
  file(READ "${TensorRT_INCLUDE_DIR}/NvInferVersion.h" _tensorrt_header)
  # Older headers define NV_TENSORRT_MAJOR as a number, newer ones through TRT_MAJOR_ENTERPRISE.
  foreach(part MAJOR MINOR PATCH)
    if(_tensorrt_header MATCHES "#define NV_TENSORRT_${part} ([0-9]+)")
      set(_tensorrt_${part} "${CMAKE_MATCH_1}")
    elseif(_tensorrt_header MATCHES "#define TRT_${part}_ENTERPRISE ([0-9]+)")
      set(_tensorrt_${part} "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  if(DEFINED _tensorrt_MAJOR AND DEFINED _tensorrt_MINOR AND DEFINED _tensorrt_PATCH)
    set(TensorRT_VERSION "${_tensorrt_MAJOR}.${_tensorrt_MINOR}.${_tensorrt_PATCH}")
    math(EXPR TensorRT_VERSION_CODE "${_tensorrt_MAJOR} * 10000 + ${_tensorrt_MINOR} * 100 + ${_tensorrt_PATCH}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TensorRT REQUIRED_VARS TensorRT_INCLUDE_DIR TensorRT_VERSION
                                  VERSION_VAR TensorRT_VERSION)

if(TensorRT_FOUND AND NOT TARGET TensorRT::headers)
  add_library(TensorRT::headers INTERFACE IMPORTED)
  set_target_properties(TensorRT::headers PROPERTIES
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${TensorRT_INCLUDE_DIR}"
      INTERFACE_INCLUDE_DIRECTORIES "${TensorRT_INCLUDE_DIR}")
endif()
mark_as_advanced(TensorRT_INCLUDE_DIR TensorRT_LIBRARY)
