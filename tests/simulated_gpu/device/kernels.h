// Kernels of simulated GPUs: the CPU's, on the same memory.
//
// Stands for aten/src/ATen/native/cuda. `fallback` serves every operation that has no kernel of its
// own: it hands the CPU's kernel an alias of each tensor, and gives each result the GPU's device.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cmath>
#include <unordered_map>

#include "interface.h"

namespace simulated {

inline at::Tensor on_cpu(const at::Tensor& tensor) {  // the same memory, as the CPU sees it
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  auto options = tensor.options().device(at::kCPU).requires_grad(false);
  auto keep = [tensor](void*) {};
  auto same = tensor.numel() == 0
      ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
      : at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), keep, options);
  if (tensor.is_conj()) same._set_conj(true);
  return same;
}

inline at::Tensor onto(c10::Device device, const at::Tensor& result) {
  if (!result.defined() || result.is_cuda()) return result;
  auto options = result.options().device(device).pinned_memory(false);
  auto there = at::empty_strided(result.sizes(), result.strides(), options);
  if (result.numel()) on_cpu(there).copy_(result);
  return there;
}

inline bool takes_both(const std::string& name) {  // operations of a GPU that take CPU tensors, too
  static const std::vector<std::string> names = {
      "aten::index", "aten::index.", "aten::index_put", "aten::_index_put_impl_",
      "aten::index_put_", "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::copy_",
      "aten::_copy_from", "aten::set_", "aten::_foreach_copy_", "aten::record_stream"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <class See>
void each_tensor(c10::IValue& value, See see) {  // replaces each tensor of an argument by see(it)
  if (value.isTensor()) {
    value = see(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(see(tensor));
    value = list;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      list.push_back(tensor ? std::optional<at::Tensor>(see(*tensor)) : tensor);
    value = list;
  } else if (value.isList() && *value.toList().elementType() == *c10::ListType::ofTensors()) {
    c10::List<c10::List<at::Tensor>> lists;
    for (const auto& element : value.toListRef()) {
      c10::IValue inner = element;
      each_tensor(inner, see);
      lists.push_back(inner.toTensorList());
    }
    value = lists;
  }
}

inline c10::Device device_of(const std::string& name, std::vector<c10::IValue>& arguments) {
  std::optional<c10::Device> device;
  bool has_cpu = false;
  for (auto& argument : arguments)
    each_tensor(argument, [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_cuda()) {
        TORCH_CHECK(!device || *device == tensor.device(),
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, ", *device, " and ", tensor.device(), "! (simulated ", name, ")");
        device = tensor.device();
      }
      has_cpu |= tensor.defined() && tensor.is_cpu() && tensor.dim() > 0;
      return tensor;
    });
  TORCH_CHECK(!device || !has_cpu || takes_both(name),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              *device, " and cpu! (simulated ", name, ")");
  for (auto& argument : arguments)
    if (!device && argument.isDevice() && argument.toDevice().is_cuda())
      device = argument.toDevice();
  return device && device->has_index() ? *device : c10::Device(c10::kCUDA, current_gpu);
}

// A random kernel draws from the CPU's dice; these become the GPU's for the time of a call.
class Dice {
 public:
  explicit Dice(at::Generator gpu)
      : gpu_(gpu), cpu_(at::detail::getDefaultCPUGenerator()), before_(cpu_.get_state()) {
    cpu_.set_state(gpu_.get_state());
  }
  ~Dice() {
    gpu_.set_state(cpu_.get_state());
    cpu_.set_state(before_);
  }

 private:
  at::Generator gpu_, cpu_;
  at::Tensor before_;
};

inline void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  at::AutoDispatchBelowAutograd below;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto& schema = op.schema();
  auto arguments = torch::jit::pop(*stack, schema.arguments().size());
  const auto device = device_of(schema.name(), arguments);
  c10::DeviceGuard guard(device);

  std::vector<std::pair<at::Tensor, at::Tensor>> written;     // of the GPU, and its alias
  std::unordered_map<c10::TensorImpl*, at::Tensor> original;  // alias → of the GPU
  auto dice = generators()[device.index()];
  bool is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  for (size_t i = 0; i < arguments.size(); i++) {
    auto& argument = arguments[i];
    const auto* aliasing = schema.arguments()[i].alias_info();
    each_tensor(argument, [&](const at::Tensor& tensor) {
      auto same = on_cpu(tensor);
      if (tensor.defined() && tensor.is_cuda()) {
        original[same.unsafeGetTensorImpl()] = tensor;
        if (aliasing && aliasing->isWrite()) written.emplace_back(tensor, same);
      }
      return same;
    });
    if (argument.isDevice() && argument.toDevice().is_cuda()) argument = c10::Device(at::kCPU);
    if (argument.isGenerator()) {
      dice = argument.toGenerator();
      TORCH_CHECK(dice.device().is_cuda(), "Expected a 'cuda' device type for generator but found "
                  "'cpu' (simulated ", schema.name(), ")");
      is_random = true;
      argument = c10::IValue();
    }
  }
  {
    std::optional<Dice> thrown;
    if (is_random) thrown.emplace(dice);
    op.callBoxed(&arguments);
  }
  for (auto& [tensor, same] : written)  // what has grown lies elsewhere
    if (same.sizes() != tensor.sizes() || (same.numel() && same.data_ptr() != tensor.data_ptr())) {
      tensor.resize_(same.sizes());
      on_cpu(tensor).copy_(same);
    }
  for (auto& result : arguments) {
    each_tensor(result, [&](const at::Tensor& tensor) {
      auto found = tensor.defined() ? original.find(tensor.unsafeGetTensorImpl()) : original.end();
      return found != original.end() ? found->second : onto(device, tensor);
    });
    stack->push_back(result);
  }
}

// A product that a CPU works at for long is asked for by those alone who measure seconds, which are
// no GPU's here. It is left out: its numbers are NaN, so that nobody takes them for results.
constexpr double LONGEST = 1e9;  // FLOPs

inline void product(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  const auto n = op.schema().arguments().size();
  std::vector<c10::IValue> arguments(stack->end() - n, stack->end());
  std::vector<at::Tensor> tensors;
  for (auto& argument : arguments)
    if (argument.isTensor()) tensors.push_back(argument.toTensor());
  const auto &left = *(tensors.end() - 2), &right = *(tensors.end() - 1);
  auto sizes = left.sizes().vec();
  sizes.back() = right.size(-1);
  if (2.0 * left.numel() * right.size(-1) < LONGEST) return fallback(op, keys, stack);
  device_of(op.schema().name(), arguments);  // refuses two devices
  torch::jit::drop(*stack, n);
  stack->push_back(at::full(sizes, NAN, left.options().requires_grad(false)));
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  for (auto* name : {"mm", "bmm", "addmm", "baddbmm"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&product>());
}

}  // namespace simulated
