// Answers of an exported model, from TensorFlow's C library alone.
//
//     export_from_c FOLDER LIBRARY,... NODE=TEXT ... -- OUTPUT=NODE:INDEX ...
//
// In: the folder, the op libraries, each input's placeholder and text, each output's tensor. Out: a line NAME<tab>VALUE... for each.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorflow/c/c_api.h>
#include <tensorflow/c/tf_tensor.h>

static void check(TF_Status* status) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s\n", TF_Message(status));
  exit(1);
}

static TF_Tensor* strings(const char* text) {  // a batch of one
  int64_t dims[] = {1};
  TF_Tensor* tensor = TF_AllocateTensor(TF_STRING, dims, 1, sizeof(TF_TString));
  TF_TString* value = TF_TensorData(tensor);
  TF_StringInit(value);
  TF_StringCopy(value, text, strlen(text));
  return tensor;
}

static void print(const char* name, const TF_Tensor* tensor) {
  printf("%s", name);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); ++i) {
    const void* data = TF_TensorData(tensor);
    if (TF_TensorType(tensor) == TF_FLOAT) printf("\t%.9g", ((const float*)data)[i]);
    if (TF_TensorType(tensor) == TF_INT32) printf("\t%d", ((const int*)data)[i]);
    if (TF_TensorType(tensor) == TF_STRING) {
      const TF_TString* value = (const TF_TString*)data + i;
      printf("\t%.*s", (int)TF_StringGetSize(value), TF_StringGetDataPointer(value));
    }
  }
  printf("\n");
}

static TF_Output find(TF_Graph* graph, char* place) {  // NODE or NODE:INDEX
  char* index = strchr(place, ':');
  if (index) *index++ = 0;
  TF_Output output = {TF_GraphOperationByName(graph, place), index ? atoi(index) : 0};
  if (output.oper) return output;
  fprintf(stderr, "no node %s\n", place);
  exit(1);
}

int main(int argc, char** argv) {
  TF_Status* status = TF_NewStatus();
  for (char* path = strtok(argv[2], ","); path; path = strtok(NULL, ",")) TF_LoadLibrary(path, status), check(status);
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  check(status);
  const char* names[32];
  TF_Output inputs[32], outputs[32];
  TF_Tensor *given[32], *answers[32];
  int in = 0, out = 0, i = 3;
  for (; strcmp(argv[i], "--"); ++i, ++in) {
    char* text = strchr(argv[i], '=');
    *text++ = 0;
    inputs[in] = find(graph, argv[i]), given[in] = strings(text);
  }
  for (++i; i < argc; ++i, ++out) {
    char* place = strchr(argv[i], '=');
    *place++ = 0;
    names[out] = argv[i], outputs[out] = find(graph, place);
  }
  TF_SessionRun(session, NULL, inputs, given, in, outputs, answers, out, NULL, 0, NULL, status);
  check(status);
  for (i = 0; i < out; ++i) print(names[i], answers[i]);
  return 0;
}
