// Answers texts on a device: reads lines, writes JSON, without Python.
//
//   albert_device FOLDER [--ids] < texts.txt
//
// FOLDER is the output of `keras-albert export --format litert`. The program
// tokenizes as `keras_albert.Tokenizer` does and answers as `keras-albert
// predict` does: one label, several labels or a number for each text, or for
// each pair of texts, separated by a tab. --ids adds the ids to each line.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include <sentencepiece_processor.h>

#include "litert.h"
#include "unicode_tables.h"

using nlohmann::json;
using Ids = std::vector<int>;

using Error = std::runtime_error;

// ---- Text normalization: keras_albert/text/normalization.py

template <size_t N>
const char32_t* Mapped(const Mapping (&table)[N], char32_t c) {
  auto found = std::lower_bound(
      table, table + N, c,
      [](const Mapping& row, char32_t code) { return row.from < code; });
  return found != table + N && found->from == c ? found->to : nullptr;
}

template <size_t N>
bool IsIn(const Range (&table)[N], char32_t c) {
  auto after = std::upper_bound(
      table, table + N, c,
      [](char32_t code, const Range& row) { return code < row.first; });
  return after != table && c <= (after - 1)->last;
}

// Decodes UTF-8. Bytes that are no part of a character are left out.
std::u32string Decoded(const std::string& text) {
  std::u32string result;
  for (size_t i = 0; i < text.size();) {
    const unsigned char first = text[i];
    const int length = 1 + (first >= 0x80) + (first >= 0xE0) + (first >= 0xF0);
    char32_t c = length > 1 ? first & (0x7F >> length) : first;
    bool valid = (first < 0x80 || (first >= 0xC0 && first < 0xF8)) &&
                 i + length <= text.size();
    for (int k = 1; valid && k < length; ++k) {
      const unsigned char next = text[i + k];
      valid = (next & 0xC0) == 0x80;
      c = c << 6 | (next & 0x3F);
    }
    // Characters in more bytes than needed, surrogates, and too large numbers.
    const char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    valid = valid && c >= least[length] && c <= 0x10FFFF &&
            (c < 0xD800 || c > 0xDFFF);
    if (valid) result.push_back(c);
    i += valid ? length : 1;
  }
  return result;
}

std::string Encoded(const std::u32string& text) {
  std::string result;
  for (char32_t c : text) {
    const int more = (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    const int marks[] = {0, 0xC0, 0xE0, 0xF0};
    result.push_back(static_cast<char>(marks[more] | c >> 6 * more));
    for (int k = more - 1; k >= 0; --k)
      result.push_back(static_cast<char>(0x80 | (c >> 6 * k & 0x3F)));
  }
  return result;
}

// One space for each run of white space between words, none at the ends.
std::u32string Joined(const std::u32string& text) {
  std::u32string result;
  bool gap = false;
  for (char32_t c : text) {
    const bool is_space = IsIn(kSpace, c);
    if (gap && !is_space) result.push_back(U' ');
    if (!is_space) result.push_back(c);
    gap = is_space && !result.empty();
  }
  return result;
}

// The decomposition (NFKD) without combining marks. Marks are the only
// characters that a decomposition reorders, so that each character is
// decomposed by itself.
std::u32string WithoutMarks(const std::u32string& text) {
  std::u32string result;
  for (char32_t c : text) {
    if (c >= 0xAC00 && c <= 0xD7A3) {  // Hangul: the Unicode standard, 3.12
      const char32_t syllable = c - 0xAC00, last = syllable % 28;
      result.push_back(0x1100 + syllable / 588);
      result.push_back(0x1161 + syllable % 588 / 28);
      if (last) result.push_back(0x11A7 + last);
    } else {
      const char32_t* to = Mapped(kDecomposed, c);
      result += to ? to : std::u32string(1, c);
    }
  }
  return result;
}

// Whether the sigma at `at` ends a word: the nearest character that counts is
// a letter with case before it, and none after it.
bool EndsWord(const std::u32string& text, size_t at) {
  const auto cased_beyond = [&text](size_t i, int step) {
    for (i += step; i < text.size(); i += step)  // -1 is beyond any size
      if (!IsIn(kIgnorable, text[i])) return IsIn(kCased, text[i]);
    return false;
  };
  return cased_beyond(at, -1) && !cased_beyond(at, 1);
}

std::u32string Lowered(const std::u32string& text) {
  std::u32string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t* to = Mapped(kLower, text[i]);
    if (text[i] == U'\u03A3') to = EndsWord(text, i) ? U"\u03C2" : U"\u03C3";
    result += to ? to : std::u32string(1, text[i]);
  }
  return result;
}

// ---- Files

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw Error(path + ": no such file. Give the output folder of "
                "keras-albert export --format litert.");
  return {std::istreambuf_iterator<char>(file), {}};
}

