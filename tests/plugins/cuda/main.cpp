// Tests of the CUDA kernels. h2o_cuda_test [--small] [--once] [--seed N] [--head-size D] [group ...]
//
// Groups: attention windows caps candidate rows select pages products arguments bounds far; all of them
// when none is named. --once: no call runs again to have its bytes compared. Exit code 0 when every check
// held. The same program runs on a GPU, and on a CPU through the emulation beside it.

#include "support.h"

namespace test {
int failures = 0;
int checks = 0;
bool once = false;
std::string context;
}  // namespace test

int main(int argc, char** argv) {
    struct Group {
        const char* name;
        void (*run)(const test::Options&);
    };
    const Group groups[] = {{"attention", test::test_attention},
                            {"candidate", test::test_candidates},
                            {"windows", test::test_windows},
                            {"caps", test::test_caps},
                            {"rows", test::test_rows},
                            {"select", test::test_select},
                            {"arguments", test::test_arguments},
                            {"bounds", test::test_bounds},
                            {"pages", test::test_page_lists},
                            {"products", test::test_products},
                            {"far", test::test_far}};
    test::Options options;
    std::vector<std::string> wanted;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument == "--small") {
            options.small = true;
        } else if (argument == "--once") {
            test::once = true;
        } else if (argument == "--seed" && i + 1 < argc) {
            options.seed = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
        } else if (argument == "--head-size" && i + 1 < argc) {
            options.head_size = std::atoi(argv[++i]);
        } else if (argument.rfind("--", 0) == 0) {
            std::fprintf(stderr, "usage: %s [--small] [--once] [--seed N] [--head-size D] [group ...]\n",
                         argv[0]);
            return 2;
        } else {
            wanted.push_back(argument);
        }
    }
    for (const Group& group : groups) {
        bool run = wanted.empty();
        for (const std::string& name : wanted) run |= name == group.name;
        if (!run) continue;
        const int before = test::checks, failed = test::failures;
        group.run(options);
        std::printf("%-10s %5d checks, %d failed\n", group.name, test::checks - before,
                    test::failures - failed);
        std::fflush(stdout);
    }
    return test::failures == 0 ? 0 : 1;
}
