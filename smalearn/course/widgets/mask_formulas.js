// What the mask explorer computes: masks, scores, ranks of blocks, costs. Python puts it before mask_explorer.js.

import { rank } from "./singular_values.js";

// TOLERANCE of a rank, a share of the largest singular value, and NGRAM, the words that a score compares, come from
// mask_explorer.py.

// ---- masks --------------------------------------------------------------------------------------------------------

/** Operations of a transform of so many numbers, 2.5 for each and each level if they are real, else 5. */
function fft(length, each) {
  return Math.ceil(each * length * Math.log2(length));
}

/** A product with one column by a circular convolution: three transforms, and a product of spectra. */
function convolution(T) {
  const size = 2 ** Math.ceil(Math.log2(2 * T - 1));
  return 3 * fft(size, 2.5) + 3 * size;
}

/** How many entries are 1. */
function ones(entry, p) {
  return table(p.T, (t, s) => entry(t, s, p)).reduce((count, one) => count + one, 0);
}

const near = (t, s, { window, dilation }) => +(Math.abs(t - s) <= window * dilation && (t - s) % dilation === 0);
const banded = (t, s, { window }) => near(t, s, { window, dilation: 1 });
const together = (t, s, { T, blocks }) => +(Math.floor((t * blocks) / T) === Math.floor((s * blocks) / T));
const angle = (t, s, T) => (2 * Math.PI * ((t * s) % T)) / T;

/** The level at which a binary tree over time joins two tokens: the bit length of t xor s. */
const level = (t, s) => 32 - Math.clz32(t ^ s);

/** One product for each target; at each level above 0 a multiply-add for each target in a later half, and for each sum. */
function byLevels({ T }) {
  let operations = T;
  for (let half = 1; half < T; half *= 2) {
    const blocks = Math.floor(T / (2 * half));
    operations += 2 * (blocks * half + Math.max((T % (2 * half)) - half, 0)) + 2 * blocks;
  }
  return operations;
}

/** Of every family the entry (t, s), the cost of a product with one column, and what to say of it. */
export const FAMILIES = {
  causal: {
    title: "A mask of ones on and below the diagonal is plain linear attention: a running sum",
    entry: (t, s) => +(s <= t),
    cost: ({ T }) => T,
    by: "a running sum",
    says: "L is 1 where s ≤ t: linear attention",
  },
  decay: {
    title: "Forgetting at one rate is cheap: one scan computes the product with L",
    entry: (t, s, { gamma }) => (s <= t ? gamma ** (t - s) : 0),
    cost: ({ T }) => 2 * (T - 1),
    by: "a scan",
    says: "L is γ^(t−s) where s ≤ t: RetNet",
  },
  "1-semiseparable": {
    title: "Forgetting is cheap: whatever the decays, one scan computes the product with L",
    hint: "Drag a decay to 0: everything before it is forgotten. Point at a row to see what its word reads.",
    entry: (t, s, { decays }) => (s <= t ? decays.slice(s + 1, t + 1).reduce((product, a) => product * a, 1) : 0),
    cost: ({ T }) => 2 * (T - 1),
    by: "a scan",
    says: "L is the product of the decays a after s up to t where s ≤ t: SSD, the heart of Mamba-2",
  },
  Toeplitz: {
    title: "A weight for each distance is a convolution, and that costs a few Fourier transforms",
    hint: "Draw α over the distances. Point at a row to see what its word reads.",
    entry: (t, s, { T, alpha }) => alpha[t - s + T - 1],
    cost: ({ T }) => convolution(T),
    by: "fast Fourier transforms",
    says: "L is α at the distance t − s: a weight for each relative position",
  },
  Fourier: {
    title: "A mask of waves costs a fast Fourier transform, though its rank is full",
    entry: (t, s, { T }) => Math.cos(angle(t, s, T)),
    imaginary: (t, s, { T }) => Math.sin(angle(t, s, T)),
    cost: ({ T }) => fft(T, 5),
    by: "a fast Fourier transform",
    says: "L is exp(2πi·ts/T), complex and not causal. The pictures show real parts; ranks are those of the complex L",
  },
  "low rank": {
    title: "Two thin factors make a mask that costs little, and that no order in time limits",
    entry: (t, s, { U, V, rank }) => U[t].slice(0, rank).reduce((sum, u, r) => sum + u * V[s][r], 0),
    cost: ({ T, rank }) => rank * (2 * T - 1) + T * (2 * rank - 1),
    by: "two thin products",
    says: "L is UVᵀ with R columns each, and not causal",
  },
  banded: {
    title: "A window looks at neighbours alone, and its blocks have a small rank",
    entry: banded,
    cost: (p) => ones(banded, p),
    by: "adding what lies under the ones",
    says: "L is 1 where |t − s| is at most the window: sliding-window attention, both ways",
  },
  dilated: {
    title: "A window with gaps looks further for the same cost",
    entry: near,
    cost: (p) => ones(near, p),
    by: "adding what lies under the ones",
    says: "L is 1 at multiples of the dilation, as many either way as the window says",
  },
  "block diagonal": {
    title: "Words in different blocks do not see each other, and what is not seen costs nothing",
    entry: together,
    cost: (p) => ones(together, p),
    by: "adding what lies under the ones",
    says: "L is 1 where t and s lie in the same block: attention within chunks",
  },
  "log-linear": {
    title: "A weight for each level of a tree keeps the far past coarsely, at the price of one sum a level",
    entry: (t, s, { gamma, growth }) => (s <= t ? gamma ** (t - s) * growth ** level(t, s) : 0),
    cost: byLevels,
    by: "one sum for half a block at each level of a tree",
    says: "L is a decay times a weight for the level at which a binary tree joins t and s: log-linear attention",
  },
};

