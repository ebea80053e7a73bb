// libstdc++ functions that GCC 11 and later call to copy a std::exception_ptr. Earlier libraries do not
// export them. Here they are built from the copy constructor and the destructor, which all versions export.
// They are weak: a compiler that links libstdc++ statically brings its own.
#include <exception>

#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 11

extern "C" {

void h2o_copy(void* copy, const void* pointer) asm("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void h2o_destroy(void* pointer) asm("_ZNSt15__exception_ptr13exception_ptrD1Ev");

// std::__exception_ptr::exception_ptr::_M_addref: a copy that is never destroyed adds one reference.
__attribute__((weak, visibility("hidden"))) void _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(
    void** self) {
    void* copy;
    h2o_copy(&copy, self);
}

// std::__exception_ptr::exception_ptr::_M_release
__attribute__((weak, visibility("hidden"))) void _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv(
    void** self) {
    h2o_destroy(self);
    *self = nullptr;
}

}  // extern "C"

#endif
