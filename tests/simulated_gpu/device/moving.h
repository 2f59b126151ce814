// Copies, views and sizes of tensors of a simulated GPU: what must not go to the CPU's kernels.
//
// Stands for aten/src/ATen/native/cuda/{Copy.cpp,Resize.cpp,TensorFactories.cu}. A copy to pinned
// memory that may return at once is made late: until somebody waits, rubbish lies there.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>

#include "kernels.h"

namespace simulated {

using Sizes = c10::IntArrayRef;
template <class T>
using Maybe = std::optional<T>;

constexpr int RUBBISH = 0xff;  // a NaN in each floating format, -1 in each integer
inline std::vector<std::pair<at::Tensor, at::Tensor>> late;  // into pinned memory, from a GPU

inline void wait() {  // somebody waits for the GPUs: now the late copies have arrived
  decltype(late) arrived;
  {
    std::lock_guard<std::mutex> held(lock);
    arrived.swap(late);
  }
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard unseen(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  for (auto& [into, from] : arrived) into.copy_(from);
}

inline at::Tensor& copy_(at::Tensor& into, const at::Tensor& from, bool may_return) {
  at::AutoDispatchBelowAutograd below;
  if (may_return && into.is_cpu() && into.numel() && is_pinned(into.storage().data())) {
    auto snapshot = on_cpu(from.expand_as(into)).clone();
    memset(into.data_ptr(), RUBBISH, into.nbytes());
    std::lock_guard<std::mutex> held(lock);
    late.emplace_back(into, snapshot);
    return into;
  }
  if (into.is_cpu()) wait();  // such a copy comes back when all before it is done
  on_cpu(into).copy_(on_cpu(from).expand_as(into));
  return into;
}

inline at::Scalar item(const at::Tensor& tensor) {
  wait();
  return on_cpu(tensor).item();
}

inline c10::Device checked(Maybe<c10::Device> wanted) {
  auto device = wanted.value_or(c10::Device(c10::kCUDA));
  TORCH_CHECK(device.index() < gpu_count, "CUDA error: invalid device ordinal (simulated)");
  return device.has_index() ? device : c10::Device(c10::kCUDA, current_gpu);
}

const c10::DispatchKeySet OF_A_GPU(c10::DispatchKey::CUDA);

inline at::Tensor empty(Sizes sizes, Maybe<at::ScalarType> dtype, Maybe<at::Layout>,
                        Maybe<at::Device> device, Maybe<bool> pinned,
                        Maybe<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned (simulated)");
  c10::DeviceGuard guard(checked(device));
  return at::detail::empty_generic(sizes, &gpu_memory, OF_A_GPU, c10::dtype_or_default(dtype),
                                   format);
}
inline at::Tensor empty_strided(Sizes sizes, Sizes strides, Maybe<at::ScalarType> dtype,
                                Maybe<at::Layout>, Maybe<at::Device> device, Maybe<bool>) {
  c10::DeviceGuard guard(checked(device));
  return at::detail::empty_strided_generic(sizes, strides, &gpu_memory, OF_A_GPU,
                                           c10::dtype_or_default(dtype));
}

inline void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  c10::DeviceGuard guard(storage->device());
  auto resized = gpu_memory.allocate(bytes);
  if (auto kept = std::min(bytes, storage->nbytes())) memcpy(resized.get(), storage->data(), kept);
  storage->set_data_ptr_noswap(std::move(resized));
  storage->set_nbytes(bytes);
}

inline const at::Tensor& resize_(const at::Tensor& tensor, Sizes sizes, Maybe<at::MemoryFormat>) {
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  size_t needed = (tensor.storage_offset() + tensor.numel()) * tensor.element_size();
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (needed > storage->nbytes()) resize_storage(storage, needed);
  return tensor;
}

inline at::Tensor view(const at::Tensor& tensor, Sizes sizes) {
  return at::native::view(tensor, sizes);
}
inline at::Tensor as_strided(const at::Tensor& tensor, Sizes sizes, Sizes strides,
                             Maybe<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}
inline at::Tensor unfold(const at::Tensor& tensor, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(tensor, dim, size, step);
}
inline at::Tensor reshape_alias(const at::Tensor& tensor, Sizes sizes, Sizes strides) {
  return at::native::_reshape_alias(tensor, sizes, strides);
}

inline at::Tensor& set_part(at::Tensor& tensor, c10::Storage storage, int64_t offset, Sizes sizes,
                            Sizes strides) {
  return at::native::set_storage_cpu_(tensor, storage, offset, sizes, strides);
}
inline at::Tensor& set_storage(at::Tensor& tensor, c10::Storage storage) {
  int64_t elements = storage.nbytes() / tensor.dtype().itemsize();
  return at::native::set_storage_cpu_(tensor, storage, 0, {elements}, {1});
}
inline at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& source) {
  return at::native::set_tensor_(tensor, source);
}
inline at::Tensor& set_nothing(at::Tensor& tensor) {
  auto nothing = gpu_memory.allocate(0);
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, std::move(nothing), &gpu_memory, true);
  return at::native::set_storage_cpu_(tensor, storage, 0, {0}, {1});
}
inline void record_stream(at::Tensor&, at::Stream) {}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("_local_scalar_dense", item);
  library.impl("resize_", resize_);
  library.impl("view", view);
  library.impl("as_strided", as_strided);
  library.impl("unfold", unfold);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("set_.source_Storage_storage_offset", set_part);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("set_", set_nothing);
  library.impl("record_stream", record_stream);
}

}  // namespace simulated
