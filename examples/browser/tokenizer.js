// Converts texts to token ids, as keras_albert.Tokenizer does.
//
// The text is normalized with tables of characters that unicode_tables.py
// writes from Python's own, because a browser may know another version of
// Unicode; then segmented by SentencePiece's unigram model, which is read from
// spiece.model. Comments name the function of SentencePiece's C++ sources that
// a part equals.

export const CLS = 2;
export const SEP = 3;
const WORD_MARK = "\u2581"; // SentencePiece's mark for a space
// Types of pieces.
const [NORMAL, UNKNOWN, USER_DEFINED] = [1, 2, 4];
const UNKNOWN_PENALTY = 10;
// SentencePiece begins its search for the largest score with C's FLT_MIN, which
// is not the lowest number but the smallest one above 0.
const FLT_MIN = 2 ** -126;

const encoder = new TextEncoder();
// Without ignoreBOM, U+FEFF at the start of a text would be dropped.
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

// ---- Text normalization: keras_albert/text/normalization.py

export class Normalization {
  // `tables` is the content of unicode_tables.json.
  constructor(tables, { lower_case = true, keep_accents = false } = {}) {
    this.lowerCase = lower_case;
    this.keepAccents = keep_accents;
    this.decomposed = new Map(Object.entries(tables.decomposed));
    this.lower = new Map(Object.entries(tables.lower));
    this.space = setOf(tables.space);
    this.digit = setOf(tables.digit);
    this.cased = setOf(tables.cased);
    this.ignorable = setOf(tables.ignorable);
  }

  normalize(text) {
    // A lone surrogate is no character, and left out.
    let characters = this.joined([...text.replace(/\p{Cs}/gu, "")]);
    if (!this.keepAccents) characters = this.withoutMarks(characters);
    if (this.lowerCase) characters = this.lowered(characters);
    return characters.join("");
  }

  // One space for each run of white space between words, none at the ends.
  joined(characters) {
    const result = [];
    let gap = false;
    for (const c of characters) {
      const isSpace = this.space.has(c);
      if (gap && !isSpace) result.push(" ");
      if (!isSpace) result.push(c);
      gap = isSpace && result.length > 0;
    }
    return result;
  }

  // The decomposition (NFKD) without combining marks. Marks are the only
  // characters that a decomposition reorders, so that each character is
  // decomposed by itself. The table leaves out Hangul syllables, which every
  // version of Unicode decomposes by the same formula.
  withoutMarks(characters) {
    const decompose = (c) =>
      c >= "\uAC00" && c <= "\uD7A3"
        ? c.normalize("NFD")
        : (this.decomposed.get(c) ?? c);
    return characters.flatMap((c) => [...decompose(c)]);
  }

  lowered(characters) {
    return characters.flatMap((c, at) => {
      if (c === "Σ") return this.endsWord(characters, at) ? "ς" : "σ";
      return [...(this.lower.get(c) ?? c)];
    });
  }

  // Whether the sigma at `at` ends a word: the nearest character that counts is
  // a letter with case before it, and none after it.
  endsWord(characters, at) {
    const isCasedBeyond = (step) => {
      let i = at + step;
      while (this.ignorable.has(characters[i])) i += step;
      return this.cased.has(characters[i]);
    };
    return isCasedBeyond(-1) && !isCasedBeyond(1);
  }
}

// The characters of ranges of code points.
function setOf(ranges) {
  const found = new Set();
  for (const [first, last] of ranges) {
    for (let code = first; code <= last; code++) {
      found.add(String.fromCodePoint(code));
    }
  }
  return found;
}

// ---- Protocol buffers: the fields of sentencepiece_model.proto

// The values of a message by the number of their field: numbers of varints, and
// bytes of strings, messages and floats.
function fieldsOf(bytes) {
  const fields = new Map();
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      if (at >= bytes.length || shift > 63) throw new Error("it is cut off");
      const byte = bytes[at++];
      value += (byte & 127) * 2 ** shift;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const key = varint();
    const [number, kind] = [Math.floor(key / 8), key % 8];
    let value;
    if (kind === 0) {
      value = varint();
    } else {
      const size = { 1: () => 8, 2: varint, 5: () => 4 }[kind]?.();
      if (size === undefined || at + size > bytes.length) {
        throw new Error("it has no such fields");
      }
      value = bytes.subarray(at, at + size);
      at += size;
    }
    if (!fields.has(number)) fields.set(number, []);
    fields.get(number).push(value);
  }
  return fields;
}

// The last value of a field, as protocol buffers want it, or its default.
const last = (fields, number, otherwise) =>
  fields.get(number)?.at(-1) ?? otherwise;

