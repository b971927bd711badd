// Objects, text, JSON and buffers in node: requests.js ROUNDS
const rounds = Number(process.argv[2]);
const cache = new Map();
let state = 1;
const chance = (below) => (state = (state * 1103515245 + 12345) % 2147483648) % below;
for (let round = 0; round < rounds; round++) {
  const items = Array.from({ length: 100 }, (_, id) => ({ id, name: `item ${chance(1000)}`, tags: [`${id}`, `${round}`] }));
  const text = JSON.stringify({ round, items });
  cache.set(chance(500), Buffer.from(text));
  JSON.parse(text).items.filter((item) => item.id % 3).map((item) => item.name.toUpperCase()).sort();
}
console.log(cache.size);
