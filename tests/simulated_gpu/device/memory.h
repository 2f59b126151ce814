// The memory of simulated GPUs, and pinned memory: the host's, counted as on a GPU.
//
// Stands for c10/cuda/CUDACachingAllocator.cpp, as far as it counts what is allocated: in blocks of
// 512 bytes. Its segments, and so what is reserved, are not simulated.
#pragma once
#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace simulated {

constexpr int MOST_GPUS = 16;
constexpr size_t BLOCK = 512;  // kMinBlockSize

inline int gpu_count = 1;
inline thread_local c10::DeviceIndex current_gpu = 0;

struct Memory {
  std::atomic<int64_t> allocated{0}, peak{0}, capacity{0};
};
inline Memory memory_of[MOST_GPUS];

struct Event {  // what a snapshot tells: a block was handed out, or given back
  int64_t gpu, allocated, address, bytes;
};
inline std::mutex lock;
inline bool history_is_kept = false;
inline std::vector<Event> history;

inline void note(int gpu, bool allocated, const void* address, size_t bytes) {
  if (!history_is_kept) return;
  std::lock_guard<std::mutex> held(lock);
  history.push_back({gpu, allocated, reinterpret_cast<int64_t>(address), int64_t(bytes)});
}

inline void* host_memory(size_t bytes) {
  void* address = nullptr;
  TORCH_CHECK(!posix_memalign(&address, BLOCK, bytes ? bytes : 1), "the host has no memory left");
  return address;
}

struct GpuBlock {
  void* address;
  size_t bytes;
  int gpu;
};

inline void give_back(void* context) {
  auto* block = static_cast<GpuBlock*>(context);
  memory_of[block->gpu].allocated -= block->bytes;
  note(block->gpu, false, block->address, block->bytes);
  std::free(block->address);
  delete block;
}

struct GpuAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t wanted) override {
    c10::Device device(c10::kCUDA, current_gpu);
    if (wanted == 0) return {nullptr, nullptr, &give_back, device};
    auto& memory = memory_of[current_gpu];
    size_t bytes = (wanted + BLOCK - 1) / BLOCK * BLOCK;
    int64_t now = memory.allocated += bytes;
    if (now > memory.capacity) {
      memory.allocated -= bytes;
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes,
          " bytes. GPU ", int(current_gpu), " has a total capacity of ", memory.capacity.load(),
          " bytes of which ", memory.capacity - memory.allocated, " bytes is free. (simulated)");
    }
    int64_t before = memory.peak;
    while (before < now && !memory.peak.compare_exchange_weak(before, now)) {
    }
    void* address = host_memory(bytes);
    note(current_gpu, true, address, bytes);
    return {address, new GpuBlock{address, bytes, current_gpu}, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* into, const void* from, std::size_t bytes) const override {
    memcpy(into, from, bytes);
  }
};
inline GpuAllocator gpu_memory;

inline std::unordered_set<const void*> pinned;

inline void unpin(void* address) {
  {
    std::lock_guard<std::mutex> held(lock);
    pinned.erase(address);
  }
  std::free(address);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* address = host_memory(bytes);
    std::lock_guard<std::mutex> held(lock);
    pinned.insert(address);
    return {address, address, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* into, const void* from, std::size_t bytes) const override {
    memcpy(into, from, bytes);
  }
};
inline PinnedAllocator pinned_memory;

inline bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> held(lock);
  return pinned.count(address);
}

}  // namespace simulated
