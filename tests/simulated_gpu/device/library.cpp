// A simulated CUDA device for a CPU build of PyTorch; what Python asks of it.
//
// Device strings, dispatch keys, devices of tensors, bytes allocated and dice are those of CUDA;
// each kernel is the CPU's, on the same memory. `stand_in.py` says what this cannot tell of a GPU.
#include "memory.h"
#include "interface.h"
#include "kernels.h"
#include "moving.h"
#include "nccl.h"

TORCH_LIBRARY(simulated_gpu, library) {
  library.def("generator(int gpu) -> Generator?", [](int64_t gpu) {
    return simulated::generators().at(gpu);
  });
  library.def("on_cpu(Tensor tensor) -> Tensor");
}
TORCH_LIBRARY_IMPL(simulated_gpu, CUDA, library) {
  library.impl("on_cpu", simulated::on_cpu);
}

namespace {

struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// The kernels of c10d for CUDA are there, and hand the tensors to a backend that refuses them. They
// are replaced, about which PyTorch warns: the second of two tricks.
void give_communication() {
  static Silence silence;
  c10::WarningUtils::WarningHandlerGuard guard(&silence);
  static torch::Library library(torch::Library::IMPL, "c10d", c10::DispatchKey::CUDA, __FILE__,
                                __LINE__);
  for (auto* name :
       {"allreduce_", "broadcast_", "allgather_", "_allgather_base_", "reduce_scatter_",
        "_reduce_scatter_base_", "alltoall_", "alltoall_base_", "send", "recv_",
        "recv_any_source_", "gather_", "scatter_", "reduce_", "allreduce_coalesced_",
        "allgather_coalesced_", "allgather_into_tensor_coalesced_",
        "reduce_scatter_tensor_coalesced_", "barrier"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&simulated::over_gloo>());
}

}  // namespace

extern "C" {

void simulated_begin(int gpus, int64_t bytes) {
  simulated::gpu_count = gpus;
  for (auto& memory : simulated::memory_of) memory.capacity = bytes;
  c10::SetAllocator(c10::kCUDA, &simulated::gpu_memory, 100);
  simulated::give_hooks();
  give_communication();
}
void simulated_batch(bool on) { simulated::is_batch = on; }
void simulated_wait() { simulated::wait(); }
int64_t simulated_current() { return simulated::current_gpu; }
void simulated_set_current(int gpu) { simulated::current_gpu = gpu; }

int64_t simulated_allocated(int gpu) { return simulated::memory_of[gpu].allocated; }
int64_t simulated_peak(int gpu) { return simulated::memory_of[gpu].peak; }
void simulated_reset_peak(int gpu) {
  simulated::memory_of[gpu].peak = simulated::memory_of[gpu].allocated.load();
}
void simulated_set_capacity(int gpu, int64_t bytes) {
  simulated::memory_of[gpu].capacity = bytes;
}

void simulated_resize(c10::StorageImpl* storage, int64_t bytes) {
  simulated::resize_storage(storage, bytes);
}

void simulated_keep_history(bool on) {
  simulated::history.clear();
  simulated::history_is_kept = on;
}
int64_t simulated_history_length() { return simulated::history.size(); }
void simulated_history(int64_t* into) {  // four numbers an event
  std::lock_guard<std::mutex> held(simulated::lock);
  memcpy(into, simulated::history.data(), simulated::history.size() * sizeof(simulated::Event));
}
}
