// Communication of tensors on simulated GPUs: gloo's, on the same memory, with what NCCL refuses.
//
// Stands for torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: what its checks say no to, and that
// ranks, each with a GPU of its own, must come together where a communicator is made.
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

using Backend = c10::intrusive_ptr<c10d::Backend>;
constexpr int ALL = -1, MEETING = 1 << 30;  // a tag that nobody else has

inline bool is_first(const Backend& backend, int other) {
  using Known = std::pair<c10::weak_intrusive_ptr<c10d::Backend>, int>;
  static std::vector<Known> met;
  std::lock_guard<std::mutex> held(lock);
  auto gone = [](const Known& one) { return one.first.expired(); };
  met.erase(std::remove_if(met.begin(), met.end(), gone), met.end());
  for (auto& one : met)
    if (one.first.lock() == backend && one.second == other) return false;
  met.emplace_back(backend, other);
  return true;
}

// A communicator is made by the first collective of a group, and by the first message between two
// ranks of it: the host waits there until all of them have come, and NCCL sees who shares a GPU.
inline void meet(const Backend& backend, int other, c10::DeviceIndex gpu) {
  if (other == backend->getRank() || !is_first(backend, other)) return;
  std::vector<at::Tensor> mine = {at::full({1}, int64_t(gpu), at::kLong)}, theirs;
  if (other == ALL) {
    std::vector<std::vector<at::Tensor>> all(1);
    for (int i = 0; i < backend->getSize(); i++) all[0].push_back(at::empty({1}, at::kLong));
    backend->allgather(all, mine)->wait();
    theirs = all[0];
    theirs.erase(theirs.begin() + backend->getRank());
  } else {
    theirs = {at::empty({1}, at::kLong)};
    auto sent = backend->send(mine, other, MEETING), came = backend->recv(theirs, other, MEETING);
    sent->wait();
    came->wait();
  }
  for (auto& gpu_of_another : theirs)
    TORCH_CHECK_WITH(DistBackendError, gpu_of_another.item<int64_t>() != gpu,
                     "Duplicate GPU detected : rank ", backend->getRank(), " and another rank both "
                     "on CUDA device ", int(gpu), " (simulated NCCL)");
}

inline thread_local bool is_batch = false;  // its messages use the group's communicator

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
      bool is_message = name == "c10d::send" || name == "c10d::recv_";
      if (!is_batch || !is_message)
        meet(backend, is_message ? arguments[2].toInt() : ALL, device.index());
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
