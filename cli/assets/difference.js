// Additions for pages of differences: the legend of changes, and vanished functions.

function showDifference(page) {
  const { model, state } = page;
  const stacks = model.vanishedStacks({ ...page.selection(), vanished: false });
  $("vanishedLabel").hidden = !stacks && !state.vanished;
  $("vanishedText").textContent = `Vanished (${plural(stacks, "stack", "stacks")})`;
  const entries = state.vanished
    ? [
        ["gone", "only in the base"],
        ["same", "in both, calls what is only in the base"],
      ]
    : [
        ["shrunk4", "-100 %"],
        ["shrunk3", "-50"],
        ["shrunk2", "-30"],
        ["shrunk1", "-15"],
        [
          "same",
          `within 15 %, below ${formatAmount(model.floor(page.selection()), state.metric)}, ${model.data.sampled ? "within its 95 % interval, " : ""}or as much less elsewhere`,
        ],
        ["grown1", "+15"],
        ["grown2", "+30"],
        ["grown3", "+50"],
        ["grown4", "+100 % and more"],
        ["new", "not in the base"],
      ];
  const by = state.colorBy === "own" ? "what a function allocated itself" : "a function with its callees";
  const scale = model.data.scale || "absolute, nothing scaled";
  const swatch = (name) => {
    const swatch = element("i");
    swatch.style.background = `var(--${name})`;
    return swatch;
  };
  $("legend").replaceChildren(`Change of ${by}; ${scale}:`, ...entries.flatMap(([name, text]) => [swatch(name), text]));
}
