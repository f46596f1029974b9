// The same as client.cc from Go, by the C API of ONNX Runtime:
//
//	CGO_CFLAGS=-I… CGO_LDFLAGS="-L… -lonnxruntime" go run client.go PROVIDER MODEL STEPS [NAME TYPE DIMS FILE]...
package main

/*
#include <onnxruntime_c_api.h>
#include <stdlib.h>
#include <string.h>

static const OrtApi *api;
static OrtEnv *env;
static OrtSession *session;
static OrtMemoryInfo *memory;
static OrtAllocator *allocator;

static const char *told(OrtStatus *status) { return status ? api->GetErrorMessage(status) : NULL; }
#define TRY(call) do { OrtStatus *s = (call); if (s) return told(s); } while (0)

static const char *open_model(const char *provider, const char *model) {
  const OrtEpDevice *const *devices, *ours[16];
  OrtSessionOptions *options;
  size_t n, n_ours = 0;
  api = OrtGetApiBase()->GetApi(23);
  TRY(api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "client", &env));
  TRY(api->RegisterExecutionProviderLibrary(env, "autotune", provider));
  TRY(api->GetEpDevices(env, &devices, &n));
  for (size_t k = 0; k < n && n_ours < 16; k++)
    if (!strcmp(api->EpDevice_EpName(devices[k]), "AutotuneExecutionProvider")) ours[n_ours++] = devices[k];
  TRY(api->CreateSessionOptions(&options));
  TRY(api->SessionOptionsAppendExecutionProvider_V2(options, env, ours, n_ours, NULL, NULL, 0));
  TRY(api->CreateSession(env, model, options, &session));
  TRY(api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
  return told(api->GetAllocatorWithDefaultOptions(&allocator));
}
static const char *new_tensor(int is_float, const int64_t *shape, size_t rank, OrtValue **made, void **data) {
  int kind = is_float ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT : ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  TRY(api->CreateTensorAsOrtValue(allocator, shape, rank, kind, made));
  return told(api->GetTensorMutableData(*made, data));
}
static const char *count(size_t *n) { return told(api->SessionGetOutputCount(session, n)); }
static const char *name_of(size_t n, char **name) {
  return told(api->SessionGetOutputName(session, n, allocator, name));
}
static const char *new_binding(OrtIoBinding **made) { return told(api->CreateIoBinding(session, made)); }
static const char *bind_input(OrtIoBinding *b, const char *name, OrtValue *v) { return told(api->BindInput(b, name, v)); }
static const char *bind_output(OrtIoBinding *b, const char *name) {
  return told(api->BindOutputToDevice(b, name, memory));
}
static const char *run(OrtIoBinding *b, OrtValue ***made) {
  size_t n;
  TRY(api->RunWithBinding(session, NULL, b));
  return told(api->GetBoundOutputValues(b, allocator, made, &n));
}
static OrtValue *nth(OrtValue **made, size_t n) { return made[n]; }
static const char *shape_of(OrtValue *v, int64_t *shape, size_t *rank, size_t *bytes, void **data) {
  OrtTensorTypeAndShapeInfo *info;
  TRY(api->GetTensorTypeAndShape(v, &info));
  TRY(api->GetDimensionsCount(info, rank));
  TRY(api->GetDimensions(info, shape, *rank));
  TRY(api->GetTensorSizeInBytes(v, bytes));
  return told(api->GetTensorMutableData(v, data));
}
*/
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

func try(text *C.char) {
	if text != nil {
		fmt.Fprintln(os.Stderr, "error:", C.GoString(text))
		os.Exit(1)
	}
}

func read(kind, dims, path string) *C.OrtValue {
	var shape []C.int64_t
	for _, word := range strings.Split(dims, "x") {
		extent, _ := strconv.Atoi(word)
		shape = append(shape, C.int64_t(extent))
	}
	bytes, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	var made *C.OrtValue
	var data unsafe.Pointer
	isFloat := 0
	if kind == "float" {
		isFloat = 1
	}
	try(C.new_tensor(C.int(isFloat), &shape[0], C.size_t(len(shape)), &made, &data))
	copy(unsafe.Slice((*byte)(data), len(bytes)), bytes)
	return made
}

func main() {
	try(C.open_model(C.CString(os.Args[1]), C.CString(os.Args[2])))
	given := map[string]*C.OrtValue{}
	for n := 4; n+3 < len(os.Args); n += 4 {
		given[os.Args[n]] = read(os.Args[n+1], os.Args[n+2], os.Args[n+3])
	}
	var n C.size_t
	try(C.count(&n))
	names := make([]*C.char, n)
	for k := range names {
		try(C.name_of(C.size_t(k), &names[k]))
	}
	steps, _ := strconv.Atoi(os.Args[3])
	var made **C.OrtValue
	for step := 0; step < steps; step++ {
		var binding *C.OrtIoBinding
		try(C.new_binding(&binding))
		for name, value := range given {
			try(C.bind_input(binding, C.CString(name), value))
		}
		for _, name := range names {
			try(C.bind_output(binding, name))
		}
		try(C.run(binding, &made))
		for k, name := range names {
			if text := C.GoString(name); strings.HasPrefix(text, "present") {
				given["past"+strings.TrimPrefix(text, "present")] = C.nth(made, C.size_t(k))
			}
		}
	}
	for k, name := range names {
		var shape [32]C.int64_t
		var rank, size C.size_t
		var data unsafe.Pointer
		try(C.shape_of(C.nth(made, C.size_t(k)), &shape[0], &rank, &size, &data))
		fmt.Print(C.GoString(name))
		for _, extent := range shape[:rank] {
			fmt.Print(" ", extent)
		}
		fmt.Println()
		if err := os.WriteFile(fmt.Sprint(k, ".out"), C.GoBytes(data, C.int(size)), 0o644); err != nil {
			panic(err)
		}
	}
}
