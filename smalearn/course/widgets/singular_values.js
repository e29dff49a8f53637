// Singular values of a small matrix, and how many there are above a number, for the explorers that show ranks.

/** Mirror a line of a flat matrix onto its first entry, which is returned, and the lines beside it along with it. */
function mirror(A, start, step, count, across, others) {
  let square = 0;
  for (let i = 0; i < count; i++) square += A[start + i * step] ** 2;
  const norm = Math.sqrt(square);
  if (norm < 1e-100) return 0;
  const entry = A[start] > 0 ? -norm : norm;
  const half = norm * (norm + Math.abs(A[start]));
  A[start] -= entry;
  for (let line = start + across; line <= start + others * across; line += across) {
    let dot = 0;
    for (let i = 0; i < count; i++) dot += A[start + i * step] * A[line + i * step];
    for (let i = 0; i < count; i++) A[line + i * step] -= (dot / half) * A[start + i * step];
  }
  return entry;
}

/** The two diagonals that Householder reflections leave of a flat (m, n) matrix, m ≥ n, one by one; destroys it. */
function bidiagonal(A, m, n) {
  const band = [];
  for (let k = 0; k < n; k++) {
    band.push(mirror(A, k * n + k, n, m - k, 1, n - k - 1));
    if (k < n - 1) band.push(mirror(A, k * n + k + 1, 1, n - k - 1, n, m - k - 1));
  }
  return band;
}

/** How many singular values of two diagonals are above a positive number: a Sturm sequence. */
function above(band, x) {
  let [q, count] = [-x, 0];
  for (const b of band) {
    q = -x - (b * b) / (q || 1e-300);
    count += q > 0;
  }
  return count;
}

/** The singular value number k, from 0, by halving. */
function halved(band, k, high, steps) {
  let low = 0;
  for (let i = 0; i < steps; i++) {
    const middle = (low + high) / 2;
    if (above(band, middle) > k) low = middle;
    else high = middle;
  }
  return high;
}

/** How many singular values of a flat (m, n) matrix, m ≥ n, are above a share of the largest; destroys it. */
export function rank(A, m, n, tolerance) {
  const band = bidiagonal(A, m, n);
  const largest = halved(band, 0, Math.hypot(...band), 40);
  return largest ? above(band, tolerance * largest) : 0;
}

/** Singular values of rows of numbers, the largest first, each within rounding of the largest. */
export function singularValues(M) {
  const wide = M[0].length > M.length;
  const rows = wide ? M[0].map((_, s) => M.map((row) => row[s])) : M;
  const [m, n] = [rows.length, rows[0].length];
  const band = bidiagonal(Float64Array.from(rows.flat()), m, n);
  const high = Math.hypot(...band);
  return Array.from({ length: n }, (_, k) => (high ? halved(band, k, high, 64) : 0));
}
