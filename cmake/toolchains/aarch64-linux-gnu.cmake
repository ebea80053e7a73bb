# Cross-compiling for 64-bit Arm Linux, such as a Jetson, with the distribution's cross compiler:
#
#     sudo apt install g++-aarch64-linux-gnu
#
# CUDA needs NVIDIA's cross-compiling package of the toolkit as well (cuda-cross-aarch64), whose libraries lie in
# <toolkit>/targets/aarch64-linux (sbsa-linux for a Thor). Name a copy of the device's file system in
# AARCH64_SYSROOT where libraries of the device are needed. Tests run under qemu-user where that is installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(h2o_target_root /usr/aarch64-linux-gnu) # where the cross compiler has the C library
if(DEFINED ENV{AARCH64_SYSROOT})
  set(CMAKE_SYSROOT "$ENV{AARCH64_SYSROOT}")
  set(h2o_target_root "${CMAKE_SYSROOT}")
endif()
set(CMAKE_FIND_ROOT_PATH "${h2o_target_root}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY BOTH) # the CUDA toolkit for the target lies outside
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY) # packages of this machine are for its own processor

find_program(H2O_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
if(H2O_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${H2O_QEMU};-L;${h2o_target_root}")
endif()
