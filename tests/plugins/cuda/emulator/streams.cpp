// Streams, events and graphs. Work waits in its stream until a synchronising call needs it; then the streams
// that the call depends on advance one operation at a time, in a random order that respects events.
//
// At every other wait, so the dice say, the streams that nobody waits for advance too: CUDA promises neither
// that they do nor that they do not. The legacy default stream waits for the streams that are not
// "non-blocking" and is done when the call returns. Not emulated: forks and joins within a capture.

#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "emulator.h"

using Work = std::function<void()>;

namespace emulator {
namespace {

// What an event stands for once it is recorded: the end of an operation of a stream.
struct Moment {
    CUstream_st* stream = nullptr;
    size_t position = 0;  // among all that its stream ever had to do
    bool passed = false;
    std::chrono::steady_clock::time_point time;
};

struct Operation {
    Work work;
    std::shared_ptr<Moment> after;  // must have passed before this runs
    std::shared_ptr<Moment> marks;  // passes when this has run
};

}  // namespace
}  // namespace emulator

using emulator::Moment;
using emulator::Operation;

struct CUgraph_st {
    std::vector<Work> nodes;
};

struct CUgraphExec_st {
    std::vector<Work> nodes;
};

struct CUevent_st {
    bool timing;
    std::shared_ptr<Moment> latest;
};

struct CUstream_st {
    bool blocking;
    std::deque<Operation> queue = {};
    size_t done = 0;

    bool can_run() const { return !queue.empty() && (!queue[0].after || queue[0].after->passed); }
    void run_one() {
        const Operation operation = std::move(queue.front());
        queue.pop_front();
        ++done;
        if (operation.work) operation.work();
        if (!operation.marks) return;
        operation.marks->passed = true;
        operation.marks->time = std::chrono::steady_clock::now();
    }
};

namespace emulator {
namespace {

// Held by every call: two threads may wait at once.
std::mutex mutex;
using Lock = std::lock_guard<std::mutex>;

CUstream_st legacy{true};
std::set<CUstream_st*> streams{&legacy};

// A thread captures one stream at a time. A call that is not allowed meanwhile loses the graph.
struct Capture {
    CUstream_st* stream = nullptr;
    std::unique_ptr<CUgraph_st> graph;
};
thread_local Capture capture;

bool eager() {
    const char* const value = std::getenv("H2O_EMULATION_EAGER");  // every time: a test changes its mind
    return value && *value == '1';
}

CUstream_st* resolve(cudaStream_t stream) {
    return stream ? stream : &legacy;
}

// How many more operations of each stream somebody waits for.
using Demand = std::map<CUstream_st*, size_t>;

// Adds the first `count` operations of a stream, and all that these must wait for.
void add(Demand& demand, CUstream_st* stream, size_t count) {
    size_t& wanted = demand[stream];
    for (; wanted < count; ++wanted) {
        const Moment* after = stream->queue[wanted].after.get();
        if (after && !after->passed) add(demand, after->stream, after->position + 1 - after->stream->done);
    }
}

void run(Demand demand) {
    const bool others_too = random_bits() % 2 == 0;
    CUstream_st* stream = nullptr;
    while (!demand.empty()) {
        std::vector<CUstream_st*> candidates;
        for (CUstream_st* one : streams)
            if (one->can_run() && (others_too || demand.count(one))) candidates.push_back(one);
        // Mostly stay on one stream, so that streams drift apart.
        if (!stream || !stream->can_run() || random_bits() % 4 == 0)
            stream = candidates[random_bits() % candidates.size()];
        stream->run_one();
        const auto wanted = demand.find(stream);
        if (wanted != demand.end() && --wanted->second == 0) demand.erase(wanted);
        if (!others_too && !demand.count(stream)) stream = nullptr;
    }
}

void finish(const std::set<CUstream_st*>& wanted) {
    Demand demand;
    for (CUstream_st* stream : wanted)
        if (!stream->queue.empty()) add(demand, stream, stream->queue.size());
    run(std::move(demand));
}

void finish_default_stream() {
    std::set<CUstream_st*> wanted;
    for (CUstream_st* stream : streams)
        if (stream->blocking) wanted.insert(stream);
    finish(wanted);
}

cudaError_t push(CUstream_st* stream, Operation operation) {
    if (stream == capture.stream) {
        // Events within a capture would be edges of the graph, which is a plain sequence here.
        if (!operation.work) return refuse_during_capture();
        if (capture.graph) capture.graph->nodes.push_back(std::move(operation.work));
        return capture.graph ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
    }
    if (stream == &legacy)
        if (const cudaError_t error = refuse_during_capture()) return error;
    stream->queue.push_back(std::move(operation));
    if (stream == &legacy) finish_default_stream();
    if (eager()) finish({stream});
    return cudaSuccess;
}

}  // namespace

unsigned random_bits() {
    static const char* const seed = std::getenv("H2O_EMULATION_SEED");
    static std::minstd_rand engine(seed ? static_cast<unsigned>(std::strtoul(seed, nullptr, 10)) + 1 : 1);
    return static_cast<unsigned>(engine());
}

cudaError_t refuse_during_capture() {
    if (!capture.stream) return cudaSuccess;
    capture.graph = nullptr;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t enqueue(cudaStream_t stream, Work work) {
    const Lock lock(mutex);
    return push(resolve(stream), {std::move(work), nullptr, nullptr});
}

}  // namespace emulator

using namespace emulator;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    const Lock lock(mutex);
    *stream = new CUstream_st{(flags & cudaStreamNonBlocking) == 0};
    streams.insert(*stream);
    return cudaSuccess;
}