json ReadJson(const std::string& path) {
  json value = json::parse(ReadFile(path), nullptr, /*exceptions=*/false);
  if (!value.is_object())
    throw Error(path + ": not a JSON object. Export the model again.");
  return value;
}

// ---- Tokenizer: keras_albert/text/tokenizer.py

class Tokenizer {
 public:
  static constexpr int kCls = 2, kSep = 3;

  explicit Tokenizer(const std::string& folder) {
    const json settings = ReadJson(folder + "/spiece.json");
    lower_case_ = settings.value("lower_case", true);
    keep_accents_ = settings.value("keep_accents", false);
    const std::string path = folder + "/spiece.model";
    const auto status = processor_.LoadFromSerializedProto(ReadFile(path));
    if (!status.ok())
      throw Error(path + ": " + status.ToString() + ". Export it again.");
    // A piece of digits and a comma is tokenized again, without the comma.
    for (int i = 0; i < processor_.GetPieceSize(); ++i) {
      std::u32string piece = Decoded(processor_.IdToPiece(i));
      if (piece.size() < 2 || piece.back() != U',') continue;
      piece.pop_back();
      if (!IsIn(kDigit, piece.back())) continue;
      const auto end = std::remove(piece.begin(), piece.end(), U'\u2581');
      piece.erase(end, piece.end());
      resplits_[i] = processor_.EncodeAsIds(Encoded(piece));
      resplits_[i].push_back(processor_.PieceToId(","));
    }
  }

  Ids Encode(const std::string& text) const {
    std::u32string normal = Joined(Decoded(text));
    if (!keep_accents_) normal = WithoutMarks(normal);
    if (lower_case_) normal = Lowered(normal);
    Ids result;
    for (int id : processor_.EncodeAsIds(Encoded(normal))) {
      const auto found = resplits_.find(id);
      const Ids ids = found == resplits_.end() ? Ids{id} : found->second;
      result.insert(result.end(), ids.begin(), ids.end());
    }
    return result;
  }

  // [CLS] a [SEP], or [CLS] a [SEP] b [SEP] if b is not empty, cut to `longest`
  // tokens at the end of the longer text.
  static Ids Pack(Ids a, Ids b, size_t longest) {
    const size_t room = longest - (b.empty() ? 2 : 3);
    while (a.size() + b.size() > room)
      (a.size() > b.size() ? a : b).pop_back();
    if (!b.empty()) b.push_back(kSep);
    Ids row = {kCls};
    row.insert(row.end(), a.begin(), a.end());
    row.push_back(kSep);
    row.insert(row.end(), b.begin(), b.end());
    return row;
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  std::unordered_map<int, Ids> resplits_;
  bool lower_case_, keep_accents_;
};

// ---- Model

// Calls a function of LiteRT; stops with its name if it fails.
#define CHECKED(function, ...)                                         \
  if (const LiteRtStatus status = function(__VA_ARGS__))               \
  throw Error(#function " failed with status " + \
                           std::to_string(status))

class Model {
 public:
  explicit Model(const std::string& path) {
    ReadFile(path);  // says what is missing
    LiteRtModel model;
    LiteRtOptions options;
    CHECKED(LiteRtCreateEnvironment, 0, nullptr, &environment_);
    if (LiteRtCreateModelFromFile(environment_, path.c_str(), &model))
      throw Error(path + ": damaged, or no LiteRT model. Export it again.");
    CHECKED(LiteRtCreateOptions, &options);
    CHECKED(LiteRtSetOptionsHardwareAccelerators, options,
            kLiteRtHwAcceleratorCpu);
    CHECKED(LiteRtCreateCompiledModel, environment_, model, options,
            &compiled_);
    LiteRtSignature signature;
    size_t count;
    CHECKED(LiteRtGetModelSignature, model, 0, &signature);
    CHECKED(LiteRtGetNumSignatureOutputs, signature, &count);
    types_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const char* name;
      LiteRtTensor tensor;
      CHECKED(LiteRtGetSignatureOutputName, signature, i, &name);
      CHECKED(LiteRtGetSignatureOutputTensorByIndex, signature, i, &tensor);
      CHECKED(LiteRtGetRankedTensorType, tensor, &types_[i]);
      if (!std::strcmp(name, "logits")) logits_ = i;
    }
  }

