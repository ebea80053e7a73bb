// Products with a matrix of 4-bit integers.
#include "checks.h"
#include "products.h"

namespace conformance {

void check_block_product(Trial& t) {
    test::BlockMatrix matrix(64, 24, t.random);
    matrix.scales = t.in(2);
    t.set(1, matrix.words);
    t.run();
    t.compare("y", 0, matrix.times(t.in(0), false), matrix.times(t.in(0), true));
}

}  // namespace conformance
