#pragma once

#include <cstddef>
#include <string>

namespace h2o::python::cpu {

// While one lives, files below its folder may be cut off while they are mapped: what is lost reads as zeros.
// Without it the system ends the process by SIGBUS. The folder has no links in its path. At most 64 folders
// at a time; others are not covered.
class LostPages {
  public:
    explicit LostPages(const std::string& folder);
    ~LostPages();
    LostPages(const LostPages&) = delete;
    LostPages& operator=(const LostPages&) = delete;

  private:
    size_t place_;
};

}  // namespace h2o::python::cpu