  // The logits of one row, which is computed without padding.
  std::vector<float> Logits(const Ids& row) {
    const int shape[] = {1, static_cast<int>(row.size())};
    LiteRtRankedTensorType type = {kLiteRtElementTypeInt32, {2, 0, {}, {}}};
    std::copy(shape, shape + 2, type.layout.dimensions);
    CHECKED(LiteRtCompiledModelResizeInputTensor, compiled_, 0, 0, shape, 2);
    std::vector<LiteRtLayout> layouts(types_.size());
    CHECKED(LiteRtGetCompiledModelOutputTensorLayouts, compiled_, 0,
            layouts.size(), layouts.data(), true);

    LiteRtTensorBufferRequirements needed;
    std::vector<LiteRtTensorBuffer> buffers(1 + types_.size());
    CHECKED(LiteRtGetCompiledModelInputBufferRequirements, compiled_, 0, 0,
            &needed);
    CHECKED(LiteRtCreateManagedTensorBufferFromRequirements, environment_,
            &type, needed, &buffers[0]);
    for (size_t i = 0; i < types_.size(); ++i) {
      types_[i].layout = layouts[i];
      CHECKED(LiteRtGetCompiledModelOutputBufferRequirements, compiled_, 0, i,
              &needed);
      CHECKED(LiteRtCreateManagedTensorBufferFromRequirements, environment_,
              &types_[i], needed, &buffers[1 + i]);
    }
    void* memory;
    CHECKED(LiteRtLockTensorBuffer, buffers[0], &memory, kLiteRtLockWrite);
    std::copy(row.begin(), row.end(), static_cast<int32_t*>(memory));
    CHECKED(LiteRtUnlockTensorBuffer, buffers[0]);
    CHECKED(LiteRtRunCompiledModel, compiled_, 0, 1, &buffers[0],
            types_.size(), &buffers[1]);
    const LiteRtTensorBuffer found = buffers[1 + logits_];
    CHECKED(LiteRtLockTensorBuffer, found, &memory, kLiteRtLockRead);
    const float* first = static_cast<float*>(memory);
    std::vector<float> logits(first, first + layouts[logits_].dimensions[1]);
    CHECKED(LiteRtUnlockTensorBuffer, found);
    for (LiteRtTensorBuffer each : buffers) LiteRtDestroyTensorBuffer(each);
    return logits;
  }

 private:
  LiteRtEnvironment environment_;
  LiteRtCompiledModel compiled_;
  std::vector<LiteRtRankedTensorType> types_;  // of the outputs
  size_t logits_ = 0;  // number of the output
};

// ---- Answers: keras_albert/tasks/classification.py

double Rounded(double value) { return std::round(value * 1e6) / 1e6; }

// As `keras-albert predict` writes it, see `decode` in that file. `task` is the
// content of task.json.
json Answer(const std::vector<float>& logits, const json& task) {
  const json& labels = task.at("labels");
  // The probabilities above which labels are predicted, if they were tuned.
  const json limits = task.value("threshold", json::array());
  if (labels.is_null()) return {{"prediction", Rounded(logits[0])}};
  if (task.at("task") == "multilabel") {
    json chosen = json::array(), scores;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double odds = 1 / (1 + std::exp(-double(logits[i])));
      const double limit = limits.empty() ? 0.5 : limits[i].get<double>();
      if (odds > limit) chosen.push_back(labels[i]);
      scores[labels[i].get<std::string>()] = Rounded(odds);
    }
    return {{"prediction", chosen}, {"score", scores}};
  }
  const auto best = std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (float logit : logits) total += std::exp(double(logit) - *best);
  const auto odds = [&](size_t i) {
    return std::exp(double(logits[i]) - *best) / total;
  };
  size_t predicted = best - logits.begin();
  if (!limits.empty()) predicted = odds(1) > limits[0].get<double>();
  return {{"prediction", labels[predicted]},
          {"score", Rounded(odds(predicted))}};
}

int main(int count, char** arguments) try {
  const bool with_ids = count == 3 && std::string(arguments[2]) == "--ids";
  if (count != 2 && !with_ids)
    throw Error("usage: albert_device FOLDER [--ids] < texts.txt");
  const std::string folder = arguments[1];
  const json task = ReadJson(folder + "/task.json");
  const json made = ReadJson(folder + "/export.json");
  const std::string name = task.at("task");
  for (const char* other :
       {"tokens", "choice", "RACE", "embedding", "similarity"})
    if (name == other || task.contains("reading"))
      throw Error(folder + ": a model for " + name + ". This program answers "
                  "with labels or a number; use examples/device.py.");
  const bool reads_pairs = made.at("reads_pairs");
  const size_t longest = task.at("lengths").back();
  const Tokenizer tokenizer(folder);
  Model model(folder + "/model.tflite");
  for (std::string line; std::getline(std::cin, line);) {
    const size_t tab = reads_pairs ? line.find('\t') : std::string::npos;
    Ids pair;
    if (tab != std::string::npos) pair = tokenizer.Encode(line.substr(tab + 1));
    const Ids row =
        Tokenizer::Pack(tokenizer.Encode(line.substr(0, tab)), pair, longest);
    json answer = Answer(model.Logits(row), task);
    if (with_ids) answer["ids"] = row;
    std::cout << answer.dump() << std::endl;
    if (!std::cout) throw Error("the standard output cannot be written.");
  }
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << std::endl;
  return 2;
}
