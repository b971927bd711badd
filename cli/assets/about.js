// The dialog about the capture, with the keys.

const KEYS = [
  ["/", "search"],
  ["← ↑ → ↓ Enter", "move in the graph, zoom"],
  ["Backspace Esc", "zoom out, once or all the way"],
  ["v b", "next view; bytes or number"],
  ["i u s", "inverted; upwards; split by thread"],
  ["f a", "next choice of frames; all frames"],
  [
    "1 2 3 4 5 6",
    "own code, libraries, standard library, imports, arenas, threads without Python code: shown or left out",
  ],
  ["g t", "graph, functions or lines; light or dark"],
];

function showAbout(model) {
  const { facts, notes } = model.data;
  const dialog = $("about");
  const list = (pairs, label) => {
    const list = element("dl");
    for (const [term, text] of pairs) {
      const left = element("dt");
      left.append(...label(term));
      list.append(left, element("dd", "", text));
    }
    return list;
  };
  const pairs = facts.flatMap((text, at) => (at % 2 ? [] : [[text, facts[at + 1]]]));
  const known = list([...pairs, ...notes.map((note) => ["Note", note])], (term) => [term]);
  const keys = list(KEYS, (term) => term.split(" ").map((key) => element("kbd", "", key)));
  const close = element("button", "", "Close");
  close.onclick = () => dialog.close();
  const title = model.diff ? "The captures" : "The capture";
  dialog.replaceChildren(element("h2", "", title), known, element("h2", "", "Keys"), keys, close);
  dialog.showModal();
}