function floatOf(bytes) {
  return new DataView(bytes.buffer, bytes.byteOffset, 4).getFloat32(0, true);
}

// ---- SentencePiece

// Normalizer (normalizer.cc): replaces characters by the table of the model,
// and spaces by word marks.
class Normalizer {
  constructor(spec, userDefined, spaceAtEnd) {
    const flag = (number) => Boolean(last(spec, number, 1));
    this.addsSpace = flag(3);
    this.removesSpaces = flag(4);
    this.space = flag(5) ? WORD_MARK : " ";
    this.spaceAtEnd = spaceAtEnd;
    // The longest first.
    this.userDefined = userDefined
      .map((text) => encoder.encode(text))
      .sort((a, b) => b.length - a.length);
    // The table: the size of a trie in bytes, the trie, and the replacements,
    // each of which ends with a zero.
    const table = last(spec, 2, new Uint8Array());
    if (table.length) {
      const view = new DataView(table.buffer, table.byteOffset);
      const size = view.getUint32(0, true);
      const trie = table.slice(4, 4 + size);
      this.trie = new Uint32Array(trie.buffer, 0, size >> 2);
      this.replacements = table.subarray(4 + size);
    }
  }

  normalize(text) {
    const bytes = encoder.encode(text);
    let at = 0;
    while (this.removesSpaces && at < bytes.length) {
      const [part, size] = this.prefix(bytes, at);
      if (part !== " ") break;
      at += size;
    }
    if (at === bytes.length) return "";
    let result = this.addsSpace && !this.spaceAtEnd ? this.space : "";
    let isAfterSpace = this.removesSpaces;
    while (at < bytes.length) {
      const [part, size] = this.prefix(bytes, at);
      const kept = isAfterSpace ? part.replace(/^ +/, "") : part;
      if (kept) {
        result += kept.replaceAll(" ", this.space);
        isAfterSpace = this.removesSpaces && kept.endsWith(" ");
      }
      at += size;
    }
    if (this.removesSpaces) {
      while (result.endsWith(this.space)) {
        result = result.slice(0, -this.space.length);
      }
    }
    if (this.addsSpace && this.spaceAtEnd) result += this.space;
    return result;
  }

  // NormalizePrefix: a text's beginning after `at` as it is replaced, and how
  // many bytes that beginning has.
  prefix(bytes, at) {
    const startsWith = (other) => other.every((b, i) => b === bytes[at + i]);
    const symbol = this.userDefined.find(startsWith);
    const [value, longest] = symbol ? [0, 0] : this.longestMatch(bytes, at);
    if (longest) {
      const end = this.replacements.indexOf(0, value);
      return [decoder.decode(this.replacements.subarray(value, end)), longest];
    }
    const size = symbol?.length ?? sizeOf(bytes[at]);
    return [decoder.decode(bytes.subarray(at, at + size)), size];
  }

  // The value and the size of the longest key of the trie that the text after
  // `at` begins with (commonPrefixSearch of Darts-clone, darts.h).
  longestMatch(bytes, at) {
    let [value, longest] = [0, 0];
    if (!this.trie) return [value, longest];
    const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    let node = offset(this.trie[0]);
    for (let i = at; i < bytes.length; i++) {
      node ^= bytes[i];
      const unit = this.trie[node];
      if ((unit & 0x800000ff) !== bytes[i]) break;
      node ^= offset(unit);
      if (unit & 256) {
        value = this.trie[node] & 0x7fffffff;
        longest = i + 1 - at;
      }
    }
    return [value, longest];
  }
}

// The number of bytes of a character in UTF-8 by the first of them.
const sizeOf = (byte) => 1 + (byte >= 0xc0) + (byte >= 0xe0) + (byte >= 0xf0);

