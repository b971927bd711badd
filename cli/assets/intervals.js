// The 95 % intervals of figures that are estimated from samples: the same as in all reports, see interval_ends.rs.
// Invariant: what is exact reaches nowhere, but for what may be there without a sample.

/** By this the lower end is less for the condition that there is a sample, by the number of samples from none on. */
const HAS_SAMPLE = [0, 0, 0.29, 0.725, 0.887, 0.95, 0.977, 0.99, 1];

function ifShown(samples) {
  const most = HAS_SAMPLE.length - 1;
  const at = Math.min(Math.max(samples, 0), most);
  const whole = Math.floor(at);
  return HAS_SAMPLE[whole] * (1 - (at - whole)) + (HAS_SAMPLE[whole + 1] ?? 1) * (at - whole);
}

/** How far the interval of a sum of samples reaches down and up. */
function reachOfSum({ estimate, variance, ofOne, samples, seen }, mixed, unseen) {
  if (!(variance > 0)) return { down: 0, up: Math.ceil(unseen) };
  const reach = (square, spread) => Math.sqrt(square * spread + ((square * ofOne) / 2) ** 2);
  const square = 1.96 * 1.96 * (1 + (mixed * ofOne) / Math.sqrt(variance));
  const up = reach(square, variance) + (square * ofOne) / 2;
  const chance = ofOne / 2;
  const below = reach(square, Math.max(variance - chance * ofOne, 0)) - (square * ofOne) / 2 + chance;
  const least = Math.max(estimate - Math.ceil(Math.max(below, 0)), 0);
  const low = Math.min(Math.floor(Math.max(least * ifShown(samples), Math.min(least, seen))), estimate);
  return { down: estimate - low, up: Math.ceil(Math.hypot(up, unseen)) };
}

/** How many small blocks may be among these without a sample, and how surely their sizes are mixed. */
function smallBlocks({ bytes, count }, { variance, skew }) {
  const ofOne = variance.count > 0 ? skew.count / variance.count : 0;
  if (!(ofOne > 0 && variance.bytes > 0 && count > 0)) return { unseen: 0, mixed: 0 };
  const size = skew.bytes / variance.bytes / ofOne;
  const samples = count ** 2 / variance.count;
  const mixed = Math.min(Math.max((bytes ** 2 / variance.bytes / samples - 1) / 0.1, 0), 1);
  const unknown = Math.min((3 / samples) ** 2, 1);
  const smaller = Math.max(Math.max(size / 16, 1) ** unknown, 1 + mixed * Math.log2(Math.max(size, 1)));
  return { unseen: Math.floor(3 * ofOne * smaller), mixed };
}

/** The sum of what is missing: that of a thread once, of those with a bit in `threads`; 0: nothing. */
function joinMissing(one, more) {
  if (!one || !more) return one || more;
  const bits = (number) => number.toString(2).replaceAll("0", "").length;
  const others = (more.threads & ~one.threads) >>> 0;
  const part = bits(others) / Math.max(bits(more.threads), 1);
  const number = Math.max(one.number + more.number * part, more.number);
  return { number, threads: (one.threads | more.threads) >>> 0 };
}

/** By how much the variances of a peak are larger as its moment is not known; `moves`: how the sum differs at others. */
function withChoice(variance, [first, second, third, known, chance]) {
  const largest = Math.max(...[first, second, third].map((half) => half.bytes ** 2));
  const more = Math.max(largest - chance.bytes, 0.6 * known.bytes ** 2);
  const factor = variance.bytes > 0 ? 1 + more / variance.bytes : 1;
  return { bytes: variance.bytes + more, count: variance.count * factor + 0.6 * first.count ** 2 };
}

/** How far the 95 % interval of bytes or of a number reaches; `figures`, `spread`: both of them, and how exact they are. */
function reachOf(metric, figures, spread) {
  const { variance, skew, unseen, missing, moves } = spread;
  const ofOne = (which) => (variance[which] > 0 ? skew[which] / variance[which] : 0);
  const [estimate, others] = [figures[metric], ofOne("count")];
  const sum = { estimate, variance: withChoice(variance, moves)[metric], ofOne: ofOne(metric) };
  if (metric === "bytes") {
    const weight = others > 0 ? (sum.ofOne * (1 + others)) / others : sum.ofOne;
    const samples = weight > 0 ? estimate / weight : Infinity;
    return reachOfSum({ ...sum, samples, seen: others > 0 ? (estimate - 1) / (1 + others) : 0 }, 0, unseen.bytes);
  }
  const small = smallBlocks(figures, spread);
  const seen = { ...sum, samples: estimate / (1 + others), seen: 1 };
  return reachOfSum(seen, 1.2 * small.mixed, Math.max(unseen.count, missing ? missing.number : 0, small.unseen));
}

/** The same of figures that have a spread; `of`: what part of them is meant, as bytes and number. */
function reachOfParts(metric, of, figures) {
  const { variance, skew, unseen, missing, moves } = figures.spread;
  const spread = { variance: of(variance), skew: of(skew), unseen: of(unseen), missing: of(missing).count };
  return reachOf(metric, of(figures), { ...spread, moves: moves.map(of) });
}
