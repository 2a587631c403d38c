// Answers texts with an exported folder, by labels or by a number.
//
// The folder is the output of `keras-albert export --format onnx`, the answers
// are those of `keras-albert predict`. Runs in browsers and in Node.js.

import * as ort from "onnxruntime-web";
import { Tokenizer } from "./tokenizer.js";

const EXPORTED = "Give the output folder of keras-albert export --format onnx.";
// Other tasks that give logits: of words, or of choices.
const OTHERS = ["tokens", "choice", "RACE"];

export class Model {
  // Loads the folder of a URL that ends with "/". `tables` is the URL of
  // unicode_tables.json.
  static async load(folder, tables) {
    const file = (name) => fetched(new URL(name, folder), EXPORTED);
    // First alone: of several missing files, it is the one to tell about.
    const task = await file("task.json").then(json);
    const [exported, settings, characters, vocabulary, graph] =
      await Promise.all([
        file("export.json").then(json),
        file("spiece.json").then(json),
        fetched(tables, "Write it with unicode_tables.py.").then(json),
        file("spiece.model"),
        file("model.onnx"),
      ]);
    const tokenizer = await made(vocabulary, (content) => {
      return new Tokenizer(content, settings, characters);
    });
    const session = await made(graph, (content) => {
      return ort.InferenceSession.create(content);
    });
    const isOther = OTHERS.includes(task.task) || task.reading;
    if (isOther || !session.outputNames.includes("logits")) {
      throw new Error(
        `${folder}: a model for ${task.task}. This page answers with labels ` +
          "or a number.",
      );
    }
    return new Model(tokenizer, session, task, exported.reads_pairs);
  }

  constructor(tokenizer, session, task, readsPairs) {
    this.tokenizer = tokenizer;
    this.session = session;
    this.task = task; // content of task.json
    this.readsPairs = readsPairs;
  }

  // The answer for a text, or for a text and a second one: its ids, the
  // prediction and, unless that is a number, pairs of a label and its
  // probability.
  async answer(text, pair = "") {
    const { labels, lengths, task, threshold: limits } = this.task;
    const encoded = this.tokenizer.encode(text);
    const other = this.readsPairs ? this.tokenizer.encode(pair) : [];
    const ids = this.tokenizer.pack(encoded, other, Math.max(...lengths));
    const logits = await this.logits(ids);
    if (labels === null) return { ids, prediction: logits[0] };
    if (task === "multilabel") {
      const odds = logits.map((logit) => 1 / (1 + Math.exp(-logit)));
      const limit = (i) => (limits ? limits[i] : 0.5);
      const prediction = labels.filter((_, i) => odds[i] > limit(i));
      return { ids, prediction, probabilities: zipped(labels, odds) };
    }
    const highest = Math.max(...logits);
    const powers = logits.map((logit) => Math.exp(logit - highest));
    const total = powers.reduce((a, b) => a + b);
    const odds = powers.map((each) => each / total);
    const best = limits ? +(odds[1] > limits[0]) : logits.indexOf(highest);
    return {
      ids,
      prediction: labels[best],
      probabilities: zipped(labels, odds),
    };
  }

  // The logits of one row, which has no padding.
  async logits(ids) {
    const row = new ort.Tensor("int32", Int32Array.from(ids), [1, ids.length]);
    const { logits } = await this.session.run({ token_ids: row });
    return [...logits.data];
  }
}

const zipped = (labels, odds) => labels.map((label, i) => [label, odds[i]]);

// The content of a file; `advice` is for those who do not have it.
async function fetched(url, advice) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: no such file. ${advice}`);
  return { url, content: await response.arrayBuffer() };
}

// What a function makes of the content of a file.
async function made({ url, content }, make) {
  try {
    return await make(content);
  } catch (error) {
    throw new Error(`${url}: damaged (${error.message}). Write it again.`);
  }
}

const json = (file) =>
  made(file, (content) => JSON.parse(new TextDecoder().decode(content)));
