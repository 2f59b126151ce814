// What PyTorch asks a backend for: which device is current, its hooks, its generators.
//
// Stands for c10/cuda/impl/CUDAGuardImpl.h, aten/src/ATen/cuda/detail/CUDAHooks.cpp and
// aten/src/ATen/cuda/CUDAGeneratorImpl.cpp. There is one stream a GPU, and all is done at once.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"

namespace simulated {

inline c10::Stream the_stream(c10::Device device) {
  return c10::Stream(c10::Stream::DEFAULT, device);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device getDevice() const override { return {c10::kCUDA, current_gpu}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_gpu = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return c10::DeviceIndex(gpu_count); }

  c10::Stream getStream(c10::Device device) const override { return the_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return the_stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return the_stream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return the_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

struct Generator final : at::CPUGeneratorImpl {  // the dice of a GPU: the CPU's, with its device
  explicit Generator(int gpu) : at::CPUGeneratorImpl(c10::default_rng_seed_val) {
    device_ = c10::Device(c10::kCUDA, gpu);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::CUDA);
  }
};

inline std::vector<at::Generator>& generators() {  // the default one of each GPU
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (int gpu = 0; gpu < MOST_GPUS; gpu++) made.push_back(at::make_generator<Generator>(gpu));
    return made;
  }();
  return all;
}

}  // namespace simulated

namespace at {

struct CUDAHooks : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return simulated::gpu_count > 0; }
  bool hasCUDA() const override { return simulated::gpu_count > 0; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return simulated::gpu_count; }
  int getNumGPUs() const override { return simulated::gpu_count; }

  DeviceIndex current_device() const override { return simulated::current_gpu; }
  DeviceIndex getCurrentDevice() const override { return simulated::current_gpu; }
  void setCurrentDevice(DeviceIndex gpu) const override { simulated::current_gpu = gpu; }
  DeviceIndex exchangeDevice(DeviceIndex gpu) const override {
    return std::exchange(simulated::current_gpu, gpu);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex gpu) const override { return exchangeDevice(gpu); }

  const Generator& getDefaultGenerator(DeviceIndex gpu = -1) const override {
    return simulated::generators()[gpu < 0 ? simulated::current_gpu : gpu];
  }
  Generator getNewGenerator(DeviceIndex gpu = -1) const override {
    return make_generator<simulated::Generator>(gpu < 0 ? simulated::current_gpu : gpu);
  }

  bool isPinnedPtr(const void* address) const override { return simulated::is_pinned(address); }
  Allocator* getPinnedMemoryAllocator() const override { return &simulated::pinned_memory; }
  Device getDeviceFromPtr(void*) const override { return Device(kCUDA, simulated::current_gpu); }
  Allocator* getCUDADeviceAllocator() const override { return &simulated::gpu_memory; }
};

}  // namespace at

namespace simulated {

// `import torch` has asked for the hooks already and keeps its empty ones. Neither those nor ours
// have members, so the empty ones can be lent our methods: the first of two tricks.
inline void give_hooks() {
  static at::CUDAHooks ours{at::CUDAHooksArgs{}};
  auto& theirs = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  auto* methods = static_cast<at::CUDAHooksInterface*>(&ours);
  *reinterpret_cast<void**>(&theirs) = *reinterpret_cast<void**>(methods);
}

}  // namespace simulated