// Priorities order nothing that CUDA promises: here they are only checked.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    if (priority > 0 || priority < -5) return cudaErrorInvalidValue;
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    const Lock lock(mutex);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (capture.stream == stream) capture = {};
    finish({stream});
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    const Lock lock(mutex);
    if (const cudaError_t error = refuse_during_capture()) return error;
    if (stream)
        finish({stream});
    else
        finish_default_stream();
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    const Lock lock(mutex);
    if (const cudaError_t error = refuse_during_capture()) return error;
    finish(streams);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    return enqueue(stream, [=] { function(data); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    *event = new CUevent_st{(flags & cudaEventDisableTiming) == 0, nullptr};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const Lock lock(mutex);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const Lock lock(mutex);
    CUstream_st* const where = resolve(stream);
    auto moment = std::make_shared<Moment>();
    moment->stream = where;
    moment->position = where->done + where->queue.size();
    if (const cudaError_t error = push(where, {nullptr, nullptr, moment})) return error;
    event->latest = std::move(moment);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const Lock lock(mutex);
    if (!event->latest) return cudaSuccess;
    return push(resolve(stream), {nullptr, event->latest, nullptr});
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const Lock lock(mutex);
    if (const cudaError_t error = refuse_during_capture()) return error;
    const std::shared_ptr<Moment> moment = event->latest;
    if (!moment || moment->passed) return cudaSuccess;
    Demand demand;
    add(demand, moment->stream, moment->position + 1 - moment->stream->done);
    run(std::move(demand));
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    const Lock lock(mutex);
    for (const CUevent_st* event : {start, end})
        if (!event->timing || !event->latest) return cudaErrorInvalidResourceHandle;
    if (!start->latest->passed || !end->latest->passed) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->latest->time - start->latest->time).count();
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (!stream || capture.stream) return cudaErrorIllegalState;
    capture = {stream, std::make_unique<CUgraph_st>()};
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = nullptr;
    if (!stream || capture.stream != stream) return cudaErrorIllegalState;
    *graph = capture.graph.release();
    capture.stream = nullptr;
    return *graph ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    *executable = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    const Lock lock(mutex);
    for (const Work& node : executable->nodes)
        if (const cudaError_t error = push(resolve(stream), {node, nullptr, nullptr})) return error;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    delete executable;
    return cudaSuccess;
}
}
