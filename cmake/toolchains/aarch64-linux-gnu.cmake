# Cross-compiling for 64-bit Arm Linux, such as a Jetson, with the distribution's cross compiler:
#   sudo apt install g++-aarch64-linux-gnu
# and NVIDIA's cross-compiling package of the CUDA toolkit (cuda-cross-aarch64), whose libraries lie in
# <toolkit>/targets/aarch64-linux (sbsa-linux for a Thor). Name a copy of the device's file system in
# AARCH64_SYSROOT where libraries of the device are needed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
if(DEFINED ENV{AARCH64_SYSROOT})
  set(CMAKE_SYSROOT "$ENV{AARCH64_SYSROOT}")
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
