// The functions of calls.h, with C names, for bench/gpu_check.
#define H2O_CALL extern "C"
#include "calls.h"
