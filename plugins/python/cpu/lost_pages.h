#pragma once

#include <string>

namespace h2o::python::cpu {

// From now on a file below `folder` may be cut off while it is mapped: what is lost reads as zeros. Without
// this the system ends the process by SIGBUS. `folder` has no links in its path. At most 64 folders; later
// ones are not covered.
void read_lost_pages_as_zeros(const std::string& folder);

}  // namespace h2o::python::cpu
