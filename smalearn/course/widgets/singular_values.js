// Singular values of a small matrix, for the explorers that show ranks.

import { dot } from "./base.js";

/** Turn two vectors in their plane until they are orthogonal; returns whether they had to be turned. */
function orthogonalise(x, y) {
  const [a, b, c] = [dot(x, x), dot(y, y), dot(x, y)];
  if (c === 0 || Math.abs(c) <= 1e-15 * Math.sqrt(a * b)) return false;
  const ratio = (b - a) / (2 * c);
  const tangent = (ratio < 0 ? -1 : 1) / (Math.abs(ratio) + Math.hypot(1, ratio));
  const [cosine, sine] = [1 / Math.hypot(1, tangent), tangent / Math.hypot(1, tangent)];
  for (let i = 0; i < x.length; i++) [x[i], y[i]] = [cosine * x[i] - sine * y[i], sine * x[i] + cosine * y[i]];
  return true;
}

/** Singular values, the largest first, by one-sided Jacobi: lengths of the columns, once these are orthogonal. */
export function singularValues(M) {
  const across = M[0].length;
  const wide = across > M.length; // as many vectors as there are singular values
  const vectors = wide ? M.map((row) => [...row]) : Array.from({ length: across }, (_, s) => M.map((row) => row[s]));
  for (let sweep = 0, turned = true; turned && sweep < 40; sweep++) {
    turned = false;
    for (let i = 0; i < vectors.length; i++) {
      for (let j = i + 1; j < vectors.length; j++) turned = orthogonalise(vectors[i], vectors[j]) || turned;
    }
  }
  return vectors.map((x) => Math.hypot(...x)).sort((a, b) => b - a);
}
