# Cross-compile for 64-bit ARM with Debian's g++-aarch64-linux-gnu; tests run under qemu-user.
#
#     cmake -S . -B build/aarch64 -G Ninja --toolchain cmake/aarch64-linux-gnu.cmake -DH2O_TESTS=ON -DH2O_PYTHON=OFF
#     cmake --build build/aarch64 && ctest --test-dir build/aarch64/tests/plugins/cpp --output-on-failure
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
find_program(H2O_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
if(H2O_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${H2O_QEMU};-L;/usr/aarch64-linux-gnu")
endif()