class UnigramModel {
  // `content` is that of spiece.model, an ArrayBuffer.
  constructor(content) {
    const model = fieldsOf(new Uint8Array(content));
    const trainer = fieldsOf(last(model, 2, new Uint8Array()));
    if (last(trainer, 3, 1) !== 1) throw new Error("it is no unigram model");
    this.hasBytePieces = Boolean(last(trainer, 35, 0));
    this.ids = new Map(); // of every piece
    this.scores = new Map(); // of the pieces that a text can have
    const pieces = (model.get(1) ?? []).map((message) => {
      const fields = fieldsOf(message);
      const score = fields.has(2) ? floatOf(last(fields, 2)) : 0;
      const text = decoder.decode(last(fields, 1, new Uint8Array()));
      return { text, score, type: last(fields, 3, NORMAL) };
    });
    this.pieces = pieces.map((piece) => piece.text);
    const scores = pieces.filter((p) => p.type === NORMAL).map((p) => p.score);
    const lowest = scores.reduce((a, b) => Math.min(a, b), Infinity);
    const highest = scores.reduce((a, b) => Math.max(a, b), FLT_MIN);
    this.unknownScore = Math.fround(lowest - UNKNOWN_PENALTY);
    this.longest = 0; // characters of a piece
    for (const [id, { text, score, type }] of pieces.entries()) {
      this.ids.set(text, id);
      if (type === UNKNOWN) this.unknown = id;
      if (type === NORMAL) {
        this.scores.set(text, score);
      } else if (type === USER_DEFINED) {
        const size = encoder.encode(text).length;
        this.scores.set(text, Math.fround(size * highest) - 0.1);
      }
      this.longest = Math.max(this.longest, [...text].length);
    }
    this.normalizer = new Normalizer(
      fieldsOf(last(model, 3, new Uint8Array())),
      pieces.filter((p) => p.type === USER_DEFINED).map((p) => p.text),
      Boolean(last(trainer, 24, 0)),
    );
  }

  idOf(piece) {
    return this.ids.get(piece) ?? this.unknown;
  }

  // The ids of the segmentation of a text, in which unknown characters beside
  // one another are one piece.
  encode(text) {
    const ids = [];
    let isAfterUnknown = false;
    for (const piece of this.segmented(this.normalizer.normalize(text))) {
      const isUnknown = !this.scores.has(piece);
      if (isUnknown && this.hasBytePieces) {
        for (const byte of encoder.encode(piece)) {
          const digits = byte.toString(16).toUpperCase().padStart(2, "0");
          ids.push(this.idOf(`<0x${digits}>`));
        }
      } else if (!isUnknown || !isAfterUnknown) {
        ids.push(isUnknown ? this.unknown : this.ids.get(piece));
      }
      isAfterUnknown = isUnknown;
    }
    return ids;
  }

  // The most probable segmentation (EncodeOptimized, unigram_model.cc). Sums
  // are rounded to 32 bits where they are there: that decides between
  // segmentations of almost equal probability.
  segmented(text) {
    const characters = [...text];
    const count = characters.length;
    // Of the best segmentation of the first characters.
    const scores = new Float32Array(count + 1);
    const starts = new Int32Array(count + 1).fill(-1); // of its last piece
    const reach = (end, start, score) => {
      if (starts[end] < 0 || score > scores[end]) {
        scores[end] = score;
        starts[end] = start;
      }
    };
    for (let start = 0; start < count; start++) {
      let piece = "";
      const limit = Math.min(count, start + this.longest);
      for (let end = start + 1; end <= limit; end++) {
        piece += characters[end - 1];
        const score = this.scores.get(piece);
        if (score !== undefined) reach(end, start, scores[start] + score);
      }
      if (!this.scores.has(characters[start])) {
        const score = Math.fround(scores[start] + this.unknownScore);
        reach(start + 1, start, score);
      }
    }
    const pieces = [];
    for (let end = count; end > 0; end = starts[end]) {
      pieces.push(characters.slice(starts[end], end).join(""));
    }
    return pieces.reverse();
  }
}

// ---- Tokenizer: keras_albert/text/tokenizer.py

export class Tokenizer {
  // Contents of spiece.model (an ArrayBuffer), spiece.json and
  // unicode_tables.json.
  constructor(content, settings, tables) {
    this.normalization = new Normalization(tables, settings);
    this.model = new UnigramModel(content);
    // A piece of digits and a comma is tokenized again, without the comma.
    this.resplits = new Map();
    for (const [id, piece] of this.model.pieces.entries()) {
      const characters = [...piece];
      const [digit, comma] = characters.slice(-2);
      if (comma !== "," || !this.normalization.digit.has(digit)) continue;
      const number = piece.slice(0, -1).replaceAll(WORD_MARK, "");
      const ids = [...this.model.encode(number), this.model.idOf(",")];
      this.resplits.set(id, ids);
    }
  }

  // The ids of a text, without [CLS] and [SEP].
  encode(text) {
    const ids = this.model.encode(this.normalization.normalize(text));
    return ids.flatMap((id) => this.resplits.get(id) ?? id);
  }

  // [CLS] a [SEP], or [CLS] a [SEP] b [SEP] if b is not empty, cut to `longest`
  // tokens at the end of the longer text.
  pack(a, b, longest) {
    let [first, second] = [a.length, b.length];
    const room = longest - (second ? 3 : 2);
    while (first + second > room) first > second ? first-- : second--;
    const row = [CLS, ...a.slice(0, first), SEP];
    return b.length ? [...row, ...b.slice(0, second), SEP] : row;
  }
}
