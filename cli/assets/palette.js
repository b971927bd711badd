// The colours of blocks: own code strong, libraries muted, the standard library grey, native code of libraries in another
// hue. The hues lie apart on the axis from blue to yellow, which most colour-blind people see, and own code is told by its
// strength as well.

class Palette {
  constructor(model) {
    this.model = model;
  }

  /** Reads the colours of the style sheet. */
  read() {
    const style = getComputedStyle(document.documentElement);
    this.color = (name) => style.getPropertyValue(`--${name}`).trim();
    this.dark = document.documentElement.dataset.theme === "dark";
  }

  /** A module's position among the hues of its origin, from 0 to 1; the same in every page. */
  spread(module) {
    let hash = 2166136261;
    for (const char of module) hash = Math.imul(hash ^ char.codePointAt(0), 16777619);
    hash ^= hash >>> 13;
    return ((hash >>> 0) % 100) / 100;
  }

  /** The colour of a frame in one of four shades. */
  frame({ origin, isNative, module }, shade) {
    const spread = this.spread(module);
    const step = [0, 3, 1.5, 4.5][shade];
    const hsl = (hue, saturation, light, dark) =>
      `hsl(${hue} ${saturation}% ${this.dark ? dark + step : light - step}%)`;
    if (origin > ORIGIN.library) return hsl(220, this.dark ? 7 : 12, 88, 62);
    if (origin === ORIGIN.own) return hsl(28 + 14 * spread, this.dark ? 82 : 95, 61, 58);
    if (isNative) return hsl(58 + 14 * spread, this.dark ? 26 : 46, 80, 66);
    return hsl(196 + 34 * spread, this.dark ? 30 : 52, 85, 64);
  }

  /** The swatch of an owner in legends. */
  owner(owner) {
    if (owner === OWNER.arenas) return this.color("arenas");
    if (owner === OWNER.imports) return this.color("imports");
    return this.frame({ origin: owner, isNative: false, module: "" }, 0);
  }
}
