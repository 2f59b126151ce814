// Communication of tensors on simulated GPUs: gloo's, on the same memory, with what NCCL refuses.
//
// Stands for torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: what its checks say no to, and that
// the first collective of a group brings all its ranks together, each with a GPU of its own.
#pragma once
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "kernels.h"

namespace simulated {

inline bool nccl_has(at::ScalarType type) {  // getNcclDataType
  switch (type) {
    case at::kShort:
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64:
    case at::kComplexHalf:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return false;
    default:
      return true;
  }
}

inline void refuse_what_nccl_refuses(const std::string& name, std::vector<c10::IValue>& arguments) {
  TORCH_CHECK(name != "c10d::recv_any_source_",
              "Backend nccl does not support recvAnysource (simulated)");
  for (auto& argument : arguments)
    each_tensor(argument, [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_cuda()) {
        TORCH_CHECK_VALUE(tensor.is_contiguous(), "Tensors must be contiguous (simulated NCCL)");
        TORCH_CHECK_TYPE(nccl_has(tensor.scalar_type()), "Input tensor data type is not supported "
                         "for NCCL process group: ", tensor.scalar_type(), " (simulated)");
      }
      return tensor;
    });
}

// The first collective of a group: all its ranks meet, and NCCL sees who shares a GPU.
inline void meet(const c10::intrusive_ptr<c10d::Backend>& backend, c10::DeviceIndex gpu) {
  using Known = c10::weak_intrusive_ptr<c10d::Backend>;
  static std::vector<Known> met;
  {
    std::lock_guard<std::mutex> held(lock);
    auto gone = [](const Known& one) { return one.expired(); };
    met.erase(std::remove_if(met.begin(), met.end(), gone), met.end());
    for (auto& one : met)
      if (one.lock() == backend) return;
    met.emplace_back(backend);
  }
  std::vector<at::Tensor> mine = {at::full({1}, int64_t(gpu), at::kLong)};
  std::vector<std::vector<at::Tensor>> all(1);
  for (int rank = 0; rank < backend->getSize(); rank++) all[0].push_back(at::empty({1}, at::kLong));
  backend->allgather(all, mine)->wait();
  for (int rank = 0; rank < backend->getSize(); rank++)
    TORCH_CHECK_WITH(
        DistBackendError,
        rank == backend->getRank() || all[0][rank].item<int64_t>() != gpu,
        "Duplicate GPU detected : rank ", backend->getRank(), " and rank ", rank,
        " both on CUDA device ", int(gpu), " (simulated NCCL)");
}

// Gloo refuses tensors of a GPU: it gets their aliases, in a group whose backend for the CPU is the
// one that the real group has for GPUs. Averages are sums, divided.
inline void over_gloo(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  const auto n = op.schema().arguments().size();
  std::vector<c10::IValue> arguments(stack->end() - n, stack->end());
  refuse_what_nccl_refuses(name, arguments);
  const auto device = device_of(name, arguments);
  bool is_average = false;
  int ranks = 1;
  for (size_t i = 0; i < n; i++) {
    auto& argument = stack->at(stack->size() - n + i);
    auto type = op.schema().arguments()[i].type()->str();
    if (type.find("c10d.ProcessGroup") != std::string::npos) {
      auto group = argument.toCustomClass<c10d::ProcessGroup>();
      auto backend = group->getBackend(c10::kCUDA);
      ranks = group->getSize();
      if (name != "c10d::send" && name != "c10d::recv_") meet(backend, device.index());
      auto twin = c10::make_intrusive<c10d::ProcessGroup>(group->getRank(), group->getSize());
      twin->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
      argument = c10::IValue(twin);
    } else if (type.find("c10d.ReduceOp") != std::string::npos) {
      using c10d::ReduceOp;
      auto reduction = argument.toCustomClass<ReduceOp>();
      for (auto of_bits : {ReduceOp::BAND, ReduceOp::BOR, ReduceOp::BXOR})
        TORCH_CHECK_VALUE(!(*reduction == of_bits), "Cannot use ReduceOp.BAND, BOR or BXOR with "
                          "NCCL (simulated)");
      is_average = *reduction == ReduceOp::AVG;
      if (is_average) argument = c10::IValue(c10::make_intrusive<ReduceOp>(ReduceOp::SUM));
    }
  }
  fallback(op, keys, stack);
  if (!is_average) return;
  auto work = stack->back().isTuple() ? stack->back().toTuple()->elements().back() : stack->back();
  work.toCustomClass<c10d::Work>()->wait();
  each_tensor(arguments[0], [&](const at::Tensor& sum) {
    on_cpu(sum).div_(ranks);
    return sum;
  });
}

}  // namespace simulated