/** Multiplications and additions of a dense product with one column: a complex product takes 6 of them, a sum 2. */
export function denseCost({ T, imaginary }) {
  return imaginary ? T * (8 * T - 2) : T * (2 * T - 1);
}

/** A (T, T) matrix in one array, row by row, from its entries. */
function table(T, entry) {
  return Float64Array.from({ length: T * T }, (_, i) => entry(Math.floor(i / T), i % T));
}

/** A mask: its size T, its real part, its imaginary part if it has one, and its cost. */
export function makeMask(family, p) {
  const { entry, imaginary, cost } = FAMILIES[family];
  const [real, T] = [table(p.T, (t, s) => entry(t, s, p)), p.T];
  return { T, real, imaginary: imaginary && table(T, (t, s) => imaginary(t, s, p)), cost: cost(p) };
}

/** G = QK^T: how many of the last words are equal, or the products of random queries and keys. */
export function makeScores(kind, { words, Q, K }) {
  const dot = (t, s) => Q[t].reduce((sum, q, n) => sum + q * K[s][n], 0);
  const lags = Array.from({ length: NGRAM }, (_, i) => i);
  const equal = (t, s) => lags.filter((i) => i <= Math.min(t, s) && words[t - i] === words[s - i]).length;
  return table(words.length, kind === "random" ? dot : equal);
}

// ---- ranks --------------------------------------------------------------------------------------------------------

/** The rank of the block L[k:, :k], the targets from k on and the sources before it. */
export function blockRank({ T, real, imaginary }, k) {
  const [copies, short, long] = [imaginary ? 2 : 1, Math.min(k, T - k), Math.max(k, T - k)];
  const [A, n] = [new Float64Array(copies ** 2 * short * long), copies * short];
  const put = (x, i, j) => (A[k <= T - k ? i * n + j : j * n + i] = x);
  let limit = 0;
  for (let i = 0; i < T - k; i++) {
    for (let j = 0; j < k; j++) {
      const [x, y] = [real[(k + i) * T + j], imaginary?.[(k + i) * T + j] ?? 0];
      limit = Math.max(limit, Math.abs(x), Math.abs(y));
      put(x, i, j);
      if (!imaginary) continue;
      put(x, i + T - k, j + k); // x + iy as the real matrix ((x, -y), (y, x)), which has every singular value twice
      put(-y, i, j + k);
      put(y, i + T - k, j);
    }
  }
  if (!limit) return 0;
  return rank(A.map((x) => x / limit), copies * long, n, TOLERANCE) / copies;
}

export function blockRanks(L) {
  return Array.from({ length: L.T - 1 }, (_, i) => blockRank(L, i + 1));
}

// ---- drawing by hand ----------------------------------------------------------------------------------------------

/** Numbers drawn by a stroke of the pointer from one place to another: a straight line between them. */
export function stroke(values, [i, x], [j, y]) {
  const [first, last] = [Math.min(i, j), Math.max(i, j)];
  const at = (place) => (i === j ? y : x + ((place - i) / (j - i)) * (y - x));
  return values.map((value, place) => (place < first || place > last ? value : at(place)));
}
