/* Files that hold models: readers by format, a writer of GGUF, a reader and a writer of Core ML packages.
 *
 *   source.h       tensors and metadata of any format        gguf.c safetensors.c onnx/
 *   gguf_write.h   GGUF files                                gguf_write.c
 *   onnx/          graphs of ONNX files, and sources made of them
 *   mil/           the model of a Core ML package: its protobuf, checked and printed
 *   mlpackage/     the folder of a Core ML package: manifest, model, weight files
 *   aimodel/       the asset of a Core AI program: its bytecode, built, checked, written
 *   wire.h         protobuf bytes that nobody has checked yet */
#ifndef ANE_FORMATS_FORMATS_H
#define ANE_FORMATS_FORMATS_H

#include "formats/aimodel/aimodel.h"
#include "formats/gguf_write.h"
#include "formats/mlpackage/mlpackage.h"
#include "formats/onnx/onnx.h"
#include "formats/onnx/onnx_source.h"
#include "formats/source.h"

#endif
