// The part of the C API of LiteRT 2.3 that albert_device.cc calls.
//
// The Python package ai-edge-litert has the library, libLiteRt.so, but not its
// headers. The names, arguments and numbers below are those of litert/c/*.h of
// LiteRT (https://github.com/google-ai-edge/LiteRT), whose documentation says
// that the two structures stay as they are.

#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

typedef struct LiteRtEnvironmentT* LiteRtEnvironment;
typedef struct LiteRtModelT* LiteRtModel;
typedef struct LiteRtOptionsT* LiteRtOptions;
typedef struct LiteRtCompiledModelT* LiteRtCompiledModel;
typedef struct LiteRtSignatureT* LiteRtSignature;
typedef struct LiteRtTensorT* LiteRtTensor;
typedef struct LiteRtTensorBufferT* LiteRtTensorBuffer;
typedef struct LiteRtTensorBufferRequirementsT* LiteRtTensorBufferRequirements;

typedef int LiteRtStatus;  // 0: no error
enum { kLiteRtHwAcceleratorCpu = 1 };
enum { kLiteRtElementTypeFloat32 = 1, kLiteRtElementTypeInt32 = 2 };
enum { kLiteRtLockRead = 0, kLiteRtLockWrite = 1 };

typedef struct {
  unsigned int rank : 7;
  unsigned int has_strides : 1;
  int32_t dimensions[8];
  uint32_t strides[8];
} LiteRtLayout;

typedef struct {
  int element_type;
  LiteRtLayout layout;
} LiteRtRankedTensorType;

LiteRtStatus LiteRtCreateEnvironment(int options, const void*,
                                     LiteRtEnvironment*);
LiteRtStatus LiteRtCreateModelFromFile(LiteRtEnvironment, const char*,
                                       LiteRtModel*);
LiteRtStatus LiteRtCreateOptions(LiteRtOptions*);
LiteRtStatus LiteRtSetOptionsHardwareAccelerators(LiteRtOptions, int);
LiteRtStatus LiteRtCreateCompiledModel(LiteRtEnvironment, LiteRtModel,
                                       LiteRtOptions, LiteRtCompiledModel*);

LiteRtStatus LiteRtGetModelSignature(LiteRtModel, size_t, LiteRtSignature*);
LiteRtStatus LiteRtGetNumSignatureOutputs(LiteRtSignature, size_t*);
LiteRtStatus LiteRtGetSignatureOutputName(LiteRtSignature, size_t,
                                          const char**);
LiteRtStatus LiteRtGetSignatureOutputTensorByIndex(LiteRtSignature, size_t,
                                                   LiteRtTensor*);
LiteRtStatus LiteRtGetRankedTensorType(LiteRtTensor, LiteRtRankedTensorType*);

// The second argument is the number of the signature, the third that of its
// input or output.
LiteRtStatus LiteRtCompiledModelResizeInputTensor(LiteRtCompiledModel, size_t,
                                                  size_t, const int* dimensions,
                                                  size_t rank);
LiteRtStatus LiteRtGetCompiledModelOutputTensorLayouts(LiteRtCompiledModel,
                                                       size_t, size_t count,
                                                       LiteRtLayout*,
                                                       bool allocate);
LiteRtStatus LiteRtGetCompiledModelInputBufferRequirements(
    LiteRtCompiledModel, size_t, size_t, LiteRtTensorBufferRequirements*);
LiteRtStatus LiteRtGetCompiledModelOutputBufferRequirements(
    LiteRtCompiledModel, size_t, size_t, LiteRtTensorBufferRequirements*);
LiteRtStatus LiteRtRunCompiledModel(LiteRtCompiledModel, size_t,
                                    size_t num_inputs, LiteRtTensorBuffer*,
                                    size_t num_outputs, LiteRtTensorBuffer*);

LiteRtStatus LiteRtCreateManagedTensorBufferFromRequirements(
    LiteRtEnvironment, const LiteRtRankedTensorType*,
    LiteRtTensorBufferRequirements, LiteRtTensorBuffer*);
LiteRtStatus LiteRtLockTensorBuffer(LiteRtTensorBuffer, void** memory,
                                    int mode);
LiteRtStatus LiteRtUnlockTensorBuffer(LiteRtTensorBuffer);
void LiteRtDestroyTensorBuffer(LiteRtTensorBuffer);

}  // extern "C"
