// A model with a compiled network, run by ONNX Runtime from C++ with its arrays bound:
//
//   c++ -std=c++17 -I INCLUDE client.cc -L LIB -lonnxruntime -o client
//   ./client libautotune_provider.so model_ctx.onnx STEPS [NAME float|int64 1x3x224x224 FILE]...
//
// Inputs are files of numbers; outputs are written to N.out, their shapes to standard output. An
// output `present…` is the input `past…` of the next of the steps, as it is in memory.
#include <onnxruntime_cxx_api.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

static Ort::Value read_tensor(const std::string &type, const std::string &dims, const char *path) {
  std::vector<int64_t> shape;
  std::stringstream words(dims);
  for (std::string one; std::getline(words, one, 'x');) shape.push_back(std::stoll(one));
  Ort::AllocatorWithDefaultOptions allocator;
  auto kind = type == "float" ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
                              : ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  auto value = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), kind);
  std::ifstream(path, std::ios::binary)
      .read(static_cast<char *>(value.GetTensorMutableRawData()), value.GetTensorSizeInBytes());
  return value;
}

static int run(int argc, char **argv) {
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "client");
  env.RegisterExecutionProviderLibrary("autotune", argv[1]);
  std::vector<Ort::ConstEpDevice> devices;
  for (auto device : env.GetEpDevices())
    if (std::string(device.EpName()) == "AutotuneExecutionProvider") devices.push_back(device);
  Ort::SessionOptions options;
  options.AppendExecutionProvider_V2(env, devices, Ort::KeyValuePairs());
  Ort::Session session(env, argv[2], options);

  std::map<std::string, Ort::Value> given;
  for (int n = 4; n + 3 < argc; n += 4)
    given.emplace(argv[n], read_tensor(argv[n + 1], argv[n + 2], argv[n + 3]));
  std::vector<Ort::Value> made;
  auto names = session.GetOutputNames();
  for (int step = 0; step < std::stoi(argv[3]); ++step) {
    Ort::IoBinding binding(session);
    for (auto &[name, value] : given) binding.BindInput(name.c_str(), value);
    for (auto &name : names)
      binding.BindOutput(name.c_str(), Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault));
    session.Run(Ort::RunOptions(), binding);
    made = binding.GetOutputValues();
    for (size_t n = 0; n < names.size(); ++n)
      if (names[n].rfind("present", 0) == 0 && step + 1 < std::stoi(argv[3]))
        given.insert_or_assign("past" + names[n].substr(7), std::move(made[n]));
  }
  for (size_t n = 0; n < made.size(); ++n) {
    std::cout << names[n];
    for (auto extent : made[n].GetTensorTypeAndShapeInfo().GetShape()) std::cout << ' ' << extent;
    std::cout << '\n';
    std::ofstream(std::to_string(n) + ".out", std::ios::binary)
        .write(static_cast<const char *>(made[n].GetTensorRawData()), made[n].GetTensorSizeInBytes());
  }
  return 0;
}

int main(int argc, char **argv) {
  try {
    return run(argc, argv);
  } catch (const Ort::Exception &error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
